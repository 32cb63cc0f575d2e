//! The records of one source partition that were sent and are not acknowledged.

use std::collections::VecDeque;

use crate::dedupe::Offset;

/// A record that was sent.
struct Sent {
    /// The offset after it.
    next: Offset,
    /// Bytes of its key and value.
    bytes: usize,
    is_acknowledged: bool,
}

/// The records of one source partition from the first unacknowledged one on. Their acknowledgements arrive in any order,
/// because the records go to different partitions of the target topic.
pub struct InFlight {
    records: VecDeque<Sent>,
    /// The number of the first of these records. Records are numbered as they are sent, from 0.
    first: u64,
    /// Every record below this offset is acknowledged.
    position: Offset,
}

impl InFlight {
    /// Nothing is in flight, and the first record has this offset or a higher one.
    pub fn at(position: Offset) -> Self {
        Self { records: VecDeque::new(), first: 0, position }
    }

    /// Adds a record, in the order of offsets. Returns its number.
    pub fn send(&mut self, offset: Offset, bytes: usize) -> u64 {
        self.records.push_back(Sent { next: offset + 1, bytes, is_acknowledged: false });
        self.first + self.records.len() as u64 - 1
    }

    /// Removes the last added record, because it could not be sent.
    pub fn unsend(&mut self) {
        self.records.pop_back();
    }

    /// Marks a record as acknowledged. Returns its bytes; `None` when no record with this number is in flight.
    pub fn acknowledge(&mut self, number: u64) -> Option<usize> {
        let place = usize::try_from(number.checked_sub(self.first)?).ok()?;
        let record = self.records.get_mut(place).filter(|record| !record.is_acknowledged)?;
        record.is_acknowledged = true;
        let bytes = record.bytes;
        while let Some(record) = self.records.pop_front_if(|record| record.is_acknowledged) {
            self.position = record.next;
            self.first += 1;
        }
        Some(bytes)
    }

    /// The offset to continue at: every record below it is acknowledged.
    pub fn position(&self) -> Offset {
        self.position
    }

    /// Number of records from the first one that is not acknowledged on, acknowledged or not.
    pub fn held(&self) -> usize {
        self.records.len()
    }

    /// The number and the bytes of the records that are not acknowledged.
    pub fn unacknowledged(&self) -> (usize, usize) {
        let open = self.records.iter().filter(|record| !record.is_acknowledged);
        open.fold((0, 0), |(records, bytes), record| (records + 1, bytes + record.bytes))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_position_advances_only_over_acknowledged_records() {
        let mut sent = InFlight::at(5);
        let numbers: Vec<u64> = [7, 8, 12].map(|offset| sent.send(offset, 10)).to_vec();
        assert_eq!(sent.acknowledge(numbers[1]), Some(10));
        assert_eq!((sent.position(), sent.unacknowledged()), (5, (2, 20)));
        assert_eq!(sent.acknowledge(numbers[0]), Some(10));
        assert_eq!((sent.position(), sent.unacknowledged()), (9, (1, 10)));
        assert_eq!(sent.acknowledge(numbers[2]), Some(10));
        assert_eq!((sent.position(), sent.unacknowledged()), (13, (0, 0)));
    }

    #[test]
    fn a_second_or_unknown_acknowledgement_changes_nothing() {
        let mut sent = InFlight::at(0);
        let (first, second) = (sent.send(0, 1), sent.send(1, 1));
        assert_eq!((sent.acknowledge(second), sent.acknowledge(second)), (Some(1), None));
        assert_eq!((sent.acknowledge(first), sent.acknowledge(first)), (Some(1), None));
        assert_eq!((sent.acknowledge(second + 1), sent.position()), (None, 2));
    }

    #[test]
    fn a_record_that_could_not_be_sent_is_not_in_flight() {
        let mut sent = InFlight::at(0);
        sent.send(0, 1);
        sent.unsend();
        assert_eq!((sent.unacknowledged(), sent.position(), sent.send(0, 1)), ((0, 0), 0, 0));
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(2_000) })]

        /// A step sends a record behind a gap of up to 3 offsets, or acknowledges one of those in flight.
        #[test]
        fn the_position_is_the_lowest_unacknowledged_record(
            steps in prop::collection::vec((any::<bool>(), 0_u64..4, any::<prop::sample::Index>()), 0..200),
        ) {
            let mut sent = InFlight::at(100);
            // Number → offset of the records that the model has in flight.
            let mut open = BTreeMap::new();
            let (mut next, mut highest) = (100, 100);
            for (is_send, gap, which) in steps {
                if is_send {
                    let offset = next + gap;
                    next = offset + 1;
                    prop_assert_eq!(open.insert(sent.send(offset, 3), offset), None, "numbers repeat");
                } else if !open.is_empty() {
                    let number = *which.get(&open.keys().copied().collect::<Vec<_>>());
                    open.remove(&number);
                    prop_assert_eq!(sent.acknowledge(number), Some(3));
                }
                prop_assert_eq!(sent.unacknowledged(), (open.len(), open.len() * 3));
                // Nothing that is not acknowledged is below the position, and it never returns.
                let expected = open.values().next().copied();
                prop_assert!(sent.position() <= expected.unwrap_or(next) && sent.position() >= highest);
                prop_assert!(expected.is_some() || sent.position() == next);
                highest = sent.position();
            }
        }
    }
}
