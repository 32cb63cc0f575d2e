//! A table of errors. Each error is injected once. The failing call must return the right remedy, and a new
//! transaction must succeed after the remedy.

use std::sync::mpsc::Sender;
use std::time::Duration;

use dedupd::clock::monotonic;
use dedupd::kafka::{KafkaSink, KafkaSource, RawRecord};
use dedupd::ports::{
    CommitPosition, Failure, LogId, OutputTopic, ProducerLife, RejectedRecords, Remedy, Sink,
};
use rdkafka::types::{RDKafkaApiKey as Api, RDKafkaErrorCode as Code};

use crate::support::mock::{DEAD, Mock};
use crate::support::records::{Record, produce_with, read_with};
use crate::support::{Isolation, wait_until};
use crate::transactions::{
    Call, PATIENCE, fill, joined, next_transaction, read, remedied, renewed, transaction, watched,
};

/// The expected effect of an injected error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Seen {
    /// The client retries internally, and no call fails.
    Hidden,
    /// This call fails with this remedy.
    At(Call, Remedy),
}

use Call::{Commit, Drain, Prepare, SendOffsets};
use Remedy::{Abort, Fenced, Rejoin, Renew, Stop};
use Seen::{At, Hidden};

/// Errors during a transaction. librdkafka has three error flags (retriable, abort, fatal). The rows cover all of
/// them, and errors without a flag, which are reported per record.
const ROWS: &[(Api, Code, Seen)] = &[
    (Api::TxnOffsetCommit, Code::IllegalGeneration, At(SendOffsets, Abort)),
    (Api::TxnOffsetCommit, Code::UnknownMemberId, At(SendOffsets, Abort)),
    (Api::TxnOffsetCommit, Code::RebalanceInProgress, At(SendOffsets, Abort)),
    (Api::TxnOffsetCommit, Code::OffsetMetadataTooLarge, At(SendOffsets, Abort)),
    (Api::TxnOffsetCommit, Code::FencedInstanceId, At(SendOffsets, Rejoin)),
    (Api::TxnOffsetCommit, Code::GroupAuthorizationFailed, At(SendOffsets, Stop)),
    (Api::TxnOffsetCommit, Code::TransactionalIdAuthorizationFailed, At(SendOffsets, Stop)),
    (Api::TxnOffsetCommit, Code::ProducerFenced, At(SendOffsets, Fenced)),
    (Api::TxnOffsetCommit, Code::InvalidProducerEpoch, At(SendOffsets, Fenced)),
    (Api::TxnOffsetCommit, Code::InvalidTransactionalState, At(SendOffsets, Renew)),
    (Api::TxnOffsetCommit, Code::ConcurrentTransactions, Hidden),
    (Api::TxnOffsetCommit, Code::CoordinatorLoadInProgress, Hidden),
    (Api::TxnOffsetCommit, Code::NotCoordinator, Hidden),
    (Api::AddOffsetsToTxn, Code::InvalidProducerEpoch, At(SendOffsets, Fenced)),
    (Api::AddOffsetsToTxn, Code::InvalidTransactionalState, At(SendOffsets, Renew)),
    (Api::AddOffsetsToTxn, Code::GroupAuthorizationFailed, At(SendOffsets, Stop)),
    (Api::AddOffsetsToTxn, Code::ConcurrentTransactions, Hidden),
    (Api::AddOffsetsToTxn, Code::NotCoordinator, Hidden),
    (Api::AddPartitionsToTxn, Code::InvalidProducerEpoch, At(Drain, Fenced)),
    (Api::AddPartitionsToTxn, Code::ProducerFenced, At(Drain, Fenced)),
    (Api::AddPartitionsToTxn, Code::InvalidTransactionalState, At(Drain, Renew)),
    (Api::AddPartitionsToTxn, Code::TopicAuthorizationFailed, At(Drain, Stop)),
    (Api::AddPartitionsToTxn, Code::TransactionalIdAuthorizationFailed, At(Drain, Stop)),
    (Api::AddPartitionsToTxn, Code::UnknownTopicOrPartition, Hidden),
    (Api::AddPartitionsToTxn, Code::ConcurrentTransactions, Hidden),
    (Api::AddPartitionsToTxn, Code::CoordinatorLoadInProgress, Hidden),
    (Api::AddPartitionsToTxn, Code::NotCoordinator, Hidden),
    (Api::Produce, Code::InvalidProducerEpoch, At(Drain, Fenced)),
    (Api::Produce, Code::InvalidTransactionalState, At(Drain, Abort)),
    (Api::Produce, Code::UnknownProducerId, At(Drain, Abort)),
    (Api::Produce, Code::OutOfOrderSequenceNumber, At(Drain, Abort)),
    (Api::Produce, Code::MessageSizeTooLarge, At(Drain, Abort)),
    (Api::Produce, Code::InvalidTimestamp, At(Drain, Abort)),
    (Api::Produce, Code::InvalidRecord, At(Drain, Abort)),
    (Api::Produce, Code::TopicAuthorizationFailed, At(Drain, Stop)),
    (Api::Produce, Code::ClusterAuthorizationFailed, At(Drain, Stop)),
    (Api::Produce, Code::NotEnoughReplicas, Hidden),
    (Api::Produce, Code::NotLeaderForPartition, Hidden),
    (Api::Produce, Code::RequestTimedOut, Hidden),
    (Api::EndTxn, Code::InvalidProducerEpoch, At(Commit, Fenced)),
    (Api::EndTxn, Code::ProducerFenced, At(Commit, Fenced)),
    (Api::EndTxn, Code::InvalidTransactionalState, At(Commit, Renew)),
    (Api::EndTxn, Code::TransactionalIdAuthorizationFailed, At(Commit, Stop)),
    (Api::EndTxn, Code::InvalidProducerIdMapping, At(Commit, Abort)),
    (Api::EndTxn, Code::Unknown, At(Commit, Abort)),
    (Api::EndTxn, Code::RequestTimedOut, At(Commit, Abort)),
    (Api::EndTxn, Code::ConcurrentTransactions, Hidden),
    (Api::EndTxn, Code::CoordinatorLoadInProgress, Hidden),
    (Api::EndTxn, Code::NotCoordinator, Hidden),
];

