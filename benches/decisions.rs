//! Decisions per second on one core, and bytes per id: the window compared with a hash set, in one run.
//!
//! Times are the CPU time of the thread where the system reports it (Linux), so that other work on the machine
//! disturbs the result less. Other work still takes cache and memory bandwidth.
//!
//! `cargo bench --bench decisions [-- <million ids>...]`, 1 and 20 without arguments; 0 measures only how ids are extracted.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::cast_possible_truncation,
    reason = "a measurement fails by panicking"
)]

#[path = "support/ledger.rs"]
mod ledger;
#[path = "support/spent.rs"]
mod spent;
#[path = "support/stream.rs"]
mod stream;

use std::collections::{HashSet, VecDeque};
use std::hash::{BuildHasherDefault, Hasher};
use std::hint::black_box;
use std::sync::Arc;
use std::time::Duration;

use dedupd::dedupe::window::CHUNK;
use dedupd::dedupe::{
    Coordinates, Fields, IdentityRule, IndexKey, RecordTime, SchemaId, Schemas, TimeSource, Verdict, Window,
    WindowLimits,
};
use dedupd::schemas::{SchemaText, parse};
use ledger::{Array, Ledger, owner};
use spent::spent;
use stream::{Repeats, Stream};

/// Records measured.
const MEASURED: u64 = 4_000_000;
/// One record in this many repeats an id of the window.
const REPEAT_ONE_IN: u64 = 14;
const REPEATS: Repeats = Repeats::Anywhere { one_in: REPEAT_ONE_IN };
/// Records per transaction.
const BATCH: u64 = 16_384;

fn main() {
    let arguments: Vec<u64> = std::env::args().skip(1).filter_map(|word| word.parse().ok()).collect();
    println!("extracting an id and hashing it, median of 11 rounds (lowest to highest):");
    identities();
    for millions in if arguments.is_empty() { vec![1, 20] } else { arguments } {
        if millions == 0 {
            continue;
        }
        let ids = millions * 1_000_000;
        println!("\n{millions} M ids in the window, one record in {REPEAT_ONE_IN} a duplicate:");
        let window = rolling(ids, "window, owners in an array", Array::default());
        let std = rival::<std::hash::RandomState>(ids, "HashSet<u128>, SipHash");
        let no_hash = rival::<BuildHasherDefault<NoHash>>(ids, "HashSet<u128>, no hash");
        println!("  window / HashSet: {:.2} (SipHash), {:.2} (no hash)", window / std, window / no_hash);
    }
}

/// Runs a full window: a decision per record, admission of the new ones, a commit per batch. Returns decisions per
/// second.
fn rolling<L: Ledger>(ids: u64, name: &str, mut ledger: L) -> f64 {
    let limits =
        WindowLimits { exact: Duration::from_hours(24), max_ids: ids, time: TimeSource::Record, bloom: None };
    let mut window = Window::new(limits, ledger.positions());
    let mut stream = Stream::new(ids, REPEATS);
    window.reserve(ids + ids / 64);
    let mut at = 0;
    while window.ids() < ids - BATCH {
        for _ in 0..BATCH {
            let key = window.key(stream.fresh());
            window.admit(owner(at, time_ms(at), key.identity), &key);
            at += 1;
        }
        settle(&mut window, &mut ledger);
    }
    let (mut dropped, mut expected, mut keys) = (0u64, 0u64, Vec::<IndexKey>::with_capacity(CHUNK));
    let mut longest = 0.0f64;
    let start = spent();
    for _ in 0..MEASURED / BATCH {
        let began = spent();
        for _ in 0..BATCH / CHUNK as u64 {
            keys.clear();
            for _ in 0..CHUNK {
                let (identity, repeated) = stream.next();
                expected += u64::from(repeated);
                keys.push(window.key(identity));
            }
            for key in &keys {
                let now_ms = time_ms(at);
                let time = RecordTime { own_ms: now_ms, stream_ms: now_ms };
                match window.verdict(Coordinates { partition: 0, offset: at }, time, key, &ledger).unwrap() {
                    Verdict::New | Verdict::Retry => window.admit(owner(at, now_ms, key.identity), key),
                    Verdict::Duplicate { .. } => dropped += 1,
                }
                at += 1;
            }
        }
        settle(&mut window, &mut ledger);
        longest = longest.max(spent() - began);
    }
    let rate = (MEASURED / BATCH * BATCH) as f64 / (spent() - start);
    assert_eq!(dropped, expected, "not every repeat was dropped as a duplicate");
    report(name, rate, window.memory_bytes() as f64 / window.ids() as f64, longest);
    rate
}

