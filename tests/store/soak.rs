//! Through many windows the directory stays below twice what is alive in it, at a high rate and at a trickle.

use super::rolling::{Rolled, Soak};

/// Times the live bytes that the directory may take up at any moment.
const TIMES_LIVE: u64 = 2;
/// What sled has in hand whatever the store holds, which matters beside a very small one.
const IN_HAND_BYTES: u64 = 4 << 20;

const SOAK: Soak =
    Soak { partitions: 3, window: 15_000, windows: 8, transaction: 1..=5, undone_one_in: None, seed: 1 };

fn assert_small(soak: &Soak, in_hand_bytes: u64) {
    let dir = tempfile::tempdir().unwrap();
    let mut worst: Option<(u64, Rolled)> = None;
    soak.run(dir.path(), |window, rolled| {
        println!("window {window}: {rolled}");
        // The first one is not full before it ends.
        if window > 1 && worst.is_none_or(|(_, worst)| rolled.peak_bytes > worst.peak_bytes) {
            worst = Some((window, rolled));
        }
    });
    let (window, rolled) = worst.unwrap();
    let most = TIMES_LIVE * rolled.live_bytes + in_hand_bytes;
    assert!(rolled.peak_bytes <= most, "more than {most} bytes in window {window} of {soak:?}: {rolled}");
}

#[test]
fn full_transactions_of_several_partitions_keep_the_directory_bounded() {
    let soak = Soak { partitions: 4, window: 500_000, transaction: 12_500..=50_000, ..SOAK };
    assert_small(&soak, 0);
}

#[test]
fn transactions_of_a_few_thousand_keep_the_directory_bounded() {
    let soak = Soak { partitions: 12, window: 150_000, transaction: 500..=5_000, ..SOAK };
    assert_small(&soak, 0);
}

#[test]
fn small_transactions_keep_the_directory_bounded() {
    assert_small(&Soak { partitions: 2, window: 200_000, transaction: 5..=20, ..SOAK }, 0);
}

#[test]
fn a_trickle_keeps_the_directory_bounded() {
    assert_small(&Soak { transaction: 1..=5, ..SOAK }, IN_HAND_BYTES);
}

#[test]
fn transactions_that_are_undone_keep_the_directory_bounded() {
    let soak = Soak { window: 400_000, transaction: 500..=5_000, undone_one_in: Some(1), ..SOAK };
    assert_small(&soak, 0);
}
