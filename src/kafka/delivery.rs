//! The producer's delivery reports: end offsets of the written partitions, and the first failure of a transaction.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock};

use rdkafka::config::RDKafkaLogLevel;
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::message::{DeliveryResult, Message};
use rdkafka::producer::ProducerContext;
use rdkafka::{ClientContext, types::RDKafkaErrorCode as Code};

use super::error;
use super::log_context::LogContext;
use crate::dedupe::{Offset, PartitionId};
use crate::ports::{Failure, LogId, RejectedRecords, Written};

/// The topic that a record was written to. It is stored in the three highest bits of librdkafka's per-message opaque value,
/// and the raw offset in the other bits, so that a delivery report needs no allocation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Clean,
    State,
    DeadLetter,
    Duplicates,
    /// A record that is written only to get a transaction marker into the partition.
    Purge,
}

const OFFSET_BITS: u32 = 61;

pub(super) fn opaque(kind: Kind, offset: Offset) -> usize {
    let kind = match kind {
        Kind::Clean => 0u64,
        Kind::State => 1,
        Kind::DeadLetter => 2,
        Kind::Duplicates => 3,
        Kind::Purge => 4,
    };
    usize::try_from((kind << OFFSET_BITS) | (offset & ((1 << OFFSET_BITS) - 1))).unwrap_or(usize::MAX)
}

fn from_opaque(opaque: usize) -> (Kind, Offset) {
    let opaque = opaque as u64;
    let kind = match opaque >> OFFSET_BITS {
        0 => Kind::Clean,
        1 => Kind::State,
        2 => Kind::DeadLetter,
        3 => Kind::Duplicates,
        _ => Kind::Purge,
    };
    (kind, opaque & ((1 << OFFSET_BITS) - 1))
}

/// The first failed delivery of a transaction. Its offset range also covers later failures of the same kind, partition and
/// error code.
#[derive(Debug, Clone)]
struct FailedDelivery {
    code: RDKafkaErrorCode,
    kind: Kind,
    records: RejectedRecords,
}

/// One past the highest acknowledged offset of each partition; 0 = none. The raw topic may grow while delivery reports
/// arrive, so row `n` holds 2^n partitions and is allocated with the first of them. No row ever moves.
#[derive(Default)]
struct AckedEnds([OnceLock<Box<[AtomicU64]>>; u32::BITS as usize]);

impl AckedEnds {
    fn slot(&self, partition: PartitionId) -> Option<&AtomicU64> {
        let position = partition.checked_add(1)?;
        let row = position.ilog2();
        let slots = self.0.get(row as usize)?;
        let slots = slots.get_or_init(|| (0..1u32 << row).map(|_| AtomicU64::new(0)).collect());
        slots.get((position - (1 << row)) as usize)
    }

    fn raise(&self, partition: i32, offset: i64) {
        let slot = PartitionId::try_from(partition).ok().and_then(|partition| self.slot(partition));
        if let (Some(slot), Ok(offset)) = (slot, u64::try_from(offset)) {
            slot.fetch_max(offset + 1, Ordering::Relaxed);
        }
    }

    /// Clears the ends of the previous transaction.
    fn reset(&self) {
        self.0.iter().filter_map(OnceLock::get).flatten().for_each(|end| end.store(0, Ordering::Relaxed));
    }

    /// All partitions that have an end, with that end.
    fn all(&self) -> Vec<(PartitionId, Offset)> {
        let rows = (0..u32::BITS).zip(&self.0).filter_map(|(row, slots)| Some((row, slots.get()?)));
        let ends = rows
            .flat_map(|(row, slots)| (0..).map(move |column: u32| (1 << row) + column - 1).zip(slots.iter()));
        let ends = ends.map(|(partition, end)| (partition, end.load(Ordering::Acquire)));
        ends.filter(|(_, end)| *end > 0).collect()
    }

    fn get(&self, partition: PartitionId) -> Option<Offset> {
        let end = self.slot(partition)?.load(Ordering::Acquire);
        (end > 0).then_some(end)
    }
}

/// Collects delivery reports. The worker reads the result after it has drained the producer.
#[derive(Default)]
pub(super) struct Deliveries {
    clean: AckedEnds,
    state: AckedEnds,
    dead_letter: AckedEnds,
    duplicates: AckedEnds,
    failed: Mutex<Option<FailedDelivery>>,
    dropped: AtomicBool,
}

impl Deliveries {
    pub(super) fn clean_end(&self, partition: PartitionId) -> Option<Offset> {
        self.clean.get(partition)
    }

    pub(super) fn state_end(&self, partition: PartitionId) -> Option<Offset> {
        self.state.get(partition)
    }

    /// The partitions of side topics written to in this transaction, with their ends.
    pub(super) fn side_ends(&self) -> Vec<(LogId, Offset)> {
        let of = |topic, ends: &AckedEnds| {
            ends.all().into_iter().map(move |(partition, end)| (LogId { topic, partition }, end))
        };
        of(Written::DeadLetter, &self.dead_letter).chain(of(Written::Duplicates, &self.duplicates)).collect()
    }

    /// Clears the ends and failures of the previous transaction.
    pub(super) fn reset(&self) {
        [&self.clean, &self.state, &self.dead_letter, &self.duplicates]
            .into_iter()
            .for_each(AckedEnds::reset);
        self.dropped.store(false, Ordering::Release);
        *self.failed.lock().unwrap_or_else(std::sync::PoisonError::into_inner) = None;
    }

