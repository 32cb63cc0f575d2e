//! The systemd unit.

use dedupd::cli::Exit;

use super::configuration;
use super::programs::text;

/// The values of a key, in order.
fn values(key: &str) -> Vec<String> {
    let unit = text("deploy/systemd/dedupd.service");
    let lines = unit.lines().filter(|line| !line.starts_with('#')).filter_map(|line| line.split_once('='));
    lines.filter(|(name, _)| *name == key).map(|(_, value)| value.to_owned()).collect()
}

#[test]
fn dedupd_accepts_its_arguments_and_environment() {
    let start = values("ExecStart").remove(0);
    let words: Vec<String> = start.split(' ').skip(1).map(str::to_owned).collect();
    let at = words.iter().position(|word| word == "--config").unwrap();
    let environment: Vec<_> = values("Environment")
        .iter()
        .map(|pair| pair.split_once('=').map(|(key, value)| (key.to_owned(), value.to_owned())).unwrap())
        .collect();
    let config = configuration(&words, &(words[at + 1].clone(), text("config/dedupd.toml")), &environment);
    let state = format!("/var/lib/{}", values("StateDirectory")[0]);
    assert_eq!(config.state.dir.display().to_string(), state, "the state directory is the only writable one");
}

#[test]
fn restart_and_stop_match_the_exit_codes_of_the_program() {
    let never: Vec<u8> =
        values("RestartPreventExitStatus")[0].split(' ').map(|code| code.parse().unwrap()).collect();
    assert_eq!(never, [Exit::Usage.code(), Exit::Fenced.code()]);
    assert_eq!(
        (values("Restart").remove(0), values("KillSignal").remove(0)),
        ("always".into(), "SIGTERM".into())
    );
    // A stop takes up to nine seconds.
    assert!(values("TimeoutStopSec")[0].parse::<u32>().unwrap() > 10);
}