/// Stream time of a record, epoch milliseconds.
fn time_ms(offset: u64) -> i64 {
    1_700_000_000_000 + offset.cast_signed() / 1_000
}

fn settle<L: Ledger>(window: &mut Window, ledger: &mut L) {
    ledger.append(window.next_number(), window.pending());
    let first_needed = window.commit();
    ledger.expire(first_needed);
}

/// The usual alternative: a set of identities, and a queue of them to remove the oldest.
fn rival<S: std::hash::BuildHasher + Default>(ids: u64, name: &str) -> f64 {
    let mut stream = Stream::new(ids, REPEATS);
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

/// A hasher that returns bits of the identity unchanged: the lowest possible cost of hashing.
#[derive(Default)]
struct NoHash(u64);

impl Hasher for NoHash {
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
        "  {name:<36} {:>6.2} M decisions/s  {bytes:>5.1} bytes per id  longest batch {:.1} ms",
        rate / 1e6,
        longest * 1e3
    );
}

/// A record whose value is an order as JSON.
struct Order(Vec<u8>);

impl Fields for Order {
    fn key(&self) -> Option<&[u8]> {
        Some(b"customer-4711")
    }
    fn value(&self) -> Option<&[u8]> {
        Some(&self.0)
    }
    fn header(&self, name: &str) -> Option<&[u8]> {
        (name == "id").then_some(b"01890a5d-ac96-774b-bcce-b302099a8057")
    }
}

/// Where the id is among the members of an order.
#[derive(Clone, Copy)]
enum Place {
    First,
    Middle,
    Last,
}

