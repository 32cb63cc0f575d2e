//! The records of one poll: looked up together, decided one after the other, and read again when the iteration is over.

use std::collections::BTreeSet;
use std::time::Duration;

use crate::clock::Clock;
use crate::dedupe::{Coordinates, IndexKey, MissingSchema};
use crate::pipeline::context::Context;
use crate::pipeline::error::WorkerError;
use crate::pipeline::options::Mode;
use crate::pipeline::partition::Partition;
use crate::pipeline::partition::order::Arrival;
use crate::pipeline::ports::WorkerPorts;
use crate::pipeline::safeguard::Safeguard;
use crate::pipeline::worker::Parts;
use crate::pipeline::worker::step::{AfterRecord, Lookup, RawOf, Step};
use crate::ports::{Failure, Record, Source, Store};

/// An iteration processes no more records after the first commit that ends later than this after its start: group events,
/// requests and partitions that wait are served between iterations. Only slow commits, or many small ones, last as long.
pub const ITERATION_TIME: Duration = Duration::from_secs(2);

/// Records whose places in memory are prefetched before the first of them is decided: with 24 slices some 1,500 cache lines,
/// which fit into the second-level cache.
const LOOKED_UP_TOGETHER: usize = 64;

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
        let now_ms = self.ctx.time.now_ms(&self.ctx.clock);
        let mut progress = ChunkProgress::default();
        for part in chunk.chunks_mut(LOOKED_UP_TOGETHER) {
            self.process_part(source, part, (now_ms, until), &mut progress)?;
            if progress.is_over {
                break;
            }
        }
        let ChunkProgress { processed, is_doubted, .. } = progress;
        let rest: Vec<Coordinates> = chunk.iter().skip(processed).map(Record::coordinates).collect();
        let is_complete = rest.is_empty();
        if !is_complete && self.ctx.options.keeps(Safeguard::Postponed) {
            postpone(&mut self.ctx, source, &rest, damaged).map_err(WorkerError::rewinding)?;
        }
        let arrival = damaged.filter(|_| is_complete).map(|at| judge_damaged(&mut self.ctx, at));
        if is_doubted || arrival == Some(Arrival::Unproven) {
            seek_again(&mut self.ctx, source).map_err(WorkerError::rewinding)?;
        }
        Ok(is_complete && matches!(arrival, None | Some(Arrival::Next)))
    }

    /// Processes records whose places are prefetched together, up to the first commit that ends after `until`.
    fn process_part(
        &mut self,
        source: &W::Source,
        part: &mut [RawOf<'_, W>],
        (now_ms, until): (i64, Duration),
        progress: &mut ChunkProgress,
    ) -> Result<(), WorkerError> {
        let lookups: Vec<Result<Lookup, MissingSchema>> =
            part.iter().map(|record| key(&self.ctx, record)).collect();
        read_ahead(&self.ctx, part, &lookups);
        for (record, lookup) in part.iter_mut().zip(&lookups) {
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
                match self.decide(record, lookup, now_ms).map_err(WorkerError::rewinding)? {
                    AfterRecord::Record => break,
                    AfterRecord::SeekAgain => break progress.is_doubted = true,
                    AfterRecord::CommitBefore => progress.is_over = self.commit_and_compare(source, until)?,
                    AfterRecord::CommitAfter => {
                        break progress.is_over = self.commit_and_compare(source, until)?;
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
        now_ms: i64,
    ) -> Result<AfterRecord, WorkerError> {
        // A record that was fetched before its partition was paused or revoked is read again.
        let id = record.coordinates().partition;
        let Some((parts, others)) = self.ctx.partitions.record_and_others(id) else {
            return Ok(AfterRecord::Record);
        };
        let mut step = Step::<W> {
            sink: &mut self.committer.sink,
            store: &self.ctx.store,
            clock: &self.ctx.clock,
            options: &self.ctx.options,
            transaction: &mut self.committer.transaction,
            topic: self.ctx.topic.as_mut(),
            copies: self.ctx.copies.as_mut(),
            others,
            now_ms,
        };
        step.decide(parts, record, lookup)
    }
}

/// Makes the client return these records again, which were polled and are not processed, and the damaged batch behind them.
fn postpone<W: WorkerPorts>(
    ctx: &mut Context<W>,
    source: &W::Source,
    rest: &[Coordinates],
    damaged: Option<Coordinates>,
) -> Result<(), WorkerError> {
    let mut sought = BTreeSet::new();
    let rest = rest.iter().map(|at| (*at, false));
    for (Coordinates { partition: id, offset }, is_damaged) in rest.chain(damaged.map(|at| (at, true))) {
        let Some((running, _)) = ctx.partitions.record_mut(id) else { continue };
        if running.order.is_doubted() {
            // It is sought again in any case. All records of this reading count for the proof of a gap: if its lowest one were
            // not seen here, a record left from before the seek could be accepted in the next reading.
            let next = running.state.next;
            // The offset of a damaged batch can lie before the next one.
            running.order.judge(next, if is_damaged { offset.max(next) } else { offset });
        } else if sought.insert(id) {
            source.seek(&[(id, running.state.next)])?;
            running.order.sought();
        }
    }
    Ok(())
}

/// A damaged batch begins or continues a reading as its records would. Without that, the record after it could confirm
/// that the log has a gap there.
fn judge_damaged<W: WorkerPorts>(ctx: &mut Context<W>, at: Coordinates) -> Arrival {
    match ctx.partitions.record_mut(at.partition) {
        // The offset is that of the first record in the batch, which can lie before the next one.
        Some((running, _)) => running.order.judge(running.state.next, at.offset.max(running.state.next)),
        // The partition is sought before its next record is processed.
        None => Arrival::Unproven,
    }
}

/// Seeks the partitions again whose first record after a seek lies beyond the expected offset.
fn seek_again<W: WorkerPorts>(ctx: &mut Context<W>, source: &W::Source) -> Result<(), WorkerError> {
    for (id, running) in ctx.partitions.running_mut().filter(|(_, it)| it.is_open() && it.order.is_doubted())
    {
        source.seek(&[(id, running.state.next)])?;
        running.order.sought_again();
    }
    Ok(())
}

/// Begins to read from disk what the records of a part need.
fn read_ahead<W: WorkerPorts>(
    ctx: &Context<W>,
    part: &[RawOf<'_, W>],
    lookups: &[Result<Lookup, MissingSchema>],
) {
    if !ctx.store.has_sealed() {
        return;
    }
    for (record, lookup) in part.iter().zip(lookups) {
        if let Ok(Lookup { kind, key: Some(key) }) = lookup
            && let Some(kind) = ctx.options.kinds.get(*kind)
        {
            ctx.store.read_ahead_sealed(kind.id.window(record.coordinates().partition), key);
        }
    }
}

/// First pass: kind and identity, and a prefetch of the index bucket.
fn key<W: WorkerPorts>(ctx: &Context<W>, record: &RawOf<'_, W>) -> Result<Lookup, MissingSchema> {
    let kind = match ctx.options.kinds.number_of(record, &ctx.schemas) {
        // Nothing waits in this mode.
        Err(_) if ctx.options.mode == Mode::Bypass => 0,
        kind => kind?,
    };
    if ctx.options.bypasses_window(kind) {
        return Ok(Lookup { kind, key: None });
    }
    let key = ctx.options.rule.identify(record, &ctx.schemas)?.map(|identity| {
        let running = ctx.partitions.get(record.coordinates().partition).and_then(Partition::running);
        let window = running.and_then(|running| running.state.windows.get(kind));
        let key = window.map_or_else(|| IndexKey::at(identity), |window| window.key(identity));
        if let Some(topic) = &ctx.topic {
            topic.filter.prefetch(&key);
        }
        if ctx.store.has_sealed()
            && let Some(of_kind) = ctx.options.kinds.get(kind)
        {
            ctx.store.prefetch_sealed(of_kind.id.window(record.coordinates().partition), &key);
        }
        key
    });
    Ok(Lookup { kind, key })
}
