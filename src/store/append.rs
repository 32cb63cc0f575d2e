//! Appends the owners in blocks to the last run of a window, or to new runs.

use super::cut::truncate;
use super::engine::{Engine, WindowChange};
use super::index::WindowIndex;
use super::joining::MergeSpan;
use super::run::{MOST_OWNERS, OWNER_BYTES, Run, encoded};
use crate::dedupe::{Block, Identity, Offset, Sequence, StoredOwner};
use crate::ports::{Head, StoreError};

/// Appends the owners in blocks, which get the numbers from this one on and replace everything at or beyond the first offset. The head is set with the
/// last of them.
pub(super) fn append(
    engine: &Engine,
    index: &mut WindowIndex,
    (blocks, number): (&[Block], Sequence),
    head: Head,
    span: MergeSpan,
) -> Result<(), StoreError> {
    if let Some(block) = blocks.first().filter(|block| block.first < index.end()) {
        truncate(engine, index, block.first)?;
    }
    if number < index.next_number() {
        let (window, next) = (index.window, index.next_number());
        let what =
            format!("rejected owners of partition {window} from number {number}: the next one is {next}");
        return Err(StoreError::Corrupt(what));
    }
    let first = blocks.first().map_or(0, |block| block.first);
    // A restore writes blocks together with the head behind them.
    let valid = if head.confirmed <= first { head } else { index.head.unwrap_or_default() };
    let base = valid.lowered(first);
    let (file, begin) = index.files.current().unwrap_or_else(|| (engine.segments.allocate(), 0));
    let last = index.last().filter(|run| run.file == file && run.file_end() == begin && run.end() == number);
    let mut appender =
        Appender { place: (file, begin), number, span, base, last, bytes: Vec::new(), runs: Vec::new() };
    if number > index.next_number() {
        index.forget_recent();
    }
    for block in blocks {
        appender.add(block);
    }
    // Offsets without owners belong to the run before them, if there is one.
    let covered = blocks.last().map_or(0, |block| block.next);
    let Appender { bytes, mut runs, .. } = appender;
    match runs.last_mut() {
        Some(last) => last.next = last.next.max(covered),
        None => runs.extend(index.last().map(|last| Run { next: last.next.max(covered), ..last })),
    }
    if !bytes.is_empty() {
        engine.write_owners(file, begin, &bytes)?;
    }
    engine.commit(index, WindowChange { head: Some(head), insert: runs, ..WindowChange::default() })?;
    let owners: Vec<(Offset, Identity)> = blocks.iter().flat_map(|block| &block.entries).copied().collect();
    index.keep_recent(&owners, engine.cached_bytes());
    Ok(())
}

/// What an append writes.
struct Appender {
    /// The file, and where its next byte is written.
    place: (u32, u64),
    /// Number of the next owner.
    number: Sequence,
    span: MergeSpan,
    /// The head without the runs that begin.
    base: Head,
    /// The last run of the window, if it can be extended.
    last: Option<Run>,
    bytes: Vec<u8>,
    /// New and extended runs.
    runs: Vec<Run>,
}

impl Appender {
    fn add(&mut self, block: &Block) {
        let mut first = block.first;
        for part in block.entries.chunks(MOST_OWNERS as usize) {
            let stored = |(offset, identity): &(Offset, Identity)| StoredOwner {
                offset: *offset,
                identity: Some(*identity),
            };
            let bytes = encoded(part.iter().map(stored));
            let next = part.last().map_or(block.next, |(last, _)| last + 1);
            if let Some(run) = self.run_for(block, first, part.len()) {
                run.next = next;
                run.times_ms.1 = run.times_ms.1.max(block.time_last_ms);
                run.extend(&bytes);
            }
            self.place.1 += bytes.len() as u64;
            self.number += (bytes.len() / OWNER_BYTES) as Sequence;
            self.bytes.extend(bytes);
            first = next;
        }
        if let Some(last) = self.runs.last_mut() {
            last.next = last.next.max(block.next);
        }
    }

    /// The run that takes so many owners of a block: the last one, if it has room and is not of another time.
    fn run_for(&mut self, block: &Block, first: Offset, owners: usize) -> Option<&mut Run> {
        if self.runs.is_empty() {
            self.runs.extend(self.last.take());
        }
        let fits = |run: &Run| {
            run.owners as usize + owners <= MOST_OWNERS as usize
                && !self.span.separates(run.times_ms.0, block.time_first_ms)
        };
        if !self.runs.last().is_some_and(fits) {
            self.begin(block, first);
        }
        self.runs.last_mut()
    }

    fn begin(&mut self, block: &Block, first: Offset) {
        self.runs.push(Run {
            first,
            next: first,
            number: self.number,
            owners: 0,
            forgotten: 0,
            times_ms: (block.time_first_ms, block.time_last_ms),
            file: self.place.0,
            at: self.place.1,
            crc: 0,
            base: self.base,
        });
    }
}

/// Whether a block can be stored: its owners are ascending and within the covered range.
pub(super) fn consistent(block: &Block) -> bool {
    let covered = block.first..block.next;
    block.first <= block.next
        && block.entries.is_sorted_by(|a, b| a.0 < b.0)
        && block.entries.iter().all(|(owner, _)| covered.contains(owner))
}
