//! Relation between identities, blocks and false-positive rate: pure arithmetic.
//!
//! A filter is a number of 512-bit blocks. An identity has two of them, and `k` bits in each, drawn
//! with replacement. An absent identity passes when all its bits happen to be set in both blocks. So the
//! rate of a filter is the square of the rate of one block, averaged over all blocks.
//!
//! **One block.** `n` identities in `b` blocks put `j` of them into a block, where `j` follows a
//! Poisson distribution with mean `load = 2n / b` (Putze, Sanders, Singler: Cache-, Hash- and Space-Efficient
//! Bloom Filters, 2007). The usual formula `(1 - (1 - 1/512)^(kj))^k` assumes a fixed share of bits set, and
//! so gives too low a rate for such small blocks (Bose et al.: On the false-positive rate of
//! Bloom filters, 2008). Inclusion and exclusion over the bits tested gives the expectation without
//! that error: the probability that none of `i` given bits is set is `E[(1 - i/512)^(kj)]`, which for a
//! Poisson distribution is `exp(-load (1 - (1 - i/512)^k))`.
//!
//! **Bits per identity**, by this arithmetic, as `1024 / load` with the best `k`:
//!
//! | rate of | 1e-4 | 1e-6 | 1e-9 | 1e-12 |
//! |---|---|---|---|---|
//! | one filter | 19.8 (k 6) | 31.1 (k 9) | 51.4 (k 13) | 77.6 (k 16) |
//! | a look-up in 7 filters | 24.4 (k 8) | 36.3 (k 10) | 58.1 (k 14) | 86.5 (k 17) |
//! | a look-up in 8 filters | 24.7 (k 8) | 36.7 (k 10) | 58.5 (k 14) | 87.1 (k 17) |
//!
//! So 52 bits are sufficient for 1e-9 in *one* filter (8.3e-10 with k = 13), and give 5.8e-9 in a look-up
//! that queries seven. The configured rate applies to the look-up, so the slices share it.

/// Bits of a block.
pub const BLOCK_BITS: u32 = 512;
/// Blocks of an identity in a filter.
const BLOCKS_PER_ID: f64 = 2.0;
/// Most bits of an identity in one block. With more, rounding errors of [`block_rate`] would be significant.
const MAX_BITS: u32 = 20;
/// The smallest rate for which filters are sized. Smaller rates are treated as this one, because they cannot be
/// measured.
pub const SMALLEST_RATE: f64 = 1e-15;
/// Fewest blocks of a filter: 4 KiB.
pub(super) const FEWEST_BLOCKS: u64 = 64;
/// Share of a slice's rate for its first filter. The slice's further filters share the rest.
const FIRST_SHARE: f64 = 7.0 / 8.0;

/// The probability that `bits` bits, drawn with replacement, are all set in a block, if each of its
/// identities has drawn as many and their number follows a Poisson distribution with mean `load`.
/// For `bits` up to 20; absolute error below 1e-10.
#[must_use]
pub fn block_rate(load: f64, bits: u32) -> f64 {
    Draws::new(bits).rate(load)
}

/// The part of [`block_rate`] that depends on the number of bits and not on the load.
struct Draws {
    /// The probabilities that the bits drawn are 0, 1, 2, … different ones.
    distinct: Vec<f64>,
    /// The probabilities that one identity sets at least one of 0, 1, 2, … given bits.
    touched: Vec<f64>,
}

impl Draws {
    fn new(bits: u32) -> Self {
        let size = f64::from(BLOCK_BITS);
        let touched = (0..=bits).map(|given| 1.0 - (1.0 - f64::from(given) / size).powf(f64::from(bits)));
        Self { distinct: distinct_draws(bits), touched: touched.collect() }
    }

    fn rate(&self, load: f64) -> f64 {
        // none[i]: probability that none of i given bits is set. Its d-th difference: that all of d given bits are set.
        let mut none: Vec<f64> = self.touched.iter().map(|touched| (-load * touched).exp()).collect();
        let mut rate = 0.0;
        for distinct in &self.distinct {
            rate += distinct * none.first().copied().unwrap_or(0.0);
            let mut next = none.pop().unwrap_or(0.0);
            none.iter_mut().rev().for_each(|this| *this -= std::mem::replace(&mut next, *this));
        }
        rate.clamp(0.0, 1.0)
    }
}

