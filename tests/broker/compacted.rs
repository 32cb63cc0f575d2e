//! Raw and clean topics that a real broker has compacted, and a state that agrees with them.
//!
//! Log compaction removes committed records: those whose key a later record has, expired tombstones, and everything of
//! aborted transactions. A record that is missing from the clean topic is therefore no evidence that its transaction was
//! aborted.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::support::pipe::id;
use crate::support::{Draft, Isolation, Pipe, Record, Running, Sidecar, compacting_kafka, wait_until};

const LIMIT: Duration = Duration::from_mins(1);
const KEYS: usize = 7;
/// Number of records that a test sends last.
const FURTHER: usize = 20;
/// Every append starts a new segment, and the cleaner removes what it may at once.
const COMPACTED: [(&str, &str); 5] = [
    ("cleanup.policy", "compact"),
    ("segment.ms", "100"),
    ("min.cleanable.dirty.ratio", "0.01"),
    ("delete.retention.ms", "1"),
    ("retention.ms", "-1"),
];

/// A record with a key that earlier records have too, and its own id.
fn keyed(number: usize) -> Draft {
    Draft::id(0, &format!("id-{number}")).key(format!("key-{}", number % KEYS).as_bytes())
}

fn tombstone(key: &str) -> Draft {
    Draft { key: Some(key.into()), ..Draft::default() }
}

/// A pipe with one partition whose topics are compacted, and a sidecar that is not running.
struct Compacted {
    pipe: Pipe<'static>,
    sidecar: Sidecar,
}

impl Compacted {
    fn new(name: &str) -> Self {
        let pipe = Pipe::new(compacting_kafka(), name, 1);
        pipe.kafka.alter_topic_config(&pipe.raw, &COMPACTED);
        let sidecar = pipe.sidecar("a");
        Self { pipe, sidecar }
    }

    fn all(&self, topic: &str) -> Vec<Record> {
        self.pipe.kafka.records(topic, Isolation::Uncommitted)
    }

    /// Processes everything, then stops.
    fn process(&self) {
        let running = self.sidecar.start();
        self.pipe.wait_caught_up(1, LIMIT);
        assert_eq!(running.stop(), Some(0), "{}", running.text());
        if self.pipe.kafka.topic_config(&self.pipe.clean)["segment.ms"] != "100" {
            // The policy was inherited from raw when the topic was created.
            assert_eq!(self.pipe.kafka.topic_config(&self.pipe.clean)["cleanup.policy"], "compact");
            self.pipe.kafka.alter_topic_config(&self.pipe.clean, &COMPACTED);
        }
    }

    /// Appends records until the cleaner has removed these offsets. It never cleans the last segment of a log.
    fn compact(&self, topic: &str, offsets: &BTreeSet<i64>) {
        let mut appended = 0;
        wait_until(&format!("the compaction of {topic}"), LIMIT, || {
            let left = self.all(topic).iter().any(|record| offsets.contains(&record.offset));
            if left {
                appended += 1;
                let draft = Draft::new(0, &format!("appended {appended}")).key(b"another program");
                self.pipe.kafka.send(topic, &[draft]);
                std::thread::sleep(Duration::from_millis(200));
            }
            (!left).then_some(())
        });
    }

    /// Starts the sidecar after a compaction. It must write nothing until there are new records.
    fn start_without_a_trace(&self) -> Running {
        let ends = || {
            [&self.pipe.clean, &format!("{}.dedupd", self.pipe.clean)]
                .map(|topic| self.pipe.kafka.watermarks(topic, 0).1)
        };
        let before = ends();
        let running = self.sidecar.start();
        running.wait_running(1, LIMIT);
        assert_eq!(
            ends(),
            before,
            "the start has written to clean or to the state topic:\n{}",
            running.text()
        );
        for resolution in ["aborted", "redone", "rewound"] {
            let name = format!("dedupd_torn_transactions_total{{resolution=\"{resolution}\"}}");
            assert_eq!(running.metric(&name), Some(0.0), "{name}:\n{}", running.text());
        }
        running
    }

