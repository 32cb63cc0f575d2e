//! One poll loop iteration for records: poll, decide, write. The transaction is committed in `commit`.

use std::time::Duration;

use super::error::{Fatal, WorkerError};
use super::loading::Stored;
use super::options::{Mode, OnMissing, OnProbable};
use super::order::Arrival;
use super::safeguard::Safeguard;
use super::worker::{Core, World};
use crate::clock::Clock;
use crate::dedupe::{Coordinates, Look, Offset, Verdict, Window};
use crate::metrics::Outcome;
use crate::ports::{Epoch, Failure, Reason, Record, Remedy, Side, Sink, Source};

/// Records per chunk. Looking up a whole chunk first overlaps the memory accesses of its records.
pub(super) const CHUNK: usize = 256;

/// Result of the first pass for one record.
struct Lookup {
    /// Number of the record's kind.
    kind: usize,
    /// Position of the identity in the index; `None` when the record has no identity.
    look: Option<Look>,
}

/// A record arrived that had been skipped as a gap in the log.
fn skipped_record(at: Coordinates, committed: Offset, raw: &str) -> WorkerError {
    let problem = format!(
        "record {at} of topic {raw} arrived after records with higher offsets, and had been skipped as a gap in the log"
    );
    if at.offset >= committed {
        let what = format!("{problem}; aborting the transaction and reading again from offset {committed}");
        return Failure::new(Remedy::Abort, what).into();
    }
    Fatal::Operator(format!(
        "{problem}; the later records are committed, so this record would be lost. Please report this bug. To write the \
         record, stop dedupd, set the group's offset for the partition to {} and start once with group.on_rewind = \"reemit\"",
        at.offset
    ))
    .into()
}

pub(super) type RawOf<'a, W> = <<W as World>::Source as Source>::Record<'a>;

