//! The progress bar of an audit.

use std::cell::Cell;

use bytesize::ByteSize;
use indicatif::{ProgressBar, ProgressStyle};

use super::PartitionId;
use super::reader::SpanOf;

/// Records between two updates of the bar.
const STEP: u64 = 4_096;

/// The progress bar of an audit, on standard error if that is a terminal. It is drawn at once: a broker that is down is awaited for some seconds.
#[must_use]
pub fn progress_bar() -> ProgressBar {
    let style = ProgressStyle::with_template(
        "audit {bar:30} {percent:>3} %: {human_pos} of {human_len} records, {msg} ({eta} left)",
    );
    let bar = ProgressBar::new(0).with_message("connecting");
    let bar = match style {
        Ok(style) => bar.with_style(style),
        Err(_) => bar,
    };
    bar.tick();
    bar
}

/// Counts offsets and bytes. The total of offsets is known; the total of bytes is an estimate.
#[derive(Debug)]
pub(super) struct Progress<'a> {
    bar: &'a ProgressBar,
    all: u64,
    bytes: Cell<u64>,
    records: Cell<u64>,
    /// Offsets that are done.
    position: Cell<u64>,
    /// The position after the spans that are being read.
    end: Cell<u64>,
    /// The first and the last partition that are being read.
    partitions: Cell<(PartitionId, PartitionId)>,
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
            position: Cell::default(),
            end: Cell::default(),
            partitions: Cell::default(),
        }
    }

    /// Bytes of keys, values and headers read.
    pub fn bytes(&self) -> u64 {
        self.bytes.get()
    }

    /// Starts the spans of several partitions.
    pub fn begin(&self, spans: &SpanOf) {
        let number = |span: Option<(&PartitionId, _)>| span.map_or(0, |(number, _)| *number);
        self.partitions.set((number(spans.first_key_value()), number(spans.last_key_value())));
        self.end.set(self.position.get() + spans.values().map(|span| span.len()).sum::<u64>());
        self.show();
    }

    /// Counts a record of these spans, with the number of offsets that it and what is missing before it take.
    pub fn read(&self, offsets: u64, bytes: u64) {
        self.bytes.set(self.bytes.get() + bytes);
        self.position.set(self.position.get() + offsets);
        self.records.set(self.records.get() + 1);
        if self.records.get().is_multiple_of(STEP) {
            self.show();
        }
    }

    /// Ends the spans.
    pub fn end(&self) {
        self.position.set(self.end.get());
        self.show();
    }

    /// The partition is read; the comparison starts.
    pub fn comparing(&self, partition: PartitionId) {
        self.bar.set_message(format!("comparing partition {partition}"));
    }

    /// All partitions are read; their comparison starts.
    pub fn comparing_all(&self) {
        self.bar.set_message("comparing all partitions");
    }

    fn show(&self) {
        let position = self.position.get().min(self.all);
        self.bar.set_position(position);
        let bytes = self.bytes.get();
        let all = u128::from(bytes) * u128::from(self.all) / u128::from(position.max(1));
        let partitions = match self.partitions.get() {
            (first, last) if first == last => format!("partition {first}"),
            (first, last) => format!("partitions {first} to {last}"),
        };
        self.bar.set_message(format!(
            "{} of about {}, {partitions}",
            ByteSize(bytes),
            ByteSize(u64::try_from(all).unwrap_or(u64::MAX)),
        ));
    }
}
