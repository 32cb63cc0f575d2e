//! Blocks with any content are read as written, and damage is detected. `tests/formats.rs` fixes their bytes.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test fails by panicking")]

use dedupd::dedupe::{
    Block, BlockError, Coordinates, Digest, ForgetRecord, HashKind, Identity, KindId, Owner,
};
use proptest::prelude::*;

fn block(owners: Vec<Owner>) -> Block {
    Block { hash: HashKind::Xxh3, kind: KindId::UNNAMED, owners }
}

/// These bytes with a valid checksum.
fn sealed(mut content: Vec<u8>) -> Vec<u8> {
    let sum = crc32c::crc32c(&content);
    content.extend_from_slice(&sum.to_le_bytes());
    content
}

#[test]
fn an_id_takes_less_than_20_bytes() {
    // Partitions of a topic, each with a record in ten of its own, a few milliseconds apart.
    let owner = |number: u32| Owner {
        at: Coordinates { partition: number / 500, offset: 1_000_000 + u64::from(number) * 10 },
        time_ms: 1_700_000_000_000 + i64::from(number % 500) * 12,
        identity: Identity(u128::from(number).to_le_bytes()),
        digest: Digest::NONE,
    };
    assert!(block((0..4_000).map(owner).collect()).encode().len() < 19 * 4_000);
}

#[test]
fn an_inconsistent_block_with_a_valid_checksum_is_an_error() {
    let owner = Owner {
        at: Coordinates { partition: 3, offset: 7 },
        time_ms: 5,
        identity: Identity([1; 16]),
        digest: Digest::NONE,
    };
    let whole = block(vec![owner; 2]).encode();
    let content = whole[..whole.len() - 4].to_vec();
    assert_eq!(sealed(content.clone()), whole);
    let with = |at: usize, byte: u8| {
        let mut changed = content.clone();
        changed[at] = byte;
        Block::decode(&sealed(changed))
    };
    // The count of owners in the header, the count of the run, an unknown hash, and a block of the version before.
    for (at, byte) in [(27, 1), (27, 3), (27, 200), (32, 1), (32, 3), (4, 2)] {
        let decoded = with(at, byte);
        assert!(
            matches!(decoded, Err(BlockError::Truncated { .. } | BlockError::Inconsistent(_))),
            "{at}: {decoded:?}"
        );
    }
    assert_eq!(with(3, b'1'), Err(BlockError::Magic(*b"DDB1")));
}

#[test]
fn an_owner_that_no_store_takes_makes_a_block_unusable() {
    let largest = Owner {
        at: Coordinates { partition: (1 << 24) - 1, offset: (1 << 56) - 1 },
        time_ms: (1 << 47) - 1,
        identity: Identity([1; 16]),
        digest: Digest::NONE,
    };
    let smallest = Owner { at: Coordinates { partition: 0, offset: 0 }, time_ms: 0, ..largest };
    let decoded = |owner| Block::decode(&block(vec![smallest, owner]).encode());
    for possible in [smallest, largest] {
        assert_eq!(decoded(possible), Ok(block(vec![smallest, possible])));
    }
    for impossible in [
        Owner { at: Coordinates { partition: 1 << 24, ..largest.at }, ..largest },
        Owner { at: Coordinates { offset: 1 << 56, ..largest.at }, ..largest },
        Owner { at: Coordinates { partition: u32::MAX, offset: u64::MAX }, ..largest },
        Owner { time_ms: 1 << 47, ..largest },
        Owner { time_ms: -1, ..largest },
        Owner { time_ms: i64::MIN, ..largest },
        Owner { time_ms: i64::MAX, ..largest },
    ] {
        assert!(matches!(decoded(impossible), Err(BlockError::Inconsistent(_))), "{impossible:?}");
    }
}

prop_compose! {
    fn hashes()(key_id in proptest::option::of(any::<u64>())) -> HashKind {
        key_id.map_or(HashKind::Xxh3, |key_id| HashKind::SipHash { key_id })
    }
}

