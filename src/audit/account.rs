//! What is wrong: copies and strays against what was expected, step by step.

use std::io;

use super::compare::{Gone, Scope};
use super::entry::{Copy, Filed, Link, Marks, Placed, Standing, Stranger, Taken};
use super::expected::{RawCounts, Rules};
use super::findings::{Findings, Kind, Step};
use super::ledger::{Ledger, Line};
use super::record::{Differing, Print};
use super::rise::{Copies, Members};
use super::spill::{Cursor, Scratch, Sorted, Sorter, Tape};
use crate::dedupe::Offset;

/// A copy whose id was there before, with its chain.
type Repeat = Link<Placed>;

/// The reckoning of one partition.
pub(super) struct Account<'a> {
    pub scratch: &'a Scratch,
    pub scope: Scope,
    pub rules: &'a Rules,
    pub raw: RawCounts,
    /// First offset of the range in raw.
    pub begin: Offset,
    /// Up to when a record that seems new may repeat one that is gone, ms of stream time.
    pub doubtful_until_ms: Option<i64>,
    pub findings: Findings,
    pub gone: u64,
    /// Clean records about which something before the range decides.
    pub outside: u64,
    /// Lost and phantom records, to be looked for in other partitions.
    pub strangers: &'a mut Sorter<Stranger>,
}

