//! The way of a batch: gather, decide, write, commit. Every effect happens here, in this order.
//!
//! What a crash costs, at each point: until the commit, nothing, because the transaction aborts and
//! the committed offset has not moved; the local store may then hold blocks that never became real,
//! which the next start recognises by their owners. After the commit, nothing, because everything
//! needed is in it.

use std::time::Duration;

use super::checkpoint::{Checkpoint, Origin, Tail};
use super::failpoint;
use super::options::{OnMissing, OnPoison, OnProbable};
use super::partition::{Open, Partition};
use super::trouble::{Fatal, Trouble};
use super::worker::{Core, World};
use crate::clock::Clock;
use crate::dedupe::{Block, Coordinates, Identity, Look, Offset, Owners, PartitionId, Verdict, Window};
use crate::metrics::Outcome;
use crate::ports::{Failure, Head, Position, Reason, Record, Remedy, Sink, Source, Store, StoreError};

/// Records looked at together, so that the memory accesses of one overlap with those of the others.
pub(super) const CHUNK: usize = 256;

/// Longest slice of one blocking broker call.
const SLICE: Duration = Duration::from_secs(2);

/// The owners of one partition, as the store knows them.
struct Stored<'a, T> {
    store: &'a T,
    partition: PartitionId,
}

impl<T: Store> Owners for Stored<'_, T> {
    type Error = StoreError;

    fn identity_of(&self, owner: Offset) -> Result<Option<Identity>, StoreError> {
        let at = Coordinates { partition: self.partition, offset: owner };
        match self.store.identity_of(at)? {
            // The window asks only for owners that it holds, and the store must hold them too.
            None => Err(StoreError::Corrupt(format!("the owner {at} is remembered, but not stored"))),
            known => Ok(known),
        }
    }
}

