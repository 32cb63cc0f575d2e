//! The source partitions that are assigned to this process, and what is in flight of each.

use std::collections::BTreeMap;
use std::ffi::CStr;
use std::time::Duration;

use super::in_flight::{InFlight, Load};
use crate::dedupe::{Checkpoint, Epoch, Offset, PartitionId};
use crate::kafka::{SourceLog, SourceStart};
use crate::metrics::Stall;
use crate::pipeline::{Fetching, STALL_TIMEOUT, SchemaWait, StallDetector};

/// Most records and bytes of keys and values that are in flight. More are not read until some are acknowledged.
const MOST_RECORDS: usize = 100_000;
const MOST_BYTES: usize = 64 << 20;
/// Most records in all partitions from the first one on that is not acknowledged: acknowledged ones are kept behind it, in 24 bytes each. One
/// target partition that is unavailable is enough for that.
const MOST_HELD: usize = 1_000_000;
/// Low bits of the number of a record, for its number in its partition. The other bits are the placement.
const RECORD_BITS: u32 = 40;

/// An assigned source partition.
pub struct AssignedLog {
    pub log: SourceLog,
    /// `topic/partition`.
    pub name: String,
    /// The id of its topic; `None` where the brokers report none.
    pub topic_id: Option<String>,
    /// Records below this offset were returned by the client already.
    pub next: Offset,
    /// The leader epoch of the last record before that.
    pub epoch: Option<Epoch>,
    pub in_flight: InFlight,
    /// The schema that its next record needs; the partition is paused until it is known.
    pub schema: Option<SchemaWait>,
    /// The last stable offset, as read last by another client than the one that fetches the records.
    pub log_end: Offset,
    stall: StallDetector,
    /// The position that was stored last for a commit.
    stored: Option<Offset>,
}

impl AssignedLog {
    /// Where it is read again.
    pub fn start(&self) -> SourceStart {
        (self.log.clone(), self.next, self.epoch)
    }
}

/// All assigned source partitions. Each time that a partition is placed, it gets a new number, so that acknowledgements of
/// records that were sent before count no longer.
#[derive(Default)]
pub struct AssignedLogs {
    logs: BTreeMap<u64, AssignedLog>,
    placements: u64,
    /// The placement that was looked up last: the client returns records in runs of one partition.
    last: u64,
    /// Whether there was no room since the last search for stalled partitions.
    was_full: bool,
}

impl AssignedLogs {
    /// The partition is read from this offset on, and its log ends at `log_end`. What was in flight of it counts no longer.
    pub fn place(&mut self, (log, offset, epoch): SourceStart, log_end: Offset, topic_id: Option<String>) {
        self.remove(&log);
        self.placements += 1;
        let name = log.to_string();
        let placed = AssignedLog {
            log,
            name,
            topic_id,
            next: offset,
            epoch,
            in_flight: InFlight::at(offset),
            schema: None,
            log_end,
            stall: StallDetector::default(),
            stored: None,
        };
        self.logs.insert(self.placements, placed);
    }

    /// The partition is no longer assigned.
    pub fn remove(&mut self, log: &SourceLog) {
        let placement = self.logs.iter().find(|(_, assigned)| assigned.log == *log).map(|(place, _)| *place);
        placement.map(|placement| self.logs.remove(&placement));
    }

    /// All assigned partitions.
    pub fn all(&self) -> impl Iterator<Item = &AssignedLog> {
        self.logs.values()
    }

    /// This partition, if it is assigned.
    pub fn find(&self, log: &SourceLog) -> Option<&AssignedLog> {
        self.all().find(|assigned| assigned.log == *log)
    }

    /// The assigned partitions that wait for a schema.
    pub fn waiting_mut(&mut self) -> impl Iterator<Item = &mut AssignedLog> {
        self.logs.values_mut().filter(|log| log.schema.is_some())
    }

    /// The assigned partition that a record is from.
    pub fn of_record(&mut self, topic: &CStr, partition: PartitionId) -> Option<&mut AssignedLog> {
        let is_it = |assigned: &AssignedLog| {
            assigned.log.partition == partition && assigned.log.topic.as_bytes() == topic.to_bytes()
        };
        if !self.logs.get(&self.last).is_some_and(is_it) {
            self.last = *self.logs.iter().find(|(_, assigned)| is_it(assigned))?.0;
        }
        self.logs.get_mut(&self.last)
    }

    /// The number among all records of the next one of the partition that [`AssignedLogs::of_record`] returned last.
    pub fn next_number(&self) -> usize {
        number_of(self.last, self.logs.get(&self.last).map_or(0, |log| log.in_flight.next_number()))
    }

    /// Counts that record as sent.
    pub fn sent(&mut self, offset: Offset, bytes: usize) {
        self.logs.get_mut(&self.last).into_iter().for_each(|log| log.in_flight.sent(offset, bytes));
    }

