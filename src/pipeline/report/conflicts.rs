//! The warning about records whose id has an owner with other content.

use std::time::Duration;

use crate::dedupe::Coordinates;
use crate::metrics::Outcome;
use crate::pipeline::options::{Mode, OnConflict};
use crate::pipeline::time::is_due;

/// Shortest time between two log messages.
const INTERVAL: Duration = Duration::from_mins(1);
/// Beyond as many duplicates, those so far weigh half.
const MOST: u64 = 10_000;
/// One conflict in as many duplicates is a note on the page, until the operator has chosen what is compared.
const SHARE: u64 = 100;

/// What the last transactions have shown.
#[derive(Debug, Default)]
pub(crate) struct Conflicts {
    found: u64,
    different: u64,
    /// A record, and the owner of its id.
    example: Option<[Coordinates; 2]>,
    /// Whether there were conflicts since the last log message.
    is_new: bool,
    /// Monotonic time of the last log message.
    logged: Option<Duration>,
}

impl Conflicts {
    /// Adds the records of a committed transaction with this outcome.
    pub fn add(&mut self, outcome: Outcome, count: u64) {
        match outcome {
            Outcome::Conflict => {
                (self.found, self.different) = (self.found + count, self.different + count);
                self.is_new = true;
            }
            Outcome::Duplicate => self.found += count,
            _ => return,
        }
        while self.found > MOST {
            // One that was not logged is not forgotten.
            self.different = (self.different / 2).max(self.is_new.into());
            self.found /= 2;
        }
    }

    /// Stores a record of the last transaction, and the owner of its id.
    pub fn explain(&mut self, example: [Coordinates; 2]) {
        self.example = Some(example);
    }

    /// The text of the warning, for this raw topic, mode and policy; whether the log has to have it at this monotonic time, and whether the page,
    /// which has it until the operator has chosen what is compared.
    pub fn note(
        &mut self,
        now: Duration,
        raw: &str,
        mode: Mode,
        policy: OnConflict,
        is_chosen: bool,
    ) -> Option<ConflictNote> {
        let Self { found: duplicates, different: conflicts, .. } = *self;
        let [record, owner] = self.example.filter(|_| conflicts > 0)?;
        let done = match (mode, policy) {
            (Mode::Drop, OnConflict::Drop) => "dropped",
            (Mode::Drop, OnConflict::DeadLetter) => "written to the dead-letter topic",
            (Mode::Drop, OnConflict::Stop) => "not forwarded",
            _ => "forwarded",
        };
        let text = format!(
            "{conflicts} of {duplicates} recent duplicates have other content than the first record with their id, and are \
             {done}; for example record {record} of topic {raw}, whose id is that of record {owner}. If attempts of one event \
             differ, as by a time of sending or the spelling of the id, name the fields that do not in identity.compare. If these are different events, \
             the id is not unique: add what distinguishes them to identity.from"
        );
        let is_logged = self.is_new && is_due(&mut self.logged, now, INTERVAL);
        self.is_new &= !is_logged;
        let is_shown = !is_chosen && conflicts.saturating_mul(SHARE) >= duplicates;
        Some(ConflictNote { text, is_logged, is_shown })
    }
}

/// See [`Conflicts::note`].
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct ConflictNote {
    pub text: String,
    pub is_logged: bool,
    pub is_shown: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    const EXAMPLE: [Coordinates; 2] =
        [Coordinates { partition: 1, offset: 7 }, Coordinates { partition: 0, offset: 5 }];

    #[test]
    fn new_conflicts_are_logged_once_a_minute_and_shown_above_a_share_until_the_operator_has_chosen() {
        let mut seen = Conflicts::default();
        let of = |seen: &mut Conflicts, seconds, is_chosen| {
            seen.note(Duration::from_secs(seconds), "raw", Mode::Drop, OnConflict::Drop, is_chosen)
        };
        let note = |seen: &mut Conflicts, seconds, is_chosen| {
            of(seen, seconds, is_chosen).map(|note| (note.is_logged, note.is_shown))
        };
        seen.add(Outcome::Duplicate, 98);
        assert_eq!(note(&mut seen, 0, false), None);
        seen.add(Outcome::Conflict, 1);
        seen.explain(EXAMPLE);
        assert_eq!(note(&mut seen, 1, false), Some((true, true)));
        seen.add(Outcome::Conflict, 1);
        assert_eq!(note(&mut seen, 60, false), Some((false, true)));
        assert_eq!(note(&mut seen, 61, false), Some((true, true)));
        assert_eq!(note(&mut seen, 200, false), Some((false, true)), "no new one");
        assert_eq!(note(&mut seen, 201, true), Some((false, false)));
        seen.add(Outcome::Duplicate, 5_000);
        assert_eq!(note(&mut seen, 202, false), Some((false, false)), "fewer than one in a hundred");
        seen.add(Outcome::Forwarded, 5);
        let text = of(&mut seen, 203, false).unwrap().text;
        assert!(text.contains("2 of 5100 recent duplicates") && text.contains("record 1@7"), "{text}");
        assert!(text.contains("that of record 0@5") && text.contains("are dropped"), "{text}");
        // One within a minute of the last message is logged after it, however many duplicates follow.
        seen.add(Outcome::Conflict, 1);
        seen.add(Outcome::Duplicate, 100_000);
        assert_eq!(note(&mut seen, 204, true), Some((true, false)));
        let shadow = seen.note(Duration::from_secs(205), "raw", Mode::Shadow, OnConflict::DeadLetter, false);
        assert!(shadow.unwrap().text.contains("and are forwarded;"));
    }
}
