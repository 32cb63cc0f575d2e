//! Upstream transactions that nobody ends: what lies behind their first record in raw waits for them.

use std::collections::BTreeMap;
use std::time::{Duration, UNIX_EPOCH};

use crate::clock;
use crate::kafka::Offsets;

/// After so long it is told. Programs that commit with their checkpoints hold transactions open for a while.
const TELL: Duration = Duration::from_mins(1);
/// How often it is told again.
const REMIND: Duration = Duration::from_mins(10);

/// A stable end that stands still below the written one.
#[derive(Debug, Clone, Copy)]
struct Standing {
    stable: u64,
    waiting: u64,
    /// Monotonic time of the first look that saw it.
    since: Duration,
    told: Option<Duration>,
}

impl Standing {
    fn lasts(&self, now: Duration) -> Duration {
        now.saturating_sub(self.since)
    }
}

/// The partitions of which the stable end stands still, and since when.
#[derive(Debug)]
pub(super) struct Hanging {
    topic: String,
    bootstrap_servers: String,
    standing: BTreeMap<u32, Standing>,
}

impl Hanging {
    pub(super) fn new(topic: &str, bootstrap_servers: &str) -> Self {
        let (topic, bootstrap_servers) = (topic.to_owned(), bootstrap_servers.to_owned());
        Self { topic, bootstrap_servers, standing: BTreeMap::new() }
    }

    /// What a look saw. Returns for how long each partition has been standing, zero where it moves.
    pub(super) fn seen(
        &mut self,
        (stable, written): &(Offsets, Offsets),
        now: Duration,
    ) -> BTreeMap<u32, Duration> {
        let earlier = std::mem::take(&mut self.standing);
        for (partition, stable) in stable {
            let waiting = written.get(partition).map_or(0, |written| written.saturating_sub(*stable));
            if waiting == 0 {
                continue;
            }
            let same = earlier.get(partition).filter(|earlier| earlier.stable == *stable);
            let (since, told) = same.map_or((now, None), |earlier| (earlier.since, earlier.told));
            self.standing.insert(*partition, Standing { stable: *stable, waiting, since, told });
        }
        for (partition, ended) in earlier.iter().filter(|(_, earlier)| earlier.told.is_some()) {
            if self.standing.get(partition).is_none_or(|it| it.stable != ended.stable) {
                let (topic, from) = (&self.topic, ended.stable);
                tracing::info!(partition, from, "the upstream transaction in topic {topic} has ended");
            }
        }
        let for_long = |partition| self.standing.get(partition).map_or(Duration::ZERO, |it| it.lasts(now));
        stable.keys().map(|partition| (*partition, for_long(partition))).collect()
    }

    /// One line for each partition that has been standing for long.
    pub(super) fn notes(&self, now: Duration) -> Vec<String> {
        let long = self.standing.iter().filter(|(_, it)| it.lasts(now) >= TELL);
        long.map(|(partition, it)| self.note(*partition, it, now)).collect()
    }

    /// Warns of what is due.
    pub(super) fn tell(&mut self, now: Duration) {
        let is_due = |it: &Standing| {
            it.lasts(now) >= TELL && it.told.is_none_or(|told| now.saturating_sub(told) >= REMIND)
        };
        let due: Vec<u32> =
            self.standing.iter().filter(|(_, it)| is_due(it)).map(|(partition, _)| *partition).collect();
        for partition in due {
            let Some(standing) = self.standing.get_mut(&partition) else { continue };
            standing.told = Some(now);
            let (standing, tool) = (*standing, self.tool());
            let (topic, at) = (&self.topic, standing.stable);
            tracing::warn!(
                "{}. See whose it is: {tool} describe-producers --topic {topic} --partition {partition} (the one whose \
                 transaction starts at {at}), and let that program end it. If it is gone for good: {tool} abort --topic \
                 {topic} --partition {partition} --start-offset {at}",
                self.note(partition, &standing, now)
            );
        }
    }

    fn tool(&self) -> String {
        format!("kafka-transactions.sh --bootstrap-server {}", self.bootstrap_servers)
    }

    fn note(&self, partition: u32, standing: &Standing, now: Duration) -> String {
        let ago = i64::try_from(standing.lasts(now).as_millis()).unwrap_or(i64::MAX);
        let since = u64::try_from(clock::wall_ms().saturating_sub(ago)).unwrap_or(0);
        format!(
            "an upstream transaction hangs in partition {partition} of topic {} from offset {} on, since {} or longer: \
             the {} offsets behind it cannot be read before it ends",
            self.topic,
            standing.stable,
            humantime::format_rfc3339_seconds(UNIX_EPOCH + Duration::from_millis(since)),
            standing.waiting
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ends(stable: u64, written: u64) -> (Offsets, Offsets) {
        (Offsets::from([(3, stable)]), Offsets::from([(3, written)]))
    }

    #[test]
    fn only_an_end_that_stands_still_below_the_written_one_hangs() {
        let mut hanging = Hanging::new("raw", "localhost:9092");
        let second = Duration::from_secs;
        // (second, stable, written) → seconds
        let looks = [
            (0, 10, 10, 0),
            (100, 10, 12, 0),
            (110, 10, 15, 10),
            (120, 11, 15, 0),
            (150, 11, 90, 30),
            (160, 90, 90, 0),
            (170, 90, 91, 0),
            (300, 90, 91, 130),
        ];
        for (now, stable, written, expected) in looks {
            let seen = hanging.seen(&ends(stable, written), second(now));
            assert_eq!(seen, BTreeMap::from([(3, second(expected))]), "at {now}");
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
    fn it_is_told_once_and_again_after_a_while() {
        let mut hanging = Hanging::new("raw", "localhost:9092");
        let mut told = Vec::new();
        for now in (0..1_400).step_by(10) {
            let now = Duration::from_secs(now);
            hanging.seen(&ends(10, 12), now);
            hanging.tell(now);
            told.extend(hanging.standing[&3].told);
        }
        told.dedup();
        assert_eq!(told, [60, 660, 1_260].map(Duration::from_secs));
    }
}
