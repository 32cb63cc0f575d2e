//! The progress bar of an audit.

use std::cell::Cell;

use bytesize::ByteSize;
use indicatif::{ProgressBar, ProgressStyle};

use super::reader::Span;
use crate::dedupe::{Offset, PartitionId};

/// Records between two updates of the bar.
const STEP: u64 = 4_096;

/// The progress bar of an audit, on standard error if that is a terminal.
#[must_use]
pub fn progress_bar() -> ProgressBar {
    let style = ProgressStyle::with_template(
        "audit {bar:30} {percent:>3} %: {human_pos} of {human_len} records, {msg} ({eta} left)",
    );
    let bar = ProgressBar::new(0);
    match style {
        Ok(style) => bar.with_style(style),
        Err(_) => bar,
    }
}

/// Counts records and bytes. The total of records follows from the offsets; the total of bytes is an estimate.
#[derive(Debug)]
pub(super) struct Progress<'a> {
    bar: &'a ProgressBar,
    all: u64,
    bytes: Cell<u64>,
    records: Cell<u64>,
    /// Offsets of the spans that are done.
    done: Cell<u64>,
    span: Cell<Span>,
    partition: Cell<PartitionId>,
}

impl<'a> Progress<'a> {
    /// `all`: the number of offsets to read.
    pub fn new(bar: &'a ProgressBar, all: u64) -> Self {
        bar.set_length(all);
        Self {
            bar,
            all,
            bytes: Cell::default(),
            records: Cell::default(),
            done: Cell::default(),
            span: Cell::default(),
            partition: Cell::default(),
        }
    }

    /// Bytes of keys, values and headers read.
    pub fn bytes(&self) -> u64 {
        self.bytes.get()
    }

    /// Starts a span.
    pub fn begin(&self, partition: PartitionId, span: Span) {
        self.partition.set(partition);
        self.span.set(span);
        self.show(span.low);
    }

    /// Counts a record of the span.
    pub fn read(&self, offset: Offset, bytes: u64) {
        self.bytes.set(self.bytes.get() + bytes);
        self.records.set(self.records.get() + 1);
        if self.records.get().is_multiple_of(STEP) {
            self.show(offset);
        }
    }

    /// Ends the span.
    pub fn end(&self) {
        let span = self.span.get();
        self.show(span.end);
        self.done.set(self.done.get() + span.len());
    }

    /// The partition is read; the comparison starts.
    pub fn comparing(&self, partition: PartitionId) {
        self.bar.set_message(format!("comparing partition {partition}"));
    }

    fn show(&self, offset: Offset) {
        let position = (self.done.get() + offset.saturating_sub(self.span.get().low)).min(self.all);
        self.bar.set_position(position);
        let bytes = self.bytes.get();
        let all = u128::from(bytes) * u128::from(self.all) / u128::from(position.max(1));
        self.bar.set_message(format!(
            "{} of about {}, partition {}",
            ByteSize(bytes),
            ByteSize(u64::try_from(all).unwrap_or(u64::MAX)),
            self.partition.get()
        ));
    }
}
