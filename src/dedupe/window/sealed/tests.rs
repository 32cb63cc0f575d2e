//! A slice file contains exactly what was offered, and damage to any byte of it is detected.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::filter::{FilterBits, FilterBuilder};
use super::*;
use crate::dedupe::coordinates::{Coordinates, PartitionId};
use crate::dedupe::format::{SealedRange, SliceCover, SliceMark, SlicePartition};
use crate::dedupe::identity::Digest;
use crate::dedupe::identity::{HashKind, Identity};
use crate::dedupe::window::hostile;
use crate::dedupe::window::positions::Positions;

type Owned = (Identity, KnownOwner);

fn positions() -> Positions {
    Positions::keyed([7; 16])
}

fn identity(number: u64) -> Identity {
    Identity(u128::from(number).to_be_bytes())
}

/// Owners arrive a second after the other; some at an unknown time.
fn owned(number: u64, partition: PartitionId, offset: u64) -> Owned {
    let time_ms = if offset.is_multiple_of(7) { 0 } else { 1_700_000_000_000 + offset.cast_signed() * 1_000 };
    (identity(number), KnownOwner { at: Coordinates { partition, offset }, time_ms, digest: Digest::NONE })
}

fn coverage(owners: u64, cover: SliceCover) -> SliceCoverage {
    let mark = SliceMark { next: owners.max(1), count: owners, time_ms: (0, 0) };
    let range = SealedRange { first: 0, next: mark.next, marks: vec![mark] };
    SliceCoverage { file: 7, hash: HashKind::Xxh3, window: 0.into(), range, cover, only_filter: None }
}

/// What these owners cover.
fn covering(owners: &[Owned]) -> SliceCover {
    let mut covered: BTreeMap<PartitionId, SlicePartition> = BTreeMap::new();
    for (_, KnownOwner { at: Coordinates { partition, offset }, .. }) in owners.iter().copied() {
        let (first, next) = (offset, offset + 1);
        let of = covered.entry(partition).or_insert(SlicePartition { partition, first, next });
        (of.first, of.next) = (of.first.min(first), of.next.max(next));
    }
    let times = || owners.iter().map(|(_, owner)| owner.time_ms).filter(|time_ms| *time_ms != 0);
    let time_ms = (times().min().unwrap_or(0), times().max().unwrap_or(0));
    SliceCover { partitions: covered.into_values().collect(), time_ms, rule: 0 }
}

#[expect(clippy::unnecessary_wraps, reason = "as a file is written")]
fn extend(file: &mut Vec<u8>, part: &[u8]) -> Result<(), SliceError> {
    file.extend_from_slice(part);
    Ok(())
}

/// Builds a file whose filter has this number of shards.
fn file_of(owners: &[Owned], shards: u32) -> (Vec<u8>, Slice) {
    file_with(7, positions(), owners, shards, OwnerScan::Everything, None)
}

fn file_with(
    file: u64,
    positions: Positions,
    owners: &[Owned],
    shards: u32,
    scan: OwnerScan,
    only_filter: Option<FilterBits>,
) -> (Vec<u8>, Slice) {
    let ids = owners.len() as u64;
    let bits = only_filter.unwrap_or(FilterBits::WITH_OWNERS);
    let filter = FilterBuilder::with_shards(ids, bits, shards);
    // Of owners that are read in whole passes, the builder finds it.
    let cover = if scan == OwnerScan::Everything { SliceCover::default() } else { covering(owners) };
    let covered = SliceCoverage { file, only_filter, ..coverage(ids, cover) };
    let mut builder = SliceBuilder::with_filter(covered, positions, scan, filter);
    let mut file = Vec::new();
    while builder.needs_pass() {
        for (identity, owner) in owners {
            builder.offer(*identity, Some(*owner));
        }
        builder.end_pass(|part| extend(&mut file, part), |error| error).unwrap();
    }
    builder.finish(|part| extend(&mut file, part)).unwrap();
    let slice = opened(&file).unwrap();
    assert_eq!(*slice.footer().owners.cover(), covering(owners));
    assert_eq!(slice.footer().range, coverage(ids, SliceCover::default()).range);
    (file, slice)
}

