//! Inspects, exports, imports and deletes the local state of a stopped instance, in real directories.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::cast_possible_truncation,
    reason = "a test fails by panicking"
)]

#[path = "../support/appending.rs"]
mod appending;
mod commands;
mod damage;
mod finding;
#[path = "../support/memory_store.rs"]
mod memory_store;
mod portable;
mod sealed;
mod transfer;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use appending::Appending;
use dedupd::dedupe::{
    Coordinates, Digest, EntryName, HashKind, Hasher, IdSource, Identity, IdentityRule, Offset, PartitionId,
    Sequence, StoredOwner,
};
use dedupd::ports::{Covered, Head, Store};
use dedupd::store::{Binding, Copied, SledStore, open, open_copy};

const CACHE_BYTES: u64 = 8 << 20;
const DEADLINE: Duration = Duration::from_secs(20);
const T: i64 = 1_700_000_000_000;
/// Ids per transaction, one per second.
const BATCH: u64 = 600;
/// Partition 0 contains ten hours of ids, one per second; partition 2 half an hour; partition 1 none.
const FILLED: [(PartitionId, u64); 2] = [(0, 36_000), (2, 1_800)];

fn binding(hash: HashKind) -> Binding {
    Binding {
        cluster_id: "cluster".into(),
        raw: "events.raw".into(),
        clean: "events.clean".into(),
        state: "events.state".into(),
        group: "group".into(),
        partitions: 3,
        hash,
        raw_id: Some("raw-id".into()),
        ..Binding::default()
    }
}

/// The length of the window that the commands are configured with in [`dedupd_with`].
const LENGTH: Duration = Duration::from_hours(7);

fn text(partition: PartitionId, number: u64) -> String {
    format!("order-{partition}-{number}")
}

fn id(partition: PartitionId, number: u64, hasher: Hasher) -> Identity {
    IdentityRule::new(vec![IdSource::Key.into()], hasher).identify_texts(&[text(partition, number)]).unwrap()
}

fn opened(dir: &Path, hash: HashKind) -> SledStore {
    let opened = open(dir, &binding(hash), CACHE_BYTES, DEADLINE).unwrap();
    assert_eq!(opened.quarantined, None);
    opened.store
}

fn copied(dir: &Path) -> Copied {
    open_copy(dir, &std::env::temp_dir(), CACHE_BYTES, DEADLINE).unwrap()
}

fn owner(partition: PartitionId, offset: Offset, time_ms: i64, identity: Identity) -> StoredOwner {
    StoredOwner {
        at: Coordinates { partition, offset },
        time_ms,
        identity: Some(identity),
        digest: Digest::NONE,
    }
}

/// Appends like a worker: id 0 at offset 0 and so on, one per second from `T`.
fn fill(store: &mut SledStore, partition: PartitionId, seconds: u64, hasher: Hasher) {
    let arrival = |at: u64| T + 1_000 * at.cast_signed();
    for first in (0..seconds).step_by(BATCH as usize) {
        let next = first + BATCH;
        let owners = (first..next).map(|at| owner(partition, at, arrival(at), id(partition, at, hasher)));
        let before = store.head(partition.into()).unwrap().unwrap_or_default();
        let after = Head { last_entry: entry(next / BATCH), ..before };
        store.put(partition.into(), &owners.collect::<Vec<_>>(), &after).unwrap();
        store.set_head(partition.into(), &head(partition, next, arrival(next - 1))).unwrap();
    }
}

#[expect(clippy::unnecessary_wraps, reason = "as in a head")]
fn entry(number: u64) -> Option<EntryName> {
    Some(EntryName { number, crc: 7 })
}

/// A head of a window that has as many owners as its only partition has records.
fn head(partition: PartitionId, next: Offset, time_ms: i64) -> Head {
    let (last_entry, covered) = (entry(next / BATCH), Covered { next, time_ms });
    Head {
        confirmed: next,
        state_next: next / 10,
        last_entry,
        confirmed_entry: last_entry,
        time_ms,
        incomplete_ms: 0,
        covered: [(partition, covered)].into(),
    }
}

/// A stopped instance's directory.
fn filled() -> tempfile::TempDir {
    filled_with(Hasher::Xxh3)
}

fn filled_with(hasher: Hasher) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    let mut store =
        opened(dir.path(), hasher.kind()).joining(dedupd::store::Joining::new(Duration::from_secs(36), []));
    for (partition, seconds) in FILLED {
        fill(&mut store, partition, seconds, hasher);
    }
    store.close().unwrap();
    dir
}

/// Every file below a directory except the lock file: its bytes and modification time.
fn files(dir: &Path) -> BTreeMap<PathBuf, (Vec<u8>, std::time::SystemTime)> {
    let mut found = BTreeMap::new();
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(files(&path));
        } else if path.file_name().unwrap() != "lock" {
            let written = path.metadata().unwrap().modified().unwrap();
            found.insert(path.clone(), (std::fs::read(&path).unwrap(), written));
        }
    }
    found
}

/// Output and exit code of a command.
#[derive(Debug)]
struct CommandOutput {
    code: i32,
    out: String,
    err: String,
}

/// `dedupd state …` on a directory, with the window of [`limits`] in the environment.
fn dedupd(dir: &Path, words: &[&str]) -> CommandOutput {
    dedupd_with(dir, words, &[])
}

fn dedupd_with(dir: &Path, words: &[&str], variables: &[(&str, &str)]) -> CommandOutput {
    let mut command = Command::new(env!("CARGO_BIN_EXE_dedupd"));
    command.arg("state").args(words).arg("--state-dir").arg(dir).stdin(Stdio::null());
    command.env("DEDUPD_WINDOW__EXACT", "1h").env("DEDUPD_WINDOW__BLOOM", "7h");
    let output = command.envs(variables.iter().copied()).output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    CommandOutput { code: output.status.code().unwrap(), out: text(output.stdout), err: text(output.stderr) }
}
