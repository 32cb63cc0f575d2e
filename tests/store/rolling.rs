//! Measures the directory of a store against its live bytes while its windows roll on for a long time.
//!
//! Time is virtual: a window is a number of offsets, and every offset advances stream time by 1 ms.
#![allow(missing_docs, reason = "shared by a test and a bench")]

use std::fmt;
use std::ops::RangeInclusive;
use std::path::Path;
use std::time::Duration;

use dedupd::dedupe::{Block, HashKind, Identity, Offset, PartitionId};
use dedupd::ports::{Head, Store};
use dedupd::store::{Binding, SledStore, open};

const CACHE_BYTES: u64 = 64 << 20;
const DEADLINE: Duration = Duration::from_secs(30);
/// One in this many offsets owns nothing, because its record was a duplicate.
const DUPLICATE_ONE_IN: u64 = 5;
/// The directory is measured once per this many written offsets.
const MEASURE_INTERVAL: u64 = 4_096;

/// The load.
#[derive(Clone, Debug)]
pub struct Soak {
    pub partitions: PartitionId,
    /// Offsets that a partition's window covers.
    pub window: u64,
    /// Number of windows that are written, one after the other.
    pub windows: u64,
    /// Offsets of one transaction, all of them in one partition.
    pub transaction: RangeInclusive<u64>,
    /// One in this many transactions is aborted and written again.
    pub undone_one_in: Option<u64>,
    pub seed: u64,
}

/// Measurements while one window's length was written, over all partitions.
#[derive(Clone, Copy, Debug)]
pub struct WindowUsage {
    /// Maximum size of the directory, in bytes.
    pub peak_bytes: u64,
    /// Bytes of the live owners at the end.
    pub live_bytes: u64,
    /// Identities in them.
    pub live_ids: u64,
}

impl WindowUsage {
    pub fn ratio(&self) -> f64 {
        self.peak_bytes as f64 / self.live_bytes as f64
    }
}

impl fmt::Display for WindowUsage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "peak {:>7.1} MB, live {:>6.1} MB in {:>6.2} M ids: {:.2} x live, {:.1} bytes per id",
            self.peak_bytes as f64 / 1e6,
            self.live_bytes as f64 / 1e6,
            self.live_ids as f64 / 1e6,
            self.ratio(),
            self.peak_bytes as f64 / self.live_ids as f64
        )
    }
}

impl Soak {
    /// Writes all windows to a new store in `dir`, closes it, and calls `show` at the end of each window.
    pub fn run(&self, dir: &Path, mut show: impl FnMut(u64, WindowUsage)) {
        // Like the service: owners are joined within a hundredth of the window.
        let mut store = opened(dir, self.partitions)
            .joining(dedupd::store::Joining::new(Duration::from_millis(self.window / 100), []));
        let mut random = fastrand::Rng::with_seed(self.seed);
        let mut next = vec![0u64; self.partitions as usize];
        let (mut written, mut next_measurement) = (0, MEASURE_INTERVAL);
        for window in 1..=self.windows {
            let mut peak_bytes = 0;
            while written < window * self.window * u64::from(self.partitions) {
                let partition = random.u32(..self.partitions);
                let length = random.u64(self.transaction.clone());
                let end = &mut next[partition as usize];
                append(&mut store, partition, *end..*end + length);
                if self.undone_one_in.is_some_and(|many| random.u64(..many) == 0) {
                    store.truncate(partition.into(), *end).expect("a truncation");
                    append(&mut store, partition, *end..*end + length);
                }
                *end += length;
                store.expire(partition.into(), end.saturating_sub(self.window), 0).expect("an expiry");
                written += length;
                if written >= next_measurement {
                    next_measurement = written + MEASURE_INTERVAL;
                    peak_bytes = peak_bytes.max(store.disk_bytes().expect("a directory"));
                }
            }
            let (live_bytes, live_ids) = live(&store, self.partitions);
            show(window, WindowUsage { peak_bytes, live_bytes, live_ids });
        }
        store.close().expect("a store that closes");
    }
}

fn opened(dir: &Path, partitions: PartitionId) -> SledStore {
    let binding = Binding { partitions, ..Binding::default() };
    open(dir, &binding, CACHE_BYTES, DEADLINE).expect("a new store").store
}

fn append(store: &mut SledStore, partition: PartitionId, covered: std::ops::Range<Offset>) {
    let time = |offset: Offset| i64::try_from(offset).expect("a time");
    let owners = covered.clone().filter(|offset| offset % DUPLICATE_ONE_IN != 0);
    let block = Block {
        hash: HashKind::Xxh3,
        window: partition.into(),
        first: covered.start,
        next: covered.end,
        time_first_ms: time(covered.start),
        time_last_ms: time(covered.end),
        entries: owners.map(|owner| (owner, identity(partition, owner))).collect(),
    };
    let head = Head {
        confirmed: covered.start,
        state_next: covered.start,
        stream_time_ms: block.time_last_ms,
        ..Head::default()
    };
    let number = store.next_number(block.window).expect("a number");
    store.append(&block, number, head).expect("an append");
}

fn identity(partition: PartitionId, owner: Offset) -> Identity {
    let number = u128::from(owner) << 32 | u128::from(partition);
    Identity(number.wrapping_mul(0x9E37_79B9_7F4A_7C15_F39C_C060_5CED_C835).to_le_bytes())
}

/// Bytes and number of all stored owners.
fn live(store: &SledStore, partitions: PartitionId) -> (u64, u64) {
    let ids: u64 = (0..partitions).map(|partition| store.ids(partition.into()).expect("a count")).sum();
    (ids * 24, ids)
}
