//! How processes end: what they print, and with which code.

use std::io::BufRead;

use dedupd::cli::Exit;

use super::parse;

/// What a command prints to both outputs, and its code.
fn ended(arguments: &[&str]) -> (Option<i32>, String) {
    ended_in(&[], arguments)
}

fn ended_in(environment: &[(&str, &str)], arguments: &[&str]) -> (Option<i32>, String) {
    let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_dedupd"));
    let output = command.args(arguments).envs(environment.iter().copied()).output().unwrap();
    (output.status.code(), String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned())
}

/// OpenSSL frees the memory of threads in an exit handler, and a thread that ends at the same time frees it again. The race is
/// too narrow for a test: an address sanitizer found it in one stop of a hundred.
#[test]
#[cfg(all(target_os = "linux", target_env = "gnu"))]
fn the_end_of_the_process_runs_no_exit_handlers() {
    let output = |arguments: &[&str]| {
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_dedupd"));
        let output = command.args(arguments).env("LD_DEBUG", "files").output().unwrap();
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    let ended = output(&["check", "--bootstrap-servers", "127.0.0.1:1", "--id", "key"]);
    assert!(ended.contains("calling init: ") && ended.contains("the configuration has"), "{ended}");
    assert!(!ended.contains("calling fini: "), "{ended}");
    // The loader reports exit handlers where there are some: the parser of the command line ends the process by itself.
    let parser = output(&["--version"]);
    assert!(parser.contains("calling fini: "), "{parser}");
}

#[test]
fn in_json_the_cause_of_the_end_is_an_event() {
    let dir = tempfile::tempdir().unwrap();
    let state = dir.path().to_str().unwrap();
    let address = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let used = address.local_addr().unwrap().to_string();
    let topics = ["--bootstrap-servers", "127.0.0.1:1", "--id", "key", "--raw", "r", "--clean", "c"];
    let run = [&["run"][..], &topics, &["--state-dir", state, "--listen", &used]].concat();
    let servers = ["--bootstrap-servers", "127.0.0.1:1", "--id", "key"];
    let rekey = [&["rekey"][..], &servers, &["--from", "r", "--to", "t", "--listen", &used]].concat();
    for (arguments, message) in [
        // Before the log starts, also with several lines, and after it.
        (&["run"][..], "the configuration has"),
        (&["check"], "the configuration has"),
        (&["rekey", "--listen", "x"], "the configuration has"),
        (&run, "cannot be bound"),
        (&rekey, "cannot be bound"),
    ] {
        // No filter hides it.
        for filter in ["info", "off"] {
            let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_dedupd"));
            let command = command.args(arguments).args(["--log-format", "json"]).env("RUST_LOG", filter);
            let output = command.output().unwrap();
            let lines = String::from_utf8(output.stderr).unwrap();
            let last: serde_json::Value = serde_json::from_str(lines.lines().last().unwrap())
                .unwrap_or_else(|error| panic!("{arguments:?}: {error}: {lines}"));
            assert_eq!((&last["level"], last["timestamp"].is_string()), (&"ERROR".into(), true), "{lines}");
            assert_eq!(last["exit_code"].as_i64(), output.status.code().map(i64::from), "{lines}");
            assert!(last["message"].as_str().unwrap().contains(message), "{lines}");
            assert!(last.get("fields").is_none(), "{lines}");
            // Once the configuration is known, each line names the process.
            assert_eq!(
                last["instance"].is_string() && last["group"].is_string(),
                message == "cannot be bound"
            );
            // systemd does not restart the unit after code 2, but a port that is in use can become free.
            let expected = if message == "cannot be bound" { Exit::Failed } else { Exit::Usage };
            assert_eq!(output.status.code(), Some(expected.code().into()), "{lines}");
        }
    }
    let (_, text) = ended(&["run"]);
    assert!(text.starts_with("dedupd: the configuration has"), "{text}");
}

#[test]
fn a_check_without_a_broker_ends_with_the_code_of_its_help() {
    let topics = ["--bootstrap-servers", "127.0.0.1:1", "--raw", "r", "--clean", "c", "--id", "key"];
    let (code, text) = ended(&[&["check"][..], &topics].concat());
    assert_eq!(code, Some(Exit::Unreachable.code().into()), "{text}");
    assert!(text.contains("no broker answers") && !text.contains("retrying"), "{text}");
    assert!(parse("check --help").unwrap_err().contains("8  no broker answers"));
}

#[test]
fn commands_without_a_broker_report_the_same_reason() {
    let servers = ["--bootstrap-servers", "127.0.0.1:1"];
    let ends = std::thread::scope(|all| {
        let commands = [
            &["audit", "--raw", "r", "--clean", "c", "--id", "key"][..],
            &["generate", "--topic", "r"],
            &["plan", "--raw", "r", "--id", "key"],
            &["try"],
        ];
        let running = commands.map(|command| all.spawn(move || ended(&[command, &servers].concat())));
        running.map(|it| it.join().unwrap())
    });
    for (code, text) in &ends {
        assert_eq!(*code, Some(Exit::Unreachable.code().into()), "{text}");
        let start = "dedupd: no connection to 127.0.0.1:1: nothing listens at the address; check that the broker runs";
        assert!(text.starts_with(start) && text.contains("Connection refused"), "{text}");
        assert_eq!(text, &ends[0].1);
    }
}

#[test]
fn what_cannot_work_is_refused_before_a_broker_is_asked() {
    let servers = ["--bootstrap-servers", "127.0.0.1:1"];
    let audit = ["audit", "--raw", "r", "--clean", "c", "--id", "key", "--temp-dir", "/nowhere/at/all"];
    let generate = ["generate", "--topic", "t", "--size", "1"];
    for (code, command, words) in [
        (4, &audit[..], "--temp-dir /nowhere/at/all cannot be used: No such file or directory"),
        (2, &generate, "--size 1: the fields of a value take up to 140 bytes; give at least --size 140"),
    ] {
        let (found, text) = ended(&[command, &servers].concat());
        assert_eq!(found, Some(code), "{text}");
        assert!(text.contains(words), "{text}");
    }
}

#[test]
fn a_check_and_a_start_refuse_the_same_files_and_addresses() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).display().to_string();
    let (file, state, none, below) = (path("file"), path("state"), path("none"), path("file/state"));
    std::fs::write(&file, "short").unwrap();
    let address = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let (used, free) = (address.local_addr().unwrap().to_string(), "127.0.0.1:0");
    let topics = ["--bootstrap-servers", "127.0.0.1:1", "--raw", "r", "--clean", "c", "--id", "json:/id"];
    for (code, words, state, listen, environment) in [
        (2, "cannot be read", &state, free, vec![("DEDUPD_HTTP__TOKEN_FILE", none.as_str())]),
        (2, "the token is too short", &state, free, vec![("DEDUPD_HTTP__TOKEN_FILE", &file)]),
        (2, "is not a regular file", &state, free, vec![("DEDUPD_HTTP__TOKEN_FILE", "/dev/zero")]),
        (2, "schemas.value", &state, free, vec![("DEDUPD_SCHEMAS__VALUE", &none)]),
        // The last line of two.
        (
            2,
            "schemas.value",
            &state,
            free,
            vec![("DEDUPD_HTTP__TOKEN_FILE", &none), ("DEDUPD_SCHEMAS__VALUE", &none)],
        ),
        (4, "cannot create the directory", &file, free, vec![]),
        (4, "cannot create the directory", &below, free, vec![]),
        (7, "cannot be bound", &state, used.as_str(), vec![]),
    ] {
        let at = ["--state-dir", state, "--listen", listen];
        let [checked, started] = ["check", "run"].map(|command| {
            let (found, text) = ended_in(&environment, &[&[command][..], &topics, &at].concat());
            assert_eq!(found, Some(code), "{command}: {text}");
            text.lines().last().unwrap().to_owned()
        });
        assert!(checked == started && checked.contains(words), "{words}: {checked}\n{started}");
    }
}

