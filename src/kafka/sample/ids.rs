//! The ids of a sample: which records have them, and how copies differ from the first record with their id.

use std::collections::hash_map::{Entry, RandomState};
use std::collections::{BTreeMap, HashMap};
use std::hash::BuildHasher as _;

use super::difference::DifferingCopy;
use super::figures::TopicSample;
use crate::dedupe::{
    Content, Coordinates, Digest, Identity, PartitionId, RecordTime, StreamTime, TimeSource,
};

/// Most ids that are followed, about. They take 0.4 GB while their table grows; 0.7 GB if all are in several partitions.
pub const FOLLOWED_IDS: u64 = 3 << 20;
/// Most copies that are named.
const EXAMPLES: usize = 2;

/// The identity of a record, what stands for its content, and whether it is forwarded whatever its id.
#[derive(Debug, Clone, Copy)]
pub(super) struct Identified {
    pub(super) identity: Identity,
    pub(super) digest: Digest,
    pub(super) is_forced: bool,
}

/// The first record with an id, and the stream times between which records with this id were read, epoch milliseconds.
#[derive(Debug)]
struct FirstRecord {
    at: Coordinates,
    digest: Digest,
    first_ms: i64,
    last_ms: i64,
}

impl FirstRecord {
    /// The shortest window in which a copy with this time finds all earlier records with its id, ms; `None` while unknown. Partitions are read in any
    /// order, so the record that was read first may be neither the oldest nor the newest.
    fn age_ms(&mut self, time: RecordTime) -> Option<u64> {
        let age_ms = time.distance_ms(self.first_ms).max(time.distance_ms(self.last_ms));
        if age_ms.is_some() {
            self.first_ms = self.first_ms.min(time.stream_ms);
            self.last_ms = self.last_ms.max(time.stream_ms);
        }
        age_ms.and_then(|ms| u64::try_from(ms).ok())
    }
}

/// The clock of a partition, and its value after the first record.
#[derive(Debug)]
struct SampledTime {
    stream: StreamTime,
    first_ms: i64,
}

impl SampledTime {
    fn new() -> Self {
        Self { stream: StreamTime::new(TimeSource::Record), first_ms: 0 }
    }

    fn observe(&mut self, timestamp_ms: Option<i64>, now_ms: i64) -> RecordTime {
        self.stream.observe(timestamp_ms, now_ms);
        if self.first_ms == 0 {
            self.first_ms = self.stream.ms();
        }
        self.stream.record()
    }

    fn covered_ms(&self) -> i64 {
        self.stream.ms() - self.first_ms
    }
}

/// Counts the records of a sample.
#[derive(Debug)]
pub(super) struct SampledIds {
    ids: HashMap<Identity, FirstRecord>,
    /// The other partitions of an id that is in several.
    moved: HashMap<Identity, Vec<PartitionId>>,
    times: BTreeMap<PartitionId, SampledTime>,
    now_ms: i64,
    /// Chooses the ids that are followed.
    choice: RandomState,
    pub(super) sample: TopicSample,
}

impl SampledIds {
    /// For at most this many records. If there may be too many ids, every second one is followed, every fourth, and so on: with all its copies, so
    /// that shares and ages are those of all ids.
    pub(super) fn new(records: u64, now_ms: i64) -> Self {
        let one_in = records.div_ceil(FOLLOWED_IDS).max(1).next_power_of_two();
        let sample = TopicSample { one_in, ..TopicSample::default() };
        Self {
            ids: HashMap::new(),
            moved: HashMap::new(),
            times: BTreeMap::new(),
            now_ms,
            choice: RandomState::new(),
            sample,
        }
    }

