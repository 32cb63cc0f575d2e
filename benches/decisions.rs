//! Decisions a second on one core, and bytes an id: the window against a hash set, in one run.
//!
//! Measured in the thread's own processor time where the system tells it (Linux), so that a busy
//! machine disturbs it less; a busy neighbour still takes cache and memory bandwidth.
//!
//! `cargo bench --bench decisions [-- <million ids>...]`, 1 and 20 without arguments.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::cast_possible_truncation,
    reason = "a measurement fails by panicking"
)]

#[path = "support/spent.rs"]
mod spent;

use std::collections::{HashSet, VecDeque};
use std::convert::Infallible;
use std::hash::{BuildHasherDefault, Hasher};
use std::hint::black_box;
use std::time::Duration;

use dedupd::dedupe::window::CHUNK;
use dedupd::dedupe::{
    Block, BlockError, BlockView, Fields, HashKind, IdSource, Identity, IdentityRule, Look, Offset, Owners,
    TimeSource, Verdict, Window, WindowLimits,
};
use spent::spent;

/// Records measured.
const MEASURED: u64 = 4_000_000;
/// One record in so many repeats an id of the window.
const REPEAT_ONE_IN: u64 = 14;
/// Records of a transaction.
const BATCH: u64 = 16_384;
/// Identities of a stored block.
const BLOCK_IDS: u64 = 4_000;

fn main() {
    let asked: Vec<u64> = std::env::args().skip(1).filter_map(|word| word.parse().ok()).collect();
    identities();
    for millions in if asked.is_empty() { vec![1, 20] } else { asked } {
        let ids = millions * 1_000_000;
        println!("\n{millions} M ids in the window, one record in {REPEAT_ONE_IN} a duplicate:");
        let window = rolling(ids, "window, owners in an array", Array::default());
        rolling(ids, "window, owners in blocks of 4,000", Blocks::default());
        let std = rival::<std::hash::RandomState>(ids, "HashSet<u128>, SipHash");
        let ready = rival::<BuildHasherDefault<Ready>>(ids, "HashSet<u128>, no hash at all");
        println!("  window / HashSet: {:.2} (SipHash), {:.2} (no hash at all)", window / std, window / ready);
    }
}

/// The stream of records: mostly new ids, some of the window's again. Without memory of its own.
struct Stream {
    state: u64,
    made: u64,
    window: u64,
}

impl Stream {
    fn random(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.state ^ (self.state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb)
    }

    fn fresh(&mut self) -> Identity {
        self.made += 1;
        numbered(self.made)
    }

    fn next(&mut self) -> (Identity, bool) {
        let random = self.random();
        if random.is_multiple_of(REPEAT_ONE_IN) {
            let age = (random >> 8) % (self.window * 9 / 10);
            (numbered(self.made - age), true)
        } else {
            (self.fresh(), false)
        }
    }
}

/// Version 7 UUIDs in all but the variant bits: a counter in front, random bits behind.
fn numbered(number: u64) -> Identity {
    let low = number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    Identity(((u128::from(number) << 64) | u128::from(low)).to_be_bytes())
}

/// Committed owners, as one of two stand-ins for the local store.
trait Ledger: Owners {
    fn append(&mut self, owners: &[(Offset, Identity)]);
    fn expire(&mut self, first: Offset);
}

#[derive(Default)]
struct Array {
    first: Offset,
    identities: VecDeque<Identity>,
}

impl Owners for Array {
    type Error = Infallible;
    fn identity_of(&self, owner: Offset) -> Result<Option<Identity>, Infallible> {
        Ok(self.identities.get((owner - self.first) as usize).copied())
    }
}

impl Ledger for Array {
    fn append(&mut self, owners: &[(Offset, Identity)]) {
        for (offset, identity) in owners {
            while self.first + (self.identities.len() as u64) < *offset {
                self.identities.push_back(Identity([0; 16]));
            }
            self.identities.push_back(*identity);
        }
    }
    fn expire(&mut self, first: Offset) {
        let gone = ((first - self.first) as usize).min(self.identities.len());
        self.identities.drain(..gone);
        self.first = first;
    }
}

#[derive(Default)]
struct Blocks {
    blocks: VecDeque<(Offset, Vec<u8>)>,
    open: Vec<(Offset, Identity)>,
}

impl Owners for Blocks {
    type Error = BlockError;
    fn identity_of(&self, owner: Offset) -> Result<Option<Identity>, BlockError> {
        if self.open.first().is_some_and(|(first, _)| *first <= owner) {
            let place = self.open.binary_search_by_key(&owner, |(offset, _)| *offset);
            return Ok(place.ok().map(|place| self.open[place].1));
        }
        let place = self.blocks.partition_point(|(first, _)| *first <= owner);
        match place.checked_sub(1).and_then(|place| self.blocks.get(place)) {
            Some((_, bytes)) => BlockView::trusted(bytes)?.identity_of(owner),
            None => Ok(None),
        }
    }
}

impl Ledger for Blocks {
    fn append(&mut self, owners: &[(Offset, Identity)]) {
        self.open.extend_from_slice(owners);
        while self.open.len() as u64 >= BLOCK_IDS {
            let rest = self.open.split_off(BLOCK_IDS as usize);
            let entries = std::mem::replace(&mut self.open, rest);
            let (first, next) = (entries[0].0, entries[entries.len() - 1].0 + 1);
            let block = Block {
                hash: HashKind::Xxh3,
                partition: 0,
                first,
                next,
                time_first_ms: 0,
                time_last_ms: 0,
                entries,
            };
            self.blocks.push_back((first, block.encode()));
        }
    }
    fn expire(&mut self, first: Offset) {
        while self.blocks.get(1).is_some_and(|(next, _)| *next <= first) {
            self.blocks.pop_front();
        }
    }
}

