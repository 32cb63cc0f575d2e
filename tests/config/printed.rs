//! What is printed: no secret, and nothing that does not read back.

use std::path::PathBuf;
use std::time::Duration;

use dedupd::config::{Config, ConfigError, HashChoice, Shape, keys};

use super::{LEAST, good, problems_of, sources, with};

/// Property name → a secret that must never be printed.
const SECRETS: [(&str, &str); 12] = [
    ("sasl.password", "canary-01"),
    ("sasl.username", "canary-02"),
    ("ssl.key.password", "canary-03"),
    ("ssl.key.pem", "canary-04"),
    ("ssl.keystore.password", "canary-05"),
    ("ssl.certificate.pem", "canary-06"),
    ("sasl.oauthbearer.config", "canary-07"),
    ("sasl.oauthbearer.client.secret", "canary-08"),
    ("sasl.oauthbearer.assertion.private.key.passphrase", "canary-09"),
    ("sasl.kerberos.kinit.cmd", "canary-10"),
    ("a.property.of.next.year", "canary-11"),
    ("SASL.Password", "canary-12"),
];

#[test]
fn nothing_printed_holds_a_secret() {
    let toml: Vec<_> = SECRETS.iter().map(|(name, secret)| format!("\"{name}\" = \"{secret}\"")).collect();
    let toml = toml.join(
        "
",
    );
    let mut all =
        sources(&with(&format!("[kafka.properties]\n\"security.protocol\" = \"sasl_ssl\"\n{toml}")), &[]);
    let config = Config::from_sources(&all).unwrap();
    for text in [config.show(), format!("{config:?}")] {
        assert!(!text.contains("canary"), "{text}");
        assert!(text.contains("sasl_ssl"), "a harmless property is shown");
        assert!(SECRETS.iter().all(|(name, _)| text.contains(name)), "that a property is set is shown");
    }
    assert_eq!(config.show().matches("\"***\"").count(), SECRETS.len());

    // Nor does a problem, however the file is broken.
    all.file.as_mut().unwrap().text += "\n[window]\nexact = \"x\"\n";
    let refused = Config::from_sources(&all).unwrap_err();
    assert!(!refused.to_string().contains("canary") && !format!("{refused:?}").contains("canary"));
    let broken = "[kafka.properties]\n\"sasl.password\" = \"canary-13\n";
    let syntax = Config::from_sources(&sources(broken, &[])).unwrap_err();
    assert!(matches!(syntax, ConfigError::Syntax { .. }));
    assert!(!syntax.to_string().contains("canary"), "{syntax}");
    assert!(syntax.to_string().contains("line 2"), "{syntax}");
    let url = LEAST.replace("localhost:9092", "user:canary-14@localhost:9092");
    let lines = problems_of(&sources(&url, &[]));
    assert!(lines.len() == 1 && !lines[0].contains("canary"), "{lines:?}");
}

