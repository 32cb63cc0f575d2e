//! Through many windows the directory stays bounded, at a high rate and at a trickle.
//!
//! What is wanted is twice the live bytes, which sled's cleaning does not hold when several partitions
//! write at a high rate (see docs/benches.md): the bound here is what a change must not exceed.

use super::rolling::{Rolled, Soak};

/// Times the live bytes that the directory may take up at any moment.
const TIMES_LIVE: u64 = 4;
/// Segments that sled has in hand whatever the store holds: those being written, those not yet known to
/// be on disk, and a few that are being emptied.
const IN_HAND_BYTES: u64 = 16 << 20;

fn assert_small(soak: &Soak) {
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
    let most = TIMES_LIVE * rolled.live_bytes + IN_HAND_BYTES;
    assert!(rolled.peak_bytes <= most, "more than {most} bytes in window {window} of {soak:?}: {rolled}");
}

#[test]
fn full_transactions_of_several_partitions_keep_the_directory_bounded() {
    assert_small(&Soak { partitions: 4, window: 500_000, windows: 8, transaction: 12_500..=50_000, seed: 1 });
}

#[test]
fn transactions_of_a_few_thousand_keep_the_directory_bounded() {
    assert_small(&Soak { partitions: 12, window: 150_000, windows: 8, transaction: 500..=5_000, seed: 2 });
}

#[test]
fn a_trickle_keeps_the_directory_bounded() {
    assert_small(&Soak { partitions: 3, window: 15_000, windows: 8, transaction: 1..=5, seed: 3 });
}
