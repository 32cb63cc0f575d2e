//! The end of a transaction. All its effects happen here, in this order.
//!
//! A crash loses nothing at any point. Before the commit, the transaction aborts and the committed offset has not
//! moved; the local store may then hold blocks that were never committed, which the next start recognises by their
//! owners. After the commit, the transaction contains everything that a restart needs.

use std::time::Duration;

use super::checkpoint::{Checkpoint, Tail};
use super::error::WorkerError;
use super::failpoint;
use super::loading::cut_back;
use super::options::Options;
use super::partition::Partition;
use super::sizes::metadata_bytes;
use super::time::ahead_of_wall_ms;
use super::worker::{Core, World};
use crate::clock::Clock;
use crate::dedupe::coordinates::ranges;
use crate::dedupe::{Block, PartitionId, WindowId, Windows};
use crate::ports::{Failure, GroupMember, Head, Position, Remedy, Sink, Store, StoreError, WrittenEnds};

/// Time limit of one blocking broker call.
const SLICE: Duration = Duration::from_secs(2);

impl<W: World> Core<W> {
    /// Commits the open transaction: records, blocks and offsets together, or none of them. A transaction whose
    /// commit failed is never continued: its offsets would lack a partition that was released meanwhile.
    pub(super) fn commit(&mut self, source: &W::Source) -> Result<(), WorkerError> {
        if !self.batch.is_open() {
            return Ok(());
        }
        self.commit_open(source).map_err(WorkerError::rewinding)
    }

    fn commit_open(&mut self, source: &W::Source) -> Result<(), WorkerError> {
        let started = self.clock.elapsed();
        failpoint::pass("before_store");
        // The local store is written first, while the broker is still acknowledging records. After a crash from here
        // on, the store holds owners at or beyond C, which the next start turns into claims.
        let blocks = self.store_blocks()?;
        failpoint::pass("after_store");
        self.sink.drain(self.options.transaction_timeout)?;
        failpoint::pass("after_drain");
        let mut previous = None;
        for (window, block) in &blocks {
            let partition = window.partition();
            let origin = self.origin_of(*window, previous.replace(partition) != Some(partition));
            self.sink.put_state(partition, &origin.render(), block)?;
            self.tally.block(block.len());
        }
        self.put_forgotten()?;
        failpoint::pass("after_state_records");
        self.send_offsets(source)?;
        failpoint::pass("after_send_offsets");
        // Without this drain, the client's commit would flush the state records in steps of 100 ms.
        self.sink.drain(self.options.transaction_timeout)?;
        failpoint::pass("before_commit");
        let touched = self.touched();
        self.persistently(Sink::commit)?;
        failpoint::pass("after_commit");
        self.apply()?;
        failpoint::pass("after_apply");
        self.await_markers(source, touched)?;
        failpoint::pass("after_markers");
        let took = self.clock.elapsed().saturating_sub(started);
        self.report.transaction(&mut self.tally, took, self.clock.wall_ms());
        Ok(())
    }

    /// Writes the blocks of the open transaction to the local store and returns them encoded. If the last block of a
    /// partition is in the store, the earlier ones of the transaction are too.
    fn store_blocks(&mut self) -> Result<Vec<(WindowId, Vec<u8>)>, WorkerError> {
        let mut blocks = Vec::new();
        for partition in self.partitions.open_mut() {
            let state_next = partition.state_next;
            for block in partition.blocks(self.options.hash, self.options.block_ids) {
                let encoded = block.encode();
                let tail = Tail { crc: Block::checksum(&encoded), next: block.next, from: Some(state_next) };
                if let Some(open) = partition.open.as_mut() {
                    open.tail = Some(tail);
                }
                let head = Head { tail: Some((tail.crc, tail.next)), ..partition.head() };
                self.store.append(&block, head)?;
                blocks.push((block.window, encoded));
            }
        }
        Ok(blocks)
    }

    fn send_offsets(&mut self, source: &W::Source) -> Result<(), WorkerError> {
        let mut positions = Vec::new();
        let most = metadata_bytes(self.partitions.open_mut().count());
        let time_ahead_ms = self.time.ahead_ms(&self.clock);
        for partition in self.partitions.open_mut() {
            let position = position(partition, &self.options, (most, time_ahead_ms));
            if let Some(open) = partition.open.as_mut() {
                open.sent = Some((position.next, position.metadata.clone()));
            }
            positions.push(position);
        }
        self.send_positions(source, &positions)
    }

