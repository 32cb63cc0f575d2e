//! The systemd unit.

use dedupd::cli::Exit;

use super::programs::{TOP, text};
use super::{configuration, rekeying};

const RUN: &str = "dedupd";
const REKEY: &str = "dedupd-rekey";

/// The values of a key of a unit, in order.
fn values(unit: &str, key: &str) -> Vec<String> {
    let unit = text(&format!("deploy/systemd/{unit}.service"));
    let lines = unit.lines().filter(|line| !line.starts_with('#')).filter_map(|line| line.split_once('='));
    lines.filter(|(name, _)| *name == key).map(|(_, value)| value.to_owned()).collect()
}

/// The configuration file after the `sed` command of docs/start.md.
fn installed() -> String {
    let start = text("docs/start.md");
    let command = start.lines().find_map(|line| line.strip_prefix("sed -i '")).expect("the command");
    let (script, _) = command.split_once('\'').unwrap();
    let output =
        std::process::Command::new("sed").arg(script).arg(format!("{TOP}/config/dedupd.toml")).output();
    String::from_utf8(output.expect("sed starts").stdout).unwrap()
}

#[test]
fn the_installed_file_names_the_state_directory_of_the_unit() {
    let start = values(RUN, "ExecStart").remove(0);
    let words: Vec<String> = start.split(' ').skip(1).map(str::to_owned).collect();
    let at = words.iter().position(|word| word == "--config").unwrap();
    // A command in a shell has no variable of the unit.
    assert!(values(RUN, "Environment").is_empty());
    let config = configuration(&words, &(words[at + 1].clone(), installed()), &[]);
    let state = format!("/var/lib/{}", values(RUN, "StateDirectory")[0]);
    assert_eq!(config.state.dir.display().to_string(), state, "the state directory is the only writable one");
    let (ours, theirs) = (installed(), text("config/dedupd.toml"));
    let changed =
        std::iter::zip(ours.lines(), theirs.lines()).filter(|(ours, theirs)| ours != theirs).count();
    assert_eq!(changed, 1, "only state.dir changes");
}

#[test]
fn rekey_reads_the_same_file_and_has_another_address() {
    let start = values(REKEY, "ExecStart").remove(0);
    let words: Vec<String> = start.split(' ').skip(1).map(str::to_owned).collect();
    // The section of `rekey` is the last one of the file.
    let file = format!("{}from = [\"orders\"]\nto = \"events.raw\"\n", text("config/dedupd.toml"));
    let config = rekeying(&words, &("/etc/dedupd/dedupd.toml".to_owned(), file), &[]);
    let run = values(RUN, "ExecStart").remove(0);
    let run: Vec<String> = run.split(' ').skip(1).map(str::to_owned).collect();
    let service = configuration(&run, &("/etc/dedupd/dedupd.toml".to_owned(), installed()), &[]);
    assert_ne!(config.listen, service.http.listen);
    assert!(values(REKEY, "StateDirectory").is_empty());
}

/// With the default `state.on_poison`, each start retries a rejected record for `state.poison_retry`, then ends with code 6.
#[test]
fn starts_that_retry_a_rejected_record_reach_the_limit_of_starts() {
    let start = values(RUN, "ExecStart").remove(0);
    let words: Vec<String> = start.split(' ').skip(1).map(str::to_owned).collect();
    let config = configuration(&words, &("/etc/dedupd/dedupd.toml".to_owned(), installed()), &[]);
    for unit in [RUN, REKEY] {
        let number = |key: &str| values(unit, key).remove(0).parse::<u64>().unwrap();
        // Ten seconds for the start, the stop, and the last retry.
        let cycle = config.state.poison_retry.as_secs() + number("RestartSec") + 10;
        assert!(number("StartLimitIntervalSec") >= 2 * number("StartLimitBurst") * cycle, "{unit}");
    }
}

#[test]
fn restart_and_stop_match_the_exit_codes_of_the_program() {
    for unit in [RUN, REKEY] {
        let never: Vec<u8> = values(unit, "RestartPreventExitStatus")[0]
            .split(' ')
            .map(|code| code.parse().unwrap())
            .collect();
        assert_eq!(never, [Exit::Usage.code(), Exit::Fenced.code()]);
        assert_eq!(
            (values(unit, "Restart").remove(0), values(unit, "KillSignal").remove(0)),
            ("always".into(), "SIGTERM".into())
        );
        // A stop takes up to nine seconds.
        assert!(values(unit, "TimeoutStopSec")[0].parse::<u32>().unwrap() > 10);
    }
}
