//! The model of the comparison of dropped records with their owners.

use std::collections::HashMap;

use super::{Evaluation, Place};
use crate::{Digest, Fingerprint, Offset, Part, Seen, UnequalPair};

impl Evaluation<'_> {
    /// Compares each dropped record with the last one before it that clean holds.
    pub(super) fn dropped(&mut self, raw: &[(Seen, Part)]) {
        let offsets =
            self.expected.entries.iter().enumerate().map(|(place, entry)| (entry.record.offset, place));
        let places: HashMap<Offset, Place> = offsets.collect();
        let mut owners: HashMap<Fingerprint, (Seen, i64, Digest)> = HashMap::new();
        let mut time_ms = 0;
        for (record, part) in raw {
            time_ms = record.content.timestamp_ms().min(self.expected.rules.latest_ms).max(time_ms);
            if !record.has_id {
                continue;
            }
            let owner = owners.get(&record.fingerprint).copied();
            let place = places.get(&record.offset).copied();
            let mut may_own = |digest| {
                let is_near = |(_, then_ms, _)| self.expected.within_window(then_ms, time_ms);
                if !(record.forced && owner.is_some_and(is_near)) {
                    owners.insert(record.fingerprint, (*record, time_ms, digest));
                }
            };
            if let Some(copies) = place.and_then(|place| self.copies.get(&place)) {
                let outside = self.expected.entries[place.unwrap()].outside;
                let is_same = copies.iter().any(|copy| self.clean[*copy].content == record.content);
                let is_gone = !is_same && (outside || self.allows_gone());
                may_own(if is_gone || *part == Part::Before { Digest::NONE } else { record.digest });
                self.outcome.dropped.not_compared += u64::from(is_gone && *part != Part::Before);
            } else if *part == Part::Before {
                may_own(Digest::NONE);
            } else if self.expected.is_in_range(record, *part)
                && !place.is_some_and(|place| self.expected.entries[place].due)
            {
                self.compared(record, owner.map(|(owner, _, digest)| (owner, digest)));
            }
        }
    }

    fn compared(&mut self, record: &Seen, owner: Option<(Seen, Digest)>) {
        let dropped = &mut self.outcome.dropped;
        match owner.and_then(|(owner, digest)| Some((owner, digest.is_equal(record.digest)?))) {
            None => dropped.not_compared += 1,
            Some((_, true)) => dropped.equal += 1,
            Some((owner, false)) => {
                dropped.unequal += 1;
                if dropped.unequal <= 5 {
                    let partition = self.options.partition;
                    self.outcome.unequal.push(UnequalPair {
                        partition,
                        offset: record.offset,
                        owner_partition: partition,
                        owner_offset: owner.offset,
                    });
                }
            }
        }
    }
}
