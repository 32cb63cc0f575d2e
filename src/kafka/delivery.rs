//! What a producer reports: end offsets of the written partitions, the first failure of a transaction, and how transactions ended.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, OnceLock};

use rdkafka::config::RDKafkaLogLevel;
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::message::{DeliveryResult, Message};
use rdkafka::producer::ProducerContext;
use rdkafka::{ClientContext, Statistics, types::RDKafkaErrorCode as Code};

use super::endings::Endings;
use super::error;
use super::log_context::LogContext;
use super::partitions::partition_id;
use super::statistics::{self, ClientUse};
use crate::dedupe::{Coordinates, Offset, PartitionId};
use crate::locked::Locked;
use crate::ports::{Failure, LogId, OutputTopic, RejectedRecords, Remedy};

/// The topics, in the order of their numbers in the opaque value.
const TOPICS: [OutputTopic; 4] =
    [OutputTopic::Clean, OutputTopic::State, OutputTopic::DeadLetter, OutputTopic::Duplicates];
const OFFSET_BITS: u32 = 61;

/// librdkafka's per-message opaque value, so that a delivery report needs no allocation: the topic that a record is written
/// to in the three highest bits, and in the other bits the raw offset, or for a side topic the place of the record among those that the
/// transaction diverts. The topic is `None` for a record that is written only to get a transaction marker into the partition.
pub(super) fn opaque(topic: Option<OutputTopic>, offset: Offset) -> usize {
    let number = topic.map_or(TOPICS.len() as u64, |topic| topic as u64);
    usize::try_from((number << OFFSET_BITS) | (offset & ((1 << OFFSET_BITS) - 1))).unwrap_or(usize::MAX)
}

fn from_opaque(opaque: usize) -> (Option<OutputTopic>, Offset) {
    (TOPICS.get(opaque >> OFFSET_BITS).copied(), opaque as u64 & ((1 << OFFSET_BITS) - 1))
}

/// The first failed delivery of a transaction. Its offset range also covers later failures for the same topic, partition and
/// error code.
#[derive(Debug, Clone)]
struct FailedDelivery {
    code: RDKafkaErrorCode,
    topic: Option<OutputTopic>,
    records: RejectedRecords,
}

/// One past an acknowledged offset of each partition, the highest or the lowest; 0 = none. The raw topic may grow while delivery reports
/// arrive, so row `n` holds 2^n partitions and is allocated with the first of them. No row ever moves.
#[derive(Default)]
struct AckedOffsets([OnceLock<Box<[AtomicU64]>>; u32::BITS as usize]);

impl AckedOffsets {
    fn slot(&self, partition: PartitionId) -> Option<&AtomicU64> {
        let position = partition.checked_add(1)?;
        let row = position.ilog2();
        let slots = self.0.get(row as usize)?;
        let slots = slots.get_or_init(|| (0..1u32 << row).map(|_| AtomicU64::new(0)).collect());
        slots.get((position - (1 << row)) as usize)
    }

    /// `keeps`: which of two acknowledged offsets counts.
    fn add(&self, partition: i32, offset: i64, keeps: fn(u64, u64) -> u64) {
        let slot = PartitionId::try_from(partition).ok().and_then(|partition| self.slot(partition));
        if let (Some(slot), Ok(offset)) = (slot, u64::try_from(offset)) {
            let kept = |end: u64| Some(if end == 0 { offset + 1 } else { keeps(end, offset + 1) });
            slot.fetch_update(Ordering::Relaxed, Ordering::Relaxed, kept).ok();
        }
    }

    /// Clears the offsets of the previous transaction.
    fn reset(&self) {
        self.0.iter().filter_map(OnceLock::get).flatten().for_each(|end| end.store(0, Ordering::Relaxed));
    }

    fn get(&self, partition: PartitionId) -> Option<Offset> {
        let end = self.slot(partition)?.load(Ordering::Acquire);
        (end > 0).then_some(end)
    }
}

/// Collects delivery reports. The worker reads the result after it has drained the producer.
#[derive(Default)]
pub(super) struct Deliveries {
    /// By the number of the topic.
    acked: [AckedOffsets; TOPICS.len()],
    failed: Mutex<Option<FailedDelivery>>,
    dropped: AtomicBool,
    /// Bytes of keys and values in the client's queue, and their limit.
    queued: AtomicUsize,
    most_queued: usize,
    pub endings: Endings,
}

impl Deliveries {
    /// For a queue of at most this many bytes. It may have one record that is larger.
    pub(super) fn new(most_queued: usize) -> Self {
        Self { most_queued, ..Self::default() }
    }

