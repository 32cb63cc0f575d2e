//! Claims about the command line: flags become keys, mistakes are named, help tells what scripts
//! rely on.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    reason = "a test fails by panicking"
)]

mod endings;

use std::path::Path;

use dedupd::cli::{Command, Exit, LogFormat, ServiceArgs, StateCommand, parse_from};
use dedupd::config::{
    AsTyped, Config, ConfigSources, IdPart, IdSource, Local, PartitionBy, Rekeying, Scope, Shape, keys,
};
use dedupd_audit::Range;

fn parse(line: &str) -> Result<Command, String> {
    parse_from(std::iter::once("dedupd").chain(line.split_whitespace()))
}

fn run(line: &str) -> ServiceArgs {
    match parse(line) {
        Ok(Command::Run(args)) => args,
        other => panic!("expected run, got {other:?}"),
    }
}

fn config(flags: AsTyped) -> Config {
    Config::from_sources(&ConfigSources { flags, host: "h".to_owned(), ..ConfigSources::default() }).unwrap()
}

#[test]
fn flags_alone_are_a_configuration() {
    let args = run("run --bootstrap-servers localhost:9092 --raw r --clean c --id json:/id");
    assert_eq!(args.config.as_deref(), None);
    assert_eq!(args.log_format, LogFormat::Text);
    let config = config(args.overrides());
    assert_eq!((config.topics.raw.as_str(), config.topics.state.as_str()), ("r", "c.dedupd"));
    assert_eq!(config.group.id, "dedupd.r.c");
}

#[test]
fn every_flag_sets_its_key() {
    let args = run(
        "run -c f.toml --bootstrap-servers a:1 --raw r --clean c --state s --create --id key --id header:x \
                    --group g --instance i --scope partition --workers 3 --state-dir /d --listen 0.0.0.0:1 --exact 2h \
                    -X client.id=me -X sasl.password=a=b --log-format json",
    );
    assert_eq!(args.config.as_deref(), Some(Path::new("f.toml")));
    assert_eq!(args.log_format, LogFormat::Json);
    let config = config(args.overrides());
    assert_eq!(config.kafka.bootstrap_servers, "a:1");
    assert_eq!(config.kafka.properties.get("client.id"), Some("me"));
    assert_eq!(config.kafka.properties.get("sasl.password"), Some("a=b"));
    assert_eq!((config.topics.state.as_str(), config.topics.create), ("s", true));
    assert_eq!(config.identity.from, [IdSource::Key, IdSource::Header("x".to_owned())].map(IdPart::from));
    assert_eq!(
        (config.group.id.as_str(), config.group.instance.as_str(), config.group.workers),
        ("g", "i", 3)
    );
    assert_eq!(config.dedupe.scope, Scope::Partition);
    assert_eq!(config.state.dir, Path::new("/d"));
    assert_eq!(config.http.listen.to_string(), "0.0.0.0:1");
    assert_eq!(config.window.exact.as_secs(), 7_200);
}

#[test]
fn every_flag_of_rekey_sets_its_key() {
    let line = "rekey -c f.toml --bootstrap-servers a:1 --from x --from ^y\\. --to t --partitioner consistent --id key \
                --group g --instance i --listen 0.0.0.0:1 -X client.id=me --log-format json";
    let Ok(Command::Rekey(args)) = parse(line) else { panic!("rekey") };
    assert_eq!((args.config.as_deref(), args.log_format), (Some(Path::new("f.toml")), LogFormat::Json));
    let config =
        Rekeying::from_sources(&ConfigSources { flags: args.overrides(), ..ConfigSources::default() })
            .unwrap();
    assert_eq!(config.kafka.properties.get("client.id"), Some("me"));
    assert_eq!(
        (config.rekey.from.as_slice(), config.rekey.to.as_str()),
        (&["x".into(), "^y\\.".into()][..], "t")
    );
    assert_eq!(
        (config.rekey.partitioner, config.id.as_slice()),
        (PartitionBy::Consistent, &[IdPart::from(IdSource::Key)][..])
    );
    assert_eq!((config.rekey.group.as_str(), config.instance.as_str()), ("g", "i"));
    assert_eq!(config.listen.to_string(), "0.0.0.0:1");
    assert!(matches!(parse("rekey"), Ok(Command::Rekey(args)) if args.overrides() == AsTyped::default()));
}

#[test]
fn flags_not_given_override_nothing() {
    assert_eq!(run("run").overrides(), AsTyped::default());
}

