//! Reads JSON text up to a value, and not beyond it.
//!
//! The functions take the text that is left and return what follows the part that they have read; `None` when the text
//! breaks the grammar of RFC 8259.
//!
//! Libraries were measured and rejected. `serde_json` stopped by an error, `sonic-rs` and `jiter` take 1.6 to 3 times as
//! long. The functions of `sonic-rs` that do not check what they skip take 1.3 to 1.8 times for 200 bytes, half for 1 KiB.
#![expect(clippy::inline_always, reason = "left to the compiler, 200 bytes take 1.6 times as long")]

use std::borrow::Cow;

/// The text that is left.
type Rest<'d> = Option<&'d [u8]>;

/// The text from the value of the first member named `token`, when it starts with an object, or from the element with this
/// index, when it starts with an array. `None` also when there is no such value.
pub(super) fn enter<'d>(text: &'d [u8], token: &str) -> Rest<'d> {
    match next(text)? {
        (b'{', mut text) => loop {
            let key = string(expect(text, b'"')?)?;
            let value = expect(key.after, b':')?;
            if key.is(token) {
                return Some(value);
            }
            text = expect(skip(value)?, b',')?;
        },
        (b'[', mut text) => {
            for _ in 0..index(token)? {
                text = expect(skip(text)?, b',')?;
            }
            Some(text)
        }
        _ => None,
    }
}

/// An array index according to RFC 6901: digits without a leading zero.
pub(in crate::dedupe::identity) fn index(token: &str) -> Option<usize> {
    let digits = token.bytes().all(|byte| byte.is_ascii_digit());
    (digits && (token == "0" || !token.starts_with('0'))).then(|| token.parse().ok()).flatten()
}

/// The bytes of the scalar that the text starts with: a string's content, a number's or boolean's JSON text. `None` also for
/// null, an object, an array, and a string that is not Unicode.
pub(super) fn scalar(text: &[u8]) -> Option<Cow<'_, [u8]>> {
    match next(text)? {
        (b'"', text) => Some(match string(text)?.content()? {
            Cow::Borrowed(content) => Cow::Borrowed(content.as_bytes()),
            Cow::Owned(content) => Cow::Owned(content.into_bytes()),
        }),
        (b'{' | b'[' | b'n', _) => None,
        (first, rest) => {
            let after = atom(first, rest)?;
            // Without the byte after it, a document that was cut off would give the first digits of a number.
            matches!(after.first()?, b',' | b'}' | b']' | b' ' | b'\n' | b'\t' | b'\r').then_some(())?;
            let from = text.len() - rest.len() - 1;
            text.get(from..text.len() - after.len()).map(Cow::Borrowed)
        }
    }
}

/// Whether the record has text behind its document, such as a second one, whose id would be lost. `found` is the text of the
/// document from a value on.
///
/// Searched is only what costs little: another last byte than the bracket that closes the document, and a closing bracket
/// before an opening one. A document that was cut off behind the value has no text behind it. Whether that is outside of the document is then read. If the document breaks the grammar behind
/// `found`, its end is not known, and two such brackets count.
#[inline(always)]
pub(super) fn has_text_behind(document: &[u8], found: &[u8]) -> bool {
    let is_closed = match (next(document), document.iter().rfind(|byte| !is_blank(**byte))) {
        // In ASCII, a closing bracket is its opening one plus 2.
        (Some((first, _)), Some(last)) => *last == first + 2,
        _ => false,
    };
    (!is_closed || has_two(found)) && is_followed(document, found)
}

#[cold]
#[inline(never)]
fn is_followed(document: &[u8], found: &[u8]) -> bool {
    match skip(document) {
        Some(rest) => rest.iter().any(|byte| !is_blank(*byte)),
        None => has_two(found),
    }
}

