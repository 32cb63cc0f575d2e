//! Where an owner is among the owners of the open transaction.

use crate::dedupe::coordinates::Offset;

/// Guesses before the rest is searched by halves, which bounds the number of steps for any distribution of offsets.
const GUESSES: usize = 4;

/// Index of the entry with this offset, among entries with ascending offsets.
///
/// A large transaction does not fit into the cache, and each step of a binary search waits for a cache line. Offsets are nearly
/// evenly spaced, so an interpolated guess is a few entries off, and the next one finds the entry.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a share of a length, 0 to 1 of it"
)]
pub(super) fn index_of<T>(entries: &[(Offset, T)], offset: Offset) -> Option<usize> {
    let (mut from, mut to) = (0, entries.len());
    for _ in 0..GUESSES {
        let rest = entries.get(from..to)?;
        let ((first, _), (last, _)) = (rest.first()?, rest.last()?);
        if !(*first..=*last).contains(&offset) {
            return None;
        }
        let share = (offset - first) as f64 / (last - first).max(1) as f64;
        let guess = from + ((rest.len() - 1) as f64 * share) as usize;
        let (found, _) = entries.get(guess)?;
        match found.cmp(&offset) {
            std::cmp::Ordering::Equal => return Some(guess),
            std::cmp::Ordering::Less => from = guess + 1,
            std::cmp::Ordering::Greater => to = guess,
        }
    }
    let rest = entries.get(from..to)?.binary_search_by_key(&offset, |(at, _)| *at);
    rest.ok().map(|place| from + place)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn the_index_is_that_of_a_binary_search(
            first in prop_oneof![0..1_000u64, (1u64 << 62)..(1 << 63)],
            gaps in proptest::collection::vec(prop_oneof![20 => 1..3u64, 1 => 1..1_000u64, 1 => Just(1 << 40)], 0..400),
        ) {
            let entries: Vec<(Offset, ())> =
                gaps.iter().scan(first, |at, gap| Some((std::mem::replace(at, *at + gap), ()))).collect();
            let near = entries.iter().flat_map(|(at, ())| at.saturating_sub(2)..at + 3);
            for offset in near.chain([0, first, u64::MAX]) {
                let expected = entries.binary_search_by_key(&offset, |(at, ())| *at).ok();
                prop_assert_eq!(index_of(&entries, offset), expected);
            }
        }
    }
}
