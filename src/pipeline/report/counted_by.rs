//! The values with the most duplicates, by the sources of `insight.by`.
//!
//! Each source has two sketches of frequent items, so that memory is bounded: a count lies between two bounds, which are equal while a source has
//! few values.

use std::borrow::Cow;

use datasketches::frequencies::{ErrorType, FrequentItemsSketch, Row};

use crate::config::InsightSource;
use crate::dedupe::{Content, Hasher, IdentityRule, Schemas};
use crate::metrics::{SourceStatus, TopValues, ValueCount};
use crate::ports::Record;

/// Slots of a sketch, a power of two. Counts are exact up to 768 different values; beyond, the bounds of a count are at most 3.5 / 1024 of
/// all counted records apart.
const SLOTS: usize = 1024;
/// Bytes of a value that are kept and shown. One more is kept of a longer value.
const LONGEST: usize = 64;

/// By what duplicates are counted.
#[derive(Debug, Clone)]
pub struct CountedBy {
    name: String,
    /// `None`: the number of the partition.
    field: Option<IdentityRule>,
}

impl CountedBy {
    /// The values of this source.
    pub fn new(source: &InsightSource) -> Self {
        let field = match source {
            InsightSource::Partition => None,
            InsightSource::Field(source) => {
                Some(IdentityRule::new(vec![source.clone().into()], Hasher::Xxh3))
            }
        };
        Self { name: source.to_string(), field }
    }

    /// The value of a record; empty when it has none.
    fn value<'r, R: Record>(&self, record: &'r R, schemas: &Schemas) -> Cow<'r, [u8]> {
        match &self.field {
            None => Cow::Owned(record.coordinates().partition.to_string().into_bytes()),
            Some(field) => field.id(record, schemas).ok().flatten().unwrap_or_default(),
        }
    }
}

type Sketch = FrequentItemsSketch<Vec<u8>>;

/// The counts of one source.
#[derive(Debug)]
struct SourceCounts {
    /// Conflicts included.
    duplicates: Sketch,
    conflicts: Sketch,
}

impl Default for SourceCounts {
    fn default() -> Self {
        #[expect(clippy::expect_used, reason = "the number of slots is a constant")]
        let sketch = || Sketch::new(SLOTS).expect("a power of two is a valid number of slots");
        Self { duplicates: sketch(), conflicts: sketch() }
    }
}

/// The counts of all sources; empty before the first duplicate.
#[derive(Debug, Default)]
pub(super) struct CountsBySource(Vec<SourceCounts>);

impl CountsBySource {
    /// Counts a duplicate.
    pub fn add<R: Record>(&mut self, by: &[CountedBy], record: &R, schemas: &Schemas, content: Content) {
        self.0.resize_with(by.len(), SourceCounts::default);
        for (counts, by) in self.0.iter_mut().zip(by) {
            let value = by.value(record, schemas);
            let kept = value.get(..=LONGEST).unwrap_or(&value);
            counts.duplicates.update_ref(kept);
            if content == Content::Different {
                counts.conflicts.update_ref(kept);
            }
        }
    }

    /// Adds the counts of a committed transaction.
    pub fn merge(&mut self, committed: &Self) {
        self.0.resize_with(self.0.len().max(committed.0.len()), SourceCounts::default);
        for (counts, more) in self.0.iter_mut().zip(&committed.0) {
            counts.duplicates.merge(&more.duplicates);
            counts.conflicts.merge(&more.conflicts);
        }
    }

    /// The values with the highest counts.
    pub fn status(&self, by: &[CountedBy]) -> Vec<SourceStatus> {
        let of = |(counts, by): (&SourceCounts, &CountedBy)| SourceStatus {
            by: by.name.clone(),
            duplicates: top(&counts.duplicates),
            conflicts: top(&counts.conflicts),
        };
        self.0.iter().zip(by).map(of).collect()
    }
}

fn top(sketch: &Sketch) -> TopValues {
    let rows = sketch.frequent_items(ErrorType::NoFalseNegatives);
    let (listed, others) = rows.split_at(rows.len().min(TopValues::LISTED));
    let count = |row: &Row<Vec<u8>>| ValueCount {
        value: shown(row.item()),
        least: row.lower_bound(),
        most: row.upper_bound(),
    };
    TopValues {
        values: listed.iter().map(count).collect(),
        unlisted_most: others.first().map_or(sketch.maximum_error(), Row::upper_bound),
    }
}

