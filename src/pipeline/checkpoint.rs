//! What is written beside a committed offset and beside a block, as text that any Kafka tool shows.

use crate::dedupe::{KindId, Layout, Lost, Offset, Remembered};
use crate::ports::Epoch;

/// Layouts of more filters than that are left out: the broker limits metadata to 4,096 bytes.
const LONGEST_LAYOUT: usize = 2_048;

/// The metadata of a committed offset: `v1;s=…;t=…;b=…@…;f=…;l=…;w=…;k=…;l=…;w=…;p=…;e=…@…;r=…;d=…;tx=…`.
///
/// Other programs may commit to the group, so anything may stand there; what does not parse counts
/// as no checkpoint, which costs a restore and never correctness.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Checkpoint {
    /// State topic offset from which a restore finds everything newer than this commit.
    pub state_next: Offset,
    /// Stream time at the commit, ms since the epoch.
    pub stream_time_ms: i64,
    /// The last block committed for the partition.
    pub tail: Option<Tail>,
    /// How many times identities were taken back in the partition.
    pub forgets: u64,
    /// What there is to tell of the windows, as they were before the owners of this commit.
    pub windows: Vec<Remembered>,
    /// How many partitions the raw topic had when the group began; those beyond have come by growth.
    pub began: Option<u32>,
    /// The leader epoch of the last record before the offset, and that offset again: others may move it.
    pub epoch: Option<Epoch>,
    /// Kafka's id of the raw topic that the offset belongs to, where known.
    pub raw: Option<String>,
    /// Kafka's id of the state topic that holds the blocks, where known.
    pub state: Option<String>,
    /// Transactional id of the writer: whom to fence when its transaction hangs.
    pub writer: String,
}

/// Names one block so that a local copy can be recognised as the committed one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tail {
    /// CRC32C of the block, the one it ends with.
    pub crc: u32,
    /// One past the last raw offset that the block covers.
    pub next: Offset,
}

impl Checkpoint {
    /// The text form; below 3,300 bytes for nine kinds and any legal transactional id of up to 400 bytes (the broker takes
    /// 4,096, unless told otherwise).
    #[must_use]
    pub fn render(&self) -> String {
        let tail = self.tail.map(|t| format!(";b={:08x}@{}", t.crc, t.next)).unwrap_or_default();
        let forgets = if self.forgets > 0 { format!(";f={}", self.forgets) } else { String::new() };
        let windows = render_windows(&self.windows);
        let began = self.began.map(|partitions| format!(";p={partitions}")).unwrap_or_default();
        let id = |key, id: &Option<String>| id.as_ref().map(|id| format!(";{key}={id}")).unwrap_or_default();
        let epoch = self.epoch.map(|it| format!(";e={}@{}", it.number, it.next)).unwrap_or_default();
        let (raw, state) = (id("r", &self.raw), id("d", &self.state));
        format!(
            "v1;s={};t={}{tail}{forgets}{windows}{began}{epoch}{raw}{state};tx={}",
            self.state_next, self.stream_time_ms, self.writer
        )
    }

    /// Reads the text form; `None` when it is not ours or of a newer version.
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
                ("f", value) => checkpoint.forgets = value.parse().ok()?,
                ("k", value) => kind = KindId::numbered(value.parse().ok()?),
                ("l", value) => {
                    let lost = parse_lost(value)?;
                    checkpoint.tell(kind, |it| it.lost = lost);
                }
                ("w", value) => checkpoint.tell(kind, |it| it.filters = Layout::parse(value)),
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

    /// Changes what is told of a kind's window.
    fn tell(&mut self, kind: KindId, tell: impl FnOnce(&mut Remembered)) {
        if let Some(known) = self.windows.iter_mut().find(|it| it.kind == kind) {
            return tell(known);
        }
        let mut new = Remembered { kind, ..Remembered::default() };
        tell(&mut new);
        self.windows.push(new);
    }
}

