//! Blocks with any content are read as written, and damage is detected. `tests/formats.rs` fixes their bytes.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test fails by panicking")]

use dedupd::dedupe::{Block, BlockView, HashKind, Identity};
use proptest::prelude::*;

#[test]
fn an_id_takes_less_than_20_bytes() {
    let entries: Vec<_> = (0..4_000u64).map(|i| (i * 100, Identity(u128::from(i).to_le_bytes()))).collect();
    let block = Block {
        hash: HashKind::Xxh3,
        window: 42.into(),
        first: 0,
        next: 400_000,
        time_first_ms: 1_700_000_000_000,
        time_last_ms: 1_700_000_060_000,
        entries,
    };
    assert!(block.encode().len() < 20 * 4_000);
}

prop_compose! {
    fn blocks()(
        key_id in proptest::option::of(any::<u64>()),
        partition: u32,
        first in 0..u64::MAX / 2,
        gaps in proptest::collection::vec(prop_oneof![1..200u64, 1..u64::from(u32::MAX)], 0..300),
        tail in 0..10_000u64,
        times: (i64, i64),
        seed: u128,
    ) -> Block {
        let owners = gaps.iter().scan(first, |at, gap| { let here = *at; *at += gap; Some(here) });
        let entries: Vec<_> = (seed..).zip(owners).map(|(i, at)| (at, Identity(i.wrapping_mul(seed | 1).to_le_bytes()))).collect();
        Block {
            hash: key_id.map_or(HashKind::Xxh3, |key_id| HashKind::SipHash { key_id }),
            window: partition.into(),
            first,
            next: entries.last().map_or(first, |(last, _)| last + 1) + tail,
            time_first_ms: times.0,
            time_last_ms: times.1,
            entries,
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn every_encoded_block_decodes_to_itself(block in blocks()) {
        prop_assert_eq!(block.encode().len(), block.encoded_bytes());
        prop_assert_eq!(Block::decode(&block.encode()), Ok(block));
    }

    #[test]
    fn arbitrary_bytes_never_panic(mut bytes in proptest::collection::vec(any::<u8>(), 0..200), crc: bool) {
        bytes.splice(0..0, *b"DDB1");
        if crc {
            let sum = crc32c::crc32c(&bytes);
            bytes.extend_from_slice(&sum.to_le_bytes());
        }
        if let Ok(block) = Block::decode(&bytes) {
            prop_assert!(block.first <= block.next);
        }
        if let Ok(view) = BlockView::trusted(&bytes) {
            drop(view.for_each(|_, _| ()));
        }
    }

    #[test]
    fn every_changed_byte_is_detected(block in blocks(), at: prop::sample::Index, flip in 1u8..) {
        let mut bytes = block.encode();
        let at = at.index(bytes.len());
        bytes[at] ^= flip;
        prop_assert!(Block::decode(&bytes).is_err());
    }
}
