//! The metadata of a committed offset: text that any Kafka tool can display.

use std::fmt;

use super::Epoch;
use super::entry::{EntryEnd, EntryName};
use super::window_checkpoint::{WindowCheckpoint, render_windows};
use crate::dedupe::coordinates::Offset;
use crate::dedupe::identity::{Fingerprint, KindId};

/// The metadata of a committed offset: `v2;s=…;t=…;b=…:…@…;n=…;l=…;c=…;k=…;l=…;c=…;o=…;h=…;g=…;i=…;i=…:…;p=…;e=…@…;m=…;r=…;d=…;w=topic;f=1;tx=…`.
///
/// Other programs may commit to the group, so the metadata can be any text. Text that does not parse counts as no
/// checkpoint, which costs a restore and never correctness.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Checkpoint {
    /// Offset in the journal from which a restore finds everything newer than this commit.
    pub state_next: Offset,
    /// Stream time at the commit, epoch milliseconds.
    pub stream_time_ms: i64,
    /// The identity rule of each window, as far as it is known.
    pub rules: Vec<(KindId, Fingerprint)>,
    /// How far the partition's clock was ahead of the wall clock, in milliseconds; 0 when they agreed.
    pub ahead_of_wall_ms: i64,
    /// The last entry of the journal, up to this transaction.
    pub last_entry: Option<LastEntry>,
    /// Where the last section of the partition ends, up to this transaction: the raw offset behind it. `None` if it has none.
    pub section_next: Option<Offset>,
    /// What is missing in each window, before the owners of this commit.
    pub windows: Vec<WindowCheckpoint>,
    /// The clock by which the windows of the journal expire, epoch milliseconds; 0 while unknown. It is that of the commit before this one, whose
    /// markers were all there before this transaction began: no repair sets it back.
    pub horizon_ms: i64,
    /// How far the partition's clock is behind the fastest one when all are read to their ends, in milliseconds. `None` while that is not
    /// measured since its last record.
    pub late_ms: Option<i64>,
    /// How many partitions the raw topic had when the group began; partitions with higher numbers were added later.
    pub first_raw_partitions: Option<u32>,
    /// The leader epoch of the last record before the offset, with that offset again: other programs may move the offset.
    pub epoch: Option<Epoch>,
    /// The offset again, where only markers and aborted records are between the record of [`Self::epoch`] and it.
    pub empty_until: Option<Offset>,
    /// Topic id of the raw topic that the offset belongs to, if known.
    pub raw: Option<String>,
    /// Topic id of the state topic that holds the blocks, if known.
    pub state: Option<String>,
    /// Whether the journal is that of all partitions.
    pub is_topic_wide: bool,
    /// The group has lost its offsets, and those of other partitions of the journal follow: one without an offset is not new.
    pub others_follow: bool,
    /// Transactional id of the writer, which is fenced when its transaction hangs.
    pub writer: String,
}

/// The last committed entry of a journal, so that local state can be recognised as the committed one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LastEntry {
    /// Its name.
    pub entry: EntryName,
    /// A journal offset at or before the entry, if known. The entry is found from there on, or its transaction was undone.
    pub from: Option<Offset>,
}

impl LastEntry {
    /// The one of the later entry; with equal numbers the second.
    pub fn later(one: Option<Self>, other: Option<Self>) -> Option<Self> {
        one.into_iter().chain(other).max_by_key(|last| last.entry.number)
    }
}

impl fmt::Display for LastEntry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "entry {}", self.entry)
    }
}