    /// Sends records with known ids and further ones, and checks that only the latter are forwarded. Returns the number of
    /// forwarded records.
    fn finish(&self, running: &Running, known: &[Draft]) -> u64 {
        let further: Vec<Draft> = (known.len()..known.len() + FURTHER).map(keyed).collect();
        self.pipe.kafka.send(&self.pipe.raw, &[known, &further].concat());
        self.pipe.wait_caught_up(1, LIMIT);
        let forwarded = wait_until("the further records to be counted", LIMIT, || {
            Some(running.outcome("forwarded")).filter(|count| *count >= FURTHER as u64)
        });
        assert_eq!(running.stop(), Some(0), "{}", running.text());
        let clean = self.pipe.kafka.records(&self.pipe.clean, Isolation::Committed);
        let ids: Vec<String> = clean.iter().filter_map(id).collect();
        assert_eq!(ids.iter().collect::<BTreeSet<_>>().len(), ids.len(), "an id is in clean twice: {ids:?}");
        assert!(!ids.iter().any(|id| id.starts_with("aborted")), "{ids:?}");
        let newest: BTreeMap<_, _> = clean.into_iter().map(|record| (record.key, record.value)).collect();
        for draft in further.iter().rev().take(KEYS) {
            assert_eq!(newest[&draft.key], draft.value, "the newest record of a key is not in clean");
        }
        forwarded
    }

    /// Deletes the local state if the test requires it.
    fn forget(&self, loses_state: bool) {
        if loses_state {
            std::fs::remove_dir_all(&self.sidecar.state_dir).unwrap();
        }
    }
}

fn offsets(records: &[Record], wanted: impl Fn(&Record) -> bool) -> BTreeSet<i64> {
    records.iter().filter(|record| wanted(record)).map(|record| record.offset).collect()
}

#[test]
fn a_start_after_the_last_clean_record_was_compacted_writes_nothing_again() {
    for (name, loses_state) in [("kept", false), ("lost", true)] {
        let case = Compacted::new(&format!("clean-{name}"));
        let known: Vec<Draft> = (0..40).map(keyed).collect();
        case.pipe.kafka.send(&case.pipe.raw, &known[..20]);
        case.process();
        // The last transaction ends with a tombstone, which has no id and is forwarded.
        case.pipe.kafka.send(&case.pipe.raw, &[&known[20..], &[tombstone("key-1")]].concat());
        case.process();
        let tombstones = offsets(&case.all(&case.pipe.clean), |record| record.value.is_none());
        assert_eq!(tombstones.len(), 1);
        case.compact(&case.pipe.clean, &tombstones);
        case.forget(loses_state);
        let running = case.start_without_a_trace();
        assert_eq!(case.finish(&running, &known), FURTHER as u64);
    }
}

#[test]
fn a_start_after_every_record_of_the_last_transaction_was_replaced_writes_nothing_again() {
    let case = Compacted::new("replaced");
    let known: Vec<Draft> = (0..40).map(keyed).collect();
    case.pipe.kafka.send(&case.pipe.raw, &known);
    case.process();
    let all = offsets(&case.all(&case.pipe.clean), |_| true);
    // Another program writes newer records with the same keys.
    let newer: Vec<Draft> =
        (0..KEYS).map(|key| Draft::new(0, "newer").key(format!("key-{key}").as_bytes())).collect();
    case.pipe.kafka.send(&case.pipe.clean, &newer);
    case.compact(&case.pipe.clean, &all);
    let running = case.start_without_a_trace();
    assert_eq!(case.finish(&running, &known), FURTHER as u64);
}

#[test]
fn upstream_transactions_that_were_aborted_and_compacted_lose_and_repeat_nothing() {
    for (name, loses_state) in [("kept", false), ("lost", true)] {
        let case = Compacted::new(&format!("raw-{name}"));
        let known: Vec<Draft> = (0..40).map(keyed).collect();
        let abort = |count: usize| {
            let draft = |n| Draft::id(0, &format!("aborted-{n}")).key(format!("aborted-{n}").as_bytes());
            let drafts: Vec<Draft> = (0..count).map(draft).collect();
            case.pipe.kafka.send_in_transaction(&case.pipe.raw, &drafts, false);
        };
        case.pipe.kafka.send(&case.pipe.raw, &known[..20]);
        abort(10);
        case.pipe.kafka.send(&case.pipe.raw, &known[20..]);
        case.process();
        // At the committed offset, too. The cleaner may remove these before they can be read.
        let from = case.pipe.kafka.watermarks(&case.pipe.raw, 0).1;
        abort(10);
        assert!(case.pipe.kafka.watermarks(&case.pipe.raw, 0).1 >= from + 10, "records were not written");
        let mut aborted = offsets(&case.all(&case.pipe.raw), |record| {
            id(record).is_some_and(|id| id.starts_with("aborted"))
        });
        aborted.extend(from..from + 10);
        case.compact(&case.pipe.raw, &aborted);
        case.forget(loses_state);
        let running = case.sidecar.start();
        running.wait_running(1, LIMIT);
        case.finish(&running, &known);
    }
}