/// A value as printable text of bounded length; `None` for that of records without one.
fn shown(value: &[u8]) -> Option<String> {
    let cut = value.get(..LONGEST).filter(|_| value.len() > LONGEST);
    let mut text = String::new();
    for chunk in cut.unwrap_or(value).utf8_chunks() {
        for sign in chunk.valid().chars() {
            match sign {
                '"' | '\'' => text.push(sign),
                _ => text.extend(sign.escape_debug()),
            }
        }
        text.extend(chunk.invalid().escape_ascii().map(char::from));
    }
    text.push_str(if cut.is_some() { "…" } else { "" });
    (!value.is_empty()).then_some(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dedupe::{Coordinates, Fields};

    /// A record whose key is its only content.
    struct Keyed(Vec<u8>);

    impl Fields for Keyed {
        fn key(&self) -> Option<&[u8]> {
            Some(&self.0)
        }

        fn value(&self) -> Option<&[u8]> {
            None
        }

        fn header(&self, _: &str) -> Option<&[u8]> {
            None
        }
    }

    impl Record for Keyed {
        fn coordinates(&self) -> Coordinates {
            Coordinates { partition: 7, offset: 0 }
        }

        fn timestamp_ms(&self) -> Option<i64> {
            None
        }

        fn size(&self) -> usize {
            0
        }

        fn has_header(&self, _: &str) -> bool {
            false
        }
    }

    fn by(sources: &[&str]) -> Vec<CountedBy> {
        sources.iter().map(|source| CountedBy::new(&source.parse().unwrap())).collect()
    }

    fn count(counts: &mut CountsBySource, by: &[CountedBy], key: &str, content: Content) {
        counts.add(by, &Keyed(key.as_bytes().to_vec()), &Schemas::default(), content);
    }

    #[test]
    fn each_source_counts_duplicates_and_conflicts_and_absent_values() {
        let by = by(&["key", "partition", "header:app"]);
        let mut all = CountsBySource::default();
        assert_eq!(all.status(&by), []);
        for transaction in 0..3 {
            let mut open = CountsBySource::default();
            count(&mut open, &by, "a", Content::Equal);
            count(&mut open, &by, "b", Content::NotCompared);
            count(&mut open, &by, "b", Content::Different);
            if transaction < 2 {
                all.merge(&open);
            }
        }
        let status = all.status(&by);
        let exactly = |value: Option<&str>, count| ValueCount {
            value: value.map(str::to_owned),
            least: count,
            most: count,
        };
        assert_eq!(
            status.iter().map(|it| it.by.as_str()).collect::<Vec<_>>(),
            ["key", "partition", "header:app"]
        );
        assert_eq!(status[0].duplicates.values, [exactly(Some("b"), 4), exactly(Some("a"), 2)]);
        assert_eq!(status[0].conflicts.values, [exactly(Some("b"), 2)]);
        assert_eq!(status[1].duplicates.values, [exactly(Some("7"), 6)]);
        assert_eq!(status[2].duplicates.values, [exactly(None, 6)]);
    }

    #[test]
    fn of_many_values_the_most_frequent_are_listed_with_true_bounds_in_bounded_memory() {
        let (by, mut all) = (by(&["key"]), CountsBySource::default());
        // 30 values with 100 to 3,000 copies among 100,000 with one, in transactions of some thousands.
        for part in 0..100 {
            let mut open = CountsBySource::default();
            for frequent in 1..=30 {
                for _ in 0..frequent {
                    count(&mut open, &by, &format!("often-{frequent}"), Content::Equal);
                }
            }
            for rare in 0..1_000 {
                count(&mut open, &by, &format!("once-{part}-{rare}"), Content::Equal);
            }
            all.merge(&open);
        }
        let sketch = &all.0[0].duplicates;
        assert!(sketch.num_active_items() <= SLOTS * 3 / 4, "{}", sketch.num_active_items());
        let total = sketch.total_weight();
        assert_eq!(total, 100 * (30 * 31 / 2 + 1_000));
        let top = &all.status(&by)[0].duplicates;
        assert_eq!(top.values.len(), TopValues::LISTED);
        for (at, listed) in top.values.iter().enumerate() {
            let frequent: u64 =
                listed.value.as_deref().unwrap().strip_prefix("often-").unwrap().parse().unwrap();
            assert!(listed.least <= frequent * 100 && frequent * 100 <= listed.most, "{listed:?}");
            assert!(listed.most - listed.least <= total * 7 / 2 / SLOTS as u64, "{listed:?} of {total}");
            assert!(at > 5 || frequent > 20, "{listed:?} is at place {at}");
        }
        assert!(top.unlisted_most >= 10 * 100, "the eleventh most frequent value is not listed");
    }

    #[test]
    fn a_value_is_printable_and_bounded() {
        for (value, text) in [
            (&b"a \"b\" 'c'"[..], "a \"b\" 'c'"),
            ("grün".as_bytes(), "grün"),
            (b"\x00\xff\n", "\\0\\xff\\n"),
            ("\u{202e}x".as_bytes(), "\\u{202e}x"),
            (b"<b>", "<b>"),
        ] {
            assert_eq!(shown(value).as_deref(), Some(text));
        }
        assert_eq!(shown(b""), None);
        let (by, mut counts) = (by(&["key"]), CountsBySource::default());
        for end in ["1", "2"] {
            count(&mut counts, &by, &("x".repeat(LONGEST + 1) + end), Content::Equal);
        }
        count(&mut counts, &by, &"x".repeat(LONGEST), Content::Equal);
        let values = &counts.status(&by)[0].duplicates.values;
        let texts: Vec<_> = values.iter().map(|it| (it.value.clone().unwrap(), it.most)).collect();
        assert_eq!(texts, [("x".repeat(LONGEST) + "…", 2), ("x".repeat(LONGEST), 1)]);
    }
}
