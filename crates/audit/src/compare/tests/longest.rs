//! The model: the longest increasing subsequence of places.

/// Marks the members of a longest strictly increasing subsequence; `None` in the sequence is no member. Of
/// several such subsequences, the one that patience sorting finds.
#[must_use]
pub fn longest_increasing(sequence: &[Option<usize>]) -> Vec<bool> {
    // piles[n] is the end of the best subsequence of length n + 1: the one with the lowest end.
    let mut piles: Vec<(usize, usize)> = Vec::new();
    let mut before = vec![None; sequence.len()];
    for (at, place) in sequence.iter().enumerate() {
        let Some(place) = *place else { continue };
        let length = piles.partition_point(|(end, _)| *end < place);
        before[at] = length.checked_sub(1).map(|shorter| piles[shorter].1);
        match piles.get_mut(length) {
            Some(pile) => *pile = (place, at),
            None => piles.push((place, at)),
        }
    }
    let mut members = vec![false; sequence.len()];
    let mut at = piles.last().map(|(_, at)| *at);
    while let Some(member) = at {
        members[member] = true;
        at = before[member];
    }
    members
}

#[test]
fn as_few_places_as_possible_are_outside() {
    let outside = |places: &[usize]| -> Vec<usize> {
        let members = longest_increasing(&places.iter().copied().map(Some).collect::<Vec<_>>());
        (0..places.len()).filter(|at| !members[*at]).collect()
    };
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
    assert_eq!(longest_increasing(&[None, Some(1), None, Some(2)]), [false, true, false, true]);
}
