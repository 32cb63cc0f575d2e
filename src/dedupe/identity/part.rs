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
/// array with one text for each source and one for the modifiers: only there a name may have signs of alternatives and modifiers.
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
        let (sources, words) =
            in_brackets(text).map_or((text, None), |(sources, words)| (sources, Some(words)));
        let modifiers = words.map(modifiers_of).transpose()?.unwrap_or_default();
        let pieces: Vec<&str> = sources.split(OR).collect();
        if let Some(what) = pieces.iter().find_map(|piece| misplaced(piece, pieces.len() > 1)) {
            return Err(IdSourceError::Misplaced { what, names: as_names(sources, &pieces) });
        }
        Self::of(pieces.into_iter().map(str::parse).collect::<Result<_, _>>()?, modifiers)
    }
}

/// A source where a part has neither alternatives nor modifiers. Texts with them are refused, and not taken for a long name.
#[derive(Debug, PartialEq, Eq)]
pub struct LoneSource(pub IdSource);

impl FromStr for LoneSource {
    type Err = IdSourceError;

    fn from_str(text: &str) -> Result<Self, IdSourceError> {
        match text.parse() {
            Ok(IdPart { mut sources, modifiers }) if sources.len() == 1 && modifiers.is_empty() => {
                sources.pop().map(Self).ok_or(IdSourceError::List)
            }
            Ok(_) | Err(IdSourceError::Misplaced { .. } | IdSourceError::Modifier(_)) => {
                Err(IdSourceError::Lone { names: as_names(text, &[]) })
            }
            Err(error) => Err(error),
        }
    }
}

/// The inverse of parsing.
impl fmt::Display for IdPart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut texts: Vec<String> = self.sources.iter().map(IdSource::to_string).collect();
        let words: Vec<&str> = self.modifiers.iter().map(|modifier| modifier.as_str()).collect();
        let words = (!words.is_empty()).then(|| format!("({})", words.join(", ")));
        if texts.iter().all(|text| misplaced(text, false).is_none()) {
            f.write_str(&texts.join(OR))?;
            return words.map_or(Ok(()), |words| write!(f, " {words}"));
        }
        texts.extend(words);
        f.write_str(&serde_json::to_string(&texts).unwrap_or_default())
    }
}

/// The text before brackets at the end, and what is in them.
fn in_brackets(text: &str) -> Option<(&str, &str)> {
    text.strip_suffix(')')?.rsplit_once(" (")
}

fn modifiers_of(words: &str) -> Result<BTreeSet<Modifier>, IdSourceError> {
    let of = |word: &str| {
        let found = Modifier::ALL.iter().find(|(name, _)| *name == word.trim());
        found.map(|(_, modifier)| *modifier).ok_or_else(|| IdSourceError::Modifier(word.trim().to_owned()))
    };
    words.split(',').map(of).collect()
}

/// What is wrong with the text of a source, maybe one of several, that could only be a name with signs of alternatives and modifiers. Such a
/// name is rare, and these signs in a wrong place are not: read as a name, they would mean that no record has an id.
fn misplaced(piece: &str, is_alternative: bool) -> Option<String> {
    let is_no_source = || piece.parse::<IdSource>() == Err(IdSourceError::Unknown);
    if piece.contains(['(', ')']) {
        Some(format!("has brackets in '{piece}'"))
    } else if piece.contains('|') {
        Some(format!("has a '|' in '{piece}'"))
    } else if piece.trim() != piece {
        Some(format!("has white space around '{piece}'"))
    } else if is_alternative && is_no_source() {
        Some(format!("has '{piece}' beside ' | ', which is not a source of an id"))
    } else {
        None
    }
}

