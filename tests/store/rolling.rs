//! Measures the directory of a store against its live bytes while its windows roll on for a long time.
//!
//! Time is virtual: a window is a number of owners, and every owner advances stream time by 1 ms.
#![allow(missing_docs, reason = "shared by a test and a bench")]

use std::fmt;
use std::ops::RangeInclusive;
use std::path::Path;
use std::time::Duration;

use dedupd::dedupe::{Coordinates, Digest, Identity, OwnerRun, PartitionId, Sequence, StoredOwner};
use dedupd::ports::{Head, Store};
use dedupd::store::{Binding, OWNER_BYTES, SledStore, open};

const CACHE_BYTES: u64 = 64 << 20;
const DEADLINE: Duration = Duration::from_secs(30);
/// The directory is measured once per this many written owners.
const MEASURE_INTERVAL: u64 = 4_096;

/// The load.
#[derive(Clone, Debug)]
pub struct Soak {
    pub journals: PartitionId,
    /// Owners of the window of a journal.
    pub window: u64,
    /// Number of windows that are written, one after the other.
    pub windows: u64,
    /// Owners of one transaction, all of them in one journal.
    pub transaction: RangeInclusive<u64>,
    /// One in this many transactions is aborted and written again.
    pub undone_one_in: Option<u64>,
    pub seed: u64,
}

/// Measurements while one window's length was written, over all journals.
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
        let mut store = opened(dir, self.journals)
            .joining(dedupd::store::Joining::new(Duration::from_millis(self.window / 100), []));
        let mut random = fastrand::Rng::with_seed(self.seed);
        let (mut written, mut next_measurement) = (0, MEASURE_INTERVAL);
        for window in 1..=self.windows {
            let mut peak_bytes = 0;
            while written < window * self.window * u64::from(self.journals) {
                let journal = random.u32(..self.journals);
                let length = random.u64(self.transaction.clone());
                let first = append(&mut store, journal, length);
                if self.undone_one_in.is_some_and(|many| random.u64(..many) == 0) {
                    store.truncate(journal.into(), first).expect("a truncation");
                    append(&mut store, journal, length);
                }
                let expired = (first + length).saturating_sub(self.window);
                store.expire(journal.into(), expired, 0).expect("an expiry");
                written += length;
                if written >= next_measurement {
                    next_measurement = written + MEASURE_INTERVAL;
                    peak_bytes = peak_bytes.max(store.disk_bytes().expect("a directory"));
                }
            }
            let (live_bytes, live_ids) = live(&store, self.journals);
            show(window, WindowUsage { peak_bytes, live_bytes, live_ids });
        }
        store.close().expect("a store that closes");
    }
}

fn opened(dir: &Path, journals: PartitionId) -> SledStore {
    let binding = Binding { partitions: journals, ..Binding::default() };
    open(dir, &binding, CACHE_BYTES, DEADLINE).expect("a new store").store
}

/// Appends owners, and returns the number of the first one.
fn append(store: &mut SledStore, journal: PartitionId, length: u64) -> Sequence {
    let number = store.next_number(journal.into()).expect("a number");
    let time = |number: Sequence| i64::try_from(number).expect("a time");
    let owner = |number: Sequence| StoredOwner {
        at: Coordinates { partition: journal, offset: number },
        time_ms: time(number),
        identity: Some(identity(journal, number)),
        digest: Digest::NONE,
    };
    let owners: Vec<_> = (number..number + length).map(owner).collect();
    let times_ms = (time(number), time(number + length));
    let head = Head { confirmed: number, state_next: number, time_ms: times_ms.1, ..Head::default() };
    store.append(journal.into(), &OwnerRun { number, times_ms, owners: &owners }, &head).expect("an append");
    number
}

fn identity(journal: PartitionId, number: Sequence) -> Identity {
    let number = u128::from(number) << 32 | u128::from(journal);
    Identity(number.wrapping_mul(0x9E37_79B9_7F4A_7C15_F39C_C060_5CED_C835).to_le_bytes())
}

/// Bytes and number of all stored owners.
fn live(store: &SledStore, journals: PartitionId) -> (u64, u64) {
    let ids: u64 = (0..journals).map(|journal| store.ids(journal.into()).expect("a count")).sum();
    (ids * OWNER_BYTES as u64, ids)
}
