//! A part of an id: the first of its sources that has a value, and how the value is spelled.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;

use super::Fields;
use super::id_source::{IdSource, IdSourceError};
use super::number::normal_form;
use super::schema::{MissingSchema, Schemas};
use super::uuid::{hyphenated, uuid};

/// What stands between two sources of a part.
const OR: &str = " | ";

/// How a part is read. The order is that in which they are applied, and printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Modifier {
    /// A record without this part has an id if it has another part.
    Optional,
    /// Blanks (ASCII) around the value do not count.
    Trim,
    /// ASCII letters count as their lower case.
    Lower,
    /// A number (RFC 8259) counts as its decimal value: `2`, `2.0` and `20e-1` are equal.
    Number,
    /// A UUID counts as its 16 bytes, as it does where it is the whole id.
    Uuid,
}

impl Modifier {
    const ALL: [(&str, Self); 5] = [
        ("optional", Self::Optional),
        ("trim", Self::Trim),
        ("lower", Self::Lower),
        ("number", Self::Number),
        ("uuid", Self::Uuid),
    ];

    /// The word in brackets.
    pub fn as_str(self) -> &'static str {
        Self::ALL.iter().find(|(_, modifier)| *modifier == self).map_or("", |(word, _)| word)
    }
}

/// A part of an id.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct IdPart {
    /// At least one; the first with a value counts.
    sources: Vec<IdSource>,
    modifiers: BTreeSet<Modifier>,
}

/// What a record has for a part.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum PartValue<'r> {
    /// The bytes, not empty.
    Bytes(Cow<'r, [u8]>),
    /// Nothing: null, missing or empty.
    Absent,
    /// It cannot be read, because the registry does not have its schema.
    Unreadable,
}

impl From<IdSource> for IdPart {
    fn from(source: IdSource) -> Self {
        Self { sources: vec![source], modifiers: BTreeSet::new() }
    }
}

/// The text of a source, several with ` | ` between them, then modifiers in brackets, as in `header:id | json:/id (trim, lower)`. Or a JSON
/// array with one text for each source and one for the modifiers, for names that contain ` | ` or end in brackets.
impl FromStr for IdPart {
    type Err = IdSourceError;

    fn from_str(text: &str) -> Result<Self, IdSourceError> {
        if text.starts_with('[') {
            let texts: Vec<String> = serde_json::from_str(text).map_err(|_| IdSourceError::List)?;
            let (modifiers, sources): (Vec<&String>, Vec<&String>) =
                texts.iter().partition(|text| text.starts_with('('));
            let sources = sources.into_iter().map(|text| text.parse()).collect::<Result<_, _>>()?;
            let words = modifiers.into_iter().map(|text| modifiers_of(text.trim_matches(['(', ')'])));
            let words: Vec<BTreeSet<Modifier>> = words.collect::<Result<_, _>>()?;
            return Self::of(sources, words.into_iter().flatten().collect());
        }
        let (sources, modifiers) = match in_brackets(text) {
            Some((sources, words)) => (sources, modifiers_of(words)?),
            None => (text, BTreeSet::new()),
        };
        Self::of(alternatives(sources)?, modifiers)
    }
}

/// A source where a part has neither alternatives nor modifiers. Texts with them are refused, and not taken for a long name.
#[derive(Debug)]
pub struct LoneSource(pub IdSource);

impl FromStr for LoneSource {
    type Err = IdSourceError;

    fn from_str(text: &str) -> Result<Self, IdSourceError> {
        let is_more = |part: IdPart| part.sources.len() > 1 || !part.modifiers.is_empty();
        if text.parse().is_ok_and(is_more) {
            return Err(IdSourceError::Lone);
        }
        text.parse().map(Self)
    }
}

/// The inverse of parsing.
impl fmt::Display for IdPart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut texts: Vec<String> = self.sources.iter().map(IdSource::to_string).collect();
        let words: Vec<&str> = self.modifiers.iter().map(|modifier| modifier.as_str()).collect();
        let words = (!words.is_empty()).then(|| format!("({})", words.join(", ")));
        let sources = texts.join(OR);
        let is_plain = in_brackets(&sources).is_none()
            && alternatives(&sources).is_ok_and(|sources| sources == self.sources);
        if is_plain {
            f.write_str(&sources)?;
            return words.map_or(Ok(()), |words| write!(f, " {words}"));
        }
        texts.extend(words);
        f.write_str(&serde_json::to_string(&texts).unwrap_or_default())
    }
}