/// Errors during the initialization of a producer.
const PREPARE_ROWS: &[(Api, Code, Seen)] = &[
    (Api::InitProducerId, Code::TransactionalIdAuthorizationFailed, At(Prepare, Stop)),
    (Api::InitProducerId, Code::ClusterAuthorizationFailed, At(Prepare, Stop)),
    (Api::InitProducerId, Code::InvalidTransactionTimeout, At(Prepare, Stop)),
    (Api::InitProducerId, Code::ProducerFenced, At(Prepare, Fenced)),
    (Api::InitProducerId, Code::ConcurrentTransactions, Hidden),
    (Api::InitProducerId, Code::CoordinatorLoadInProgress, Hidden),
    (Api::InitProducerId, Code::NotCoordinator, Hidden),
    (Api::FindCoordinator, Code::TransactionalIdAuthorizationFailed, At(Prepare, Stop)),
    (Api::FindCoordinator, Code::CoordinatorNotAvailable, Hidden),
];

/// The raw records that every transaction of the table forwards.
const FIRST: u64 = 3;
const COUNT: usize = 5;
const PARTITION: u32 = 2;

struct Bench<'a> {
    mock: &'a Mock,
    source: &'a KafkaSource,
    sink: KafkaSink,
    records: Vec<RawRecord<'a>>,
    progress: &'a Sender<String>,
}

impl Bench<'_> {
    /// Injects an error, runs a transaction, applies the remedy and runs another transaction. Returns a mismatch.
    fn row(&mut self, (api, code, expected): (Api, Code, Seen)) -> Option<String> {
        let name = format!("{api:?} returns {code:?}");
        self.progress.send(name.clone()).unwrap();
        let began = monotonic();
        self.mock.inject(api, &[code]);
        let outcome = if matches!(api, Api::InitProducerId | Api::FindCoordinator) {
            renewed(&mut self.sink).map_err(|failure| (Prepare, failure))
        } else {
            transaction(self.source, &mut self.sink, &mut self.records)
        };
        self.mock.clear(api);
        let took = began.elapsed();
        let (seen, failure) = match outcome {
            Ok(()) => (Hidden, None),
            Err((call, failure)) => (At(call, failure.remedy), Some(failure)),
        };
        let text = failure.as_ref().map_or_else(String::new, |failure| failure.what.clone());
        self.progress.send(format!("{name}: {seen:?}, {text}")).unwrap();
        if let Some(failure) = &failure {
            remedied(&mut self.sink, failure.remedy);
        }
        self.progress.send(format!("the remedy for: {name}")).unwrap();
        let second = next_transaction(self.source, &mut self.sink, &mut self.records);
        let wrong_rejection = wrong_rejection(code, failure.as_ref());
        eprintln!("{name}: {seen:?} after {took:?}: {text}");
        if seen != expected {
            return Some(format!("{name}: expected {expected:?}, got {seen:?}: {text}"));
        }
        if let Err((call, failure)) = second {
            remedied(&mut self.sink, Renew);
            return Some(format!("{name}: after its remedy {call:?} failed: {failure}"));
        }
        wrong_rejection.map(|wrong| format!("{name}: {wrong}"))
    }
}

