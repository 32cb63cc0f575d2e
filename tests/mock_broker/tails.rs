//! Reads of ranges of a log whose end is reported before the range ends.
//!
//! On this broker an end is early when a range ends beyond the log: the client receives the same events as from a leader that
//! does not know its high watermark yet.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::sync::mpsc::{Sender, channel};
use std::thread;
use std::time::Duration;

use dedupd::dedupe::Offset;
use dedupd::kafka::KafkaStateLog;
use dedupd::ports::{Failure, Isolation, LogId, LogReads, OutputTopic, Remedy, StateItem, StateLog};
use tracing::Level;

use crate::member::LIMIT;
use crate::support::mock::{CLEAN, DEAD, Mock, STATE};
use crate::support::records::produce_with;

const PARTITION: u32 = 1;
/// Longer than the client needs for a response on a machine that stalls for seconds.
const WAIT: Duration = Duration::from_secs(8);

fn produce(mock: &Mock, topic: &str, count: usize) {
    let partition = PARTITION.try_into().unwrap();
    produce_with(&mock.client_config(), topic, partition, &vec![("key", "value"); count]);
}

fn log(mock: &Mock) -> KafkaStateLog {
    KafkaStateLog::new(&mock.settings("reader")).expect("a reader")
}

fn offsets(items: &[StateItem]) -> Vec<Offset> {
    let offset = |item: &StateItem| match item {
        StateItem::Record { offset, .. } => *offset,
        other => panic!("{other:?}"),
    };
    items.iter().map(offset).collect()
}

fn assert_early(failed: &Failure) {
    assert_eq!(failed.remedy, Remedy::Retry, "{failed}");
    let place = "partition 1 was reported to end at offset 5, before offset 8";
    assert!(failed.what.contains(place), "{failed}");
}

/// The lines of a log.
struct Lines(Sender<String>);

impl Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.send(String::from_utf8_lossy(bytes).into_owned()).ok(); // nobody waits for a line any more
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn an_end_before_the_range_ends_is_a_failure() {
    let mock = Mock::start(2);
    produce(&mock, STATE, 5);
    // Each failure takes the time limit.
    thread::scope(|scope| {
        for what in [Isolation::Uncommitted, Isolation::Committed] {
            let mock = &mock;
            scope.spawn(move || {
                let log = log(mock);
                assert_eq!(offsets(&log.records(&[(PARTITION, 1..5)], what, WAIT).unwrap()), [1, 2, 3, 4]);
                assert_early(&log.records(&[(PARTITION, 1..8)], what, WAIT).unwrap_err());
            });
        }
    });
}

#[test]
fn records_behind_an_early_end_are_read() {
    let mock = Mock::start(2);
    produce(&mock, STATE, 5);
    let log = log(&mock);
    let (sender, lines) = channel();
    let writer = move || Lines(sender.clone());
    let subscriber = tracing_subscriber::fmt().with_max_level(Level::DEBUG).with_writer(writer).finish();
    let items = thread::scope(|scope| {
        let mock = &mock;
        scope.spawn(move || {
            while !lines.recv_timeout(LIMIT).expect("an early end").contains("reported to end early") {}
            produce(mock, STATE, 4);
        });
        let read = || log.records(&[(PARTITION, 1..8)], Isolation::Uncommitted, LIMIT);
        tracing::subscriber::with_default(subscriber, read)
    });
    assert_eq!(offsets(&items.unwrap()), [1, 2, 3, 4, 5, 6, 7]);
}

#[test]
fn an_early_end_of_a_side_partition_is_not_read_past() {
    let mock = Mock::start(2);
    produce(&mock, DEAD, 5);
    let side = LogId { topic: OutputTopic::DeadLetter, partition: PARTITION };
    let log = log(&mock);
    let (records, next) = log.side_records(&BTreeMap::from([(side, (1, 5))]), LIMIT).unwrap();
    assert_eq!(records.iter().map(|record| record.offset).collect::<Vec<_>>(), [1, 2, 3, 4]);
    assert_eq!(next, BTreeMap::from([(side, 5)]));
    assert_early(&log.side_records(&BTreeMap::from([(side, (1, 8))]), LIMIT).unwrap_err());
}

/// The last stable offset decides about such records; a read would wait for them.
#[test]
fn nobody_sees_a_record_beyond_the_end_of_clean() {
    let mock = Mock::start(2);
    produce(&mock, CLEAN, 5);
    let at = [4, 5, 7, 0].map(|offset| (PARTITION, offset));
    assert_eq!(log(&mock).visible(&at, Isolation::Committed, WAIT).unwrap(), [true, false, false, true]);
}

/// A restore reads blocks no faster than it can seal their owners: one read must not return all large blocks that the client has.
#[test]
fn a_read_of_the_state_topic_ends_at_a_number_of_bytes() {
    const BYTES: usize = 200_000;
    /// This broker keeps 5 MiB of a partition.
    const COUNT: usize = 20;
    let mock = Mock::start(2);
    let value = "v".repeat(BYTES);
    let partition = PARTITION.try_into().unwrap();
    produce_with(&mock.client_config(), STATE, partition, &vec![("key", value.as_str()); COUNT]);
    let mut log = log(&mock);
    log.open(PARTITION, 0).unwrap();
    let (mut read, mut largest) = (Vec::new(), 0);
    while read.len() < COUNT {
        let items = log.read(LIMIT).unwrap();
        let blocks = items.into_iter().filter(|item| matches!(item, StateItem::Record { .. }));
        let blocks: Vec<_> = blocks.collect();
        largest = largest.max(blocks.len());
        read.extend(offsets(&blocks));
    }
    assert_eq!(read, (0..COUNT as Offset).collect::<Vec<_>>());
    assert!((2..=6).contains(&largest), "{largest} blocks of {BYTES} bytes in one read");
}