/// Reads parts of a file in memory.
fn reader(file: &[u8]) -> impl FnMut(u64, &mut [u8]) -> Result<(), SliceError> {
    |at, bytes| {
        let at = usize::try_from(at).unwrap();
        let part = file.get(at..at + bytes.len()).ok_or(SliceError::Truncated("the file"))?;
        bytes.copy_from_slice(part);
        Ok(())
    }
}

fn opened(file: &[u8]) -> Result<Slice, SliceError> {
    Slice::read(file.len() as u64, reader(file), |damage| damage)
}

fn owners_of(file: &[u8], slice: &Slice, identity: Identity) -> Result<Vec<KnownOwner>, SliceError> {
    owners_at(file, slice, &positions().key(identity))
}

fn owners_at(file: &[u8], slice: &Slice, key: &IndexKey) -> Result<Vec<KnownOwner>, SliceError> {
    let mut owners = slice.owners_of(key, reader(file), |damage| damage)?;
    owners.sort_unstable();
    Ok(owners)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]
    #[test]
    fn a_file_has_exactly_what_was_offered(
        owners in proptest::collection::btree_set((0..4u32, 0..2_000u64), 0..1_500),
        different in 1..3_000u64,
        base in prop_oneof![Just(0), Just(1 << 40)],
        shards in 1..7u32,
        scan in prop_oneof![Just(OwnerScan::Everything), Just(OwnerScan::ByPosition)],
        positions in proptest::sample::select(hostile::positions().to_vec()),
    ) {
        let owners: Vec<_> =
            owners.iter().map(|(partition, offset)| owned(offset % different, partition * 1_000, base + offset)).collect();
        let (file, read) = file_with(7, positions, &owners, shards, scan, None);
        prop_assert_eq!(read.footer().ids, owners.len() as u64);
        let mut expected: BTreeMap<Identity, Vec<KnownOwner>> = BTreeMap::new();
        for (identity, owner) in &owners {
            expected.entry(*identity).or_default().push(*owner);
        }
        for number in 0..4_000 {
            let mut all = expected.remove(&identity(number)).unwrap_or_default();
            all.sort_unstable();
            let key = positions.key(identity(number));
            prop_assert_eq!(&owners_at(&file, &read, &key).unwrap(), &all);
            prop_assert!(all.is_empty() || read.may_contain(&key));
        }
    }
}

proptest! {
    #[test]
    fn positions_below_another_one_are_counted_whatever_they_are(
        positions in proptest::collection::vec(prop_oneof![any::<u64>(), 0..300u64, Just(u64::MAX)], 0..400),
        others in proptest::collection::vec(prop_oneof![any::<u64>(), 0..300u64, Just(u64::MAX)], 1..20),
    ) {
        let mut positions = positions;
        positions.sort_unstable();
        for other in others {
            prop_assert_eq!(count_below(&positions, other), positions.partition_point(|it| *it < other));
        }
    }
}

#[test]
fn equal_identities_on_several_pages_are_all_found() {
    let owners: Vec<_> = (0..1_000).map(|offset| owned(7, 0, offset)).chain([owned(8, 0, 1_000)]).collect();
    let (file, slice) = file_of(&owners, 1);
    assert_eq!(owners_of(&file, &slice, identity(7)).unwrap().len(), 1_000);
    assert_eq!(owners_of(&file, &slice, identity(8)).unwrap().len(), 1);
}

