//! The way of a batch: gather, decide, write. What ends it is in `commit`.

use std::time::Duration;

use super::loading::Stored;
use super::options::{Mode, OnMissing, OnProbable};
use super::order::Arrival;
use super::safeguard::Safeguard;
use super::trouble::{Fatal, Trouble};
use super::worker::{Core, World};
use crate::clock::Clock;
use crate::dedupe::{Coordinates, Look, Offset, Verdict, Window};
use crate::metrics::Outcome;
use crate::ports::{Epoch, Failure, Reason, Record, Remedy, Side, Sink, Source};

/// Records looked at together, so that the memory accesses of one overlap with those of the others.
pub(super) const CHUNK: usize = 256;

/// What the first pass found of a record.
struct Looked {
    /// The number of its kind.
    kind: usize,
    /// Where its identity stands; `None` when it has none.
    look: Option<Look>,
}

/// A record comes that was passed over as a gap of the log.
fn missed(at: Coordinates, committed: Offset, raw: &str) -> Trouble {
    let names = format!(
        "record {at} of topic {raw} comes after records beyond it, though it was passed over as a gap"
    );
    if at.offset >= committed {
        let what = format!("{names}; aborting the transaction and reading from offset {committed} again");
        return Failure { remedy: Remedy::Abort, what, refused: None }.into();
    }
    Fatal::Operator(format!(
        "{names}, and those are committed; it would be lost. Please report it; to write it all the same, stop dedupd, set the \
         group's offset for the partition to {} and start once with group.on_rewind = \"reemit\"",
        at.offset
    ))
    .into()
}

pub(super) type RawOf<'a, W> = <<W as World>::Source as Source>::Record<'a>;

/// Takes the records that are there, at most a chunk, waiting only for the first. What was taken
/// before a failure comes with it: the client will not hand those records over again.
pub(super) fn gather<S: Source>(source: &S, wait: Duration) -> (Vec<S::Record<'_>>, Result<(), Failure>) {
    let mut chunk = Vec::with_capacity(CHUNK);
    let mut wait = wait;
    while chunk.len() < CHUNK {
        match source.poll(wait) {
            Ok(Some(record)) => chunk.push(record),
            Ok(None) => break,
            Err(failed) => return (chunk, Err(failed)),
        }
        wait = Duration::ZERO;
    }
    (chunk, Ok(()))
}

