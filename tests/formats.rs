//! Every persistent format, against a golden file: later versions must read it, and write it byte for byte.
//!
//! The golden files were written by a separate program from the descriptions of the formats, not by dedupd.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test fails by panicking")]

use dedupd::app;
use dedupd::cli::{Command, parse_from};
use dedupd::config::{Config, ConfigSources};
use dedupd::dedupe::{
    Block, Checkpoint, Coordinates, Digest, EntryEnd, EntryName, Epoch, ForgetRecord, HashKind, Identity,
    KindId, KnownOwner, LastEntry, Owner, OwnerLayout, SealedRange, Section, ShardEntry, SliceCover,
    SliceFooter, SliceMark, SlicePage, SlicePartition, StateKey, WindowCheckpoint,
};
use dedupd::ports::{Covered, Head};
use dedupd::store::Binding;
use dedupd::tools::state::file::{FileHeader, FileReader, FileWindow, Piece, Writer};

const BLOCK: &[u8] = include_bytes!("golden/block-v3.bin");
const FORGET_RECORD: &[u8] = include_bytes!("golden/forget-record-v3.bin");
const ENTRY_END: &[u8] = include_bytes!("golden/entry-end-v1.bin");
const CHECKPOINT: &str = include_str!("golden/checkpoint-v2.txt");
const STATE_KEY: &str = include_str!("golden/state-key-v2.txt");
const EXPORT: &[u8] = include_bytes!("golden/export-v3.bin");

const SLICE_PAGE: &[u8] = include_bytes!("golden/slice-page-v3.bin");
const SLICE_FOOTER: &[u8] = include_bytes!("golden/slice-footer-v3.bin");

const HASH: HashKind = HashKind::SipHash { key_id: 0x1122_3344_5566_7788 };
const FIRST: u64 = 1_000_000_000_000;
const T: i64 = 1_700_000_000_000;

#[test]
fn transactional_ids_and_client_ids_have_the_documented_form() {
    let page = include_str!("../docs/formats.md");
    for (scope, transactional) in [("topic", "<group>.active"), ("partition", "<group>.<instance>.<worker>")]
    {
        let line = format!(
            "dedupd run --bootstrap-servers a:1 --raw r --clean c --id key --group g --instance i --scope {scope}"
        );
        let Ok(Command::Run(args)) = parse_from(line.split(' ')) else { panic!("{line}") };
        let sources = ConfigSources { flags: args.overrides(), ..ConfigSources::default() };
        let settings = app::settings(&Config::from_sources(&sources).unwrap(), 3);
        let filled =
            |form: &str| form.replace("<group>", "g").replace("<instance>", "i").replace("<worker>", "3");
        assert_eq!(settings.transactional_id, filled(transactional));
        assert_eq!(settings.client_id, filled("<group>.<instance>.<worker>"));
        assert!(page.contains(&format!("in {scope} scope `{transactional}`")), "{scope}");
    }
}

/// Sixteen ascending bytes.
fn identity(number: u8) -> Identity {
    Identity(std::array::from_fn(|byte| 16 * number + u8::try_from(byte).unwrap()))
}

fn payments() -> KindId {
    KindId::named("payments")
}

/// Digests of one rule; the last one has none.
fn digest(number: u8) -> Digest {
    Digest::stored(0x0a0b_0c0d, 4 - u32::from(number).min(4))
}

fn owner(partition: u32, offset: u64, time_ms: i64, number: u8) -> Owner {
    Owner {
        at: Coordinates { partition, offset },
        time_ms,
        identity: identity(number),
        digest: digest(number),
    }
}

/// Three runs of two partitions: the last offset is before the one in front of it.
fn block() -> Block {
    let owners = vec![
        owner(7, FIRST + 7, T, 0),
        owner(7, FIRST + 8, T, 1),
        owner(7, FIRST + 200, T - 5, 2),
        owner(42, 500, T + 60_000, 3),
        owner(42, 499, 0, 4),
    ];
    Block { hash: HASH, kind: KindId::UNNAMED, owners }
}