    pub(super) fn count(&mut self, at: Coordinates, timestamp_ms: Option<i64>, found: Option<Identified>) {
        let time = self.times.entry(at.partition).or_insert_with(SampledTime::new);
        let time = time.observe(timestamp_ms, self.now_ms);
        let Some(Identified { identity, digest, is_forced }) = found else { return };
        self.sample.with_id += 1;
        self.sample.without_content += u64::from(digest == Digest::NONE);
        if !self.is_followed(identity) {
            return;
        }
        self.sample.followed += 1;
        // It is forwarded whatever else has its id. The order of reading is not that of `run`, so it is no first record either.
        if is_forced {
            return;
        }
        let stream_ms = time.stream_ms;
        let first = match self.ids.entry(identity) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(free) => {
                free.insert(FirstRecord { at, digest, first_ms: stream_ms, last_ms: stream_ms });
                return;
            }
        };
        let (first_at, content) = (first.at, first.digest.compare(digest));
        if let Some(age_ms) = first.age_ms(time) {
            self.sample.ages.add(age_ms);
        }
        self.place(identity, at.partition, first_at.partition);
        self.compare(content, DifferingCopy { copy: at, first: first_at, place: None });
    }

    /// Not by the identity itself, and with a key that nobody knows: who chooses ids would choose which are followed.
    fn is_followed(&self, identity: Identity) -> bool {
        self.choice.hash_one(identity).is_multiple_of(self.sample.one_in)
    }

    /// Counts a copy in this partition by where the sample has its id already.
    fn place(&mut self, identity: Identity, partition: PartitionId, first: PartitionId) {
        if partition == first {
            self.sample.repeats += 1;
            return;
        }
        let others = self.moved.entry(identity).or_default();
        if others.contains(&partition) {
            self.sample.repeats += 1;
            return;
        }
        self.sample.elsewhere += 1;
        self.sample.moved_ids += u64::from(others.is_empty());
        others.push(partition);
    }

    fn compare(&mut self, content: Content, example: DifferingCopy) {
        self.sample.compared += u64::from(content != Content::NotCompared);
        if content == Content::Different {
            self.sample.differing += 1;
            if self.sample.examples.len() < EXAMPLES {
                self.sample.examples.push(example);
            }
        }
    }

    /// The sample. `is_cut`: whether a partition has older records that were not read.
    pub(super) fn finish(self, is_cut: impl Fn(PartitionId) -> bool) -> TopicSample {
        let cut = self.times.iter().filter(|(partition, _)| is_cut(**partition));
        // A copy in the busiest partition is seen for the shortest time.
        let shortest = cut.map(|(_, time)| time.covered_ms()).min();
        let longest = self.times.values().map(SampledTime::covered_ms).max();
        let covered_ms = shortest.or(longest).unwrap_or(0);
        TopicSample {
            is_whole: shortest.is_none(),
            covered_seconds: covered_ms as f64 / 1_000.0,
            ..self.sample
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: i64 = 1_700_000_000_000;

    fn at(partition: PartitionId, offset: u64) -> Coordinates {
        Coordinates { partition, offset }
    }

    fn found(id: u64, digest: Digest) -> Identified {
        Identified { identity: Identity(u128::from(id).to_be_bytes()), digest, is_forced: false }
    }

    #[test]
    fn a_forced_record_is_neither_a_copy_nor_compared_with_one() {
        let [a, b] = [1, 2].map(|value| Digest::stored(7, value));
        let forced = |id, digest| Identified { is_forced: true, ..found(id, digest) };
        let count = |records: [Identified; 4]| {
            let mut ids = SampledIds::new(9, NOW);
            for (partition, record) in (0..).zip(records) {
                ids.count(at(partition % 2, 0), Some(NOW), Some(record));
            }
            let sample = ids.finish(|_| false);
            [
                sample.followed,
                sample.repeats + sample.elsewhere,
                sample.ages.copies(),
                sample.compared,
                sample.differing,
            ]
        };
        assert_eq!(count([found(1, a), forced(1, b), forced(1, b), found(1, a)]), [4, 1, 1, 1, 0]);
        assert_eq!(count([forced(1, b), forced(1, a), found(1, b), found(1, a)]), [4, 1, 1, 1, 1]);
        assert_eq!(
            count([found(1, a), found(1, b), found(1, b), found(1, a)]),
            [4, 3, 3, 3, 2],
            "the control"
        );
    }

    #[test]
    fn copies_in_the_same_partition_and_in_others_are_counted_apart() {
        let mut ids = SampledIds::new(8, NOW);
        for (partition, id) in [(0, 1), (0, 1), (1, 1), (1, 1), (2, 1), (0, 2), (1, 3), (2, 3)] {
            ids.count(at(partition, 0), None, Some(found(id, Digest::NONE)));
        }
        let sample = TopicSample { partitions: 3, read: 8, ..ids.finish(|_| false) };
        assert_eq!((sample.with_id, sample.repeats, sample.elsewhere, sample.moved_ids), (8, 2, 3, 2));
        assert_eq!((sample.compared, sample.ages.copies()), (0, 0), "no digests, and no timestamps");
        let text = sample.to_string();
        assert!(text.contains("37.50 % of the newest 8\n"), "{text}");
        assert!(
            text.contains("scope                          2 ids of the sample are in several partitions"),
            "{text}"
        );
    }

    #[test]
    fn a_copy_is_compared_with_the_first_record_and_not_with_the_one_before() {
        let [a, b] = [1, 2].map(|value| Digest::stored(7, value));
        let mut ids = SampledIds::new(9, NOW);
        let records =
            [found(1, a), found(1, b), found(1, b), found(1, a), found(2, b), found(1, Digest::NONE)];
        for (offset, record) in (0..).zip(records) {
            ids.count(at(3, offset), None, Some(record));
        }
        let sample = ids.finish(|_| false);
        assert_eq!((sample.compared, sample.differing, sample.repeats), (3, 2, 4));
        let named: Vec<_> = sample.examples.iter().map(|it| [it.copy, it.first]).collect();
        assert_eq!(named, [[at(3, 1), at(3, 0)], [at(3, 2), at(3, 0)]]);
    }

    #[test]
    fn the_age_of_a_copy_is_that_of_a_window_which_finds_all_earlier_records() {
        // The partition of the second record is read later, and is older.
        let mut ids = SampledIds::new(9, NOW);
        for (partition, seconds) in [(0, 100), (0, 130), (1, 10), (2, 300)] {
            ids.count(
                at(partition, 0),
                Some(NOW - 1_000_000 + seconds * 1_000),
                Some(found(1, Digest::NONE)),
            );
        }
        let ages = ids.finish(|_| false).ages;
        assert_eq!((ages.copies(), ages.longest().as_secs()), (3, 290));
        assert!((30..31).contains(&ages.within(3_333).as_secs()), "{ages:?}");
        assert!((120..124).contains(&ages.within(6_666).as_secs()), "{ages:?}");
    }

    #[test]
    fn a_copy_that_is_written_late_with_its_old_timestamp_needs_a_window_until_its_arrival() {
        let mut ids = SampledIds::new(9, NOW);
        for (offset, id, seconds) in [(0, 1, 100), (1, 2, 700), (2, 1, 100), (3, 1, 650)] {
            ids.count(at(0, offset), Some(NOW - 1_000_000 + seconds * 1_000), Some(found(id, Digest::NONE)));
        }
        let ages = ids.finish(|_| false).ages;
        assert_eq!((ages.copies(), ages.longest().as_secs()), (2, 600));
    }

    #[test]
    fn a_sample_covers_the_time_of_its_busiest_partition_unless_all_are_read_whole() {
        let covered = |is_cut: fn(PartitionId) -> bool| {
            let mut ids = SampledIds::new(9, NOW);
            for (partition, ms) in [(0, 0), (0, 9_000), (1, 0), (1, 70_000)] {
                ids.count(at(partition, 0), Some(NOW - 100_000 + ms), None);
            }
            let sample = ids.finish(is_cut);
            (sample.covered_seconds, sample.is_whole)
        };
        assert_eq!(covered(|_| true), (9.0, false));
        assert_eq!(covered(|partition| partition == 1), (70.0, false));
        assert_eq!(covered(|_| false), (70.0, true));
    }

    #[test]
    fn too_many_ids_are_followed_in_part_with_all_their_copies() {
        let mut ids = SampledIds::new(FOLLOWED_IDS * 8, NOW);
        for id in (0..16_000).chain(0..16_000) {
            ids.count(at(0, 0), Some(NOW), Some(found(id, Digest::NONE)));
        }
        let sample = ids.finish(|_| false);
        assert_eq!((sample.one_in, sample.with_id), (8, 32_000));
        assert!((1_800..2_200).contains(&sample.repeats), "{sample:?}");
        assert_eq!((sample.followed, sample.ages.copies()), (sample.repeats * 2, sample.repeats));
        assert_eq!(SampledIds::new(FOLLOWED_IDS, NOW).sample.one_in, 1, "the control");
    }
}