impl<W: World> Core<W> {
    /// Decides about each record of a chunk and writes what is new; commits whenever the batch is full.
    pub(super) fn process(&mut self, source: &W::Source, chunk: &[RawOf<'_, W>]) -> Result<(), Trouble> {
        let looks: Vec<Looked> = chunk.iter().map(|record| self.look(record)).collect();
        let now_ms = self.time.now_ms(&self.clock);
        for (record, looked) in chunk.iter().zip(&looks) {
            if self.parts_before(record.coordinates()) {
                self.commit(source)?;
            }
            let limit_reached = self.decide(record, looked, now_ms).map_err(Trouble::rewinding)?;
            if limit_reached || self.batch.is_full(&self.options) {
                self.commit(source)?;
            }
        }
        self.seek_again(source).map_err(Trouble::rewinding)
    }

    /// Seeks partitions again whose reading began beyond the record that is expected.
    fn seek_again(&mut self, source: &W::Source) -> Result<(), Trouble> {
        for partition in self.partitions.iter_mut().filter(|p| p.is_running() && p.order.is_doubted()) {
            source.seek(&[(partition.id, partition.next)])?;
            partition.order.sought_again();
        }
        Ok(())
    }

    /// First pass: kind and identity, and a hint to the memory that its bucket will be needed.
    fn look(&self, record: &RawOf<'_, W>) -> Looked {
        let kind = self.options.kinds.number_of(record);
        if self.passes_unseen(kind) {
            return Looked { kind, look: None };
        }
        let look = self.options.rule.identify(record).map(|identity| {
            let window = self.window(record, kind);
            window.map_or_else(|| Look::at(identity), |window| window.look(identity))
        });
        Looked { kind, look }
    }

    /// Whether records of this kind are forwarded without a look.
    fn passes_unseen(&self, kind: usize) -> bool {
        self.options.mode == Mode::Bypass || self.options.kinds.get(kind).is_none_or(|it| it.window.is_none())
    }

    fn window(&self, record: &RawOf<'_, W>, kind: usize) -> Option<&Window> {
        self.partitions.get(record.coordinates().partition)?.windows.as_ref()?.get(kind)
    }

    /// Second pass: one record. True when its partition may take no more in this transaction.
    fn decide(&mut self, record: &RawOf<'_, W>, looked: &Looked, now_ms: i64) -> Result<bool, Trouble> {
        let at = record.coordinates();
        let Some(partition) = self.partitions.get_mut(at.partition).filter(|p| p.is_running()) else {
            // Fetched before its partition was paused or given away; it will be read again.
            return Ok(false);
        };
        let arrival = partition.order.judge(partition.next, at.offset);
        match arrival {
            Arrival::Unproven | Arrival::Missed if !self.options.keeps(Safeguard::Gaps) => {}
            Arrival::Next => {}
            // Comes again, once the partition has been sought again.
            Arrival::Unproven => return Ok(false),
            Arrival::Repeated if !self.options.keeps(Safeguard::Repeats) => {}
            Arrival::Repeated => {
                // The client can hand over an offset twice; the second time it is no record.
                self.tally.count(0, Outcome::Stale);
                return Ok(false);
            }
            Arrival::Missed => return Err(missed(at, partition.committed, &self.options.raw)),
        }
        self.batch.begin(&mut self.sink, || self.clock.elapsed())?;
        let Some(windows) = partition.windows.as_mut() else { return Ok(false) };
        let open = self.batch.touch(at.partition, &mut partition.open);
        windows.observe(record.timestamp_ms(), now_ms.saturating_add(partition.ahead_ms));
        open.records += 1;
        let records = open.records;
        self.batch.add(record.size());
        let poisoned = partition.poison.as_ref().is_some_and(|(offset, _)| *offset == at.offset);
        let outcome = match &looked.look {
            _ if poisoned => self.set_aside(record)?,
            _ if self.passes_unseen(looked.kind) => {
                self.forward(record)?;
                Outcome::Bypassed
            }
            None => self.without_id(record)?,
            Some(look) => self.with_id(record, looked.kind, look)?,
        };
        self.tally.count(looked.kind, outcome);
        self.tally.seen(record.size(), record.timestamp_ms());
        let Some(partition) = self.partitions.get_mut(at.partition) else { return Ok(false) };
        partition.next = at.offset + 1;
        partition.epoch = record.leader_epoch().map(|number| Epoch { next: at.offset + 1, number });
        Ok(partition.limit.is_some_and(|limit| records >= limit))
    }

    fn with_id(&mut self, record: &RawOf<'_, W>, number: usize, look: &Look) -> Result<Outcome, Trouble> {
        let at = record.coordinates();
        let (Some(window), Some(kind)) = (self.window(record, number), self.options.kinds.get(number)) else {
            return Ok(Outcome::Stale);
        };
        let (policy, filed) = (kind.on_probable, kind.id.filed(at.partition));
        let owners = Stored { store: &self.store, partition: filed };
        let outcome = match window.verdict(at.offset, look, &owners)? {
            Verdict::Duplicate { owner } => {
                let owner_ms = Some(window.arrived_ms(owner)).filter(|ms| *ms > 0);
                return self.duplicate(record, owner, owner_ms);
            }
            Verdict::Probable { .. } if policy == OnProbable::Forward => Outcome::Probable,
            Verdict::Probable { .. } if self.is_forced(record) => Outcome::Forced,
            Verdict::Probable { since_ms } => return self.probable(record, policy, since_ms),
            Verdict::Retry => Outcome::Retry,
            Verdict::New => Outcome::Forwarded,
        };
        let windows = self.partitions.get_mut(at.partition).and_then(|p| p.windows.as_mut());
        if let Some(window) = windows.and_then(|windows| windows.get_mut(number)) {
            window.admit(at.offset, look);
        }
        self.forward(record)?;
        Ok(outcome)
    }

    fn forward(&mut self, record: &RawOf<'_, W>) -> Result<(), Trouble> {
        self.sink.forward(record)?;
        self.forwarded(record);
        Ok(())
    }

    fn forwarded(&mut self, record: &RawOf<'_, W>) {
        self.wrote(record);
        self.tally.forwarded(record.size());
    }

    fn wrote(&mut self, record: &RawOf<'_, W>) {
        let partition = self.partitions.get_mut(record.coordinates().partition);
        if let Some(open) = partition.and_then(|partition| partition.open.as_mut()) {
            open.wrote = true;
        }
    }

    /// Writes a record to a side topic.
    pub(super) fn divert(
        &mut self,
        side: Side,
        record: &RawOf<'_, W>,
        reason: &Reason,
    ) -> Result<(), Failure> {
        self.sink.divert(side, record, reason)?;
        self.wrote(record);
        Ok(())
    }

    /// Whether the producer wants this record through whatever its id.
    fn is_forced(&self, record: &RawOf<'_, W>) -> bool {
        self.options.force_header.as_ref().is_some_and(|name| record.has_header(name))
    }

    /// A record whose id another one has: its owner stays what it is, also when the record is forced.
    fn duplicate(
        &mut self,
        record: &RawOf<'_, W>,
        owner: Offset,
        owner_ms: Option<i64>,
    ) -> Result<Outcome, Trouble> {
        if self.is_forced(record) {
            self.forward(record)?;
            return Ok(Outcome::Forced);
        }
        let side = self.options.keep_duplicates.then_some(Side::Duplicates);
        self.leave_out(record, Outcome::Duplicate, side, || {
            let detail = format!("the record at offset {owner} of the same partition has the same id");
            Reason { owner: Some(owner), owner_ms, ..Reason::new("duplicate", detail) }
        })
    }

    fn probable(
        &mut self,
        record: &RawOf<'_, W>,
        policy: OnProbable,
        since_ms: i64,
    ) -> Result<Outcome, Trouble> {
        let side = match policy {
            OnProbable::DeadLetter => Some(Side::DeadLetter),
            _ => self.options.keep_duplicates.then_some(Side::Duplicates),
        };
        self.leave_out(record, Outcome::Probable, side, || {
            let detail =
                format!("the id was probably seen in the slice of the window that begins at {since_ms} ms");
            Reason { slice_ms: Some(since_ms), ..Reason::new("probable", detail) }
        })
    }

    fn without_id(&mut self, record: &RawOf<'_, W>) -> Result<Outcome, Trouble> {
        let reason = || Reason::new("missing_id", "the record has no usable id".to_owned());
        match self.options.on_missing {
            OnMissing::Forward => {
                self.forward(record)?;
                Ok(Outcome::MissingId)
            }
            OnMissing::Drop => self.leave_out(record, Outcome::MissingId, None, reason),
            OnMissing::DeadLetter => {
                self.leave_out(record, Outcome::DeadLetter, Some(Side::DeadLetter), reason)
            }
            OnMissing::Stop if self.options.mode == Mode::Shadow => {
                self.leave_out(record, Outcome::MissingId, None, reason)
            }
            OnMissing::Stop => Err(Fatal::Operator(format!(
                "record {} of topic {} has no usable id and identity.on_missing is \"stop\"; correct \
                 identity.from, or choose forward, drop or dead_letter",
                record.coordinates(),
                self.options.raw
            ))
            .into()),
        }
    }

    /// A record that does not go to the clean topic; in shadow mode it does, marked.
    fn leave_out(
        &mut self,
        record: &RawOf<'_, W>,
        outcome: Outcome,
        side: Option<Side>,
        reason: impl FnOnce() -> Reason,
    ) -> Result<Outcome, Trouble> {
        if self.options.mode == Mode::Shadow {
            self.sink.divert(Side::Clean, record, &reason())?;
            self.forwarded(record);
        } else if let Some(side) = side {
            self.divert(side, record, &reason())?;
        }
        Ok(outcome)
    }
}
