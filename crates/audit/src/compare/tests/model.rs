//! The model: compares raw with clean in memory, by plain searches. The streaming comparison must agree with it.

mod owners;

use std::collections::{HashMap, HashSet};

use super::longest::longest_increasing;
use crate::Offset;
use crate::{
    Differing, Exempt, Finding, Fingerprint, Gone, Kind, MissingId, Outcome, Part, PartitionOptions,
    RawCounts, Rules, Seen,
};

/// How many candidates are checked before a record counts as none of them.
const SEARCH_LIMIT: usize = 1024;

/// Position of an entry; entries are in raw order.
type Place = usize;

/// One record that clean must or may hold.
struct Entry {
    record: Seen,
    /// Stream time at its arrival, epoch milliseconds.
    time_ms: i64,
    /// Whether clean must hold it.
    due: bool,
    /// Whether it repeats an id after the window.
    repeat: bool,
    /// Whether the verdict on its copies depends on records before the range.
    outside: bool,
}

/// What clean must and may hold.
struct Expected {
    rules: Rules,
    entries: Vec<Entry>,
    /// The places of each fingerprint.
    chains: HashMap<Fingerprint, Vec<Place>>,
    counts: RawCounts,
    /// First offset of the range.
    begin: Offset,
    first_ms: i64,
}

/// Compares a partition; `raw` and `clean` are by increasing offset.
pub(super) fn compare(
    rules: Rules,
    options: PartitionOptions,
    raw: &[(Seen, Part)],
    clean: &[Seen],
) -> Outcome {
    let expected = Expected::new(rules, raw);
    let places = expected.places(clean);
    let in_order = longest_increasing(&places);
    let mut copies: HashMap<Place, Vec<usize>> = HashMap::new();
    for (at, place) in places.iter().enumerate() {
        place.map(|place| copies.entry(place).or_default().push(at));
    }
    let seen = copies.keys().copied().collect();
    let outcome = Outcome { raw: expected.counts, clean_records: clean.len() as u64, ..Outcome::default() };
    let mut evaluation = Evaluation { options, expected, clean, places, in_order, copies, seen, outcome };
    evaluation.copies();
    evaluation.repeats_within_window();
    evaluation.unmatched();
    evaluation.losses();
    evaluation.dropped(raw);
    evaluation.outcome
}

impl Expected {
    fn new(rules: Rules, raw: &[(Seen, Part)]) -> Self {
        let (entries, chains, counts) = (Vec::new(), HashMap::new(), RawCounts::default());
        let begin = raw.iter().find(|(_, part)| *part != Part::Before).map_or(0, |(record, _)| record.offset);
        let mut expected = Self { rules, entries, chains, counts, begin, first_ms: 0 };
        let (mut time_ms, mut next) = (0, rules.whole_from);
        for (number, (record, part)) in raw.iter().enumerate() {
            time_ms = record.content.timestamp_ms().min(rules.latest_ms).max(time_ms);
            if number == 0 {
                expected.first_ms = time_ms;
            }
            expected.counts.records += 1;
            expected.counts.in_range += u64::from(expected.is_in_range(record, *part));
            expected.counts.holes |= record.offset != next;
            next = record.offset + 1;
            if let Some(entry) = expected.entry(record, *part, time_ms) {
                expected.chains.entry(record.fingerprint).or_default().push(expected.entries.len());
                expected.entries.push(entry);
            }
        }
        expected
    }

    /// The entry that the next raw record adds, if any.
    fn entry(&mut self, record: &Seen, part: Part, time_ms: i64) -> Option<Entry> {
        let first = self.chains.get(&record.fingerprint).map(|chain| &self.entries[chain[0]]);
        let first = first.map(|first| (first.outside, self.within_window(first.time_ms, time_ms)));
        let before = part == Part::Before;
        let is_in_range = self.is_in_range(record, part);
        let (one, counts) = (u64::from(is_in_range), &mut self.counts);
        let (may_be_due, repeat, outside) = match first {
            _ if record.exempt != Exempt::No => {
                counts.exempt += one;
                (record.exempt == Exempt::Kind, false, before)
            }
            _ if !record.has_id => {
                counts.without_id += one;
                (self.rules.missing_id == MissingId::Forwarded).then_some((true, false, before))?
            }
            None => {
                counts.ids += one;
                (true, false, before)
            }
            Some(_) if before => return None,
            Some(_) if record.forced => {
                counts.forced += one;
                (true, false, false)
            }
            Some((true, _)) => {
                counts.decided_outside += one;
                (false, true, true)
            }
            Some((false, true)) => {
                counts.duplicates += one;
                return None;
            }
            Some((false, false)) => {
                counts.beyond_window += one;
                (false, true, false)
            }
        };
        Some(Entry { record: *record, time_ms, due: may_be_due && is_in_range, repeat, outside })
    }

    fn is_in_range(&self, record: &Seen, part: Part) -> bool {
        part == Part::Within && record.offset < self.rules.due_below && !self.is_older(record)
    }

    fn within_window(&self, then_ms: i64, now_ms: i64) -> bool {
        self.rules.window_ms.is_none_or(|window_ms| now_ms.saturating_sub(then_ms) <= window_ms)
    }

