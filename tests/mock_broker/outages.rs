//! An unavailable broker: every call returns in time with a remedy that works. Also the latency of a commit.

use std::time::Duration;

use dedupd::clock::monotonic;
use dedupd::kafka::{KafkaSink, KafkaSource, RawRecord, Settings};
use dedupd::ports::{CommitPosition, ProducerLife, Remedy, Sink, WrittenEnds};

use crate::support::mock::Mock;
use crate::support::wait_until;
use crate::transactions::{
    SLICE, fill, joined, next_transaction, patiently, read, renewed, transaction, watched,
};

/// The time by which a call may exceed its limit.
const OVERRUN: Duration = Duration::from_secs(8);

/// A source at the first of `count` records of a raw partition, and an initialised producer.
fn connected(mock: &Mock, settings: Settings, partition: u32, count: usize) -> (KafkaSource, KafkaSink) {
    fill(mock, i32::try_from(partition).unwrap(), count);
    let source = joined(&settings, &[(partition, 0)]);
    let mut sink = KafkaSink::new(settings);
    renewed(&mut sink).expect("a producer");
    (source, sink)
}

fn position(partition: u32, next: u64) -> CommitPosition {
    CommitPosition { partition, next, metadata: "v2;s=0".to_owned() }
}

fn forward(sink: &mut KafkaSink, records: &mut [RawRecord<'_>]) {
    for record in records {
        sink.forward(record).expect("room in the queue");
    }
}

#[test]
fn a_commit_without_a_broker_can_be_retried_until_the_broker_returns() {
    watched(|progress| {
        let mock = Mock::start(4);
        let (source, mut sink) = connected(&mock, mock.settings("resumed"), 0, 3);
        let mut records = read(&source, 3);
        sink.begin().unwrap();
        forward(&mut sink, &mut records);
        sink.drain(SLICE).unwrap();
        patiently(|wait| sink.send_offsets(&source, &[position(0, 3)], wait)).unwrap();
        mock.down();
        for attempt in 0..2 {
            progress.send(format!("commit {attempt} without a broker")).unwrap();
            let began = monotonic();
            let failure = sink.commit(Duration::from_secs(1)).expect_err("no broker");
            assert_eq!(failure.remedy, Remedy::Retry, "{failure}");
            assert!(began.elapsed() < Duration::from_secs(1) + OVERRUN, "took {:?}", began.elapsed());
        }
        mock.up();
        progress.send("commit with the broker back".to_owned()).unwrap();
        patiently(|wait| sink.commit(wait)).expect("the same commit, resumed");
        progress.send("the next transaction".to_owned()).unwrap();
        next_transaction(&source, &mut sink, &mut records).expect("a transaction afterwards");
    });
}

/// Discards the open transaction, in time.
fn discard(sink: &mut KafkaSink) {
    let began = monotonic();
    sink.discard();
    assert!(began.elapsed() < OVERRUN, "discarding took {:?}", began.elapsed());
}

#[test]
fn an_abandoned_commit_only_requires_a_new_producer() {
    watched(|progress| {
        let mock = Mock::start(4);
        let (source, mut sink) = connected(&mock, mock.settings("abandoned"), 0, 3);
        let mut records = read(&source, 3);
        sink.begin().unwrap();
        forward(&mut sink, &mut records);
        mock.down();
        progress.send("offsets without a broker".to_owned()).unwrap();
        let began = monotonic();
        let failure = sink.send_offsets(&source, &[position(0, 3)], SLICE).expect_err("no broker");
        assert!(matches!(failure.remedy, Remedy::Retry | Remedy::Renew), "{failure}");
        assert!(began.elapsed() < SLICE + OVERRUN, "took {:?}", began.elapsed());
        progress.send("discard".to_owned()).unwrap();
        discard(&mut sink);
        progress.send("prepare without a broker".to_owned()).unwrap();
        for _ in 0..2 {
            let (began, limit) = (monotonic(), Duration::from_millis(500));
            let failure = sink.prepare(limit).expect_err("no broker");
            assert_eq!(failure.remedy, Remedy::Retry, "{failure}");
            assert!(began.elapsed() < limit + OVERRUN, "took {:?}", began.elapsed());
        }
        mock.up();
        progress.send("prepare with the broker back".to_owned()).unwrap();
        patiently(|wait| sink.prepare(wait)).expect("the same producer, resumed");
        transaction(&source, &mut sink, &mut records).expect("a transaction afterwards");
    });
}

/// The client's own call would wait until the coordinator returns (librdkafka#5456).
#[test]
fn sending_offsets_ends_in_time_without_the_group_coordinator() {
    watched(|progress| {
        let mock = Mock::with_group_apart(4);
        let settings = mock.settings("apart");
        mock.coordinates(&settings.transactional_id);
        let patience = settings.transaction_timeout;
        let (source, mut sink) = connected(&mock, settings, 0, 3);
        let mut records = read(&source, 3);
        transaction(&source, &mut sink, &mut records).expect("a transaction before");
        sink.begin().unwrap();
        forward(&mut sink, &mut records);
        sink.drain(SLICE).unwrap();
        mock.second_down();
        progress.send("offsets without the coordinator".to_owned()).unwrap();
        let unreachable = |sink: &mut KafkaSink| loop {
            let failure = sink.send_offsets(&source, &[position(0, 3)], SLICE).expect_err("no coordinator");
            if failure.remedy != Remedy::Retry {
                break failure;
            }
        };
        let mut began = monotonic();
        let mut failure = unreachable(&mut sink);
        // The embedded broker leaves a stopped broker out of its metadata. The client then removes the broker, and a
        // request that waits for it at that moment fails and requires an abort. The next call finds no coordinator.
        if failure.remedy == Remedy::Abort {
            patiently(|wait| sink.abort(wait)).expect("the transaction coordinator is available");
            if sink.begin().is_err() {
                // The transaction has ended after a connection was lost in it.
                renewed(&mut sink).expect("the transaction coordinator is available");
                sink.begin().unwrap();
            }
            forward(&mut sink, &mut records);
            sink.drain(SLICE).unwrap();
            progress.send("offsets after an abort".to_owned()).unwrap();
            began = monotonic();
            failure = unreachable(&mut sink);
        }
        assert_eq!(failure.remedy, Remedy::Renew, "{failure}");
        assert!(failure.what.contains("the coordinator of group"), "{failure}");
        assert!(began.elapsed() < patience + OVERRUN, "took {:?}", began.elapsed());
        sink.discard();
        mock.up();
        renewed(&mut sink).expect("a new producer");
        transaction(&source, &mut sink, &mut records).expect("a transaction afterwards");
    });
}

#[test]
fn a_drain_without_a_broker_ends_at_its_time_limit() {
    watched(|progress| {
        let mock = Mock::start(4);
        // The client gives up its records after this time, which is longer than the limit with its overrun.
        let settings = Settings { transaction_timeout: Duration::from_secs(40), ..mock.settings("drained") };
        let (source, mut sink) = connected(&mock, settings, 0, 3);
        let mut records = read(&source, 3);
        mock.down();
        sink.begin().unwrap();
        forward(&mut sink, &mut records);
        progress.send("drain without a broker".to_owned()).unwrap();
        let (began, limit) = (monotonic(), Duration::from_secs(1));
        let failure = sink.drain(limit).expect_err("no acknowledgement");
        assert_eq!(failure.remedy, Remedy::Renew, "{failure}");
        for words in ["were not acknowledged within 1s", "socket.request.max.bytes"] {
            assert!(failure.what.contains(words), "{failure}");
        }
        assert!(began.elapsed() < limit + OVERRUN, "took {:?}", began.elapsed());
        progress.send("discard".to_owned()).unwrap();
        discard(&mut sink);
        progress.send("a transaction with the broker back".to_owned()).unwrap();
        mock.up();
        renewed(&mut sink).expect("a new producer");
        transaction(&source, &mut sink, &mut records).expect("a transaction afterwards");
    });
}

#[test]
fn an_abort_right_after_sending_takes_less_than_a_second() {
    watched(|progress| {
        let mock = Mock::start(4);
        let (source, mut sink) = connected(&mock, mock.settings("aborted"), 0, 100);
        let mut records = read(&source, 100);
        let aborts = (0..5).map(|round| {
            progress.send(format!("abort {round}")).unwrap();
            sink.begin().unwrap();
            forward(&mut sink, &mut records);
            let began = monotonic();
            sink.abort(Duration::from_secs(5)).expect("an abort");
            let took = began.elapsed();
            transaction(&source, &mut sink, &mut records).expect("a transaction afterwards");
            // Each abort is the first one of its producer.
            renewed(&mut sink).expect("a producer");
            took
        });
        // A stall of the machine delays single ones.
        let fastest = aborts.min().expect("some aborts");
        assert!(fastest < Duration::from_secs(1), "the fastest abort took {fastest:?}");
    });
}

/// The client's own flush waits in steps of 100 ms. Each commit that relies on it takes that long, also the fastest one.
#[test]
fn a_commit_does_not_wait_in_steps_of_100_ms() {
    watched(|_| {
        let mock = Mock::start(4);
        let (source, mut sink) = connected(&mock, mock.settings("quick"), 0, 20);
        let mut records = read(&source, 20);
        let mut took = Vec::new();
        for _ in 0..20 {
            let began = monotonic();
            transaction(&source, &mut sink, &mut records).expect("a transaction");
            took.push(began.elapsed());
        }
        took.sort();
        eprintln!(
            "transactions of 20 records: fastest {:?}, p50 {:?}, longest {:?}",
            took[0], took[10], took[19]
        );
        assert!(took[0] < Duration::from_millis(60), "the fastest of 20 transactions took {:?}", took[0]);
    });
}

/// The sink derives the ends of its topics from acknowledgements.
#[test]
fn topic_ends_follow_from_acknowledged_records() {
    watched(|_| {
        let mock = Mock::start(4);
        let (source, mut sink) = connected(&mock, mock.settings("ends"), 1, 3);
        let mut records = read(&source, 3);
        assert_eq!((sink.clean_end(1), sink.state_end(1)), (None, None));
        for round in 1..=2 {
            transaction(&source, &mut sink, &mut records).expect("a transaction");
            let ends = wait_until("acknowledgements", SLICE, || Some((sink.clean_end(1), sink.state_end(1))));
            assert_eq!(ends, (Some(round * 3), Some(round)));
        }
        assert_eq!((sink.clean_end(0), sink.state_end(3)), (None, None));
    });
}
