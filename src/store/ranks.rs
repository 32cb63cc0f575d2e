//! The ranks of the owners of a filed block, in memory: an identity is then found with a single read of 16 bytes.

use crate::dedupe::{BlockView, Offset};

/// The owners of a block, by their distance from its first offset. An eighth of a byte per covered offset, at most 4
/// bytes per owner.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) enum Ranks {
    /// Not known: the block has to be read.
    #[default]
    Unknown,
    /// One bit for each distance, 64 in a word, the lowest bit first.
    Bits(Box<[u64]>),
    /// Ascending distances, where bits would take more memory.
    Distances(Box<[u32]>),
}

impl Ranks {
    /// The ranks in a block. A block that covers more than 2^32 offsets, or one that cannot be read, has none.
    pub(super) fn of(view: &BlockView<'_>) -> Self {
        let Some(distances) = view.distances() else { return Self::Unknown };
        let words = distances.last().map_or(0, |last| *last as usize / 64 + 1);
        if words > distances.len().div_ceil(2) {
            return Self::Distances(distances.into());
        }
        let mut bits = vec![0u64; words];
        for distance in distances {
            if let Some(word) = bits.get_mut(distance as usize / 64) {
                *word |= 1 << (distance % 64);
            }
        }
        Self::Bits(bits.into())
    }

    /// Number of owners before the record at `owner`, in a block that begins at `first`; `None` when this record owns
    /// nothing, or when that is not known.
    pub(super) fn rank(&self, first: Offset, owner: Offset) -> Option<usize> {
        let distance = u32::try_from(owner.checked_sub(first)?).ok()?;
        match self {
            Self::Unknown => None,
            Self::Distances(distances) => distances.binary_search(&distance).ok(),
            Self::Bits(bits) => {
                let (before, bit) = (bits.get(..distance as usize / 64)?, 1u64 << (distance % 64));
                let word = bits.get(before.len()).filter(|word| *word & bit != 0)?;
                let ones = |word: &u64| word.count_ones() as usize;
                Some(before.iter().map(ones).sum::<usize>() + ones(&(word & (bit - 1))))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dedupe::{Block, HashKind, Identity};

    fn block(first: Offset, gaps: &[u64]) -> Block {
        let owners = gaps.iter().scan(first, |at, gap| Some(std::mem::replace(at, *at + gap)));
        let entries: Vec<_> = owners.map(|owner| (owner, Identity([0; 16]))).collect();
        let next = entries.last().map_or(first, |(last, _)| last + 1);
        Block { entries, ..Block::empty(HashKind::Xxh3, 0.into(), first..next, 0) }
    }

    fn ranks(block: &Block) -> Ranks {
        Ranks::of(&BlockView::verified(&block.encode()).unwrap())
    }

    proptest::proptest! {
        #[test]
        fn every_owner_has_its_rank_and_no_other_offset_has_one(
            first in 0..1u64 << 62,
            gaps in proptest::collection::vec(1..200u64, 0..300),
        ) {
            let block = block(first, &gaps);
            let ranks = ranks(&block);
            for at in first.saturating_sub(1)..=block.next {
                let expected = block.entries.binary_search_by_key(&at, |entry| entry.0).ok();
                proptest::prop_assert_eq!(ranks.rank(first, at), expected);
            }
        }
    }

    #[test]
    fn the_smaller_form_is_used_and_none_beyond_its_range() {
        assert!(matches!(ranks(&block(7, &[1; 1_000])), Ranks::Bits(bits) if bits.len() == 16));
        assert!(matches!(ranks(&block(7, &[31; 1_000])), Ranks::Bits(_)));
        assert!(matches!(ranks(&block(7, &[40; 1_000])), Ranks::Distances(_)));
        assert_eq!(ranks(&block(7, &[1 << 32, 1])), Ranks::Unknown);
        assert_eq!(Ranks::Unknown.rank(7, 7), None);
    }
}