#[test]
fn the_other_commands_have_the_documented_defaults() {
    let Ok(Command::Demo(demo)) = parse("demo") else { panic!("demo") };
    assert_eq!((demo.forever, demo.seconds, demo.duplicates), (false, 20, 0.2));
    let Ok(Command::Generate(generate)) = parse("generate --bootstrap-servers a:1 --topic t") else {
        panic!("generate")
    };
    assert_eq!((generate.size, generate.duplicates, generate.cut_acks), (200, 0.1, false));
    assert_eq!(
        (generate.records, generate.rate, generate.seed, generate.partitions),
        (None, None, None, None)
    );
    let Ok(Command::Audit(audit)) = parse("audit --raw r --window 1h --json") else { panic!("audit") };
    assert!(audit.json);
    let sources = ConfigSources { flags: audit.overrides(), ..ConfigSources::default() };
    assert_eq!(Local::from_sources(&sources).unwrap().window.exact.as_secs(), 3_600);
    assert_eq!((audit.memory, audit.samples, audit.allow_gone), (256 << 20, 10, false));
    assert_eq!(audit.range(9), Ok(Range::default()));
    let ranged =
        "audit --from 1970-01-01T00:00:01Z --to 2s --memory 1GiB --temp-dir /d --samples 0 --allow-gone";
    let Ok(Command::Audit(audit)) = parse(ranged) else { panic!("audit") };
    assert_eq!(audit.range(9_000), Ok(Range { from_ms: Some(1_000), to_ms: Some(7_000) }));
    assert!(audit.range(3_000).unwrap_err().contains("--from is not before --to"));
    assert_eq!((audit.memory, audit.samples, audit.allow_gone), (1 << 30, 0, true));
    assert_eq!(audit.temp_dir.as_deref(), Some(Path::new("/d")));
    assert!(matches!(parse("check --raw r"), Ok(Command::Check(_))));
}

#[test]
fn mistakes_are_named() {
    for (line, named) in [
        ("rum", "run"),
        ("run --cleen x", "--clean"),
        ("run -X sasl", "NAME=VALUE"),
        ("run --log-format xml", "json"),
        ("demo --duplicates 1", "expected a share from 0 to below 1"),
        ("demo --seconds 0", "--seconds"),
        ("demo --forever --seconds 3", "cannot be used with"),
        ("generate --topic t", "--bootstrap-servers"),
        ("generate --bootstrap-servers a:1 --topic t --size big", "is not a size"),
        ("generate --bootstrap-servers a:1 --topic t/u", "the name contains '/'"),
        ("generate --bootstrap-servers a:1 --topic __consumer_offsets", "as the topics of Kafka itself do"),
        ("plan --bootstrap-servers a:1 --id key --raw t/u", "the name contains '/'"),
        (
            "plan --bootstrap-servers a:1 --id key --raw t,u",
            "the name contains ',': give one topic; dedupd rekey makes one",
        ),
        ("plan", "--events"),
        ("plan --events 0", "records per second"),
        ("plan --events 5 --exact 0s", "1s"),
        ("plan --events 5 --exact 24", "has no unit"),
        ("plan --events 5 --false-positive-rate 0.6", "1e-9"),
        ("plan --events 5 --memory big", "is not a size"),
        ("plan --events 5 --compare json:/a", "--raw <TOPIC>"),
        ("plan --events 5 --force-header f", "--raw <TOPIC>"),
        ("plan --events 5 --sample 10", "--raw <TOPIC>"),
        ("plan --events 5 --schema-registry http://r", "--raw <TOPIC>"),
        ("audit --from yesterday", "RFC 3339"),
        ("audit --memory 1MiB", "32MiB"),
        ("inspect", "unrecognized subcommand"),
        ("state", "Usage"),
        ("forget", "<ID>"),
        ("forget -17", "-- -1"),
        ("state export", "--to"),
        ("state import", "--from"),
        ("state inspect --partition 3", "--id"),
        ("", "Usage"),
    ] {
        let text = parse(line).unwrap_err();
        assert!(text.contains(named), "for {line:?}: {text}");
    }
}

/// By number.
const EXITS: [Exit; 9] = [
    Exit::Done,
    Exit::No,
    Exit::Usage,
    Exit::StartUp,
    Exit::State,
    Exit::Fenced,
    Exit::Operator,
    Exit::Failed,
    Exit::Unreachable,
];

#[test]
fn help_lists_exit_codes_and_environment() {
    let text = parse("run --help").unwrap_err();
    for exit in EXITS.into_iter().filter(|exit| !matches!(exit, Exit::No | Exit::Unreachable)) {
        assert!(text.contains(&format!("\n  {}  {}", exit.code(), exit.meaning())), "{exit:?}\n{text}");
    }
    assert!(text.contains("DEDUPD_SECTION__KEY") && text.contains("Examples:"));
    let text = parse("--help").unwrap_err();
    for command in
        ["run", "check", "demo", "generate", "audit", "plan", "explain", "forget", "state", "health"]
    {
        assert!(text.contains(&format!("\n  {command} ")), "{command} is not in\n{text}");
    }
}

