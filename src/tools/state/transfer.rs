//! Exports a whole state to a file, and imports it into an empty directory.

use std::fs::File;
use std::io::{self, BufReader, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use indicatif::ProgressBar;
use tempfile::NamedTempFile;

use super::error::StateError;
use super::file::{FileFault, FileHeader, FileReader, FileWindow, Piece, Writer};
use super::inspect::{Counted, counted};
use super::whole::scan_whole;
use crate::dedupe::{Block, HashKind, KindId, Owner, OwnerRun, Sequence, StampedOwner, for_each_run};
use crate::ports::{Head, Store, StoreError};
use crate::store::{Adoption, Binding};

/// Size of the file buffer, in bytes.
const BUFFER: usize = 1 << 20;
/// Identities of a block.
const BLOCK_IDS: usize = 4_096;
/// Longest time between the arrivals of owners that an import stores together, ms. The lengths of the windows are not known to it.
const RUN_MS: i64 = 60_000;

/// What was exported or imported.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Transferred {
    /// What the state belongs to.
    pub header: FileHeader,
    pub blocks: u64,
    /// Number of identities in them.
    pub ids: u64,
}

/// Writes all owners in the store to a file that must not exist. Ids in filters without owners are missing in it, and
/// an instance that imports it reports a shorter window. The file appears under its final name once it is
/// complete and durable. `bar` counts windows, then ids.
pub fn export(
    store: &impl Store,
    binding: &Binding,
    to: &Path,
    bar: &ProgressBar,
) -> Result<Transferred, StateError> {
    put_in_place(to, |file| write(store, binding, to, file, bar))
}

/// Writes a file that must not exist: beside it under another name, and renamed once it is complete and durable. Only its owner may read it.
pub(super) fn put_in_place<T>(
    to: &Path,
    write: impl FnOnce(&mut File) -> Result<T, StateError>,
) -> Result<T, StateError> {
    if to.exists() {
        return Err(StateError::file(to, "already exists; delete it, or choose another name"));
    }
    let folder = to.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let io_error = |e: io::Error| StateError::io(to, "be written", &e);
    let mut part = NamedTempFile::new_in(folder).map_err(io_error)?;
    let done = write(part.as_file_mut())?;
    part.persist_noclobber(to).map_err(|e| io_error(e.error))?;
    File::open(folder).and_then(|folder| folder.sync_all()).map_err(io_error)?;
    Ok(done)
}

fn write(
    store: &impl Store,
    binding: &Binding,
    to: &Path,
    file: &mut File,
    bar: &ProgressBar,
) -> Result<Transferred, StateError> {
    let windows = counted(store, binding, bar)?;
    let of_file = windows.iter().map(|Counted { id, stored, .. }| {
        // The ids in filters without owners are not in the file.
        let filtered_ms = store.filters(*id).iter().map(|filter| filter.time_ms.1 + 1).max();
        FileWindow::of(*id, stored, stored.missing_ms.max(filtered_ms.unwrap_or(0)))
    });
    let header = FileHeader { binding: binding.clone(), windows: of_file.collect() };
    let ids = header.windows.iter().map(|window| window.ids).sum();
    bar.reset();
    bar.set_length(ids);
    let write_error = |e: io::Error| StateError::io(to, "be written", &e);
    let mut writer = Writer::begin(BufWriter::with_capacity(BUFFER, file), &header).map_err(write_error)?;
    let mut blocks = 0;
    for Counted { id, stored, .. } in &windows {
        let mut waiting = Waiting { hash: binding.hash, kind: id.kind(), owners: Vec::new() };
        let mut failed = Ok(());
        let mut put = |waiting: &mut Waiting, fewest| {
            while let Some(block) = waiting.block(fewest) {
                bar.inc(block.owners.len() as u64);
                blocks += 1;
                writer.block(&block).map_err(|e| {
                    failed = Err(e);
                    StoreError::Io("writing the export failed".to_owned())
                })?;
            }
            Ok(())
        };
        let scanned = scan_whole(store, *id, stored, &mut |owners| {
            waiting.owners.extend_from_slice(owners);
            put(&mut waiting, BLOCK_IDS)
        });
        let scanned = scanned.and_then(|()| put(&mut waiting, 1));
        failed.map_err(write_error)?;
        scanned?;
    }
    let mut buffered = writer.finish().map_err(write_error)?;
    buffered.flush().and_then(|()| buffered.get_ref().sync_all()).map_err(write_error)?;
    Ok(Transferred { header, blocks, ids })
}

