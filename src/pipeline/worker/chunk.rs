//! The records of one poll: looked up together, decided one after the other, and read again when the iteration is over.

use std::collections::BTreeSet;
use std::time::Duration;

use crate::clock::Clock;
use crate::dedupe::{Coordinates, Digest, MissingSchema};
use crate::pipeline::context::Context;
use crate::pipeline::error::WorkerError;
use crate::pipeline::options::Mode;
use crate::pipeline::partition::order::Arrival;
use crate::pipeline::ports::WorkerPorts;
use crate::pipeline::safeguard::Safeguard;
use crate::pipeline::worker::Parts;
use crate::pipeline::worker::step::{AfterRecord, Lookup, RawOf, Step};
use crate::ports::{Failure, Record, SealedLookup, Source, Store};

/// An iteration processes no more records after the first commit that ends later than this after its start: group events,
/// requests and partitions that wait are served between iterations. Only slow commits, or many small ones, last as long.
pub const ITERATION_TIME: Duration = Duration::from_secs(2);

/// Records whose places in the indexes are prefetched before the first of them is decided.
const PREFETCHED: usize = 64;

/// Polls the records that are available, at most `most`; waits only for the first. The records polled before a
/// failure are returned with it: the client does not return them again.
pub(crate) fn gather<S: Source>(
    source: &S,
    most: usize,
    wait: Duration,
) -> (Vec<S::Record<'_>>, Result<(), Failure>) {
    let mut chunk = Vec::with_capacity(most);
    let polled = source.poll(&mut chunk, most, wait);
    (chunk, polled)
}

/// What a record is looked up by, unless its schema is not known.
type Found = Result<Lookup, MissingSchema>;

/// The times of a chunk.
#[derive(Clone, Copy)]
struct ChunkTimes {
    /// Monotonic time of its arrival, or since which its first record may have been waiting in the client.
    fetched: Duration,
    /// Time of its arrival, epoch milliseconds.
    now_ms: i64,
    /// Monotonic time after which a commit ends the iteration.
    until: Duration,
}

/// How far a chunk is processed.
#[derive(Default)]
struct ChunkProgress {
    /// Number of records.
    processed: usize,
    /// A partition has to be sought again.
    is_doubted: bool,
    /// A commit ended after the end of the iteration.
    is_over: bool,
}

