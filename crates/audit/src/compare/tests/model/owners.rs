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
        let mut more = self.more(raw, &places);
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
                let is_gone = is_gone && !copies.iter().any(|copy| is_alike(&self.clean[*copy], record));
                may_own(if is_gone || *part == Part::Before { Digest::NONE } else { record.digest });
                self.outcome.dropped.not_compared += u64::from(is_gone && *part != Part::Before);
            } else if *part == Part::Before {
                may_own(Digest::NONE);
            } else if self.expected.is_in_range(record, *part)
                && !place.is_some_and(|place| self.expected.entries[place].due)
            {
                let more = more.get_mut(&record.fingerprint).into_iter().flatten();
                if let Some((_, count)) =
                    more.into_iter().find(|(it, count)| is_alike(it, record) && *count > 0)
                {
                    *count -= 1;
                    may_own(record.digest);
                    continue;
                }
                self.compared(record, owner.map(|(owner, _, digest)| (owner, digest)));
            }
        }
    }

    /// The clean records of each id with a number: of the first of several that are equal but for the headers, how many of these more
    /// clean holds than there are raw records with such a copy.
    fn more(
        &self,
        raw: &[(Seen, Part)],
        places: &HashMap<Offset, Place>,
    ) -> HashMap<Fingerprint, Vec<(Seen, u64)>> {
        let mut more: HashMap<Fingerprint, Vec<(Seen, u64)>> = HashMap::new();
        for record in self.clean.iter().filter(|record| record.has_id) {
            let of_id = more.entry(record.fingerprint).or_default();
            match of_id.iter_mut().find(|(it, _)| is_alike(it, record)) {
                Some((_, count)) => *count += 1,
                None => of_id.push((*record, 1)),
            }
        }
        for (record, _) in raw {
            let copies = places.get(&record.offset).and_then(|place| self.copies.get(place));
            if copies.into_iter().flatten().any(|copy| is_alike(&self.clean[*copy], record)) {
                let of_id = more.get_mut(&record.fingerprint).into_iter().flatten();
                of_id.filter(|(it, _)| is_alike(it, record)).for_each(|(_, count)| *count -= 1);
            }
        }
        more
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

/// Whether nothing but the headers differs.
pub(super) fn is_alike(one: &Seen, other: &Seen) -> bool {
    one.content.differing(&other.content).names().all(|name| name == "headers")
}
