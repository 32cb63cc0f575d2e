//! One transaction, call by call, as the worker makes it, and the remedies as the worker applies them.

use std::collections::BTreeMap;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::Duration;

use dedupd::clock::monotonic;
use dedupd::kafka::{KafkaSink, KafkaSource, RawRecord, Settings};
use dedupd::ports::{Failure, GroupEvent, Position, Record, Remedy, Sink, Source};

use crate::support::mock::{Mock, RAW};
use crate::support::records::produce_with;
use crate::support::wait_until;

/// No call may take longer, whatever the broker answers.
pub const WATCHDOG: Duration = Duration::from_secs(15);
/// How long the worker goes on with a retriable call, and waits for acknowledgements.
pub const PATIENCE: Duration = Duration::from_secs(8);
/// The worker's slice of one blocking call.
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

/// Runs `work` on a thread of its own and fails, naming the last thing told, when it stands still.
pub fn watched(work: impl FnOnce(&Sender<String>) + Send + 'static) {
    let (tell, told) = channel();
    let worker = thread::spawn(move || work(&tell));
    let mut last = "the start".to_owned();
    loop {
        match told.recv_timeout(WATCHDOG) {
            Ok(now) => last = now,
            Err(RecvTimeoutError::Timeout) => panic!("stood still for {WATCHDOG:?} after: {last}"),
            Err(RecvTimeoutError::Disconnected) => break,
        }
    }
    if let Err(panic) = worker.join() {
        std::panic::resume_unwind(panic);
    }
}

/// `count` records in a raw partition, keyed by their offset.
pub fn fill(mock: &Mock, partition: i32, count: usize) {
    let keys: Vec<String> = (0..count).map(|offset| format!("{partition}-{offset}")).collect();
    let records: Vec<(&str, &str)> = keys.iter().map(|key| (key.as_str(), "value")).collect();
    produce_with(&mock.client_config(), RAW, partition, &records);
}

/// Joins the group and reads from the given offset of each partition.
pub fn joined(settings: &Settings, starts: &[(u32, u64)]) -> KafkaSource {
    let source = KafkaSource::subscribe(settings).expect("a member");
    let ids = wait_until("the first assignment", WATCHDOG, || {
        source.poll(Duration::from_millis(10)).expect("a quiet start");
        source.events().into_iter().next().map(|event| match event {
            GroupEvent::Assigned(ids) => ids,
            other => panic!("expected an assignment, got {other:?}"),
        })
    });
    let starts: BTreeMap<u32, u64> = starts.iter().copied().collect();
    let all: Vec<_> = ids.iter().map(|id| (*id, starts.get(id).copied())).collect();
    source.assign(&all).expect("the partitions are ours");
    source
}

/// The next `count` records.
pub fn read(source: &KafkaSource, count: usize) -> Vec<RawRecord<'_>> {
    let mut records = Vec::new();
    wait_until("records of the raw topic", WATCHDOG, || {
        records.extend(source.poll(Duration::from_millis(100)).expect("a record"));
        (records.len() == count).then_some(())
    });
    records
}

/// Runs one whole transaction; on a failure says which call it came from.
pub fn transaction(
    source: &KafkaSource,
    sink: &mut KafkaSink,
    records: &[RawRecord<'_>],
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
        sink.put_state(*partition, "v1;tx=test", b"block").map_err(at(Call::PutState))?;
    }
    let positions: Vec<Position> = next
        .iter()
        .map(|(partition, next)| Position {
            partition: *partition,
            next: *next,
            metadata: "v1;s=0".to_owned(),
        })
        .collect();
    patiently(|wait| sink.send_offsets(source, &positions, wait)).map_err(at(Call::SendOffsets))?;
    sink.drain(PATIENCE).map_err(at(Call::DrainState))?;
    patiently(|wait| sink.commit(wait)).map_err(at(Call::Commit))
}

/// The same call again while it says [`Remedy::Retry`], for as long as the worker would.
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

/// A producer that is ready, whatever there was before.
pub fn renewed(sink: &mut KafkaSink) -> Result<(), Failure> {
    sink.discard();
    patiently(|wait| sink.prepare(wait))
}

/// What the worker does about a failure as far as the producer is concerned; afterwards a new transaction
/// must be possible. A failure of the abort itself costs the producer, as in the worker.
pub fn remedied(sink: &mut KafkaSink, remedy: Remedy) {
    let aborts = matches!(remedy, Remedy::Abort | Remedy::Rejoin);
    let aborted = aborts && patiently(|wait| sink.abort(wait)).is_ok();
    if !aborted {
        renewed(sink).expect("a new producer");
    }
}
