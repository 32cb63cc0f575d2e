//! How deeply the brackets of a `.proto` text are nested.

/// Most levels: decoders of Protobuf accept 100 by default, so nothing could read a deeper value.
const LEVELS_MAX: usize = 100;

/// Whether brackets are nested more deeply than the compiler can read: it recurses for each level in the value of an option, and
/// a stack overflow ends the process. Brackets in comments and strings do not count. A text with an error in a comment or a string
/// can be counted wrongly, but the compiler stops at that error before it reads values.
pub(super) fn is_too_deep(text: &str) -> bool {
    let (mut rest, mut level) = (text, 0usize);
    while let Some(first) = rest.chars().next() {
        let size = match first {
            '#' => line(rest),
            '/' if rest.starts_with("//") => line(rest),
            '/' if rest.starts_with("/*") => comment(rest),
            '"' | '\'' => string(rest, first),
            _ => first.len_utf8(),
        };
        match first {
            '{' | '[' | '<' => level += 1,
            '}' | ']' | '>' => level = level.saturating_sub(1),
            _ => {}
        }
        if level > LEVELS_MAX {
            return true;
        }
        rest = rest.get(size..).unwrap_or_default();
    }
    false
}

/// The length of a comment up to the end of the line.
fn line(rest: &str) -> usize {
    rest.find('\n').unwrap_or(rest.len())
}

/// The length of a comment in `/*` and `*/`.
fn comment(rest: &str) -> usize {
    let end = rest.get(2..).and_then(|inner| inner.find("*/"));
    end.map_or(rest.len(), |end| end + 4)
}

/// The length of a string that starts and ends with this quote.
fn string(rest: &str, quote: char) -> usize {
    let mut is_escaped = false;
    let end = rest.char_indices().skip(1).find(|(_, next)| {
        let is_end = *next == quote && !is_escaped;
        is_escaped = *next == '\\' && !is_escaped;
        is_end
    });
    end.map_or(rest.len(), |(at, _)| at + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn brackets_outside_of_comments_and_strings_count() {
        let many = |text: &str| text.repeat(LEVELS_MAX + 1);
        for deep in
            ["{", "[", "<", "{[", "a: <b { ", "// }\n{", "/* } */{", "\"}\"{", "'\\'}'{", "# }\n{", "'\"' {"]
        {
            assert!(is_too_deep(&many(deep)), "{deep}");
        }
        for flat in [
            "{}",
            "[{}]",
            "// a < b, see [1\n",
            "/* map<string, { */",
            "option a = \"<{[\";",
            "'\\'{' ",
            "message \u{e9} { }",
            "/**/ {}",
            "\"\\\\\" {} ",
            "'\"{' ",
            "map<string, int32> a = 1 [deprecated = true];",
        ] {
            assert!(!is_too_deep(&many(flat)), "{flat}");
        }
        assert!(!is_too_deep(&"{".repeat(LEVELS_MAX)));
        for unfinished in ["\"", "'\\", "/*", "//", "/", "#", "\"\u{e9}"] {
            assert!(!is_too_deep(unfinished), "{unfinished}");
        }
    }
}
