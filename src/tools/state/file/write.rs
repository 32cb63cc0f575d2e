//! Writes an export file, one block at a time.

use std::io::{self, Write};

use xxhash_rust::xxh3::Xxh3;

use super::{BLOCK, FOOTER, FOOTER_BYTES, FileHeader, HEADER, MAGIC};
use crate::dedupe::Block;

/// A file that is being written.
pub struct Writer<W> {
    to: W,
    hash: Xxh3,
    blocks: u64,
    ids: u64,
}

impl<W: Write> Writer<W> {
    /// Writes the magic bytes and the header; the blocks follow with `block`.
    pub fn begin(to: W, header: &FileHeader) -> io::Result<Self> {
        let mut writer = Self { to, hash: Xxh3::new(), blocks: 0, ids: 0 };
        writer.put(&MAGIC)?;
        writer.frame(HEADER, &serde_json::to_vec(header)?)?;
        Ok(writer)
    }

    /// Writes a block.
    pub fn block(&mut self, block: &Block) -> io::Result<()> {
        self.blocks += 1;
        self.ids += block.owners.len() as u64;
        self.frame(BLOCK, &block.encode())
    }

    /// Writes the footer and returns the underlying writer, not flushed.
    pub fn finish(mut self) -> io::Result<W> {
        self.put(&[FOOTER])?;
        self.put(&FOOTER_BYTES.to_le_bytes())?;
        self.put(&self.blocks.to_le_bytes())?;
        self.put(&self.ids.to_le_bytes())?;
        let hash = self.hash.digest128();
        self.to.write_all(&hash.to_le_bytes())?;
        Ok(self.to)
    }

    fn frame(&mut self, kind: u8, content: &[u8]) -> io::Result<()> {
        let length = u32::try_from(content.len()).map_err(io::Error::other)?;
        self.put(&[kind])?;
        self.put(&length.to_le_bytes())?;
        self.put(content)
    }

    fn put(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.hash.update(bytes);
        self.to.write_all(bytes)
    }
}