impl Account<'_> {
    fn add(&mut self, step: Step, kind: Kind, copy: &Copy, fields: Differing) {
        self.findings.add((step, copy.at, 0), kind, (Some(copy.place), Some(copy.at)), fields);
    }

    fn allows_gone(&self) -> bool {
        self.scope.gone != Gone::Nothing
    }

    /// Clean records that have a raw record: each but one of those that share it is a repeat. Gives the raw
    /// records taken, and the repeats of ids that the window may have forgotten.
    pub fn copies(
        &mut self,
        copies: &Copies,
        members: &Members,
    ) -> io::Result<(Tape<Taken>, Sorter<Repeat>)> {
        let mut taken = Tape::new(self.scratch);
        let mut again = Sorter::new(self.scratch, self.scratch.unit());
        let mut marked = copies.marked(members);
        if copies.rising {
            while let Some((copy, in_order)) = marked.next()? {
                let placed = Placed { copy, in_order };
                self.kept(&placed, copy.fields.is_none(), &mut again)?;
                taken.push(&placed.taken())?;
            }
            return Ok((taken, again));
        }
        let mut by_place = Sorter::new(self.scratch, 3 * self.scratch.unit());
        while let Some((copy, in_order)) = marked.next()? {
            by_place.push(Placed { copy, in_order })?;
        }
        let mut by_place = by_place.sorted()?;
        while let Some(kept) = by_place.next()? {
            let mut unchanged = kept.copy.fields.is_none();
            while let Some(other) = by_place.next_if(|other| other.copy.place == kept.copy.place)? {
                unchanged |= other.copy.fields.is_none();
                self.add(Step::Copies, Kind::Duplicated, &other.copy, Differing::default());
            }
            self.kept(&kept, unchanged, &mut again)?;
            taken.push(&kept.taken())?;
        }
        Ok((taken, again))
    }

    /// The copy that counts as its raw record; `unchanged` is whether any copy of that is.
    fn kept(&mut self, placed: &Placed, unchanged: bool, again: &mut Sorter<Repeat>) -> io::Result<()> {
        let copy = &placed.copy;
        let outside = copy.marks.is_outside();
        self.outside += u64::from(outside);
        if placed.in_order && copy.marks.has(Marks::AGAIN) {
            again.push(Link { chain: copy.chain, of: *placed })?;
        }
        if !unchanged && outside {
            return Ok(());
        }
        if !unchanged && self.allows_gone() {
            self.gone += 1;
            return Ok(());
        }
        if !unchanged {
            self.add(Step::Copies, Kind::Altered, copy, copy.fields);
        }
        if placed.in_order {
            return Ok(());
        }
        if self.allows_gone() && self.raw.holes {
            self.gone += 1;
        } else {
            self.add(Step::Copies, Kind::OutOfOrder, copy, Differing::default());
        }
        Ok(())
    }

    /// Ids that came again after the window: what followed such a record within the window must not be.
    pub fn repeats_within_window(&mut self, again: Sorter<Repeat>, chains: &Tape<Filed>) -> io::Result<()> {
        let mut again = again.sorted()?;
        let mut cursor = chains.cursor(0, u64::MAX);
        while let Some(Link { chain, .. }) = again.peek() {
            let Some(first) = cursor.at(chains, chain.start)? else { break };
            let mut owner_ms = Some(first.time_ms).filter(|_| !first.marks.has(Marks::OUTSIDE));
            cursor.seek(chain.start);
            while let Some(Link { of: repeat, .. }) = again.next_if(|link| link.chain == chain)? {
                let Some(time_ms) = arrival(&mut cursor, chains, repeat.copy.place)? else { break };
                if owner_ms.is_some_and(|owner_ms| self.rules.remembered(owner_ms, time_ms)) {
                    let (place, at) = (repeat.copy.place, repeat.copy.at);
                    let turn = (Step::Repeats, first.offset, place);
                    self.findings.add(turn, Kind::Duplicated, (Some(place), Some(at)), Differing::default());
                } else {
                    owner_ms = Some(time_ms);
                }
            }
        }
        Ok(())
    }

    /// Clean records without a raw record, a changed one if it stands where one is lost and resembles it;
    /// and what is lost.
    pub fn strays_and_losses(
        &mut self,
        mut strays: Sorted<Standing>,
        (copies, members): (&Copies, &Members),
        ledger: &mut Ledger<'_>,
    ) -> io::Result<()> {
        let mut before_first = self.scope.gone == Gone::Allowed { clean_trimmed: true };
        let mut marked = copies.marked(members);
        let (mut ahead, mut here) = (marked.next()?, self.begin);
        while let Some(Standing(stray)) = strays.next()? {
            if self.explained(&stray) {
                continue;
            }
            while let Some((copy, in_order)) = ahead.filter(|(copy, _)| copy.at < stray.offset) {
                if in_order {
                    here = here.max(copy.place + 1);
                }
                ahead = marked.next()?;
            }
            self.pass(ledger, here, &mut before_first)?;
            if let Some(entry) = ledger.resembling(&stray.content)? {
                here = entry.offset + 1;
                let fields = entry.content.differing(&stray.content);
                self.stray(Kind::Altered, Some(entry.offset), &stray, fields);
            } else {
                self.stray(Kind::Phantom, None, &stray, Differing::default());
                self.estranged(stray.print, false)?;
            }
        }
        self.pass(ledger, Offset::MAX, &mut before_first)
    }

    /// Whether something else than an error explains a record that is not in raw.
    fn explained(&mut self, stray: &Filed) -> bool {
        let older = self.rules.from_ms.is_some_and(|from_ms| stray.content.timestamp_ms() < from_ms);
        self.outside += u64::from(older);
        self.gone += u64::from(!older && self.allows_gone());
        older || self.allows_gone()
    }

    fn stray(&mut self, kind: Kind, place: Option<Offset>, stray: &Filed, fields: Differing) {
        self.findings.add((Step::Strays, stray.offset, 0), kind, (place, Some(stray.offset)), fields);
    }

    fn estranged(&mut self, print: Print, lost: bool) -> io::Result<()> {
        self.strangers.push(Stranger { print, partition: self.scope.partition, lost })
    }

    /// Expected records up to a place that nothing can be found for any more.
    fn pass(&mut self, ledger: &mut Ledger<'_>, end: Offset, before_first: &mut bool) -> io::Result<()> {
        while let Some(line) = ledger.pass(end)? {
            *before_first &= !line.in_order;
            self.loss(&line, *before_first)?;
        }
        Ok(())
    }

    fn loss(&mut self, line: &Line, before_first: bool) -> io::Result<()> {
        let Some(entry) = line.is_missing() else { return Ok(()) };
        let doubtful = self.doubtful_until_ms.is_some_and(|until_ms| entry.time_ms <= until_ms);
        if before_first || (doubtful && self.allows_gone()) {
            self.gone += 1;
            return Ok(());
        }
        let turn = (Step::Losses, line.place, 0);
        self.findings.add(turn, Kind::Lost, (Some(line.place), None), Differing::default());
        self.estranged(entry.print, true)
    }
}

/// When a record of a chain arrived; places rise from call to call.
fn arrival(cursor: &mut Cursor<Filed>, chains: &Tape<Filed>, place: Offset) -> io::Result<Option<i64>> {
    while let Some(entry) = cursor.next(chains)? {
        if entry.offset == place {
            return Ok(Some(entry.time_ms));
        }
    }
    Ok(None)
}
