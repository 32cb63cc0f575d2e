//! Ages of copies: how far apart in time a copy and the earlier records with its id are.

use std::collections::BTreeMap;
use std::time::Duration;

/// The bits of an age that are kept: a class is at most 1/32 of its ages wide.
const BITS: u32 = 6;

/// The ages of copies, counted in classes: their memory does not depend on the number of copies.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CopyAges {
    /// The longest age of a class, ms, and the number of its copies.
    classes: BTreeMap<u64, u64>,
    longest_ms: u64,
}

impl CopyAges {
    pub(super) fn add(&mut self, age_ms: u64) {
        let width = (u64::BITS - age_ms.leading_zeros()).saturating_sub(BITS);
        *self.classes.entry(age_ms | ((1 << width) - 1)).or_default() += 1;
        self.longest_ms = self.longest_ms.max(age_ms);
    }

    /// The number of copies whose age is known.
    #[must_use]
    pub fn copies(&self) -> u64 {
        self.classes.values().sum()
    }

    /// The age that this share of the copies, in ten-thousandths, does not exceed. It is rounded up to the end of its class.
    #[must_use]
    pub fn within(&self, share: u64) -> Duration {
        let rank = self.copies().saturating_mul(share).div_ceil(10_000);
        let mut counted = 0;
        let class = self.classes.iter().find(|(_, copies)| {
            counted += **copies;
            counted >= rank
        });
        Duration::from_millis(class.map_or(0, |(end_ms, _)| self.longest_ms.min(*end_ms)))
    }

    /// The longest age, not rounded.
    #[must_use]
    pub fn longest(&self) -> Duration {
        Duration::from_millis(self.longest_ms)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_is_never_below_the_measured_age_and_at_most_a_32nd_above() {
        let ages_ms = |n: u64| n * n * 37;
        let mut ages = CopyAges::default();
        assert_eq!((ages.copies(), ages.within(9_999)), (0, Duration::ZERO));
        for n in (1..=10_000).rev() {
            ages.add(ages_ms(n));
        }
        assert_eq!((ages.copies(), ages.longest()), (10_000, Duration::from_millis(ages_ms(10_000))));
        for share in [1, 5_000, 9_900, 9_990, 9_999, 10_000] {
            let (measured, found) = (u128::from(ages_ms(share)), ages.within(share).as_millis());
            assert!((measured..=measured + measured / 32).contains(&found), "{share}: {measured} {found}");
        }
        assert_eq!(ages.within(10_000), ages.longest());
    }

    #[test]
    fn extreme_ages_have_a_class() {
        let mut ages = CopyAges::default();
        for ms in [0, 0, 1, 63, 64, u64::MAX] {
            ages.add(ms);
        }
        assert_eq!([1, 3_333, 5_000].map(|share| ages.within(share).as_millis()), [0, 0, 1]);
        assert_eq!(ages.within(10_000), Duration::from_millis(u64::MAX));
    }
}
