//! A minimal Rust tokenizer for the dependency rules: tokens, removal of test code, expansion of `use` trees.

/// A word, `::`, another character, or the content of a string literal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Token {
    pub line: usize,
    pub text: String,
    pub literal: bool,
}

impl Token {
    pub fn is(&self, text: &str) -> bool {
        !self.literal && self.text == text
    }

    pub fn is_word(&self) -> bool {
        !self.literal && self.text.starts_with(|first: char| first.is_alphabetic() || first == '_')
    }
}

/// The code of a file without comments and test code, and its number of lines without test code.
pub struct Source {
    pub tokens: Vec<Token>,
    pub lines: usize,
}

impl Source {
    pub fn of(text: &str) -> Source {
        let (tokens, test_lines) = without_tests(&tokens(text));
        Source { tokens, lines: text.lines().count() - test_lines }
    }

    /// All tokens of a file, including its tests.
    pub fn with_tests(text: &str) -> Vec<Token> {
        tokens(text)
    }

    /// All paths that begin with one of `roots` (such as `crate`), with their lines. `use` trees are expanded.
    pub fn paths(&self, roots: &[&str]) -> Vec<(usize, Vec<String>)> {
        let mut found = Vec::new();
        for (at, token) in self.tokens.iter().enumerate() {
            let is_path = self.tokens.get(at + 1).is_some_and(|next| next.is("::"));
            let continued = at > 0 && self.tokens[at - 1].is("::");
            if is_path && !continued && roots.iter().any(|root| token.is(root)) {
                let mut paths = Vec::new();
                expand(&self.tokens, at, &[], &mut paths);
                found.extend(paths.into_iter().map(|path| (token.line, path)));
            }
        }
        found
    }
}

/// Reads a `use` tree, or a branch of one, at `at`. Returns the index after it.
fn expand(tokens: &[Token], mut at: usize, before: &[String], found: &mut Vec<Vec<String>>) -> usize {
    let mut path = before.to_vec();
    while let Some(token) = tokens.get(at) {
        if token.is("{") {
            at += 1;
            while tokens.get(at).is_some_and(|token| !token.is("}")) {
                at = expand(tokens, at, &path, found);
                while tokens.get(at).is_some_and(|token| !token.is(",") && !token.is("}")) {
                    at += 1; // `as name`
                }
                at += usize::from(tokens.get(at).is_some_and(|token| token.is(",")));
            }
            return at + 1;
        }
        if !token.is_word() && !token.is("*") {
            break; // `path::<T>`
        }
        path.push(token.text.clone());
        at += 1;
        if !tokens.get(at).is_some_and(|token| token.is("::")) {
            break;
        }
        at += 1;
    }
    found.push(path);
    at
}

/// Removes items under `#[cfg(test)]` and `#[cfg(all(test, …))]`. Returns the rest and the number of removed lines.
fn without_tests(tokens: &[Token]) -> (Vec<Token>, usize) {
    let (mut kept, mut cut_lines, mut at) = (Vec::new(), 0, 0);
    while at < tokens.len() {
        if starts_test(&tokens[at..]) {
            let end = item_end(tokens, at);
            cut_lines += tokens[end].line - tokens[at].line + 1;
            at = end + 1;
        } else {
            kept.push(tokens[at].clone());
            at += 1;
        }
    }
    (kept, cut_lines)
}

fn starts_test(tokens: &[Token]) -> bool {
    let begins = |with: &[&str]| {
        tokens.len() >= with.len() && tokens.iter().zip(with).all(|(token, text)| token.is(text))
    };
    begins(&["#", "[", "cfg", "(", "test", ")"]) || begins(&["#", "[", "cfg", "(", "all", "(", "test", ","])
}

