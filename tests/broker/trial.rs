//! `dedupd try`.

use std::io::{BufRead as _, BufReader, Read as _};
use std::process::{ChildStdout, Stdio};
use std::time::Duration;

use crate::support::records::produce_with;
use crate::support::{Kafka, child, shared_kafka, wait_until};

const LIMIT: Duration = Duration::from_mins(1);

/// A running trial, the names of its topics, and what it prints.
struct Tried {
    process: std::process::Child,
    topics: Vec<String>,
    output: BufReader<ChildStdout>,
}

impl Tried {
    fn start(kafka: &Kafka) -> Self {
        let mut command = child::tied(env!("CARGO_BIN_EXE_dedupd"));
        command.args(["try", "--bootstrap-servers", kafka.bootstrap()]);
        command.args(["--records", "15000", "--rate", "1000", "--partitions", "2"]);
        // Not a setting of the trial.
        command.env("DEDUPD_TOPICS__RAW", "another").stdout(Stdio::piped()).stderr(Stdio::inherit());
        let mut process = child::spawn(command);
        let mut output = BufReader::new(process.stdout.take().unwrap());
        let mut first = String::new();
        output.read_line(&mut first).unwrap();
        let named = first.strip_prefix("topics ").unwrap().split(" on ").next().unwrap();
        let topics = named.split(',').map(|name| name.trim().to_owned()).collect();
        Self { process, topics, output }
    }

    fn end(mut self) -> (Option<i32>, String, Vec<String>) {
        let mut text = String::new();
        self.output.read_to_string(&mut text).unwrap();
        (self.process.wait().unwrap().code(), text, self.topics)
    }
}

fn existing(topics: &[String]) -> usize {
    topics.iter().filter(|name| shared_kafka().partitions(name) > 0).count()
}

#[test]
fn a_trial_shows_the_promise_and_leaves_nothing() {
    let (code, text, topics) = Tried::start(shared_kafka()).end();
    assert_eq!(code, Some(0), "{text}");
    for part in [
        "kill 1: SIGKILL",
        "kill 2: SIGKILL, and its local state is deleted",
        "dropped responses of the broker",
    ] {
        assert!(text.contains(part), "{part:?} is not in:\n{text}");
    }
    let last = text.lines().last().unwrap();
    let number = |at: usize| last.split(' ').nth(at).unwrap().replace(',', "").parse::<u64>().unwrap();
    let (removed, unique) = (number(0), number(5));
    assert!(removed > 500 && unique > 7_500 && removed + unique >= 9_000, "{last}");
    assert!(last.ends_with("exactly once, in order and unchanged, through 2 kills."), "{last}");
    assert_eq!(existing(&topics), 0, "{topics:?}");
    let dir = std::env::temp_dir().join(topics[0].strip_suffix(".raw").unwrap());
    assert!(!dir.exists(), "{}", dir.display());
}

/// The broker is away while the trial waits for the last records.
#[test]
fn a_trial_goes_on_after_a_restart_of_its_broker() {
    let kafka = Kafka::start();
    let mut tried = Tried::start(&kafka);
    let mut line = String::new();
    while !line.contains("all records are written") {
        line.clear();
        assert!(tried.output.read_line(&mut line).unwrap() > 0, "it ended early");
    }
    kafka.kill9();
    kafka.restart();
    let (code, text, _) = tried.end();
    assert_eq!(code, Some(0), "{text}");
}

/// The control: somebody else writes into the clean topic.
#[test]
fn a_trial_with_a_difference_fails_and_keeps_everything() {
    let kafka = shared_kafka();
    let tried = Tried::start(kafka);
    let clean = tried.topics[1].clone();
    wait_until("the clean topic", LIMIT, || (kafka.partitions(&clean) > 0).then_some(()));
    produce_with(&kafka.client_config(), &clean, 0, &[("stranger", r#"{"id":"stranger"}"#)]);
    let (code, text, topics) = tried.end();
    assert_eq!(code, Some(1), "{text}");
    assert!(text.contains("phantom 1") && text.contains("are kept"), "{text}");
    assert_eq!(existing(&topics), 3, "{text}");
    for name in &topics {
        kafka.delete_topic(name);
    }
    let prefix = topics[0].strip_suffix(".raw").unwrap();
    kafka.delete_group(prefix);
    std::fs::remove_dir_all(std::env::temp_dir().join(prefix)).unwrap();
}
