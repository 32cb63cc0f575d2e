//! Adding a block: cut to size, small ones joined.

use std::mem;

use super::engine::{BATCH, Engine, Removal};
use super::joining::Stretch;
use super::keys;
use super::segments::Readers;
use super::tail::{Packed, Piece, Place, Tail, join, pack};
use crate::dedupe::{Block, PartitionId};
use crate::ports::{Head, StoreError};

/// Adds a block at or beyond the end, and sets the head with its last part.
pub(super) fn append(
    engine: &Engine,
    tail: &mut Tail,
    block: &Block,
    head: Head,
    stretch: Stretch,
) -> Result<(), StoreError> {
    let partition = block.partition;
    if block.first == block.next {
        return engine.commit(partition, tail, Some(head), &[], Vec::new());
    }
    let mut packed = pack(block);
    let small = packed.first().filter(|packed| packed.place == Place::Waiting).map(|packed| packed.piece);
    let begins = |span_ms| tail.begins_stretch(block.time_first_ms, span_ms);
    if small.is_none() || begins(stretch.span) || begins(stretch.slice) {
        settle(engine, tail, partition)?;
    }
    let mut joined = Vec::new();
    if let Some(piece) = small {
        joined = tail.pieces.split_off(tail.pieces.len() - tail.due(&piece));
        if !joined.is_empty() {
            packed = pack(&joined_block(engine, partition, &joined, Some(block))?);
        }
    }
    write(engine, tail, partition, &joined, packed, head)?;
    tail.end = block.next;
    tail.oldest_next = tail.oldest_next.min(block.next);
    compact(engine, tail, partition)
}

/// Writes the live blocks of a file anew, when the partition's files hold too much that is not alive.
fn compact(engine: &Engine, tail: &mut Tail, partition: PartitionId) -> Result<(), StoreError> {
    let Some(file) = tail.files.wasteful() else { return Ok(()) };
    tail.files.begin_another();
    let (mut readers, mut blocks) = (Readers::default(), engine.walk(Place::Settled, partition));
    let mut moved: (Vec<Removal>, Vec<Packed>) = Default::default();
    while let Some(found) = blocks.next()? {
        let removal = found.removal();
        if removal.entry.is_none_or(|entry| entry.file != file) {
            continue;
        }
        let bytes = engine.bytes(&found, &mut readers)?;
        let piece = Piece::of(&engine.trusted(partition, &bytes)?, bytes.len());
        moved.1.push(Packed { place: Place::Settled, key: removal.key, bytes: bytes.to_vec(), piece });
        moved.0.push(removal);
        if moved.0.len() == BATCH / 2 - 1 {
            let (removed, packed) = mem::take(&mut moved);
            engine.commit(partition, tail, None, &removed, packed)?;
        }
    }
    let (removed, packed) = moved;
    if !removed.is_empty() {
        engine.commit(partition, tail, None, &removed, packed)?;
    }
    // What was durable in the file that goes must not be lost with the one that takes its place.
    engine.durable(engine.segments.sync())
}

/// Joins the waiting blocks into one, for good.
fn settle(engine: &Engine, tail: &mut Tail, partition: PartitionId) -> Result<(), StoreError> {
    let pieces = mem::take(&mut tail.pieces);
    if pieces.is_empty() {
        return Ok(());
    }
    let mut packed = pack(&joined_block(engine, partition, &pieces, None)?);
    for packed in &mut packed {
        packed.place = Place::Settled;
    }
    engine.commit(partition, tail, None, &removals(partition, &pieces), packed)
}

fn joined_block(
    engine: &Engine,
    partition: PartitionId,
    pieces: &[Piece],
    new: Option<&Block>,
) -> Result<Block, StoreError> {
    let mut blocks = Vec::with_capacity(pieces.len() + 1);
    for piece in pieces {
        blocks.push(engine.waiting_block(partition, piece.first)?);
    }
    blocks.extend(new.cloned());
    join(blocks).ok_or_else(|| engine.damaged("join", "no blocks to join"))
}

fn removals(partition: PartitionId, pieces: &[Piece]) -> Vec<Removal> {
    let removal = |piece: &Piece| Removal {
        place: Place::Waiting,
        key: keys::block(partition, piece.first),
        identities: piece.identities,
        entry: None,
    };
    pieces.iter().map(removal).collect()
}

/// Writes the parts, the joined pieces' removal with the first of them and the head with the last.
/// There is more than one batch only for blocks of about 100 parts, which join nothing; a crash
/// between batches leaves parts beyond the old head, as after any crash before a commit.
fn write(
    engine: &Engine,
    tail: &mut Tail,
    partition: PartitionId,
    joined: &[Piece],
    packed: Vec<Packed>,
    head: Head,
) -> Result<(), StoreError> {
    let mut remove = removals(partition, joined);
    let mut rest = packed.into_iter().peekable();
    while rest.peek().is_some() {
        let room = BATCH - 1 - remove.len();
        let batch: Vec<_> = rest.by_ref().take(room).collect();
        let waits = batch.iter().find(|packed| packed.place == Place::Waiting).map(|packed| packed.piece);
        let head = rest.peek().is_none().then_some(head);
        engine.commit(partition, tail, head, &remove, batch)?;
        remove.clear();
        tail.pieces.extend(waits);
    }
    Ok(())
}
