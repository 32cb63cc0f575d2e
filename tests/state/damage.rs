//! A damaged file is rejected, and a damaged directory is not changed.

use std::fs;

use dedupd::store::Lock;
use dedupd::tools::state::file::{FileReader, Piece};
use dedupd::tools::state::{export, import};
use indicatif::ProgressBar;

use super::*;

/// The export of two partitions with so many ids.
fn small_export(ids: u64) -> Vec<u8> {
    let (dir, files) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let mut store = opened(dir.path(), HashKind::Xxh3);
    for partition in [0, 2] {
        let owners = (0..ids).map(|at| owner(partition, at, T, id(partition, at, Hasher::Xxh3)));
        let owners: Vec<_> = owners.collect();
        for run in owners.chunks(1_000) {
            store.put(partition.into(), run, &head(partition, ids, T)).unwrap();
        }
    }
    let (file, binding) = (files.path().join("file"), binding(HashKind::Xxh3));
    export(&store, &binding, &file, &ProgressBar::hidden()).unwrap();
    store.close().unwrap();
    fs::read(file).unwrap()
}

/// Verifies a whole file.
fn verify_all(bytes: &[u8]) -> Result<(), String> {
    let (mut reader, _) = FileReader::begin(bytes).map_err(|fault| fault.to_string())?;
    loop {
        if let Piece::End { .. } = reader.next_piece().map_err(|fault| fault.to_string())? {
            return Ok(());
        }
    }
}

#[test]
fn every_truncation_and_every_flipped_bit_of_a_file_is_detected() {
    let bytes = small_export(30);
    assert_eq!(verify_all(&bytes), Ok(()));
    for length in 0..bytes.len() {
        let error = verify_all(&bytes[..length]).unwrap_err();
        assert!(error.contains("truncated after"), "at {length}: {error}");
    }
    let mut flipped = bytes.clone();
    for at in 0..bytes.len() {
        for bit in 0..8 {
            flipped[at] ^= 1 << bit;
            assert!(verify_all(&flipped).is_err(), "bit {bit} of byte {at}");
            flipped[at] ^= 1 << bit;
        }
    }
    let longer = [&bytes[..], &[0]].concat();
    assert!(verify_all(&longer).unwrap_err().contains("after its end"));
}

/// The frames of a file: kind and whole frame.
fn frames(bytes: &[u8]) -> Vec<(u8, Vec<u8>)> {
    let (mut frames, mut rest) = (Vec::new(), &bytes[8..]);
    while !rest.is_empty() {
        let length = 5 + u32::from_le_bytes(rest[1..5].try_into().unwrap()) as usize;
        frames.push((rest[0], rest[..length].to_vec()));
        rest = &rest[length..];
    }
    frames
}

/// A file of these frames with a valid checksum.
fn file_of(frames: &[(u8, Vec<u8>)]) -> Vec<u8> {
    let all = frames.iter().flat_map(|(_, frame)| frame.clone());
    let mut bytes: Vec<u8> = b"DDSTATE3".iter().copied().chain(all).collect();
    let hashed = bytes.len() - 16;
    let hash = xxhash_rust::xxh3::xxh3_128(&bytes[..hashed]);
    bytes[hashed..].copy_from_slice(&hash.to_le_bytes());
    bytes
}

#[test]
fn an_inconsistent_file_with_a_valid_checksum_is_rejected() {
    let bytes = small_export(5_000);
    let whole = frames(&bytes);
    assert_eq!(file_of(&whole), bytes);
    let blocks: Vec<usize> = (0..whole.len()).filter(|at| whole[*at].0 == 2).collect();
    assert_eq!(blocks, [1, 2, 3, 4]);
    for at in &blocks {
        let mut without = whole.clone();
        without.remove(*at);
        assert!(verify_all(&file_of(&without)).is_err(), "without block {at}");
        let mut twice = whole.clone();
        twice.insert(*at, whole[*at].clone());
        assert!(verify_all(&file_of(&twice)).is_err(), "block {at} twice");
        // The order of the blocks of a window is covered by the checksum only.
        for other in [3, 4].iter().filter(|_| *at <= 2) {
            let mut swapped = whole.clone();
            swapped.swap(*at, *other);
            assert!(verify_all(&file_of(&swapped)).is_err(), "blocks {at} and {other} swapped");
        }
    }
    let mut miscounted = whole.clone();
    miscounted.last_mut().unwrap().1[5] ^= 1;
    assert!(verify_all(&file_of(&miscounted)).unwrap_err().contains("footer"));
    assert!(verify_all(b"SQLite format 3\0 and more").unwrap_err().contains("not an exported state"));
}

#[test]
fn two_hundred_damaged_files_are_rejected_before_the_directory_is_changed() {
    let (files, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (bytes, file) = (small_export(60), files.path().join("file"));
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    let lock = Lock::acquire(other.path()).unwrap();
    for round in 0..200 {
        let mut damaged = bytes.clone();
        damaged[random.usize(..bytes.len())] ^= 1 << random.u8(..8);
        fs::write(&file, &damaged).unwrap();
        // The same if the file changes after it was verified: a failed import leaves nothing behind.
        if round < 10 {
            assert!(import(&file, other.path(), CACHE_BYTES, DEADLINE, &ProgressBar::hidden()).is_err());
        }
        assert!(dedupd::tools::state::verify(&file, &ProgressBar::hidden()).is_err(), "round {round}");
        assert_eq!(fs::read_dir(other.path()).unwrap().count(), 1, "the lock alone");
    }
    drop(lock);
    let absent = other.path().join("not-there");
    let output = dedupd(&absent, &["import", "--from", file.to_str().unwrap()]);
    assert_eq!(output.code, 4, "{output:?}");
    assert!(output.err.contains(file.to_str().unwrap()) && !absent.exists(), "{output:?}");
}

#[test]
fn a_damaged_directory_is_reported_and_not_changed() {
    type Damage = fn(&Path);
    let damages: [(&str, Damage); 3] = [
        ("fsync", |database| fs::write(database.join("CONDEMNED"), "fsync failed").unwrap()),
        ("", |database| {
            let mut bytes = fs::read(database.join("db")).unwrap();
            // Most of the file is unused.
            let used = bytes.iter().rposition(|byte| *byte != 0).unwrap();
            bytes[used / 8..used / 2].iter_mut().for_each(|byte| *byte ^= 0x55);
            fs::write(database.join("db"), bytes).unwrap();
        }),
        ("", |database| fs::write(database.join("conf"), "size: nonsense").unwrap()),
    ];
    for (number, (named, damage)) in damages.into_iter().enumerate() {
        let dir = filled();
        // This open makes the engine write a snapshot that refers to the bytes damaged below. Without a snapshot, the
        // engine would go back to an older, intact state.
        opened(dir.path(), HashKind::Xxh3).close().unwrap();
        damage(&dir.path().join("db-1"));
        let (before, target) = (files(dir.path()), dir.path().with_extension("exported"));
        for words in
            [&["inspect"][..], &["inspect", "--id", "x"], &["export", "--to", target.to_str().unwrap()]]
        {
            let output = dedupd(dir.path(), words);
            assert_eq!(output.code, 4, "{number} {words:?}: {output:?}");
            assert!(output.err.contains("is damaged") && output.err.contains(named), "{output:?}");
            assert!(
                output.err.contains("db-1") && output.err.contains("rebuilds it from the state topic"),
                "{output:?}"
            );
        }
        assert!(files(dir.path()) == before && !target.exists(), "{number}: the directory was changed");
    }
}
