//! Every record that raw accepts reaches its topic on a real Apache Kafka, or meets `state.on_poison`: sizes at the limits, records that are
//! small only compressed, timestamps in any direction, values of any first bytes. The limits determine what is expected.

use std::collections::BTreeSet;
use std::sync::OnceLock;
use std::thread;
use std::time::Duration;

use crate::support::raw_batch::{Handmade, content};
use crate::support::{Draft, Isolation, Kafka, Pipe, Record, Rekey, Sidecar, now_ms, shared_kafka};

const LIMIT: Duration = Duration::from_mins(1);
/// `message.max.bytes` of the broker, and so the largest batch of raw.
const LARGEST: usize = 16_384;
const DAY_MS: i64 = 86_400_000;
/// The largest values of the settings of limits on timestamps.
const UNLIMITED: &str = "9223372036854775807";

fn small_kafka() -> &'static Kafka {
    static SMALL: OnceLock<Kafka> = OnceLock::new();
    SMALL.get_or_init(|| Kafka::start_with(&[("message.max.bytes", &LARGEST.to_string())]))
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Role {
    New,
    Copy,
    WithoutId,
}

/// A record of the table.
#[derive(Clone, Debug)]
struct Case {
    name: String,
    /// The codec with which it is written to raw.
    codec: &'static str,
    role: Role,
    draft: Draft,
    /// Size of a batch that has only this record, uncompressed.
    batch: usize,
    is_compressible: bool,
}

/// Bytes that no codec makes smaller.
fn noise(length: usize) -> Vec<u8> {
    let mut random = fastrand::Rng::with_seed(7);
    (0..length).map(|_| random.u8(..)).collect()
}

fn batch_of(draft: &Draft) -> usize {
    let headers = draft.headers.iter().map(|(name, value)| (name.clone().into_bytes(), value.clone()));
    let handmade = Handmade { value: draft.value.clone(), headers: headers.collect(), ..Handmade::default() };
    // Attributes, and the distances to the batch in time and offset.
    let record = 3 + content(&handmade).len();
    let length = 1 + (record * 2).ilog2() as usize / 7;
    61 + length + record
}

impl Case {
    fn new((shape, codec): (&str, &'static str), role: Role, value: Vec<u8>) -> Self {
        let name = format!("{shape} {codec} {role:?}");
        let mut draft = Draft { value: Some(value), ..Draft::default() }.at(now_ms());
        if role != Role::WithoutId {
            draft = draft.header("id", Some(format!("{shape} {codec}").as_bytes()));
        }
        let draft = draft.header("name", Some(name.as_bytes()));
        let (batch, is_compressible) = (batch_of(&draft), shape != "largest");
        Self { name, codec, role, draft, batch, is_compressible }
    }

    /// The record whose batch is as large as raw accepts.
    fn largest(role: Role) -> Self {
        let of = |length| Self::new(("largest", "none"), role, noise(length));
        let near = of(LARGEST - 200);
        let exact = of(LARGEST - 200 + LARGEST - near.batch);
        assert_eq!(exact.batch, LARGEST);
        exact
    }
}

fn cases() -> Vec<Case> {
    let text = "a record that is small only compressed; ".repeat(LARGEST / 4).into_bytes();
    let of = |role| {
        let wide =
            ["gzip", "snappy", "lz4", "zstd"].map(|codec| Case::new(("wide", codec), role, text.clone()));
        [Case::new(("small", "none"), role, b"x".to_vec()), Case::largest(role)].into_iter().chain(wide)
    };
    [Role::New, Role::Copy, Role::WithoutId].into_iter().flat_map(of).collect()
}

/// Each record is a batch.
fn send(kafka: &Kafka, topic: &str, cases: &[Case]) {
    for cases in cases.chunk_by(|one, next| one.codec == next.codec) {
        let drafts: Vec<Draft> = cases.iter().map(|case| case.draft.clone()).collect();
        kafka.send_with(topic, &drafts, &[("compression.type", cases[0].codec), ("batch.num.messages", "1")]);
    }
}

/// A topic that dedupd writes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Target {
    Clean,
    Duplicates,
    DeadLetter,
}

