//! In what a dropped record differs from the one that clean holds. Both are read once more.

use std::fmt;
use std::ops::ControlFlow;

use serde_json::{Value, json};

use super::digest::{Parts, VALUE};
use super::dropped::UnequalPair;
use super::group::Audit;
use super::reader::{Span, SpanOf};
use super::report::Report;
use super::{Offset, PartitionId};

/// How many differences of a pair are reported.
const MOST: usize = 5;
/// The longest text of a value, in characters.
const LONGEST: usize = 60;
/// Bytes of a value that are shown where it begins to differ.
const SHOWN_BYTES: usize = 16;

/// A dropped record that differs from the one that clean holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnequalRecord {
    /// Both records.
    pub pair: UnequalPair,
    /// The first differences, or why the records cannot be read again.
    pub differences: Result<Vec<Difference>, String>,
}

/// A difference of two records. Texts have a limited length, without characters that are not printable.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Difference {
    /// The place: a JSON pointer, a source, or the offset of a byte.
    pub at: String,
    /// What the dropped record has there.
    pub dropped: String,
    /// What the other one has there.
    pub owner: String,
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {} instead of {}", self.at, self.dropped, self.owner)
    }
}

impl Audit<'_> {
    /// Finds the first differences.
    pub fn explain(&self, pair: UnequalPair) -> UnequalRecord {
        let read = |number, offset| self.parts_at(number, offset);
        let differences = read(pair.partition, pair.offset)
            .and_then(|dropped| Ok(differences(&dropped, &read(pair.owner_partition, pair.owner_offset)?)));
        UnequalRecord { pair, differences }
    }

    /// What is compared of a raw record. The error is why it cannot be read.
    fn parts_at(&self, number: PartitionId, offset: Offset) -> Result<Parts, String> {
        let mut parts = None;
        for topic in &self.logs.raw {
            let spans: SpanOf = topic.own([(number, Span { low: offset, end: offset + 1 })]);
            let read = topic.reader.read(spans, &mut |arrived| {
                if arrived.offset == offset {
                    parts = Some(self.compare.parts(arrived.fields));
                }
                Ok(ControlFlow::Break(()))
            });
            read.map_err(|error| error.to_string())?;
        }
        parts.unwrap_or_else(|| Err("one of them is not in raw any more".to_owned()))
    }
}

impl Report {
    pub(super) fn unequal_json(&self, UnequalRecord { pair, differences }: &UnequalRecord) -> Value {
        let at = |Difference { at, dropped, owner }| json!({ "at": at, "dropped": dropped, "owner": owner });
        let place = |number, offset| match self.log(number) {
            Some((topic, partition)) => {
                json!({ "raw_topic": topic, "partition": partition, "raw_offset": offset })
            }
            None => json!({ "partition": number, "raw_offset": offset }),
        };
        json!({
            "dropped": place(pair.partition, pair.offset),
            "owner": place(pair.owner_partition, pair.owner_offset),
            "differences": differences.iter().flatten().cloned().map(at).collect::<Vec<_>>(),
            "unread": differences.as_ref().err(),
        })
    }

    pub(super) fn unequal_text(&self, UnequalRecord { pair, differences }: &UnequalRecord) -> String {
        let place = |number, offset| match self.log(number) {
            Some((topic, partition)) => format!("raw record {topic}/{partition}@{offset}"),
            None => format!("partition {number}, raw offset {offset}"),
        };
        let what = match differences {
            Ok(found) => found.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "),
            Err(why) => format!("they cannot be read again: {why}"),
        };
        let [dropped, owner] =
            [place(pair.partition, pair.offset), place(pair.owner_partition, pair.owner_offset)];
        format!("not equal: {dropped}, dropped for {owner}: {what}")
    }
}

/// The first differences of what is compared.
fn differences(dropped: &Parts, owner: &Parts) -> Vec<Difference> {
    let mut found = Found::default();
    for ((source, dropped), (_, owner)) in dropped.iter().zip(owner) {
        if dropped != owner {
            found.of_part(source, dropped.as_deref(), owner.as_deref());
        }
    }
    found.0
}

#[derive(Debug, Default)]
struct Found(Vec<Difference>);

impl Found {
    fn add(&mut self, at: &str, dropped: String, owner: String) {
        if self.0.len() < MOST {
            self.0.push(Difference { at: shown(at), dropped, owner });
        }
    }

    fn of_part(&mut self, source: &str, dropped: Option<&[u8]>, owner: Option<&[u8]>) {
        if source != VALUE {
            return self.of_texts(source, dropped, owner);
        }
        let [one, other] = [dropped, owner].map(|bytes| serde_json::from_slice(bytes?).ok());
        match (one, other) {
            // Documents may differ in what the decoder does not keep, such as spaces and the digits of long numbers.
            (Some(one), Some(other)) if one != other => {
                self.of_documents(&mut String::new(), Some(&one), Some(&other));
            }
            _ => self.of_bytes(source, dropped, owner),
        }
    }

    fn of_bytes(&mut self, at: &str, dropped: Option<&[u8]>, owner: Option<&[u8]>) {
        let [one, other] = [dropped, owner].map(Option::unwrap_or_default);
        let same = one.iter().zip(other).take_while(|(one, other)| one == other).count();
        let rest = |bytes: &[u8]| {
            let rest = bytes.get(same..).unwrap_or_default();
            let first = rest.get(..SHOWN_BYTES).unwrap_or(rest).escape_ascii();
            format!("'{first}' ({} bytes in total)", bytes.len())
        };
        let text = |bytes: Option<&[u8]>| bytes.map_or_else(|| "null".to_owned(), rest);
        self.add(&format!("{at} from byte {same} on"), text(dropped), text(owner));
    }