/// A full window that rolls on: a decision for each record, admission of the new ones, a commit
/// each batch. Gives decisions a second.
fn rolling<L: Ledger<Error: std::fmt::Debug>>(ids: u64, name: &str, mut ledger: L) -> f64 {
    let limits =
        WindowLimits { exact: Duration::from_hours(24), max_ids: ids, time: TimeSource::Record, bloom: None };
    let mut window = Window::new(limits);
    let mut stream = Stream { state: 1, made: 0, window: ids };
    window.reserve(ids + ids / 64);
    let mut at = 0;
    while window.ids() < ids - BATCH {
        for _ in 0..BATCH {
            let look = window.look(stream.fresh());
            window.admit(at, &look);
            at += 1;
        }
        settle(&mut window, &mut ledger, at);
    }
    let (mut dropped, mut expected, mut looks) = (0u64, 0u64, Vec::<Look>::with_capacity(CHUNK));
    let mut longest = 0.0f64;
    let start = spent();
    for _ in 0..MEASURED / BATCH {
        let began = spent();
        for _ in 0..BATCH / CHUNK as u64 {
            looks.clear();
            for _ in 0..CHUNK {
                let (identity, repeated) = stream.next();
                expected += u64::from(repeated);
                looks.push(window.look(identity));
            }
            for look in &looks {
                window.observe(Some(1_700_000_000_000 + at.cast_signed() / 1_000), i64::MAX);
                match window.verdict(at, look, &ledger).unwrap() {
                    Verdict::New | Verdict::Retry => window.admit(at, look),
                    Verdict::Duplicate { .. } | Verdict::Probable { .. } => dropped += 1,
                }
                at += 1;
            }
        }
        settle(&mut window, &mut ledger, at);
        longest = longest.max(spent() - began);
    }
    let rate = (MEASURED / BATCH * BATCH) as f64 / (spent() - start);
    assert_eq!(dropped, expected, "every repeat is in the window");
    report(name, rate, window.memory_bytes() as f64 / window.ids() as f64, longest);
    rate
}

fn settle<L: Ledger>(window: &mut Window, ledger: &mut L, next: Offset) {
    ledger.append(window.pending());
    let first_live = window.commit(next);
    ledger.expire(first_live);
}

/// The usual answer: a set of identities, and a queue of them to forget the oldest.
fn rival<S: std::hash::BuildHasher + Default>(ids: u64, name: &str) -> f64 {
    let mut stream = Stream { state: 1, made: 0, window: ids };
    let mut set = HashSet::with_capacity_and_hasher(ids as usize, S::default());
    let mut queue = VecDeque::with_capacity(ids as usize + 1);
    for _ in 0..ids {
        let identity = u128::from_ne_bytes(stream.fresh().0);
        set.insert(identity);
        queue.push_back(identity);
    }
    let (mut dropped, mut longest) = (0u64, 0.0f64);
    let start = spent();
    for _ in 0..MEASURED / BATCH {
        let began = spent();
        for _ in 0..BATCH {
            let identity = u128::from_ne_bytes(stream.next().0.0);
            if set.insert(identity) {
                queue.push_back(identity);
                set.remove(&queue.pop_front().unwrap());
            } else {
                dropped += 1;
            }
        }
        longest = longest.max(spent() - began);
    }
    let rate = (MEASURED / BATCH * BATCH) as f64 / (spent() - start);
    black_box(dropped);
    let bytes = set.capacity() * 8 / 7 * 17 + queue.capacity() * 16;
    report(name, rate, bytes as f64 / set.len() as f64, longest);
    rate
}

/// A hasher that takes the low bits as they are: the least a rival can spend.
#[derive(Default)]
struct Ready(u64);

impl Hasher for Ready {
    fn write(&mut self, _: &[u8]) {}
    fn write_u128(&mut self, identity: u128) {
        self.0 = (identity >> 64) as u64;
    }
    fn finish(&self) -> u64 {
        self.0
    }
}

fn report(name: &str, rate: f64, bytes: f64, longest: f64) {
    println!(
        "  {name:<36} {:>6.2} M decisions/s  {bytes:>5.1} bytes an id  longest batch {:.1} ms",
        rate / 1e6,
        longest * 1e3
    );
}

/// What it costs to find an id in a record.
fn identities() {
    struct Sample(Vec<u8>);
    impl Fields for Sample {
        fn key(&self) -> Option<&[u8]> {
            Some(b"customer-4711")
        }
        fn value(&self) -> Option<&[u8]> {
            Some(&self.0)
        }
        fn header(&self, _: &str) -> Option<&[u8]> {
            Some(b"01890a5d-ac96-774b-bcce-b302099a8057")
        }
    }
    let json = br#"{"type":"order.placed","at":"2026-11-20T10:15:00.123Z","customer":{"id":4711,"tier":"gold"},"lines":[{"sku":"A-1","n":2},{"sku":"B-7","n":1}],"id":"01890a5d-ac96-774b-bcce-b302099a8057","total":129.90}"#;
    let record = Sample(json.to_vec());
    println!("identities, {}-byte value:", json.len());
    for sources in [&["json:/id"][..], &["header:id"], &["key"], &["value"], &["key", "json:/id"]] {
        let parsed: Vec<IdSource> = sources.iter().map(|source| source.parse().unwrap()).collect();
        let rule = IdentityRule::new(parsed, dedupd::dedupe::Hasher::Xxh3);
        let start = spent();
        for _ in 0..1_000_000 {
            black_box(rule.identify(black_box(&record)));
        }
        println!("  {:<36} {:>6.0} ns", sources.join(" + "), (spent() - start) * 1e9 / 1e6);
    }
}
