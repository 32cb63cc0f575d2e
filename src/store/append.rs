//! Adding a block: cut to size, small ones joined.

use super::engine::{BATCH, Engine, Removal};
use super::joining::Stretch;
use super::keys;
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
    Ok(())
}

/// Joins the waiting blocks into one, for good.
fn settle(engine: &Engine, tail: &mut Tail, partition: PartitionId) -> Result<(), StoreError> {
    let pieces = std::mem::take(&mut tail.pieces);
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
        blocks.push(engine.block(Place::Waiting, partition, piece.first)?);
    }
    blocks.extend(new.cloned());
    join(blocks).ok_or_else(|| engine.damaged("join", "no blocks to join"))
}

fn removals(partition: PartitionId, pieces: &[Piece]) -> Vec<Removal> {
    let removal = |piece: &Piece| Removal {
        place: Place::Waiting,
        key: keys::block(partition, piece.first),
        identities: piece.identities,
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