/// The index of the last token of the item at `at`: the `;` or the closing brace. Attributes are skipped.
pub fn item_end(tokens: &[Token], at: usize) -> usize {
    let mut depth = 0_usize;
    for (place, token) in tokens.iter().enumerate().skip(at) {
        match token.text.as_str() {
            _ if token.literal => {}
            "(" | "[" | "{" => depth += 1,
            ")" | "]" | "}" => {
                depth = depth.saturating_sub(1);
                if depth == 0 && token.is("}") {
                    return place;
                }
            }
            ";" if depth == 0 => return place,
            _ => {}
        }
    }
    tokens.len() - 1
}

fn tokens(text: &str) -> Vec<Token> {
    let mut found = Vec::new();
    let (mut rest, mut line) = (text, 1);
    while let Some(first) = rest.chars().next() {
        let (length, token) = next(rest, first);
        if let Some((text, literal)) = token {
            found.push(Token { line, text, literal });
        }
        line += rest[..length].matches('\n').count();
        rest = &rest[length..];
    }
    found
}

/// The length of the element at the start of `rest`, and its token, if any.
fn next(rest: &str, first: char) -> (usize, Option<(String, bool)>) {
    let code = |text: &str| Some((text.to_owned(), false));
    if first.is_whitespace() {
        (first.len_utf8(), None)
    } else if rest.starts_with("//") {
        (rest.find('\n').unwrap_or(rest.len()), None)
    } else if rest.starts_with("/*") {
        (block_comment(rest), None)
    } else if let Some((length, content)) = string(rest) {
        (length, Some((content, true)))
    } else if first == '\'' {
        (character(rest), None)
    } else if rest.starts_with("::") {
        (2, code("::"))
    } else if first.is_alphanumeric() || first == '_' {
        let end = rest.find(|sign: char| !sign.is_alphanumeric() && sign != '_').unwrap_or(rest.len());
        (end, code(&rest[..end]))
    } else {
        (first.len_utf8(), code(&rest[..first.len_utf8()]))
    }
}

fn block_comment(rest: &str) -> usize {
    let mut depth = 0_usize;
    let mut at = 0;
    while at < rest.len() {
        let step = match rest.as_bytes().get(at..at + 2) {
            Some(b"/*") => (1, 2),
            Some(b"*/") => (-1, 2),
            _ => (0, 1),
        };
        depth = depth.saturating_add_signed(step.0);
        at += step.1;
        if depth == 0 {
            return at;
        }
    }
    rest.len()
}

/// Length and content of a string literal, plain, byte, C or raw.
fn string(rest: &str) -> Option<(usize, String)> {
    let body = ["br", "cr", "b", "c", "r"].iter().find_map(|prefix| {
        let body = rest.strip_prefix(prefix)?;
        (body.starts_with('"') || (prefix.ends_with('r') && body.starts_with('#')))
            .then_some((body, prefix.ends_with('r')))
    });
    let (body, raw) = body.unwrap_or((rest, false));
    let hashes = if raw { body.len() - body.trim_start_matches('#').len() } else { 0 };
    let content = body[hashes..].strip_prefix('"')?;
    let end = if raw { content.find(&format!("\"{}", "#".repeat(hashes)))? } else { quote(content)? };
    Some((rest.len() - content.len() + end + 1 + hashes, content[..end].to_owned()))
}

/// The position of the closing quote. Escapes are skipped.
fn quote(content: &str) -> Option<usize> {
    let mut escaped = false;
    content.char_indices().find_map(|(at, sign)| {
        let closes = sign == '"' && !escaped;
        escaped = sign == '\\' && !escaped;
        closes.then_some(at)
    })
}

/// The length of a character literal, or of the apostrophe of a lifetime.
fn character(rest: &str) -> usize {
    let mut signs = rest.char_indices().skip(1);
    match (signs.next(), signs.next()) {
        (Some((_, '\\')), Some(_)) => rest[3..].find('\'').map_or(rest.len(), |end| 3 + end + 1),
        (Some(_), Some((end, '\''))) => end + 1,
        _ => 1,
    }
}
