//! The size of transactions, and how it follows the speed of the broker.
//!
//! A transaction that exceeds its timeout is aborted, and the same records would exceed it again: over a slow connection, or
//! with a quota of the broker, nothing would ever be committed. So a size that takes half of the timeout is not repeated
//! ([`SizeLimit`]). The law is a function of values: the size of a transaction, its time and the timeout.
//!
//! **Smaller.** After a commit that took half of the timeout, and after a failure in the second half of it, the next
//! transaction has half of the size. A commit has a fixed part, which a smaller transaction does not shorten: when halving saved
//! less than a quarter of the time, the size stays, as long as the commit keeps below three quarters of the timeout.
//!
//! **Larger.** A failure may have been an outage, which shows nothing about the size, and the fixed part of a commit is not
//! known. What is known after a commit is an upper bound: a transaction of `f` times the size takes at most `f` times as
//! long, because the fixed part does not grow. So the limit grows in steps of at most a factor of two, by the largest one for
//! which this bound stays within three quarters of the timeout: an increase never aborts a transaction while the speed is the
//! same. Every commit that took less than half of the timeout allows a step of at least a quarter, whatever its fixed part, so
//! the configured size returns in a number of commits that is logarithmic. A transaction that does not use the limit counts
//! as the part of it that it has: it does not allow sizes that it has no bound for.
//!
//! **Steady.** An increased size that takes half of the timeout is withdrawn, and the next increase is a small one, after a
//! pause of some commits, which doubles each time. So over a slow connection transactions have nearly the largest size that
//! takes less than half of the timeout.

use crate::units::{duration_text, measured_text};
use std::time::Duration;

/// A transaction may always touch this number of partitions.
const FEW_PARTITIONS: usize = 64;
/// Increases of the limit, as numerator and denominator, the largest first.
const STEPS: [(usize, usize); 3] = [(2, 1), (3, 2), SMALL_STEP];
/// The smallest increase.
const SMALL_STEP: (usize, usize) = (5, 4);
/// A transaction of this many times the limit before an increase shows whether the increase fits. Less than the smallest step.
const LARGER: f64 = 1.125;
/// Commits without an increase after one that did not fit.
const FIRST_PAUSE: u32 = 8;
/// The longest such pause, commits.
const LONGEST_PAUSE: u32 = 128;

/// The size of a transaction, or a limit on it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct TransactionSize {
    /// Number of records.
    pub records: usize,
    /// Bytes of their keys and values.
    pub bytes: usize,
    /// Number of partitions.
    pub partitions: usize,
}

impl TransactionSize {
    fn each(self, change: impl Fn(usize) -> usize) -> Self {
        let Self { records, bytes, partitions } = self;
        Self { records: change(records), bytes: change(bytes), partitions: change(partitions) }
    }

    /// The lower of both, for each part.
    fn min(self, other: Self) -> Self {
        Self {
            records: self.records.min(other.records),
            bytes: self.bytes.min(other.bytes),
            partitions: self.partitions.min(other.partitions),
        }
    }

    fn zip(self, other: Self) -> [(usize, usize); 3] {
        [(self.records, other.records), (self.bytes, other.bytes), (self.partitions, other.partitions)]
    }

    /// Whether it has reached a part of the limit.
    pub fn is_full(self, limit: Self) -> bool {
        self.zip(limit).iter().any(|(size, limit)| size >= limit)
    }

    /// Whether it has reached all parts of the limit.
    fn covers(self, limit: Self) -> bool {
        self.zip(limit).iter().all(|(size, limit)| size >= limit)
    }

    /// How much of the limit it uses, for the part of which it uses most: 1 when it has reached the limit.
    fn share_of(self, limit: Self) -> f64 {
        self.zip(limit).iter().map(|(size, limit)| *size as f64 / (*limit).max(1) as f64).fold(0.0, f64::max)
    }

    /// Fewer partitions do not make a commit slow. They would make each transaction small, because the records of different
    /// partitions alternate.
    fn half(self) -> Self {
        let half = self.each(|it| (it / 2).max(1));
        Self { partitions: half.partitions.max(FEW_PARTITIONS), ..half }
    }
}

/// A transaction that was committed.
#[derive(Debug, Clone, Copy)]
pub struct Done {
    /// What it contained when its commit began.
    pub size: TransactionSize,
    /// Duration of its commit.
    pub took: Duration,
    /// Time from its first record to the end of its commit.
    pub age: Duration,
}

/// What a transaction changed in the limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SizeChange {
    /// Nothing.
    None,
    /// The limit is lower.
    Lower,
    /// An increase did not fit: the limit is what it was before.
    Back,
    /// The limit is higher.
    Higher,
    /// The configured limits apply.
    Full,
}

