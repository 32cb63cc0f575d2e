//! Where values come from: defaults, file, environment, flags.

use std::time::Duration;

use dedupd::config::{AsTyped, Config, ConfigSources, IdPart, IdSource, OnRewind, Property};

use super::{LEAST, good, problems_of, sources, with};

#[test]
fn the_least_is_enough_and_the_rest_follows_from_it() {
    let config = good("");
    assert_eq!(config.topics.state.as_str(), "clean.dedupd");
    assert_eq!(config.group.id, "dedupd.raw.clean");
    assert_eq!(config.group.instance, "host-1");
    assert_eq!(config.identity.from, ["json:/id".parse::<IdPart>().unwrap()]);
    assert_eq!(config.window.exact, Duration::from_hours(24));
    assert_eq!(config.window.bloom, config.window.exact);
    assert_eq!(config.batch.max_bytes, 256 << 20);
    assert_eq!(config.http.listen.to_string(), "127.0.0.1:9464");
}

#[test]
fn parts_of_an_id_have_alternatives_and_words() {
    let set = |toml: &str| sources(&LEAST.replace("\"json:/id\"", toml), &[]);
    let from = |toml: &str| Config::from_sources(&set(toml)).unwrap().identity.from;
    let part = |text: &str| text.parse::<IdPart>().unwrap();
    assert_eq!(
        from(r#"["header:ce_id | json:/id (lower)", "key"]"#),
        [part("header:ce_id | json:/id (lower)"), part("key")]
    );
    assert_eq!(
        from(r#"[["header:ce_id", "json:/id", "(lower)"]]"#),
        [part("header:ce_id | json:/id (lower)")]
    );
    let name = from(r#"[["header:a | key"]]"#);
    assert_eq!(name[0].sources(), [IdSource::Header("a | key".to_owned())]);
    let shown = Config::from_sources(&set(r#"[["header:a | key"]]"#)).unwrap().show();
    assert_eq!(Config::from_sources(&sources(&shown, &[])).unwrap().identity.from, name);
    let compared = good(r#"identity.compare = [["header:a (lowr)", "(lower)"], "key"]"#).identity.compared();
    let name = part(r#"["header:a (lowr)", "(lower)"]"#);
    assert_eq!(compared, [name, part("key")]);
    let alone = problems_of(&set(r#""key (optional)""#));
    assert!(alone[0].contains("is optional, but the id has no other part"), "{alone:?}");
    let word = problems_of(&set(r#""key (lowr)""#));
    assert!(word[0].contains("has the modifier 'lowr'"), "{word:?}");
    let deep = problems_of(&set(r#"[[["(lower)"]]]"#));
    assert!(
        deep[0].contains("or as a nested array with its sources and its modifiers, as in [["),
        "{deep:?}"
    );
    let early = problems_of(&set(r#""json:/id (lower) | header:id""#));
    let advice = r#"written as a nested array, [["json:/id (lower)","header:id"]], or as the text '["json:/id (lower)","header:id"]'"#;
    assert!(early[0].contains("brackets in 'json:/id (lower)'") && early[0].contains(advice), "{early:?}");
    assert_eq!(from(r#"'["json:/a | b"]'"#), from(r#"[["json:/a | b"]]"#));
}

#[test]
fn bloom_follows_exact() {
    assert_eq!(good("window.exact = \"90m\"").window.bloom, Duration::from_mins(90));
    assert_eq!(good("window.bloom = \"7days\"").window.bloom, Duration::from_hours(168));
}

#[test]
fn later_layers_win_and_problems_name_the_layer() {
    let environment = [("DEDUPD_TOPICS__RAW", "from-env"), ("DEDUPD_GROUP__ID", "from-env")];
    let mut all = sources(&with("group.id = \"from-file\"\ngroup.on_rewind = \"skip\""), &environment);
    all.flags = AsTyped::default().with("topics.raw", ["from-flag"]);
    let config = Config::from_sources(&all).unwrap();
    assert_eq!(config.topics.raw.as_str(), "from-flag");
    assert_eq!(config.group.id, "from-env");
    assert_eq!(config.group.on_rewind, OnRewind::Skip);

    all.environment.push(("DEDUPD_HTTP__LISTEN".to_owned(), "here".to_owned()));
    all.flags = all.flags.with("window.exact", ["soon"]);
    let lines = problems_of(&all);
    assert!(lines[0].starts_with(r#"window.exact = "soon" (command line): "#), "{lines:?}");
    assert!(lines[1].starts_with(r#"http.listen = "here" (DEDUPD_HTTP__LISTEN): "#), "{lines:?}");
}

#[test]
fn the_environment_alone_is_enough() {
    let environment = [
        ("DEDUPD_KAFKA__BOOTSTRAP_SERVERS", "a:1,b:2"),
        ("DEDUPD_KAFKA__PROPERTIES__SECURITY_PROTOCOL", "sasl_ssl"),
        ("DEDUPD_KAFKA__PROPERTIES__SASL_PASSWORD", "0123"),
        ("DEDUPD_TOPICS__RAW", "123"),
        ("DEDUPD_TOPICS__CLEAN", "true"),
        ("DEDUPD_TOPICS__DEAD_LETTER", ""),
        ("DEDUPD_IDENTITY__FROM", r#"["key", "header:event-id"]"#),
        ("DEDUPD_BATCH__MAX_RECORDS", "10_000"),
        ("PATH", "/bin"),
    ];
    let all = ConfigSources { file: None, ..sources("", &environment) };
    let config = Config::from_sources(&all).unwrap();
    assert_eq!(config.kafka.bootstrap_servers, "a:1,b:2");
    assert_eq!(config.kafka.properties.get("security.protocol"), Some("sasl_ssl"));
    assert_eq!(config.kafka.properties.get("sasl.password"), Some("0123"), "a text stays a text");
    assert_eq!(config.topics.raw.as_str(), "123");
    assert_eq!(config.topics.clean.as_str(), "true");
    assert_eq!(config.topics.dead_letter, None, "an empty variable is not set");
    assert_eq!(
        config.identity.from,
        [IdSource::Key, IdSource::Header("event-id".to_owned())].map(IdPart::from)
    );
    assert_eq!(config.batch.max_records, 10_000);
}

#[test]
fn variables_that_look_like_keys_are_errors_and_those_of_kubernetes_are_not() {
    let kubernetes = [("DEDUPD_PORT", "tcp://10.0.0.1:9464"), ("DEDUPD_SERVICE_PORT_HTTP", "9464")];
    assert!(Config::from_sources(&sources(LEAST, &kubernetes)).is_ok());

    let mistyped = [("DEDUPD_TOPICS__RWA", "x"), ("DEDUPD_TOPICS_STATE", "y")];
    assert_eq!(
        problems_of(&sources(LEAST, &mistyped)),
        [
            "topics.rwa (DEDUPD_TOPICS__RWA): is not a key of the configuration; did you mean topics.raw?",
            "topics.state (DEDUPD_TOPICS_STATE): is not set by this variable: two underscores are required after the section; set DEDUPD_TOPICS__STATE",
        ]
    );
    let flags = AsTyped::default().with("topics.rwa", ["x"]);
    assert_eq!(
        problems_of(&ConfigSources { flags, ..sources(LEAST, &[]) }),
        ["topics.rwa (command line): is not a key of the configuration; did you mean topics.raw?"]
    );
}

#[test]
fn properties_pass_through_from_every_layer() {
    let toml =
        with("[kafka.properties]\n\"linger.ms\" = 2\nfetch.wait.max.ms = 50\n\"client.id\" = \"file\"");
    let mut all = sources(&toml, &[("DEDUPD_KAFKA__PROPERTIES__CLIENT_ID", "env")]);
    all.flags = AsTyped::default().with_properties(&[Property::parse("client.rack=r1").unwrap()]);
    let config = Config::from_sources(&all).unwrap();
    let properties: Vec<_> = config.kafka.properties.iter().collect();
    assert_eq!(
        properties,
        [("client.id", "env"), ("client.rack", "r1"), ("fetch.wait.max.ms", "50"), ("linger.ms", "2")]
    );
}
