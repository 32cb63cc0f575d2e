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

/// Records, and the bytes of their keys and values.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Load {
    pub records: usize,
    pub bytes: usize,
}

/// The records of one source partition from the first unacknowledged one on. Their acknowledgements arrive in any order,
/// because the records go to different partitions of the target topic.
pub struct InFlight {
    records: VecDeque<Sent>,
    /// How many of them are not acknowledged, and their bytes.
    pub unacknowledged: Load,
    /// The number of the first of these records. Records are numbered as they are sent, from 0.
    first: u64,
    /// The offset to continue at: every record below it is acknowledged.
    pub position: Offset,
}

impl InFlight {
    /// Nothing is in flight, and the first record has this offset or a higher one.
    pub fn at(position: Offset) -> Self {
        Self { records: VecDeque::new(), unacknowledged: Load::default(), first: 0, position }
    }

    /// The number of the record that is sent next.
    pub fn next_number(&self) -> u64 {
        self.first + self.records.len() as u64
    }

    /// Adds the record with the next number, in the order of offsets.
    pub fn sent(&mut self, offset: Offset, bytes: usize) {
        self.records.push_back(Sent { next: offset + 1, bytes, is_acknowledged: false });
        self.unacknowledged =
            Load { records: self.unacknowledged.records + 1, bytes: self.unacknowledged.bytes + bytes };
    }

    /// Marks a record as acknowledged. Returns false when no record with this number is in flight.
    pub fn acknowledge(&mut self, number: u64) -> bool {
        let place = number.checked_sub(self.first).and_then(|place| usize::try_from(place).ok());
        let record = place.and_then(|place| self.records.get_mut(place));
        let Some(record) = record.filter(|record| !record.is_acknowledged) else { return false };
        record.is_acknowledged = true;
        self.unacknowledged = Load {
            records: self.unacknowledged.records - 1,
            bytes: self.unacknowledged.bytes - record.bytes,
        };
        while let Some(record) = self.records.pop_front_if(|record| record.is_acknowledged) {
            self.position = record.next;
            self.first += 1;
        }
        true
    }

    /// Number of records from the first one that is not acknowledged on, acknowledged or not.
    pub fn held(&self) -> usize {
        self.records.len()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    fn load(records: usize, bytes: usize) -> Load {
        Load { records, bytes }
    }

    /// Sends a record of 10 bytes. Returns its number.
    fn send(sent: &mut InFlight, offset: Offset) -> u64 {
        let number = sent.next_number();
        sent.sent(offset, 10);
        number
    }

    #[test]
    fn the_position_advances_only_over_acknowledged_records() {
        let mut sent = InFlight::at(5);
        let numbers: Vec<u64> = [7, 8, 12].map(|offset| send(&mut sent, offset)).to_vec();
        assert!(sent.acknowledge(numbers[1]));
        assert_eq!((sent.position, sent.unacknowledged), (5, load(2, 20)));
        assert!(sent.acknowledge(numbers[0]));
        assert_eq!((sent.position, sent.unacknowledged), (9, load(1, 10)));
        assert!(sent.acknowledge(numbers[2]));
        assert_eq!((sent.position, sent.unacknowledged), (13, load(0, 0)));
    }

    #[test]
    fn a_second_or_unknown_acknowledgement_changes_nothing() {
        let mut sent = InFlight::at(0);
        let (first, second) = (send(&mut sent, 0), send(&mut sent, 1));
        assert_eq!((sent.acknowledge(second), sent.acknowledge(second)), (true, false));
        assert_eq!((sent.acknowledge(first), sent.acknowledge(first)), (true, false));
        assert_eq!((sent.acknowledge(second + 1), sent.position), (false, 2));
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
                    prop_assert_eq!(open.insert(send(&mut sent, offset), offset), None, "numbers repeat");
                } else if !open.is_empty() {
                    let number = *which.get(&open.keys().copied().collect::<Vec<_>>());
                    open.remove(&number);
                    prop_assert!(sent.acknowledge(number));
                }
                prop_assert_eq!(sent.unacknowledged, load(open.len(), open.len() * 10));
                // Nothing that is not acknowledged is below the position, and it never returns.
                let expected = open.values().next().copied();
                prop_assert!(sent.position <= expected.unwrap_or(next) && sent.position >= highest);
                prop_assert!(expected.is_some() || sent.position == next);
                highest = sent.position;
            }
        }
    }
}
