use super::*;
use proptest::prelude::*;
use serde_json::Value;

fn find<'d>(pointer: &str, document: &'d [u8]) -> Option<Cow<'d, [u8]>> {
    pointer.parse::<Pointer>().unwrap().find(document)
}

fn text(pointer: &str, document: &str) -> Option<String> {
    find(pointer, document.as_bytes()).map(|bytes| String::from_utf8(bytes.into_owned()).unwrap())
}

#[test]
fn scalars_give_their_content_or_json_text() {
    let document = r#" {"s":"abc","n":-1.50e3,"t":true,"f":false,"deep":{"list":[7,{"id":"x"}]}} "#;
    assert_eq!(text("/s", document).as_deref(), Some("abc"));
    assert_eq!(text("/n", document).as_deref(), Some("-1.50e3"));
    assert_eq!(text("/t", document).as_deref(), Some("true"));
    assert_eq!(text("/f", document).as_deref(), Some("false"));
    assert_eq!(text("/deep/list/0", document).as_deref(), Some("7"));
    assert_eq!(text("/deep/list/1/id", document).as_deref(), Some("x"));
    assert_eq!(text("/0", "[\"first\"]").as_deref(), Some("first"));
}

#[test]
fn escapes_do_not_change_the_id() {
    assert_eq!(text("/id", r#"{"id":"caf\u00e9/\n"}"#), text("/id", "{\"id\":\"caf\u{e9}\\/\\n\"}"));
    assert_eq!(text("/id", r#"{"\u0069d":"named by an escape"}"#).as_deref(), Some("named by an escape"));
    assert_eq!(text("/a\\nb", r#"{"a\nb":1,"a\\nb":2}"#).as_deref(), Some("2"), "not equal as written");
}

#[test]
fn a_plain_string_is_not_copied() {
    assert!(matches!(find("/id", br#"{"id":"abc"}"#), Some(Cow::Borrowed(b"abc"))));
}

#[test]
fn a_record_with_text_behind_its_document_has_no_id() {
    for (document, found) in [
        ("{\"id\":\"a\"}\n{\"id\":\"b\"}", None),
        ("{\"id\":\"a\"}{}", None),
        ("{\"id\":\"a\"} x", None),
        ("{\"id\":\"a\"}]", None),
        ("{\"id\":\"a\"", Some("a")),
        ("{\"id\":\"a\",", Some("a")),
        ("{\"id\":\"a\",\"x\":NaN}\n{\"id\":\"b\"}", None),
        ("{\"id\":\"a\",\"x\":\"} {\"} {}", None),
        ("{\"id\":\"a\"} \r\n\0", Some("a")),
        ("{\"id\":\"a\",\"x\":\"} {\"}", Some("a")),
        ("{\"id\":\"a\",\"x\":[{},{\"y\":[[]]}]}", Some("a")),
        ("{\"id\":\"a\",\"x\":NaN}", Some("a")),
        ("{\"id\":\"a\",\"x\":", Some("a")),
    ] {
        assert_eq!(text("/id", document).as_deref(), found, "{document}");
    }
}

#[test]
fn only_scalars_are_ids() {
    let document = r#"{"null":null,"empty":"","object":{"a":1},"array":[1],"number":5,"text":"t"}"#;
    for pointer in [
        "/absent",
        "/null",
        "/empty",
        "/object",
        "/array",
        "/object/b",
        "/array/1",
        "/array/00",
        "/array/-",
        "/array/a",
        "/number/a",
        "/text/0",
        "/",
    ] {
        assert_eq!(text(pointer, document), None, "{pointer}");
    }
    for document in ["{}", "[]", "7", "\"id\"", "null"] {
        assert_eq!((text("/id", document), text("/0", document)), (None, None), "{document}");
    }
}

#[test]
fn the_first_of_duplicate_keys_counts_and_no_other_is_followed() {
    assert_eq!(text("/id", r#"{"id":"a","id":"b"}"#).as_deref(), Some("a"));
    assert_eq!(text("/id", r#"{"id":null,"id":"b"}"#), None);
    assert_eq!(text("/a/id", r#"{"a":{"id":1},"a":{}}"#).as_deref(), Some("1"));
    for first in ["{}", "[]", "7", r#"{"x":{"id":1}}"#] {
        assert_eq!(text("/a/id", &format!(r#"{{"a":{first},"a":{{"id":1}}}}"#)), None, "{first}");
    }
}

#[test]
fn what_follows_the_id_is_not_looked_at() {
    for after in [r#"""#, r#"" x"#, r#"",}"#, r#"","x":tru"#, r#""]"#, "\"\u{0}"] {
        assert_eq!(text("/id", &format!(r#"{{"id":"a{after}"#)).as_deref(), Some("a"), "{after}");
    }
    assert_eq!(find("/id", b"{\"id\":\"a\"\xff").as_deref(), Some(&b"a"[..]));
    assert_eq!(text("/a/1", r#"{"a":[0,1 }"#).as_deref(), Some("1"));
}

#[test]
fn a_document_that_is_broken_before_the_id_has_no_id() {
    let before = [
        "",
        "x",
        "[",
        "]",
        "{]",
        "[}",
        "[1}",
        r#"{"a"}"#,
        r#"{"a":}"#,
        r#"{"a":1]"#,
        r#"{"a":1,}"#,
        "{1:1}",
        "[1,]",
        "[,]",
        "[1 1]",
        "01",
        "+1",
        "-",
        "-a",
        "1.",
        ".5",
        "1.e1",
        "1e",
        "1e+",
        "1x",
        "0x1",
        "tru",
        "truex",
        "nul",
        "NaN",
        "\"\n\"",
        r#""\x""#,
        r#""\u12g4""#,
        "\u{a0}1",
        "'a'",
        "/**/1",
    ];
    for broken in before {
        assert_eq!(text("/id", &format!(r#"{{"a":{broken},"id":1}}"#)), None, "{broken}");
    }
    for broken in [
        "",
        "{",
        "{,\"id\":1}",
        "{\"id\"1}",
        "{\"id\":,}",
        "\u{feff}{\"id\":1}",
        "\u{c}{\"id\":1}",
        "x{\"id\":1}",
    ] {
        assert_eq!(text("/id", broken), None, "{broken}");
    }
}

#[test]
fn an_id_that_is_broken_or_cut_off_is_none() {
    for id in [
        "1",
        "1x",
        "1\"",
        "1:",
        "1[",
        "01 ",
        "1. ",
        "- ",
        "tru}",
        "truex}",
        "true",
        "\"a",
        "\"\n\"",
        "\"\\x\"",
        "\"\\ud800\"",
    ] {
        assert_eq!(text("/id", &format!("{{\"id\":{id}")), None, "{id}");
    }
    for delimiter in [" ", "\n", "\t", "\r", ",", "}", "]"] {
        assert_eq!(text("/id", &format!("{{\"id\":-0.5E+1{delimiter}")).as_deref(), Some("-0.5E+1"));
        assert_eq!(text("/id", &format!("{{\"id\":true{delimiter}")).as_deref(), Some("true"));
    }
}

#[test]
fn unicode_is_checked_in_the_id_alone() {
    let unreadable: [&[u8]; 3] = [b"\"\xff\"", br#""\ud800""#, br#""\udc00\ud800""#];
    for text in unreadable {
        assert_eq!(find("/id", &[b"{\"id\":", text, b"}"].concat()), None);
        for prefix in [[b"{\"x\":", text, b","], [b"{", text, b":1,"]] {
            let document = [&prefix.concat()[..], b"\"id\":7}"].concat();
            assert_eq!(find("/id", &document).as_deref(), Some(&b"7"[..]), "{}", document.escape_ascii());
        }
    }
}

#[test]
fn deep_documents_neither_crash_nor_hide_the_id() {
    let deep = "[".repeat(200_000);
    assert_eq!(text("/id", &deep), None);
    assert_eq!(text("/0/0/0", &deep), None);
    let closed = format!(r#"{{"deep":{}{},"id":1}}"#, "[".repeat(100_000), "]".repeat(100_000));
    assert_eq!(text("/id", &closed).as_deref(), Some("1"));
}

#[test]
fn brackets_match_at_every_depth() {
    for depth in 1..200 {
        let object = |level: usize| level.is_multiple_of(3);
        let opening: String = (0..depth).map(|level| if object(level) { "{\"a\":" } else { "[" }).collect();
        let closing = |wrong: Option<usize>| -> String {
            (0..depth)
                .rev()
                .map(|level| if object(level) == (wrong != Some(level)) { '}' } else { ']' })
                .collect()
        };
        let id = |closing: String| text("/id", &format!(r#"{{"deep":{opening}0{closing},"id":1}}"#));
        assert_eq!(id(closing(None)).as_deref(), Some("1"), "{depth}");
        assert!((0..depth).all(|wrong| id(closing(Some(wrong))).is_none()), "{depth}");
    }
}

#[test]
fn pointers_print_as_parsed() {
    for pointer in ["/", "/a", "/a~1b/c~0d/0", "/~01"] {
        assert_eq!(pointer.parse::<Pointer>().unwrap().to_string(), pointer);
    }
    assert_eq!(text("/a~1b/c~0d", r#"{"a/b":{"c~d":1}}"#).as_deref(), Some("1"));
    assert_eq!(text("/~01", r#"{"~1":1}"#).as_deref(), Some("1"));
    for pointer in ["", "id"] {
        assert_eq!(pointer.parse::<Pointer>(), Err(PointerError::Slash));
    }
    assert_eq!("/a~2".parse::<Pointer>(), Err(PointerError::Tilde));
}

/// Documents without duplicate keys.
fn documents() -> impl Strategy<Value = Value> {
    let string = || {
        prop_oneof![
            "[a-c~/\"\\\\\n]{0,3}",
            "\\PC{0,20}",
            prop::collection::vec(any::<char>(), 0..12).prop_map(String::from_iter)
        ]
    };
    let scalar = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        string().prop_map(Value::from),
    ];
    scalar.prop_recursive(5, 40, 6, move |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..6).prop_map(Value::from),
            prop::collection::btree_map(string(), inner, 0..6)
                .prop_map(|members| members.into_iter().collect()),
        ]
    })
}

/// The pointers to all values of a document but the document itself.
fn pointers(document: &Value, above: &str, found: &mut Vec<String>) {
    let members: Vec<(String, &Value)> = match document {
        Value::Object(members) => members.iter().map(|(name, value)| (name.clone(), value)).collect(),
        Value::Array(elements) => {
            elements.iter().enumerate().map(|(at, value)| (at.to_string(), value)).collect()
        }
        _ => Vec::new(),
    };
    for (name, value) in members {
        let pointer = format!("{above}/{}", name.replace('~', "~0").replace('/', "~1"));
        pointers(value, &pointer, found);
        found.push(pointer);
    }
}

fn id_of(value: &Value) -> Option<String> {
    let id = match value {
        Value::String(text) => text.clone(),
        Value::Bool(_) | Value::Number(_) => value.to_string(),
        Value::Null | Value::Array(_) | Value::Object(_) => return None,
    };
    (!id.is_empty()).then_some(id)
}

/// The same document with every character outside ASCII as escapes.
fn escaped(document: &str) -> String {
    let escape = |unit: &u16| format!("\\u{unit:04x}");
    let units = |char: char| char.encode_utf16(&mut [0; 2]).iter().map(escape).collect::<String>();
    document.chars().map(|char| if char.is_ascii() { char.to_string() } else { units(char) }).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(500) })]

    #[test]
    fn every_value_of_a_document_is_found_and_read_no_further_than_its_end(document in documents()) {
        let mut all = Vec::new();
        pointers(&document, "", &mut all);
        let compact = document.to_string();
        for pointer in all {
            let expected = id_of(document.pointer(&pointer).unwrap());
            for written in [serde_json::to_string_pretty(&document).unwrap(), escaped(&compact), compact.clone()] {
                prop_assert_eq!(text(&pointer, &written), expected.clone(), "{} of {}", pointer, written);
            }
            // From one length on the id is there, whatever follows inside of the document.
            let found = |length: usize| find(&pointer, &compact.as_bytes()[..length]);
            let shortest = (0..=compact.len()).find(|length| found(*length).is_some());
            prop_assert_eq!(shortest.is_some(), expected.is_some());
            if let Some(shortest) = shortest {
                // In a document that was cut off, such brackets in a text count as a second document.
                let is_doubtful = ["}{", "}[", "]{", "]["].iter().any(|two| compact.contains(two));
                let is_found = |length| found(length) == found(compact.len());
                prop_assert!(is_doubtful || (shortest..=compact.len()).all(is_found));
                let followed = [&compact.as_bytes()[..shortest], b"\xff{\0"].concat();
                // Behind the whole document it is text that makes the id doubtful.
                let expected = (shortest < compact.len()).then(|| found(shortest)).flatten();
                prop_assert_eq!(find(&pointer, &followed), expected);
            }
        }
    }
}
