//! JSON documents and pointers: a list of odd ones, generated ones, and damage.

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::{Index, select};

pub const ODD: &[&[u8]] = &[
    br#"{"id":"a"}"#,
    br#"{"id":"\u0061"}"#,
    br#" {"x":[1,{"id":2}],"id" : "b" } "#,
    br#"{"id":1}"#,
    br#"{"id":"1"}"#,
    br#"{"id":1.0}"#,
    br#"{"id":1e3}"#,
    br#"{"id":1E+3}"#,
    br#"{"id":1e999999999999}"#,
    br#"{"id":123456789012345678901234567890}"#,
    br#"{"id":123456789012345678901234567891}"#,
    br#"{"id":-0}"#,
    br#"{"id":+1}"#,
    br#"{"id":01}"#,
    br#"{"id":.5}"#,
    br#"{"id":NaN}"#,
    br#"{"id":true}"#,
    br#"{"id":"true"}"#,
    br#"{"id":"a","id":"b"}"#,
    br#"{"id":"a","id":null}"#,
    br#"{"id":null,"id":"a"}"#,
    br#"{"\u0069d":"a"}"#,
    br#"{"id":null}"#,
    br#"{"id":""}"#,
    br#"{"id":{}}"#,
    br#"{"id":[]}"#,
    br#"{"id":["a",["b"],{"id":"c"}]}"#,
    br#"{"id":{"id":"a","0":"b","01":"c","":"d"}}"#,
    br#"{"id":{"id":"a"},"id":7}"#,
    br#"{"a/b":"slash","~":"tilde","~1":"both","":"empty"}"#,
    br#"{"\u002f":{"\/":"escaped slash"},"a\u002Fb":1}"#,
    br#"{"id":"a"} x"#,
    br#"{"id":"a","#,
    br#"{"id":"a""#,
    br#"{"id":"a"#,
    br#"{"id":1"#,
    br#"{"id":1:2}"#,
    br#"{"id":1"a"}"#,
    br#"{"id":truex}"#,
    b"{\"id\":1\x0c}",
    b"{\"id\":\x0c1}",
    b"{\"id\"\x0c:1}",
    br#"{"id":"a"}{}"#,
    b"{\"id\":\"a\"}\n{\"id\":\"b\"}\n",
    b"{\"id\":\"a\"}\r\n \0\0",
    br#"{"id":"a"},{"id":"b"}"#,
    br#"{"id":"a","x":"} {"}"#,
    br#"{"id":"a","x":"} {"} {}"#,
    br#"{"id":"a","x":NaN} {"id":"b"}"#,
    br#"{"id":"a","x":NaN}"#,
    br#"{"id":"a","x":[{},{}]}"#,
    br#"["a"]["b"]"#,
    br#"["a"]]"#,
    br#"{"id":"a","x":tru}"#,
    br#"{"id":"a","x":01}"#,
    br#"{"x":01,"id":"a"}"#,
    br#"{"x":tru,"id":"a"}"#,
    br#"{"x":"\q","id":"a"}"#,
    b"{\"id\":\"a\",\"x\":\"\x01\"}",
    b"{\"x\":\"\x01\",\"id\":\"a\"}",
    b"{\"id\":\"a\",\"x\":\"\xff\"}",
    b"{\"x\":\"\xff\",\"id\":\"a\"}",
    b"{\"\xff\":1,\"id\":\"a\"}",
    b"{\"id\":\"\xff\"}",
    "{\"id\":\"é\u{1f600}\"}".as_bytes(),
    br#"{"id":"\u00e9\ud83d\ude00"}"#,
    br#"{"id":"\ud800"}"#,
    br#"{"id":"\ude00\ud83d"}"#,
    br#"{"id":"a","x":"\ud800"}"#,
    br#"{"x":"\ud800","id":"a"}"#,
    br#"{"id":"a","\ud800":1}"#,
    br#"{"\ud800":1,"id":"a"}"#,
    br#"{"id":"a\u0000b"}"#,
    br#"["a",1,null,{"id":"c"}]"#,
    br#"[["x"],"b"]"#,
    b"",
    b" \t\r\n",
    b"7",
    b"7 ",
    b"\"id\"",
    b"null",
    b"[]",
    b"{}",
    b"{,}",
    b"\x0b{\"id\":\"a\"}",
    b"\xef\xbb\xbf{\"id\":\"a\"}",
    br#"{"id":"0123456789ABCDEFfedcba9876543210"}"#,
    br#"{"id":"01234567-89ab-cdef-fedc-ba9876543210"}"#,
    br#"{"id":"01234567-89AB-CDEF-FEDC-BA9876543210"}"#,
    br#"{"id":"0123456-789ab-cdef-fedc-ba9876543210"}"#,
    br#"{"id":"{01234567-89ab-cdef-fedc-ba987654321}"}"#,
    br#"{"id":01234567890123456789012345678901}"#,
    br#"{"id":12345678901234567890123456789012}"#,
];