/// Errors caused by records must contain the range of the rejected batch, all others none. The batch starts with
/// the first record. The client determines its length.
fn wrong_rejection(code: Code, failure: Option<&Failure>) -> Option<String> {
    let is_rejection =
        matches!(code, Code::MessageSizeTooLarge | Code::InvalidTimestamp | Code::InvalidRecord);
    let all = FIRST..FIRST + COUNT as u64;
    let seen = failure.and_then(|failure| failure.rejected);
    let right = match seen {
        None => !is_rejection,
        Some(RejectedRecords { partition, first, last, .. }) => {
            is_rejection && partition == PARTITION && first == FIRST && all.contains(&last)
        }
    };
    (!right).then(|| format!("rejected records are {seen:?}"))
}

fn run_table(rows: &'static [(Api, Code, Seen)]) {
    watched(move |progress| {
        let mock = Mock::start(4);
        let mut settings = mock.settings("table");
        // The records of one transaction are sent as one batch, so that the broker rejects all of them.
        settings.properties.push(("linger.ms".to_owned(), "20".to_owned()));
        fill(&mock, i32::try_from(PARTITION).unwrap(), 10);
        let source = joined(&settings, &[(PARTITION, FIRST)]);
        let mut sink = KafkaSink::new(settings);
        renewed(&mut sink).expect("a producer");
        let records = read(&source, COUNT);
        let mut bench = Bench { mock: &mock, source: &source, sink, records, progress };
        let wrong: Vec<String> = rows.iter().filter_map(|row| bench.row(*row)).collect();
        assert!(wrong.is_empty(), "\n{}\n", wrong.join("\n"));
    });
}

#[test]
fn every_error_of_a_transaction_has_a_remedy_that_works() {
    run_table(ROWS);
}

#[test]
fn every_error_of_a_producer_initialization_has_a_remedy_that_works() {
    run_table(PREPARE_ROWS);
}

#[test]
fn errors_without_flags_require_an_abort_or_a_new_producer() {
    watched(|progress| {
        let mock = Mock::start(4);
        mock.create_topic("narrow", 1);
        let settings = mock.settings("flags");
        fill(&mock, 2, 10);
        let source = joined(&settings, &[(2, 0)]);
        let mut records = read(&source, 2);
        let mut sink = KafkaSink::new(settings.clone());
        renewed(&mut sink).expect("a producer");

        progress.send("MessageProduction: sending outside of a transaction".to_owned()).unwrap();
        let failure = sink.forward(&mut records[0]).expect_err("there is no transaction");
        assert_eq!(failure.remedy, Abort, "{failure}");
        remedied(&mut sink, failure.remedy);
        transaction(&source, &mut sink, &mut records).expect("a transaction after the remedy");

        progress
            .send("MessageProduction: a partition that the clean topic does not have".to_owned())
            .unwrap();
        let narrow = dedupd::kafka::Settings { clean: "narrow".to_owned(), ..settings };
        let mut sink = KafkaSink::new(narrow);
        renewed(&mut sink).expect("a producer");
        for metadata in ["unknown", "cached"] {
            let (call, failure) =
                transaction(&source, &mut sink, &mut records).expect_err("no such partition");
            assert!(matches!(call, Call::Forward | Drain), "{metadata}: {call:?}: {failure}");
            assert_eq!(failure.remedy, Abort, "{metadata}: {failure}");
            remedied(&mut sink, failure.remedy);
        }

        progress.send("Flush: committing what the broker has not acknowledged".to_owned()).unwrap();
        let mut sink = KafkaSink::new(mock.settings("flush"));
        renewed(&mut sink).expect("a producer");
        sink.begin().unwrap();
        mock.down();
        sink.forward(&mut records[0]).expect("room in the queue");
        let failure = sink.commit(Duration::from_millis(500)).expect_err("no broker");
        assert!(failure.what.contains("Flush"), "{failure}");
        assert_eq!(failure.remedy, Renew, "{failure}");
        mock.up();
        remedied(&mut sink, failure.remedy);
        transaction(&source, &mut sink, &mut records).expect("a transaction after the remedy");
    });
}

