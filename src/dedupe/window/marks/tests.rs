use super::*;

/// An owner whose number is its offset.
fn at(offset: Offset) -> IndexedOwner {
    IndexedOwner { offset, number: offset }
}

fn add(marks: &mut Marks, owners: impl IntoIterator<Item = Offset>, times: (i64, i64), most: u64) {
    owners.into_iter().for_each(|owner| marks.add(at(owner), times, most));
}

#[test]
fn a_window_of_many_commits_needs_few_marks() {
    let mut marks = Marks::new(256_000);
    for commit in 0..100_000u64 {
        let time = 1_000_000 + 10 * commit.cast_signed();
        marks.add(at(commit), (time, time + 10), u64::MAX);
        marks.drop_expired(time + 10, time + 10 - 256_000, u64::MAX);
    }
    assert!(marks.len() <= 258, "{}", marks.len());
    assert!((25_600..=25_702).contains(&marks.count()), "{}", marks.count());
}

#[test]
fn no_owner_younger_than_the_limit_is_dropped() {
    let mut marks = Marks::new(2_560);
    add(&mut marks, 0..10, (1_000, 1_001), u64::MAX);
    add(&mut marks, 10..20, (1_005, 1_009), u64::MAX);
    add(&mut marks, 20..30, (1_011, 1_011), u64::MAX);
    assert_eq!([0, 9, 19, 20, 99].map(|owner| marks.times_of(owner).1), [1_009, 1_009, 1_009, 1_011, 0]);
    assert_eq!(marks.drop_expired(9_999, 1_009, u64::MAX), None);
    assert_eq!(
        marks.drop_expired(9_999, 1_010, u64::MAX),
        Some(DroppedOwners { next: 20, next_number: 20, count: 20 })
    );
    assert_eq!(marks.reach_ms(3_009), Some(2_000));
}

#[test]
fn owners_without_a_time_start_to_age_when_stream_time_is_known() {
    let mut marks = Marks::new(1_000);
    add(&mut marks, 0..10, (0, 0), u64::MAX);
    assert_eq!(marks.drop_expired(1_700_000_000_000, 1_699_999_999_000, u64::MAX), None);
    assert_eq!(marks.drop_expired(1_700_000_001_001, 1_700_000_000_001, u64::MAX).unwrap().count, 10);
}

#[test]
fn a_count_limit_drops_the_oldest_owners() {
    let mut marks = Marks::new(1_000);
    add(&mut marks, 0..100, (5, 5), 10);
    assert_eq!(marks.drop_expired(5, 0, 85), Some(DroppedOwners { next: 20, next_number: 20, count: 20 }));
    assert_eq!(marks.count(), 80);
}

#[test]
fn overwritten_owners_count_until_their_mark_is_dropped() {
    let mut marks = Marks::new(1_000);
    add(&mut marks, 0..10, (1_000, 1_000), 5);
    (0..5).chain([5, 6]).for_each(|owner| marks.evicted(owner));
    marks.evicted(99);
    assert_eq!((marks.count(), marks.first_held(), marks.evicted_ms()), (3, Some(at(5)), Some(1_000)));
    assert!((marks.evicted_share() - 0.7).abs() < 1e-9);
    assert_eq!(marks.drop_expired(1_000, 0, 9), Some(DroppedOwners { next: 5, next_number: 5, count: 0 }));
    marks.truncate(at(7), 3);
    assert_eq!((marks.count(), marks.first_held()), (0, None));
}

#[test]
fn truncation_can_split_a_mark() {
    let mut marks = Marks::new(1_000);
    add(&mut marks, [0, 3, 6, 9], (5, 5), u64::MAX);
    add(&mut marks, [12, 15], (5_000, 5_000), u64::MAX);
    marks.truncate(at(6), 4);
    assert_eq!((marks.count(), marks.len()), (2, 1));
    assert_eq!(
        marks.drop_expired(9_000, 9_000, 0),
        Some(DroppedOwners { next: 6, next_number: 6, count: 2 })
    );
}