    fn of_texts(&mut self, at: &str, dropped: Option<&[u8]>, owner: Option<&[u8]>) {
        let text = |bytes| shown(&String::from_utf8_lossy(bytes));
        let [one, other] = [dropped, owner].map(|bytes| bytes.map_or_else(|| "none".to_owned(), text));
        if one == other { self.of_bytes(at, dropped, owner) } else { self.add(at, one, other) }
    }

    /// Compares what both documents have at this pointer.
    fn of_documents(&mut self, at: &mut String, dropped: Option<&Value>, owner: Option<&Value>) {
        if dropped == owner || self.0.len() == MOST {
            return;
        }
        let Some(steps) = steps(dropped, owner) else {
            let [one, other] = [dropped, owner].map(|value| value.map(ToString::to_string));
            let at = if at.is_empty() { VALUE } else { at };
            return self.of_texts(
                at,
                one.as_ref().map(String::as_bytes),
                other.as_ref().map(String::as_bytes),
            );
        };
        let length = at.len();
        for step in steps {
            at.push('/');
            at.push_str(&step.replace('~', "~0").replace('/', "~1"));
            let [one, other] = [dropped, owner].map(|parent| member(parent?, &step));
            self.of_documents(at, one, other);
            at.truncate(length);
        }
    }
}

/// The steps to the members of two objects or two arrays.
fn steps(dropped: Option<&Value>, owner: Option<&Value>) -> Option<Vec<String>> {
    match (dropped?, owner?) {
        (Value::Object(one), Value::Object(other)) => {
            let added = other.keys().filter(|name| !one.contains_key(*name));
            Some(one.keys().chain(added).cloned().collect())
        }
        (Value::Array(one), Value::Array(other)) => {
            Some((0..one.len().max(other.len())).map(|index| index.to_string()).collect())
        }
        _ => None,
    }
}

fn member<'a>(parent: &'a Value, step: &str) -> Option<&'a Value> {
    match parent {
        Value::Array(elements) => elements.get(step.parse::<usize>().ok()?),
        object => object.get(step),
    }
}

/// The start of a text, with characters that are not printable escaped.
fn shown(text: &str) -> String {
    let mut shown = String::new();
    for (number, character) in text.chars().enumerate() {
        match character {
            _ if number == LONGEST => {
                shown.push('…');
                break;
            }
            '"' | '\'' | '\\' => shown.push(character),
            other => shown.extend(other.escape_debug()),
        }
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(source: &str, dropped: Option<&str>, owner: Option<&str>) -> Vec<String> {
        let parts = |part: Option<&str>| vec![(source.to_owned(), part.map(|part| part.as_bytes().to_vec()))];
        differences(&parts(dropped), &parts(owner)).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn documents_are_compared_by_their_members() {
        let of = |dropped, owner| found("value", Some(dropped), Some(owner));
        assert_eq!(
            of(r#"{"a":1,"b":{"c/d":[1,2],"e":"x"}}"#, r#"{"b":{"c/d":[1,3,4],"e":"x"},"f":null}"#),
            [
                "/a: 1 instead of none",
                "/b/c~1d/1: 2 instead of 3",
                "/b/c~1d/2: none instead of 4",
                "/f: none instead of null"
            ]
        );
        assert_eq!(of(r#"{"a":{"b":1}}"#, r#"{"a":[1]}"#), [r#"/a: {"b":1} instead of [1]"#]);
        assert_eq!(of("[0,1,2,3,4,5,6,7]", "[1,2,3,4,5,6,7,8]").len(), MOST);
        assert!(of(r#"{"a":1}"#, r#"{"a":1}"#).is_empty());
        assert_eq!(
            of(r#"{"a":1}"#, r#"{"a": 1}"#),
            ["value from byte 5 on: '1}' (7 bytes in total) instead of ' 1}' (8 bytes in total)"]
        );
    }

    #[test]
    fn other_values_are_compared_by_their_bytes_and_null_differs_from_empty() {
        let differing = found("value", Some("abcd"), Some("abX"));
        assert_eq!(
            differing,
            ["value from byte 2 on: 'cd' (4 bytes in total) instead of 'X' (3 bytes in total)"]
        );
        let null = found("value", None, Some(""));
        assert_eq!(null, ["value from byte 0 on: null instead of '' (0 bytes in total)"]);
        assert!(found("value", None, None).is_empty());
    }

    #[test]
    fn texts_are_short_and_printable() {
        assert_eq!(
            found("header:h", Some("a\u{202e}\u{1b}[2J"), Some("é\n")),
            [r"header:h: a\u{202e}\u{1b}[2J instead of é\n"]
        );
        let long = |end: &str| "x".repeat(1_000) + end;
        let cut = found("key", Some(&long("a")), Some("b"));
        assert_eq!(cut, [format!("key: {}… instead of b", "x".repeat(LONGEST))]);
        let same = found("key", Some(&long("a")), Some(&long("bc")));
        assert_eq!(
            same,
            ["key from byte 1000 on: 'a' (1001 bytes in total) instead of 'bc' (1002 bytes in total)"]
        );
    }
}