/// An order of 200 bytes, or of 1 KiB with nested objects. Its values have other lengths than those of other numbers, so that
/// the processor cannot learn the document.
fn order(number: u64, nested: bool, place: Place) -> Order {
    let number = number.wrapping_mul(7_919);
    let mut members = vec![
        r#""type":"order.placed","at":"2026-11-20T10:15:00.123Z""#.to_owned(),
        format!(r#""customer":{},"total":{}.{:02}"#, number % 10_000, number % 917, number % 100),
        format!(r#""channel":"{}","currency":"EUR""#, ["web", "shop", "phone"][number as usize % 3]),
        format!(r#""gift":{},"lines":{}"#, number.is_multiple_of(3), number % 12),
    ];
    if nested {
        let line = |line| {
            format!(
                r#"{{"sku":"A-{number}-{line}","name":"Product {}","note":"says \"new\"","n":{line},
                    "price":{{"net":{}.95,"gross":{line}.5}},"tags":["new",null,"{line}"]}}"#,
                number % 1_013,
                number % 97
            )
        };
        members.push(format!(r#""items":[{}]"#, [1, 22, 333, 4_444, 55_555].map(line).join(",")));
        members.push(
            r#""address":{"street":"Bahnhofstrasse 17","city":"Zürich","geo":[47.37,8.54]}"#.to_owned(),
        );
    }
    let at = match place {
        Place::First => 0,
        Place::Middle => members.len() / 2,
        Place::Last => members.len(),
    };
    members.insert(at, r#""id":"01890a5d-ac96-774b-bcce-b302099a8057""#.to_owned());
    Order(format!("{{{}}}", members.join(",")).into_bytes())
}

/// Measures the time to extract and hash the id of a record: by source, and for JSON by the place of the id.
fn identities() {
    for sources in [&["header:id"][..], &["key"], &["value"], &["key", "json:/id"]] {
        identity(sources, (&Schemas::default(), &json_orders(false, Place::Middle)), "middle");
    }
    for nested in [false, true] {
        for (place, name) in [(Place::First, "first"), (Place::Middle, "middle"), (Place::Last, "last")] {
            identity(&["json:/id"], (&Schemas::default(), &json_orders(nested, place)), name);
        }
    }
    encoded();
}

fn json_orders(nested: bool, place: Place) -> Vec<Order> {
    (1..65).map(|number| order(number, nested, place)).collect()
}

/// The same fields as those of the JSON documents, in Avro and in Protobuf.
fn encoded() {
    for (place, name) in [(0, "first"), (4, "middle"), (8, "last")] {
        let schemas = schemas(place);
        let avro: Vec<Order> = (0..64).map(|_| avro_order(place)).collect();
        identity(&["avro:/id"], (&schemas, &avro), name);
        let protobuf: Vec<Order> = (0..64).map(|_| protobuf_order(place)).collect();
        identity(&["protobuf:/id"], (&schemas, &protobuf), name);
        if place == 0 {
            identity(&["protobuf:/15"], (&schemas, &protobuf), name);
        }
    }
}

const ENCODED_ID: &str = "01890a5d-ac96-774b-bcce-b302099a8057";
/// Name, Avro type, Protobuf type, a value in Avro, its wire type and a value in Protobuf.
type EncodedField = (&'static str, &'static str, &'static str, &'static [u8], u8, &'static [u8]);

/// The fields besides the id.
const ENCODED: [EncodedField; 8] = [
    ("customer", "string", "string", b"\x1acustomer-1234", 2, b"\x0dcustomer-1234"),
    ("amount", "double", "double", b"12345678", 1, b"12345678"),
    ("currency", "string", "string", b"\x06EUR", 2, b"\x03EUR"),
    ("count", "int", "int32", b"\x54", 0, b"\x2a"),
    (
        "note",
        "string",
        "string",
        b"\x3aleave it with the neighbours.",
        2,
        b"\x1dleave it with the neighbours.",
    ),
    ("paid", "boolean", "bool", b"\x01", 0, b"\x01"),
    ("created", "long", "int64", b"\x80\xa0\xb0\xe6\x91\x62", 0, b"\x80\x90\xd8\xf3\x88\x31"),
    ("street", "string", "string", b"\x28Unter den Linden 77.", 2, b"\x14Unter den Linden 77."),
];

fn schemas(place: usize) -> Schemas {
    let mut avro: Vec<String> =
        ENCODED.iter().map(|it| format!("{{\"name\":\"{}\",\"type\":\"{}\"}}", it.0, it.1)).collect();
    avro.insert(place, "{\"name\":\"id\",\"type\":\"string\"}".to_owned());
    let avro = format!("{{\"type\":\"record\",\"name\":\"Order\",\"fields\":[{}]}}", avro.join(","));
    let fields: Vec<String> =
        ENCODED.iter().zip(1..).map(|(it, number)| format!("{} {} = {number};", it.2, it.0)).collect();
    let protobuf = fields.concat();
    let protobuf = format!("syntax = \"proto3\"; message Order {{ {protobuf} string id = 15; }}");
    let mut schemas = Schemas::default();
    for (id, format, text) in [(1, "AVRO", avro), (2, "PROTOBUF", protobuf)] {
        let text = SchemaText { format: format.to_owned(), text, references: Vec::new() };
        schemas.insert(SchemaId::Number(id), Arc::new(parse(SchemaId::Number(id), &text).expect("a schema")));
    }
    schemas
}

fn avro_order(place: usize) -> Order {
    let mut parts: Vec<Vec<u8>> = ENCODED.iter().map(|it| it.3.to_vec()).collect();
    parts.insert(place, [b"\x48", ENCODED_ID.as_bytes()].concat());
    Order([&[0, 0, 0, 0, 1][..], &parts.concat()].concat())
}

fn protobuf_order(place: usize) -> Order {
    let mut parts: Vec<Vec<u8>> =
        ENCODED.iter().zip(1..).map(|(it, number)| [&[(number << 3) | it.4][..], it.5].concat()).collect();
    parts.insert(place, [b"\x7a\x24", ENCODED_ID.as_bytes()].concat());
    Order([&[0, 0, 0, 0, 2, 0][..], &parts.concat()].concat())
}

/// The median of some rounds: one round can be disturbed.
fn identity(sources: &[&str], (schemas, orders): (&Schemas, &[Order]), name: &str) {
    let bytes = orders.iter().map(|order| order.0.len()).sum::<usize>() / orders.len();
    let rule = IdentityRule::new(
        sources.iter().map(|source| source.parse().unwrap()).collect(),
        dedupd::dedupe::Hasher::Xxh3,
    );
    assert!(
        orders.iter().all(|order| rule.identify(order, schemas).is_ok_and(|id| id.is_some())),
        "every order has an id"
    );
    let mut rounds: Vec<f64> = (0..11)
        .map(|_| {
            let start = spent();
            for order in orders.iter().cycle().take(400_000) {
                black_box(rule.identify(black_box(order), schemas)).ok();
            }
            (spent() - start) * 1e9 / 4e5
        })
        .collect();
    rounds.sort_by(f64::total_cmp);
    let what = format!("{} of {bytes} bytes, id {name}", sources.join(" + "));
    println!("  {what:<44} {:>5.0} ns ({:.0} to {:.0})", rounds[5], rounds[0], rounds[10]);
}