pub const POINTERS: [&str; 17] = [
    "json:/id",
    "json:/id/id",
    "json:/id/0",
    "json:/id/01",
    "json:/id/+0",
    "json:/id/-0",
    "json:/id/",
    "json:/id/1/0",
    "json:/x/1/id",
    "json:/a~1b",
    "json:/~0",
    "json:/~01",
    "json:/~1/~1",
    "json:/",
    "json:/0",
    "json:/3/id",
    "json:/99999999999999999999",
];
/// How many pairs of these have an id.
pub const ODD_WITH_ID: usize = 60;

/// A name of a member as it is written, and scalars; some of them are not JSON.
const NAMES: &[&[u8]] = &[
    b"\"id\"",
    b"\"\\u0069d\"",
    b"\"a/b\"",
    b"\"a\\/b\"",
    b"\"~\"",
    b"\"~1\"",
    b"\"\"",
    b"\"0\"",
    b"\"01\"",
    b"\"\\ud800\"",
    b"\"\xff\"",
];
const SCALARS: &[&[u8]] = &[
    b"1",
    b"1.0",
    b"1e0",
    b"-0",
    b"-1.5E-7",
    b"true",
    b"false",
    b"null",
    b"\"\"",
    b"\"a\"",
    b"\"\\u0061\"",
    b"\"a\\/b\"",
    b"\"\\n\"",
    b"\"\\ud83d\\ude00\"",
    b"\"\\ud83d\"",
    b"\"\xff\"",
    b"\"01234567-89AB-cdef-0123-456789abcdef\"",
    b"01",
    b"1.",
    b"\"\t\"",
    b"tru",
];
/// White space in JSON, and the vertical tab and the form feed, which are none.
const SPACES: &[&[u8]] = &[b"", b"", b"", b" ", b"\r\n\t", b"\x0b", b"\x0c"];
const TOKENS: &[&str] = &["id", "a~1b", "~0", "~01", "", "0", "1", "01", "x"];

/// A document of objects, arrays and scalars with repeated names, in any mixture.
pub fn generated() -> impl Strategy<Value = Vec<u8>> {
    let scalar = select(SCALARS).prop_map(<[u8]>::to_vec);
    scalar.prop_recursive(4, 32, 4, |inner| {
        let spaced =
            (select(SPACES), inner, select(SPACES)).prop_map(|(a, value, b)| [a, &value, b].concat());
        let member = (select(NAMES), select(SPACES), spaced.clone());
        let member = member.prop_map(|(name, space, value)| [name, space, b":", &value].concat());
        prop_oneof![
            vec(spaced, 0..4).prop_map(|elements| [b"[", elements.join(&b","[..]).as_slice(), b"]"].concat()),
            vec(member, 0..5).prop_map(|members| [b"{", members.join(&b","[..]).as_slice(), b"}"].concat()),
        ]
    })
}

/// A pointer with one to four tokens, as an id source.
pub fn pointer() -> impl Strategy<Value = String> {
    vec(select(TOKENS), 1..5).prop_map(|tokens| format!("json:/{}", tokens.join("/")))
}

/// One byte that is changed or inserted.
#[derive(Debug, Clone)]
pub struct Damage {
    at: Index,
    byte: u8,
    inserts: bool,
}

pub fn damage() -> impl Strategy<Value = Damage> {
    let byte = prop_oneof![any::<u8>(), select(b"{}[]\",:\\0-~/".to_vec())];
    (any::<Index>(), byte, any::<bool>()).prop_map(|(at, byte, inserts)| Damage { at, byte, inserts })
}

impl Damage {
    pub fn applied(&self, document: &[u8]) -> Vec<u8> {
        let mut damaged = document.to_vec();
        let at = self.at.index(damaged.len() + 1);
        match damaged.get_mut(at) {
            Some(byte) if !self.inserts => *byte = self.byte,
            _ => damaged.insert(at, self.byte),
        }
        damaged
    }
}