#[test]
fn no_command_prints_the_value_of_a_wrong_property() {
    let dir = tempfile::tempdir().unwrap();
    let state = dir.path().to_str().unwrap();
    let servers = ["--bootstrap-servers", "127.0.0.1:1"];
    let topics = ["--raw", "r", "--clean", "c", "--id", "key"];
    let at = ["--state-dir", state, "--listen", "127.0.0.1:0"];
    for (command, arguments) in [
        ("run", [&servers[..], &topics, &at].concat()),
        ("check", [&servers[..], &topics, &at].concat()),
        ("audit", [&servers[..], &topics].concat()),
        ("generate", [&servers[..], &["--topic", "t"]].concat()),
        ("plan", [&servers[..], &["--raw", "r", "--id", "key"]].concat()),
        ("try", servers.to_vec()),
    ] {
        for (wrong, told) in [
            ("sasl.pasword=canary", "sasl.pasword"),
            ("sasl.password:canary", "-X"),
            // The right name with what belongs to another.
            ("broker.address.family=canary", "broker.address.family: its value is not accepted"),
        ] {
            let (code, said) = ended(&[&[command][..], &arguments, &["-X", wrong]].concat());
            assert!(said.contains(told), "{command} -X {wrong}: {said}");
            assert!(!said.contains("canary"), "{command} -X {wrong}: {said}");
            assert_eq!(code, Some(2), "{command} -X {wrong}: {said}");
        }
    }
}

/// A member that dies without a word keeps its partitions for a session timeout. `nohup` starts a process that is to survive its terminal.
#[test]
fn a_closed_terminal_stops_an_instance_in_order_unless_it_is_ignored() {
    // The process that runs the tests may ignore the signal.
    for prefix in [&["env", "--default-signal=HUP"][..], &["nohup"]] {
        let dir = tempfile::tempdir().unwrap();
        let program = [prefix, &[env!("CARGO_BIN_EXE_dedupd"), "run"]].concat();
        let topics = ["--bootstrap-servers", "127.0.0.1:1", "--raw", "r", "--clean", "c", "--id", "key"];
        let at = ["--state-dir", dir.path().to_str().unwrap(), "--listen", "127.0.0.1:0"];
        let mut command = std::process::Command::new(program[0]);
        command.args(&program[1..]).args(topics).args(at).stdout(std::process::Stdio::null());
        let mut child = command.stderr(std::process::Stdio::piped()).spawn().unwrap();
        let mut lines = std::io::BufReader::new(child.stderr.take().unwrap()).lines().map(Result::unwrap);
        let mut wait_for = |words: &str| {
            assert!(lines.any(|line| line.contains(words)), "{prefix:?}: no line with {words:?}");
        };
        wait_for("status page and metrics at http://");
        let send = |name: &str| {
            let kill = format!("kill -{name} {}", child.id());
            assert!(std::process::Command::new("sh").args(["-c", &kill]).status().unwrap().success());
        };
        send("HUP");
        if prefix == ["nohup"] {
            wait_for("no broker answers");
            send("TERM");
        }
        wait_for("stopping: ");
        assert_eq!(child.wait().unwrap().code(), Some(0), "{prefix:?}");
    }
}