/// A block of a named kind.
fn block_of_payments() -> Block {
    Block { hash: HASH, kind: payments(), owners: vec![owner(42, 629, 5, 5)] }
}

#[test]
fn a_block_is_read_and_written_byte_for_byte() {
    assert_eq!(Block::decode(BLOCK), Ok(block()));
    assert_eq!(block().encode(), BLOCK);
}

#[test]
fn different_blocks_have_different_checksums() {
    let other = Block { kind: payments(), ..block() };
    let checksum = |encoded: &[u8]| u32::from_le_bytes(*encoded.last_chunk().unwrap());
    assert_eq!(checksum(BLOCK), 0x9959_c3d8);
    assert_ne!(checksum(&block().encode()), checksum(&other.encode()));
    // A CRC over the whole block, including its own checksum, is the same for all blocks.
    assert_eq!(crc32c::crc32c(&block().encode()), crc32c::crc32c(&other.encode()));
}

#[test]
fn a_forget_record_is_read_and_written_byte_for_byte() {
    let record = ForgetRecord { hash: HASH, identities: vec![identity(0), identity(3)] };
    assert_eq!(ForgetRecord::decode(FORGET_RECORD), Ok(record.clone()));
    assert_eq!(record.encode(), FORGET_RECORD);
    assert!(ForgetRecord::is_here(FORGET_RECORD) && !ForgetRecord::is_here(BLOCK));
    let empty = ForgetRecord { hash: HashKind::Xxh3, identities: Vec::new() };
    assert_eq!(ForgetRecord::decode(&empty.encode()), Ok(empty));
}

/// The end record of an entry with the golden block and the golden forget record.
fn entry_end() -> EntryEnd {
    let nothing_written = Section {
        partition: 7,
        first: 500,
        next: 500,
        clean_end: None,
        time_first_ms: 5,
        time_last_ms: T,
        reset_kinds: Vec::new(),
    };
    let written = Section {
        partition: 42,
        first: FIRST,
        next: FIRST + 100_000,
        clean_end: Some((1 << 40) + 1),
        time_first_ms: T,
        time_last_ms: T + 60_000,
        reset_kinds: vec![KindId::UNNAMED, payments()],
    };
    EntryEnd::of(0x01_2345_6789, [BLOCK, FORGET_RECORD].into_iter(), vec![nothing_written, written])
}

#[test]
fn an_end_record_is_read_and_written_byte_for_byte() {
    assert_eq!((entry_end().records, entry_end().content), (2, 0x8b79_f548));
    assert_eq!(EntryEnd::decode(ENTRY_END), Ok(entry_end()));
    assert_eq!(entry_end().encode(), ENTRY_END);
    assert!(EntryEnd::is_here(ENTRY_END));
    assert!(![BLOCK, FORGET_RECORD].into_iter().any(EntryEnd::is_here));
    let without_sections = EntryEnd { sections: Vec::new(), ..entry_end() };
    assert_eq!(EntryEnd::decode(&without_sections.encode()), Ok(without_sections));
}

#[test]
fn the_name_of_an_entry_covers_all_but_the_place_in_the_clean_topic() {
    let name = EntryName { number: 0x01_2345_6789, crc: 0x25af_1214 };
    assert_eq!(entry_end().name(), name);
    let mut elsewhere = entry_end();
    elsewhere.sections[1].clean_end = None;
    assert_eq!(elsewhere.name(), name);
    assert_ne!(elsewhere.encode(), ENTRY_END);
    let changes: [fn(&mut EntryEnd); 8] = [
        |end| end.number += 1,
        |end| end.records += 1,
        |end| end.content += 1,
        |end| end.sections[1].first += 1,
        |end| end.sections[1].next += 1,
        |end| end.sections[1].time_first_ms += 1,
        |end| end.sections[1].time_last_ms += 1,
        |end| end.sections[1].reset_kinds.truncate(1),
    ];
    for (row, change) in changes.into_iter().enumerate() {
        let mut other = entry_end();
        change(&mut other);
        assert_ne!(other.name().crc, name.crc, "change {row}");
    }
}