impl Checkpoint {
    /// The one that names the latest entry, or any if none names one.
    pub fn newest<'a>(checkpoints: impl Iterator<Item = &'a Self>) -> Option<&'a Self> {
        checkpoints.max_by_key(|checkpoint| checkpoint.last_entry.map(|last| last.entry.number))
    }

    /// Most bytes of a checkpoint by default. The broker's default limit is 4,096.
    pub const MOST_BYTES: usize = 1_024;
    /// Most bytes of a checkpoint without the writer's name and the details of the windows.
    pub const MOST_BYTES_OF_CORE: usize = 448;

    /// The leader epoch of the last record before this offset, if the checkpoint is that of the offset, and not of one that was moved.
    pub fn epoch_before(&self, offset: Offset) -> Option<Epoch> {
        self.epoch.filter(|epoch| epoch.covers(offset) || self.empty_until == Some(offset))
    }

    /// The text form for a commit of one partition.
    pub fn render(&self) -> String {
        self.render_within(Self::MOST_BYTES)
    }

    /// The text form in at most `most` bytes. Details of windows are left out where they do not fit. The other fields,
    /// below 448 bytes plus the writer's name, are always included.
    pub fn render_within(&self, most: usize) -> String {
        let core = self.render_with("");
        let windows = render_windows(&self.windows, most.saturating_sub(core.len()));
        if windows.is_empty() { core } else { self.render_with(&windows) }
    }

    fn render_with(&self, windows: &str) -> String {
        let last_entry = self.last_entry.map(|last| render_entry(&last)).unwrap_or_default();
        let section = self.section_next.map(|next| format!(";n={next}")).unwrap_or_default();
        let time = |key, ms: Option<i64>| ms.map(|ms| format!(";{key}={ms}")).unwrap_or_default();
        let ahead = time("o", Some(self.ahead_of_wall_ms).filter(|ms| *ms != 0));
        let horizon = time("h", Some(self.horizon_ms).filter(|ms| *ms != 0));
        let late = time("g", self.late_ms);
        let flag = |is_set: bool, text: &'static str| if is_set { text } else { "" };
        let (scope, follow) = (flag(self.is_topic_wide, ";w=topic"), flag(self.others_follow, ";f=1"));
        let rules = render_rules(&self.rules);
        let began =
            self.first_raw_partitions.map(|partitions| format!(";p={partitions}")).unwrap_or_default();
        let id = |key, id: &Option<String>| id.as_ref().map(|id| format!(";{key}={id}")).unwrap_or_default();
        let epoch = self.epoch.map(|it| format!(";e={}@{}", it.number, it.next)).unwrap_or_default();
        let empty = self.empty_until.map(|until| format!(";m={until}")).unwrap_or_default();
        let (raw, state) = (id("r", &self.raw), id("d", &self.state));
        format!(
            "v2;s={};t={}{last_entry}{section}{windows}{ahead}{horizon}{late}{rules}{began}{epoch}{empty}{raw}{state}{scope}{follow};tx={}",
            self.state_next, self.stream_time_ms, self.writer
        )
    }

    /// Parses the text form; `None` when dedupd did not write it, or a newer version did.
    pub fn parse(text: &str) -> Option<Self> {
        let mut fields = text.strip_prefix("v2;")?;
        let mut checkpoint = Self::default();
        let mut kind = KindId::UNNAMED;
        // The writer comes last and may itself contain semicolons.
        while !fields.is_empty() {
            if let Some(writer) = fields.strip_prefix("tx=") {
                writer.clone_into(&mut checkpoint.writer);
                return Some(checkpoint);
            }
            let (field, rest) = fields.split_once(';').unwrap_or((fields, ""));
            match field.split_once('=')? {
                ("s", value) => checkpoint.state_next = value.parse().ok()?,
                ("t", value) => checkpoint.stream_time_ms = value.parse().ok()?,
                ("o", value) => checkpoint.ahead_of_wall_ms = value.parse().ok()?,
                ("h", value) => checkpoint.horizon_ms = value.parse().ok()?,
                ("g", value) => checkpoint.late_ms = Some(value.parse().ok()?),
                ("n", value) => checkpoint.section_next = Some(value.parse().ok()?),
                ("w", value) => checkpoint.is_topic_wide = value == "topic",
                ("f", value) => checkpoint.others_follow = value == "1",
                ("i", value) => checkpoint.rules.push(parse_rule(value)?),
                ("k", value) => kind = KindId::numbered(value.parse().ok()?),
                ("l", value) => {
                    let ms = value.parse().ok()?;
                    checkpoint.update_window(kind, |it| it.dropped_ms = Some(ms));
                }
                ("c", value) => {
                    let ms = value.parse().ok()?;
                    checkpoint.update_window(kind, |it| it.incomplete_ms = Some(ms));
                }
                ("p", value) => checkpoint.first_raw_partitions = Some(value.parse().ok()?),
                ("e", value) => checkpoint.epoch = Some(parse_epoch(value)?),
                ("m", value) => checkpoint.empty_until = Some(value.parse().ok()?),
                ("r", value) => checkpoint.raw = Some(value.to_owned()),
                ("d", value) => checkpoint.state = Some(value.to_owned()),
                ("b", value) => checkpoint.last_entry = Some(parse_entry(value)?),
                _ => {}
            }
            fields = rest;
        }
        Some(checkpoint)
    }

    /// The identity rule of a kind's window, if the checkpoint names it.
    pub fn rule_of(&self, kind: KindId) -> Option<Fingerprint> {
        self.rules.iter().find(|(of, _)| *of == kind).map(|(_, rule)| *rule)
    }

    /// Updates the entry of a kind's window, and adds it if it is missing.
    fn update_window(&mut self, kind: KindId, update: impl FnOnce(&mut WindowCheckpoint)) {
        if let Some(known) = self.windows.iter_mut().find(|it| it.kind == kind) {
            return update(known);
        }
        let mut new = WindowCheckpoint { kind, ..WindowCheckpoint::default() };
        update(&mut new);
        self.windows.push(new);
    }
}

/// The rule of the unnamed kind needs no number.
fn render_rules(rules: &[(KindId, Fingerprint)]) -> String {
    let mut text = String::new();
    for (kind, rule) in rules {
        text.push_str(";i=");
        if *kind != KindId::UNNAMED {
            text.extend([&kind.number().to_string(), ":"]);
        }
        text.push_str(&rule.to_string());
    }
    text
}

fn parse_rule(value: &str) -> Option<(KindId, Fingerprint)> {
    let (kind, rule) = value.split_once(':').unwrap_or(("0", value));
    Some((KindId::numbered(kind.parse().ok()?), rule.parse().ok()?))
}

fn parse_epoch(value: &str) -> Option<Epoch> {
    let (number, next) = value.split_once('@')?;
    Some(Epoch { number: number.parse().ok()?, next: next.parse().ok()? })
}

fn render_entry(last: &LastEntry) -> String {
    let EntryName { number, crc } = last.entry;
    let from = last.from.map(|from| format!("@{from}")).unwrap_or_default();
    format!(";b={number}:{crc:08x}{from}")
}

fn parse_entry(value: &str) -> Option<LastEntry> {
    let mut parts = value.split('@');
    let (number, crc) = parts.next()?.split_once(':')?;
    let number = number.parse().ok().filter(|number| *number <= EntryEnd::LAST_NUMBER)?;
    let entry = EntryName { number, crc: u32::from_str_radix(crc, 16).ok()? };
    let from = parts.next().map(str::parse).transpose().ok()?;
    Some(LastEntry { entry, from })
}

#[cfg(test)]
mod tests;