    fn is_older(&self, record: &Seen) -> bool {
        self.rules.from_ms.is_some_and(|from_ms| record.content.timestamp_ms() < from_ms)
    }

    /// Whether a record may repeat a deleted one from before the first remaining record.
    fn is_uncertain(&self, entry: &Entry) -> bool {
        let kept_ms = self.rules.longest_ms.map(|ms| ms + ms / 256 + ms / 32 + 1);
        self.rules.context_cut && kept_ms.is_none_or(|kept_ms| entry.time_ms - self.first_ms <= kept_ms)
    }

    fn chain(&self, record: &Seen) -> &[Place] {
        self.chains.get(&record.fingerprint).map_or(&[], Vec::as_slice)
    }

    /// The place of each clean record; `None` for unmatched records.
    fn places(&self, clean: &[Seen]) -> Vec<Option<Place>> {
        let only = |record: &Seen| match self.chain(record) {
            [only] => Some(*only),
            _ => None,
        };
        let mut places: Vec<_> = clean.iter().map(only).collect();
        self.choose(true, clean, &mut places);
        // If clean has as many records of one content as raw, they are paired one by one.
        for chain in self.chains.values().filter(|chain| chain.len() > 1) {
            let first = &self.entries[chain[0]].record;
            let positions: Vec<_> =
                (0..clean.len()).filter(|at| clean[*at].fingerprint == first.fingerprint).collect();
            if !first.has_id && positions.len() == chain.len() {
                positions.iter().zip(chain).for_each(|(at, place)| places[*at] = Some(*place));
            }
        }
        self.choose(false, clean, &mut places);
        places
    }

    /// Assigns places to the records that share an id, or, if they have none, a content: those that fit between
    /// their anchors first, then the rest.
    fn choose(&self, has_id: bool, clean: &[Seen], places: &mut [Option<Place>]) {
        let is_anchor = longest_increasing(places);
        let (mut rest, mut taken, mut low) = (Vec::new(), HashSet::new(), 0);
        for (at, record) in clean.iter().enumerate() {
            let chain = self.chain(record);
            if is_anchor[at] {
                low = low.max(places[at].unwrap() + 1);
            } else if places[at].is_none() && chain.len() > 1 && record.has_id == has_id {
                let next = (at..clean.len()).find(|next| is_anchor[*next]);
                let gap = low..next.map_or(Place::MAX, |next| places[next].unwrap());
                let between = chain.iter().filter(|place| gap.contains(place));
                places[at] = self.find(record, between);
                match places[at] {
                    Some(place) => low = place + 1,
                    None => rest.push(at),
                }
                taken.extend(places[at]);
            }
        }
        for at in rest {
            let chain = self.chain(&clean[at]);
            let free: Vec<_> =
                chain.iter().filter(|p| self.entries[**p].due && !taken.contains(*p)).collect();
            let same = self.find(&clean[at], free.iter().copied());
            let same = same.or_else(|| self.find(&clean[at], chain.iter()));
            places[at] = same.or_else(|| free.first().copied().or(chain.first()).copied());
            taken.extend(places[at]);
        }
    }

    /// The first place with the content of this record.
    fn find<'a>(&self, record: &Seen, places: impl Iterator<Item = &'a Place>) -> Option<Place> {
        let is_same = |place: &Place| self.entries[*place].record.content == record.content;
        places.take(SEARCH_LIMIT).copied().find(is_same)
    }
}

struct Evaluation<'a> {
    options: PartitionOptions,
    expected: Expected,
    clean: &'a [Seen],
    places: Vec<Option<Place>>,
    in_order: Vec<bool>,
    /// The positions in clean of the copies of each place.
    copies: HashMap<Place, Vec<usize>>,
    /// Places that clean has a copy of, or an altered record.
    seen: HashSet<Place>,
    outcome: Outcome,
}

