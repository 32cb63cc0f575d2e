//! The metadata of a committed offset and the key of a block: text that any Kafka tool can display.

use crate::dedupe::{Fingerprint, KindId, Layout, Lost, Offset, Remembered};
use crate::pipeline::sizes::CHECKPOINT_BYTES;
use crate::ports::Epoch;

/// The metadata of a committed offset: `v1;s=…;t=…;b=…@…@…;f=…;l=…;c=…;w=…;k=…;l=…;c=…;w=…;o=…;i=…;i=…:…;p=…;e=…@…;r=…;d=…;tx=…`.
///
/// Other programs may commit to the group, so the metadata can be any text. Text that does not parse counts as no
/// checkpoint, which costs a restore and never correctness.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Checkpoint {
    /// State topic offset from which a restore finds everything newer than this commit.
    pub state_next: Offset,
    /// Stream time at the commit, epoch milliseconds.
    pub stream_time_ms: i64,
    /// The identity rule of each window, as far as it is known.
    pub rules: Vec<(KindId, Fingerprint)>,
    /// How far the partition's clock was ahead of the wall clock, in milliseconds; 0 when they agreed.
    pub ahead_of_wall_ms: i64,
    /// The last block committed for the partition.
    pub tail: Option<Tail>,
    /// Number of the partition's last forget record: how many times ids were forgotten.
    pub forgets: u64,
    /// What each window has lost and how its filters are laid out, before the owners of this commit.
    pub windows: Vec<Remembered>,
    /// How many partitions the raw topic had when the group began; partitions with higher numbers were added later.
    pub began: Option<u32>,
    /// The leader epoch of the last record before the offset, with that offset again: other programs may move the offset.
    pub epoch: Option<Epoch>,
    /// Topic id of the raw topic that the offset belongs to, if known.
    pub raw: Option<String>,
    /// Topic id of the state topic that holds the blocks, if known.
    pub state: Option<String>,
    /// Transactional id of the writer, which is fenced when its transaction hangs.
    pub writer: String,
}

/// Identifies one block, so that a local block can be recognised as the committed one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tail {
    /// CRC32C of the block, stored at its end.
    pub crc: u32,
    /// One past the last raw offset that the block covers.
    pub next: Offset,
    /// A state offset at or before the block, if known. The block is found from there on, or its transaction was undone.
    pub from: Option<Offset>,
}

impl Tail {
    /// Whether both name the same block.
    #[must_use]
    pub fn names_same(&self, other: &Self) -> bool {
        (self.crc, self.next) == (other.crc, other.next)
    }
}

impl Checkpoint {
    /// The text form for a commit of one partition.
    #[must_use]
    pub fn render(&self) -> String {
        self.render_within(CHECKPOINT_BYTES)
    }

    /// The text form in at most `most` bytes. Details of the windows are left out where they do not fit: first the layouts of
    /// filters (restored filters then hold the same ids in other sizes), then what limits removed from windows. The
    /// other fields, below 448 bytes plus the writer's name, are always included.
    #[must_use]
    pub fn render_within(&self, most: usize) -> String {
        let core = self.render_with("");
        let windows = render_windows(&self.windows, most.saturating_sub(core.len()));
        if windows.is_empty() { core } else { self.render_with(&windows) }
    }

    fn render_with(&self, windows: &str) -> String {
        let tail = self.tail.map(|tail| render_tail(&tail)).unwrap_or_default();
        let forgets = if self.forgets > 0 { format!(";f={}", self.forgets) } else { String::new() };
        let ahead =
            if self.ahead_of_wall_ms == 0 { String::new() } else { format!(";o={}", self.ahead_of_wall_ms) };
        let rules = render_rules(&self.rules);
        let began = self.began.map(|partitions| format!(";p={partitions}")).unwrap_or_default();
        let id = |key, id: &Option<String>| id.as_ref().map(|id| format!(";{key}={id}")).unwrap_or_default();
        let epoch = self.epoch.map(|it| format!(";e={}@{}", it.number, it.next)).unwrap_or_default();
        let (raw, state) = (id("r", &self.raw), id("d", &self.state));
        format!(
            "v1;s={};t={}{tail}{forgets}{windows}{ahead}{rules}{began}{epoch}{raw}{state};tx={}",
            self.state_next, self.stream_time_ms, self.writer
        )
    }

    /// Parses the text form; `None` when dedupd did not write it, or a newer version did.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let mut fields = text.strip_prefix("v1;")?;
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
                ("i", value) => checkpoint.rules.push(parse_rule(value)?),
                ("f", value) => checkpoint.forgets = value.parse().ok()?,
                ("k", value) => kind = KindId::numbered(value.parse().ok()?),
                ("l", value) => {
                    let lost = parse_lost(value)?;
                    checkpoint.update_window(kind, |it| it.lost = lost);
                }
                ("c", value) => {
                    let ms = value.parse().ok()?;
                    checkpoint.update_window(kind, |it| it.incomplete_ms = Some(ms));
                }
                ("w", value) => checkpoint.update_window(kind, |it| it.filters = Layout::parse(value)),
                ("p", value) => checkpoint.began = Some(value.parse().ok()?),
                ("e", value) => checkpoint.epoch = Some(parse_epoch(value)?),
                ("r", value) => checkpoint.raw = Some(value.to_owned()),
                ("d", value) => checkpoint.state = Some(value.to_owned()),
                ("b", value) => checkpoint.tail = Some(parse_tail(value)?),
                _ => {}
            }
            fields = rest;
        }
        Some(checkpoint)
    }

    /// The identity rule of a kind's window, if the checkpoint names it.
    pub(crate) fn rule_of(&self, kind: KindId) -> Option<Fingerprint> {
        self.rules.iter().find(|(of, _)| *of == kind).map(|(_, rule)| *rule)
    }

    /// Updates the entry of a kind's window, and adds it if it is missing.
    fn update_window(&mut self, kind: KindId, update: impl FnOnce(&mut Remembered)) {
        if let Some(known) = self.windows.iter_mut().find(|it| it.kind == kind) {
            return update(known);
        }
        let mut new = Remembered { kind, ..Remembered::default() };
        update(&mut new);
        self.windows.push(new);
    }
}

