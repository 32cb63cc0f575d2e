//! The warning about copies in other partitions, which partition scope forwards.

use std::time::Duration;

use crate::dedupe::CopyEstimate;
use crate::pipeline::time::is_due;

/// Interval between two repetitions of the warning. After as long, the counts so far weigh half.
pub(super) const INTERVAL: Duration = Duration::from_hours(1);

/// What the sample has shown.
#[derive(Debug, Default)]
pub(super) struct CopyWarning {
    estimate: CopyEstimate,
    /// Monotonic time since which the estimate has its present weight.
    since: Option<Duration>,
    /// Monotonic time of the last log message.
    logged: Option<Duration>,
}

impl CopyWarning {
    /// Adds the counts of a committed transaction.
    pub(super) fn add(&mut self, counts: CopyEstimate) {
        self.estimate.add(counts);
    }

    /// The note for the operator, and whether the log has to repeat it at this monotonic time.
    pub(super) fn note(&mut self, now: Duration) -> Option<(String, bool)> {
        if now.saturating_sub(*self.since.get_or_insert(now)) >= INTERVAL {
            self.estimate.halve();
            self.since = Some(now);
        }
        let share = self.estimate.share()?;
        let percent = share * 100.0;
        let note = format!(
            "about {percent:.1} % of the records that are new in their partition are copies of records in other partitions of \
             this worker, and dedupe.scope = \"partition\" forwards them; set dedupe.scope = \"topic\" to drop them"
        );
        Some((note, is_due(&mut self.logged, now, INTERVAL)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_warning_is_repeated_once_per_hour_and_ends_when_no_copies_follow() {
        let mut warning = CopyWarning::default();
        let at = |minutes| Duration::from_mins(minutes);
        warning.add(CopyEstimate { new: 100, copies: 0 });
        assert_eq!(warning.note(at(0)), None);
        warning.add(CopyEstimate { new: 100, copies: 20 });
        let (note, is_due) = warning.note(at(1)).unwrap();
        assert!(note.starts_with("about 10.0 % of the records"), "{note}");
        assert!(is_due);
        assert!(!warning.note(at(59)).unwrap().1);
        assert!(warning.note(at(61)).unwrap().1);
        // 20 copies, 10 after the first hour, then 5, then 2.
        assert!(warning.note(at(125)).is_some());
        assert_eq!(warning.note(at(190)), None);
    }
}
