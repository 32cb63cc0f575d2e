use super::*;

fn add(marks: &mut Marks, owners: std::ops::Range<Sequence>, first_ms: i64, last_ms: i64, most: u64) {
    owners.for_each(|owner| marks.add(owner, first_ms, last_ms, most));
}

#[test]
fn a_window_of_many_commits_needs_few_marks() {
    let mut marks = Marks::new(256_000);
    for commit in 0..100_000u64 {
        let time = 1_000_000 + 10 * commit.cast_signed();
        marks.add(commit, time, time + 10, u64::MAX);
        marks.drop_expired(time + 10, time + 10 - 256_000, u64::MAX);
    }
    assert!(marks.len() <= 258, "{}", marks.len());
    assert!((25_600..=25_702).contains(&marks.count), "{}", marks.count);
}

#[test]
fn no_owner_younger_than_the_limit_is_dropped() {
    let mut marks = Marks::new(2_560);
    add(&mut marks, 0..10, 1_000, 1_001, u64::MAX);
    add(&mut marks, 10..20, 1_005, 1_009, u64::MAX);
    add(&mut marks, 20..30, 1_011, 1_011, u64::MAX);
    let last_ms = [0, 9, 19, 20, 99].map(|owner| marks.times_of(owner).1);
    assert_eq!(
        last_ms,
        [1_009, 1_009, 1_009, 1_011, i64::MAX],
        "of one that is unknown, the latest possible one"
    );
    assert_eq!(marks.drop_expired(9_999, 1_009, u64::MAX), None);
    assert_eq!(marks.drop_expired(9_999, 1_010, u64::MAX), Some(DroppedOwners { next: 20, count: 20 }));
    assert_eq!(marks.reach_ms(3_009), Some(2_000));
}

#[test]
fn owners_without_a_time_start_to_age_when_one_is_known() {
    let mut marks = Marks::new(1_000);
    add(&mut marks, 0..10, 0, 0, u64::MAX);
    assert_eq!(marks.drop_expired(1_700_000_000_000, 1_699_999_999_000, u64::MAX), None);
    assert_eq!(marks.drop_expired(1_700_000_001_001, 1_700_000_000_001, u64::MAX).unwrap().count, 10);
}

#[test]
fn a_count_limit_drops_the_oldest_owners() {
    let mut marks = Marks::new(1_000);
    add(&mut marks, 0..100, 5, 5, 10);
    assert_eq!(marks.drop_expired(5, 0, 85), Some(DroppedOwners { next: 20, count: 20 }));
    assert_eq!(marks.count, 80);
}

#[test]
fn overwritten_owners_count_until_their_mark_is_dropped() {
    let mut marks = Marks::new(1_000);
    add(&mut marks, 0..10, 1_000, 1_000, 5);
    (0..5).chain([5, 6]).for_each(|owner| marks.evicted(owner));
    marks.evicted(99);
    assert_eq!((marks.count, marks.first_held(), marks.evicted_ms), (3, Some(5), Some(1_000)));
    assert!((marks.evicted_share() - 0.7).abs() < 1e-9);
    assert_eq!(marks.drop_expired(1_000, 0, 9), Some(DroppedOwners { next: 5, count: 0 }));
    (7..10).for_each(|owner| marks.forget(owner));
    assert_eq!((marks.count, marks.first_held()), (0, None));
}

#[test]
fn removed_owners_are_not_counted() {
    let mut marks = Marks::new(1_000);
    add(&mut marks, 0..4, 5, 5, u64::MAX);
    add(&mut marks, 4..6, 5_000, 5_000, u64::MAX);
    assert_eq!(marks.seal(4), 4);
    marks.forget(5);
    // Its stamp may be later than its own time.
    marks.forget_sealed(3);
    marks.forget_sealed(6);
    assert_eq!((marks.count, marks.sealed), (4, 3), "no slice has an owner of that time");
    assert_eq!(marks.drop_expired(9_000, 9_000, 0), Some(DroppedOwners { next: 6, count: 1 }));
    assert_eq!((marks.count, marks.sealed), (0, 0));
    marks.clear(6);
    add(&mut marks, 6..7, 5_000, 5_000, u64::MAX);
    assert_eq!((marks.count, marks.len()), (1, 1));
}
