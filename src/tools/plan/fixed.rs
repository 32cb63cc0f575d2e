//! A table of fixed size in which new entries overwrite old ones: the inverse of a Bloom filter. It may lose an
//! id, but never has false positives.

use super::count;

/// Buckets `N` of a table with one bucket per entry so that an entry is still stored with probability `known` after the next
/// `arrivals` entries: `N = 1 / (1 - known^(1 / arrivals))`.
///
/// Each arrival misses the entry's bucket with probability `1 - 1/N`, so the entry survives all of them with
/// probability `(1 - 1/N)^arrivals`, which is `known`.
#[must_use]
pub fn remembered(known: f64, arrivals: u64) -> u64 {
    // 1 - y^(1/x) without losing digits: x is large.
    let per_bucket = -(known.ln() / arrivals.max(1) as f64).exp_m1();
    count(1.0 / per_bucket)
}
