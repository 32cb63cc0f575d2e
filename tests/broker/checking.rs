//! `dedupd check` on a real Apache Kafka: it ends as a start would, with the same last line, and changes nothing.

use std::net::TcpListener;
use std::process::Command;
use std::time::Duration;

use crate::support::{Draft, Pipe, Scope, Sidecar, shared_kafka, wait_until};

const LIMIT: Duration = Duration::from_mins(1);
const PASSED: &str = "dedupd check: all checks passed\n";
const RESTORED: &str = "dedupd_restored_ids_total{source=\"state_topic\"}";

/// How `dedupd check` has ended.
pub struct Checked {
    pub code: Option<i32>,
    pub output: String,
    /// The last line of its standard error.
    pub last: String,
}

/// Runs `dedupd check` with the configuration of this sidecar, and any free port.
pub fn check(sidecar: &Sidecar) -> Checked {
    check_with(sidecar, 0, &[])
}

fn check_with(sidecar: &Sidecar, port: u16, flags: &[&str]) -> Checked {
    let mut command = Command::new(env!("CARGO_BIN_EXE_dedupd"));
    command
        .args(["check", "--bootstrap-servers", &sidecar.bootstrap, "--raw", &sidecar.raw])
        .args(["--clean", &sidecar.clean, "--instance", &sidecar.instance])
        .args(["--listen", &format!("127.0.0.1:{port}")])
        .arg("--state-dir")
        .arg(&sidecar.state_dir)
        .args(flags)
        .env_remove("RUST_LOG")
        .envs(sidecar.environment.iter().cloned());
    if let Some(path) = &sidecar.config {
        command.arg("--config").arg(path);
    }
    let output = command.output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (output, errors, code) = (text(&output.stdout), text(&output.stderr), output.status.code());
    Checked { code, output, last: errors.lines().last().unwrap_or_default().to_owned() }
}

/// The output of a check that passes.
pub fn passed(sidecar: &Sidecar) -> String {
    let Checked { code, output, last } = check(sidecar);
    assert!(code == Some(0) && output.starts_with(PASSED), "{code:?} {output}{last}");
    output
}

