//! The filter contains what it was built from and little else, and no bytes make a look-up fail.

use proptest::prelude::*;

use super::*;

/// Uniform positions, different for each number.
fn position(number: u64) -> u64 {
    let mixed = (number ^ (number >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

fn positions(numbers: std::ops::Range<u64>) -> Vec<u64> {
    numbers.map(position).collect()
}

fn entry_of(bytes: &[u8]) -> ShardEntry {
    ShardEntry { bytes: u32::try_from(bytes.len()).unwrap(), crc: crc32c::crc32c(bytes) }
}

/// The encoded shards of a filter.
fn built(positions: &[u64], shards: u32) -> Vec<Vec<u8>> {
    built_with(positions, shards, FilterBits::WITH_OWNERS)
}

fn built_with(positions: &[u64], shards: u32, bits: FilterBits) -> Vec<Vec<u8>> {
    let mut by_shard = vec![Vec::new(); shards as usize];
    for position in positions {
        by_shard[part_of(*position, shards as usize)].push(*position);
    }
    let mut builder = FilterBuilder::with_shards(positions.len() as u64, bits, shards);
    for positions in &mut by_shard {
        positions.sort_unstable();
        builder.push(positions);
    }
    let mut encoded = Vec::new();
    let mut write = |shard: &[u8]| -> Result<(), SliceError> {
        encoded.push(shard.to_vec());
        Ok(())
    };
    let entries = builder.finish(&mut write).unwrap();
    assert_eq!(entries, encoded.iter().map(|shard| entry_of(shard)).collect::<Vec<_>>());
    encoded
}

fn read(shards: &[Vec<u8>]) -> Result<SliceFilter, SliceError> {
    let mut reader = FilterReader::new(shards.len());
    shards.iter().try_for_each(|bytes| reader.push(bytes, entry_of(bytes)))?;
    Ok(reader.finish())
}

/// With any number of shards, although the positions of a shard have equal high bits.
#[test]
fn a_filter_has_no_false_negatives_and_few_false_positives() {
    const IDS: u64 = 600_000;
    const OTHERS: u64 = 2_000_000;
    for shards in [1, 2, 1_024] {
        let inserted = positions(0..IDS);
        let filter = read(&built(&inserted, shards)).unwrap();
        assert!(inserted.iter().all(|position| filter.contains(*position)), "{shards} shards");
        let wrong = (IDS..IDS + OTHERS).filter(|number| filter.contains(position(*number))).count();
        // 98 expected: 1 in 2,000 in 10 slices.
        assert!((65..125).contains(&wrong), "{wrong} false positives with {shards} shards");
    }
}

/// The rate halves with each bit, and the memory grows by 1.13 bits for each identity.
#[test]
fn a_filter_of_any_bits_has_its_rate_and_size() {
    const IDS: u64 = 200_000;
    const OTHERS: u64 = 4_000_000;
    let inserted = positions(0..IDS);
    for (shards, bits) in (1..=3).cycle().zip([1, 2, 5, 7, 8, 9, 13, 16, 27, 32]) {
        let filter = read(&built_with(&inserted, shards, FilterBits(bits))).unwrap();
        assert!(inserted.iter().all(|position| filter.contains(*position)), "{bits} bits");
        let wrong = (IDS..IDS + OTHERS).filter(|number| filter.contains(position(*number))).count() as f64;
        let expected = filter.false_positive_rate() * OTHERS as f64;
        assert!(
            (wrong - expected).abs() < expected / 10.0 + 4.0 * expected.sqrt() + 0.5,
            "{bits} bits: {wrong}, {expected}"
        );
        let (memory, planned) = (filter.memory_bytes() as f64, FilterBits(bits).bytes_for(IDS) as f64);
        assert!((memory / planned - 1.0).abs() < 0.06, "{bits} bits: {memory}, {planned}");
    }
}

#[test]
fn the_bits_follow_from_the_rate() {
    assert_eq!(
        [0.5, 1e-3, 1e-6, 1e-9, 1e-10, 0.0].map(|rate| FilterBits::at_rate(rate).0),
        [1, 8, 18, 28, 32, 32]
    );
}

#[test]
fn the_first_level_passes_1_2_percent_of_other_positions() {
    const IDS: u64 = 300_000;
    let inserted = positions(0..IDS);
    for shards in [1, 3] {
        let filter = read(&built(&inserted, shards)).unwrap();
        let level = &filter.blocks;
        let passes = |position| blocked::contain(level, position, BlockBits::of(position));
        assert!(inserted.iter().all(|position| passes(*position)));
        let bits = size_of_val(level.as_slice()) as f64 * 8.0 / IDS as f64;
        assert!((9.65..9.67).contains(&bits), "{bits} bits per position");
        let wrong = (IDS..2 * IDS).filter(|number| passes(position(*number))).count();
        let share = wrong as f64 / IDS as f64;
        assert!((0.0115..0.013).contains(&share), "{share}");
    }
}

#[test]
fn a_shard_with_impossible_lengths_is_refused() {
    let bytes = built(&positions(0..1_000), 1).remove(0);
    let accepted = |bytes: &[u8]| read(&[bytes.to_vec()]).is_ok();
    assert!(accepted(&bytes));
    let cases: [(&str, usize, u32); 7] = [
        ("a segment length of no power of two", 8, 3),
        ("a segment length of zero", 8, 0),
        ("longer segments than fingerprints", 8, 1 << 31),
        ("fingerprints without bits", 16, 0),
        ("fingerprints of too many bits", 16, 33),
        ("no starting places", 12, 0),
        ("more starting places than fingerprints", 12, u32::MAX - 63),
    ];
    for (damage, at, value) in cases {
        let mut damaged = bytes.clone();
        damaged[at..at + 4].copy_from_slice(&value.to_le_bytes());
        assert!(!accepted(&damaged), "{damage}");
    }
    for length in (0..bytes.len()).filter(|length| !(bytes.len() - length).is_multiple_of(64)) {
        assert!(!accepted(&bytes[..length]), "the first {length} bytes");
    }
}

#[test]
fn shards_with_different_numbers_of_blocks_are_refused() {
    let (few, many) = (built(&positions(0..1_000), 2), built(&positions(0..2_000), 2));
    assert!(read(&many).is_ok());
    assert!(read(&[few[0].clone(), many[1].clone()]).is_err());
    assert!(read(&[many[0].clone(), few[1].clone()]).is_err());
}

proptest! {
    #[test]
    fn a_look_up_in_any_accepted_shard_is_within_its_bounds(
        seed in any::<u64>(),
        segment in 0..6u32,
        bits in 0..40u32,
        segments in 0..4u32,
        rest in proptest::collection::vec(any::<u8>(), 0..512),
        looked_up in proptest::collection::vec(any::<u64>(), 1..50),
    ) {
        let segment = 1u32 << segment;
        let mut bytes = seed.to_le_bytes().to_vec();
        bytes.extend(segment.to_le_bytes());
        bytes.extend((segment * segments).to_le_bytes());
        bytes.extend(bits.to_le_bytes());
        let whole = ((segments + 2) * segment * bits).div_ceil(8) as usize;
        bytes.extend(rest.iter().cycle().take(if rest.is_empty() { 0 } else { whole + rest.len() / 64 * 64 }));
        let filter = read(&[bytes.clone(), bytes]);
        let is_exact = (segments, bits) == (0, 0);
        prop_assert!(is_exact || filter.is_ok() == (segments > 0 && rest.len() >= 64 && (1..=32).contains(&bits)));
        if let Ok(filter) = filter {
            for position in looked_up {
                filter.contains(position);
            }
        }
    }
}

/// The seeds that the library tries, in their order.
fn library_seeds() -> impl Iterator<Item = u64> {
    (1u64..).map(|number| position(number.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(1)))
}

/// The position that has this hash with a seed of the library.
fn position_of(hash: u64, seed: u64) -> u64 {
    let unshift = |hash: u64| hash ^ (hash >> 33);
    // The inverse factors of the library's hash.
    let hash = unshift(hash).wrapping_mul(0x9cb4_b2f8_1293_37db);
    unshift(unshift(hash).wrapping_mul(0x4f74_430c_22a5_4005)).wrapping_sub(seed)
}

/// Positions that collide with the first seed of an attempt.
#[derive(Debug, Clone, Copy)]
enum Gadget {
    /// As many with one first place.
    OnePlace(usize),
    /// As many with one first place, whose hashes combined by exclusive or are zero.
    Cycle(usize),
    /// As many pairs with three equal places.
    Pairs(usize),
}

impl Gadget {
    fn positions(self, random: &mut fastrand::Rng, attempt: u64) -> Vec<u64> {
        let seed = library_seeds().next().unwrap();
        let shift = attempt.wrapping_mul(fuse::SEED_STEP);
        // In the first segment of any filter.
        let top = random.u64(..1 << 21) << 37;
        let mut one_place =
            |count: usize| -> Vec<u64> { (0..count).map(|_| top | random.u64(..1 << 37)).collect() };
        let hashes: Vec<u64> = match self {
            Self::OnePlace(count) => one_place(count),
            Self::Cycle(count) => {
                let mut hashes = one_place(count - 1);
                hashes.push(hashes.iter().fold(0, |all, hash| all ^ hash));
                hashes
            }
            Self::Pairs(count) => (0..count).flat_map(|_| pair(random.u64(..))).collect(),
        };
        hashes.into_iter().map(|hash| position_of(hash, seed).wrapping_sub(shift)).collect()
    }
}

/// Two hashes with the same three places in a filter of few positions.
fn pair(hash: u64) -> [u64; 2] {
    [hash, hash ^ 1 << 31]
}

fn sorted(mut positions: Vec<u64>) -> Vec<u64> {
    positions.sort_unstable();
    positions.dedup();
    positions
}

/// Whether the library builds a filter that has all of these positions.
fn library_builds(positions: &[u64], attempt: u64) -> bool {
    let shift = attempt.wrapping_mul(fuse::SEED_STEP);
    let built = std::panic::catch_unwind(|| fuse::build_fuse(positions, shift, 8)).ok().flatten();
    built.is_some_and(|encoded| {
        let (level, _) = SecondLevel::decode(&encoded).unwrap();
        positions.iter().all(|position| level.contains(*position))
    })
}

#[test]
fn a_filter_that_the_library_builds_wrongly_is_built_again() {
    let random = &mut fastrand::Rng::with_seed(1);
    let cases: [&[Gadget]; 3] =
        [&[Gadget::OnePlace(65)], &[Gadget::Cycle(66)], &[Gadget::Cycle(66), Gadget::Pairs(1)]];
    for gadgets in cases {
        let mut all = positions(0..20_000);
        all.extend(gadgets.iter().flat_map(|gadget| gadget.positions(random, 0)));
        let all = sorted(all);
        assert!(!library_builds(&all, 0) && library_builds(&all, 1), "{gadgets:?}");
        let filter = read(&built(&all, 1)).unwrap();
        assert!(all.iter().all(|position| filter.contains(*position)), "{gadgets:?}");
        assert!(matches!(filter.shards[0], SecondLevel::Fuse(_)));
        let wrong = (1..1_000_000).filter(|number| filter.contains(position(number << 32))).count();
        assert!(wrong < 100, "{gadgets:?}: {wrong}");
    }
}

/// In a build without checks of overflows the library returns such filters.
#[test]
fn a_filter_that_lacks_a_position_is_not_used() {
    let all = sorted(positions(0..5_000));
    for wrong in 1..=fuse::ATTEMPTS {
        let mut attempts = 0;
        let encoded = fuse::build_verified(&all, |shift| {
            attempts += 1;
            let lost = usize::from(attempts <= wrong) * 100;
            fuse::build_fuse(&all[lost..], shift, 8)
        });
        assert_eq!(attempts, fuse::ATTEMPTS.min(wrong + 1));
        let (level, _) = SecondLevel::decode(&encoded).unwrap();
        assert!(all.iter().all(|position| level.contains(*position)), "{wrong}");
        assert_eq!(matches!(level, SecondLevel::Exact(_)), wrong == fuse::ATTEMPTS);
    }
}

#[test]
fn positions_for_which_no_filter_can_be_built_are_stored_themselves() {
    let random = &mut fastrand::Rng::with_seed(2);
    let mut all = Vec::new();
    for attempt in 0..fuse::ATTEMPTS {
        let shift = attempt.wrapping_mul(fuse::SEED_STEP);
        for seed in library_seeds().take(1_000) {
            all.extend(pair(random.u64(..)).map(|hash| position_of(hash, seed).wrapping_sub(shift)));
        }
    }
    let all = sorted(all);
    let shards = built_with(&all, 1, FilterBits::at_rate(1e-9));
    let filter = read(&shards).unwrap();
    assert!(matches!(&filter.shards[0], SecondLevel::Exact(held) if **held == *all));
    assert!(all.iter().all(|position| filter.contains(*position)));
    assert!(!(1..1_000_000).any(|number| filter.contains(position(number << 32))), "it never passes all");
    assert!(filter.false_positive_rate() <= 0.0 && filter.memory_bytes() > 8 * all.len() as u64);
    for length in
        (0..shards[0].len()).step_by(97).filter(|length| !(shards[0].len() - length).is_multiple_of(64))
    {
        assert!(read(&[shards[0][..length].to_vec()]).is_err(), "the first {length} bytes");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]
    #[test]
    fn a_filter_of_colliding_positions_has_all_of_them(
        gadgets in proptest::collection::vec(
            (prop_oneof![
                (2..200usize).prop_map(Gadget::OnePlace),
                (3..200usize).prop_map(Gadget::Cycle),
                (1..4usize).prop_map(Gadget::Pairs),
            ], 0..2u64),
            0..6,
        ),
        others in 0..3_000u64,
        bits in prop_oneof![Just(8), Just(28)],
        shards in 1..4u32,
        seed in any::<u64>(),
    ) {
        let random = &mut fastrand::Rng::with_seed(seed);
        let mut all = positions(0..others);
        all.extend(gadgets.iter().flat_map(|(gadget, attempt)| gadget.positions(random, *attempt)));
        let all = sorted(all);
        let filter = read(&built_with(&all, shards, FilterBits(bits))).unwrap();
        prop_assert!(all.iter().all(|position| filter.contains(*position)));
    }
}