/// Whether a closing bracket is before an opening one, with nothing or white space between them.
fn has_two(text: &[u8]) -> bool {
    memchr::memchr2_iter(b'{', b'[', text).any(|at| {
        let before = text.get(..at).unwrap_or_default();
        before.iter().rfind(|byte| !is_blank(**byte)).is_some_and(|byte| matches!(byte, b'}' | b']'))
    })
}

/// White space, or the zero byte with which some producers end a text.
fn is_blank(byte: u8) -> bool {
    matches!(byte, b' ' | b'\n' | b'\t' | b'\r' | 0)
}

/// The first byte after white space, and what follows it.
#[inline(always)]
fn next(text: &[u8]) -> Option<(u8, &[u8])> {
    match text.split_first()? {
        (byte, rest) if *byte > b' ' => Some((*byte, rest)),
        _ => next_after_space(text),
    }
}

#[inline(never)]
fn next_after_space(mut text: &[u8]) -> Option<(u8, &[u8])> {
    while let [b' ' | b'\n' | b'\t' | b'\r', rest @ ..] = text {
        text = rest;
    }
    text.split_first().map(|(byte, rest)| (*byte, rest))
}

#[inline(always)]
fn expect(text: &[u8], expected: u8) -> Rest<'_> {
    next(text).filter(|(byte, _)| *byte == expected).map(|(_, rest)| rest)
}

/// A string as it is written, without its quotes.
struct JsonText<'d> {
    raw: &'d [u8],
    escaped: bool,
    /// What follows the closing quote.
    after: &'d [u8],
}

impl<'d> JsonText<'d> {
    /// Its content; `None` when that is not Unicode: bytes that are not UTF-8, or a lone surrogate.
    fn content(&self) -> Option<Cow<'d, str>> {
        if self.escaped {
            let quoted = [b"\"", self.raw, b"\""].concat();
            return serde_json::from_slice(&quoted).ok().map(Cow::Owned);
        }
        std::str::from_utf8(self.raw).ok().map(Cow::Borrowed)
    }

    #[inline(always)]
    fn is(&self, name: &str) -> bool {
        if self.escaped {
            return self.content().is_some_and(|content| content == name);
        }
        self.raw == name.as_bytes()
    }
}

/// A string, from its first byte after the opening quote. Its bytes are not decoded, so they can be anything but control
/// characters.
#[inline(always)]
fn string(text: &[u8]) -> Option<JsonText<'_>> {
    let (mut rest, mut escaped) = (text, false);
    loop {
        while let Some((word, after)) = rest.split_first_chunk() {
            if let Some(plain) = plain_bytes(u64::from_le_bytes(*word)) {
                rest = rest.get(plain..)?;
                break;
            }
            rest = after;
        }
        rest = match rest.split_first()? {
            (b'"', after) => {
                return Some(JsonText { raw: text.get(..text.len() - rest.len())?, escaped, after });
            }
            (b'\\', after) => {
                escaped = true;
                escape(after)?
            }
            (..=0x1f, _) => return None,
            (_, after) => after,
        }
    }
}

/// How many bytes of a little-endian word precede its first quote, backslash or control character; `None` when it has none
/// of them.
#[inline(always)]
fn plain_bytes(word: u64) -> Option<usize> {
    const ONES: u64 = u64::from_ne_bytes([1; 8]);
    // The high bit of each byte that is below `limit`. Above the first such byte a borrow can set others.
    let below = |word: u64, limit: u64| word.wrapping_sub(ONES * limit) & !word & (ONES << 7);
    // A quote (0x22) xor 2 follows the control characters (xor 2, they remain 0 to 0x1f), and nothing else is in between.
    let special = below(word ^ (ONES * 2), 0x21) | below(word ^ (ONES * u64::from(b'\\')), 1);
    (special != 0).then_some(special.trailing_zeros() as usize / 8)
}