/// The array that reads these texts as sources with any name, or else the whole text; empty if neither is one.
fn as_names(text: &str, pieces: &[&str]) -> String {
    let whole = [text];
    let are_sources =
        |texts: &&[&str]| !texts.is_empty() && texts.iter().all(|text| text.parse::<IdSource>().is_ok());
    let names = [pieces, &whole].into_iter().find(are_sources);
    names.and_then(|texts| serde_json::to_string(texts).ok()).unwrap_or_default()
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
            "header:a b, c",
            r#"["header:a | b","key"]"#,
            r#"["header:a | key"]"#,
            r#"["header:a (lower)","(lower)"]"#,
            r#"["header:a (B)"]"#,
            r#"["header:a|key"]"#,
            r#"["header:a "]"#,
        ] {
            assert_eq!(part(text).to_string(), text);
        }
        assert_eq!(part(r#"["header:a | key"]"#).sources(), [IdSource::Header("a | key".to_owned())]);
        assert_eq!(part(r#"["json:/id"]"#), part("json:/id"));
        assert_eq!(part(r#"["json:/id", "key", "(lower)", "(trim)"]"#), part("json:/id | key (trim, lower)"));
        assert_eq!(part("key ( lower,trim )").to_string(), "key (trim, lower)");
    }

    #[test]
    fn mistakes_in_a_source_or_a_modifier_are_errors() {
        for (text, expected) in [
            ("json:/id (lowr)", IdSourceError::Modifier("lowr".to_owned())),
            ("json:/id (Trim)", IdSourceError::Modifier("Trim".to_owned())),
            ("header:a ()", IdSourceError::Modifier(String::new())),
            ("json:/id (lower,)", IdSourceError::Modifier(String::new())),
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
    fn signs_in_another_place_are_refused_with_an_array_that_reads_them_as_a_name() {
        for (text, what, names) in [
            (
                "json:/id (lower) | header:id",
                "brackets in 'json:/id (lower)'",
                r#"["json:/id (lower)","header:id"]"#,
            ),
            (
                "json:/id (lower) | key (trim)",
                "brackets in 'json:/id (lower)'",
                r#"["json:/id (lower)","key"]"#,
            ),
            ("json:/id (lower) (trim)", "brackets in 'json:/id (lower)'", r#"["json:/id (lower)"]"#),
            ("json:/id (trim) ", "brackets in 'json:/id (trim) '", r#"["json:/id (trim) "]"#),
            ("json:/id(trim)", "brackets in 'json:/id(trim)'", r#"["json:/id(trim)"]"#),
            ("json:/id (trim", "brackets in 'json:/id (trim'", r#"["json:/id (trim"]"#),
            ("key (trim) | key", "brackets in 'key (trim)'", ""),
            ("json:/id |json:/b", "a '|' in 'json:/id |json:/b'", r#"["json:/id |json:/b"]"#),
            ("json:/id| json:/b", "a '|' in 'json:/id| json:/b'", r#"["json:/id| json:/b"]"#),
            ("header:a|key", "a '|' in 'header:a|key'", r#"["header:a|key"]"#),
            ("json:/id | ", "'' beside ' | '", r#"["json:/id | "]"#),
            ("header:a |  | key", "'' beside ' | '", r#"["header:a |  | key"]"#),
            ("a |  | b", "'a' beside ' | '", ""),
            ("header:a | b", "'b' beside ' | '", r#"["header:a | b"]"#),
            ("json:/id | jsn:/id", "'jsn:/id' beside ' | '", r#"["json:/id | jsn:/id"]"#),
            ("json:/id  | key", "white space around 'json:/id '", r#"["json:/id ","key"]"#),
            ("json:/id  (trim)", "white space around 'json:/id '", r#"["json:/id "]"#),
            (" key", "white space around ' key'", ""),
        ] {
            let error = text.parse::<IdPart>().unwrap_err();
            let message = error.to_string();
            let IdSourceError::Misplaced { names: advised, .. } = error else { panic!("{text}: {message}") };
            assert!(message.starts_with(&format!("has {what}")), "{text}: {message}");
            assert!(
                message.contains("modifiers stand once, at the end of the part, in lower case"),
                "{message}"
            );
            assert!(message.contains("as in json:/id | header:id (lower)"), "{message}");
            assert_eq!((&*advised, message.contains("nested array")), (names, !names.is_empty()), "{text}");
            if !names.is_empty() {
                assert_eq!(part(names).to_string(), names, "{text}");
            }
        }
        let record = SampleRecord { value: Some(br#"{"id (lower)":"A"}"#), ..SampleRecord::default() };
        let read = part(r#"["json:/id (lower)"]"#).read(&record, &Schemas::default()).ok();
        assert_eq!(read, Some(PartValue::Bytes(Cow::Borrowed(b"A"))));
    }

    #[test]
    fn a_source_alone_has_neither_signs_of_others_nor_modifiers() {
        for (text, name) in [
            ("header:a b", "a b"),
            (r#"["header:a (trim)"]"#, "a (trim)"),
            (r#"["header:a | key"]"#, "a | key"),
        ] {
            assert_eq!(text.parse().ok(), Some(LoneSource(IdSource::Header(name.to_owned()))), "{text}");
        }
        for (text, names) in [
            ("header:a (trim)", r#"["header:a (trim)"]"#),
            ("header:a (lowr)", r#"["header:a (lowr)"]"#),
            ("header:a (trim) ", r#"["header:a (trim) "]"#),
            ("header:a | key", r#"["header:a | key"]"#),
            ("header:a |key", r#"["header:a |key"]"#),
            ("key | value", ""),
            (r#"["header:a", "(trim)"]"#, ""),
        ] {
            let lone = Err(IdSourceError::Lone { names: names.to_owned() });
            assert_eq!(text.parse::<LoneSource>(), lone, "{text}");
        }
        assert_eq!("jsn:/id".parse::<LoneSource>(), Err(IdSourceError::Unknown));
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