prop_compose! {
    fn owners()(
        partition in prop_oneof![4 => 0..3u32, 1 => 0..=Owner::LAST_PARTITION],
        offset in prop_oneof![4 => 0..1_000u64, 1 => 0..=Owner::LAST_OFFSET],
        time_ms in prop_oneof![4 => 1_700_000_000_000..1_700_000_060_000i64, 1 => Just(0), 1 => 0..=Owner::LATEST_MS],
        identity: [u8; 16],
        digest in 0..4u32,
    ) -> Owner {
        Owner { at: Coordinates { partition, offset }, time_ms, identity: Identity(identity), digest: Digest::stored(9, digest) }
    }
}

prop_compose! {
    /// In any order of partitions and offsets.
    fn blocks()(
        hash in hashes(), kind: u16, owners in proptest::collection::vec(owners(), 0..300), sorted: bool, is_compared: bool,
    ) -> Block {
        let mut owners = owners;
        if !is_compared {
            for owner in &mut owners {
                owner.digest = Digest::NONE;
            }
        }
        if sorted {
            owners.sort_by_key(|owner| owner.at);
        }
        Block { hash, kind: KindId::numbered(kind), owners }
    }
}

#[test]
fn a_block_has_digests_of_one_rule_and_none_of_another() {
    let of = |rule, offset| Owner {
        at: Coordinates { partition: 0, offset },
        time_ms: 5,
        identity: Identity([1; 16]),
        digest: Digest::stored(rule, 8),
    };
    let owners = vec![of(0, 1), of(2, 2), of(3, 3), of(2, 4)];
    let decoded = Block::decode(&block(owners.clone()).encode()).unwrap();
    let mut kept = owners;
    kept[2].digest = Digest::NONE;
    assert_eq!(decoded.owners, kept);
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn every_encoded_block_decodes_to_itself(block in blocks()) {
        let bytes = block.encode();
        let most = Block::MOST_BYTES_BESIDE_IDS + Block::MOST_BYTES_OF_ID * block.owners.len() as u64;
        prop_assert!(bytes.len() as u64 <= most);
        prop_assert_eq!(Block::decode(&bytes), Ok(block));
    }

    #[test]
    fn every_encoded_forget_record_decodes_to_itself(
        hash in hashes(), identities in proptest::collection::vec(any::<[u8; 16]>(), 0..100), flip in 1u8.., at: prop::sample::Index,
    ) {
        let record = ForgetRecord { hash, identities: identities.into_iter().map(Identity).collect() };
        let mut bytes = record.encode();
        prop_assert_eq!(bytes.len(), 21 + 16 * record.identities.len());
        prop_assert!(ForgetRecord::is_here(&bytes));
        prop_assert!(matches!(Block::decode(&bytes), Err(BlockError::Magic(_))));
        prop_assert_eq!(ForgetRecord::decode(&bytes), Ok(record));
        let content = bytes.len() - 4;
        prop_assert!(ForgetRecord::decode(&sealed([&bytes[..content], &[0]].concat())).is_err());
        let at = at.index(bytes.len());
        bytes[at] ^= flip;
        prop_assert!(ForgetRecord::decode(&bytes).is_err());
    }

    #[test]
    fn arbitrary_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200), crc: bool) {
        for magic in [b"DDB3", b"DDF3"] {
            let mut bytes = [magic, &*bytes].concat();
            if crc {
                bytes = sealed(bytes);
            }
            drop((Block::decode(&bytes), ForgetRecord::decode(&bytes)));
        }
    }

    #[test]
    fn every_changed_byte_is_detected(block in blocks(), at: prop::sample::Index, flip in 1u8..) {
        let mut bytes = block.encode();
        let at = at.index(bytes.len());
        bytes[at] ^= flip;
        prop_assert!(Block::decode(&bytes).is_err());
    }

    #[test]
    fn a_part_of_a_block_is_damaged(block in blocks(), left: prop::sample::Index) {
        let bytes = block.encode();
        prop_assert!(Block::decode(&bytes[..left.index(bytes.len())]).is_err());
    }
}