/// Owners that were read and are not in a block yet. Blocks do not depend on how they are stored.
struct Waiting {
    hash: HashKind,
    kind: KindId,
    owners: Vec<Owner>,
}

impl Waiting {
    /// A block of the oldest ones, if there are at least so many.
    fn block(&mut self, fewest: usize) -> Option<Block> {
        let count = self.owners.len().min(BLOCK_IDS);
        let Self { hash, kind, owners } = self;
        (count >= fewest).then(|| Block { hash: *hash, kind: *kind, owners: owners.drain(..count).collect() })
    }
}

/// Number of ids that [`export`] leaves out, because they are in filters without owners.
pub fn left_out(store: &impl Store, binding: &Binding) -> u64 {
    let filters = binding.windows().into_iter().flat_map(|(_, window)| store.filters(window));
    filters.map(|filter| filter.ids).sum()
}

/// Reads and verifies a whole file. `bar` counts ids.
pub fn verify(from: &Path, bar: &ProgressBar) -> Result<Transferred, StateError> {
    let (mut reader, header) = begin(from)?;
    bar.set_length(header.windows.iter().map(|window| window.ids).fold(0, u64::saturating_add));
    loop {
        match reader.next_piece().map_err(|fault| file_error(from, &fault))? {
            Piece::Owners(_, owners) => bar.inc(owners.len() as u64),
            Piece::End { blocks, ids } => return Ok(Transferred { header, blocks, ids }),
        }
    }
}

/// Imports a file, which [`verify`] has read before, into `dir`, which the caller has locked and which must be empty.
/// See [`crate::store::open`] for `cache_bytes` and `deadline`. Returns the path of the database.
pub fn import(
    from: &Path,
    dir: &Path,
    cache_bytes: u64,
    deadline: Duration,
    bar: &ProgressBar,
) -> Result<PathBuf, StateError> {
    let (mut reader, header) = begin(from)?;
    let mut adoption = Adoption::begin(dir, &header.binding, cache_bytes, deadline)?;
    match fill(&mut adoption, from, &mut reader, &header, bar) {
        Ok(()) => Ok(adoption.finish()?),
        Err(error) => {
            adoption.undo();
            Err(error)
        }
    }
}

fn fill(
    adoption: &mut Adoption,
    from: &Path,
    reader: &mut FileReader<BufReader<File>>,
    header: &FileHeader,
    bar: &ProgressBar,
) -> Result<(), StateError> {
    for part in &header.windows {
        let (mut number, mut stamp_ms) = (0, 0);
        while number < part.ids {
            match reader.next_piece().map_err(|fault| file_error(from, &fault))? {
                Piece::Owners(window, owners) if window == part.window => {
                    bar.inc(owners.len() as u64);
                    // The file has not when they arrived: it is the latest time of all owners before, as after a restore.
                    let stamped = owners.iter().map(|owner| {
                        stamp_ms = owner.time_ms.max(stamp_ms);
                        StampedOwner { owner: *owner, stamp_ms }
                    });
                    let stamped: Vec<_> = stamped.collect();
                    let add = |run: &OwnerRun<'_>| adoption.add(window, run, &Head::default());
                    for_each_run(&stamped, number, RUN_MS, add)?;
                    number += owners.len() as Sequence;
                }
                _ => return Err(changed(from)),
            }
        }
        // The next head that is added stores it.
        adoption.note_missing(part.window, part.missing_ms)?;
        let none = OwnerRun { number, times_ms: (stamp_ms, stamp_ms), owners: &[] };
        adoption.add(part.window, &none, &part.head())?;
    }
    match reader.next_piece().map_err(|fault| file_error(from, &fault))? {
        Piece::End { .. } => Ok(()),
        Piece::Owners(..) => Err(changed(from)),
    }
}

fn begin(from: &Path) -> Result<(FileReader<BufReader<File>>, FileHeader), StateError> {
    let file = File::open(from).map_err(|e| StateError::io(from, "be read", &e))?;
    FileReader::begin(BufReader::with_capacity(BUFFER, file)).map_err(|fault| file_error(from, &fault))
}

fn file_error(from: &Path, fault: &FileFault) -> StateError {
    StateError::file(from, &fault.to_string())
}

fn changed(from: &Path) -> StateError {
    StateError::file(from, "was changed while it was read; import it again")
}
