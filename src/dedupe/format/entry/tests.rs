use super::*;
use crate::dedupe::format::{Block, Owner};
use crate::dedupe::identity::Digest;
use crate::dedupe::identity::{HashKind, Identity};

fn block(partition: PartitionId, first: Offset) -> Vec<u8> {
    let owner = Owner {
        at: Coordinates { partition, offset: first },
        time_ms: 1,
        identity: Identity([7; 16]),
        digest: Digest::NONE,
    };
    Block { hash: HashKind::Xxh3, kind: KindId::UNNAMED, owners: vec![owner] }.encode()
}

fn section(partition: PartitionId, first: Offset, next: Offset) -> Section {
    Section {
        partition,
        first,
        next,
        clean_end: Some(next),
        time_first_ms: 5,
        time_last_ms: 6,
        reset_kinds: Vec::new(),
    }
}

fn end_of(number: u64, records: &[Vec<u8>]) -> Vec<u8> {
    EntryEnd::of(number, records.iter().map(Vec::as_slice), vec![section(0, 1, 2)]).encode()
}

fn record(offset: Offset, writer: &str, bytes: Vec<u8>) -> JournalRecord {
    JournalRecord { offset, key: StateKey { writer: writer.to_owned(), ..StateKey::default() }, bytes }
}

/// The entries that these records of one writer end, which begin at offset 10.
fn read(records: Vec<Vec<u8>>) -> Vec<Entry> {
    let mut reader = EntryReader::default();
    let records = (10..).zip(records).map(|(offset, bytes)| record(offset, "w", bytes));
    records.filter_map(|record| reader.push(record).unwrap()).collect()
}

#[test]
fn an_entry_is_the_records_before_its_end_record() {
    let (one, two) = ([block(0, 1), block(1, 1)], [block(0, 2)]);
    let log = [&one[..], &[end_of(1, &one)], &two, &[end_of(2, &two)], &[end_of(3, &[])]].concat();
    let read = read(log);
    let seen: Vec<_> = read.iter().map(|it| (it.end.number, it.begin, it.at, it.records.len())).collect();
    assert_eq!(seen, [(1, 10, 12, 2), (2, 13, 14, 1), (3, 15, 15, 0)]);
    assert!(read.iter().all(|entry| entry.is_whole));
}

#[test]
fn records_of_an_attempt_without_an_end_record_are_not_part_of_the_next_entry() {
    let kept = [block(0, 2)];
    let read = read(vec![block(0, 1), kept[0].clone(), end_of(1, &kept)]);
    assert_eq!((read[0].begin, read[0].is_whole), (11, true));
    assert_eq!(read[0].records, [record(11, "w", kept[0].clone())]);
}

#[test]
fn records_of_two_writers_may_be_mixed() {
    let (ours, theirs) = ([block(0, 1), block(0, 2)], [block(0, 3)]);
    let mut reader = EntryReader::default();
    let mut push = |offset, writer, bytes| reader.push(record(offset, writer, bytes)).unwrap();
    assert_eq!(push(0, "ours", ours[0].clone()), None);
    assert_eq!(push(1, "theirs", theirs[0].clone()), None);
    assert_eq!(push(2, "ours", ours[1].clone()), None);
    let entry = push(3, "theirs", end_of(2, &theirs)).unwrap();
    assert_eq!((entry.begin, entry.records.len(), entry.is_whole), (1, 1, true));
    let entry = push(4, "ours", end_of(1, &ours)).unwrap();
    assert_eq!((entry.begin, entry.records.len(), entry.is_whole), (0, 2, true));
}

#[test]
fn an_entry_without_one_of_its_records_is_not_whole() {
    let all = [block(0, 1), block(1, 1)];
    let end = end_of(1, &all);
    let other = block(0, 9);
    for (row, left) in
        [("none", vec![]), ("one", vec![all[1].clone()]), ("another", vec![other, all[1].clone()])]
    {
        let read = read([left, vec![end.clone()]].concat());
        assert!(!read[0].is_whole && read[0].records.is_empty(), "{row}");
        assert_eq!(read[0].end, EntryEnd::decode(&end).unwrap(), "{row}");
    }
    let swapped = read(vec![all[1].clone(), all[0].clone(), end]);
    assert!(!swapped[0].is_whole, "the order of the records counts");
}