/// What there is to tell, kind by kind; the unnamed one needs no number.
fn render_windows(windows: &[Remembered]) -> String {
    let (mut text, mut left) = (String::new(), LONGEST_LAYOUT);
    for it in windows {
        if it.kind != KindId::UNNAMED {
            text.extend([";k=", &it.kind.number().to_string()]);
        }
        let Lost { exact_ms, beyond_ms } = it.lost;
        if it.lost != Lost::default() {
            let [exact, beyond] = [exact_ms, beyond_ms].map(|ms| ms.unwrap_or(0).to_string());
            text.extend([";l=", &exact, ",", &beyond]);
        }
        let layout = it.filters.as_ref().map(Layout::to_string).filter(|layout| layout.len() <= left);
        if let Some(layout) = layout {
            left -= layout.len();
            text.extend([";w=", &layout]);
        }
    }
    text
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

fn parse_tail(value: &str) -> Option<Tail> {
    let (crc, next) = value.split_once('@')?;
    Some(Tail { crc: u32::from_str_radix(crc, 16).ok()?, next: next.parse().ok()? })
}

/// The key of a record in the state topic: `v1;clean=…;kind=…;raw=…;tx=…`. With a transaction that hangs after a
/// broker crash it tells who wrote it and how far the clean partition had come with it. After the raw topic
/// was created anew, which takes the group's offsets with it, it alone tells that the state is of another.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Origin {
    /// One past the last clean offset written in the same transaction, when there was one.
    pub clean_end: Option<Offset>,
    /// The name of the kind that the block belongs to, if it has one.
    pub kind: Option<String>,
    /// Kafka's id of the raw topic that the record is about, where known.
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
        let raw = self.raw.as_ref().map(|id| format!("raw={id};")).unwrap_or_default();
        format!("v1;{clean}{kind}{raw}tx={}", self.writer)
    }

    /// Reads the text form; `None` when it is not ours.
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

    #[test]
    fn a_checkpoint_reads_back_as_written() {
        let full = Checkpoint {
            state_next: 77,
            stream_time_ms: -5,
            tail: Some(Tail { crc: 0xdead_beef, next: u64::MAX }),
            forgets: 3,
            windows: vec![
                Remembered {
                    kind: KindId::UNNAMED,
                    lost: Lost { exact_ms: None, beyond_ms: Some(7) },
                    filters: Layout::parse("604800000,86400000,20412|1,2|640.14.6.-|320.12.0+1.0"),
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

    fn longest_of(kind: u16) -> Remembered {
        Remembered {
            kind: KindId::numbered(32_000 + kind),
            lost: Lost { exact_ms: Some(i64::MIN), beyond_ms: Some(i64::MIN) },
            filters: Layout::parse(&format!("2,1,9|{}7|640.14.6", "18446744073709551615,".repeat(30))),
        }
    }

    #[test]
    fn the_longest_checkpoint_stays_below_the_limit() {
        let longest = Checkpoint {
            state_next: u64::MAX,
            stream_time_ms: i64::MIN,
            tail: Some(Tail { crc: u32::MAX, next: u64::MAX }),
            forgets: u64::MAX,
            windows: (0..9).map(longest_of).collect(),
            began: Some(u32::MAX),
            epoch: Some(Epoch { next: u64::MAX, number: i32::MAX }),
            raw: Some("i".repeat(24)),
            state: Some("i".repeat(24)),
            writer: "w".repeat(400),
        };
        assert!((2_500..3_300).contains(&longest.render().len()), "{}", longest.render().len());
    }

    #[test]
    fn an_origin_reads_back_as_written() {
        for clean_end in [None, Some(0), Some(u64::MAX)] {
            let origin = Origin { clean_end, kind: None, raw: None, writer: "a;b=c".into() };
            assert_eq!(Origin::parse(&origin.render()), Some(origin.clone()));
            let (kind, raw) = (Some("payments".into()), Some("aXb+c/AAQ0Cw==".into()));
            let of_topic = Origin { kind, raw, ..origin };
            assert_eq!(Origin::parse(&of_topic.render()), Some(of_topic));
        }
        assert_eq!(Origin::parse("v1;clean=;tx=a"), None);
        assert_eq!(Origin::parse("else"), None);
    }
}