type RawOf<'a, W> = <<W as World>::Source as Source>::Record<'a>;

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
        let looks: Vec<Option<Look>> = chunk.iter().map(|record| self.look(record)).collect();
        let now_ms = self.clock.wall_ms();
        for (record, look) in chunk.iter().zip(&looks) {
            let limit_reached = self.decide(record, look.as_ref(), now_ms).map_err(Trouble::rewinding)?;
            if limit_reached || self.batch.is_full(&self.options) {
                self.commit(source)?;
            }
        }
        Ok(())
    }

    /// First pass: the identity, and a hint to the memory that its bucket will be needed.
    fn look(&self, record: &RawOf<'_, W>) -> Option<Look> {
        let identity = self.options.rule.identify(record)?;
        let window = self.partitions.get(record.coordinates().partition).and_then(|p| p.window.as_ref());
        Some(window.map_or_else(|| Look::at(identity), |window| window.look(identity)))
    }

    /// Second pass: one record. True when its partition may take no more in this transaction.
    fn decide(&mut self, record: &RawOf<'_, W>, look: Option<&Look>, now_ms: i64) -> Result<bool, Trouble> {
        let at = record.coordinates();
        let Some(partition) = self.partitions.get_mut(at.partition).filter(|p| p.is_running()) else {
            // Fetched before its partition was paused or given away; it will be read again.
            return Ok(false);
        };
        if at.offset < partition.next {
            // The client can hand over an offset twice; the second time it is no record.
            self.tally.count(Outcome::Stale);
            return Ok(false);
        }
        self.batch.begin(&mut self.sink, || self.clock.elapsed())?;
        let Some(window) = partition.window.as_mut() else { return Ok(false) };
        let open = partition.open.get_or_insert_with(Open::default);
        window.observe(record.timestamp_ms(), now_ms);
        open.records += 1;
        let records = open.records;
        self.batch.add(record.size());
        let poisoned = partition.poison.as_ref().is_some_and(|(offset, _)| *offset == at.offset);
        let outcome = match look {
            _ if poisoned => self.set_aside(record)?,
            None => self.without_id(record)?,
            Some(look) => self.with_id(record, look)?,
        };
        self.tally.count(outcome);
        self.tally.seen(record.size(), record.timestamp_ms());
        let Some(partition) = self.partitions.get_mut(at.partition) else { return Ok(false) };
        partition.next = at.offset + 1;
        Ok(partition.limit.is_some_and(|limit| records >= limit))
    }

    fn with_id(&mut self, record: &RawOf<'_, W>, look: &Look) -> Result<Outcome, Trouble> {
        let at = record.coordinates();
        let Some(partition) = self.partitions.get_mut(at.partition) else { return Ok(Outcome::Stale) };
        let Some(window) = partition.window.as_mut() else { return Ok(Outcome::Stale) };
        let owners = Stored { store: &self.store, partition: at.partition };
        let outcome = match window.verdict(at.offset, look, &owners)? {
            Verdict::Duplicate { .. } => return Ok(Outcome::Duplicate),
            Verdict::Probable { since_ms } => match self.options.on_probable {
                OnProbable::Drop => return Ok(Outcome::Probable),
                OnProbable::DeadLetter => return self.probable(record, since_ms),
                OnProbable::Forward => Outcome::Probable,
            },
            Verdict::Retry => Outcome::Retry,
            Verdict::New => Outcome::Forwarded,
        };
        window.admit(at.offset, look);
        self.forward(record)?;
        Ok(outcome)
    }

    fn forward(&mut self, record: &RawOf<'_, W>) -> Result<(), Trouble> {
        self.sink.forward(record)?;
        if let Some(open) =
            self.partitions.get_mut(record.coordinates().partition).and_then(|p| p.open.as_mut())
        {
            open.forwarded = true;
        }
        self.tally.forwarded(record.size());
        Ok(())
    }

    fn probable(&mut self, record: &RawOf<'_, W>, since_ms: i64) -> Result<Outcome, Trouble> {
        let detail =
            format!("the id was probably seen in the slice of the window that begins at {since_ms} ms");
        self.sink.dead_letter(record, &Reason { code: "probable", detail })?;
        Ok(Outcome::Probable)
    }

    fn without_id(&mut self, record: &RawOf<'_, W>) -> Result<Outcome, Trouble> {
        match self.options.on_missing {
            OnMissing::Forward => self.forward(record)?,
            OnMissing::Drop => {}
            OnMissing::DeadLetter => {
                let detail = "the record has no usable id".to_owned();
                self.sink.dead_letter(record, &Reason { code: "missing_id", detail })?;
                return Ok(Outcome::DeadLetter);
            }
            OnMissing::Stop => {
                return Err(Fatal::Operator(format!(
                    "record {} of topic {} has no usable id and identity.on_missing is \"stop\"; correct \
                     identity.from, or choose forward, drop or dead_letter",
                    record.coordinates(),
                    self.options.raw
                ))
                .into());
            }
        }
        Ok(Outcome::MissingId)
    }

    /// A record that the broker refused, by policy.
    fn set_aside(&mut self, record: &RawOf<'_, W>) -> Result<Outcome, Trouble> {
        let at = record.coordinates();
        let said = self
            .partitions
            .get(at.partition)
            .and_then(|p| p.poison.as_ref().map(|(_, said)| said.clone()))
            .unwrap_or_default();
        match self.options.on_poison {
            OnPoison::Stop => Err(Fatal::Operator(format!(
                "record {at} of topic {} cannot be written: {said}; change what the clean topic accepts \
                 (max.message.bytes, message.timestamp.after.max.ms), or set state.on_poison to dead_letter or drop",
                self.options.raw
            ))
            .into()),
            OnPoison::DeadLetter => {
                self.sink.dead_letter(record, &Reason { code: "refused", detail: said })?;
                Ok(Outcome::DeadLetter)
            }
            OnPoison::Drop => Ok(Outcome::Refused),
        }
    }

    /// Commits the open transaction: records, blocks and offsets together, or none of them. One that
    /// failed is never gone on with: a partition given away meanwhile would be missing in its offsets.
    pub(super) fn commit(&mut self, source: &W::Source) -> Result<(), Trouble> {
        if !self.batch.is_open() {
            return Ok(());
        }
        self.commit_open(source).map_err(Trouble::rewinding)
    }

    fn commit_open(&mut self, source: &W::Source) -> Result<(), Trouble> {
        let started = self.clock.elapsed();
        failpoint::pass("before_store");
        // Local first, while the broker is still acknowledging: a crash from here on leaves owners at
        // or beyond C in the store, and the next start makes claims of them.
        let blocks = self.store_blocks()?;
        failpoint::pass("after_store");
        self.sink.drain(self.options.transaction_timeout)?;
        failpoint::pass("after_drain");
        for (partition, block) in &blocks {
            let origin =
                Origin { clean_end: self.sink.clean_end(*partition), writer: self.options.writer.clone() };
            self.sink.put_state(*partition, &origin.render(), block)?;
            self.tally.block(block.len());
        }
        failpoint::pass("after_state_records");
        self.send_offsets(source)?;
        failpoint::pass("after_send_offsets");
        // The client's commit would flush the state records in steps of 100 ms.
        self.sink.drain(self.options.transaction_timeout)?;
        failpoint::pass("before_commit");
        self.persistently(Sink::commit)?;
        failpoint::pass("after_commit");
        self.apply()?;
        failpoint::pass("after_apply");
        let took = self.clock.elapsed().saturating_sub(started);
        self.report.transaction(&mut self.tally, took, self.clock.wall_ms());
        Ok(())
    }

    /// Writes the blocks of the open transaction to the local store, and returns them encoded.
    fn store_blocks(&mut self) -> Result<Vec<(PartitionId, Vec<u8>)>, Trouble> {
        let mut blocks = Vec::new();
        for partition in self.partitions.open_mut() {
            for block in partition.blocks(self.options.hash) {
                let encoded = block.encode();
                let tail = Tail { crc: Block::checksum(&encoded), next: block.next };
                if let Some(open) = partition.open.as_mut() {
                    open.tail = Some(tail);
                }
                let head = Head { tail: Some((tail.crc, tail.next)), ..partition.head() };
                self.store.append(&block, head)?;
                blocks.push((partition.id, encoded));
            }
        }
        Ok(blocks)
    }

    fn send_offsets(&mut self, source: &W::Source) -> Result<(), Trouble> {
        let mut positions = Vec::new();
        for partition in self.partitions.open_mut() {
            let position = position(partition, &self.options.writer);
            if let Some(open) = partition.open.as_mut() {
                open.sent = Some((position.next, position.metadata.clone()));
            }
            positions.push(position);
        }
        let ids: Vec<PartitionId> = positions.iter().map(|p| p.partition).collect();
        // The broker does not check all of this (KAFKA.md 9.1): an un-joined member's offsets are
        // accepted, and ownership of a partition is never verified.
        if !source.may_commit(&ids) {
            return Err(Failure {
                remedy: Remedy::Abort,
                what: format!(
                    "this process no longer owns all of partitions {ids:?} of topic {}; aborting",
                    self.options.raw
                ),
                refused: None,
            }
            .into());
        }
        self.persistently(|sink, wait| sink.send_offsets(source, &positions, wait))
    }

    /// Repeats a call that may be resumed, for as long as the transaction can live; then its outcome
    /// counts as unknown.
    fn persistently(
        &mut self,
        mut call: impl FnMut(&mut W::Sink, Duration) -> Result<(), Failure>,
    ) -> Result<(), Trouble> {
        let deadline = self.clock.elapsed() + self.options.transaction_timeout;
        loop {
            match call(&mut self.sink, SLICE) {
                Ok(()) => return Ok(()),
                Err(failed) if failed.remedy == Remedy::Retry && self.clock.elapsed() < deadline => {
                    self.clock.rest(Duration::from_millis(50));
                }
                Err(failed) => return Err(Trouble::exhausted(failed).into()),
            }
        }
    }

    /// The transaction is real: so is what was pending. Only now may anything expire.
    fn apply(&mut self) -> Result<(), Trouble> {
        for partition in self.partitions.open_mut() {
            let first_live = partition.commit(self.sink.state_end(partition.id));
            StoreError::unless_taken(self.store.expire(partition.id, first_live))?;
        }
        self.batch.close();
        self.failures = 0;
        self.enforce_limits()
    }

    /// An abort that touches a partition with a committed leftover would undo the leftover.
    fn keep_leftovers(&self) -> Result<(), Trouble> {
        let endangered = |p: &&Partition| p.must_commit && p.open.as_ref().is_some_and(|open| open.forwarded);
        match self.partitions.iter().find(endangered) {
            None => Ok(()),
            Some(partition) => Err(Fatal::Operator(format!(
                "partition {} of the clean topic holds committed records that a broker left without their marker; the \
                 open transaction has to be aborted, which would undo them; look at the transaction of {} with \
                 kafka-transactions.sh, and start again",
                partition.id, self.options.writer
            ))
            .into()),
        }
    }

    /// Ends the open transaction without a trace. Definite: C has not moved.
    pub(super) fn abort(&mut self) -> Result<(), Trouble> {
        self.keep_leftovers()?;
        self.persistently(Sink::abort).map_err(Trouble::renewing)?;
        self.batch.close();
        self.tally.clear();
        for partition in self.partitions.open_mut() {
            let stored = partition.open.as_ref().is_some_and(|open| open.tail.is_some());
            if stored
                && StoreError::unless_taken(self.store.truncate(partition.id, partition.committed))?.is_none()
            {
                partition.unload();
            } else {
                partition.abort();
            }
        }
        Ok(())
    }
}

fn position(partition: &Partition, writer: &str) -> Position {
    let open_tail = partition.open.as_ref().and_then(|open| open.tail);
    let checkpoint = Checkpoint {
        state_next: partition.state_next,
        stream_time_ms: partition.window.as_ref().map_or(0, Window::stream_time_ms),
        tail: open_tail.or(partition.tail),
        writer: writer.to_owned(),
    };
    Position { partition: partition.id, next: partition.next, metadata: checkpoint.render() }
}
