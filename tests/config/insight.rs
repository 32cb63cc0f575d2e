//! By what duplicates are counted: contents of records need a permission, and a schema that is known.

use dedupd::config::Config;

use super::{LEAST, good, problems, sources};

#[test]
fn only_contents_of_records_need_the_permission() {
    let by = |more: &str| good(more).insight.by.iter().map(ToString::to_string).collect::<Vec<_>>();
    assert_eq!(by(""), [""; 0]);
    assert_eq!(by("insight.by = \"partition\""), ["partition"]);
    let three = "insight.by = [\"header:app\", \"key\", \"json:/app\"]";
    assert_eq!(by(&format!("{three}\nhttp.show_values = true")), ["header:app", "key", "json:/app"]);
    let refused = |source| {
        format!(
            "insight.by = \"{source}\" (d.toml): would show contents of records on the status page, which has no authentication; \
             set http.show_values = true, or give a header or partition"
        )
    };
    assert_eq!(problems(three), ["key", "json:/app"].map(refused));
    let name = r#"insight.by = '["header:a (b)"]'"#;
    assert_eq!(by(name), [r#"["header:a (b)"]"#]);
    let shown = good(name).show();
    assert_eq!(Config::from_sources(&sources(&shown, &[])).unwrap().insight.by, good(name).insight.by);
    let list = [("DEDUPD_INSIGHT__BY", "[\"header:app\", \"partition\"]")];
    assert_eq!(Config::from_sources(&sources(LEAST, &list)).unwrap().insight.by.len(), 2);
}

#[test]
fn sources_are_few_and_valid_and_their_schema_is_known() {
    assert_eq!(
        problems("insight.by = [\"header:a\", \"header:b\", \"header:c\", \"partition\"]"),
        ["insight.by (d.toml): has 4 sources; give at most three"]
    );
    let refused = problems("insight.by = \"offset\"");
    let expected =
        "insight.by = \"offset\" (d.toml): is not a source of an id; give partition, key, value, header:NAME";
    assert!(refused.len() == 1 && refused[0].starts_with(expected), "{refused:?}");
    let registry =
        "http.show_values = true\nschemas.registry = \"http://localhost:8081\"\ninsight.by = \"avro:/app\"";
    assert_eq!(
        problems(registry),
        [
            "insight.by = \"avro:/app\" (d.toml): needs a schema, and no source of identity.from or identity.compare needs the same; \
          set schemas.value to a file"
        ]
    );
    for known in ["schemas.value = \"a.avsc\"", "identity.compare = \"avro:/amount\""] {
        good(&format!("{registry}\n{known}"));
    }
}
