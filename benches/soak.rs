//! Size of the local store's directory over many windows: peak size compared with the live data, at a high
//! rate and at a low one. `cargo bench --bench soak [-- <windows>]`, 8 without arguments.
//!
//! A window is a number of records instead of a time: for the disk usage this is equivalent. sled allocates some
//! megabytes in addition to the live data, which is significant in the smaller runs.
#![allow(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::unwrap_used,
    reason = "a measurement fails by panicking"
)]

#[path = "../tests/store/rolling.rs"]
mod rolling;

use dedupd::clock::monotonic;
use rolling::Soak;

fn main() {
    let windows = std::env::args().skip(1).find_map(|word| word.parse().ok()).unwrap_or(8);
    let soak = |journals, window, transaction| {
        let (undone_one_in, seed) = (None, 20_261_121);
        Soak { journals, window, windows, transaction, undone_one_in, seed }
    };
    measure("transactions of 50,000 records", &soak(4, 1_500_000, 50_000..=50_000));
    measure("transactions of 500 to 5,000 records", &soak(12, 250_000, 500..=5_000));
    let undone = Soak { undone_one_in: Some(2), ..soak(12, 250_000, 500..=5_000) };
    measure("the same, every other one aborted and retried", &undone);
    measure("low rate: 1 to 5 records per transaction", &soak(2, 200_000, 1..=5));
    measure("low rate, many journals", &soak(40, 5_000, 1..=5));
}

fn measure(what: &str, soak: &Soak) {
    println!("\n{what}, {} journals, windows of {} ids each:", soak.journals, soak.window);
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a directory");
    let began = monotonic();
    let mut worst = 0.0f64;
    soak.run(dir.path(), |window, rolled| {
        println!("  window {window}: {rolled}");
        // The first window becomes full only at its end.
        worst = worst.max(if window > 1 { rolled.ratio() } else { 0.0 });
    });
    println!("  worst after the first: {worst:.2} x live; {:.0} s", began.elapsed().as_secs_f64());
}