#[test]
fn a_slice_has_2_4_bytes_per_identity_in_memory_and_few_false_positives() {
    const IDS: u64 = 1_200_000;
    let owners: Vec<_> = (0..IDS).map(|offset| owned(offset, 0, offset)).collect();
    let (file, slice) = file_of(&owners, 5);
    let memory = slice.memory_bytes() as f64 / IDS as f64;
    assert!(memory < 2.45, "{memory} bytes per identity");
    let disk = file.len() as f64 / IDS as f64;
    assert!(disk < 27.0, "{disk} bytes per identity");
    let wrong =
        (IDS..2 * IDS).filter(|number| slice.may_contain(&positions().key(identity(*number)))).count();
    // 59 expected.
    assert!((30..90).contains(&wrong), "{wrong} false positives");
}

#[test]
fn a_slice_without_owners_is_a_filter_of_its_identities() {
    const IDS: u64 = 300_000;
    let owners: Vec<_> = (0..IDS).map(|offset| owned(offset, 0, offset)).collect();
    let (file, slice) =
        file_with(7, positions(), &owners, 2, OwnerScan::ByPosition, Some(FilterBits::at_rate(1e-9)));
    assert!(!slice.has_owners() && slice.footer().ids == IDS);
    assert!((0..IDS).all(|number| slice.may_contain(&positions().key(identity(number)))));
    let wrong =
        (IDS..20 * IDS).filter(|number| slice.may_contain(&positions().key(identity(*number)))).count();
    assert_eq!(wrong, 0);
    assert_eq!(owners_of(&file, &slice, identity(7)), Ok(Vec::new()), "it has no pages");
    for bytes in [slice.memory_bytes(), file.len() as u64] {
        let bytes = bytes as f64 / IDS as f64;
        assert!((5.0..5.4).contains(&bytes), "{bytes} bytes per identity");
    }
    for at in (0..file.len()).step_by(97) {
        let mut damaged = file.clone();
        damaged[at] ^= 1 << (at % 8);
        assert!(opened(&damaged).is_err(), "byte {at}");
    }
}

#[test]
fn a_flipped_bit_or_a_missing_end_is_detected() {
    let owners: Vec<_> = (0..700).map(|offset| owned(offset * 3, 5, offset)).collect();
    let (file, _) = file_of(&owners, 8);
    for at in 0..file.len() {
        let mut damaged = file.clone();
        damaged[at] ^= 1 << (at % 8);
        let slice = opened(&damaged);
        let Ok(slice) = slice else { continue };
        let in_pages = at < slice.footer().fences.len() * PAGE_BYTES;
        assert!(in_pages, "byte {at} is in no page, and its damage was not detected");
        let read = owners.iter().map(|(identity, _)| owners_of(&damaged, &slice, *identity));
        assert!(read.into_iter().any(|read| read.is_err()), "byte {at}");
        for (identity, owner) in &owners {
            let read = owners_of(&damaged, &slice, *identity);
            assert!(read.is_err() || read == Ok(vec![*owner]), "byte {at}: {read:?}");
        }
    }
    for length in 0..file.len() {
        assert!(opened(&file[..length]).is_err(), "the first {length} bytes");
    }
}

#[test]
fn an_owner_that_is_not_covered_is_refused() {
    let partitions = vec![SlicePartition { partition: 3, first: 10, next: 20 }];
    let cover = SliceCover { partitions: partitions.clone(), time_ms: (100, 200), rule: 0 };
    let build = |cover: &SliceCover, partition, offset, time_ms| {
        let mut builder = SliceBuilder::new(coverage(1, cover.clone()), positions(), OwnerScan::ByPosition);
        let at = Coordinates { partition, offset };
        builder.offer(identity(1), Some(KnownOwner { at, time_ms, digest: Digest::NONE }));
        builder.end_pass(|_| Ok(()), |error: SliceError| error)
    };
    for (partition, offset, time_ms) in [(3, 10, 100), (3, 19, 200), (3, 15, 0)] {
        assert_eq!(build(&cover, partition, offset, time_ms), Ok(()));
    }
    for (partition, offset, time_ms) in [(3, 9, 100), (3, 20, 100), (4, 10, 100), (3, 10, 99), (3, 10, 201)] {
        assert!(build(&cover, partition, offset, time_ms).is_err(), "{partition}@{offset} {time_ms}");
    }
    let twice = SliceCover { partitions: [partitions.clone(), partitions].concat(), ..cover };
    assert!(build(&twice, 3, 10, 100).is_err());
}