/// The details of the windows, kind by kind, in at most `left` bytes. Losses take precedence over layouts, because a shorter
/// window is reported to operators.
fn render_windows(windows: &[Remembered], mut left: usize) -> String {
    let mut fits = |text: String| {
        let fits = text.len() <= left;
        left -= if fits { text.len() } else { 0 };
        if fits { text } else { String::new() }
    };
    let name = |it: &Remembered| match it.kind {
        // The unnamed kind comes first, so it needs no number.
        KindId::UNNAMED => String::new(),
        kind => format!(";k={}", kind.number()),
    };
    let mut parts: Vec<String> = windows
        .iter()
        .map(render_lost)
        .zip(windows)
        .map(|(lost, it)| if lost.is_empty() { lost } else { fits(name(it) + &lost) })
        .collect();
    for (part, it) in parts.iter_mut().zip(windows) {
        let Some(layout) = &it.filters else { continue };
        let named = if part.is_empty() { name(it) } else { String::new() };
        part.push_str(&fits(format!("{named};w={layout}")));
    }
    parts.concat()
}

fn render_lost(it: &Remembered) -> String {
    let Lost { exact_ms, beyond_ms } = it.lost;
    let incomplete = it.incomplete_ms.map(|ms| format!(";c={ms}")).unwrap_or_default();
    if it.lost == Lost::default() {
        return incomplete;
    }
    format!(";l={},{}{incomplete}", exact_ms.unwrap_or(0), beyond_ms.unwrap_or(0))
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

fn parse_lost(value: &str) -> Option<Lost> {
    let (exact, beyond) = value.split_once(',')?;
    let ms = |text: &str| text.parse::<i64>().ok().map(|ms| (ms != 0).then_some(ms));
    Some(Lost { exact_ms: ms(exact)?, beyond_ms: ms(beyond)? })
}

fn parse_epoch(value: &str) -> Option<Epoch> {
    let (number, next) = value.split_once('@')?;
    Some(Epoch { number: number.parse().ok()?, next: next.parse().ok()? })
}

fn render_tail(tail: &Tail) -> String {
    let from = tail.from.map(|from| format!("@{from}")).unwrap_or_default();
    format!(";b={:08x}@{}{from}", tail.crc, tail.next)
}

fn parse_tail(value: &str) -> Option<Tail> {
    let mut parts = value.split('@');
    let crc = u32::from_str_radix(parts.next()?, 16).ok()?;
    let next = parts.next()?.parse().ok()?;
    let from = parts.next().map(str::parse).transpose().ok()?;
    Some(Tail { crc, next, from })
}

/// The key of a record in the state topic: `v1;clean=…;kind=…;id=…;new=…;raw=…;tx=…`.
///
/// When a transaction hangs after a broker crash, the key shows its writer and the clean end offset of the transaction. When
/// the raw topic is recreated, the broker deletes the group's offsets. Then only the key shows that the state belongs to the
/// old topic.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Origin {
    /// One past the last clean offset written in the same transaction; `None` when it wrote no clean record.
    pub clean_end: Option<Offset>,
    /// The name of the kind that the block belongs to; `None` for the unnamed kind.
    pub kind: Option<String>,
    /// The rule by which the identities in the record were made, if known.
    pub rule: Option<Fingerprint>,
    /// Kinds whose windows are reset with the transaction: the records before it were made by another rule.
    pub reset_kinds: Vec<KindId>,
    /// Topic id of the raw topic that the record belongs to, if known.
    pub raw: Option<String>,
    /// Transactional id of the writer.
    pub writer: String,
}

impl Origin {
    /// The text form.
    #[must_use]
    pub fn render(&self) -> String {
        let clean = self.clean_end.map(|end| format!("clean={end};")).unwrap_or_default();
        let kind = self.kind.as_ref().map(|kind| format!("kind={kind};")).unwrap_or_default();
        let rule = self.rule.map(|rule| format!("id={rule};")).unwrap_or_default();
        let mut reset_kinds = String::new();
        self.reset_kinds
            .iter()
            .for_each(|kind| reset_kinds.extend(["new=", &kind.number().to_string(), ";"]));
        let raw = self.raw.as_ref().map(|id| format!("raw={id};")).unwrap_or_default();
        format!("v1;{clean}{kind}{rule}{reset_kinds}{raw}tx={}", self.writer)
    }

    /// Parses the text form; `None` when dedupd did not write it.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let mut fields = text.strip_prefix("v1;")?;
        let mut origin = Self::default();
        // The writer comes last and may itself contain semicolons.
        loop {
            if let Some(writer) = fields.strip_prefix("tx=") {
                return Some(Self { writer: writer.to_owned(), ..origin });
            }
            let (field, rest) = fields.split_once(';')?;
            match field.split_once('=')? {
                ("clean", end) => origin.clean_end = Some(end.parse().ok()?),
                ("kind", name) => origin.kind = Some(name.to_owned()),
                ("id", rule) => origin.rule = Some(rule.parse().ok()?),
                ("new", kind) => origin.reset_kinds.push(KindId::numbered(kind.parse().ok()?)),
                ("raw", id) => origin.raw = Some(id.to_owned()),
                _ => {}
            }
            fields = rest;
        }
    }
}

#[cfg(test)]
mod tests;
