//! The configuration of a process: what a seed draws, and what an operator changes between two starts.

use std::time::Duration;

use dedupd::dedupe::{
    BloomPart, CompareRule, FilterBits, FilterPart, IdSource, KindId, KindRule, TimeSource, WindowLimits,
};
use dedupd::pipeline::{
    Kind, Kinds, Limits, LoadPart, Mode, OnConflict, OnGap, OnMissing, OnPoison, OnProbable, OnRewind,
    OnStop, Overflow, PartitionCounts, Safeguard, Scope, Start, TransactionSize, WorkerOptions,
};

use crate::sim::chance::Chance;
use crate::sim::cluster::{Cluster, TRANSACTION_TIMEOUT};
use crate::sim::operator::rule;
use crate::sim::universe::MOST_RECORDS;

/// Longer than any history, in simulated time.
const WINDOW: Duration = Duration::from_secs(24 * 3600);
/// Shorter than most histories, in simulated time.
pub const SHORT: Duration = Duration::from_secs(2);
/// Fewer slots than there are ids.
const SLOTS: u64 = 16;
/// The id of the raw topic, and the id of another one.
pub const RAW_IDS: [&str; 2] = ["raw-id", "other-id"];

/// The configuration of a process.
#[derive(Clone, Copy)]
pub struct Choices {
    /// Where copies are found. All processes have the same scope.
    pub scope: Scope,
    /// What follows where the group was reset to below what is committed.
    pub on_rewind: OnRewind,
    /// What advances stream time. All processes have the same source.
    pub time: TimeSource,
    /// The exact part of the window is short, and older ids can be in filters only.
    filters: bool,
    /// The window has few slots and overwrites the oldest ids.
    pub evicts: bool,
    /// Slots of a window that evicts, shared by its partitions.
    pub slots: u64,
    /// Most ids of a worker whose window does not evict.
    pub most_ids: u64,
    /// The window is shorter than a history.
    short: bool,
    /// Length of such a window.
    pub short_length: Duration,
    /// Some records have windows of their own.
    pub has_kinds: bool,
    /// Number of partitions of each side topic, 0 without side topics. All processes have the same number.
    pub sides: u32,
    on_poison: OnPoison,
    /// Duplicates are written to a side topic.
    pub keeps_duplicates: bool,
    pub max_records: usize,
    pub interval: Duration,
    /// The number of the identity rule.
    pub rule: u8,
    /// The process accepts a change of the rule.
    pub accepts: bool,
    /// The process accepts a gap in raw.
    pub accepts_gap: bool,
    /// The process finds another raw topic.
    pub foreign: bool,
    /// Fewest ids of a sealed slice.
    pub smallest_slice: Option<u64>,
    /// How long a rejected record is retried, if the number of records in a transaction does not determine that.
    pub retry: Option<Duration>,
}

impl Choices {
    /// Draws the configuration at the start of a history.
    pub fn draw(chance: &mut Chance) -> Self {
        let sides = chance.rng.u32(0..=3);
        Self {
            scope: Scope::Partition,
            time: if chance.coin() { TimeSource::Record } else { TimeSource::Arrival },
            filters: chance.rng.u8(0..3) == 0,
            evicts: chance.rng.u8(0..4) == 0,
            slots: SLOTS,
            most_ids: 1 << 20,
            short: false,
            short_length: SHORT,
            has_kinds: chance.rng.u8(0..3) == 0,
            sides,
            on_poison: if sides == 0 || chance.coin() { OnPoison::Drop } else { OnPoison::DeadLetter },
            keeps_duplicates: sides > 0 && chance.coin(),
            max_records: chance.rng.usize(1..=MOST_RECORDS),
            interval: Duration::from_millis(chance.rng.u64(5..1500)),
            rule: 0,
            accepts: false,
            accepts_gap: false,
            foreign: false,
            retry: None,
            on_rewind: OnRewind::Stop,
            smallest_slice: [None, Some(1), Some(3), Some(10)][chance.rng.usize(0..4)],
        }
    }

    /// One exact window of which nothing is sealed, and blocks of up to eight ids.
    pub fn plain(chance: &mut Chance) -> Self {
        let (filters, evicts, has_kinds, sides) = (false, false, false, 0);
        let (on_poison, keeps_duplicates) = (OnPoison::Drop, false);
        let drawn = Self { smallest_slice: None, ..Self::draw(chance) };
        Self { filters, evicts, has_kinds, sides, on_poison, keeps_duplicates, max_records: 8, ..drawn }
    }

    /// Topic scope, with an exact window of two seconds in record time, of which old ids are sealed.
    pub fn short_topic(chance: &mut Chance) -> Self {
        let plain = Self::plain(chance);
        Self { scope: Scope::Topic, time: TimeSource::Record, short: true, smallest_slice: Some(10), ..plain }
    }

    /// Topic scope in record time, with a long window. With `filters`, ids are exact for two seconds, and in filters after that.
    pub fn rewinding_topic(chance: &mut Chance, filters: bool) -> Self {
        Self { filters, short: false, on_rewind: OnRewind::Reemit, ..Self::short_topic(chance) }
    }

    /// As [`Self::plain`], with blocks of one id and room for all records in one transaction.
    pub fn one_id_blocks(chance: &mut Chance) -> Self {
        let plain = Self { max_records: 1_809, ..Self::plain(chance) };
        assert_eq!(plain.block_ids(), 1);
        plain
    }

