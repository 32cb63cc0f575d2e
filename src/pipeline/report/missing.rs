//! The warning about records without an id, which are not de-duplicated. `rekey` gives it, too.

use std::time::Duration;

use crate::metrics::Outcome;
use crate::pipeline::time::is_due;

/// Interval between two repetitions of the warning.
const INTERVAL: Duration = Duration::from_hours(1);

/// Fewest records of which none has an id, and fewest of which most have none, for a warning.
const LEAST: u64 = 100;
const LEAST_OF_MOST: u64 = 1_000;
/// Beyond as many records, those so far weigh half.
const MOST: u64 = 10_000;

/// What the last transactions have shown.
#[derive(Debug, Default)]
pub(crate) struct MissingIds {
    /// Records that were searched for an id.
    searched: u64,
    /// How many had none, by what was done with them.
    forwarded: u64,
    dropped: u64,
    dead_letters: u64,
    /// Why one of them had none.
    example: String,
    /// Monotonic time of the last log message.
    logged: Option<Duration>,
}

impl MissingIds {
    /// Adds the records of a committed transaction with this outcome. In `rekey`, all records are forwarded, with or without an id.
    pub fn add(&mut self, outcome: Outcome, count: u64) {
        match outcome {
            Outcome::MissingId => self.forwarded += count,
            Outcome::MissingIdDropped => self.dropped += count,
            Outcome::MissingIdDeadLetter => self.dead_letters += count,
            Outcome::Forwarded
            | Outcome::Retry
            | Outcome::Duplicate
            | Outcome::Conflict
            | Outcome::Probable
            | Outcome::Forced => {}
            Outcome::DeadLetter | Outcome::Rejected | Outcome::Bypassed | Outcome::Stale => return,
        }
        self.searched += count;
        while self.searched > MOST {
            for counted in
                [&mut self.searched, &mut self.forwarded, &mut self.dropped, &mut self.dead_letters]
            {
                *counted /= 2;
            }
        }
    }

    /// Stores why a record of the last transaction has no id.
    pub fn explain(&mut self, why: &str) {
        why.clone_into(&mut self.example);
    }

    /// The note for the operator, if most records have no id, and whether the log has to repeat it at this monotonic time.
    /// `forward` is what is done with those that are forwarded.
    pub fn note(&mut self, now: Duration, forward: &str) -> Option<(String, bool)> {
        let Self { searched, forwarded, dropped, dead_letters, .. } = *self;
        let missing = forwarded + dropped + dead_letters;
        let is_all = missing == searched && searched >= LEAST;
        let is_most = missing > searched / 2 && searched >= LEAST_OF_MOST;
        if !is_all && !is_most {
            self.logged = None;
            return None;
        }
        let done = if forwarded >= dropped.max(dead_letters) {
            forward
        } else if dropped >= dead_letters {
            "dropped"
        } else {
            "written to the dead-letter topic"
        };
        let note = format!(
            "{missing} of the last {searched} records have no id and are {done}; for example, {}; correct identity.from (--id)",
            self.example
        );
        Some((note, is_due(&mut self.logged, now, INTERVAL)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn most_records_without_an_id_are_a_warning_until_most_have_one() {
        let mut ids = MissingIds::default();
        let note = |ids: &mut MissingIds, minutes| {
            ids.note(Duration::from_mins(minutes), "forwarded without de-duplication")
        };
        ids.add(Outcome::MissingId, 99);
        ids.add(Outcome::Bypassed, 1_000);
        assert_eq!(note(&mut ids, 0), None, "too few");
        ids.add(Outcome::MissingId, 1);
        ids.explain("the record has no id: it has no key");
        let (text, is_due) = note(&mut ids, 1).unwrap();
        assert_eq!(
            text,
            "100 of the last 100 records have no id and are forwarded without de-duplication; for example, the record has no \
             id: it has no key; correct identity.from (--id)"
        );
        assert!(is_due && !note(&mut ids, 60).unwrap().1 && note(&mut ids, 61).unwrap().1);
        ids.add(Outcome::Duplicate, 1);
        assert_eq!(
            note(&mut ids, 62),
            None,
            "101 records with one id are too few to say that most have none"
        );
        ids.add(Outcome::MissingIdDropped, 900);
        assert!(
            note(&mut ids, 63)
                .unwrap()
                .0
                .starts_with("1000 of the last 1001 records have no id and are dropped")
        );
        ids.add(Outcome::Forwarded, 20_000);
        assert_eq!(note(&mut ids, 64), None, "older records weigh less");
    }
}
