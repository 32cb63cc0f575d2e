//! The depth of a `.proto` text.

/// The greatest depth of brackets outside of comments and strings. The compiler calls itself for each level.
pub(super) fn depth(text: &str) -> usize {
    let (mut open, mut greatest) = (0usize, 0);
    let mut rest = text.as_bytes();
    while let [first, behind @ ..] = rest {
        rest = match rest {
            [b'/', b'/', ..] | [b'#', ..] => behind_text(behind, b"\n"),
            [b'/', b'*', inner @ ..] => behind_text(inner, b"*/"),
            [b'"' | b'\'', ..] => behind_string(behind, *first),
            _ => behind,
        };
        match first {
            b'{' | b'[' | b'<' => open += 1,
            b'}' | b']' | b'>' => open = open.saturating_sub(1),
            _ => {}
        }
        greatest = greatest.max(open);
    }
    greatest
}

fn behind_text<'t>(text: &'t [u8], end: &[u8]) -> &'t [u8] {
    let at = text.windows(end.len()).position(|found| found == end);
    at.and_then(|at| text.get(at + end.len()..)).unwrap_or_default()
}

fn behind_string(mut text: &[u8], quote: u8) -> &[u8] {
    loop {
        text = match text {
            [b'\\', _, rest @ ..] => rest,
            [first, rest @ ..] if *first == quote => return rest,
            [_, rest @ ..] => rest,
            [] => return text,
        };
    }
}

#[cfg(test)]
mod tests {
    use super::depth;

    #[test]
    fn comments_and_strings_have_no_depth() {
        for (text, expected) in [
            ("a { b < c [ ] > } { }", 3),
            ("{ // }\n { # }\n { /* } */ {", 4),
            ("// < <\n/* { */ /**/ \"{'\" '\\'{' '\"' {", 1),
            ("\"\\", 0),
            ("/*/ {", 0),
            ("/", 0),
        ] {
            assert_eq!(depth(text), expected, "{text}");
        }
    }
}