#[test]
fn every_truncation_and_every_flipped_bit_is_detected() {
    let is_read = |bytes: &[u8]| {
        Block::decode(bytes).is_ok() || ForgetRecord::decode(bytes).is_ok() || EntryEnd::decode(bytes).is_ok()
    };
    for golden in [BLOCK, FORGET_RECORD, ENTRY_END] {
        for at in 0..golden.len() {
            assert!(!is_read(&golden[..at]), "truncated to {at}");
            for bit in 0..8 {
                let mut flipped = golden.to_vec();
                flipped[at] ^= 1 << bit;
                assert!(!is_read(&flipped), "bit {bit} of byte {at}");
            }
        }
    }
}

/// What the three windows of the golden checkpoint contain: all details, and one of them each.
fn windows() -> Vec<WindowCheckpoint> {
    let window = |kind, dropped_ms, incomplete_ms| WindowCheckpoint { kind, dropped_ms, incomplete_ms };
    vec![
        window(KindId::UNNAMED, Some(1_699_999_000_000), Some(1_699_990_000_000)),
        window(payments(), Some(1_699_990_000_001), None),
        window(KindId::numbered(12), None, Some(1_699_990_000_002)),
    ]
}

#[test]
fn a_checkpoint_is_read_and_written_byte_for_byte() {
    let checkpoint = Checkpoint {
        state_next: 77,
        stream_time_ms: T + 123,
        rules: vec![
            (KindId::UNNAMED, "00c0ffee".parse().unwrap()),
            (payments(), "deadbeef".parse().unwrap()),
        ],
        ahead_of_wall_ms: -7,
        last_entry: Some(LastEntry { entry: EntryName { number: 12_345, crc: 0x0ebe_ef01 }, from: Some(76) }),
        section_next: Some(1_000),
        windows: windows(),
        horizon_ms: T + 100,
        late_ms: Some(250),
        first_raw_partitions: Some(4),
        epoch: Some(Epoch { next: 999, number: 12 }),
        empty_until: None,
        raw: Some("aXb+c/AAQ0Cw==".to_owned()),
        state: Some("aXb-c_AAQ0Cw".to_owned()),
        is_topic_wide: true,
        others_follow: false,
        writer: "dedupd.events;odd=name.a.0".to_owned(),
    };
    assert_eq!(Checkpoint::parse(CHECKPOINT), Some(checkpoint.clone()));
    assert_eq!(checkpoint.render(), CHECKPOINT);
}

#[test]
fn the_key_of_a_state_record_is_read_and_written_byte_for_byte() {
    let key = StateKey {
        kind: Some("payments".to_owned()),
        rule: "00c0ffee".parse().ok(),
        raw: Some("aXb+c/AAQ0Cw==".to_owned()),
        is_topic_wide: true,
        writer: "dedupd.events;odd=name.a.0".to_owned(),
    };
    assert_eq!(StateKey::parse(STATE_KEY), Some(key.clone()));
    assert_eq!(key.render(), STATE_KEY);
    // A key in the journal of a single partition.
    let of_a_partition = StateKey { is_topic_wide: false, ..key };
    assert_eq!(of_a_partition.render(), STATE_KEY.replace("scope=topic;", ""));
    assert_eq!(StateKey::parse(&of_a_partition.render()), Some(of_a_partition));
    // Of another version.
    assert_eq!(StateKey::parse(&STATE_KEY.replace("v2;", "v1;")), None);
}

