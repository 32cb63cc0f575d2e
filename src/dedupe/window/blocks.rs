//! The owners of the open transaction as blocks.

use std::ops::Range;

use super::Window;
use crate::dedupe::coordinates::Offset;
use crate::dedupe::format::Block;
use crate::dedupe::identity::{HashKind, WindowId};

/// A block made by [`Window::blocks`] spans at most the exact part of the window divided by this number.
const BLOCKS_PER_WINDOW: i64 = 32;

impl Window {
    /// The open transaction's owners as blocks that together cover `covered`, in ascending offset order. Each has at
    /// most `most` identities and spans at most 1/32 of the exact part, unless it has a single owner.
    #[must_use]
    pub fn blocks(
        &self,
        hash: HashKind,
        window: WindowId,
        covered: Range<Offset>,
        most: usize,
    ) -> Vec<Block> {
        let longest = self.exact_ms / BLOCKS_PER_WINDOW;
        let opened = self.time.opened_ms();
        let empty = |first: Offset, ms: i64| Block::empty(hash, window, first..covered.end, ms);
        let mut blocks = Vec::new();
        let mut open = empty(covered.start, opened);
        for (owner, arrived) in self.pending.iter().zip(&self.arrived_ms) {
            let full = open.entries.len() >= most.max(1) || arrived - open.time_first_ms > longest;
            if full && owner.0 > open.first {
                open.next = owner.0;
                blocks.push(std::mem::replace(&mut open, empty(owner.0, *arrived)));
            }
            open.time_last_ms = *arrived;
            open.entries.push(*owner);
        }
        let now = self.time.ms();
        match open.entries.last() {
            // The last records have no new identity but advanced stream time. They get their own block, so that the span
            // of the block with owners, and so the age of these owners, stays accurate.
            Some((last, _)) if now - open.time_first_ms > longest && last + 1 < covered.end => {
                open.next = last + 1;
                let rest = empty(open.next, now);
                blocks.extend([open, rest]);
            }
            _ => {
                open.time_last_ms = now;
                blocks.push(open);
            }
        }
        blocks
    }
}
