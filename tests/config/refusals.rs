//! What is refused, in which words.

use dedupd::config::Config;

use super::{LEAST, problems, problems_of, sources, with};

/// What is added to a good configuration → the one line that refuses it.
const CASES: &[(&str, &str)] = &[
    (
        r#"schemas.registry = "localhost:8081""#,
        r#"schemas.registry = "localhost:8081" (d.toml): is not the URL of an HTTP server; give the URL of the registry, as in http://localhost:8081"#,
    ),
    (
        r#"schemas.username = "u""#,
        r#"schemas.username = "u" (d.toml): has no password; set schemas.password_file"#,
    ),
    (
        r#"schemas.password_file = "p""#,
        "schemas.password_file (d.toml): has no effect without a user; set schemas.username",
    ),
    (
        r#"schemas.certificate_file = "c""#,
        "schemas.certificate_file (d.toml): has no effect without schemas.private_key_file; set schemas.private_key_file",
    ),
    (
        r#"window.bloom = "1h""#,
        r#"window.bloom = "1h" (d.toml): is shorter than window.exact = "24h"; set window.bloom = "24h" or longer, or leave it out"#,
    ),
    (
        "window.overflow = \"evict\"\nwindow.bloom = \"7d\"",
        r#"window.overflow = "evict" (d.toml): cannot be combined with a longer window.bloom, or bloom in [[kinds]]; remove bloom, or set window.overflow = "shrink""#,
    ),
    (
        "window.overflow = \"evict\"",
        r#"window.overflow = "evict" (d.toml): needs window.max_ids, the number of slots of its table; set it; dedupd plan prints the slots that a window needs"#,
    ),
    (
        "window.overflow = \"evict\"\n[[kinds]]\nname = \"a\"\nfrom = \"header:k\"\nvalues = [\"1\"]\nbloom = \"7d\"",
        r#"window.overflow = "evict" (d.toml): cannot be combined with a longer window.bloom, or bloom in [[kinds]]; remove bloom, or set window.overflow = "shrink""#,
    ),
    (
        r#"window.exact = "24x""#,
        r#"window.exact = "24x" (d.toml): is not a duration; write a number with a unit, as in "24h", "10s" or "100ms""#,
    ),
    (
        "window.exact = 24",
        r#"window.exact = "24" (d.toml): has no unit; write a number with a unit, as in "24h", "10s" or "100ms""#,
    ),
    (r#"window.exact = "5ms""#, r#"window.exact = "5ms" (d.toml): is too short; give at least "1s""#),
    (
        "window.false_positive_rate = 0.6",
        r#"window.false_positive_rate = "0.6" (d.toml): is out of range; give a number from 1e-10 to 0.5, as in 1e-9"#,
    ),
    (
        "window.false_positive_rate = 0",
        r#"window.false_positive_rate = "0" (d.toml): is out of range; give a number from 1e-10 to 0.5, as in 1e-9"#,
    ),
    (
        "window.max_ids = 0",
        r#"window.max_ids = "0" (d.toml): is out of range; give a whole number from 1 to 274877906944"#,
    ),
    (
        r#"window.overflow = "grow""#,
        r#"window.overflow = "grow" (d.toml): is not one of the choices; give one of shrink, evict"#,
    ),
    (
        r#"window.max_memory = "1MiB""#,
        r#"window.max_memory = "1MiB" (d.toml): is too small; give at least "16MiB""#,
    ),
    (
        r#"state.max_disk = "10MB""#,
        r#"state.max_disk = "10MB" (d.toml): is too small; give at least "16MiB""#,
    ),
    (
        r#"window.time = "wall""#,
        r#"window.time = "wall" (d.toml): is not one of the choices; give one of record, arrival"#,
    ),
    (
        "group.workers = 0",
        r#"group.workers = "0" (d.toml): is out of range; give a whole number from 1 to 1000"#,
    ),
    (
        r#"group.workers = "many""#,
        r#"group.workers = "many" (d.toml): is not a whole number; give a whole number from 1 to 1000"#,
    ),
    (
        "group.workers = 2",
        r#"group.workers = "2" (d.toml): is above 1, but with dedupe.scope = "topic" one worker processes all partitions; set group.workers = 1; or set dedupe.scope = "partition": workers and instances then share the partitions, an id counts once in each of them, and copies in other partitions are forwarded"#,
    ),
    (
        r#"group.on_stop = "remain""#,
        r#"group.on_stop = "remain" (d.toml): is for dedupe.scope = "partition": in topic scope a spare could take over only after group.session_timeout; set group.on_stop = "leave""#,
    ),
    (
        "dedupe.scope = \"partition\"\ngroup.on_stop = \"remain\"\ngroup.static_membership = false",
        r#"group.on_stop = "remain" (d.toml): requires group.static_membership: a restarted instance could not resume its membership; set group.on_stop = "leave""#,
    ),
    (
        "group.static_membership = false\n[kafka.properties]\n\"client.id\" = \"team\"",
        r#"kafka.properties.client.id = "team" (d.toml): requires group.static_membership: instances recognise the members of the group by their client ids, or by their static membership; leave it out, or set group.static_membership = true"#,
    ),
    (
        r#"group.instance = "a b""#,
        r#"group.instance = "a b" (d.toml): contains ' ', but Kafka allows only letters, digits, '.', '_' and '-'; give a name that stays the same across restarts: letters, digits, '.', '_' and '-'"#,
    ),
    (
        r#"group.on_rewind = "go""#,
        r#"group.on_rewind = "go" (d.toml): is not one of the choices; give one of stop, skip, reemit"#,
    ),
    (
        r#"group.static_membership = "yes""#,
        r#"group.static_membership = "yes" (d.toml): is neither true nor false; give true or false"#,
    ),
    (
        r#"batch.transaction_timeout = "10s""#,
        r#"batch.transaction_timeout = "10s" (d.toml): is not below group.session_timeout = "10s", so a dead instance would block the next one; lower it, or raise group.session_timeout"#,
    ),
    (
        r#"group.session_timeout = "6s""#,
        r#"batch.transaction_timeout = "8s": is not below group.session_timeout = "6s", so a dead instance would block the next one; lower it, or raise group.session_timeout"#,
    ),
    (
        r#"batch.interval = "8s""#,
        r#"batch.interval = "8s" (d.toml): is not below batch.transaction_timeout = "8s", so every transaction would time out; lower it, or raise batch.transaction_timeout"#,
    ),
    (
        r#"group.session_timeout = "2h""#,
        r#"group.session_timeout = "2h" (d.toml): is too long; give at most "1h""#,
    ),
    (
        "kafka.properties.\"fetch.wait.max.ms\" = 10001",
        r#"kafka.properties.fetch.wait.max.ms = "10001" (d.toml): is too long: meanwhile no records would be processed; give at most 10000"#,
    ),
    (
        "batch.max_records = 0",
        r#"batch.max_records = "0" (d.toml): is out of range; give a whole number from 1 to 10000000"#,
    ),
    (
        r#"batch.max_bytes = "lots""#,
        r#"batch.max_bytes = "lots" (d.toml): is not a size; write a number with a unit, as in "32MiB""#,
    ),
    (r#"state.cache = "4KiB""#, r#"state.cache = "4KiB" (d.toml): is too small; give at least "1MiB""#),
    (
        r#"state.on_poison = "dead_letter""#,
        r#"state.on_poison = "dead_letter" (d.toml): requires a dead-letter topic, but topics.dead_letter is not set; set topics.dead_letter, or choose another policy"#,
    ),
    (
        "identity.compare = []",
        r#"identity.compare (d.toml): is an empty list; write "off" to compare nothing, or leave it out for the default"#,
    ),
    (
        r#"insight.by = "header:ce_type | json:/type""#,
        r#"insight.by = "header:ce_type | json:/type" (d.toml): has alternatives or words in brackets, which only identity.from and identity.compare may have (a name that has such signs is written as the text '["header:ce_type | json:/type"]'); give partition, key, value, header:NAME, json:/pointer, avro:/path or protobuf:/path, avro:name or protobuf:name (of a key: key:json:/pointer and so on)"#,
    ),
    (
        r#"identity.on_missing = "dead_letter""#,
        r#"identity.on_missing = "dead_letter" (d.toml): requires a dead-letter topic, but topics.dead_letter is not set; set topics.dead_letter, or choose another policy"#,
    ),
    (
        r#"window.on_probable = "dead_letter""#,
        r#"window.on_probable = "dead_letter" (d.toml): requires a dead-letter topic, but topics.dead_letter is not set; set topics.dead_letter, or choose another policy"#,
    ),
    (
        r#"identity.hash = "siphash""#,
        r#"identity.hash = "siphash" (d.toml): requires a secret key, but identity.key_file is not set; set identity.key_file to a file that only dedupd may read"#,
    ),
    (
        r#"identity.key_file = "/k""#,
        r#"identity.key_file = "/k" (d.toml): has no effect with identity.hash = "xxh3"; set identity.hash = "siphash", or leave the key file out"#,
    ),
    (
        r#"topics.state = "raw""#,
        r#"topics.state = "raw" (d.toml): is the same topic as topics.raw; give different topics"#,
    ),
    (
        r#"topics.dead_letter = "clean""#,
        r#"topics.dead_letter = "clean" (d.toml): is the same topic as topics.clean; give different topics"#,
    ),
    (
        r#"topics.duplicates = "a/b""#,
        r#"topics.duplicates = "a/b" (d.toml): contains '/', but Kafka allows only letters, digits, '.', '_' and '-'; give a name of 1 to 249 letters, digits, '.', '_' and '-'"#,
    ),
    (
        r#"http.listen = "localhost""#,
        r#"http.listen = "localhost" (d.toml): is not an IP address with a port; give an IP address and a port, as in 127.0.0.1:9464, or 0.0.0.0:9464 for all interfaces"#,
    ),
];

#[test]
fn each_impossible_combination_gives_exactly_its_message() {
    for (toml, line) in CASES {
        assert_eq!(problems(toml), [*line], "for {toml}");
    }
}

#[test]
fn raw_may_not_be_clean_and_sources_of_an_id_must_exist() {
    let same = LEAST.replace("\"clean\"", "\"raw\"");
    assert_eq!(
        problems_of(&sources(&same, &[])),
        [r#"topics.clean = "raw" (d.toml): is the same topic as topics.raw; give different topics"#]
    );
    let odd = LEAST.replace("\"json:/id\"", "[\"key\", \"json:id\"]");
    assert_eq!(
        problems_of(&sources(&odd, &[])),
        [
            r#"identity.from = "json:id" (d.toml): has a JSON pointer that does not start with '/'; give key, value, header:NAME, json:/pointer, avro:/path or protobuf:/path, avro:name or protobuf:name (of a key: key:json:/pointer and so on), as in ["json:/id"]"#
        ]
    );
    for (text, why) in [
        (
            "json:/items/*/id",
            "has the step '*', but its path has to name one value, as json:/items/0/id does; give key,",
        ),
        (
            "json:/id,key",
            "has several sources in one text, but each part of an id is an element of its own, or a flag of its own;",
        ),
    ] {
        let odd = LEAST.replace("json:/id", text);
        let problems = problems_of(&sources(&odd, &[]));
        assert!(problems[0].contains(&format!("{text:?} (d.toml): {why}")), "{problems:?}");
    }
    for (servers, fault) in [
        (
            "a:1 b:2",
            r#"contains a space or ';' in "a:1 b:2"; separate brokers with commas, as in a:9092,b:9092"#,
        ),
        (
            "a:1;b:2",
            r#"contains a space or ';' in "a:1;b:2"; separate brokers with commas, as in a:9092,b:9092"#,
        ),
        (
            "a:1,127.0.0.1:99999",
            r#"has a port out of range in "127.0.0.1:99999"; give a port from 1 to 65535"#,
        ),
        ("a:0", r#"has a port out of range in "a:0"; give a port from 1 to 65535"#),
        ("a:x", r#"has no port in "a:x"; give host:port, as in localhost:9092"#),
        ("localhost:9092,other", r#"has no port in "other"; give host:port, as in localhost:9092"#),
        (
            "kafka://localhost:9092",
            "has the scheme \"kafka\" in \"kafka://localhost:9092\"; give host:port, as in localhost:9092; the protocol is \
             kafka.properties.\"security.protocol\"",
        ),
    ] {
        let wrong = LEAST.replace("localhost:9092", servers);
        let expected = format!("kafka.bootstrap_servers = {servers:?} (d.toml): {fault}");
        assert_eq!(problems_of(&sources(&wrong, &[])), [expected]);
    }
}

#[test]
fn everything_missing_is_named_at_once() {
    assert_eq!(
        problems_of(&sources("", &[])),
        [
            "kafka.bootstrap_servers: is missing; give host:port of one or more brokers, or --bootstrap-servers",
            "topics.raw: is missing; give the topic to read, or --raw",
            "topics.clean: is missing; give the topic to write, or --clean",
            "identity.from: is missing; give key, value, header:NAME, json:/pointer, avro:/path or protobuf:/path, avro:name or protobuf:name (of a key: key:json:/pointer and so on), as in [\"json:/id\"], or --id",
        ]
    );
}

#[test]
fn several_problems_give_several_lines_and_a_count() {
    let more = "topics.rwa = 1\nwindow.exact = \"x\"\nwindow.bloom = \"1s\"\ngroup.workers = 0\nbatch.max_records = 0";
    let keys: Vec<_> =
        problems(more).iter().map(|line| line.split([' ', ':']).next().unwrap().to_owned()).collect();
    // No rule between window.exact and window.bloom is checked: one of them has no value.
    assert_eq!(keys, ["topics.rwa", "group.workers", "window.exact", "batch.max_records"]);
    let error = Config::from_sources(&sources(&with(more), &[])).unwrap_err().to_string();
    assert!(error.starts_with("the configuration has 4 problems:\n  topics.rwa (d.toml): "), "{error}");
    assert_eq!(error.lines().count(), 5);
}

/// A section with an invalid key has no value, but its other keys have one.
#[test]
fn no_problem_hides_one_of_another_key() {
    let more = "[Kafka]\n[group]\nworkers = 2\ninstance = \"a b\"\non_stop = \"remain\"\n[batch]\ninterval = \"0s\"\n\
                transaction_timeout = \"20s\"\n[dedupe]\nmode = \"x\"\n[window]\nexact = \"x\"\noverflow = \"evict\"\n\
                on_probable = \"dead_letter\"\n[[kinds]]\nname = \"k\"\nfrom = \"avro:/k\"";
    let lines = problems(more);
    let keys: Vec<_> = lines.iter().map(|line| line.split([' ', ':']).next().unwrap()).collect();
    assert_eq!(
        keys,
        [
            "Kafka",
            "group.instance",
            "dedupe.mode",
            "window.exact",
            "kinds[0].values",
            "batch.interval",
            "batch.transaction_timeout",
            "group.workers",
            "group.on_stop",
            "window.on_probable",
            "window.overflow",
            "kinds[0].from",
        ],
        "{lines:#?}"
    );
}

#[test]
fn unknown_keys_are_errors_with_a_suggestion_and_without_their_value() {
    let more = "topics.rwa = \"x\"\nwindow.max_record = 1\nbatch.linger = \"5ms\"\nkafka.sasl_password = \"hunter2\"\n\
                window.interval = \"1s\"\ntopic.raw = \"r\"\nhttp.listen.port = 1\nnonsense = 3";
    let mut lines = problems(more);
    lines.sort();
    assert_eq!(
        lines,
        [
            "batch.linger (d.toml): is not a key of the configuration; the keys of [batch] are interval, max_bytes, max_records, transaction_timeout",
            "http.listen (d.toml): is a table or a list, but must be a single value; write a string, a number or true/false",
            "kafka.sasl_password (d.toml): is not a key of the configuration; the keys of [kafka] are bootstrap_servers, properties",
            "nonsense (d.toml): is not a section of the configuration; the sections are batch, dedupe, group, http, identity, insight, kafka, kinds, rekey, schemas, state, topics, window",
            "topic (d.toml): is not a section of the configuration; did you mean [topics]?",
            "topics.rwa (d.toml): is not a key of the configuration; did you mean topics.raw?",
            "window.interval (d.toml): is not a key of the configuration; did you mean batch.interval?",
            "window.max_record (d.toml): is not a key of the configuration; did you mean batch.max_records?",
        ]
    );
}

#[test]
fn properties_that_would_break_the_promise_are_refused_by_name() {
    let names = [
        "acks",
        "allow.auto.create.topics",
        "auto.commit.enable",
        "auto.offset.reset",
        "bootstrap.servers",
        "delivery.report.only.error",
        "dr_msg_cb",
        "enable.auto.commit",
        "enable.auto.offset.store",
        "enable.idempotence",
        "enable.partition.eof",
        "fetch.queue.backoff.ms",
        "group.id",
        "group.instance.id",
        "group.protocol",
        "heartbeat.interval.ms",
        "isolation.level",
        "max.in.flight",
        "max.in.flight.requests.per.connection",
        "message.max.bytes",
        "message.timeout.ms",
        "metadata.broker.list",
        "partition.assignment.strategy",
        "partitioner",
        "plugin.library.paths",
        "session.timeout.ms",
        "test.mock.num.brokers",
        "transaction.timeout.ms",
        "transactional.id",
    ];
    let toml: Vec<_> = names.iter().map(|name| format!("\"{name}\" = \"1\"")).collect();
    let lines = problems(&format!("[kafka.properties]\n{}", toml.join("\n")));
    assert_eq!(lines.len(), names.len(), "{lines:#?}");
    for (line, name) in lines.iter().zip(names) {
        assert!(line.starts_with(&format!("kafka.properties.{name} = \"1\" (d.toml): ")), "{line}");
    }
    let line = |name: &str| lines.iter().find(|line| line.contains(&format!(".{name} "))).unwrap();
    assert_eq!(
        *line("session.timeout.ms"),
        "kafka.properties.session.timeout.ms = \"1\" (d.toml): must stay above the transaction timeout; set group.session_timeout"
    );
    assert_eq!(
        *line("isolation.level"),
        "kafka.properties.isolation.level = \"1\" (d.toml): is always read_committed: takeover and restore rely on it; leave it out"
    );
    assert!(line("transaction.timeout.ms").ends_with("set batch.transaction_timeout"));
    assert!(line("auto.offset.reset").ends_with("set group.start"));
}

#[test]
fn a_source_that_needs_a_schema_is_refused_without_one() {
    let of = |source: &str| problems_of(&sources(&LEAST.replace("json:/id", source), &[]));
    assert_eq!(
        of("avro:/id"),
        [
            r#"identity.from = "avro:/id" (d.toml): needs a schema; set schemas.registry to the URL of the registry, or schemas.value to a file"#
        ]
    );
    assert_eq!(
        of("key:protobuf:/id"),
        [
            r#"identity.from = "key:protobuf:/id" (d.toml): needs a schema; set schemas.registry to the URL of the registry, or schemas.key to a file"#
        ]
    );
    assert!(Config::from_sources(&sources(&LEAST.replace("json:/id", "protobuf:/1"), &[])).is_ok());
    let with_registry =
        format!("{}\nschemas.registry = \"http://localhost\"", LEAST.replace("json:/id", "avro:/id"));
    assert!(Config::from_sources(&sources(&with_registry, &[])).is_ok());
}
