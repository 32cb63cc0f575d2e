//! A part of an id: alternatives of a source, and words in brackets that say how its value counts.

use std::borrow::Cow;

use serde::de::IgnoredAny;

use super::source::Source;

/// The words that may stand in brackets.
const WORDS: [&str; 5] = ["optional", "trim", "lower", "number", "uuid"];

/// A part of an id.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Part {
    /// The first that has a value counts.
    pub sources: Vec<Source>,
    words: Vec<String>,
}

impl Part {
    /// Parses `SOURCE | SOURCE (WORD, WORD)`, or a JSON array of these texts. The error is the predicate of a sentence about the text.
    pub fn parse(text: &str) -> Result<Self, String> {
        if text.starts_with('[') {
            let texts: Vec<String> =
                serde_json::from_str(text).map_err(|_| "is no array of texts".to_owned())?;
            let mut part = Self { sources: Vec::new(), words: Vec::new() };
            for text in texts {
                match text.strip_prefix('(') {
                    Some(listed) => part.words.extend(words(listed.trim_end_matches(')'))?),
                    None => part.sources.push(Source::parse(&text)?),
                }
            }
            return if part.sources.is_empty() { Err("has no source".to_owned()) } else { Ok(part) };
        }
        let (sources, words) = match text.rfind(" (").filter(|_| text.ends_with(')')) {
            Some(at) => {
                let listed = text.get(at + 2..text.len() - 1).unwrap_or_default();
                (text.get(..at).unwrap_or_default(), words(listed)?)
            }
            None => (text, Vec::new()),
        };
        let sources = sources.split(" | ").map(plain).collect::<Result<_, _>>()?;
        Ok(Self { sources, words })
    }

    /// Whether a record without this part may have an id.
    pub fn is_optional(&self) -> bool {
        self.has("optional")
    }

    fn has(&self, word: &str) -> bool {
        self.words.iter().any(|listed| listed == word)
    }

    /// The value as it counts.
    pub fn counted<'a>(&self, value: Cow<'a, [u8]>) -> Cow<'a, [u8]> {
        let mut value = value;
        if self.has("trim") {
            value = Cow::Owned(value.trim_ascii().to_vec());
        }
        if self.has("lower") {
            value = Cow::Owned(value.to_ascii_lowercase());
        }
        if let Some(number) = decimal(&value).filter(|_| self.has("number")) {
            value = Cow::Owned(number.into_bytes());
        }
        if let Some(uuid) = super::id::uuid(&value).filter(|_| self.has("uuid")) {
            value = Cow::Owned(uuid.into_owned());
        }
        value
    }
}

fn words(listed: &str) -> Result<Vec<String>, String> {
    let words = listed.split(',').map(|word| word.trim().to_owned());
    words
        .map(|word| {
            if WORDS.contains(&word.as_str()) {
                Ok(word)
            } else {
                Err(format!("has '{word}' in brackets, which is none of {}", WORDS.join(", ")))
            }
        })
        .collect()
}

/// A source outside of an array, where no name has signs of alternatives or words.
fn plain(text: &str) -> Result<Source, String> {
    if text.contains(['(', ')', '|'])
        || text.starts_with(char::is_whitespace)
        || text.ends_with(char::is_whitespace)
    {
        return Err(format!("has a bracket, '|' or white space in the wrong place in '{text}'"));
    }
    Source::parse(text).map_err(str::to_owned)
}

/// A number of JSON as its digits without zeros at either end and a power of ten, if that is not 1; nothing for other text. The form is a number,
/// so that no other text has it, and digits that are a UUID stay one.
fn decimal(text: &[u8]) -> Option<String> {
    let text = std::str::from_utf8(text).ok()?;
    let is_number =
        text.starts_with(|c: char| c == '-' || c.is_ascii_digit()) && !text.ends_with(char::is_whitespace);
    serde_json::from_str::<IgnoredAny>(text).ok().filter(|_| is_number)?;
    let (sign, text) = text.strip_prefix('-').map_or(("", text), |rest| ("-", rest));
    let (mantissa, power) = text.split_once(['e', 'E']).unwrap_or((text, "0"));
    if power.trim_start_matches(['+', '-']).len() > 15 {
        return None;
    }
    let power: i64 = power.parse().ok()?;
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    let digits = format!("{whole}{fraction}");
    let significant = digits.trim_start_matches('0');
    let leading = i64::try_from(digits.len() - significant.len()).ok()?;
    let point = i64::try_from(whole.len()).ok()? - leading;
    let digits = significant.trim_end_matches('0');
    match power + point - i64::try_from(digits.len()).ok()? {
        _ if digits.is_empty() => Some("0".to_owned()),
        0 => Some(format!("{sign}{digits}")),
        power => Some(format!("{sign}{digits}e{power}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_split_and_names_with_signs_stand_in_arrays() {
        let sources = |text: &str| Part::parse(text).unwrap().sources;
        let header = |name: &str| Source::Header(name.into());
        assert_eq!(sources("header:a | key"), [header("a"), Source::Key]);
        assert_eq!(sources(r#"["header:a | key", "(lower)"]"#), [header("a | key")]);
        assert_eq!(sources(r#"["header:a (B)|", "(lower)"]"#), [header("a (B)|")]);
        for text in [
            "key (tim)",
            "key | jsn:/a",
            "[]",
            "[\"(trim)\"]",
            "key | header:",
            "key ()x | json:",
            "header:a | b | key (trim)",
            "header:a (B)",
            "header:a (trim) ",
            "header:a |key",
            "header:a ",
        ] {
            assert!(Part::parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn numbers_count_by_their_value() {
        let forms = |texts: &[&str]| texts.iter().map(|text| decimal(text.as_bytes())).collect::<Vec<_>>();
        for equal in [&["2", "2.0", "2e0", "0.2E+1"][..], &["0", "-0", "0.00"], &["-25", "-2.5e1"]] {
            let forms = forms(equal);
            assert!(forms.iter().all(|form| form.is_some() && *form == forms[0]), "{forms:?}");
        }
        assert_eq!(forms(&["007", "+1", ".5", "1 ", "true", "\"2\"", "1e1234567890123456"]), vec![None; 7]);
        assert_ne!(decimal(b"25"), decimal(b"2.5"));
        let expected = [Some("1"), Some("-25e1"), Some("1e-1"), None];
        assert_eq!(forms(&["1", "-250", "0.1", "0.1^1"]), expected.map(|form| form.map(str::to_owned)));
    }
}
