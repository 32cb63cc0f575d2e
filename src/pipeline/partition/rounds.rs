//! When to try to end a transaction on behalf of its writer, which is not known for certain.
//!
//! A transaction that stays open for longer than the transaction timeout of a worker belongs to a worker that is gone, or to
//! another program. Ending it for a writer means to use its transactional id, which fences whoever uses that id. So a writer
//! that is a member of the group is left out: it ends its own transactions, and what it has left open ([`crate::pipeline::torn`]). Each round
//! tries every other known writer once, one in an iteration. If the transaction is still open after the second round, it is
//! that of another program, and rounds follow in exponential intervals: a writer may have stopped since.

use std::time::Duration;

/// The interval doubles up to this number of times.
const DOUBLINGS_MAX: u32 = 6;

/// The rounds for one transaction.
#[derive(Debug, Clone, Default)]
pub struct Rounds {
    /// Number of rounds that have begun.
    pub begun: u32,
    /// Monotonic time of the next round.
    next: Duration,
    /// The writers that are left of the current round.
    pending: Vec<String>,
}

impl Rounds {
    /// The first round follows after `timeout`.
    pub fn after(timeout: Duration, now: Duration) -> Self {
        Self { next: now + timeout, ..Self::default() }
    }

    /// Whether a round is to begin.
    pub fn is_due(&self, now: Duration) -> bool {
        self.pending.is_empty() && now >= self.next
    }

    /// Begins a round with these writers. The next one follows after `timeout`, doubled from the third one on.
    pub fn begin(&mut self, writers: impl IntoIterator<Item = String>, timeout: Duration, now: Duration) {
        self.next = now + timeout * 2u32.pow(self.begun.saturating_sub(1).min(DOUBLINGS_MAX));
        self.begun += 1;
        self.pending = writers.into_iter().collect();
    }

    /// The next writer of the current round.
    pub fn next_writer(&mut self) -> Option<String> {
        self.pending.pop()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_writer_is_tried_once_per_round_and_rounds_follow_in_exponential_intervals() {
        let (timeout, mut begun) = (Duration::from_secs(10), Vec::new());
        let mut rounds = Rounds::after(timeout, Duration::from_secs(5));
        for second in 5..2_000 {
            let now = Duration::from_secs(second);
            if rounds.is_due(now) {
                rounds.begin(["a", "b"].map(str::to_owned), timeout, now);
                begun.push(second);
            }
            let expected = begun.last().is_some_and(|last| second < last + 2);
            assert_eq!(rounds.next_writer().is_some(), expected, "{second}");
        }
        assert_eq!(begun, [15, 25, 35, 55, 95, 175, 335, 655, 1_295, 1_935]);
    }
}
