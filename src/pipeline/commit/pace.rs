//! How long a transaction stays open.

use std::time::Duration;

use crate::pipeline::options::WorkerOptions;

/// Longest time that a transaction stays open while more records are waiting.
const BACKLOG_INTERVAL: Duration = Duration::from_secs(1);
/// Duration of a commit that is slow because of the number of its partitions: with a few dozen it takes 10 to 40 ms, and a
/// short `batch.interval` applies as it is configured.
const SLOW_COMMIT: Duration = Duration::from_millis(100);

/// The shortest pause after a failure.
const FIRST_BACKOFF: Duration = Duration::from_millis(50);

/// How long recent commits took, and how many of them failed.
#[derive(Debug, Default)]
pub(crate) struct CommitPace {
    /// Durations of the last two commits.
    commits: [Duration; 2],
    /// Consecutive failures; the pause before the next attempt grows with them, and is short again after a commit.
    pub(super) failures: u32,
}

impl CommitPace {
    /// Longest time that the transaction stays open.
    pub(crate) fn interval(&self, options: &WorkerOptions, has_more: bool) -> Duration {
        let longest = BACKLOG_INTERVAL.min(options.transaction_timeout / 4);
        open_for(options.interval, longest, self.commit_took(), has_more)
    }

    /// How long commits take at present. One that took longer than the one before it, for another reason than the number of
    /// its partitions, does not count.
    fn commit_took(&self) -> Duration {
        let [last, before] = self.commits;
        last.min(before)
    }

    /// Whether commits are slow because of the number of their partitions.
    pub(super) fn is_slow(&self) -> bool {
        self.commit_took() >= SLOW_COMMIT
    }

    /// A commit and its markers took `took`.
    pub(super) fn note(&mut self, took: Duration) {
        self.commits = [took, self.commits[0]];
    }

    /// The pause after a failure; the next one is longer.
    pub(crate) fn backoff(&mut self) -> Duration {
        let pause = FIRST_BACKOFF * (1 << self.failures.min(6));
        self.failures += 1;
        pause
    }
}

/// How long a transaction stays open: `interval`, and up to `longest` where a longer one costs the broker less.
///
/// - While more records are waiting in the client, the transaction is filled up: it costs the same few requests and markers,
///   whatever its size.
/// - While commits are slow it stays open for at least as long as one takes. Each partition in a transaction costs two
///   requests and three markers, so with hundreds of partitions a commit takes hundreds of milliseconds. A longer transaction
///   touches fewer partitions per second, and the broker has half of the time for its other work.
fn open_for(interval: Duration, longest: Duration, commit_took: Duration, has_more: bool) -> Duration {
    if has_more {
        return interval.max(longest);
    }
    if commit_took < SLOW_COMMIT { interval } else { interval.max(commit_took.min(longest)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_transaction_stays_open_as_long_as_a_commit_takes_and_longer_at_a_backlog() {
        let [interval, longest] = [100, 1_000].map(Duration::from_millis);
        let open_ms = |commit_ms, has_more| {
            open_for(interval, longest, Duration::from_millis(commit_ms), has_more).as_millis()
        };
        assert_eq!([0, 40, 100, 300, 5_000].map(|ms| open_ms(ms, false)), [100, 100, 100, 300, 1_000]);
        assert_eq!([0, 5_000].map(|ms| open_ms(ms, true)), [1_000; 2]);
        let short = Duration::from_millis(10);
        let open_ms =
            |commit_ms| open_for(short, longest, Duration::from_millis(commit_ms), false).as_millis();
        assert_eq!([40, 300].map(open_ms), [10, 300], "a short interval");
        // A configured interval beyond the limit applies.
        let configured = Duration::from_secs(3);
        assert_eq!(open_for(configured, longest, longest, true), configured);
    }
}