/// The probabilities that `draws` draws from the bits of a block give 0, 1, 2, … different ones.
fn distinct_draws(draws: u32) -> Vec<f64> {
    let size = f64::from(BLOCK_BITS);
    let mut chances = vec![1.0];
    for _ in 0..draws {
        let again = chances.iter().enumerate().map(|(hit, chance)| chance * hit as f64 / size);
        let other = chances.iter().enumerate().map(|(hit, chance)| chance * (size - hit as f64) / size);
        let next = again.chain([0.0]).zip([0.0].into_iter().chain(other)).map(|(a, b)| a + b);
        chances = next.collect();
    }
    chances
}

/// The false-positive rate of a filter of `blocks` blocks that holds `ids` identities with `bits`
/// bits in each of two blocks.
#[must_use]
pub fn filter_rate(ids: u64, blocks: u64, bits: u32) -> f64 {
    block_rate(BLOCKS_PER_ID * ids as f64 / blocks.max(1) as f64, bits).powi(2)
}

/// How densely the blocks of a filter may be filled.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Density {
    /// Bits that an identity sets in each of its two blocks, 1 to 20.
    pub bits: u32,
    /// Average identities per block, each counted in both of its blocks.
    pub load: f64,
}

impl Density {
    /// The highest density that keeps a filter within `rate`.
    #[must_use]
    pub fn at_rate(rate: f64) -> Self {
        let all = (1..=MAX_BITS).map(|bits| Self::with_bits(rate, bits));
        all.max_by(|a, b| a.load.total_cmp(&b.load)).unwrap_or(Self { bits: 1, load: 0.0 })
    }

    /// The highest density with a given number of bits that keeps a filter within `rate`.
    #[must_use]
    pub fn with_bits(rate: f64, bits: u32) -> Self {
        let wanted = rate.max(SMALLEST_RATE / 1e4).sqrt();
        let draws = Draws::new(bits);
        let (mut low, mut high) = (0.0, f64::from(BLOCK_BITS));
        for _ in 0..24 {
            let middle = f64::midpoint(low, high);
            if draws.rate(middle) <= wanted { low = middle } else { high = middle }
        }
        Self { bits, load: low }
    }

    /// Bits of memory per identity.
    #[must_use]
    pub fn bits_an_id(self) -> f64 {
        BLOCKS_PER_ID * f64::from(BLOCK_BITS) / self.load
    }

    /// Number of blocks for `ids` identities: at least 64, and more than the average requires by twice the square
    /// root, because in a small filter single crowded blocks matter.
    #[must_use]
    pub fn blocks_for(self, ids: u64) -> u64 {
        let blocks = (BLOCKS_PER_ID * ids as f64 / self.load).ceil();
        whole(blocks + 2.0 * blocks.sqrt()).max(FEWEST_BLOCKS)
    }

    /// Number of identities that `blocks` blocks hold; the inverse of [`Density::blocks_for`].
    #[must_use]
    pub fn ids_in(self, blocks: u64) -> u64 {
        let root = (1.0 + blocks as f64).sqrt() - 1.0;
        whole(root * root * self.load / BLOCKS_PER_ID).max(1)
    }
}

/// How the rate of a look-up is divided among all filters that it may query.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Shares {
    slice: f64,
}

impl Shares {
    /// `rate` is that of a look-up as a whole, which queries at most `consulted` slices. Their rates
    /// add up: the rate of a union is at most the sum.
    #[must_use]
    pub fn new(rate: f64, consulted: u32) -> Self {
        Self { slice: rate.clamp(SMALLEST_RATE, 1.0) / f64::from(consulted.max(1)) }
    }

