//! Exports a whole state to a file, and imports it into an empty directory.

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufReader, BufWriter, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use indicatif::ProgressBar;

use super::error::StateError;
use super::file::{FileFault, FileHeader, FilePart, FileReader, Piece, Writer};
use super::find::summarise;
use super::whole::scan_whole;
use crate::ports::{Head, Store, StoreError};
use crate::store::{Adoption, Binding};

/// Size of the file buffer, in bytes.
const BUFFER: usize = 1 << 20;
/// Blocks imported at once.
const BATCH: usize = 64;

/// What was exported or imported.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Transferred {
    /// What the state belongs to.
    pub header: FileHeader,
    pub blocks: u64,
    /// Number of identities in them.
    pub ids: u64,
}

/// Writes all blocks and sealed owners in the store to a file that must not exist. Ids in filters without owners are missing in it, and
/// an instance that imports it reports a shorter window. The file appears under its final name once it is
/// complete and durable. `bar` counts blocks.
pub fn export(
    store: &impl Store,
    binding: &Binding,
    to: &Path,
    bar: &ProgressBar,
) -> Result<Transferred, StateError> {
    if to.exists() {
        return Err(StateError::file(to, "already exists; delete it, or choose another name"));
    }
    let mut name = to.file_name().unwrap_or_default().to_os_string();
    name.push(format!(".part-{}", std::process::id()));
    let part = to.with_file_name(name);
    let written = write(store, binding, &part, bar).and_then(|done| {
        put_in_place(&part, to).map_err(|e| StateError::io(to, "be written", &e))?;
        Ok(done)
    });
    if written.is_err() {
        // The file may not exist.
        drop(fs::remove_file(&part));
    }
    written
}

fn put_in_place(part: &Path, to: &Path) -> io::Result<()> {
    fs::rename(part, to)?;
    let folder = to.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    File::open(folder)?.sync_all()
}

fn write(
    store: &impl Store,
    binding: &Binding,
    to: &Path,
    bar: &ProgressBar,
) -> Result<Transferred, StateError> {
    // The file has blocks only, so it can be imported for either scope.
    let binding = Binding { shares_slices: None, ..binding.clone() };
    let mut header = FileHeader { binding: binding.clone(), partitions: Vec::new() };
    let windows: Vec<_> = binding.windows().into_iter().map(|(_, window)| window).collect();
    for (window, mut summary) in summarise(store, binding.hash, &windows)? {
        // The ids in filters without owners are not in the file.
        let missing_ms = store.filters(window).iter().map(|filter| filter.time_ms.1 + 1).max();
        summary.missing_ms = summary.missing_ms.max(missing_ms.unwrap_or(0));
        header.partitions.push(FilePart::of(window, &summary));
    }
    let sum = |of: fn(&FilePart) -> u64| header.partitions.iter().map(of).sum();
    let (blocks, ids) = (sum(|part| part.blocks), sum(|part| part.ids));
    bar.set_length(blocks);
    let write_error = |e: io::Error| StateError::io(to, "be written", &e);
    let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(to).map_err(write_error)?;
    let mut writer = Writer::begin(BufWriter::with_capacity(BUFFER, file), &header).map_err(write_error)?;
    let windows: Vec<_> = header.partitions.iter().map(|part| part.window).collect();
    let mut failed = Ok(());
    let scanned = scan_whole(store, binding.hash, &windows, &mut |view| {
        bar.inc(1);
        writer.block(view).map_err(|e| {
            failed = Err(e);
            StoreError::Io("writing the export failed".to_owned())
        })
    });
    failed.map_err(write_error)?;
    scanned?;
    let mut buffered = writer.finish().map_err(write_error)?;
    buffered.flush().and_then(|()| buffered.get_ref().sync_all()).map_err(write_error)?;
    Ok(Transferred { header, blocks, ids })
}

/// Number of ids that [`export`] leaves out, because they are in filters without owners. Filters that windows share are counted once.
pub fn left_out(store: &impl Store, binding: &Binding) -> u64 {
    let mut filters: Vec<_> =
        binding.windows().into_iter().flat_map(|(_, window)| store.filters(window)).collect();
    filters.sort_by_key(|filter| (filter.time_ms, filter.ids));
    filters.dedup();
    filters.iter().map(|filter| filter.ids).sum()
}

/// Reads and verifies a whole file. `bar` counts blocks.
pub fn verify(from: &Path, bar: &ProgressBar) -> Result<Transferred, StateError> {
    let (mut reader, header) = begin(from)?;
    bar.set_length(header.partitions.iter().map(|part| part.blocks).fold(0, u64::saturating_add));
    loop {
        match reader.next_piece().map_err(|fault| file_error(from, &fault))? {
            Piece::Block(..) => bar.inc(1),
            Piece::End { blocks, ids } => return Ok(Transferred { header, blocks, ids }),
        }
    }
}

/// Imports a file, which [`verify`] has read before, into `dir`, which the caller has locked and which must be empty.
/// See [`crate::store::open`] for `cache_bytes` and `deadline`. Returns the path of the database.
pub fn import(
    from: &Path,
    dir: &Path,
    (cache_bytes, deadline): (u64, Duration),
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
    for part in &header.partitions {
        // A partition without blocks has a head, too.
        adoption.add(part.window, &[], Head::default())?;
        let mut left = part.blocks;
        while left > 0 {
            let mut some = Vec::with_capacity(BATCH);
            while left > 0 && some.len() < BATCH {
                match reader.next_piece().map_err(|fault| file_error(from, &fault))? {
                    Piece::Block(window, bytes) if window == part.window => some.push(bytes),
                    _ => return Err(changed(from)),
                }
                left -= 1;
            }
            bar.inc(some.len() as u64);
            adoption.add(part.window, &some, Head::default())?;
        }
        adoption.note_missing(part.window, part.missing_ms)?;
        adoption.add(part.window, &[], part.head())?;
    }
    match reader.next_piece().map_err(|fault| file_error(from, &fault))? {
        Piece::End { .. } => Ok(()),
        Piece::Block(..) => Err(changed(from)),
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