#[test]
fn what_is_shown_reads_back_as_the_same() {
    let more = "topics.dead_letter = \"d\"\ntopics.duplicates = \"u\"\nidentity.hash = \"siphash\"\n\
                identity.key_file = 'C:\\key \"1\"'\nidentity.on_missing = \"dead_letter\"\nidentity.force_header = \"again\"\n\
                window.false_positive_rate = 1e-7\nbatch.max_bytes = 3000\nbatch.interval = \"1500us\"\n\
                window.overflow = \"evict\"\nwindow.max_ids = 4096\nwindow.max_memory = \"2GiB\"\nstate.max_disk = \"20GB\"\n\
                kafka.properties.\"client.id\" = \"a\\tb\"\n\
                insight.by = [\"partition\", \"header:app\", \"json:/app\"]\nhttp.show_values = true\n\
                [[kinds]]\nname = \"pay\"\nfrom = \"json:/type\"\nvalues = [\"a\", 7]\nexact = \"7d\"\n\
                [[kinds]]\nname = \"noise\"\nfrom = \"header:k\"\nvalues = [\"x\"]\ndedupe = false";
    let config = good(more);
    let key_file = PathBuf::from(r#"C:\key "1""#);
    let lengths: Vec<_> =
        config.kinds.iter().map(|kind| kind.window.as_ref().map(|it| (it.exact, it.bloom))).collect();
    assert_eq!(lengths, [Some((Duration::from_hours(168), Duration::from_hours(168))), None]);
    assert_eq!(config.kinds[0].values, ["a", "7"]);
    assert_eq!(config.identity.hash, HashChoice::SipHash { key_file });
    let filters = "window.bloom = \"7d\"\n[[kinds]]\nname = \"pay\"\nfrom = \"header:k\"\nvalues = [\"a\"]\nbloom = \"30d\"";
    for config in [config, good(filters), good("")] {
        let mut again = sources(&config.show(), &[]);
        again.host = "another".to_owned();
        assert_eq!(Config::from_sources(&again).unwrap(), config, "{}", config.show());
    }
}

/// The output of `plan` with these flags.
fn planned(flags: &str) -> String {
    let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_dedupd"));
    let output = command.arg("plan").args(flags.split_whitespace()).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn the_keys_that_a_plan_prints_are_a_configuration() {
    let day = Duration::from_hours(24);
    let text = planned("--events 5000 --exact 24h --partitions 12 --toml");
    let config = good(&text);
    assert_eq!((config.window.exact, config.window.bloom, config.window.max_ids), (day, day, None), "{text}");
    // 432 million ids, at 2.4 bytes and more; 27 bytes of each on disk are at most five eighths.
    let (memory, disk) = (config.window.max_memory.unwrap(), config.state.max_disk.unwrap());
    assert!(text.contains("at five eighths of it"), "{text}");
    assert!((1 << 30..3 << 30).contains(&memory) && disk / 8 * 5 > 432_000_000 * 26, "{text}");
    let text = planned("--events 5000 --exact 24h --bloom 7days --false-positive-rate 1e-7 --toml");
    let window = good(&text).window;
    assert_eq!((window.bloom, window.false_positive_rate), (7 * day, 1e-7), "{text}");
    let text = planned("--events 5000 --exact 1h --overflow evict --max-ids 25000000 --toml");
    let window = good(&text).window;
    assert_eq!(window.max_ids, Some(25_000_000), "{text}");
    assert!(window.max_memory.unwrap() >= 25_000_000 * 8, "{text}");
    assert!(text.contains("at seven eighths of it"), "nothing is sealed: {text}");
    assert!(planned("--events 5000 --exact 24h --memory 100MiB").contains(": shorter than --exact 24h"));
}

#[test]
fn the_documented_file_holds_every_key_with_its_default() {
    let text = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/config/dedupd.toml")).unwrap();
    let documented = Config::from_sources(&sources(&text, &[])).unwrap();
    let least = "kafka.bootstrap_servers = \"localhost:9092\"\ntopics.raw = \"events.raw\"\n\
                 topics.clean = \"events.clean\"\nidentity.from = [\"json:/id\"]";
    assert_eq!(documented, Config::from_sources(&sources(least, &[])).unwrap());

    for section in keys() {
        let (head, keys) = match section.shape {
            Shape::Section(keys) => (format!("\n[{}]\n", section.name), keys),
            Shape::Tables(keys) => (format!("\n# [[{}]]\n", section.name), keys),
            other => panic!("{}: {other:?}", section.name),
        };
        let below = text.split_once(&head).unwrap().1;
        let below = below.split("\n[").next().unwrap().split("\n# [[").next().unwrap();
        let typed = below.lines().filter_map(|line| line.trim_start_matches("# ").split_once(" = "));
        for (name, _) in typed.filter(|(_, value)| value.starts_with(|c: char| "\"[0123456789".contains(c))) {
            let is_key = name.starts_with('"') || keys.iter().any(|key| key.name == name);
            assert!(is_key, "config/dedupd.toml: {}.{name}", section.name);
        }
        for key in keys.iter().filter(|key| key.shape != Shape::Map) {
            let shown = |line: &str| line.trim_start_matches("# ").starts_with(&format!("{} = ", key.name));
            assert!(below.lines().any(shown), "{}.{} is not in config/dedupd.toml", section.name, key.name);
        }
    }
}

/// The pages name keys in the form `section.key`.
#[test]
fn the_pages_name_only_keys_that_exist() {
    let top = env!("CARGO_MANIFEST_DIR");
    for section in keys() {
        let (Shape::Section(keys) | Shape::Tables(keys)) = section.shape else { panic!("{}", section.name) };
        for page in ["README.md", "docs/configuration.md", "docs/messages.md", "docs/operations.md"] {
            let text = std::fs::read_to_string(format!("{top}/{page}")).unwrap();
            for after in text.split(&format!("`{}.", section.name)).skip(1) {
                let name = after.split(|c: char| !(c.is_ascii_lowercase() || c == '_')).next().unwrap();
                assert!(keys.iter().any(|key| key.name == name), "{page}: {}.{name}", section.name);
            }
        }
    }
}