    fn acked(&self, topic: OutputTopic) -> &AckedOffsets {
        let [clean, state, dead_letter, duplicates] = &self.acked;
        match topic {
            OutputTopic::Clean => clean,
            OutputTopic::State => state,
            OutputTopic::DeadLetter => dead_letter,
            OutputTopic::Duplicates => duplicates,
        }
    }

    /// One past the highest offset of a partition that was acknowledged in this transaction.
    pub(super) fn end(&self, log: LogId) -> Option<Offset> {
        self.acked(log.topic).get(log.partition)
    }

    /// The lowest offset of a side partition that was acknowledged in this transaction.
    pub(super) fn start(&self, log: LogId) -> Option<Offset> {
        self.acked(log.topic).get(log.partition).map(|after| after - 1)
    }

    /// Clears the ends and failures of the previous transaction.
    pub(super) fn reset(&self) {
        self.acked.iter().for_each(AckedOffsets::reset);
        self.dropped.store(false, Ordering::Release);
        *self.failed.locked() = None;
    }

    /// The delivery failure of this transaction, if any. `name` maps a topic to its name. `diverted` has the raw records of those in side
    /// topics.
    pub(super) fn failure<'a>(
        &self,
        name: impl FnOnce(Option<OutputTopic>) -> &'a str,
        diverted: &[Coordinates],
    ) -> Option<Failure> {
        let failed = self.failed.locked().clone()?;
        let (name, code) = (name(failed.topic), failed.code);
        Some(match failed.topic.filter(|_| error::is_record_error(code)) {
            Some(OutputTopic::Clean) => error::rejected(name, code, failed.records),
            Some(OutputTopic::State) => error::rejected_state(name, code),
            Some(OutputTopic::DeadLetter | OutputTopic::Duplicates) => {
                let place = usize::try_from(failed.records.first).unwrap_or(usize::MAX);
                match diverted.get(place) {
                    Some(Coordinates { partition, offset }) => {
                        let (partition, first, last) = (*partition, *offset, *offset);
                        error::rejected(
                            name,
                            code,
                            RejectedRecords { partition, first, last, ..failed.records },
                        )
                    }
                    None => Failure::new(Remedy::Stop, error::rejection(name, code)),
                }
            }
            None => error::failure(&format!("writing to topic {name}"), &KafkaError::MessageProduction(code)),
        })
    }

    /// Counts a record of this size into the client's queue; false when the queue would exceed the limit. The client's own limit would never
    /// accept a record above it.
    pub(super) fn enqueue(&self, bytes: usize) -> bool {
        let queued = self.queued.load(Ordering::Acquire);
        let has_room = queued == 0 || queued.saturating_add(bytes) <= self.most_queued;
        if has_room {
            self.queued.fetch_add(bytes, Ordering::AcqRel);
        }
        has_room
    }

    /// The record has left the queue, or was not accepted.
    pub(super) fn dequeue(&self, bytes: usize) {
        self.queued.fetch_sub(bytes, Ordering::AcqRel);
    }

    /// Whether the client dropped records of this transaction without sending them.
    pub(super) fn dropped_records(&self) -> bool {
        self.dropped.load(Ordering::Acquire)
    }

    /// Whether a record of this transaction was not delivered.
    pub(super) fn has_failed(&self) -> bool {
        self.failed.locked().is_some()
    }

    /// Stores that a record was rejected.
    pub(super) fn fail(&self, code: Code, opaque: usize, partition: i32) {
        let (topic, offset) = from_opaque(opaque);
        // Records are purged because other records failed earlier; they are not the cause.
        if matches!(code, Code::PurgeQueue | Code::PurgeInflight) {
            self.dropped.store(true, Ordering::Release);
            return;
        }
        let partition = partition_id(partition);
        let mut failed = self.failed.locked();
        match failed.as_mut() {
            None => {
                let by = topic.unwrap_or(OutputTopic::Clean);
                let records = RejectedRecords { by, partition, first: offset, last: offset };
                *failed = Some(FailedDelivery { code, topic, records });
            }
            Some(first)
                if first.code == code && first.topic == topic && first.records.partition == partition =>
            {
                first.records.first = first.records.first.min(offset);
                first.records.last = first.records.last.max(offset);
            }
            Some(_) => {}
        }
    }
}

impl ClientContext for Deliveries {
    fn log(&self, level: RDKafkaLogLevel, facility: &str, message: &str) {
        self.endings.record(facility, message);
        LogContext.log(level, facility, message);
    }