/// One run of dedupd over all records.
#[derive(Clone, Copy, Debug)]
struct Scenario {
    /// The topic that dedupd does not create, and its `max.message.bytes`.
    tight: Option<(Target, usize)>,
    policy: &'static str,
    mode: &'static str,
    /// `compression.type` of dedupd's producer, unless it is the default.
    codec: Option<&'static str>,
}

/// The names of the records in clean, in the duplicates topic and in the dead-letter topic, and whether dedupd stopped.
#[derive(Debug, Default, PartialEq, Eq)]
struct Outcome {
    topics: [Vec<String>; 3],
    is_stopped: bool,
}

impl Scenario {
    fn fits(&self, case: &Case, target: Target, has_more_headers: bool) -> bool {
        let is_small = case.is_compressible && (self.codec.is_none() || case.batch < LARGEST / 2);
        let Some((_, limit)) = self.tight.filter(|(tight, _)| *tight == target) else {
            // dedupd has created it.
            return is_small || case.batch <= LARGEST;
        };
        is_small || case.batch + usize::from(has_more_headers) <= limit
    }

    fn expected(&self, cases: &[Case]) -> Outcome {
        let (mut outcome, mut seen) = (Outcome::default(), BTreeSet::new());
        for case in cases {
            let (id, _) = case.name.rsplit_once(' ').unwrap();
            let role = if case.role == Role::Copy && !seen.contains(id) { Role::New } else { case.role };
            let target = match role {
                Role::New => Target::Clean,
                _ if self.mode == "shadow" => Target::Clean,
                Role::Copy => Target::Duplicates,
                Role::WithoutId => Target::DeadLetter,
            };
            let target = match self.policy {
                _ if self.fits(case, target, role != Role::New) => target,
                "drop" => continue,
                "dead_letter"
                    if target != Target::DeadLetter && self.fits(case, Target::DeadLetter, true) =>
                {
                    Target::DeadLetter
                }
                _ => return Outcome { is_stopped: true, ..outcome },
            };
            if target == Target::Clean && role == Role::New {
                seen.insert(id);
            }
            outcome.topics[target as usize].push(case.name.clone());
        }
        outcome
    }

    fn run(&self, number: usize, cases: &[Case]) {
        let kafka = small_kafka();
        let pipe = Pipe::new(kafka, &format!("accepted-{number}"), 1);
        let names = [pipe.clean.clone(), format!("{}.again", pipe.raw), format!("{}.dead", pipe.raw)];
        if let Some((tight, limit)) = self.tight {
            kafka.create_topic(&names[tight as usize], 1, &[("max.message.bytes", &limit.to_string())]);
        }
        send(kafka, &pipe.raw, cases);
        let mut sidecar = pipe
            .sidecar("a")
            .with("DEDUPD_IDENTITY__FROM", "[\"header:id\"]")
            .with("DEDUPD_IDENTITY__ON_MISSING", "dead_letter")
            .with("DEDUPD_TOPICS__DUPLICATES", &names[1])
            .with("DEDUPD_TOPICS__DEAD_LETTER", &names[2])
            .with("DEDUPD_STATE__POISON_RETRY", "0s")
            .with("DEDUPD_STATE__ON_POISON", self.policy)
            .with("DEDUPD_DEDUPE__MODE", self.mode);
        if let Some(codec) = self.codec {
            sidecar = sidecar.with("DEDUPD_KAFKA__PROPERTIES__COMPRESSION_TYPE", codec);
        }
        let running = sidecar.start();
        let expected = self.expected(cases);
        if expected.is_stopped {
            assert_eq!(running.wait(LIMIT).code(), Some(6), "{self:?} {}", running.text());
            let text = running.text();
            assert!(text.contains("cannot be written") && text.contains("max.message.bytes"), "{text}");
        } else {
            pipe.wait_caught_up(1, LIMIT);
            assert_eq!(running.stop(), Some(0), "{self:?} {}", running.text());
        }
        let topics = names.map(|name| kafka.ended_records(&name).iter().map(name_of).collect());
        let found = Outcome { topics, is_stopped: expected.is_stopped };
        assert_eq!(found, expected, "{self:?} {}", running.text());
    }
}