/// Something that a start refuses.
struct Mistake {
    name: &'static str,
    code: i32,
    words: &'static str,
    /// Makes it on a pipe with one partition, and returns the sidecar that would start.
    make: fn(&Pipe<'_>) -> Sidecar,
}

/// Asserts that the check and the start end with the code of the mistake, and with the same line.
fn assert_end_alike(mistake: &Mistake, pipe: &Pipe<'_>) {
    let Mistake { name, code, words, make } = mistake;
    let sidecar = make(pipe);
    let checked = check(&sidecar);
    let running = sidecar.start();
    let ended = running.wait(LIMIT).code();
    let text = running.text();
    let last = text.lines().last().unwrap_or_default();
    assert_eq!(ended, Some(*code), "{name}: {text}");
    assert_eq!((checked.code, checked.last.as_str()), (ended, last), "{name}: {}", checked.output);
    assert!(last.contains(words), "{name}: {words:?} is not in {last}");
    let verdict = format!("dedupd check: failed with code {code}; the reason stands last\n");
    assert!(checked.output.starts_with(&verdict), "{name}: {}", checked.output);
}

/// The name of the state topic.
pub fn state(pipe: &Pipe<'_>) -> String {
    format!("{}.dedupd", pipe.clean)
}

fn drafts(ids: std::ops::Range<u32>) -> Vec<Draft> {
    ids.map(|n| Draft::id(0, &format!("id-{n}"))).collect()
}

/// An instance whose member does not stay in the group after it has ended.
fn dynamic(pipe: &Pipe<'_>, instance: &str) -> Sidecar {
    pipe.sidecar(instance).with("DEDUPD_GROUP__STATIC_MEMBERSHIP", "false")
}

/// Mistakes in the topics of a pipe that nothing has processed.
const TOPICS: &[Mistake] = &[
    Mistake {
        name: "check-no-raw",
        code: 3,
        words: "topic check-no-raw.nowhere (topics.raw) does not exist",
        make: |pipe| Sidecar { raw: "check-no-raw.nowhere".to_owned(), ..pipe.sidecar("a") },
    },
    Mistake {
        name: "check-no-create",
        code: 3,
        words: "topic check-no-create.clean.dedupd (topics.state) does not exist; create it",
        make: |pipe| pipe.sidecar("a").with("DEDUPD_TOPICS__CREATE", "false"),
    },
    Mistake {
        name: "check-counts",
        code: 3,
        words: "topic check-counts.clean has 2 partitions",
        make: |pipe| {
            pipe.kafka.create_topic(&pipe.clean, 2, &[]);
            pipe.sidecar("a")
        },
    },
    Mistake {
        name: "check-retention",
        code: 3,
        words: "needs at least 26h 24m",
        make: |pipe| {
            pipe.kafka.create_topic(&pipe.clean, 1, &[]);
            pipe.kafka.create_topic(&state(pipe), 1, &[("retention.ms", "86400000")]);
            pipe.sidecar("a")
        },
    },
    Mistake {
        name: "check-limits",
        code: 2,
        words: "above the broker's group.max.session.timeout.ms",
        make: |pipe| pipe.sidecar("a").with("DEDUPD_GROUP__SESSION_TIMEOUT", "31m"),
    },
    Mistake {
        name: "check-collides",
        code: 3,
        words: "collides with existing topic",
        make: |pipe| {
            // In names of metrics a dot becomes an underscore, so Kafka rejects a second such topic.
            pipe.kafka.create_topic("check-collides_clean", 1, &[]);
            pipe.sidecar("a")
        },
    },
    Mistake {
        name: "check-start",
        code: 6,
        words: "group.start is \"stop\"",
        make: |pipe| dynamic(pipe, "a").with("DEDUPD_GROUP__START", "stop"),
    },
];

#[test]
fn a_check_and_a_start_refuse_the_same_topics() {
    for mistake in TOPICS {
        let pipe = Pipe::new(shared_kafka(), mistake.name, 1);
        assert_end_alike(mistake, &pipe);
        // The control: nothing else prevents the start.
        let other = Sidecar { clean: format!("{}.other", mistake.name), ..pipe.sidecar("b") };
        passed(&other);
    }
}

/// Mistakes in the group and the state topic of a pipe that an instance has processed.
const GROUPS: &[Mistake] = &[
    Mistake {
        name: "check-scope",
        code: 4,
        words: "was committed with dedupe.scope = \"topic\", but the configured scope is \"partition\"",
        make: |pipe| dynamic(pipe, "b").scoped(Scope::Partition),
    },
    Mistake {
        name: "check-rule",
        code: 4,
        words: "was written by another identity rule",
        make: |pipe| dynamic(pipe, "b").with("DEDUPD_IDENTITY__FROM", "[\"value\"]"),
    },
    Mistake {
        name: "check-foreign",
        code: 6,
        words: "topic check-foreign.clean.dedupd has the state of another raw topic",
        make: |pipe| {
            let [raw, clean] = ["raw", "clean"].map(|role| format!("check-foreign.second.{role}"));
            pipe.kafka.create_topic(&raw, 1, &[]);
            pipe.kafka.send(&raw, &drafts(0..3));
            let sidecar = Sidecar { raw, clean, ..dynamic(pipe, "b") };
            sidecar.with("DEDUPD_TOPICS__STATE", &state(pipe))
        },
    },
    Mistake {
        name: "check-rewound",
        code: 6,
        words: "the group was rewound",
        make: |pipe| {
            pipe.kafka.commit_offset(&pipe.group(), &pipe.raw, 0, 3);
            dynamic(pipe, "b")
        },
    },
    Mistake {
        name: "check-state",
        code: 6,
        words: "topic check-state.clean.dedupd was deleted and recreated, or topics.state was changed: its id is",
        make: |pipe| {
            pipe.kafka.delete_topic(&state(pipe));
            pipe.kafka.create_topic(&state(pipe), 1, &[("retention.ms", "-1")]);
            dynamic(pipe, "b")
        },
    },
    Mistake {
        name: "check-group",
        code: 6,
        words: "topic check-group.clean.dedupd has the state of another group",
        make: |pipe| dynamic(pipe, "b").with("DEDUPD_GROUP__ID", "of-its-own"),
    },
    Mistake {
        name: "check-unusable",
        code: 6,
        words: "contains no usable block",
        make: |pipe| {
            pipe.kafka.send(&state(pipe), &[Draft::new(0, "of another program")]);
            dynamic(pipe, "b")
        },
    },
    Mistake {
        name: "check-gap",
        code: 6,
        words: "records were deleted before they were read",
        make: |pipe| {
            pipe.kafka.send(&pipe.raw, &drafts(10..30));
            pipe.kafka.delete_records(&pipe.raw, 0, 15);
            dynamic(pipe, "b")
        },
    },
];

#[test]
fn a_check_and_a_start_refuse_the_same_groups_and_states() {
    for mistake in GROUPS {
        let pipe = Pipe::new(shared_kafka(), mistake.name, 1);
        pipe.kafka.send(&pipe.raw, &drafts(0..10));
        pipe.through(1, &dynamic(&pipe, "a"));
        // The control.
        passed(&dynamic(&pipe, "b"));
        assert_end_alike(mistake, &pipe);
    }
}

#[test]
fn a_deleted_state_topic_is_no_topic_that_a_start_may_create() {
    let pipe = Pipe::new(shared_kafka(), "check-lost", 1);
    pipe.kafka.send(&pipe.raw, &drafts(0..10));
    pipe.through(1, &dynamic(&pipe, "a"));
    pipe.kafka.delete_topic(&state(&pipe));
    wait_until("the deletion", LIMIT, || (pipe.kafka.partitions(&state(&pipe)) == 0).then_some(()));
    let checked = check(&dynamic(&pipe, "b"));
    assert_eq!(checked.code, Some(6), "{}{}", checked.output, checked.last);
    assert!(checked.last.contains("its id is not known"), "{}", checked.last);
    assert_eq!(pipe.kafka.partitions(&state(&pipe)), 0);
}

#[test]
fn what_a_start_creates_or_grows_is_validated_and_listed_and_nothing_is_created() {
    let kafka = shared_kafka();
    let pipe = Pipe::new(kafka, "checked", 2);
    let again = "checked.again".to_owned();
    let sidecar = dynamic(&pipe, "a").with("DEDUPD_TOPICS__DUPLICATES", &again);
    let text = passed(&sidecar);
    for topic in [&pipe.clean, &state(&pipe), &again] {
        let line = format!("\na start creates topic {topic} with 2 partitions, replication factor 1, ");
        assert!(text.contains(&line), "{line}: {text}");
        assert_eq!(kafka.partitions(topic), 0, "{topic}");
    }
    assert!(text.contains("\nscope: raw has no records to sample"), "{text}");
    assert!(text.contains("\nrestore: the state topic has nothing to restore"), "{text}");
    let unchecked =
        "\nnot checked: joining group dedupd.checked.raw.checked.clean; the permission on transactional ids";
    assert!(text.contains(unchecked) && text.contains("topics that do not exist yet"), "{text}");
    assert!(!text.contains("[topics]"), "the configuration is printed: {text}");
    assert_eq!(kafka.committed(&pipe.group(), &pipe.raw, 0), None);
    assert!(!sidecar.state_dir.exists());
    // The configuration is printed on request, and the rest is comments.
    let printed = check_with(&sidecar, 0, &["--print"]).output;
    assert!(printed.starts_with(&format!("# {PASSED}# ")), "{printed}");
    assert!(printed.contains("\nraw = \"checked.raw\"\n"), "{printed}");
    passed(&sidecar.clone().with_file(&printed));
    // Partitions.
    kafka.send(&pipe.raw, &[Draft::id(0, "a"), Draft::id(1, "b")]);
    pipe.through(2, &sidecar);
    kafka.grow_topic(&pipe.raw, 3);
    let text = passed(&sidecar);
    for topic in [&pipe.clean, &state(&pipe)] {
        let line = format!("\na start adds partitions to topic {topic}: 3 instead of 2\n");
        assert!(text.contains(&line), "{line}: {text}");
        assert_eq!(kafka.partitions(topic), 2, "{topic}");
    }
    assert!(!text.contains("a start creates"), "{text}");
}

#[test]
fn a_check_works_beside_a_running_instance_of_the_same_name() {
    let pipe = Pipe::new(shared_kafka(), "check-beside", 2);
    let sidecar = pipe.sidecar("a");
    pipe.kafka.send(&pipe.raw, &[(0, "a"), (1, "a"), (1, "b")].map(|(at, id)| Draft::id(at, id)));
    let running = sidecar.start();
    pipe.wait_caught_up(2, LIMIT);
    running.wait_ready(LIMIT);
    let lock = || std::fs::read_to_string(sidecar.state_dir.join("lock")).unwrap();
    let before = lock();
    let checked = check_with(&sidecar, running.port, &[]);
    assert!(
        checked.code == Some(0) && checked.output.starts_with(PASSED),
        "{}{}",
        checked.output,
        checked.last
    );
    let held = format!("because process {} on host ", running.pid());
    assert!(checked.output.contains(&held), "{held}: {}", checked.output);
    let active = format!("assignment: the active instance of group {} is ", pipe.group());
    assert!(
        checked.output.contains(&active) && checked.output.contains("(2 partitions)"),
        "{}",
        checked.output
    );
    assert_eq!(lock(), before);
    // The instance works on.
    pipe.kafka.send(&pipe.raw, &[Draft::id(0, "c"), Draft::id(0, "c")]);
    pipe.wait_caught_up(2, LIMIT);
    assert_eq!(running.ended(), None, "{}", running.text());
    sidecar.audit().unwrap();
    assert_eq!(running.stop(), Some(0), "{}", running.text());
    // Without it, another process that has the port is an obstacle.
    let other = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let checked = check_with(&sidecar, other.local_addr().unwrap().port(), &[]);
    assert_eq!(checked.code, Some(7), "{}{}", checked.output, checked.last);
    assert!(checked.last.contains("the address cannot be bound"), "{}", checked.last);
}

#[test]
fn the_forecast_of_a_restore_is_within_a_quarter_of_what_a_start_reads() {
    let kafka = shared_kafka();
    let pipe = Pipe::new(kafka, "check-forecast", 4);
    let ids = |partition: i32, from: u32, count: u32| {
        (from..from + count).map(move |n| Draft::id(partition, &format!("{partition}-{n}")))
    };
    // A backlog: few and large blocks.
    let backlog: Vec<Draft> = ids(0, 0, 20_000).chain(ids(1, 0, 3_000)).chain(ids(2, 0, 40)).collect();
    kafka.send(&pipe.raw, &backlog);
    pipe.through(4, &dynamic(&pipe, "a"));
    // Then small ones, thousands of them in one partition.
    let steady: Vec<Draft> = ids(1, 3_000, 16_000).chain(ids(3, 0, 500)).collect();
    kafka.send(&pipe.raw, &steady);
    let small = dynamic(&pipe, "a").with("DEDUPD_BATCH__MAX_RECORDS", "8");
    let running = small.start();
    pipe.wait_caught_up(4, Duration::from_mins(4));
    assert_eq!(running.stop(), Some(0), "{}", running.text());
    let (_, end) = kafka.watermarks(&state(&pipe), 0);
    assert!(end > 3_200, "the journal is small enough to be read in whole: {end}");
    let empty = dynamic(&pipe, "b");
    let text = passed(&empty);
    let words = "restore: a start without local state reads about ";
    let (_, rest) = text.split_once(words).unwrap_or_else(|| panic!("{text}"));
    let forecast: f64 = rest.split(' ').next().unwrap().parse().unwrap();
    let running = empty.start();
    running.wait_ready(LIMIT);
    let read = running.metric(RESTORED).unwrap();
    assert!(read >= f64::from(u32::try_from(backlog.len() + steady.len()).unwrap()), "{read}");
    assert!((forecast - read).abs() <= read / 4.0, "{forecast} is the forecast, and {read} were read");
}