    /// The delivery failure of this transaction, if any. `topic` maps a kind to the topic's name.
    pub(super) fn failure<'a>(&self, topic: impl FnOnce(Kind) -> &'a str) -> Option<Failure> {
        let failed = self.failed.lock().unwrap_or_else(std::sync::PoisonError::into_inner).clone()?;
        let topic = topic(failed.kind);
        if error::is_record_error(failed.code) {
            match failed.kind {
                Kind::Clean => return Some(error::rejected(topic, failed.code, failed.records)),
                Kind::DeadLetter => {
                    return Some(error::rejected_by_side_topic(
                        topic,
                        failed.code,
                        "choose another policy than dead_letter",
                    ));
                }
                Kind::Duplicates => {
                    return Some(error::rejected_by_side_topic(
                        topic,
                        failed.code,
                        "leave topics.duplicates out",
                    ));
                }
                Kind::Purge => {}
                Kind::State => return Some(error::rejected_state(topic, failed.code)),
            }
        }
        let cause = KafkaError::MessageProduction(failed.code);
        Some(error::failure(&format!("writing to topic {topic}"), &cause))
    }

    /// Whether the client dropped records of this transaction without sending them.
    pub(super) fn dropped_records(&self) -> bool {
        self.dropped.load(Ordering::Acquire)
    }

    fn fail(&self, code: Code, (kind, offset): (Kind, Offset), partition: i32) {
        // Records are purged because other records failed earlier; they are not the cause.
        if matches!(code, Code::PurgeQueue | Code::PurgeInflight) {
            self.dropped.store(true, Ordering::Release);
            return;
        }
        let partition = u32::try_from(partition).unwrap_or(0);
        let mut failed = self.failed.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        match failed.as_mut() {
            None => {
                let records = RejectedRecords { partition, first: offset, last: offset };
                *failed = Some(FailedDelivery { code, kind, records });
            }
            Some(first)
                if first.code == code && first.kind == kind && first.records.partition == partition =>
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
        LogContext.log(level, facility, message);
    }

    fn error(&self, error: KafkaError, reason: &str) {
        LogContext.error(error, reason);
    }
}

impl ProducerContext for Deliveries {
    type DeliveryOpaque = usize;

    fn delivery(&self, result: &DeliveryResult<'_>, opaque: usize) {
        let (kind, offset) = from_opaque(opaque);
        match result {
            Ok(message) => match kind {
                Kind::Clean => self.clean.raise(message.partition(), message.offset()),
                Kind::State => self.state.raise(message.partition(), message.offset()),
                Kind::DeadLetter => self.dead_letter.raise(message.partition(), message.offset()),
                Kind::Duplicates => self.duplicates.raise(message.partition(), message.offset()),
                Kind::Purge => {}
            },
            Err((KafkaError::MessageProduction(code), message)) => {
                self.fail(*code, (kind, offset), message.partition());
            }
            Err((_, message)) => self.fail(Code::Fail, (kind, offset), message.partition()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ports::Remedy;

    #[test]
    fn kind_and_offset_round_trip_through_the_opaque_value() {
        for kind in [Kind::Clean, Kind::State, Kind::DeadLetter, Kind::Duplicates, Kind::Purge] {
            for offset in [0, 1, (1 << OFFSET_BITS) - 1] {
                assert_eq!(from_opaque(opaque(kind, offset)), (kind, offset));
            }
        }
    }

    #[test]
    fn each_partition_has_its_own_end() {
        let ends = AckedEnds::default();
        let partitions: Vec<i32> = (0..70).chain([4_095, 4_096, 100_000]).collect();
        for partition in &partitions {
            ends.raise(*partition, i64::from(*partition) * 10);
        }
        ends.raise(-1, 5);
        for partition in partitions {
            let partition = u32::try_from(partition).unwrap();
            assert_eq!(ends.get(partition), Some(u64::from(partition) * 10 + 1));
        }
        assert_eq!(ends.get(71), None);
        assert_eq!(ends.all().len(), 73);
        assert!(ends.all().into_iter().all(|(partition, end)| end == u64::from(partition) * 10 + 1));
        ends.reset();
        assert_eq!((ends.get(3), ends.all()), (None, Vec::new()));
    }

    #[test]
    fn equal_failures_widen_the_range_and_purged_records_are_no_failure() {
        let deliveries = Deliveries::default();
        deliveries.fail(Code::PurgeQueue, (Kind::Clean, 3), 1);
        assert!(deliveries.failure(|_| "c").is_none());
        assert!(deliveries.dropped_records());
        for offset in [20, 10, 15] {
            deliveries.fail(Code::MessageSizeTooLarge, (Kind::Clean, offset), 1);
        }
        let failure = deliveries.failure(|_| "c").unwrap();
        assert_eq!(failure.rejected, Some(RejectedRecords { partition: 1, first: 10, last: 20 }));
        deliveries.reset();
        assert!(deliveries.failure(|_| "c").is_none());
        assert!(!deliveries.dropped_records());
    }

    #[test]
    fn a_rejected_state_record_requires_an_operator_and_names_no_raw_record() {
        let deliveries = Deliveries::default();
        deliveries.fail(Code::MessageSizeTooLarge, (Kind::State, 0), 1);
        let failure = deliveries.failure(|_| "s").unwrap();
        assert_eq!((failure.remedy, failure.rejected), (Remedy::Stop, None));
        assert!(
            failure.what.starts_with("the broker rejected a state record for topic s"),
            "{}",
            failure.what
        );
    }
}
