//! A window that evicts: the probability that an id has been overwritten when its duplicate arrives.
//!
//! The table has buckets of eight slots. A new id is assigned two buckets and overwrites the oldest of their
//! sixteen slots. Within a bucket, slots are overwritten in order of age. Let `H(a)` be the share of buckets
//! whose oldest entry is younger than `a`. An entry of age `a` is overwritten when its bucket is one of the two
//! drawn, it is the oldest there, and the oldest of the other bucket is younger: at the rate `2 h(a) H(a)`,
//! where `h` is the density of `H`. The age at which entries are overwritten is therefore distributed as
//! `H(a)²`, the older of two independent oldest entries. Each entry is overwritten once, so `H(a)²` is the
//! probability that an entry of age `a` is overwritten.
//!
//! `H` has no closed form: for a bucket it depends on its last eight arrivals, and these depend on `H`. It
//! depends on nothing else. In particular it does not depend on the table size if age is counted in tables:
//! new ids since, divided by slots. So [`CURVE`] stores values measured with 65,536 buckets over
//! 600 table lengths of new ids.

use serde::Serialize;

use super::{Workload, count};

/// New ids since the first record, as a multiple of the slots → probability that it was overwritten.
const CURVE: [(f64, f64); 29] = [
    (0.30, 1.2716e-8),
    (0.35, 1.6212e-7),
    (0.40, 1.3860e-6),
    (0.45, 9.1108e-6),
    (0.50, 4.9283e-5),
    (0.55, 2.2284e-4),
    (0.60, 8.8812e-4),
    (0.65, 3.1036e-3),
    (0.70, 9.5982e-3),
    (0.75, 2.6287e-2),
    (0.80, 6.3396e-2),
    (0.85, 1.3309e-1),
    (0.90, 2.4207e-1),
    (0.95, 3.8271e-1),
    (1.00, 5.3361e-1),
    (1.05, 6.7122e-1),
    (1.10, 7.8121e-1),
    (1.15, 8.6075e-1),
    (1.20, 9.1429e-1),
    (1.25, 9.4856e-1),
    (1.30, 9.6969e-1),
    (1.35, 9.8240e-1),
    (1.40, 9.8990e-1),
    (1.45, 9.9425e-1),
    (1.50, 9.9676e-1),
    (1.55, 9.9818e-1),
    (1.60, 9.9899e-1),
    (1.65, 9.9944e-1),
    (1.70, 9.9969e-1),
];

/// What a window that evicts misses: the share of duplicates forwarded as new, by their delay.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Misses {
    /// Slots of all tables in total.
    pub slots: u64,
    /// Delays of the duplicates, in seconds: a quarter, a half, three quarters and all of the exact part.
    pub seconds: [f64; 4],
    /// The probability that a duplicate with that delay is forwarded as new.
    pub rates: [f64; 4],
    /// The maximum delay at which a duplicate is recognised with 99 %, in seconds; at most the exact part.
    pub seconds_for_99_percent: f64,
}

impl Misses {
    pub(super) fn of(asked: &Workload, slots: u64) -> Self {
        let tables_per_second = asked.new_ids() / slots.max(1) as f64;
        let seconds = [0.25, 0.5, 0.75, 1.0].map(|part| part * asked.exact.as_secs_f64());
        Self {
            slots,
            seconds,
            rates: seconds.map(|seconds| missed(seconds * tables_per_second)),
            seconds_for_99_percent: (tables_known(0.99) / tables_per_second).min(asked.exact.as_secs_f64()),
        }
    }
}

/// The probability that an id has been overwritten after `tables` times as many new ids as the table has slots.
/// Valid for tables of at least a few hundred slots.
#[must_use]
pub fn missed(tables: f64) -> f64 {
    let after = CURVE.partition_point(|(at, _)| *at < tables).clamp(1, CURVE.len() - 1);
    let (Some((x, y)), Some((next_x, next_y))) = (CURVE.get(after - 1), CURVE.get(after)) else { return 0.0 };
    // The logarithm of the odds is nearly linear in the logarithm of `tables`; extrapolate beyond the ends.
    let odds = |chance: f64| (chance / (1.0 - chance)).ln();
    let slope = (odds(*next_y) - odds(*y)) / (next_x / x).ln();
    let odds = odds(*y) + slope * (tables.max(1e-6) / x).ln();
    1.0 / (1.0 + (-odds).exp())
}

/// Slots so that an id is still stored with probability `known` after `arrivals` other ids.
#[must_use]
pub fn remembered_in(known: f64, arrivals: u64) -> u64 {
    count(arrivals as f64 / tables_known(known))
}

/// New ids, in tables, after which an id is still stored with probability `known`.
fn tables_known(known: f64) -> f64 {
    let (mut few, mut many) = (1e-3, 1e3);
    for _ in 0..64 {
        let middle = f64::midpoint(few, many);
        if missed(middle) < 1.0 - known { few = middle } else { many = middle }
    }
    few
}
