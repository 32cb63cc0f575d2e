//! The decision about one record, and what is written for it. The transaction is committed in `commit`.

use std::time::Duration;

use crate::clock::Clock;
use crate::dedupe::{Content, Coordinates, Digest, KnownOwner, Offset, Owner, Schemas, Verdict, Windows};
use crate::metrics::Outcome;
use crate::pipeline::commit::transaction::Transaction;
use crate::pipeline::error::{Fatal, WorkerError};
use crate::pipeline::journal::sealed::{SealedCopy, sealed_copy};
use crate::pipeline::journal::stored::Stored;
use crate::pipeline::options::{Mode, OnConflict, OnMissing, OnProbable, WorkerOptions};
use crate::pipeline::partition::Partition;
use crate::pipeline::partition::order::Arrival;
use crate::pipeline::partition::rejections::Refusal;
use crate::pipeline::ports::WorkerPorts;
use crate::pipeline::safeguard::Safeguard;
use crate::pipeline::worker::late::{late_record, skipped_record};
use crate::ports::{Epoch, Failure, OutputTopic, Reason, Record, Remedy, SealedLookup, Side, Sink, Source};

/// Result of the first pass for one record.
pub(crate) struct Lookup {
    /// Number of the record's kind.
    pub(crate) kind: usize,
    /// The identity, and what was found in slices; `None` when the record has no identity.
    pub(crate) identified: Option<SealedLookup>,
    /// What stands for its content.
    pub(crate) digest: Digest,
}

pub(crate) type RawOf<'a, W> = <<W as WorkerPorts>::Source as Source>::Record<'a>;

/// What a decision about a record uses, beside its partition.
///
/// Large because a decision needs each of these parts of the worker, which are borrowed one by one.
pub(crate) struct Step<'a, W: WorkerPorts> {
    pub(crate) sink: &'a mut W::Sink,
    pub(crate) store: &'a W::Store,
    pub(crate) schemas: &'a Schemas,
    pub(crate) clock: &'a W::Clock,
    pub(crate) options: &'a WorkerOptions,
    pub(crate) transaction: &'a mut Transaction,
    /// The windows of its journal.
    pub(crate) windows: &'a mut Windows,
    /// Arrival time of the chunk, epoch milliseconds.
    pub(crate) now_ms: i64,
    /// Whether rejected records of the partition follow the policy without retries.
    pub(crate) at_once: bool,
    /// Monotonic time of its arrival.
    pub(crate) fetched: Duration,
}

/// What follows a record.
pub(crate) enum AfterRecord {
    /// The record is processed; the next one of the chunk follows.
    Record,
    /// The next record, and after the chunk another seek: the start of the reading has to be confirmed.
    SeekAgain,
    /// A commit, and then the same record again.
    CommitBefore,
    /// A commit: the transaction, or the part of this partition, has reached its limit.
    CommitAfter,
}