fn name_of(record: &Record) -> String {
    let (_, name) = record.headers.iter().find(|(name, _)| name == "name").unwrap();
    String::from_utf8(name.clone().unwrap()).unwrap()
}

fn scenarios() -> Vec<Scenario> {
    let policies = ["stop", "drop", "dead_letter"];
    let roomy = ["drop", "shadow"].map(|mode| Scenario { tight: None, policy: "stop", mode, codec: None });
    let tight = [Target::Clean, Target::Duplicates, Target::DeadLetter]
        .into_iter()
        .flat_map(|target| [LARGEST, LARGEST / 2].map(|limit| Some((target, limit))))
        .flat_map(|tight| policies.map(|policy| Scenario { tight, policy, mode: "drop", codec: None }));
    let shadow = policies.map(|policy| Scenario {
        tight: Some((Target::Clean, LARGEST)),
        policy,
        mode: "shadow",
        codec: None,
    });
    // Without compression, the records that are small only compressed meet the policy.
    let control = Scenario { tight: None, policy: "drop", mode: "drop", codec: Some("none") };
    roomy.into_iter().chain(tight).chain(shadow).chain([control]).collect()
}

#[test]
fn a_record_of_any_size_reaches_its_topic_or_meets_the_policy() {
    let (cases, scenarios) = (cases(), scenarios());
    let all = scenarios[0].expected(&cases);
    assert_eq!(all.topics.each_ref().map(Vec::len), [6; 3], "created topics accept every record");
    let (control, others) = scenarios.split_last().unwrap();
    assert_ne!(control.expected(&cases), all);
    assert!(others.iter().skip(2).any(|it| it.expected(&cases) != all), "no topic is too small");
    let (cases, numbered): (_, Vec<_>) = (&cases, scenarios.iter().enumerate().collect());
    for part in numbered.chunks(6) {
        thread::scope(|scope| {
            for (number, scenario) in part {
                scope.spawn(move || scenario.run(*number, cases));
            }
        });
    }
}

#[test]
fn rekey_writes_a_record_of_any_size_or_names_the_limit() {
    let (kafka, cases) = (small_kafka(), cases());
    kafka.create_topic("accepted.from", 1, &[]);
    send(kafka, "accepted.from", &cases);
    for (limit, is_enough) in [(LARGEST * 2, true), (LARGEST, false), (LARGEST / 2, false)] {
        let to = format!("accepted.to.{limit}");
        kafka.create_topic(&to, 1, &[("max.message.bytes", &limit.to_string())]);
        let rekey = Rekey::new(kafka, &to, "--from accepted.from --id header:id");
        let running = rekey.start();
        if is_enough {
            rekey.wait_done(kafka, &["accepted.from"]);
            let written: Vec<_> = kafka.records(&to, Isolation::Committed).iter().map(name_of).collect();
            assert_eq!(written, cases.iter().map(|case| case.name.clone()).collect::<Vec<_>>());
        } else {
            assert_eq!(running.wait(LIMIT).code(), Some(6), "{}", running.text());
            assert!(running.text().contains("max.message.bytes"), "{}", running.text());
        }
        let is_named = running.text().contains("accepts records up to");
        assert_eq!(is_named, limit < LARGEST, "{}", running.text());
    }
}

