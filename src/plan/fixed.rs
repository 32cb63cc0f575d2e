//! A table of fixed size in which new entries overwrite old ones: the inverse of a Bloom filter. It
//! may forget, and never takes a new id for a known one.

use super::count;

/// Buckets `N` of a table without choice so that an entry is overwritten with chance `overwritten`
/// by the next `arrivals` entries: `N = 1 / (1 - (1 - overwritten)^(1 / arrivals))`.
///
/// Each arrival misses the entry's bucket with chance `1 - 1/N`, so the entry is still there after
/// all of them with `(1 - 1/N)^arrivals`, which is `1 - overwritten`.
#[must_use]
pub fn buckets_overwritten(overwritten: f64, arrivals: u64) -> u64 {
    // 1 - (1 - y)^(1/x) without losing digits: x is large.
    let a_bucket = -((-overwritten).ln_1p() / arrivals.max(1) as f64).exp_m1();
    count(1.0 / a_bucket)
}

/// Buckets so that an id that `arrivals` others came after is still known with chance `known`.
#[must_use]
pub fn remembered(known: f64, arrivals: u64) -> u64 {
    buckets_overwritten(1.0 - known, arrivals)
}
