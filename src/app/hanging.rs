//! Hanging transactions: transactions that stay open in a topic, in raw those of its producers, in the topics that dedupd writes
//! to those of other programs. Records behind their first record cannot be read before they end.

use std::collections::BTreeMap;
use std::time::{Duration, UNIX_EPOCH};

use crate::clock;
use crate::kafka::Offsets;

/// Age at which a transaction is logged. Programs that commit with their checkpoints keep transactions open for
/// a while.
const WARN_AFTER: Duration = Duration::from_mins(1);
/// Interval between warnings about the same transaction.
const WARN_INTERVAL: Duration = Duration::from_mins(10);

/// The effect in the raw topic.
pub(super) const UPSTREAM: &str = "cannot be read before it ends";
/// The effect in a topic that dedupd writes to.
pub(super) const DOWNSTREAM: &str =
    "are not visible to read_committed readers before it ends, and dedupd waits for it";

/// A last stable offset that does not advance, below the high watermark.
#[derive(Debug, Clone, Copy)]
struct Stalled {
    /// The last stable offset.
    stable: u64,
    /// Offsets from there to the high watermark.
    waiting: u64,
    /// Monotonic time of the first observation.
    since: Duration,
    /// Monotonic time of the last warning.
    warned: Option<Duration>,
}

impl Stalled {
    fn age(&self, now: Duration) -> Duration {
        now.saturating_sub(self.since)
    }
}

/// The partitions of a topic whose last stable offset does not advance, and since when.
#[derive(Debug)]
pub(super) struct HangingPartitions {
    pub topic: String,
    effect: &'static str,
    bootstrap_servers: String,
    stalled: BTreeMap<u32, Stalled>,
}

impl HangingPartitions {
    /// `effect`: what the transactions prevent, as the predicate of a sentence about the offsets behind them.
    pub(super) fn new(topic: &str, effect: &'static str, bootstrap_servers: &str) -> Self {
        let (topic, bootstrap_servers) = (topic.to_owned(), bootstrap_servers.to_owned());
        Self { topic, effect, bootstrap_servers, stalled: BTreeMap::new() }
    }

    /// Evaluates the last stable offsets and the high watermarks. Returns for how long each last stable offset has
    /// not advanced; zero when it does.
    pub(super) fn observe(
        &mut self,
        stable: &Offsets,
        high_watermarks: &Offsets,
        now: Duration,
    ) -> BTreeMap<u32, Duration> {
        let earlier = std::mem::take(&mut self.stalled);
        for (partition, stable) in stable {
            let waiting = high_watermarks.get(partition).map_or(0, |end| end.saturating_sub(*stable));
            if waiting == 0 {
                continue;
            }
            let same = earlier.get(partition).filter(|earlier| earlier.stable == *stable);
            let (since, warned) = same.map_or((now, None), |earlier| (earlier.since, earlier.warned));
            self.stalled.insert(*partition, Stalled { stable: *stable, waiting, since, warned });
        }
        for (partition, ended) in earlier.iter().filter(|(_, earlier)| earlier.warned.is_some()) {
            if self.stalled.get(partition).is_none_or(|it| it.stable != ended.stable) {
                let (topic, offset) = (&self.topic, ended.stable);
                tracing::info!(topic, partition, offset, "hanging transaction ended");
            }
        }
        let age = |partition| self.stalled.get(partition).map_or(Duration::ZERO, |it| it.age(now));
        stable.keys().map(|partition| (*partition, age(partition))).collect()
    }

    /// One line for each hanging transaction.
    pub(super) fn notes(&self, now: Duration) -> Vec<String> {
        let hanging = self.stalled.iter().filter(|(_, it)| it.age(now) >= WARN_AFTER);
        hanging.map(|(partition, it)| self.note(*partition, it, now)).collect()
    }

    /// Logs the warnings that are due.
    pub(super) fn warn(&mut self, now: Duration) {
        let is_due = |it: &Stalled| {
            it.age(now) >= WARN_AFTER
                && it.warned.is_none_or(|warned| now.saturating_sub(warned) >= WARN_INTERVAL)
        };
        let due: Vec<u32> =
            self.stalled.iter().filter(|(_, it)| is_due(it)).map(|(partition, _)| *partition).collect();
        for partition in due {
            let Some(stalled) = self.stalled.get_mut(&partition) else { continue };
            stalled.warned = Some(now);
            let stalled = *stalled;
            tracing::warn!("{}", self.note(partition, &stalled, now));
        }
    }

    fn note(&self, partition: u32, stalled: &Stalled, now: Duration) -> String {
        let age_ms = i64::try_from(stalled.age(now).as_millis()).unwrap_or(i64::MAX);
        let since = u64::try_from(clock::wall_ms().saturating_sub(age_ms)).unwrap_or(0);
        let (Self { topic, effect, bootstrap_servers, .. }, offset) = (self, stalled.stable);
        let tool = format!("kafka-transactions.sh --bootstrap-server {bootstrap_servers}");
        format!(
            "a transaction hangs in partition {partition} of topic {topic} from offset {offset} on, since {} or earlier: the {} \
             offsets behind it {effect}. Find its producer: {tool} describe-producers --topic {topic} --partition {partition} \
             (the one whose transaction starts at {offset}), and let that program end it. If that program no longer exists: \
             {tool} abort --topic {topic} --partition {partition} --start-offset {offset}",
            humantime::format_rfc3339_seconds(UNIX_EPOCH + Duration::from_millis(since)),
            stalled.waiting
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn end(of_partition: u64) -> Offsets {
        Offsets::from([(3, of_partition)])
    }

    #[test]
    fn a_transaction_hangs_only_while_the_last_stable_offset_is_unchanged_below_the_high_watermark() {
        let mut hanging = HangingPartitions::new("raw", UPSTREAM, "localhost:9092");
        let second = Duration::from_secs;
        // (time in s, last stable offset, high watermark, expected age in s)
        let observations = [
            (0, 10, 10, 0),
            (100, 10, 12, 0),
            (110, 10, 15, 10),
            (120, 11, 15, 0),
            (150, 11, 90, 30),
            (160, 90, 90, 0),
            (170, 90, 91, 0),
            (300, 90, 91, 130),
        ];
        for (now, stable, written, expected) in observations {
            let ages = hanging.observe(&end(stable), &end(written), second(now));
            assert_eq!(ages, BTreeMap::from([(3, second(expected))]), "at {now}");
        }
        let notes = hanging.notes(second(300));
        assert_eq!(notes.len(), 1);
        assert!(
            notes[0].contains("partition 3 of topic raw from offset 90 on")
                && notes[0].contains("the 1 offsets")
        );
        assert!(hanging.notes(second(200)).is_empty());
    }

    #[test]
    fn a_hanging_transaction_is_logged_after_one_minute_and_every_ten_minutes() {
        let mut hanging = HangingPartitions::new("raw", UPSTREAM, "localhost:9092");
        let mut warned = Vec::new();
        for now in (0..1_400).step_by(10) {
            let now = Duration::from_secs(now);
            hanging.observe(&end(10), &end(12), now);
            hanging.warn(now);
            warned.extend(hanging.stalled[&3].warned);
        }
        warned.dedup();
        assert_eq!(warned, [60, 660, 1_260].map(Duration::from_secs));
    }
}