impl Evaluation<'_> {
    fn add(&mut self, kind: Kind, place: Option<Place>, at: Option<usize>) {
        let raw = place.map(|place| self.expected.entries[place].record);
        let clean = at.map(|at| self.clean[at]);
        let fields = match (raw, clean) {
            (Some(raw), Some(clean)) if kind == Kind::Altered => raw.content.differing(&clean.content),
            _ => Differing::default(),
        };
        let (raw, clean) = (raw.map(|record| record.offset), clean.map(|record| record.offset));
        self.outcome.counts += super::only(kind, 1);
        if self.outcome.counts.of(kind) <= self.options.samples as u64 {
            let partition = self.options.partition;
            self.outcome.samples.push(Finding {
                kind,
                partition,
                raw,
                clean,
                clean_partition: partition,
                fields,
            });
        }
    }

    /// Adds a finding, unless deleted records explain it.
    fn add_unless(&mut self, is_explained: bool, kind: Kind, place: Option<Place>, at: Option<usize>) {
        if is_explained {
            self.outcome.gone += 1;
        } else {
            self.add(kind, place, at);
        }
    }

    fn allows_gone(&self) -> bool {
        self.options.gone != Gone::Nothing
    }

    /// Evaluates clean records that have a place: all but one of those that share a place are duplicates.
    fn copies(&mut self) {
        for at in 0..self.clean.len() {
            let Some(place) = self.places[at] else { continue };
            let (entry, copies) = (&self.expected.entries[place], &self.copies[&place]);
            let unchanged = copies.iter().any(|copy| self.clean[*copy].content == entry.record.content);
            let kept = copies.iter().find(|copy| self.in_order[**copy]).unwrap_or(&copies[0]);
            if at != *kept {
                let is_same = |at: usize| self.clean[at].content == entry.record.content;
                // Of a kept record that differs and one that does not, the raw record of the first is deleted.
                let first_same = copies.iter().find(|copy| **copy != *kept && is_same(**copy));
                let deleted = if !is_same(*kept) && first_same == Some(&at) { *kept } else { at };
                let apart_ms = entry.time_ms - self.clean[deleted].content.timestamp_ms();
                let is_another = !owners::is_alike(&self.clean[deleted], &entry.record)
                    && !self.expected.within_window(0, apart_ms.abs());
                self.add_unless(self.allows_gone() && is_another, Kind::Duplicated, Some(place), Some(at));
                continue;
            }
            self.outcome.outside += u64::from(entry.outside);
            if entry.outside && !unchanged {
                continue;
            }
            let allows_gone = self.allows_gone();
            if !unchanged {
                self.add_unless(allows_gone, Kind::Altered, Some(place), Some(at));
            }
            if !self.in_order[at] && (unchanged || !allows_gone) {
                let is_explained = allows_gone && self.expected.counts.holes;
                self.add_unless(is_explained, Kind::OutOfOrder, Some(place), Some(at));
            }
        }
    }

    /// Finds duplicates of ids that were seen again after the window: a record that follows such a record
    /// within the window must not be in clean.
    fn repeats_within_window(&mut self) {
        let mut chains: Vec<_> = self.expected.chains.values().cloned().collect();
        chains.sort_unstable();
        for chain in chains {
            let first = &self.expected.entries[chain[0]];
            let mut owner_ms = Some(first.time_ms).filter(|_| !first.outside);
            for place in chain {
                let Entry { time_ms, repeat, record, .. } = self.expected.entries[place];
                let copies = self.copies.get(&place).into_iter().flatten();
                let Some(at) = copies.copied().find(|at| repeat && self.in_order[*at]) else { continue };
                let is_near = |ms| owner_ms.is_some_and(|owner_ms| self.expected.within_window(owner_ms, ms));
                let timestamp_ms = record.content.timestamp_ms();
                if is_near(time_ms) {
                    self.add(Kind::Duplicated, Some(place), Some(at));
                } else {
                    let is_late = timestamp_ms > 0 && is_near(timestamp_ms);
                    self.outcome.late_or_twice += u64::from(is_late);
                    owner_ms = Some(time_ms);
                }
            }
        }
    }

    /// Evaluates clean records without a place: one counts as altered if a lost record at the same position
    /// resembles it.
    fn unmatched(&mut self) {
        let begin = self.expected.begin;
        let mut here = self.expected.entries.partition_point(|entry| entry.record.offset < begin);
        for (at, record) in self.clean.iter().enumerate() {
            if let Some(place) = self.places[at] {
                here = if self.in_order[at] { here.max(place + 1) } else { here };
            } else if self.expected.is_older(record) {
                self.outcome.outside += 1;
            } else if self.allows_gone() {
                self.outcome.gone += 1;
            } else if let Some(place) = self.resembling(record, here) {
                self.seen.insert(place);
                self.add(Kind::Altered, Some(place), Some(at));
                here = place + 1;
            } else {
                self.add(Kind::Phantom, None, Some(at));
            }
        }
    }

    fn resembling(&self, record: &Seen, here: Place) -> Option<Place> {
        let ahead = self.expected.entries.iter().enumerate().skip(here).take(SEARCH_LIMIT);
        let mut unseen = ahead.take_while(|(place, _)| !self.seen.contains(place));
        unseen
            .find(|(_, entry)| entry.due && entry.record.content.resembles(&record.content))
            .map(|(place, _)| place)
    }

    fn losses(&mut self) {
        let mut before_first = self.options.gone == Gone::Allowed { clean_trimmed: true };
        let (mut at_start, mut lost_at_start) = (true, 0);
        for place in 0..self.expected.entries.len() {
            let mut copies = self.copies.get(&place).into_iter().flatten();
            let in_order = copies.any(|at| self.in_order[*at]);
            before_first &= !in_order;
            at_start &= !in_order;
            let entry = &self.expected.entries[place];
            if entry.due && !self.seen.contains(&place) {
                let uncertain = self.allows_gone() && self.expected.is_uncertain(entry);
                let is_explained = before_first || uncertain;
                self.add_unless(is_explained, Kind::Lost, Some(place), None);
                lost_at_start += u64::from(at_start && !is_explained);
            }
        }
        if !at_start && lost_at_start > 0 {
            self.outcome.lost_at_start = lost_at_start;
            self.outcome.starts_ms = self.clean.first().map(|record| record.content.timestamp_ms());
        }
    }
}
