//! The model: the longest increasing subsequence of places.
//!
//! The records outside it are the minimum that must have moved. So one record out of place is one finding, and
//! not one for each record that it passed.

/// Marks the members of a longest strictly increasing subsequence; `None` in the sequence is no member.
/// Patience sorting with predecessor links, O(n log n) (Fredman 1975); an increasing sequence costs one pass.
#[must_use]
pub fn longest_increasing(sequence: &[Option<u32>]) -> Vec<bool> {
    let present = || sequence.iter().filter_map(|place| *place);
    if present().zip(present().skip(1)).all(|(a, b)| a < b) {
        return sequence.iter().map(Option::is_some).collect();
    }
    // piles[n] is the end of the best subsequence of length n + 1: the one with the lowest end.
    let mut piles: Vec<(u32, usize)> = Vec::new();
    let mut before: Vec<Option<usize>> = vec![None; sequence.len()];
    for (at, place) in sequence.iter().enumerate() {
        let Some(place) = *place else { continue };
        let length = piles.partition_point(|(end, _)| *end < place);
        if let Some(slot) = before.get_mut(at) {
            *slot = length.checked_sub(1).and_then(|shorter| piles.get(shorter)).map(|(_, at)| *at);
        }
        match piles.get_mut(length) {
            Some(pile) => *pile = (place, at),
            None => piles.push((place, at)),
        }
    }
    let mut members = vec![false; sequence.len()];
    let mut at = piles.last().map(|(_, at)| *at);
    while let Some(member) = at {
        if let Some(mark) = members.get_mut(member) {
            *mark = true;
        }
        at = before.get(member).copied().flatten();
    }
    members
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outside(places: &[u32]) -> Vec<usize> {
        let sequence: Vec<_> = places.iter().map(|place| Some(*place)).collect();
        let members = longest_increasing(&sequence);
        (0..places.len()).filter(|at| !members[*at]).collect()
    }

    #[test]
    fn as_few_places_as_possible_are_outside() {
        assert!(outside(&[]).is_empty());
        assert!(outside(&[0, 1, 2, 7]).is_empty());
        assert_eq!(outside(&[0, 2, 1, 3]).len(), 1);
        assert_eq!(outside(&[9, 0, 1, 2, 3]), [0]);
        assert_eq!(outside(&[1, 2, 3, 0]), [3]);
        assert_eq!(outside(&[0, 1, 1, 2]).len(), 1, "equal is not increasing");
        assert_eq!(outside(&[0, 1, 2, 1, 2, 3]).len(), 2);
        assert_eq!(
            outside(&[0, 9, 1]),
            [1],
            "of two subsequences of equal length the one with the lower end wins"
        );
    }

    #[test]
    fn absent_places_are_no_members() {
        assert_eq!(longest_increasing(&[None, Some(1), None, Some(2)]), [false, true, false, true]);
        assert_eq!(longest_increasing(&[Some(1), None, Some(1)]).iter().filter(|member| **member).count(), 1);
    }
}
