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
    let mut builder = FilterBuilder::with_shards((positions.len() as u64, bits), shards);
    for positions in &mut by_shard {
        positions.sort_unstable();
        builder.push(positions).unwrap();
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
        prop_assert_eq!(filter.is_ok(), segments > 0 && rest.len() >= 64 && (1..=32).contains(&bits));
        if let Ok(filter) = filter {
            for position in looked_up {
                filter.contains(position);
            }
        }
    }
}