impl<W: WorkerPorts> Step<'_, W> {
    /// Second pass: decides about one record.
    pub(crate) fn decide(
        &mut self,
        partition: &mut Partition,
        record: &mut RawOf<'_, W>,
        lookup: &Lookup,
    ) -> Result<AfterRecord, WorkerError> {
        let (at, next) = (record.coordinates(), partition.next);
        let rejections = &mut partition.rejections;
        if at.offset >= next && rejections.commits_before(at.offset, self.transaction.is_open()) {
            return Ok(AfterRecord::CommitBefore);
        }
        if let Some(late) = rejections.late_before(next, at.offset) {
            if self.transaction.is_open() {
                return Ok(AfterRecord::CommitBefore);
            }
            return Err(late_record(late, at, &self.options.raw));
        }
        let arrival = partition.order.judge(next, at.offset);
        match arrival {
            Arrival::Late | Arrival::Missed => rejections.note_late(at.offset),
            Arrival::Left => rejections.forget_late(),
            Arrival::Next | Arrival::Repeated | Arrival::Unproven => {}
        }
        if !self.is_next(arrival, at, partition.committed)? {
            let is_doubted = partition.order.is_doubted();
            return Ok(if is_doubted { AfterRecord::SeekAgain } else { AfterRecord::Record });
        }
        partition.rejections.note_next(at.offset);
        self.transaction.begin(self.sink, || self.clock.elapsed())?;
        let open = self.transaction.touch(at.partition, &mut partition.open);
        open.records += 1;
        let records = open.records;
        partition.time.observe(record.timestamp_ms(), self.now_ms.saturating_add(partition.ahead_ms));
        self.windows.observe(partition.time.ms());
        self.transaction.add(record.size());
        let outcome = self.outcome(partition, record, lookup)?;
        self.transaction.tally.count(lookup.kind, outcome);
        self.transaction.tally.seen(record.size());
        partition.next = at.offset + 1;
        partition.epoch = record.leader_epoch().map(|number| Epoch { next: at.offset + 1, number });
        let is_full =
            partition.rejections.limits(records) || self.transaction.is_full(self.options.transaction_limit);
        Ok(if is_full { AfterRecord::CommitAfter } else { AfterRecord::Record })
    }

    fn outcome(
        &mut self,
        partition: &mut Partition,
        record: &mut RawOf<'_, W>,
        lookup: &Lookup,
    ) -> Result<Outcome, WorkerError> {
        let at = record.coordinates();
        let exhausted = partition.rejections.exhausted(at.offset).cloned();
        let outcome = match (&exhausted, &lookup.identified) {
            (Some(refusal), _) => self.apply_rejection_policy(partition, record, refusal),
            _ if self.options.bypasses_window(lookup.kind) => {
                self.forward(partition, record, Outcome::Bypassed)
            }
            (None, None) => self.without_id(partition, record),
            (None, Some(sealed)) => self.with_id(partition, record, sealed, lookup),
        };
        match outcome {
            // Found before anything of the record was written or stored.
            Err(WorkerError::Kafka(failed)) if failed.damaged == Some(at) => {
                let refusal = Refusal { by: OutputTopic::Clean, error: failed.what };
                self.apply_rejection_policy(partition, record, &refusal)
            }
            outcome => outcome,
        }
    }

    /// Whether the record is the next one to process.
    fn is_next(&mut self, arrival: Arrival, at: Coordinates, committed: Offset) -> Result<bool, WorkerError> {
        match arrival {
            Arrival::Next => Ok(true),
            Arrival::Unproven | Arrival::Late | Arrival::Left | Arrival::Missed
                if !self.options.keeps(Safeguard::Gaps) =>
            {
                Ok(true)
            }
            Arrival::Repeated if !self.options.keeps(Safeguard::Repeats) => Ok(true),
            // The record is read again, after the seek.
            Arrival::Unproven | Arrival::Late | Arrival::Left => Ok(false),
            Arrival::Repeated => {
                // The client can return an offset twice (librdkafka#4637); the second time counts as stale.
                self.transaction.tally.count(0, Outcome::Stale);
                Ok(false)
            }
            Arrival::Missed => Err(skipped_record(at, committed, &self.options.raw)),
        }
    }

    fn with_id(
        &mut self,
        partition: &mut Partition,
        record: &mut RawOf<'_, W>,
        sealed: &SealedLookup,
        &Lookup { kind: number, digest, .. }: &Lookup,
    ) -> Result<Outcome, WorkerError> {
        let (at, key, time) = (record.coordinates(), &sealed.key, partition.time.record());
        let (Some(window), Some(kind)) = (self.windows.get(number), self.options.kinds.get(number)) else {
            let what = format!(
                "record {at} of topic {} has no window to be looked up in; aborting the transaction and reading it again",
                self.options.raw
            );
            return Err(Failure::new(Remedy::Abort, what).into());
        };
        let owners = Stored { store: self.store, window: sealed.window, is_partial: false };
        let verdict = window.verdict(at, time, key, &owners)?;
        let is_known = matches!(verdict, Verdict::Duplicate { .. });
        let sealed_copy = if !is_known && window.has_sealed() {
            sealed_copy(self.store, sealed, window, at, time)?
        } else {
            None
        };
        let outcome = match (verdict, sealed_copy) {
            (Verdict::Duplicate { owner: Owner { at, time_ms, digest: owners, .. } }, _)
            | (_, Some(SealedCopy::Owner(KnownOwner { at, time_ms, digest: owners }))) => {
                let owner = KnownOwner { at, time_ms, digest: owners };
                return self.duplicate(partition, record, owner, digest);
            }
            (Verdict::New, Some(SealedCopy::Filter { since_ms })) => {
                if kind.on_probable == OnProbable::Forward {
                    Outcome::Probable
                } else if self.is_forced(record) {
                    Outcome::Forced
                } else {
                    return self.probable(partition, record, kind.on_probable, since_ms);
                }
            }
            (Verdict::Retry, _) => Outcome::Retry,
            (Verdict::New, None) => Outcome::Forwarded,
        };
        // Before the id is admitted: its next copy may be accepted.
        if let Some(refusal) = self.certain_refusal(OutputTopic::Clean, record) {
            return self.apply_rejection_policy(partition, record, &refusal);
        }
        // A record that cannot be copied gets no owner.
        self.sink.forward(record)?;
        let owner = Owner { at, time_ms: time.stream_ms, identity: key.identity, digest };
        self.windows.admit(number, owner, key);
        self.forwarded(partition, record);
        Ok(outcome)
    }

    /// Forwards a record, unless the clean topic certainly rejects it.
    fn forward(
        &mut self,
        partition: &mut Partition,
        record: &mut RawOf<'_, W>,
        outcome: Outcome,
    ) -> Result<Outcome, WorkerError> {
        if let Some(refusal) = self.certain_refusal(OutputTopic::Clean, record) {
            return self.apply_rejection_policy(partition, record, &refusal);
        }
        self.write(partition, record)?;
        Ok(outcome)
    }

    fn write(&mut self, partition: &mut Partition, record: &mut RawOf<'_, W>) -> Result<(), WorkerError> {
        self.sink.forward(record)?;
        self.forwarded(partition, record);
        Ok(())
    }

    fn forwarded(&mut self, partition: &mut Partition, record: &RawOf<'_, W>) {
        partition.wrote();
        self.transaction.tally.forwarded(record.size(), self.fetched, record.timestamp_ms());
    }

    /// Writes a record to a side topic.
    pub(crate) fn divert(
        &mut self,
        partition: &mut Partition,
        side: Side,
        record: &RawOf<'_, W>,
        reason: &Reason,
    ) -> Result<(), Failure> {
        self.sink.divert(side, record, reason)?;
        partition.wrote();
        Ok(())
    }

    /// Whether the record has the header that forces it through, regardless of its id.
    fn is_forced(&self, record: &RawOf<'_, W>) -> bool {
        self.options.force_header.as_ref().is_some_and(|name| record.has_header(name))
    }

    /// A record whose id has another owner. The owner does not change, not even when the record is forced.
    fn duplicate(
        &mut self,
        partition: &mut Partition,
        record: &mut RawOf<'_, W>,
        owner: KnownOwner,
        digest: Digest,
    ) -> Result<Outcome, WorkerError> {
        if self.is_forced(record) {
            return self.forward(partition, record, Outcome::Forced);
        }
        let (at, content) = (record.coordinates(), owner.digest.compare(digest));
        self.transaction.tally.found(at, owner, content, partition.time.record());
        self.transaction.tally.found_by(&self.options.counted_by, &*record, self.schemas, content);
        let is_conflict = content == Content::Different;
        let side = match self.options.on_conflict {
            OnConflict::DeadLetter if is_conflict => Some(Side::DeadLetter),
            OnConflict::Stop if is_conflict && self.options.mode != Mode::Shadow => {
                return Err(self.conflict(at, owner.at).into());
            }
            _ => self.options.keep_duplicates.then_some(Side::Duplicates),
        };
        let (outcome, code) =
            if is_conflict { (Outcome::Conflict, "conflict") } else { (Outcome::Duplicate, "duplicate") };
        self.suppress(partition, record, outcome, side, || {
            let Coordinates { partition, offset } = owner.at;
            let other = if is_conflict { ", and other content" } else { "" };
            let detail =
                format!("the record at offset {offset} of partition {partition} has the same id{other}");
            let owner_ms = Some(owner.time_ms).filter(|ms| *ms > 0);
            Reason { owner: Some(owner.at), owner_ms, ..Reason::new(code, detail) }
        })
    }

    fn conflict(&self, at: Coordinates, owner: Coordinates) -> Fatal {
        Fatal::Operator(format!(
            "record {at} of topic {} has the id of record {owner} and other content, and identity.on_conflict is \"stop\": neither it nor any \
             record since the last commit was forwarded, and the next start reads them again. If attempts of one event differ, name \
             the fields that do not in identity.compare. If the id is not unique, add what distinguishes the records to identity.from, \
             and accept the new rule with identity.accept_change. To continue without a change of either, set identity.on_conflict to \
             drop or dead_letter",
            self.options.raw
        ))
    }

    fn probable(
        &mut self,
        partition: &mut Partition,
        record: &RawOf<'_, W>,
        policy: OnProbable,
        since_ms: i64,
    ) -> Result<Outcome, WorkerError> {
        let side = match policy {
            OnProbable::DeadLetter => Some(Side::DeadLetter),
            _ => self.options.keep_duplicates.then_some(Side::Duplicates),
        };
        self.suppress(partition, record, Outcome::Probable, side, || {
            let detail = format!(
                "the id was probably seen in the slice of the window that starts at {since_ms} epoch ms"
            );
            Reason { slice_ms: Some(since_ms), ..Reason::new("probable", detail) }
        })
    }

    fn without_id(
        &mut self,
        partition: &mut Partition,
        record: &mut RawOf<'_, W>,
    ) -> Result<Outcome, WorkerError> {
        let (rule, schemas, read) = (&self.options.rule, self.schemas, &*record);
        self.transaction.tally.without_id(|| rule.why_missing(read, schemas));
        let reason = || Reason::new("missing_id", rule.why_missing(read, schemas));
        // In shadow mode the record is written to the clean topic, with a mark.
        let is_shadow = self.options.mode == Mode::Shadow;
        let done = |outcome| if is_shadow { Outcome::MissingId } else { outcome };
        match self.options.on_missing {
            OnMissing::Forward | OnMissing::Source => self.forward(partition, record, Outcome::MissingId),
            OnMissing::DeadLetter => {
                let outcome = done(Outcome::MissingIdDeadLetter);
                self.suppress(partition, record, outcome, Some(Side::DeadLetter), reason)
            }
            OnMissing::Drop => {
                self.suppress(partition, record, done(Outcome::MissingIdDropped), None, reason)
            }
            OnMissing::Stop if is_shadow => {
                self.suppress(partition, record, Outcome::MissingId, None, reason)
            }
            OnMissing::Stop => Err(Fatal::Operator(format!(
                "record {} of topic {} cannot be decided: {}, and identity.on_missing is \"stop\"; correct \
                 identity.from, or choose forward, drop or dead_letter",
                record.coordinates(),
                self.options.raw,
                reason().detail
            ))
            .into()),
        }
    }

    /// Suppresses a record: it does not go to the clean topic. In shadow mode it does, with a mark.
    fn suppress(
        &mut self,
        partition: &mut Partition,
        record: &RawOf<'_, W>,
        outcome: Outcome,
        side: Option<Side>,
        reason: impl FnOnce() -> Reason,
    ) -> Result<Outcome, WorkerError> {
        let is_shadow = self.options.mode == Mode::Shadow;
        let topic = if is_shadow { Some(OutputTopic::Clean) } else { side.map(Side::topic) };
        if let Some(refusal) = topic.and_then(|topic| self.certain_refusal(topic, record)) {
            return self.apply_rejection_policy(partition, record, &refusal);
        }
        if is_shadow {
            self.sink.divert(Side::Clean, record, &reason())?;
            self.forwarded(partition, record);
        } else if let Some(side) = side {
            self.divert(partition, side, record, &reason())?;
        }
        Ok(outcome)
    }
}