impl<W: WorkerPorts> Parts<W> {
    /// Decides about each record of a chunk and writes the new ones. Commits whenever the transaction is full. When a commit
    /// ends after `until`, the rest of the chunk is read again in later iterations.
    ///
    /// `damaged` is the damaged batch behind the chunk. Returns false when that batch is not the next one to process: records
    /// before it will be read again, and then the batch too.
    pub(crate) fn process(
        &mut self,
        source: &W::Source,
        chunk: &mut [RawOf<'_, W>],
        damaged: Option<Coordinates>,
        until: Duration,
    ) -> Result<bool, WorkerError> {
        let now = self.ctx.clock.elapsed();
        let fetched = self.committer.transaction.waiting_since.unwrap_or(now);
        let times = ChunkTimes { fetched, now_ms: self.ctx.time.now_ms(&self.ctx.clock), until };
        let mut progress = ChunkProgress::default();
        let mut lookups: Vec<_> = chunk.iter().map(|record| look_up(&self.ctx, record)).collect();
        for MissingSchema(id) in lookups.iter().filter_map(|lookup| lookup.as_ref().err()) {
            self.schemas.shared.request(*id);
        }
        find_sealed(&self.ctx.store, &mut lookups);
        for (part, lookups) in chunk.chunks_mut(PREFETCHED).zip(lookups.chunks(PREFETCHED)) {
            self.process_part(source, part, lookups, times, &mut progress)?;
            if progress.is_over {
                break;
            }
        }
        let ChunkProgress { processed, is_doubted, .. } = progress;
        let rest: Vec<Coordinates> = chunk.iter().skip(processed).map(Record::coordinates).collect();
        let is_complete = rest.is_empty();
        if !is_complete && self.ctx.options.keeps(Safeguard::Postponed) {
            self.ctx.postpone(source, &rest, damaged).map_err(WorkerError::rewinding)?;
        }
        let arrival = damaged.filter(|_| is_complete).map(|at| self.ctx.judge_damaged(at));
        if is_doubted || arrival == Some(Arrival::Unproven) {
            self.ctx.seek_again(source).map_err(WorkerError::rewinding)?;
        }
        Ok(is_complete && matches!(arrival, None | Some(Arrival::Next)))
    }

    /// Processes records whose places are prefetched together, up to the first commit that ends after `until`.
    fn process_part(
        &mut self,
        source: &W::Source,
        part: &mut [RawOf<'_, W>],
        lookups: &[Found],
        times: ChunkTimes,
        progress: &mut ChunkProgress,
    ) -> Result<(), WorkerError> {
        lookups.iter().flatten().for_each(|lookup| prefetch(&self.ctx, lookup));
        for (record, lookup) in part.iter_mut().zip(lookups) {
            let lookup = match lookup {
                Ok(lookup) => lookup,
                Err(MissingSchema(id)) => {
                    self.schemas.wait(&mut self.ctx, source, record.coordinates(), *id)?;
                    progress.processed += 1;
                    continue;
                }
            };
            loop {
                if progress.is_over {
                    return Ok(());
                }
                match self.decide(record, lookup, times).map_err(WorkerError::rewinding)? {
                    AfterRecord::Record => break,
                    AfterRecord::SeekAgain => break progress.is_doubted = true,
                    AfterRecord::CommitBefore => {
                        progress.is_over = self.commit_and_compare(source, times.until)?;
                    }
                    AfterRecord::CommitAfter => {
                        break progress.is_over = self.commit_and_compare(source, times.until)?;
                    }
                }
            }
            progress.processed += 1;
        }
        Ok(())
    }

    /// Commits. Returns whether that ended after `until`.
    fn commit_and_compare(&mut self, source: &W::Source, until: Duration) -> Result<bool, WorkerError> {
        self.committer.commit(&mut self.ctx, source)?;
        Ok(self.ctx.clock.elapsed() >= until)
    }

    fn decide(
        &mut self,
        record: &mut RawOf<'_, W>,
        lookup: &Lookup,
        times: ChunkTimes,
    ) -> Result<AfterRecord, WorkerError> {
        // A record that was fetched before its partition was paused or revoked is read again.
        let id = record.coordinates().partition;
        let Some(partition) = self.ctx.partitions.record_mut(id) else {
            return Ok(AfterRecord::Record);
        };
        let journal = self.ctx.journals.get_mut(partition.journal);
        let Some(windows) = journal.and_then(|journal| journal.windows.as_mut()) else {
            return Ok(AfterRecord::Record);
        };
        let mut step = Step::<W> {
            sink: &mut self.committer.sink,
            store: &self.ctx.store,
            schemas: &self.ctx.schemas,
            clock: &self.ctx.clock,
            options: &self.ctx.options,
            transaction: &mut self.committer.transaction,
            windows,
            now_ms: times.now_ms,
            fetched: times.fetched,
            at_once: partition.rejections.follow_policy_at_once(|| self.ctx.clock.elapsed()),
        };
        step.decide(partition, record, lookup)
    }
}

impl<W: WorkerPorts> Context<W> {
    /// Makes the client return these records again, which were polled and are not processed, and the damaged batch behind them.
    fn postpone(
        &mut self,
        source: &W::Source,
        rest: &[Coordinates],
        damaged: Option<Coordinates>,
    ) -> Result<(), WorkerError> {
        let mut sought = BTreeSet::new();
        let rest = rest.iter().map(|at| (*at, false));
        for (Coordinates { partition: id, offset }, is_damaged) in rest.chain(damaged.map(|at| (at, true))) {
            let Some(partition) = self.partitions.record_mut(id) else { continue };
            if partition.order.is_doubted() {
                // It is sought again in any case. All records of this reading count for the proof of a gap: if its lowest one were
                // not seen here, a record left from before the seek could be accepted in the next reading.
                let next = partition.next;
                // The offset of a damaged batch can lie before the next one.
                partition.order.judge(next, if is_damaged { offset.max(next) } else { offset });
            } else if sought.insert(id) {
                source.seek(&[(id, partition.next)])?;
                partition.order.sought();
            }
        }
        Ok(())
    }

    /// A damaged batch begins or continues a reading as its records would. Without that, the record after it could confirm
    /// that the log has a gap there.
    fn judge_damaged(&mut self, at: Coordinates) -> Arrival {
        match self.partitions.record_mut(at.partition) {
            // The offset is that of the first record in the batch, which can lie before the next one.
            Some(partition) => partition.order.judge(partition.next, at.offset.max(partition.next)),
            // The partition is sought before its next record is processed.
            None => Arrival::Unproven,
        }
    }

    /// Seeks the partitions again whose first record after a seek lies beyond the expected offset.
    fn seek_again(&mut self, source: &W::Source) -> Result<(), WorkerError> {
        for partition in self.partitions.started_mut().filter(|it| it.is_open() && it.order.is_doubted()) {
            source.seek(&[(partition.id, partition.next)])?;
            partition.order.sought_again();
        }
        Ok(())
    }
}

/// Finds the slices that may contain the identities of a chunk.
fn find_sealed(store: &impl Store, lookups: &mut [Found]) {
    if store.has_sealed() {
        let mut wanted: Vec<_> =
            lookups.iter_mut().flatten().filter_map(|lookup| lookup.identified.as_mut()).collect();
        store.find_sealed(&mut wanted);
    }
}

/// Prefetches what the decision about a record reads.
fn prefetch<W: WorkerPorts>(ctx: &Context<W>, Lookup { kind, identified, .. }: &Lookup) {
    let Some(SealedLookup { window, key, .. }) = identified else { return };
    let windows = ctx.journals.get(window.journal()).and_then(|journal| journal.windows.as_ref());
    if let Some(window) = windows.and_then(|windows| windows.get(*kind)) {
        window.prefetch(key);
    }
}

/// The kind, the identity and the digest of a record.
fn look_up<W: WorkerPorts>(ctx: &Context<W>, record: &RawOf<'_, W>) -> Found {
    let number = match ctx.options.kinds.number_of(record, &ctx.schemas) {
        // Nothing waits in this mode.
        Err(_) if ctx.options.mode == Mode::Bypass => 0,
        number => number?,
    };
    let kind = ctx.options.kinds.get(number).filter(|_| !ctx.options.bypasses_window(number));
    let Some(kind) = kind else { return Ok(Lookup { kind: number, identified: None, digest: Digest::NONE }) };
    let identity = ctx.options.rule.identify(record, &ctx.schemas)?;
    let window = kind.id.window(ctx.options.journal_of(record.coordinates().partition));
    let identified = identity.map(|identity| SealedLookup::new(window, ctx.store.positions().key(identity)));
    let digest = match identity {
        Some(_) => ctx.options.compare.digest(record, &ctx.schemas)?,
        None => Digest::NONE,
    };
    Ok(Lookup { kind: number, identified, digest })
}
