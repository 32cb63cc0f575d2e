//! Reads an export file, one block at a time. Nothing in it is valid until the footer was read and verified.

use std::collections::VecDeque;
use std::io::{self, Read};

use xxhash_rust::xxh3::Xxh3;

use super::{BLOCK, FOOTER, FOOTER_BYTES, FileHeader, FileWindow, HEADER, MAGIC};
use crate::dedupe::{Block, Owner, WindowId};
use crate::store::Binding;

/// Why a file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum FileFault {
    /// The operating system reports an error, other than the end of the file.
    #[error("cannot be read: {0}")]
    Io(#[from] io::Error),
    /// Another type of file.
    #[error("is not an exported state of this version: it does not start with {}", String::from_utf8_lossy(&MAGIC))]
    Foreign,
    /// It ends too early.
    #[error("is truncated after {0} bytes; export it again, or copy it again")]
    Truncated(u64),
    /// Its content is inconsistent.
    #[error("is damaged: {0}; export it again, or copy it again")]
    Damaged(String),
}

/// The next part of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Piece {
    /// Owners of a window.
    Owners(WindowId, Vec<Owner>),
    /// The footer: everything read before is complete and valid.
    End {
        /// Number of blocks read.
        blocks: u64,
        /// Number of identities in them.
        ids: u64,
    },
}

/// A file that is being read.
pub struct FileReader<R> {
    from: R,
    read: u64,
    hash: Xxh3,
    binding: Binding,
    /// Windows that were not completed yet, in order, with the number of identities still to be read.
    remaining: VecDeque<FileWindow>,
    blocks: u64,
    ids: u64,
}

impl<R: Read> FileReader<R> {
    /// Reads the header. Fails when the file has another format or version, is damaged, or ends.
    pub fn begin(from: R) -> Result<(Self, FileHeader), FileFault> {
        let mut reader = Self {
            from,
            read: 0,
            hash: Xxh3::new(),
            binding: Binding::default(),
            remaining: VecDeque::new(),
            blocks: 0,
            ids: 0,
        };
        if reader.array()? != MAGIC {
            return Err(FileFault::Foreign);
        }
        let (kind, length) = reader.frame()?;
        if kind != HEADER {
            return Err(damaged("it does not start with a header"));
        }
        let json = reader.bytes(length)?;
        let header: FileHeader = serde_json::from_slice(&json)
            .map_err(|e| FileFault::Damaged(format!("its header is unreadable: {e}")))?;
        if !header.windows.is_sorted_by(|a, b| a.window < b.window) {
            return Err(damaged("its windows are out of order"));
        }
        reader.binding = header.binding.clone();
        reader.remaining = header.windows.clone().into();
        Ok((reader, header))
    }

    /// Reads the next part. Nothing follows [`Piece::End`].
    pub fn next_piece(&mut self) -> Result<Piece, FileFault> {
        match self.frame()? {
            (BLOCK, length) => {
                let bytes = self.bytes(length)?;
                self.block(&bytes)
            }
            (FOOTER, FOOTER_BYTES) => self.end(),
            _ => Err(damaged("a frame is neither a block nor the footer")),
        }
    }

    /// Decodes a block, and checks it against the header.
    fn block(&mut self, bytes: &[u8]) -> Result<Piece, FileFault> {
        let Block { hash, kind, owners } =
            Block::decode(bytes).map_err(|cause| FileFault::Damaged(cause.to_string()))?;
        self.skip_completed();
        let ids = owners.len() as u64;
        let Binding { hash: expected, partitions, topic_scope, .. } = self.binding;
        let is_of = |journal, owner: &Owner| {
            owner.at.partition < partitions && (topic_scope || owner.at.partition == journal)
        };
        let window = self.remaining.front_mut().filter(|window| {
            let id = window.window;
            let has_owners =
                (1..=window.ids).contains(&ids) && owners.iter().all(|it| is_of(id.journal(), it));
            hash == expected && kind == id.kind() && has_owners
        });
        let Some(window) = window else {
            return Err(FileFault::Damaged(format!(
                "block {} does not match the header or the order",
                self.blocks + 1
            )));
        };
        window.ids -= ids;
        self.blocks += 1;
        self.ids += ids;
        Ok(Piece::Owners(window.window, owners))
    }

    /// Moves on to the next window that still has identities to be read.
    fn skip_completed(&mut self) {
        while self.remaining.pop_front_if(|window| window.ids == 0).is_some() {}
    }

    fn end(&mut self) -> Result<Piece, FileFault> {
        self.skip_completed();
        if let Some(window) = self.remaining.front() {
            return Err(FileFault::Damaged(format!("identities of journal {} are missing", window.window)));
        }
        let (blocks, ids) = (u64::from_le_bytes(self.array()?), u64::from_le_bytes(self.array()?));
        let computed = self.hash.digest128();
        if (blocks, ids) != (self.blocks, self.ids) {
            return Err(damaged("the counts in its footer do not match its blocks"));
        }
        if u128::from_le_bytes(self.array()?) != computed {
            return Err(damaged("its checksum does not match its content"));
        }
        if self.from.read(&mut [0])? != 0 {
            return Err(damaged("there is data after its end"));
        }
        Ok(Piece::End { blocks, ids })
    }

    fn frame(&mut self) -> Result<(u8, u32), FileFault> {
        let [kind] = self.array()?;
        Ok((kind, u32::from_le_bytes(self.array()?)))
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], FileFault> {
        let mut bytes = [0; N];
        let read = self.from.read_exact(&mut bytes);
        read.map_err(|e| self.read_error(e))?;
        self.consume(&bytes);
        Ok(bytes)
    }

    /// Reads `length` bytes. Allocates only as much memory as the file has bytes, whatever length the file states.
    fn bytes(&mut self, length: u32) -> Result<Vec<u8>, FileFault> {
        let mut bytes = Vec::new();
        let read = (&mut self.from).take(u64::from(length)).read_to_end(&mut bytes)?;
        self.consume(&bytes);
        if read < usize::try_from(length).unwrap_or(usize::MAX) {
            Err(FileFault::Truncated(self.read))
        } else {
            Ok(bytes)
        }
    }

    fn consume(&mut self, bytes: &[u8]) {
        self.read += bytes.len() as u64;
        self.hash.update(bytes);
    }

    fn read_error(&self, error: io::Error) -> FileFault {
        match error.kind() {
            io::ErrorKind::UnexpectedEof => FileFault::Truncated(self.read),
            _ => FileFault::Io(error),
        }
    }
}

fn damaged(what: &str) -> FileFault {
    FileFault::Damaged(what.to_owned())
}
