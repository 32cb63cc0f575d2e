//! Runs a transaction with the same calls as the worker, and applies remedies as the worker does.

use std::collections::BTreeMap;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::Duration;

use dedupd::clock::monotonic;
use dedupd::kafka::{KafkaSink, KafkaSource, RawRecord, Settings};
use dedupd::ports::{
    CommitPosition, Failure, GroupEvent, GroupMember, ProducerLife, Record, Remedy, Sink, Source,
};

use crate::support::mock::{Mock, RAW};
use crate::support::records::produce_with;
use crate::support::wait_until;

/// Maximum duration of any call.
pub const WATCHDOG: Duration = Duration::from_secs(15);
/// How long the worker retries a call and waits for acknowledgements.
pub const PATIENCE: Duration = Duration::from_secs(8);
/// The timeout of one blocking call of the worker.
pub const SLICE: Duration = Duration::from_secs(2);

/// The calls of a transaction, in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Call {
    Prepare,
    Begin,
    Forward,
    Drain,
    PutState,
    SendOffsets,
    DrainState,
    Commit,
}

/// Runs `work` on its own thread and fails if it reports no progress in time. The message contains the last report.
pub fn watched(work: impl FnOnce(&Sender<String>) + Send + 'static) {
    let (sender, progress) = channel();
    let worker = thread::spawn(move || work(&sender));
    let mut last = "the start".to_owned();
    loop {
        match progress.recv_timeout(WATCHDOG) {
            Ok(report) => last = report,
            Err(RecvTimeoutError::Timeout) => panic!("no progress for {WATCHDOG:?} after: {last}"),
            Err(RecvTimeoutError::Disconnected) => break,
        }
    }
    if let Err(panic) = worker.join() {
        std::panic::resume_unwind(panic);
    }
}

/// Repeats a case until it returns a value; its argument is the number of the attempt. A case returns none when its member has
/// lost its partitions: the embedded broker removes a member that was frozen for longer than its session.
pub fn unless_lost<T>(case: impl FnMut(usize) -> Option<T>) -> T {
    (0..4).find_map(case).expect("an attempt in which the member does not lose its partitions")
}

/// Produces `count` records to a raw partition, with their offsets as keys.
pub fn fill(mock: &Mock, partition: i32, count: usize) {
    let keys: Vec<String> = (0..count).map(|offset| format!("{partition}-{offset}")).collect();
    let records: Vec<(&str, &str)> = keys.iter().map(|key| (key.as_str(), "value")).collect();
    produce_with(&mock.client_config(), RAW, partition, &records);
}

/// Joins the group and reads from the given offset of each partition.
pub fn joined(settings: &Settings, starts: &[(u32, u64)]) -> KafkaSource {
    let source = KafkaSource::subscribe(settings).expect("a member");
    let ids = wait_until("the first assignment", WATCHDOG, || {
        poll(&source, 1, Duration::from_millis(10)).expect("a quiet start");
        source.events().into_iter().next().map(|event| match event {
            GroupEvent::Assigned(ids) => ids,
            other => panic!("expected an assignment, got {other:?}"),
        })
    });
    let starts: BTreeMap<u32, u64> = starts.iter().copied().collect();
    let all: Vec<_> = ids.iter().map(|id| (*id, starts.get(id).copied())).collect();
    source.assign(&all).expect("the partitions are assigned");
    source
}

/// Polls for at most `most` records.
pub fn poll(source: &KafkaSource, most: usize, wait: Duration) -> Result<Vec<RawRecord<'_>>, Failure> {
    let mut records = Vec::new();
    source.poll(&mut records, most, wait).map(|()| records)
}

/// Reads the next `count` records.
pub fn read(source: &KafkaSource, count: usize) -> Vec<RawRecord<'_>> {
    let mut records = Vec::new();
    wait_until("records of the raw topic", WATCHDOG, || {
        let missing = count - records.len();
        records.extend(poll(source, missing, Duration::from_millis(100)).expect("records"));
        (records.len() == count).then_some(())
    });
    records
}

/// As [`transaction`], after one in which a connection was lost: another producer may have to begin it.
pub fn next_transaction(
    source: &KafkaSource,
    sink: &mut KafkaSink,
    records: &mut [RawRecord<'_>],
) -> Result<(), (Call, Failure)> {
    match transaction(source, sink, records) {
        Err((Call::Begin, failure)) if failure.remedy == Remedy::Renew => {
            renewed(sink).map_err(|failure| (Call::Prepare, failure))?;
            transaction(source, sink, records)
        }
        result => result,
    }
}

/// Runs one complete transaction. A failure is returned with the call that caused it.
pub fn transaction(
    source: &KafkaSource,
    sink: &mut KafkaSink,
    records: &mut [RawRecord<'_>],
) -> Result<(), (Call, Failure)> {
    let at = |call: Call| move |failure: Failure| (call, failure);
    sink.begin().map_err(at(Call::Begin))?;
    let mut next = BTreeMap::new();
    for record in records {
        sink.forward(record).map_err(at(Call::Forward))?;
        next.insert(record.coordinates().partition, record.coordinates().offset + 1);
    }
    sink.drain(PATIENCE).map_err(at(Call::Drain))?;
    for partition in next.keys() {
        sink.put_state(*partition, "v2;tx=test", b"block").map_err(at(Call::PutState))?;
    }
    let positions: Vec<CommitPosition> = next
        .iter()
        .map(|(partition, next)| CommitPosition {
            partition: *partition,
            next: *next,
            metadata: "v2;s=0".to_owned(),
        })
        .collect();
    patiently(|wait| sink.send_offsets(source, &positions, wait)).map_err(at(Call::SendOffsets))?;
    sink.drain(PATIENCE).map_err(at(Call::DrainState))?;
    patiently(|wait| sink.commit(wait)).map_err(at(Call::Commit))
}

/// Repeats a call while it returns [`Remedy::Retry`], for as long as the worker would.
pub fn patiently(mut call: impl FnMut(Duration) -> Result<(), Failure>) -> Result<(), Failure> {
    let start = monotonic();
    loop {
        match call(SLICE) {
            Err(failure) if failure.remedy == Remedy::Retry && start.elapsed() < PATIENCE => {
                thread::sleep(Duration::from_millis(50));
            }
            other => return other,
        }
    }
}

/// Replaces the producer by a new, initialized one.
pub fn renewed(sink: &mut KafkaSink) -> Result<(), Failure> {
    sink.discard();
    patiently(|wait| sink.prepare(wait))
}

/// Applies a remedy to the producer as the worker does. Afterwards a new transaction must be possible. If the
/// abort fails, the producer is replaced.
pub fn remedied(sink: &mut KafkaSink, remedy: Remedy) {
    let aborts = matches!(remedy, Remedy::Abort | Remedy::Rejoin);
    let aborted = aborts && patiently(|wait| sink.abort(wait)).is_ok();
    if !aborted {
        renewed(sink).expect("a new producer");
    }
}
