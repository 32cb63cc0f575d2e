//! Size limits of the broker for blocks, offset metadata and offset commits.

use crate::dedupe::{Block, Checkpoint, EntryEnd};

/// Most identities of a block: about 540 KB, half of the default limit on the size of a record.
const BLOCK_IDS: u64 = 30_000;
/// Bytes of a state record beside its value: headers of batch and record, and a key of up to about 600 bytes.
const BESIDE_VALUE: u64 = 2_048;

/// Most metadata of one commit, bytes, as long as no single checkpoint is longer than its share. All offsets of a
/// transaction are one batch, which the broker limits to about 1 MiB.
const COMMIT_BYTES: usize = 512 << 10;
/// Most bytes of that batch.
const OFFSETS_BATCH: usize = 1_000_000;
/// Bytes of a committed offset beside its metadata and the names of group and topic: lengths, offset, epoch, time,
/// headers of request and record.
const BESIDE_METADATA: usize = 80;

/// Most identities of a block in a state topic that accepts batches of `largest_batch` bytes. Every block with that
/// many identities fits, regardless of its offsets.
pub fn block_ids(largest_batch: Option<u64>) -> usize {
    let fitting = largest_batch.map_or(BLOCK_IDS, |bytes| {
        let room = bytes.saturating_sub(BESIDE_VALUE + Block::MOST_BYTES_BESIDE_IDS);
        room / Block::MOST_BYTES_OF_ID
    });
    usize::try_from(fitting.clamp(1, BLOCK_IDS)).unwrap_or(1)
}

/// Most bytes of metadata for each of `partitions` that are committed together.
pub fn metadata_bytes(partitions: usize) -> usize {
    (COMMIT_BYTES / partitions.max(1)).min(Checkpoint::MOST_BYTES)
}

/// Most partitions of one transaction, so that their offsets and minimal checkpoints fit into one batch.
pub fn most_partitions(group: &str, raw: &str, writer: &str) -> usize {
    let one = Checkpoint::MOST_BYTES_OF_CORE + writer.len() + BESIDE_METADATA + group.len() + raw.len();
    (OFFSETS_BATCH / one).max(1)
}

/// Most sections of an entry in a state topic that accepts batches of `largest_batch` bytes, so that its end record fits. Each has a place for all
/// `kinds`.
pub fn most_sections(largest_batch: Option<u64>, kinds: usize) -> usize {
    let room = largest_batch.map_or(usize::MAX, |bytes| {
        usize::try_from(bytes.saturating_sub(BESIDE_VALUE)).unwrap_or(usize::MAX)
    });
    EntryEnd::most_sections_in(room, kinds).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dedupe::Digest;
    use crate::dedupe::{Coordinates, HashKind, Identity, KindId, Owner, Section};

    /// The longest possible block with this many identities: each is of another partition, and as far from the one before it as possible.
    fn longest(ids: usize) -> usize {
        let owner = |number: u32| Owner {
            at: Coordinates { partition: u32::MAX - number, offset: u64::MAX },
            time_ms: if number.is_multiple_of(2) { 0 } else { i64::MIN },
            identity: Identity([7; 16]),
            digest: Digest::NONE,
        };
        let owners = (0..u32::try_from(ids).unwrap()).map(owner).collect();
        Block { hash: HashKind::Xxh3, kind: KindId::UNNAMED, owners }.encode().len()
    }

    #[test]
    fn every_block_fits_into_the_state_topics_batches() {
        for bytes in [8_192, 20_000, 65_536, 1_048_588] {
            let ids = block_ids(Some(bytes));
            assert!(longest(ids) as u64 + BESIDE_VALUE <= bytes, "{ids} ids for {bytes} bytes");
            assert!(
                ids as u64 * 54 > bytes.saturating_sub(4_096).min(BLOCK_IDS * 54 - 1),
                "space is wasted: {ids}"
            );
        }
        assert_eq!((block_ids(None), block_ids(Some(u64::MAX))), (30_000, 30_000));
        assert_eq!((block_ids(Some(20_000)), block_ids(Some(0))), (358, 1));
    }

    #[test]
    fn every_end_record_fits_into_the_state_topics_batches() {
        let section = |kinds: u16| Section {
            partition: 0,
            first: 0,
            next: 0,
            clean_end: None,
            time_first_ms: 0,
            time_last_ms: 0,
            reset_kinds: (0..kinds).map(KindId::numbered).collect(),
        };
        for (bytes, kinds) in [(8_192, 1), (20_000, 7), (1_048_588, 1), (1_048_588, 64)] {
            let most = most_sections(Some(bytes), usize::from(kinds));
            let of = |sections| {
                EntryEnd::of(1, [].into_iter(), vec![section(kinds); sections]).encode().len() as u64
            };
            assert!(
                of(most) + BESIDE_VALUE <= bytes && of(most + 1) + BESIDE_VALUE > bytes,
                "{most} in {bytes}"
            );
        }
        assert_eq!((most_sections(Some(0), 1), most_sections(None, 1) > 1 << 40), (1, true));
    }

    #[test]
    fn a_commit_of_any_partitions_stays_below_a_mebibyte() {
        for (group, raw, writer) in [(7, 7, 20), (100, 100, 120), (249, 249, 400)] {
            let [group, raw, writer] = [group, raw, writer].map(|length| "x".repeat(length));
            let most = most_partitions(&group, &raw, &writer);
            for partitions in [1, 100, 512, 1_024, most].into_iter().filter(|count| *count <= most) {
                let metadata = metadata_bytes(partitions).max(Checkpoint::MOST_BYTES_OF_CORE + writer.len());
                let all = partitions * (metadata + BESIDE_METADATA + group.len() + raw.len());
                assert!(all <= 1 << 20, "{partitions} partitions: {all} bytes");
                assert!(metadata <= Checkpoint::MOST_BYTES);
            }
            assert!(most >= 1_000_000 / 1_426, "{most}");
        }
        assert!(most_partitions("dedupd.events.clean", "events", "dedupd.events.clean.a.0") > 1_700);
    }
}