#[test]
fn the_first_record_of_entries_that_have_not_ended_is_known() {
    let mut reader = EntryReader::default();
    assert_eq!(reader.first_pending(), None);
    reader.push(record(4, "b", block(0, 1))).unwrap();
    reader.push(record(3, "a", block(0, 1))).unwrap();
    assert_eq!(reader.first_pending(), Some(3));
    reader.push(record(5, "a", end_of(1, &[block(0, 1)]))).unwrap();
    assert_eq!(reader.first_pending(), Some(4));
}

/// An end record with this content and a valid checksum.
fn sealed(mut content: Vec<u8>) -> Vec<u8> {
    content.extend_from_slice(&crc32c::crc32c(&content).to_le_bytes());
    content
}

#[test]
fn an_inconsistent_end_record_with_a_valid_checksum_is_an_error() {
    let whole = end_of(1, &[]);
    let content = whole[..whole.len() - CRC_BYTES].to_vec();
    assert_eq!(sealed(content.clone()), whole);
    assert_eq!(whole.len(), HEADER_BYTES + SECTION_BYTES + CRC_BYTES);
    let with = |at: usize, byte: u8| {
        let mut changed = content.clone();
        changed[at] = byte;
        EntryEnd::decode(&sealed(changed))
    };
    // Two sections; no section; a kind; the first offset beyond the next one.
    for (at, byte) in [(20, 2), (20, 0), (HEADER_BYTES + SECTION_BYTES - 2, 1), (HEADER_BYTES + 4, 3)] {
        let decoded = with(at, byte);
        assert!(
            matches!(decoded, Err(BlockError::Truncated { .. } | BlockError::Inconsistent(_))),
            "{at}: {decoded:?}"
        );
    }
    assert!(EntryReader::default().push(record(1, "w", sealed(content[..30].to_vec()))).is_err());
}

#[test]
fn a_section_that_no_owner_can_be_in_makes_an_end_record_unusable() {
    let decoded = |section: Section| {
        EntryEnd::decode(&EntryEnd::of(1, [].into_iter(), vec![section]).encode()).map(|_| ())
    };
    let (offset, ms) = (Owner::LAST_OFFSET, Owner::LATEST_MS);
    let largest = Section {
        time_first_ms: ms,
        time_last_ms: ms,
        ..section(Owner::LAST_PARTITION, offset + 1, offset + 1)
    };
    assert_eq!(decoded(largest.clone()), Ok(()));
    assert_eq!(decoded(Section { time_first_ms: 0, time_last_ms: 0, ..section(0, 0, 0) }), Ok(()));
    for impossible in [
        Section { partition: Owner::LAST_PARTITION + 1, ..largest.clone() },
        Section { next: offset + 2, ..largest.clone() },
        Section { time_first_ms: ms + 1, ..largest.clone() },
        Section { time_last_ms: ms + 1, ..largest.clone() },
        Section { time_first_ms: -1, ..largest.clone() },
        Section { time_last_ms: i64::MIN, ..largest },
    ] {
        assert!(matches!(decoded(impossible.clone()), Err(BlockError::Inconsistent(_))), "{impossible:?}");
    }
}

#[test]
fn an_owner_counts_in_the_range_of_the_section_of_its_partition() {
    let end = EntryEnd {
        sections: vec![section(1, 5, 9), section(3, 0, 0)],
        ..EntryEnd::decode(&end_of(1, &[])).unwrap()
    };
    let has = |partition, offset| end.has(Coordinates { partition, offset });
    assert_eq!(
        [(1, 4), (1, 5), (1, 8), (1, 9), (2, 5), (3, 0)].map(|(of, at)| has(of, at)),
        [false, true, true, false, false, false]
    );
}

#[test]
fn a_section_that_is_undone_covers_nothing_from_its_first_offset_on() {
    let kept = Section { reset_kinds: vec![KindId::named("payments")], ..section(3, 5, 9) };
    let undone = Section { next: 5, clean_end: None, time_last_ms: kept.time_first_ms, ..kept.clone() };
    assert_eq!(kept.undone(), undone);
}
