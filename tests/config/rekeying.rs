//! The configuration of `rekey`.

use dedupd::config::{Config, ConfigError, OnGap, PartitionBy, Rekeying};

use super::{LEAST, problems, sources};

/// The least that `rekey` needs.
const REKEY: &str = r#"
kafka.bootstrap_servers = "localhost:9092"
identity.from = "key"
rekey.from = ["a", "b"]
rekey.to = "t"
"#;

fn rekey_problems(toml: &str) -> Vec<String> {
    match Rekeying::from_sources(&sources(toml, &[])) {
        Err(ConfigError::Invalid(problems)) => problems.0.iter().map(ToString::to_string).collect(),
        other => panic!("expected problems, got {other:?}"),
    }
}

#[test]
fn rekey_needs_no_raw_and_no_clean_topic_and_run_needs_no_rekey() {
    let config = Rekeying::from_sources(&sources(REKEY, &[])).unwrap();
    assert_eq!(
        (config.rekey.from.as_slice(), config.rekey.to.as_str()),
        (&["a".into(), "b".into()][..], "t")
    );
    assert_eq!(
        (config.rekey.group.as_str(), config.rekey.partitioner),
        ("dedupd.rekey.t", PartitionBy::Murmur2)
    );
    assert_eq!((config.instance.as_str(), config.on_gap), ("host-1", OnGap::Stop));
    assert_eq!(Config::from_sources(&sources(LEAST, &[])).unwrap().rekey, None);
    let both =
        Config::from_sources(&sources(&format!("{LEAST}\n{}", &REKEY[REKEY.find("rekey.").unwrap()..]), &[]));
    assert_eq!(both.unwrap().rekey, Some(config.rekey));
}

#[test]
fn every_problem_of_rekey_is_reported() {
    assert_eq!(
        rekey_problems("identity.from = \"key\"\nrekey.partitioner = \"crc\""),
        [
            "kafka.bootstrap_servers: is missing; give host:port of one or more brokers, or --bootstrap-servers",
            "rekey.from: is missing; give names of topics, or one regular expression that begins with '^', or --from",
            "rekey.to: is missing; give the topic to write, or --to",
            "rekey.partitioner = \"crc\" (d.toml): is not one of the choices; give one of murmur2, consistent",
        ]
    );
    assert_eq!(
        rekey_problems(&REKEY.replace("\"t\"", "\"a\"")),
        ["rekey.to = \"a\" (d.toml): is also in rekey.from; give a topic that is not read"]
    );
    let remedy = "give names of topics, or one regular expression that begins with '^'";
    assert_eq!(
        rekey_problems(&REKEY.replace("[\"a\", \"b\"]", "[\"a\", \"a\", \"b/c\", \"^b/.*\"]")),
        [
            format!("rekey.from = \"a\" (d.toml): is listed twice; {remedy}"),
            format!(
                "rekey.from = \"b/c\" (d.toml): contains '/', but Kafka allows only letters, digits, '.', '_' and '-'; {remedy}"
            ),
        ]
    );
    let run = "topics.clean = \"c\"\ntopics.duplicates = \"t\"\n";
    assert_eq!(
        rekey_problems(&format!("{run}{}", REKEY.replace("\"b\"", "\"c.dedupd\""))),
        [
            "rekey.from = \"c.dedupd\" (d.toml): is topics.state, which dedupd run writes; leave it out; for a stage behind dedupd run \
             use another configuration file",
            "rekey.to = \"t\" (d.toml): is topics.duplicates, which dedupd run writes; give the topic that dedupd run reads, topics.raw",
        ]
    );
    // A section for `rekey` is checked by `run`, too, because both may use the same file.
    assert_eq!(problems("rekey.to = \"t\"").len(), 1);
}

#[test]
fn the_environment_sets_lists_and_what_is_shown_reads_back() {
    let environment = [("DEDUPD_REKEY__FROM", "[\"^shop\\\\..*\", \"x\"]"), ("DEDUPD_REKEY__GROUP", "g")];
    let config = Rekeying::from_sources(&sources(REKEY, &environment)).unwrap();
    assert_eq!(
        (config.rekey.from.as_slice(), config.rekey.group.as_str()),
        (&["^shop\\..*".into(), "x".into()][..], "g")
    );
    let again = Rekeying::from_sources(&sources(&config.show(), &[])).unwrap();
    assert_eq!(again, config, "{}", config.show());
}