/// The limit on the size of transactions below the configured one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SizeLimit {
    /// The limit; `None` while the configured one applies.
    reduced: Option<TransactionSize>,
    /// The limit before the last increases, until a larger transaction was committed in time.
    before: Option<TransactionSize>,
    /// The pause after the last increase that did not fit, and what is left of it: commits.
    pause: u32,
    left: u32,
    /// Duration of the commit after which the limit was lowered, until one is fast enough.
    slow: Option<Duration>,
}

impl SizeLimit {
    /// The limit; `None` while the configured one applies.
    pub fn reduced(&self) -> Option<TransactionSize> {
        self.reduced
    }

    /// The note about the reduced limit, for the status page.
    pub fn note(&self) -> Option<String> {
        let TransactionSize { records, bytes, .. } = self.reduced?;
        Some(format!(
            "transactions have at most {records} records and {bytes} bytes, because one took more than half of \
             batch.transaction_timeout; the limit grows while commits are faster"
        ))
    }

    /// Logs a change of the limit, and the time that caused it.
    pub fn log(&self, change: SizeChange, what: &str, time: Duration, timeout: Duration) {
        let Some(TransactionSize { records, bytes, .. }) = self.reduced else {
            if change == SizeChange::Full {
                tracing::info!("transactions have their configured size again");
            }
            return;
        };
        match change {
            SizeChange::Lower => tracing::warn!(
                records,
                bytes,
                "a {what} {}, with a transaction timeout of {}: the next transactions have at most this size; it \
                 grows while commits are faster",
                measured_text(time),
                duration_text(timeout)
            ),
            SizeChange::Higher | SizeChange::Back => {
                tracing::debug!(records, bytes, "limit of transactions");
            }
            SizeChange::None | SizeChange::Full => {}
        }
    }

    /// Records until a transaction of this size reaches the limit, at least 1; `None` while the configured one applies.
    pub fn records_left(&self, size: TransactionSize) -> Option<usize> {
        self.reduced.map(|limit| limit.records.saturating_sub(size.records).max(1))
    }

    /// Adapts the limit after a commit.
    pub fn committed(&mut self, done: &Done, timeout: Duration, configured: TransactionSize) -> SizeChange {
        let shows_increase = self.shows_increase(done.size);
        if done.took < timeout / 2 {
            self.slow = None;
            if shows_increase {
                (self.before, self.pause, self.left) = (None, 0, 0);
            }
            return self.increase(done, timeout, configured);
        }
        if shows_increase {
            (self.reduced, self.before) = (self.before, None);
            self.postpone();
            return SizeChange::Back;
        }
        let saved_little = self.slow.is_some_and(|before| done.took > before * 3 / 4);
        if saved_little && done.took < timeout * 3 / 4 {
            return SizeChange::None;
        }
        self.lower(done.size);
        self.slow = Some(done.took);
        SizeChange::Lower
    }

    /// Adapts the limit after a failure of a transaction of this size, `age` after its first record.
    pub fn failed(&mut self, size: TransactionSize, age: Duration, timeout: Duration) -> SizeChange {
        if age < timeout / 2 {
            return SizeChange::None;
        }
        let (shows_increase, pause) = (self.shows_increase(size), self.pause);
        self.lower(size);
        if shows_increase {
            self.pause = pause;
            self.postpone();
        }
        SizeChange::Lower
    }

    /// Whether a transaction of this size shows how long the increased size takes.
    fn shows_increase(&self, size: TransactionSize) -> bool {
        self.before.is_some_and(|before| size.share_of(before) >= LARGER)
    }

    fn lower(&mut self, size: TransactionSize) {
        *self = Self { reduced: Some(size.half()), ..Self::default() };
    }

    fn postpone(&mut self) {
        self.pause = (self.pause * 2).clamp(FIRST_PAUSE, LONGEST_PAUSE);
        self.left = self.pause;
    }

    fn increase(&mut self, done: &Done, timeout: Duration, configured: TransactionSize) -> SizeChange {
        let Some(limit) = self.reduced else { return SizeChange::None };
        if self.left > 0 {
            self.left -= 1;
            return SizeChange::None;
        }
        let allowed = timeout.as_secs_f64() * 0.75 * done.size.share_of(limit).min(1.0);
        // After an increase that did not fit, a smaller one may.
        let steps = if self.pause > 0 { [SMALL_STEP; 3] } else { STEPS };
        let fits = |(numerator, denominator): &(usize, usize)| {
            done.age.as_secs_f64() * *numerator as f64 / *denominator as f64 <= allowed
        };
        let Some((numerator, denominator)) = steps.into_iter().find(fits) else { return SizeChange::None };
        // A part beyond the configured one would make every transaction look small.
        let higher = limit.each(|it| it.saturating_mul(numerator).div_ceil(denominator)).min(configured);
        self.before = self.before.or(Some(limit));
        self.reduced = Some(higher).filter(|higher| !higher.covers(configured));
        if self.reduced.is_some() { SizeChange::Higher } else { SizeChange::Full }
    }
}

#[cfg(test)]
mod tests;