/// Whichever call reports first that the transaction has to be aborted, its failure contains the rejected record.
#[test]
fn every_call_after_a_rejection_names_the_rejected_record() {
    watched(|progress| {
        let mock = Mock::start(4);
        let settings = mock.settings("after");
        fill(&mock, 2, 10);
        let source = joined(&settings, &[(PARTITION, FIRST)]);
        let mut records = read(&source, 2);
        let mut sink = KafkaSink::new(settings);
        renewed(&mut sink).expect("a producer");
        let (partition, next, metadata) = (PARTITION, FIRST + 1, "v2;s=0".to_owned());
        let positions = [CommitPosition { partition, next, metadata }];
        for call in [Call::Forward, Call::PutState, SendOffsets, Drain, Commit] {
            progress.send(format!("{call:?}")).unwrap();
            mock.inject(Api::Produce, &[Code::MessageSizeTooLarge]);
            sink.begin().unwrap();
            sink.forward(&mut records[0]).expect("room in the queue");
            // The client reports the failure some time after the broker.
            let failure = wait_until("the failure", PATIENCE, || {
                let done = match call {
                    Call::Forward => sink.forward(&mut records[1]),
                    Call::PutState => {
                        sink.drain(PATIENCE).unwrap_err();
                        sink.put_state(PARTITION, "k", b"block")
                    }
                    SendOffsets => sink.send_offsets(&source, &positions, PATIENCE),
                    Drain => sink.drain(PATIENCE),
                    _ => sink.commit(PATIENCE),
                };
                done.err()
            });
            mock.clear(Api::Produce);
            let rejected = failure.rejected.unwrap_or_else(|| panic!("{call:?}: {failure}"));
            assert_eq!((rejected.by, rejected.first), (OutputTopic::Clean, FIRST), "{call:?}: {failure}");
            assert!(failure.what.contains("max.message.bytes"), "{call:?}: {failure}");
            remedied(&mut sink, failure.remedy);
        }
        transaction(&source, &mut sink, &mut records).expect("a transaction after the remedy");
    });
}

/// After a fatal error the client drops its records, and reports none of them as failed.
#[test]
fn records_that_the_client_drops_do_not_count_as_copied() {
    watched(|progress| {
        let mock = Mock::start(1);
        produce_with(&mock.client_config(), DEAD, 0, &[("a", "1"), ("b", "2")]);
        let log = LogId { topic: OutputTopic::DeadLetter, partition: 0 };
        let mut sink = KafkaSink::new(mock.settings("copies"));

        progress.send("a copy without the permission".to_owned()).unwrap();
        mock.inject(Api::InitProducerId, &[Code::ClusterAuthorizationFailed]);
        let failure = sink.copy_aside(log, &[0, 1], PATIENCE).expect_err("nothing can be written");
        mock.clear(Api::InitProducerId);
        assert_eq!(failure.remedy, Stop, "{failure}");
        assert!(failure.what.contains("IdempotentWrite permission on the cluster"), "{failure}");

        progress.send("a copy with the permission".to_owned()).unwrap();
        sink.copy_aside(log, &[0, 1], PATIENCE).expect("copies");
        let seen = read_with(&mock.client_config(), DEAD, Isolation::Committed);
        let values: Vec<String> = seen.iter().map(Record::text).collect();
        assert_eq!(values, ["1", "2", "1", "2"]);
        let is_outside = |record: &Record| record.headers.iter().any(|(name, _)| name == "dedupd.outside");
        assert!(seen[2..].iter().all(is_outside), "{seen:?}");
    });
}

#[test]
fn a_property_of_the_user_replaces_the_size_of_the_producers_queue() {
    let mock = Mock::start(1);
    let mut settings = mock.settings("queue");
    let size =
        |settings: &dedupd::kafka::Settings, key: &str| settings.producer("id").get(key).map(str::to_owned);
    assert_eq!(size(&settings, "queue.buffering.max.messages").as_deref(), Some("200000"));
    settings.properties.push(("queue.buffering.max.messages".to_owned(), "7".to_owned()));
    assert_eq!(size(&settings, "queue.buffering.max.messages").as_deref(), Some("7"));
    // Bytes are counted by dedupd.
    assert_eq!(size(&settings, "queue.buffering.max.kbytes").as_deref(), Some("2147483647"));
}