#[test]
fn any_times_are_stored_in_as_few_bytes_as_their_span_needs() {
    let at = |time_ms: i64| {
        (
            identity(time_ms.unsigned_abs()),
            KnownOwner { at: Coordinates { partition: 0, offset: 1 }, time_ms, digest: Digest::NONE },
        )
    };
    for (times, bytes) in [
        (&[0, 0][..], 0),
        (&[5], 1),
        (&[1_000, 1_254, 0], 1),
        (&[1_000, 1_255], 2),
        (&[-7, 9, 0], 1),
        (&[1, i64::MAX], 8),
        (&[i64::MIN, i64::MAX - 1], 8),
    ] {
        let owners: Vec<_> = times.iter().map(|time_ms| at(*time_ms)).collect();
        let (file, slice) = file_of(&owners, 1);
        assert_eq!(slice.footer().owners.entry_bytes(), 17 + bytes, "{times:?}");
        for (identity, owner) in owners {
            assert!(owners_of(&file, &slice, identity).unwrap().contains(&owner), "{times:?}");
        }
    }
}

#[test]
fn the_counts_of_marks_are_lowered_to_the_identities_in_the_file() {
    let mark = |next, count| SliceMark { next, count, time_ms: (0, 0) };
    let mut range = SealedRange { first: 0, next: 30, marks: vec![mark(10, 4), mark(20, 10), mark(30, 6)] };
    range.limit(20);
    assert_eq!(range.owners(), 20);
    range.limit(11);
    assert_eq!(range.marks, [mark(10, 0), mark(20, 5), mark(30, 6)]);
}

/// As after a write to the wrong place of a disk, or a lost write over an older file: the pages have correct checksums.
#[test]
fn a_page_of_another_place_or_file_is_detected_by_look_ups_and_scans() {
    let owners: Vec<_> = (0..5_000).map(|offset| owned(offset, 0, offset)).collect();
    let (whole, slice) = file_of(&owners, 1);
    let (older, _) = file_with(8, positions(), &owners, 1, OwnerScan::Everything, None);
    let pages = |number: usize| number * PAGE_BYTES..(number + 1) * PAGE_BYTES;
    for (from, at, other) in [(&whole, 20, 3), (&older, 3, 3), (&older, 20, 20)] {
        let mut file = whole.clone();
        file[pages(other)].copy_from_slice(&from[pages(at)]);
        let mut detected = 0;
        for (identity, owner) in &owners {
            let read = owners_of(&file, &slice, *identity);
            assert!(read.is_err() || read == Ok(vec![*owner]), "{owner:?}: {read:?}");
            detected += u64::from(read.is_err());
        }
        assert!((100..300).contains(&detected), "{detected}");
        assert!(slice.scan(0..=u64::MAX, reader(&file), |damage| damage, |_, _| Ok(())).is_err());
    }
    assert!(slice.scan(0..=u64::MAX, reader(&whole), |damage| damage, |_, _| Ok(())).is_ok());
}

#[test]
fn a_shard_of_another_place_is_detected() {
    let owners: Vec<_> = (0..5_000).map(|offset| owned(offset, 0, offset)).collect();
    let (mut file, slice) = file_of(&owners, 2);
    let first = slice.footer().fences.len() * PAGE_BYTES;
    let [one, two] = [0, 1].map(|shard: usize| slice.footer().shards[shard].bytes as usize);
    let other = file[first + one..first + one + two].to_vec();
    let both = one.min(two);
    file[first..first + both].copy_from_slice(&other[..both]);
    assert!(opened(&file).is_err());
}