/// Polls the records that are available, at most one chunk; waits only for the first. The records polled before a
/// failure are returned with it: the client does not return them again.
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
    /// Decides about each record of a chunk and writes the new ones. Commits whenever the transaction is full.
    pub(super) fn process(&mut self, source: &W::Source, chunk: &[RawOf<'_, W>]) -> Result<(), WorkerError> {
        let lookups: Vec<Lookup> = chunk.iter().map(|record| self.look(record)).collect();
        let now_ms = self.time.now_ms(&self.clock);
        for (record, lookup) in chunk.iter().zip(&lookups) {
            if self.commits_before(record.coordinates()) {
                self.commit(source)?;
            }
            let limit_reached = self.decide(record, lookup, now_ms).map_err(WorkerError::rewinding)?;
            if limit_reached || self.batch.is_full(&self.options) {
                self.commit(source)?;
            }
        }
        self.seek_again(source).map_err(WorkerError::rewinding)
    }

    /// Seeks the partitions again whose first record after a seek lies beyond the expected offset.
    fn seek_again(&mut self, source: &W::Source) -> Result<(), WorkerError> {
        for partition in self.partitions.iter_mut().filter(|p| p.is_running() && p.order.is_doubted()) {
            source.seek(&[(partition.id, partition.next)])?;
            partition.order.sought_again();
        }
        Ok(())
    }

    /// First pass: kind and identity, and a prefetch of the index bucket.
    fn look(&self, record: &RawOf<'_, W>) -> Lookup {
        let kind = self.options.kinds.number_of(record);
        if self.bypasses_window(kind) {
            return Lookup { kind, look: None };
        }
        let look = self.options.rule.identify(record).map(|identity| {
            let window = self.window(record, kind);
            window.map_or_else(|| Look::at(identity), |window| window.look(identity))
        });
        Lookup { kind, look }
    }

    /// Whether records of this kind are forwarded without a lookup in the window.
    fn bypasses_window(&self, kind: usize) -> bool {
        self.options.mode == Mode::Bypass || self.options.kinds.get(kind).is_none_or(|it| it.window.is_none())
    }

    fn window(&self, record: &RawOf<'_, W>, kind: usize) -> Option<&Window> {
        self.partitions.get(record.coordinates().partition)?.windows.as_ref()?.get(kind)
    }

    /// Second pass: decides about one record. True when its partition has reached its limit for this transaction.
    fn decide(&mut self, record: &RawOf<'_, W>, lookup: &Lookup, now_ms: i64) -> Result<bool, WorkerError> {
        let at = record.coordinates();
        let Some(partition) = self.partitions.get_mut(at.partition).filter(|p| p.is_running()) else {
            // The record was fetched before its partition was paused or revoked; it is read again.
            return Ok(false);
        };
        let arrival = partition.order.judge(partition.next, at.offset);
        match arrival {
            Arrival::Unproven | Arrival::Missed if !self.options.keeps(Safeguard::Gaps) => {}
            Arrival::Next => {}
            // The record is read again, after the seek.
            Arrival::Unproven => return Ok(false),
            Arrival::Repeated if !self.options.keeps(Safeguard::Repeats) => {}
            Arrival::Repeated => {
                // The client can return an offset twice (librdkafka#4637); the second time counts as stale.
                self.tally.count(0, Outcome::Stale);
                return Ok(false);
            }
            Arrival::Missed => return Err(skipped_record(at, partition.committed, &self.options.raw)),
        }
        self.batch.begin(&mut self.sink, || self.clock.elapsed())?;
        let Some(windows) = partition.windows.as_mut() else { return Ok(false) };
        let open = self.batch.touch(at.partition, &mut partition.open);
        windows.observe(record.timestamp_ms(), now_ms.saturating_add(partition.ahead_ms));
        open.records += 1;
        let records = open.records;
        self.batch.add(record.size());
        let is_rejected = partition.rejected.as_ref().is_some_and(|(offset, _)| *offset == at.offset);
        let outcome = match &lookup.look {
            _ if is_rejected => self.apply_rejection_policy(record)?,
            _ if self.bypasses_window(lookup.kind) => {
                self.forward(record)?;
                Outcome::Bypassed
            }
            None => self.without_id(record)?,
            Some(look) => self.with_id(record, lookup.kind, look)?,
        };
        self.tally.count(lookup.kind, outcome);
        self.tally.seen(record.size(), record.timestamp_ms());
        let Some(partition) = self.partitions.get_mut(at.partition) else { return Ok(false) };
        partition.next = at.offset + 1;
        partition.epoch = record.leader_epoch().map(|number| Epoch { next: at.offset + 1, number });
        Ok(partition.limit.is_some_and(|limit| records >= limit))
    }

    fn with_id(&mut self, record: &RawOf<'_, W>, number: usize, look: &Look) -> Result<Outcome, WorkerError> {
        let at = record.coordinates();
        let (Some(window), Some(kind)) = (self.window(record, number), self.options.kinds.get(number)) else {
            let what = format!(
                "record {at} of topic {} has no window to be looked up in; aborting the transaction and reading it again",
                self.options.raw
            );
            return Err(Failure::new(Remedy::Abort, what).into());
        };
        let (policy, window_id) = (kind.on_probable, kind.id.window(at.partition));
        let owners = Stored { store: &self.store, window: window_id };
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

    fn forward(&mut self, record: &RawOf<'_, W>) -> Result<(), WorkerError> {
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

    /// Whether the record has the header that forces it through, regardless of its id.
    fn is_forced(&self, record: &RawOf<'_, W>) -> bool {
        self.options.force_header.as_ref().is_some_and(|name| record.has_header(name))
    }

    /// A record whose id has another owner. The owner does not change, not even when the record is forced.
    fn duplicate(
        &mut self,
        record: &RawOf<'_, W>,
        owner: Offset,
        owner_ms: Option<i64>,
    ) -> Result<Outcome, WorkerError> {
        if self.is_forced(record) {
            self.forward(record)?;
            return Ok(Outcome::Forced);
        }
        let side = self.options.keep_duplicates.then_some(Side::Duplicates);
        self.suppress(record, Outcome::Duplicate, side, || {
            let detail = format!("the record at offset {owner} of the same partition has the same id");
            Reason { owner: Some(owner), owner_ms, ..Reason::new("duplicate", detail) }
        })
    }

    fn probable(
        &mut self,
        record: &RawOf<'_, W>,
        policy: OnProbable,
        since_ms: i64,
    ) -> Result<Outcome, WorkerError> {
        let side = match policy {
            OnProbable::DeadLetter => Some(Side::DeadLetter),
            _ => self.options.keep_duplicates.then_some(Side::Duplicates),
        };
        self.suppress(record, Outcome::Probable, side, || {
            let detail = format!(
                "the id was probably seen in the slice of the window that starts at {since_ms} epoch ms"
            );
            Reason { slice_ms: Some(since_ms), ..Reason::new("probable", detail) }
        })
    }

    fn without_id(&mut self, record: &RawOf<'_, W>) -> Result<Outcome, WorkerError> {
        let reason = || Reason::new("missing_id", "the record has no usable id".to_owned());
        match self.options.on_missing {
            OnMissing::Forward => {
                self.forward(record)?;
                Ok(Outcome::MissingId)
            }
            OnMissing::Drop => self.suppress(record, Outcome::MissingId, None, reason),
            OnMissing::DeadLetter => {
                self.suppress(record, Outcome::DeadLetter, Some(Side::DeadLetter), reason)
            }
            OnMissing::Stop if self.options.mode == Mode::Shadow => {
                self.suppress(record, Outcome::MissingId, None, reason)
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

    /// Suppresses a record: it does not go to the clean topic. In shadow mode it does, with a mark.
    fn suppress(
        &mut self,
        record: &RawOf<'_, W>,
        outcome: Outcome,
        side: Option<Side>,
        reason: impl FnOnce() -> Reason,
    ) -> Result<Outcome, WorkerError> {
        if self.options.mode == Mode::Shadow {
            self.sink.divert(Side::Clean, record, &reason())?;
            self.forwarded(record);
        } else if let Some(side) = side {
            self.divert(side, record, &reason())?;
        }
        Ok(outcome)
    }
}