    fn error(&self, error: KafkaError, reason: &str) {
        LogContext.error(error, reason);
    }

    fn stats(&self, report: Statistics) {
        statistics::note(ClientUse::Producer, &report);
    }
}

impl ProducerContext for Deliveries {
    type DeliveryOpaque = usize;

    fn delivery(&self, result: &DeliveryResult<'_>, opaque: usize) {
        let topic = from_opaque(opaque).0;
        let (Ok(sent) | Err((_, sent))) = result;
        if topic.is_some() {
            self.dequeue(sent.key_len() + sent.payload_len());
        }
        match result {
            Ok(message) => {
                let (partition, offset) = (message.partition(), message.offset());
                if let Some(topic) = topic {
                    let is_side = matches!(topic, OutputTopic::DeadLetter | OutputTopic::Duplicates);
                    self.acked(topic).add(partition, offset, if is_side { u64::min } else { u64::max });
                }
            }
            Err((KafkaError::MessageProduction(code), message)) => {
                self.fail(*code, opaque, message.partition());
            }
            Err((_, message)) => self.fail(Code::Fail, opaque, message.partition()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ports::Remedy;

    #[test]
    fn topic_and_offset_round_trip_through_the_opaque_value() {
        for topic in TOPICS.map(Some).into_iter().chain([None]) {
            for offset in [0, 1, (1 << OFFSET_BITS) - 1] {
                assert_eq!(from_opaque(opaque(topic, offset)), (topic, offset));
            }
        }
    }

    #[test]
    fn each_partition_has_its_own_end() {
        let ends = AckedOffsets::default();
        let partitions: Vec<i32> = (0..70).chain([4_095, 4_096, 100_000]).collect();
        for partition in &partitions {
            ends.add(*partition, i64::from(*partition) * 10, u64::max);
        }
        ends.add(-1, 5, u64::max);
        for partition in partitions {
            let partition = u32::try_from(partition).unwrap();
            assert_eq!(ends.get(partition), Some(u64::from(partition) * 10 + 1));
        }
        assert_eq!(ends.get(71), None);
        ends.reset();
        assert_eq!((ends.get(3), ends.get(4_095)), (None, None));
        for offset in [7, 9, 5, 6] {
            ends.add(3, offset, u64::min);
        }
        assert_eq!(ends.get(3), Some(6), "one past the lowest");
    }

    #[test]
    fn equal_failures_widen_the_range_and_purged_records_are_no_failure() {
        let deliveries = Deliveries::default();
        let of_clean = |offset| opaque(Some(OutputTopic::Clean), offset);
        deliveries.fail(Code::PurgeQueue, of_clean(3), 1);
        assert!(deliveries.failure(|_| "c", &[]).is_none());
        assert!(deliveries.dropped_records());
        for offset in [20, 10, 15] {
            deliveries.fail(Code::MessageSizeTooLarge, of_clean(offset), 1);
        }
        let failure = deliveries.failure(|_| "c", &[]).unwrap();
        let by = OutputTopic::Clean;
        assert_eq!(failure.rejected, Some(RejectedRecords { by, partition: 1, first: 10, last: 20 }));
        deliveries.reset();
        assert!(deliveries.failure(|_| "c", &[]).is_none());
        assert!(!deliveries.dropped_records());
    }

    #[test]
    fn a_rejected_side_record_names_its_raw_record() {
        let (deliveries, by) = (Deliveries::default(), OutputTopic::Duplicates);
        let raw = [(4, 70), (9, 3)].map(|(partition, offset)| Coordinates { partition, offset });
        deliveries.fail(Code::MessageSizeTooLarge, opaque(Some(by), 1), 0);
        let rejected = |diverted: &[Coordinates]| deliveries.failure(|_| "d", diverted).unwrap();
        let expected = RejectedRecords { by, partition: 9, first: 3, last: 3 };
        assert_eq!(rejected(&raw).rejected, Some(expected));
        assert_eq!(rejected(&[]).remedy, Remedy::Stop, "a copy of another process's record");
    }

    #[test]
    fn a_rejected_state_record_requires_an_operator_and_names_no_raw_record() {
        let deliveries = Deliveries::default();
        deliveries.fail(Code::MessageSizeTooLarge, opaque(Some(OutputTopic::State), 0), 1);
        let failure = deliveries.failure(|_| "s", &[]).unwrap();
        assert_eq!((failure.remedy, failure.rejected), (Remedy::Stop, None));
        assert!(
            failure.what.starts_with("the broker rejected a state record for topic s"),
            "{}",
            failure.what
        );
    }
}