    /// Marks a record as acknowledged. Returns false when its partition was placed again since it was sent.
    pub fn acknowledge(&mut self, number: usize) -> bool {
        let (placement, record) = from_number(number);
        self.logs.get_mut(&placement).is_some_and(|log| log.in_flight.acknowledge(record))
    }

    /// The name of the partition of a record.
    pub fn name_of(&self, number: usize) -> Option<&str> {
        self.logs.get(&from_number(number).0).map(|log| log.name.as_str())
    }

    /// Number of records in flight.
    pub fn in_flight(&self) -> usize {
        self.load().records
    }

    fn load(&self) -> Load {
        let loads = self.logs.values().map(|log| log.in_flight.unacknowledged);
        loads.fold(Load::default(), |sum, it| Load {
            records: sum.records + it.records,
            bytes: sum.bytes + it.bytes,
        })
    }

    /// Whether more records may be read.
    pub fn has_room(&mut self) -> bool {
        let held = || self.logs.values().map(|log| log.in_flight.held()).sum::<usize>();
        let Load { records, bytes } = self.load();
        let has_room = records < MOST_RECORDS && bytes < MOST_BYTES && held() < MOST_HELD;
        self.was_full |= !has_room;
        has_room
    }

    /// Sets where the logs end, in the order of [`AssignedLogs::all`]; `None` keeps the known end.
    pub fn set_ends(&mut self, ends: Vec<Option<Offset>>) {
        for (log, end) in self.logs.values_mut().zip(ends) {
            log.log_end = end.unwrap_or(log.log_end);
        }
    }

    /// The partitions whose records have stopped arriving although their logs have more. To be called every second. `fetched_end`
    /// is the end of a log as the client that fetches the records knows it.
    pub fn stalled(
        &mut self,
        now: Duration,
        fetched_end: impl Fn(&SourceLog) -> Option<Offset>,
    ) -> Vec<(SourceStart, Fetching, Stall)> {
        // Records that are not polled for lack of room look like a stall of their partition.
        if std::mem::take(&mut self.was_full) {
            return Vec::new();
        }
        // A partition that waits for a schema is paused.
        let open = self.logs.values_mut().filter(|log| log.schema.is_none());
        let stalled = open.filter_map(|log| {
            let end = fetched_end(&log.log);
            let seen = Fetching { next: log.next, fetched_end: end, log_end: log.log_end };
            let stall = log.stall.observe(now, seen, STALL_TIMEOUT)?;
            Some((log.start(), seen, stall))
        });
        stalled.collect()
    }

    /// The positions that have changed since the last call, with what a later start compares.
    pub fn changed_positions(&mut self) -> Vec<(&SourceLog, Offset, Checkpoint)> {
        let changed = self.logs.values_mut().filter_map(|log| {
            let position = log.in_flight.position;
            let is_new = log.stored.replace(position) != Some(position);
            let known =
                || Checkpoint { raw: log.topic_id.clone(), epoch: log.epoch, ..Checkpoint::default() };
            is_new.then(|| (&log.log, position, known()))
        });
        changed.collect()
    }
}

/// At most 20 partitions, and their number.
pub fn listed(logs: &[SourceLog]) -> String {
    let names: Vec<String> = logs.iter().take(20).map(SourceLog::to_string).collect();
    let more = if logs.len() > names.len() { ",..." } else { "" };
    format!("{}{more} ({})", names.join(","), logs.len())
}

/// The placement and the number in its partition, as one number that the client returns with the acknowledgement.
fn number_of(placement: u64, record: u64) -> usize {
    usize::try_from((placement << RECORD_BITS) | (record & ((1 << RECORD_BITS) - 1))).unwrap_or(usize::MAX)
}

fn from_number(number: usize) -> (u64, u64) {
    let number = number as u64;
    (number >> RECORD_BITS, number & ((1 << RECORD_BITS) - 1))
}

#[cfg(test)]
mod tests {
    use std::ops::Range;

    use super::*;
    use crate::dedupe::SchemaId;

    fn log(partition: PartitionId) -> SourceLog {
        SourceLog { topic: "a".to_owned(), partition }
    }

    fn positions(logs: &mut AssignedLogs) -> Vec<(PartitionId, Offset)> {
        logs.changed_positions().into_iter().map(|(log, at, _)| (log.partition, at)).collect()
    }

    fn place(logs: &mut AssignedLogs, partition: PartitionId, offset: Offset, end: Offset) {
        logs.place((log(partition), offset, None), end, None);
    }

    #[test]
    fn a_position_is_stored_with_the_incarnation_of_its_log() {
        let mut logs = AssignedLogs::default();
        let epoch = Some(Epoch { next: 10, number: 4 });
        logs.place((log(0), 10, epoch), 10, Some("id".to_owned()));
        let stored = logs.changed_positions().pop().unwrap().2;
        assert_eq!((stored.raw.as_deref(), stored.epoch), (Some("id"), epoch));
        assert_eq!(Checkpoint::parse(&stored.render()), Some(stored));
    }

