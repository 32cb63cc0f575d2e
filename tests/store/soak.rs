//! Over many windows the directory stays below twice its live bytes, at high and low rates. What was undone stays in its file until all of that
//! has expired.

use super::rolling::{Soak, WindowUsage};

/// Maximum size of the directory, as a multiple of the live bytes.
const MAX_LIVE_MULTIPLE: u64 = 2;
/// What sled holds whatever is stored. Matters only for a very small store.
const SLED_BYTES: u64 = 4 << 20;

const SOAK: Soak =
    Soak { journals: 3, window: 15_000, windows: 8, transaction: 1..=5, undone_one_in: None, seed: 1 };

fn assert_small(soak: &Soak, sled_bytes: u64) {
    let dir = tempfile::tempdir().unwrap();
    let mut worst: Option<(u64, WindowUsage)> = None;
    soak.run(dir.path(), |window, usage| {
        println!("window {window}: {usage}");
        // The first window is not full before its end.
        if window > 1 && worst.is_none_or(|(_, worst)| usage.peak_bytes > worst.peak_bytes) {
            worst = Some((window, usage));
        }
    });
    let (window, usage) = worst.unwrap();
    let most = match soak.undone_one_in {
        None => MAX_LIVE_MULTIPLE * usage.live_bytes + sled_bytes,
        // An eighth of what was written may have expired in the oldest file.
        Some(many) => (usage.live_bytes + usage.live_bytes / many) / 4 * 5 + sled_bytes,
    };
    assert!(usage.peak_bytes <= most, "more than {most} bytes in window {window} of {soak:?}: {usage}");
}

#[test]
fn full_transactions_of_several_journals_keep_the_directory_bounded() {
    let soak = Soak { journals: 4, window: 500_000, transaction: 12_500..=50_000, ..SOAK };
    assert_small(&soak, 0);
}

#[test]
fn transactions_of_a_few_thousand_keep_the_directory_bounded() {
    let soak = Soak { journals: 12, window: 150_000, transaction: 500..=5_000, ..SOAK };
    assert_small(&soak, 0);
}

#[test]
fn small_transactions_keep_the_directory_bounded() {
    assert_small(&Soak { journals: 2, window: 200_000, transaction: 5..=20, ..SOAK }, 0);
}

#[test]
fn a_low_rate_keeps_the_directory_bounded() {
    assert_small(&Soak { transaction: 1..=5, ..SOAK }, SLED_BYTES);
}

#[test]
fn aborted_transactions_keep_the_directory_bounded() {
    let soak = Soak { window: 400_000, transaction: 500..=5_000, undone_one_in: Some(1), ..SOAK };
    assert_small(&soak, 0);
}