#[test]
fn help_shows_the_defaults_of_the_keys() {
    for (command, flag, section, name) in [
        ("run", "--workers", "group", "workers"),
        ("run", "--state-dir", "state", "dir"),
        ("run", "--listen", "http", "listen"),
        ("health", "--listen", "http", "listen"),
        ("forget", "--listen", "http", "listen"),
        ("run", "--mode", "dedupe", "mode"),
        ("run", "--scope", "dedupe", "scope"),
        ("audit", "--scope", "dedupe", "scope"),
        ("run", "--exact", "window", "exact"),
        ("audit", "--window", "window", "exact"),
    ] {
        let help = parse(&format!("{command} --help")).unwrap_err();
        let section = keys().into_iter().find(|key| key.name == section).unwrap();
        let Shape::Section(keys) = section.shape else { panic!("{flag}") };
        let default = keys.iter().find(|key| key.name == name).unwrap().default.unwrap();
        let line = help.lines().find(|line| line.trim_start().starts_with(flag)).unwrap();
        assert!(line.ends_with(&format!("[default: {default}]")), "{line}");
    }
}

#[test]
fn the_state_commands_take_what_the_service_takes() {
    let text = parse("state --help").unwrap_err();
    for command in ["inspect", "export", "filter", "import", "reset"] {
        assert!(text.contains(&format!("\n  {command} ")), "{command} is not in\n{text}");
        let help = parse(&format!("state {command} --help")).unwrap_err();
        for part in ["--config", "--state-dir", "Exit codes:\n  0  "] {
            assert!(help.contains(part), "{part} is not in\n{help}");
        }
    }
    let Ok(Command::State(state)) = parse("state inspect -c f --id a --id -b --state-dir /d --exact 2h")
    else {
        panic!("state inspect")
    };
    let StateCommand::Inspect(args) = state.command else { panic!("{state:?}") };
    assert_eq!(
        (args.id, args.local.config.as_deref()),
        (vec!["a".to_owned(), "-b".to_owned()], Some(Path::new("f")))
    );
    let flags = args.local.overrides();
    let sources = ConfigSources { flags, host: "h".to_owned(), ..ConfigSources::default() };
    let local = Local::from_sources(&sources).unwrap();
    assert_eq!((local.state.dir.as_path(), local.window.exact.as_secs()), (Path::new("/d"), 7_200));
    assert_eq!(local.from, None, "topics, brokers and id may be missing");
    let wrong = ConfigSources { flags: run("run --exact 24").overrides(), ..ConfigSources::default() };
    assert!(Local::from_sources(&wrong).unwrap_err().to_string().contains("window.exact"));
}

#[test]
fn exit_codes_are_the_documented_numbers() {
    let messages = include_str!("../../docs/messages.md");
    for (exit, code) in EXITS.into_iter().zip(0..) {
        assert_eq!(exit.code(), code);
        let row = format!("| {code} | {} |", exit.meaning());
        assert!(messages.contains(&row), "not in docs/messages.md: {row}");
    }
}

#[test]
fn completions_and_man_pages_contain_every_command() {
    let dedupd = |arguments: &[&str]| {
        std::process::Command::new(env!("CARGO_BIN_EXE_dedupd")).args(arguments).output().unwrap()
    };
    let help = String::from_utf8(dedupd(&["--help"]).stdout).unwrap();
    let listed = help.split_once("Commands:\n").unwrap().1.split_once("\n\n").unwrap().0;
    let commands: Vec<&str> = listed.lines().filter_map(|line| line.split_whitespace().next()).collect();
    assert!(commands.len() > 8, "{help}");
    for shell in ["bash", "zsh", "fish"] {
        let script = String::from_utf8(dedupd(&["completions", shell]).stdout).unwrap();
        for word in commands.iter().chain(["bootstrap-servers"].iter()) {
            assert!(script.contains(word), "{shell}: {word}");
        }
    }
    let dir = tempfile::tempdir().unwrap();
    let written = dedupd(&["man", "--to", dir.path().to_str().unwrap()]);
    assert!(written.status.success(), "{written:?}");
    let page = |name: &str| std::fs::read_to_string(dir.path().join(name)).unwrap();
    for command in commands.into_iter().filter(|command| *command != "help") {
        assert!(page(&format!("dedupd-{command}.1")).contains(".SH"), "{command}");
    }
    assert!(page("dedupd-run.1").contains("bootstrap"));
    let missing = dedupd(&["man", "--to", "/nonexistent/folder"]);
    assert_eq!(missing.status.code(), Some(4));
    let message = String::from_utf8(missing.stderr).unwrap();
    assert!(message.contains("the man pages cannot be written to /nonexistent/folder"), "{message}");
}