/// A broker with its default limits, a record as large as raw accepts, and one that is larger than the queue of the client.
#[test]
fn the_largest_record_and_one_above_the_queue_of_the_client_are_forwarded() {
    let kafka = shared_kafka();
    let pipe = Pipe::new(kafka, "accepted-real", 1);
    let record = |id: &str, value: Vec<u8>| {
        Draft { value: Some(value), ..Draft::default() }.header("id", Some(id.as_bytes()))
    };
    let default = 1_048_588;
    let near = record("largest", noise(default - 200));
    let largest = record("largest", noise(default - 200 + default - batch_of(&near)));
    kafka.send(&pipe.raw, &[largest]);
    let above_queue = record("above the queue", vec![b'x'; 70 << 20]);
    kafka.send_with(&pipe.raw, &[above_queue], &[("compression.type", "zstd")]);
    kafka.send(&pipe.raw, &[record("small", b"x".to_vec())]);
    let sidecar = pipe.sidecar("a").with("DEDUPD_IDENTITY__FROM", "[\"header:id\"]");
    pipe.through(1, &sidecar);
    let sizes = |topic: &str| -> Vec<usize> {
        kafka.records(topic, Isolation::Committed).iter().map(|it| it.value.as_ref().unwrap().len()).collect()
    };
    assert_eq!(sizes(&pipe.clean), sizes(&pipe.raw));
    assert_eq!(sizes(&pipe.clean)[1], 70 << 20);
}

fn stamped(name: &str) -> (Pipe<'static>, Vec<&'static str>) {
    let pipe = Pipe::new(shared_kafka(), name, 1);
    let limits = [
        ("message.timestamp.before.max.ms", UNLIMITED),
        ("message.timestamp.after.max.ms", UNLIMITED),
        ("retention.ms", "-1"),
    ];
    pipe.kafka.alter_topic_config(&pipe.raw, &limits);
    let now = now_ms();
    let stamps = [
        (1_000, "{\"id\":\"1970\"}"),
        (0, "{\"id\":\"zero\"}"),
        (-1, "{\"id\":\"none\"}"),
        (now, "{\"id\":\"now\"}"),
        (now + 400 * DAY_MS, "{\"id\":\"ahead\"}"),
    ];
    // A copy of each goes to the duplicates topic.
    for stamp in stamps.iter().flat_map(|stamp| [*stamp; 2]) {
        pipe.kafka.send_stamped(&pipe.raw, 0, &[stamp]);
    }
    (pipe, stamps.map(|(_, value)| value).to_vec())
}

fn with_duplicates(pipe: &Pipe<'_>) -> Sidecar {
    pipe.sidecar("a").with("DEDUPD_TOPICS__DUPLICATES", &format!("{}.again", pipe.raw))
}

#[test]
fn created_topics_accept_timestamps_in_any_direction() {
    let (pipe, values) = stamped("accepted-stamps");
    pipe.through(1, &with_duplicates(&pipe));
    for topic in [pipe.clean.clone(), format!("{}.again", pipe.raw)] {
        assert_eq!(
            pipe.kafka.ended_records(&topic).iter().map(Record::text).collect::<Vec<_>>(),
            values,
            "{topic}"
        );
    }
}

#[test]
fn timestamps_beyond_the_limits_of_a_topic_meet_the_policy() {
    let (pipe, _) = stamped("accepted-limited");
    let limits = [
        ("message.timestamp.before.max.ms", "86400000"),
        ("message.timestamp.after.max.ms", "3600000"),
        ("retention.ms", "-1"),
    ];
    let again = format!("{}.again", pipe.raw);
    for topic in [&pipe.clean, &again] {
        pipe.kafka.create_topic(topic, 1, &limits);
    }
    let sidecar = with_duplicates(&pipe).with("DEDUPD_STATE__POISON_RETRY", "0s");
    let running = sidecar.start();
    assert_eq!(running.wait(LIMIT).code(), Some(6), "{}", running.text());
    let text = running.text();
    assert!(text.contains("cannot be written") && text.contains("is beyond message.timestamp."), "{text}");
    // The start has named both limits of both topics.
    assert_eq!(text.matches("it rejects records that topic").count(), 4, "{text}");
    pipe.through(1, &sidecar.with("DEDUPD_STATE__ON_POISON", "drop"));
    let accepted = ["{\"id\":\"none\"}", "{\"id\":\"now\"}"];
    for topic in [&pipe.clean, &again] {
        assert_eq!(
            pipe.kafka.ended_records(topic).iter().map(Record::text).collect::<Vec<_>>(),
            accepted,
            "{topic}"
        );
    }
}
