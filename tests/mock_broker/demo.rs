//! `dedupd demo`, which runs the whole program on the embedded broker.

use std::process::{Command, Output, Stdio};
use std::time::Duration;

fn demo(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_dedupd"));
    command.args(["demo", "--listen", "127.0.0.1:0"]).args(arguments);
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// The text of a demo whose audit has no findings.
fn without_findings(output: Output) -> String {
    let text = [output.stdout, output.stderr].concat();
    let text = String::from_utf8_lossy(&text).into_owned();
    assert_eq!(output.status.code(), Some(0), "{text}");
    assert!(text.contains("lost 0, duplicated 0"), "{text}");
    text
}

#[test]
fn the_demo_ends_with_an_audit_without_findings() {
    let text = without_findings(demo(&["--seconds", "1", "--rate", "500"]).output().unwrap());
    assert!(text.contains("stopping: ") && text.contains("auditing in partition scope"), "{text}");
}

/// At this rate the broker deletes records after a few seconds.
#[test]
fn a_demo_that_runs_until_it_is_stopped_loses_nothing_at_any_rate() {
    let running = demo(&["--forever", "--rate", "50000", "--duplicates", "0.5"]).spawn().unwrap();
    std::thread::sleep(Duration::from_secs(20));
    let interrupt = Command::new("kill").args(["-INT", &running.id().to_string()]).status().unwrap();
    assert!(interrupt.success());
    let text = without_findings(running.wait_with_output().unwrap());
    assert!(text.contains("stopping: "), "{text}");
    assert!(
        text.contains("differences explained by records deleted from the topics: "),
        "nothing was deleted: {text}"
    );
}
