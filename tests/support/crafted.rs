//! UUIDs that made the filter of a slice lose ids, end the process, or impossible, when their positions could be computed: XXH3-128 of the
//! identity with a fixed seed, which is inverted here, and a UUID is its own identity. Now they are ids like all others.
#![allow(clippy::cast_possible_truncation, reason = "halves of numbers")]

use dedupd::dedupe::Identity;
use fastrand::Rng;
use xxhash_rust::xxh3::xxh3_128_with_seed;

/// The former seed of the positions.
const SEED: u64 = 0x706f_7369_7469_6f6e;

/// Words of the secret of XXH3 for inputs of 16 bytes, combined as it does.
const FLIP_LOW: u64 = 0x5997_3f00_3336_2349u64.wrapping_sub(SEED);
const FLIP_HIGH: u64 = 0xc202_7976_92d6_3d58u64.wrapping_add(SEED);
const PRIME32_2: u64 = 0x85EB_CA77;
const PRIME64_1: u64 = 0x9E37_79B1_85EB_CA87;
const PRIME64_2: u64 = 0xC2B2_AE3D_27D4_EB4F;
const AVALANCHE: u64 = 0x1656_6791_9E37_79F9;

/// The inverse of an odd number.
fn inverse(of: u64) -> u64 {
    (0..6).fold(of, |x, _| x.wrapping_mul(2u64.wrapping_sub(of.wrapping_mul(x))))
}

/// The inverse of `x ^ (x >> by)`.
fn unshift(x: u64, by: u32) -> u64 {
    (0..64 / by).fold(x, |r, _| x ^ (r >> by))
}

/// A UUID at a position; `free` selects one of 2^64.
fn identity_at(position: u64, free: u64) -> Identity {
    let hash = unshift(unshift(position, 32).wrapping_mul(inverse(AVALANCHE)), 37);
    let product = u128::from(free) * u128::from(PRIME64_1);
    let (low, high) = ((product as u64).wrapping_add(15 << 54), (product >> 64) as u64);
    let sum = (hash.wrapping_mul(inverse(PRIME64_2)) ^ low).swap_bytes().wrapping_sub(high);
    let low_half = sum.wrapping_mul(inverse(PRIME32_2)) & 0xffff_ffff;
    let second = sum.wrapping_sub(low_half.wrapping_mul(PRIME32_2 - 1)) ^ FLIP_HIGH;
    let first = free ^ second ^ FLIP_LOW;
    let identity = Identity((u128::from(second) << 64 | u128::from(first)).to_le_bytes());
    assert_eq!(xxh3_128_with_seed(&identity.0, SEED) as u64, position);
    identity
}

/// The seeds that the library tries, in their order.
pub fn seeds() -> impl Iterator<Item = u64> {
    (1u64..).map(|number| {
        let state = number.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(1);
        let mixed = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    })
}

/// An id with this hash in the library, under one of its seeds.
fn id_of(random: &mut Rng, hash: u64, seed: u64) -> Identity {
    let hash = unshift(hash, 33).wrapping_mul(inverse(0xc4ce_b9fe_1a85_ec53));
    let hash = unshift(hash, 33).wrapping_mul(inverse(0xff51_afd7_ed55_8ccd));
    identity_at(unshift(hash, 33).wrapping_sub(seed), random.u64(..))
}

/// Pairs of ids with three equal places, for each of these seeds.
pub fn pairs(random: &mut Rng, seeds: impl Iterator<Item = u64>) -> Vec<Identity> {
    let pair = |seed| {
        let hash = random.u64(..);
        [hash, hash ^ 1 << 31].map(|hash| id_of(random, hash, seed))
    };
    seeds.flat_map(pair).collect()
}

/// Ids with one first place under the first seed. `cycle`: their hashes combined by exclusive or are zero.
pub fn one_place(random: &mut Rng, count: usize, cycle: bool) -> Vec<Identity> {
    let top = random.u64(..1 << 21) << 37;
    let mut hashes: Vec<u64> = (0..count).map(|_| top | random.u64(..1 << 37)).collect();
    if cycle {
        hashes.pop();
        hashes.push(hashes.iter().fold(0, |all, hash| all ^ hash));
    }
    let seed = seeds().next().unwrap();
    hashes.into_iter().map(|hash| id_of(random, hash, seed)).collect()
}