/// What follows the backslash.
#[inline(always)]
fn escape(text: &[u8]) -> Rest<'_> {
    match text.split_first()? {
        (b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't', rest) => Some(rest),
        (b'u', rest) => {
            let (digits, rest) = rest.split_first_chunk::<4>()?;
            digits.iter().all(u8::is_ascii_hexdigit).then_some(rest)
        }
        _ => None,
    }
}

/// A number, true, false or null that starts with `first`.
#[inline(always)]
fn atom(first: u8, rest: &[u8]) -> Rest<'_> {
    match first {
        b't' => rest.strip_prefix(b"rue"),
        b'f' => rest.strip_prefix(b"alse"),
        b'n' => rest.strip_prefix(b"ull"),
        b'-' => rest.split_first().and_then(|(digit, rest)| number(*digit, rest)),
        digit => number(digit, rest),
    }
}

/// A number without its sign.
#[inline(always)]
fn number(first: u8, rest: &[u8]) -> Rest<'_> {
    let mut text = match first {
        b'0' => rest,
        b'1'..=b'9' => digits(rest),
        _ => return None,
    };
    if let [b'.', fraction @ ..] = text {
        text = some_digits(fraction)?;
    }
    match text {
        [b'e' | b'E', b'+' | b'-', exponent @ ..] | [b'e' | b'E', exponent @ ..] => some_digits(exponent),
        _ => Some(text),
    }
}

#[inline(always)]
fn some_digits(text: &[u8]) -> Rest<'_> {
    let rest = digits(text);
    (rest.len() < text.len()).then_some(rest)
}

#[inline(always)]
fn digits(mut text: &[u8]) -> &[u8] {
    while let [b'0'..=b'9', rest @ ..] = text {
        text = rest;
    }
    text
}

/// Skips a value. It does not recurse, so a document can be as deep as it is long.
fn skip(mut text: &[u8]) -> Rest<'_> {
    let mut open = OpenContainers::default();
    loop {
        let (first, rest) = next(text)?;
        text = match first {
            b'"' => string(rest)?.after,
            b'{' | b'[' => {
                let (inner, after) = next(rest)?;
                // In ASCII, a closing bracket is its opening one plus 2.
                if inner == first + 2 {
                    after
                } else {
                    let object = first == b'{';
                    open.push(object);
                    text = if object { name(rest)? } else { rest };
                    continue;
                }
            }
            _ => atom(first, rest)?,
        };
        loop {
            let Some(object) = open.innermost() else { return Some(text) };
            text = match (next(text)?, object) {
                ((b',', rest), _) => {
                    text = if object { name(rest)? } else { rest };
                    break;
                }
                ((b'}', rest), true) | ((b']', rest), false) => rest,
                _ => return None,
            };
            open.pop();
        }
    }
}

/// The name of a member and the colon.
#[inline(always)]
fn name(text: &[u8]) -> Rest<'_> {
    expect(string(expect(text, b'"')?)?.after, b':')
}

/// The objects and arrays around a value: one bit for each, 1 for an object, the innermost in the lowest bit. A 1 marks
/// the end of the bits in use. What does not fit into a word is in `outer`, so usual documents need no allocation.
struct OpenContainers {
    bits: u64,
    outer: Vec<u64>,
}

impl Default for OpenContainers {
    fn default() -> Self {
        Self { bits: 1, outer: Vec::new() }
    }
}

impl OpenContainers {
    #[inline(always)]
    fn push(&mut self, object: bool) {
        if self.bits.leading_zeros() == 0 {
            self.outer.push(std::mem::replace(&mut self.bits, 1));
        }
        self.bits = (self.bits << 1) | u64::from(object);
    }

    #[inline(always)]
    fn pop(&mut self) {
        self.bits >>= 1;
        if self.bits == 1 {
            self.bits = self.outer.pop().unwrap_or(1);
        }
    }

    /// Whether the innermost one is an object.
    #[inline(always)]
    fn innermost(&self) -> Option<bool> {
        (self.bits != 1).then_some(self.bits & 1 == 1)
    }
}