/// The header of the golden export.
fn header() -> FileHeader {
    let binding: Binding = serde_json::from_value(serde_json::json!({
        "cluster_id": "cluster",
        "raw": "events.raw",
        "clean": "events.clean",
        "state": "events.clean.dedupd",
        "group": "dedupd.events",
        "partitions": 43,
        "hash": "siphash:1122334455667788",
        "raw_id": "aXb+c/AAQ0Cw==",
        "clean_id": null,
        "state_id": "aXb-c_AAQ0Cw",
        "kinds": ["payments"],
        "rules": ["00c0ffee", "deadbeef"],
        "topic_scope": true,
    }))
    .unwrap();
    assert_eq!(binding.hash, HASH);
    let entry = |number, crc| Some(EntryName { number, crc });
    let covered =
        [(7, Covered { next: FIRST + 1_000, time_ms: T }), (42, Covered { next: 501, time_ms: T + 60_000 })];
    let unnamed = Head {
        confirmed: 4,
        state_next: 76,
        last_entry: entry(12_345, 0x4d4d_8602),
        confirmed_entry: entry(12_344, 0x0ebe_ef01),
        time_ms: T + 60_000,
        incomplete_ms: 1_699_990_000_000,
        covered: covered.into(),
    };
    let named = Head {
        confirmed: 1,
        state_next: 75,
        time_ms: -5,
        last_entry: entry(12_344, 0x0ebe_ef01),
        ..Head::default()
    };
    let windows = vec![
        FileWindow::new(0.into(), &unnamed, 0, 5),
        FileWindow::new(KindId::numbered(12).window(0), &Head::default(), 0, 0),
        FileWindow::new(payments().window(0), &named, 1_699_980_000_000, 1),
    ];
    assert_eq!(windows[0].head(), unnamed);
    FileHeader { binding, windows }
}

#[test]
fn an_export_file_is_read_and_written_byte_for_byte() {
    let (mut reader, read) = FileReader::begin(EXPORT).unwrap();
    assert_eq!(read, header());
    let mut writer = Writer::begin(Vec::new(), &header()).unwrap();
    for block in [block(), block_of_payments()] {
        writer.block(&block).unwrap();
        let window = block.kind.window(0);
        assert_eq!(reader.next_piece().unwrap(), Piece::Owners(window, block.owners));
    }
    assert_eq!(reader.next_piece().unwrap(), Piece::End { blocks: 2, ids: 6 });
    assert_eq!(writer.finish().unwrap(), EXPORT);
}

const SLICE_FILE: u64 = 0x0123_4567_89ab_cdef;

fn slice_owners() -> OwnerLayout {
    let of = |partition, first, next| SlicePartition { partition, first, next };
    let partitions = vec![of(7, FIRST, FIRST + 70_000), of(42, 500, 600)];
    OwnerLayout::new(SliceCover { partitions, time_ms: (T, T + 60_000), rule: 0x0a0b_0c0d }).unwrap()
}

#[test]
fn a_page_of_a_slice_is_read_and_written_byte_for_byte() {
    let owned = |number, partition, offset, time_ms| {
        (
            identity(number),
            KnownOwner { at: Coordinates { partition, offset }, time_ms, digest: digest(number) },
        )
    };
    let entries = [owned(0, 7, FIRST + 7, T), owned(1, 42, 599, 0), owned(2, 7, FIRST + 69_999, T + 60_000)];
    let (owners, place, mut written) = (slice_owners(), SlicePage::place(SLICE_FILE, 3), Vec::new());
    let page = SlicePage::parse(SLICE_PAGE, &owners, place).unwrap();
    assert_eq!(page.entries().collect::<Result<Vec<_>, _>>(), Ok(entries.to_vec()));
    SlicePage::encode(&owners, place, entries.into_iter(), &mut written).unwrap();
    assert_eq!(written, SLICE_PAGE);
}

#[test]
fn a_footer_of_a_slice_is_read_and_written_byte_for_byte() {
    let mark = |next, count, time_ms| SliceMark { next, count, time_ms };
    let marks = vec![mark(1_002, 1, (T, T + 9)), mark(1_004, 2, (T + 10, T + 60_000))];
    let footer = SliceFooter {
        file: SLICE_FILE,
        hash: HASH,
        window: payments().window(0),
        ids: 3,
        range: SealedRange { first: 1_000, next: 1_004, marks },
        owners: slice_owners(),
        shards: vec![ShardEntry { bytes: 4_112, crc: 0xdead_beef }],
        fences: vec![5, 1 << 63],
    };
    assert_eq!(SliceFooter::decode(SLICE_FOOTER), Ok(footer.clone()));
    assert_eq!(footer.encode(), SLICE_FOOTER);
}