    /// As [`Self::one_id_blocks`], with a window of two seconds in record time, and large transactions.
    pub fn short_one_id_blocks(chance: &mut Chance) -> Self {
        let interval = TRANSACTION_TIMEOUT / 2;
        Self { time: TimeSource::Record, short: true, interval, ..Self::one_id_blocks(chance) }
    }

    /// Draws another configuration for a process that restarts.
    pub fn changed(self, cluster: &mut Cluster) -> Self {
        let Self { scope, time, sides, on_poison, keeps_duplicates, rule, accepts, .. } = self;
        let others = Self::draw(&mut cluster.chance);
        let others = Self { scope, time, sides, on_poison, keeps_duplicates, rule, accepts, ..others };
        let others = Self { short: cluster.chance.rng.u8(0..8) == 0, ..others };
        cluster.shortened |=
            others.short || others.filters != self.filters || others.has_kinds != self.has_kinds;
        // The ids of a kind that is added or removed start with an empty window.
        cluster.forgets |= others.forgets() || others.has_kinds != self.has_kinds;
        others
    }

    /// Whether the window may forward an id more than once.
    pub fn forgets(self) -> bool {
        self.evicts || self.short
    }

    /// The kinds of a history, by the last digit of an id: exact, with filters, or the default.
    fn kinds(self) -> Kinds {
        let kind = |name: &str, digits: &[&str], filters| Kind {
            name: name.to_owned(),
            id: KindId::named(name),
            rule: Some(KindRule::new(
                IdSource::Header("kind".to_owned()),
                digits.iter().map(|digit| (*digit).to_owned()),
            )),
            window: Some(self.window(filters && !self.evicts)),
            on_probable: OnProbable::Drop,
        };
        let named = [kind("exact", &["0", "1", "2"], false), kind("filters", &["3", "4"], true)];
        let named = named.into_iter().filter(|_| self.has_kinds);
        Kinds::new(self.window(self.filters && !self.evicts), OnProbable::Drop, named)
    }

    fn window(self, filters: bool) -> WindowLimits {
        let exact = if filters || self.short { self.short_length } else { WINDOW };
        // The store in memory has filters without false positives.
        let bloom = BloomPart { length: WINDOW, bits: FilterBits::at_rate(1e-9) };
        WindowLimits { exact, max_ids: 1 << 20, time: self.time, bloom: filters.then_some(bloom) }
    }

    /// Whether rejected records are written to the dead-letter topic.
    pub fn keeps_letters(self) -> bool {
        self.on_poison == OnPoison::DeadLetter
    }

    /// The id of the raw topic that the process finds.
    pub fn raw_id(self) -> String {
        RAW_IDS[usize::from(self.foreign)].to_owned()
    }

    /// Often several blocks per transaction.
    fn block_ids(self) -> usize {
        [1, 3, 30_000][self.max_records / 3 % 3]
    }

    /// The options of a worker.
    pub fn options(
        self,
        writer: String,
        began: usize,
        load_part: LoadPart,
        without: Option<Safeguard>,
    ) -> WorkerOptions {
        let (rule, kinds) = (rule(self.rule), self.kinds());
        WorkerOptions {
            raw: "raw".to_owned(),
            raw_id: Some(self.raw_id()),
            state_id: None,
            state: "state".to_owned(),
            state_retention: Some(12 * SHORT),
            partition_counts: PartitionCounts::new(usize::MAX),
            raw_partitions: u32::try_from(began).unwrap(),
            group: "group".to_owned(),
            writer,
            accept_change: self.accepts.then(|| kinds.fingerprint(rule.fingerprint())),
            hash: rule.hash_kind(),
            rule,
            kinds,
            limits: Limits {
                workers: 1,
                max_ids: if self.evicts { self.slots } else { self.most_ids },
                when_full: if self.evicts { Overflow::Evict } else { Overflow::Shrink },
                max_memory: None,
                max_disk: None,
                smallest_slice: self.smallest_slice,
                filtered: FilterPart::NONE,
            },
            mode: Mode::Drop,
            scope: self.scope,
            keep_duplicates: self.keeps_duplicates,
            force_header: None,
            on_missing: OnMissing::Forward,
            on_poison: self.on_poison,
            // No retry in a third of the histories, otherwise one or two.
            poison_retry: self.retry.unwrap_or(Duration::from_secs(self.max_records as u64 % 3)),
            start: Start::Earliest,
            on_rewind: self.on_rewind,
            on_stop: OnStop::Leave,
            on_gap: if self.accepts_gap { OnGap::Accept } else { OnGap::Stop },
            disabled: without,
            transaction_limit: TransactionSize {
                records: self.max_records,
                bytes: 1 << 20,
                partitions: 1 + self.max_records % 4,
            },
            interval: self.interval,
            transaction_timeout: TRANSACTION_TIMEOUT,
            block_ids: self.block_ids(),
            // Often fewer than one transaction has.
            evidence_records: [1, 3, 100][self.max_records % 3],
            load_part,
            // Often over after the first commit.
            iteration_time: Duration::from_millis([0, 20, 2_000][self.max_records / 3 % 3]),
            compare: CompareRule::new(vec![IdSource::Header("content".to_owned()).into()]),
            is_compare_set: false,
            counted_by: Vec::new(),
            on_conflict: OnConflict::Drop,
        }
    }
}
