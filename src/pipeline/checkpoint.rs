//! The metadata of a committed offset and the key of a block: text that any Kafka tool can display.

use super::sizes::CHECKPOINT_BYTES;
use crate::dedupe::{Fingerprint, KindId, Layout, Lost, Offset, Remembered};
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
    pub(super) fn rule_of(&self, kind: KindId) -> Option<Fingerprint> {
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
    pub anew: Vec<KindId>,
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
        let mut anew = String::new();
        self.anew.iter().for_each(|kind| anew.extend(["new=", &kind.number().to_string(), ";"]));
        let raw = self.raw.as_ref().map(|id| format!("raw={id};")).unwrap_or_default();
        format!("v1;{clean}{kind}{rule}{anew}{raw}tx={}", self.writer)
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
                ("new", kind) => origin.anew.push(KindId::numbered(kind.parse().ok()?)),
                ("raw", id) => origin.raw = Some(id.to_owned()),
                _ => {}
            }
            fields = rest;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pipeline::sizes::CHECKPOINT_CORE;

    #[test]
    fn a_checkpoint_reads_back_as_written() {
        let full = Checkpoint {
            state_next: 77,
            stream_time_ms: -5,
            tail: Some(Tail { crc: 0xdead_beef, next: u64::MAX, from: Some(76) }),
            rules: vec![
                (KindId::UNNAMED, "00c0ffee".parse().unwrap()),
                (KindId::named("payments"), "deadbeef".parse().unwrap()),
            ],
            ahead_of_wall_ms: -7,
            forgets: 3,
            windows: vec![
                Remembered {
                    kind: KindId::UNNAMED,
                    lost: Lost { exact_ms: None, beyond_ms: Some(7) },
                    filters: Layout::parse("604800000,86400000,20412|1,2|640.14.6.-|320.12.0+1.0"),
                    incomplete_ms: Some(9),
                },
                Remembered {
                    kind: KindId::named("payments"),
                    filters: Layout::parse("700,100,7||640.14.0"),
                    ..Remembered::default()
                },
            ],
            began: Some(4),
            epoch: Some(Epoch { next: 9, number: 12 }),
            raw: Some("aXb+c/AAQ0Cw==".into()),
            state: Some("aXb-c_AAQ0Cw".into()),
            writer: "dedupd.events;odd=name.a.0".into(),
        };
        assert!(full.windows.iter().all(|it| it.filters.is_some()));
        assert_eq!(Checkpoint::parse(&full.render()), Some(full.clone()));
        let bare = Checkpoint {
            tail: None,
            rules: Vec::new(),
            ahead_of_wall_ms: 0,
            forgets: 0,
            windows: Vec::new(),
            began: None,
            epoch: None,
            raw: None,
            state: None,
            ..full
        };
        assert_eq!(Checkpoint::parse(&bare.render()), Some(bare));
    }

    #[test]
    fn foreign_metadata_is_no_checkpoint_and_unknown_fields_are_skipped() {
        for text in ["", "v2;s=1", "hello", "v1;s=x;t=1", "v1;b=12;tx=a", "\u{fffd}\u{fffd}"] {
            assert_eq!(Checkpoint::parse(text), None, "{text:?}");
        }
        let odd = Checkpoint::parse("v1;s=4;later=1;w=nonsense;tx=w").unwrap();
        assert_eq!((odd.state_next, odd.windows.iter().any(|it| it.filters.is_some())), (4, false));
    }

    /// A window with long details: `filters` is the number of filters in its layout.
    fn window(kind: u16, lost: Option<i64>, filters: usize) -> Remembered {
        let held = "18446744073709551615,".repeat(filters);
        Remembered {
            kind: KindId::numbered(kind),
            lost: Lost { exact_ms: lost, beyond_ms: lost },
            incomplete_ms: lost,
            filters: Layout::parse(&format!("2,1,9|{held}7|640.14.6")).filter(|_| filters > 0),
        }
    }

    fn core(writer: usize) -> Checkpoint {
        Checkpoint {
            state_next: u64::MAX,
            stream_time_ms: i64::MIN,
            rules: vec![(KindId::UNNAMED, "deadbeef".parse().unwrap())],
            ahead_of_wall_ms: i64::MIN,
            tail: Some(Tail { crc: u32::MAX, next: u64::MAX, from: Some(u64::MAX) }),
            forgets: u64::MAX,
            windows: Vec::new(),
            began: Some(u32::MAX),
            epoch: Some(Epoch { next: u64::MAX, number: i32::MAX }),
            raw: Some("i".repeat(24)),
            state: Some("i".repeat(24)),
            writer: "w".repeat(writer),
        }
    }

    #[test]
    fn the_fields_that_are_always_included_have_a_bound() {
        // The bound leaves room for one more field of 20 bytes.
        let longest = core(400).render_within(0);
        assert!(longest.len() + 20 <= CHECKPOINT_CORE + 400, "{}", longest.len());
        assert_eq!(Checkpoint::parse(&longest), Some(core(400)));
    }

    #[test]
    fn losses_take_precedence_over_layouts() {
        let windows = vec![window(0, None, 1), window(9, Some(7), 30), window(12, Some(8), 1)];
        let full = Checkpoint { windows, ..core(20) };
        let text = full.render_within(core(20).render().len() + 120);
        let read = Checkpoint::parse(&text).unwrap();
        let kept: Vec<_> = read
            .windows
            .iter()
            .map(|it| (it.kind.number(), it.lost.exact_ms, it.filters.is_some()))
            .collect();
        assert_eq!(kept, [(0, None, true), (9, Some(7), false), (12, Some(8), true)], "{text}");
    }

    proptest::proptest! {
        /// With any details, the text keeps its bound, and parsing returns what was written except what was left out.
        #[test]
        fn a_checkpoint_keeps_its_bound_and_its_core(
            writer in 0usize..400,
            details in proptest::collection::vec((proptest::option::of(1i64..), 0usize..40), 0..10),
            most in 0usize..4_000,
        ) {
            let kinds = (0u16..).map(|n| n * 3_000);
            let windows: Vec<_> =
                details.iter().zip(kinds).map(|((lost, filters), kind)| window(kind, *lost, *filters)).collect();
            let full = Checkpoint { windows, ..core(writer) };
            let text = full.render_within(most);
            let shortest = core(writer).render_within(0).len();
            proptest::prop_assert!(text.len() <= most.max(shortest), "{} of {most}", text.len());
            let read = Checkpoint::parse(&text).unwrap();
            for it in &read.windows {
                let whole = full.windows.iter().find(|whole| whole.kind == it.kind).unwrap();
                proptest::prop_assert!(it.lost == whole.lost || it.lost == Lost::default());
                proptest::prop_assert!(it.filters == whole.filters || it.filters.is_none());
            }
            proptest::prop_assert_eq!(Checkpoint { windows: Vec::new(), ..read }, core(writer));
            if full.render_within(usize::MAX).len() <= most {
                let all: Vec<_> =
                    full.windows.iter().filter(|it| it.lost != Lost::default() || it.filters.is_some()).cloned().collect();
                proptest::prop_assert_eq!(Checkpoint::parse(&text).unwrap().windows, all);
            }
        }
    }

    #[test]
    fn an_origin_reads_back_as_written() {
        for clean_end in [None, Some(0), Some(u64::MAX)] {
            let origin = Origin { clean_end, writer: "a;b=c".into(), ..Origin::default() };
            assert_eq!(Origin::parse(&origin.render()), Some(origin.clone()));
            let (kind, raw) = (Some("payments".into()), Some("aXb+c/AAQ0Cw==".into()));
            let (rule, anew) = ("00c0ffee".parse().ok(), vec![KindId::UNNAMED, KindId::named("payments")]);
            let of_topic = Origin { kind, rule, anew, raw, ..origin };
            assert_eq!(Origin::parse(&of_topic.render()), Some(of_topic));
        }
        assert_eq!(Origin::parse("v1;clean=;tx=a"), None);
        assert_eq!(Origin::parse("else"), None);
    }
}
