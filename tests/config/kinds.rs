//! Kinds that are refused.

use super::{LEAST, problems_of, sources};

#[test]
fn kinds_are_refused_with_their_place() {
    let cases: &[(&str, &[&str])] = &[
        (
            r#"kinds = [{ name = "a b", from = "key", values = [], dedupe = "no" }]"#,
            &[
                r#"kinds[0].name = "a b" (d.toml): is not a valid name of a kind; give a name of 1 to 32 letters, digits, '.', '_' and '-'"#,
                r#"kinds[0].from = "key" (d.toml): is not supported for kinds; give the header or the path that contains the kind: header:NAME, json:/pointer, avro:/path or protobuf:/path"#,
                r#"kinds[0].values (d.toml): is missing, or has an empty value; list the values of records of this kind, as in values = ["payment"]"#,
                r#"kinds[0].dedupe = "no" (d.toml): is neither true nor false; give true or false"#,
            ],
        ),
        (
            r#"kinds = [{ name = "a", from = "header:k", values = ["1"], exact = "2h", bloom = "1h", window = "1h" }]"#,
            &[
                r"kinds[0].window (d.toml): is not a key of the configuration; the keys of [[kinds]] are bloom, dedupe, exact, false_positive_rate, from, name, on_probable, values",
                r#"kinds[0].bloom = "1h" (d.toml): is shorter than kinds[0].exact = "2h"; set kinds[0].bloom = "2h" or longer, or leave it out"#,
            ],
        ),
        (
            r#"kinds = [{ name = "a", from = "header:k", values = ["1"] }, { name = "a", from = "header:k", values = ["2"] }]"#,
            &[r#"kinds[1].name = "a" (d.toml): is the name of two kinds; give another name"#],
        ),
        (
            r#"kinds = [{ name = "a", from = "header:k", values = ["1"], on_probable = "dead_letter" }]"#,
            &[
                r#"kinds[0].on_probable = "dead_letter" (d.toml): requires a dead-letter topic, but topics.dead_letter is not set; set topics.dead_letter, or choose another policy"#,
            ],
        ),
        (
            r#"kinds = [
                { name = "a", from = "header:k", values = ["1", "2"] },
                { name = "b", from = "header:k", values = ["2", "3"] },
                { name = "c", from = "json:/k", values = ["1"] },
            ]"#,
            &[
                r#"kinds[1].values = "2" (d.toml): is a value of kind "b" and of kind "a", which is first and would get all its records; list the value in one kind"#,
            ],
        ),
        (
            r#"window.exact = "x"
kinds = [{ name = "a", from = "header:k", values = [["1"]], exact = "y" }]"#,
            &[
                "kinds[0].values (d.toml): is neither a string nor a list of strings; write a string, a number or true/false",
                r#"window.exact = "x" (d.toml): is not a duration; write a number with a unit, as in "24h", "10s" or "100ms""#,
                r#"kinds[0].values: is missing, or has an empty value; list the values of records of this kind, as in values = ["payment"]"#,
                r#"kinds[0].exact = "y" (d.toml): is not a duration; write a number with a unit, as in "24h", "10s" or "100ms""#,
            ],
        ),
        (
            "kinds = 3",
            &[
                "kinds (d.toml): must be a list of tables; write [[kinds]] and its keys below it, in the configuration file",
            ],
        ),
    ];
    for (toml, lines) in cases {
        let file = format!("{toml}\n{LEAST}");
        assert_eq!(problems_of(&sources(&file, &[])), *lines, "for {toml}");
    }
    let nine: Vec<String> =
        (0..9).map(|n| format!("{{ name = \"k{n}\", from = \"header:k\", values = [\"{n}\"] }}")).collect();
    let file = format!("kinds = [{}]\n{LEAST}", nine.join(", "));
    assert_eq!(
        problems_of(&sources(&file, &[])),
        ["kinds: has too many entries; use at most 8; one kind can have several values"]
    );
}
