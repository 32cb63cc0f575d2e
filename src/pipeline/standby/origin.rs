//! Where a standby copy begins to read the state topic.

use crate::dedupe::Offset;
use crate::pipeline::journal::local::usable;
use crate::ports::LogBounds;

/// The beginning of a copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Origin {
    /// The local state is continued. The state topic is read from `from` on.
    Local { from: Offset },
    /// Local state is removed, and the whole state topic is read, from its first offset on.
    Empty { from: Offset },
    /// The local state is ahead of the log, which a new leader may not show to its end yet.
    Later,
}

/// Compares the local state with the log. `local` is the offset at which the local state is continued;
/// `None` when there is no local state, or none that can be continued.
pub(super) fn origin(local: Option<Offset>, log: &LogBounds) -> Origin {
    if local.is_some_and(|from| from > log.stable.max(log.low)) {
        return Origin::Later;
    }
    // Without a committed offset: a log whose records are all deleted, and that had no record behind the local state, continues it.
    match usable(local, log, false) {
        Some(from) => Origin::Local { from },
        None => Origin::Empty { from: log.low },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOG: LogBounds = LogBounds { low: 10, stable: 20, high: 25 };

    fn of(state_next: Offset, log: &LogBounds) -> Origin {
        origin(Some(state_next), log)
    }

    #[test]
    fn local_state_is_continued_where_the_log_holds_what_follows() {
        assert_eq!([10, 20].map(|from| of(from, &LOG)), [10, 20].map(|from| Origin::Local { from }));
        assert_eq!(of(21, &LOG), Origin::Later, "the log may not be shown to its end");
    }

    #[test]
    fn a_copy_without_usable_local_state_begins_at_the_start_of_the_log() {
        assert_eq!(origin(None, &LOG), Origin::Empty { from: 10 });
        assert_eq!(of(5, &LOG), Origin::Empty { from: 10 }, "retention has deleted what follows");
    }

    #[test]
    fn a_log_that_retention_has_emptied_continues_complete_local_state() {
        let emptied = LogBounds { low: 25, stable: 25, high: 25 };
        assert_eq!(of(24, &emptied), Origin::Local { from: 25 });
        assert_eq!(of(23, &emptied), Origin::Empty { from: 25 });
    }
}
