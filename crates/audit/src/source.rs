//! Parses the text of an id source: `key`, `value`, `header:NAME` or `json:/pointer`.

/// Where a record contains its id, or a part of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Source {
    Key,
    Value,
    /// Name of the header.
    Header(Vec<u8>),
    /// Names of members or indexes of elements, from the top of the document: the reference tokens of RFC 6901.
    Json(Vec<String>),
}

impl Source {
    /// Parses a source. The error is the predicate of a sentence about the text.
    pub fn parse(text: &str) -> Result<Self, &'static str> {
        if let Some(name) = text.strip_prefix("header:") {
            return if name.is_empty() { Err("has no header name") } else { Ok(Self::Header(name.into())) };
        }
        if let Some(pointer) = text.strip_prefix("json:") {
            return tokens(pointer).map(Self::Json);
        }
        match text {
            "key" => Ok(Self::Key),
            "value" => Ok(Self::Value),
            _ => Err("is none of key, value, header:NAME and json:/pointer"),
        }
    }
}

/// The reference tokens of a pointer (RFC 6901, sections 3 and 4). The empty pointer, which is the whole document, is no source.
fn tokens(pointer: &str) -> Result<Vec<String>, &'static str> {
    let mut parts = pointer.split('/');
    if parts.next() != Some("") || pointer.is_empty() {
        return Err("has a JSON pointer that does not start with '/'");
    }
    parts
        .map(|part| token(part).ok_or("has a '~' in its JSON pointer that is neither '~0' nor '~1'"))
        .collect()
}

fn token(written: &str) -> Option<String> {
    let mut token = String::new();
    let mut characters = written.chars();
    while let Some(character) = characters.next() {
        token.push(match character {
            '~' => match characters.next()? {
                '0' => '~',
                '1' => '/',
                _ => return None,
            },
            other => other,
        });
    }
    Some(token)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_form_is_parsed_and_nothing_else() {
        let json =
            |tokens: &[&str]| Ok(Source::Json(tokens.iter().map(|token| (*token).to_owned()).collect()));
        for (text, source) in [
            ("key", Ok(Source::Key)),
            ("value", Ok(Source::Value)),
            ("header:a:b", Ok(Source::Header(b"a:b".to_vec()))),
            ("json:/id", json(&["id"])),
            ("json:/", json(&[""])),
            ("json:/a~1b/0/~01//", json(&["a/b", "0", "~1", "", ""])),
        ] {
            assert_eq!(Source::parse(text), source, "{text}");
        }
        for text in
            ["", "Key", "key ", "header", "header:", "json", "json:", "json:id", "json:/~", "json:/~2", "x"]
        {
            assert!(Source::parse(text).is_err(), "{text}");
        }
    }
}