/// The text before brackets with words at the end, and the words.
fn in_brackets(text: &str) -> Option<(&str, &str)> {
    let (sources, words) = text.strip_suffix(')')?.rsplit_once(" (")?;
    let is_word = |c: char| c.is_ascii_lowercase() || c == ',' || c == ' ';
    (!words.is_empty() && words.chars().all(is_word)).then_some((sources, words))
}

fn modifiers_of(words: &str) -> Result<BTreeSet<Modifier>, IdSourceError> {
    let of = |word: &str| {
        let found = Modifier::ALL.iter().find(|(name, _)| *name == word.trim());
        found.map(|(_, modifier)| *modifier).ok_or_else(|| IdSourceError::Modifier(word.trim().to_owned()))
    };
    words.split(',').map(of).collect()
}

/// The sources of a text. A name may contain ` | `, unless a source follows.
fn alternatives(text: &str) -> Result<Vec<IdSource>, IdSourceError> {
    let mut texts: Vec<String> = Vec::new();
    for piece in text.split(OR) {
        match texts.last_mut().filter(|_| !is_source_form(piece)) {
            Some(last) => {
                last.push_str(OR);
                last.push_str(piece);
            }
            None => texts.push(piece.to_owned()),
        }
    }
    texts.iter().map(|text| text.parse()).collect()
}

/// Whether a text looks like a source, right or wrong: a mistake in one must not make it a part of a name.
fn is_source_form(text: &str) -> bool {
    let is_scheme = |(scheme, _): (&str, &str)| scheme.bytes().all(|byte| byte.is_ascii_lowercase());
    text.parse::<IdSource>().is_ok() || text.split_once(':').is_some_and(is_scheme)
}

impl IdPart {
    fn of(sources: Vec<IdSource>, modifiers: BTreeSet<Modifier>) -> Result<Self, IdSourceError> {
        if sources.is_empty() { Err(IdSourceError::List) } else { Ok(Self { sources, modifiers }) }
    }

    /// The sources, in the order in which they are asked.
    pub fn sources(&self) -> &[IdSource] {
        &self.sources
    }

    /// Whether it is the whole value, as it is.
    pub fn is_value(&self) -> bool {
        self.modifiers.is_empty() && self.sources == [IdSource::Value]
    }

    /// This part with another modifier; `None` if it has that.
    pub(super) fn with(&self, modifier: Modifier) -> Option<Self> {
        let mut modifiers = self.modifiers.clone();
        modifiers.insert(modifier).then(|| Self { modifiers, ..self.clone() })
    }

    /// Whether a record without this part can have an id.
    pub fn is_optional(&self) -> bool {
        self.modifiers.contains(&Modifier::Optional)
    }

    /// What a record has for this part. Fails when a schema that is not known is needed: a source that waits never gives way to the next one,
    /// so that the id does not depend on when a schema arrives.
    #[inline]
    pub(super) fn read<'r, F: Fields>(
        &self,
        record: &'r F,
        schemas: &Schemas,
    ) -> Result<PartValue<'r>, MissingSchema> {
        for source in &self.sources {
            if let Some(bytes) = source.bytes(record, schemas)? {
                let bytes = self.spelled(bytes);
                if !bytes.is_empty() {
                    return Ok(PartValue::Bytes(bytes));
                }
            } else if source.is_unregistered(record, schemas) {
                return Ok(PartValue::Unreadable);
            }
        }
        Ok(PartValue::Absent)
    }

    /// The value as it counts.
    #[inline]
    pub(super) fn spelled<'r>(&self, mut bytes: Cow<'r, [u8]>) -> Cow<'r, [u8]> {
        for modifier in &self.modifiers {
            bytes = modifier.applied(bytes);
        }
        bytes
    }
}