    #[test]
    fn each_partition_has_its_own_position() {
        let mut logs = AssignedLogs::default();
        place(&mut logs, 0, 10, 10);
        place(&mut logs, 1, 20, 20);
        assert_eq!(positions(&mut logs), [(0, 10), (1, 20)]);
        let mut send = |partition, offset| {
            assert!(logs.of_record(c"a", partition).is_some());
            sent(&mut logs, offset, 5)
        };
        let numbers = [send(0, 10), send(1, 20), send(0, 11), send(1, 21)];
        assert!(logs.of_record(c"b", 0).is_none() && logs.of_record(c"a", 2).is_none());
        assert!(logs.acknowledge(numbers[3]) && logs.acknowledge(numbers[0]));
        assert_eq!(positions(&mut logs), [(0, 11)]);
        assert_eq!(logs.name_of(numbers[3]), Some("a/1"));
        assert!(logs.acknowledge(numbers[1]) && logs.acknowledge(numbers[2]));
        assert_eq!((positions(&mut logs), logs.in_flight()), (vec![(0, 12), (1, 22)], 0));
        assert_eq!(positions(&mut logs), []);
    }

    #[test]
    fn a_partition_that_is_placed_again_ignores_earlier_acknowledgements() {
        let mut logs = AssignedLogs::default();
        place(&mut logs, 0, 0, 0);
        logs.of_record(c"a", 0).unwrap();
        let before = sent(&mut logs, 0, 7);
        place(&mut logs, 0, 0, 0);
        assert_eq!((logs.load(), logs.name_of(before)), (Load::default(), None));
        logs.of_record(c"a", 0).unwrap();
        let after = sent(&mut logs, 0, 7);
        assert!(!logs.acknowledge(before));
        assert_eq!(positions(&mut logs), [(0, 0)]);
        assert!(logs.acknowledge(after));
        assert_eq!(positions(&mut logs), [(0, 1)]);
        logs.remove(&log(0));
        assert_eq!((positions(&mut logs), logs.acknowledge(after)), (vec![], false));
    }

    #[test]
    fn reading_pauses_at_the_limits() {
        let mut logs = AssignedLogs::default();
        place(&mut logs, 0, 0, 0);
        logs.of_record(c"a", 0).unwrap();
        let large = sent(&mut logs, 0, MOST_BYTES);
        assert!(!logs.has_room());
        assert!(logs.acknowledge(large) && logs.has_room());
        for offset in 0..MOST_RECORDS as u64 {
            assert!(logs.has_room());
            sent(&mut logs, offset, 1);
        }
        assert!(!logs.has_room());
    }

    /// Sends a record of the partition that was looked up last. Returns its number.
    fn sent(logs: &mut AssignedLogs, offset: Offset, bytes: usize) -> usize {
        let number = logs.next_number();
        logs.sent(offset, bytes);
        number
    }

    /// The first stalled partition in this number of seconds, in which the client fetches nothing: the second, and where it is read again.
    fn stalled_at(logs: &mut AssignedLogs, mut seconds: Range<u64>) -> Option<(u64, SourceLog, Offset)> {
        seconds.find_map(|second| {
            logs.has_room();
            let ((log, ..), seen, _) = logs.stalled(Duration::from_secs(second), |_| Some(10)).pop()?;
            Some((second, log, seen.next))
        })
    }

    #[test]
    fn a_partition_without_a_fetcher_is_stalled_when_another_client_reports_a_later_end() {
        let mut logs = AssignedLogs::default();
        place(&mut logs, 0, 10, 10);
        place(&mut logs, 1, 10, 10);
        assert_eq!(stalled_at(&mut logs, 0..1_000), None);
        logs.set_ends(vec![None, Some(11)]);
        assert_eq!(stalled_at(&mut logs, 1_000..2_000), Some((1_030, log(1), 10)));
        assert_eq!(logs.all().map(|log| log.log_end).collect::<Vec<_>>(), [10, 11]);
    }

    #[test]
    fn a_full_target_or_a_missing_schema_is_no_stall() {
        let mut logs = AssignedLogs::default();
        place(&mut logs, 0, 10, 500);
        logs.of_record(c"a", 0).unwrap().next = 11;
        let large = sent(&mut logs, 10, MOST_BYTES);
        assert_eq!(stalled_at(&mut logs, 0..1_000), None, "without room");
        assert!(logs.acknowledge(large));
        logs.of_record(c"a", 0).unwrap().schema = Some(SchemaWait { id: SchemaId::Number(1), why: None });
        assert_eq!(stalled_at(&mut logs, 1_000..2_000), None, "without the schema");
        logs.of_record(c"a", 0).unwrap().schema = None;
        assert_eq!(stalled_at(&mut logs, 2_000..3_000), Some((2_030, log(0), 11)));
    }
}
