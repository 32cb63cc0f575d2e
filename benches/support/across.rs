//! Topic scope as a contestant: a window for each partition, and one filter over the identities of all of them.

use std::time::Duration;

use dedupd::dedupe::window::CHUNK;
use dedupd::dedupe::{
    CopyOf, Identity, IndexKey, Offset, PartitionGroups, Positions, RecordTime, TimeSource, TopicFilter,
    Verdict, Window, WindowLimits,
};

use super::contest::Contestant;
use super::ledger::{Array, Ledger};

const PARTITIONS: usize = 12;
/// Stream time of the first record, in epoch milliseconds. Each record is 1 ms later.
const START_MS: i64 = 1_700_000_000_000;

/// Windows of several partitions, used as in the pipeline. Consecutive records are in different partitions, so most
/// duplicates are in another partition than their first record.
pub struct Across {
    name: &'static str,
    windows: Vec<(Window, Array, Offset)>,
    filter: TopicFilter,
    keys: Vec<(usize, IndexKey)>,
    made: u64,
    ids: u64,
}

impl Across {
    /// All identities are in the exact parts. `records` is the number of records, including duplicates, in a window of `ids`.
    pub fn new(name: &'static str, ids: u64, records: u64) -> Self {
        let exact = Duration::from_millis(records);
        let limits = WindowLimits { exact, max_ids: u64::MAX, time: TimeSource::Record, bloom: None };
        let positions = Positions::keyed([7; 16]);
        let windows = std::iter::repeat_with(|| {
            let mut window = Window::new(limits, positions);
            window.reserve((ids + ids / 64) / PARTITIONS as u64);
            (window, Array::default(), 0)
        });
        Self {
            name,
            windows: windows.take(PARTITIONS).collect(),
            filter: TopicFilter::new(exact, positions, u64::MAX),
            keys: Vec::with_capacity(CHUNK),
            made: 0,
            ids,
        }
    }

    /// Whether the record at the current position is a copy.
    fn is_copy(&mut self, place: usize, key: &IndexKey) -> bool {
        let (window, owners, at) = &mut self.windows[place];
        window.observe(Some(START_MS + self.made.cast_signed()), i64::MAX);
        let time = window.record_time();
        let groups = self.filter.groups(key);
        let may_be_own = groups.has(place as u32) || !self.filter.covers_own(time.own_ms);
        if may_be_own && window.verdict(*at, key, owners).unwrap() != Verdict::New {
            return true;
        }
        if !groups.is_empty() && self.copy_elsewhere(place, time, key, groups).is_some() {
            return true;
        }
        let (window, _, at) = &mut self.windows[place];
        window.admit(*at, key);
        self.filter.insert(key, place as u32, time.stream_ms);
        false
    }

    fn copy_elsewhere(
        &self,
        place: usize,
        time: RecordTime,
        key: &IndexKey,
        groups: PartitionGroups,
    ) -> Option<CopyOf> {
        let others = || groups.partitions(PARTITIONS as u32).filter(|other| *other as usize != place);
        let windows = || others().map(|other| &self.windows[other as usize]);
        windows().for_each(|(window, ..)| window.prefetch(key));
        windows().find_map(|(window, owners, _)| window.copy_of(time, key, owners).unwrap())
    }
}

impl Contestant for Across {
    fn name(&self) -> &'static str {
        self.name
    }

    fn ids(&self) -> u64 {
        self.ids
    }

    fn transaction(&mut self, records: &[Identity]) -> u64 {
        let mut dropped = 0;
        for chunk in records.chunks(CHUNK) {
            let mut keys = std::mem::take(&mut self.keys);
            keys.extend(chunk.iter().zip(self.made as usize..).map(|(identity, number)| {
                let place = number % PARTITIONS;
                let key = self.windows[place].0.key(*identity);
                self.filter.prefetch(&key);
                (place, key)
            }));
            for (place, key) in &keys {
                dropped += u64::from(self.is_copy(*place, key));
                self.windows[*place].2 += 1;
                self.made += 1;
            }
            keys.clear();
            self.keys = keys;
        }
        let mut oldest_ms = i64::MAX;
        for (window, owners, at) in &mut self.windows {
            owners.append(window.pending());
            oldest_ms = oldest_ms.min(window.stream_time_ms());
            let first_live = window.commit(*at);
            owners.expire(first_live);
        }
        self.filter.expire(oldest_ms);
        dropped
    }

    fn disk_bytes(&self) -> Option<u64> {
        None
    }
}