impl Modifier {
    fn applied(self, bytes: Cow<'_, [u8]>) -> Cow<'_, [u8]> {
        let changed = match self {
            Self::Optional => None,
            Self::Trim => Some(bytes.trim_ascii()).filter(|it| it.len() < bytes.len()).map(<[u8]>::to_vec),
            Self::Lower => bytes.iter().any(u8::is_ascii_uppercase).then(|| bytes.to_ascii_lowercase()),
            Self::Number => normal_form(&bytes),
            Self::Uuid => uuid(&bytes).map(|uuid| hyphenated(uuid).to_vec()),
        };
        changed.map_or(bytes, Cow::Owned)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dedupe::identity::tests::SampleRecord;

    fn part(text: &str) -> IdPart {
        text.parse().unwrap_or_else(|error| panic!("{text} {error}"))
    }

    #[test]
    fn parts_print_as_parsed() {
        for text in [
            "json:/id",
            "header:ce_id | json:/id",
            "header:ce_id | json:/id | key (optional, trim, lower)",
            "json:/id (number)",
            "header:a | b",
            "header:a | b | key",
            r#"["header:a | key"]"#,
            r#"["header:a (lower)","(lower)"]"#,
            "header:a (B)",
            "header:a|key",
        ] {
            assert_eq!(part(text).to_string(), text);
        }
        assert_eq!(part("header:a | b").sources().len(), 1);
        assert_eq!(part("header:a | b | key").sources().len(), 2);
        assert_eq!(part(r#"["header:a | key"]"#).sources(), [IdSource::Header("a | key".to_owned())]);
        assert_eq!(part(r#"["json:/id"]"#), part("json:/id"));
        assert_eq!(part("key ( lower,trim )").to_string(), "key (trim, lower)");
    }

    #[test]
    fn mistakes_in_a_source_or_a_modifier_are_errors() {
        for (text, expected) in [
            ("json:/id (lowr)", IdSourceError::Modifier("lowr".to_owned())),
            ("json:/id (lower,)", IdSourceError::Modifier(String::new())),
            ("json:/id | jsn:/id", IdSourceError::Unknown),
            ("header:a | header:", IdSourceError::HeaderName),
            ("json:/a,json:/b | key", IdSourceError::Several),
            ("[\"key\"", IdSourceError::List),
            ("[]", IdSourceError::List),
            ("[\"(lower)\"]", IdSourceError::List),
            ("[\"jsn:/id\"]", IdSourceError::Unknown),
        ] {
            assert_eq!(text.parse::<IdPart>(), Err(expected), "{text}");
        }
    }

    #[test]
    fn the_first_source_with_a_value_counts_as_it_is_spelled() {
        let record = |key: Option<&'static str>, value: &'static str| SampleRecord {
            key: key.map(str::as_bytes),
            value: Some(value.as_bytes()),
            ..SampleRecord::default()
        };
        let read = |text: &str, record: &SampleRecord| match part(text).read(record, &Schemas::default()) {
            Ok(PartValue::Bytes(bytes)) => Some(String::from_utf8(bytes.to_vec()).unwrap()),
            Ok(PartValue::Absent) => None,
            other => panic!("{text}: {other:?}"),
        };
        let both = record(Some("k"), r#"{"id":" A-1 ","n":2.50,"u":"67E5504410B1426F9247BB680E5FE0C8"}"#);
        for (text, expected) in [
            ("json:/id", Some(" A-1 ")),
            ("json:/none | json:/id (trim)", Some("A-1")),
            ("json:/id | key (lower)", Some(" a-1 ")),
            ("json:/none | json:/nor", None),
            ("json:/n (number)", Some("25e-1")),
            ("json:/u (uuid)", Some("67e55044-10b1-426f-9247-bb680e5fe0c8")),
            ("json:/id (number, uuid)", Some(" A-1 ")),
        ] {
            assert_eq!(read(text, &both).as_deref(), expected, "{text}");
        }
        let blank = record(Some("k"), r#"{"id":"  "}"#);
        assert_eq!(read("json:/id | key (trim)", &blank).as_deref(), Some("k"));
        assert_eq!(read("json:/id | key", &blank).as_deref(), Some("  "));
    }
}