    /// Adds offsets to the transaction, if this member currently owns all these partitions.
    pub(super) fn send_positions(
        &mut self,
        source: &W::Source,
        positions: &[Position],
    ) -> Result<(), WorkerError> {
        let ids: Vec<PartitionId> = positions.iter().map(|p| p.partition).collect();
        // The broker does not check all of this (KAFKA.md 9.1): it accepts the offsets of a member that never joined,
        // and never verifies the ownership of a partition.
        if !source.may_commit(&ids) {
            return Err(Failure::new(
                Remedy::Abort,
                format!(
                    "this process no longer owns all of partitions {} of topic {}; aborting",
                    ranges(ids),
                    self.options.raw
                ),
            )
            .into());
        }
        self.persistently(|sink, wait| sink.send_offsets(source, positions, wait))
    }

    /// Retries a resumable call until the transaction timeout has passed; then its outcome counts as unknown.
    pub(super) fn persistently(
        &mut self,
        mut call: impl FnMut(&mut W::Sink, Duration) -> Result<(), Failure>,
    ) -> Result<(), WorkerError> {
        let deadline = self.clock.elapsed() + self.options.transaction_timeout;
        loop {
            match call(&mut self.sink, SLICE) {
                Ok(()) => return Ok(()),
                Err(failed) if failed.remedy == Remedy::Retry && self.clock.elapsed() < deadline => {
                    self.clock.rest(Duration::from_millis(50));
                }
                Err(failed) => return Err(WorkerError::exhausted(failed).into()),
            }
        }
    }

    /// The transaction is committed, and so is everything that was pending. Nothing may expire before this point.
    fn apply(&mut self) -> Result<(), WorkerError> {
        let open: Vec<PartitionId> = self.partitions.open_mut().map(|partition| partition.id).collect();
        open.into_iter().try_for_each(|id| self.committed(id))?;
        self.batch.close();
        self.failures = 0;
        self.enforce_limits()
    }

    /// Applies the committed transaction to a partition.
    pub(super) fn committed(&mut self, id: PartitionId) -> Result<(), WorkerError> {
        let state_end = self.sink.state_end(id);
        let Some(partition) = self.partitions.get_mut(id) else { return Ok(()) };
        let forgotten = partition.open.as_ref().and_then(|open| open.forgotten.clone());
        let needed = partition.commit(state_end);
        partition.note_accepted();
        for (kind, first) in needed {
            let window = kind.window(id);
            if let Some(forgotten) = &forgotten {
                let head = partition.head();
                StoreError::unless_lease_lost(self.store.forget(window, &forgotten.offsets(), head))?;
            }
            StoreError::unless_lease_lost(self.store.expire(window, first))?;
        }
        Ok(())
    }

    /// Aborts the open transaction. The outcome is definite: C has not moved.
    pub(super) fn abort(&mut self, source: &W::Source) -> Result<(), WorkerError> {
        let side = self.sink.side_ends();
        self.persistently(Sink::abort).map_err(WorkerError::renewing)?;
        let touched = self.touched_by_abort(side).map_err(WorkerError::renewing)?;
        self.batch.close();
        self.tally.clear();
        for partition in self.partitions.open_mut() {
            let stored = partition.open.as_ref().is_some_and(|open| open.tail.is_some());
            let windows = self.options.kinds.windows_of(partition.id);
            let mut cut = || cut_back(&mut self.store, &windows, partition.committed);
            if stored && StoreError::unless_lease_lost(cut())?.is_none() {
                partition.unload();
            } else {
                partition.abort();
            }
        }
        self.await_markers(source, touched)
    }
}

fn position(partition: &Partition, options: &Options, (most, time_ahead_ms): (usize, i64)) -> Position {
    let open_tail = partition.open.as_ref().and_then(|open| open.tail);
    let forgotten = partition.open.as_ref().and_then(|open| open.forgotten.as_ref());
    let checkpoint = Checkpoint {
        state_next: partition.state_next,
        stream_time_ms: partition.windows.as_ref().map_or(0, Windows::stream_time_ms),
        rules: options.rules(),
        ahead_of_wall_ms: ahead_of_wall_ms(options.kinds.time(), (time_ahead_ms, partition.ahead_ms)),
        tail: open_tail.or(partition.tail),
        forgets: forgotten.map_or(partition.forgets, |forgotten| forgotten.number),
        windows: partition.windows.as_ref().map(Windows::remembered).unwrap_or_default(),
        began: partition.began.or(Some(options.began)),
        epoch: partition.epoch.filter(|epoch| epoch.covers(partition.next)),
        raw: options.raw_id.clone(),
        state: options.state_id.clone(),
        writer: options.writer.clone(),
    };
    Position { partition: partition.id, next: partition.next, metadata: checkpoint.render_within(most) }
}