    /// The rate of filter number `place` of a slice, counted from 0. The first one gets 7/8 of the slice's rate, which
    /// costs 0.8 bits per identity. Further ones, which a slice has only when it exceeds its first filter's capacity,
    /// get 1/16, 1/32, … (Almeida, Baquero, Preguiça, Hutchison: Scalable Bloom Filters, 2007). Their sum never exceeds
    /// the slice's rate.
    #[must_use]
    pub fn of(self, place: u32) -> f64 {
        let share = if place == 0 { FIRST_SHARE } else { 0.5f64.powi(place.min(40).cast_signed() + 3) };
        self.slice * share
    }
}

/// A non-negative float as a count, rounded down.
fn whole(value: f64) -> u64 {
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "the cast saturates")]
    let whole = value as u64;
    whole
}

#[cfg(test)]
mod tests {
    use super::*;

    fn close(found: f64, wanted: f64) {
        assert!((found / wanted - 1.0).abs() < 1e-3, "{found} where {wanted} was expected");
    }

    /// Computes the rate with a Markov chain over the bits set by `j` identities, without a closed form.
    fn by_markov_chain(load: f64, bits: u32) -> f64 {
        let mut set = vec![0.0; 513];
        set[0] = 1.0;
        let (mut rate, mut chance) = (0.0, (-load).exp());
        for j in 1..200u32 {
            let all: f64 =
                set.iter().enumerate().map(|(at, p)| p * (at as f64 / 512.0).powi(bits.cast_signed())).sum();
            rate += chance * all;
            chance *= load / f64::from(j);
            for _ in 0..bits {
                for at in (0..=512).rev() {
                    let below = if at == 0 { 0.0 } else { set[at - 1] * (513 - at) as f64 / 512.0 };
                    set[at] = set[at] * at as f64 / 512.0 + below;
                }
            }
        }
        rate
    }

    #[test]
    fn the_closed_form_agrees_with_a_markov_chain() {
        for (load, bits) in [(19.7, 13), (17.5, 14), (41.0, 8), (11.8, 17), (3.0, 2)] {
            close(block_rate(load, bits), by_markov_chain(load, bits));
        }
        assert!(block_rate(0.0, 13) < 1e-15 && block_rate(1e9, 13) > 0.999);
    }

    #[test]
    fn the_table_in_the_module_docs_is_correct() {
        let table: [(f64, [(f64, u32); 3]); 4] = [
            (1e-4, [(19.8, 6), (24.4, 8), (24.7, 8)]),
            (1e-6, [(31.1, 9), (36.3, 10), (36.7, 10)]),
            (1e-9, [(51.4, 13), (58.1, 14), (58.5, 14)]),
            (1e-12, [(77.6, 16), (86.5, 17), (87.1, 17)]),
        ];
        for (rate, row) in table {
            for ((bits_an_id, bits), filters) in row.into_iter().zip([1.0, 7.0, 8.0]) {
                let density = Density::at_rate(rate / filters);
                assert_eq!(density.bits, bits, "{rate} over {filters}");
                assert!((density.bits_an_id() - bits_an_id).abs() < 0.06, "{}", density.bits_an_id());
            }
        }
        close(filter_rate(1_000_000, 1_000_000 * 52 / 512, 13), 8.27e-10);
    }

    #[test]
    fn the_rates_of_a_slices_filters_never_exceed_its_rate() {
        let shares = Shares::new(1e-6, 8);
        let all: f64 = (0..100).map(|place| shares.of(place)).sum();
        assert!(all <= 1e-6 / 8.0 * (1.0 + 1e-9) && all > 0.9e-6 / 8.0, "{all}");
    }

    #[test]
    fn ids_in_is_the_inverse_of_blocks_for() {
        let density = Density::at_rate(1.25e-10);
        for ids in [2_000, 50_000, 20_000_000u64] {
            let blocks = density.blocks_for(ids);
            assert!(density.ids_in(blocks).abs_diff(ids) <= 20, "{} for {ids}", density.ids_in(blocks));
            assert!(filter_rate(ids, blocks, density.bits) < 1.25e-10);
        }
        assert_eq!(density.blocks_for(1), 64);
    }
}
