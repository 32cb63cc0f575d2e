//! The permissions in docs/security.md are sufficient, and each one is required.

use std::fs;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use super::{LIMIT, sasl, shared};
use crate::support::secured::{DEDUPD, variable};
use crate::support::{Draft, Isolation, Pipe, Rekey, Running, Scope, Secured, Sidecar, wait_until};

/// Locked by a test that requires a permission on the cluster, and by a test that removes it: both use the same user.
static CLUSTER_PERMISSIONS: Mutex<()> = Mutex::new(());

/// One line of docs/security.md: the arguments of `kafka-acls.sh`, and the comment after them.
pub(super) struct Documented {
    arguments: Vec<String>,
    comment: String,
}

impl Documented {
    /// The lines of the page for `run`, for topics of this name.
    pub(super) fn all(name: &str) -> Vec<Self> {
        Self::below("Permissions", name)
    }

    /// The lines below this heading.
    fn below(heading: &str, name: &str) -> Vec<Self> {
        let page = include_str!("../../../docs/security.md");
        let section = page.split("\n## ").find(|section| section.lines().next() == Some(heading)).unwrap();
        let lines = section.lines().filter_map(|line| line.strip_prefix("$acls "));
        lines
            .map(|line| {
                let (arguments, comment) = line.split_once('#').unwrap_or((line, ""));
                let arguments = arguments.split_whitespace().map(|word| word.replace("events", name));
                Self { arguments: arguments.collect(), comment: comment.trim().to_owned() }
            })
            .collect()
    }

    /// Each permission separately: one operation on one resource.
    fn singly(&self) -> Vec<Vec<&str>> {
        let words: Vec<&str> = self.arguments.iter().map(String::as_str).collect();
        let pairs = || words.chunks(2).filter(|pair| pair[0].starts_with("--"));
        let of = |key: &'static str| pairs().filter(move |pair| pair[0] == key);
        let pattern: Vec<&str> = of("--resource-pattern-type").flatten().copied().collect();
        let resources: Vec<&[&str]> = pairs()
            .filter(|pair| ["--topic", "--group", "--transactional-id", "--cluster"].contains(&pair[0]))
            .collect();
        let all = of("--operation").flat_map(|operation| resources.iter().map(move |it| (operation, *it)));
        all.map(|(operation, resource)| [operation, resource, &pattern].concat()).collect()
    }
}

pub(super) fn change(secured: &Secured, verb: &[&str], arguments: &[&str]) {
    secured.acls(&[verb, &["--allow-principal", "User:dedupd"], arguments].concat());
}

pub(super) fn grant(secured: &Secured, documented: &[Documented]) {
    for line in documented {
        let arguments: Vec<&str> = line.arguments.iter().map(String::as_str).collect();
        change(secured, &["--add"], &arguments);
    }
}

/// A pipe whose topics all exist.
pub(super) fn pipe<'s>(secured: &'s Secured, name: &str) -> Pipe<'s> {
    let pipe = Pipe::new(&secured.kafka, name, 4);
    secured.kafka.create_topic(&pipe.clean, 4, &[]);
    secured.kafka.create_topic(&format!("{}.dedupd", pipe.clean), 4, &[("retention.ms", "-1")]);
    for side in ["dead", "duplicates"] {
        secured.kafka.create_topic(&format!("{name}.{side}"), 1, &[]);
    }
    pipe
}

pub(super) fn sidecar(secured: &Secured, pipe: &Pipe<'_>, name: &str, instance: &str) -> Sidecar {
    let properties = sasl("sasl_ssl", "SCRAM-SHA-512", "dedupd", DEDUPD);
    secured
        .through(pipe.sidecar(instance), "SASLTLS", &properties)
        .with("DEDUPD_TOPICS__CREATE", "false")
        .with("DEDUPD_TOPICS__DEAD_LETTER", &format!("{name}.dead"))
        .with("DEDUPD_TOPICS__DUPLICATES", &format!("{name}.duplicates"))
        .with("DEDUPD_IDENTITY__ON_MISSING", "dead_letter")
}

/// Waits until an instance shares the partitions, or is a spare.
fn wait_second(running: &Running, scope: Scope) {
    match scope {
        Scope::Partition => running.wait_running(2, Duration::from_mins(1)),
        Scope::Topic => wait_until("the spare", LIMIT, || running.has_role("spare").then_some(())),
    }
}

fn assert_sufficient(name: &str, scope: Scope) {
    let secured = shared();
    let _guard = CLUSTER_PERMISSIONS.lock().unwrap_or_else(PoisonError::into_inner);
    let mut documented = Documented::all(name);
    documented.retain(|line| !line.comment.contains("create"));
    grant(secured, &documented);
    let pipe = pipe(secured, name);
    let load = pipe.load(4, 500);
    let [a, b] = ["a", "b"].map(|instance| sidecar(secured, &pipe, name, instance).scoped(scope));
    let first = a.start();
    first.wait_running(4, LIMIT);
    load.more(500);
    // A second instance, a crash whose transaction it must end, and a restore from the state topic.
    let second = b.start();
    wait_second(&second, scope);
    load.more(500);
    first.kill9();
    second.wait_running(4, Duration::from_mins(1));
    load.more(500);
    fs::remove_dir_all(pipe.dir.path().join("state-a")).unwrap();
    let first = a.start();
    wait_second(&first, scope);
    load.more(500);
    assert_eq!(second.stop(), Some(0), "{}", second.text());
    first.wait_running(4, Duration::from_mins(1));
    load.more(500);
    load.finish();
    pipe.wait_caught_up(4, LIMIT);
    pipe.kafka.send(&pipe.raw, &[Draft::new(0, "has no id")]);
    pipe.wait_caught_up(4, LIMIT);
    assert_eq!(first.stop(), Some(0), "{}", first.text());
    for running in [&first, &second] {
        let text = running.text().to_lowercase();
        assert!(!text.contains("authori") && !text.contains("permission is missing"), "{text}");
    }
    let findings = pipe.assert_exactly_once();
    let records = |topic: &str| pipe.kafka.records(topic, Isolation::Committed).len();
    assert_eq!(records(&format!("{name}.dead")), 1);
    assert_eq!(records(&format!("{name}.duplicates")), findings.repeats);
}

#[test]
fn the_documented_permissions_are_sufficient() {
    assert_sufficient("events", Scope::Topic);
}

#[test]
fn the_documented_permissions_are_sufficient_in_partition_scope() {
    assert_sufficient("divided", Scope::Partition);
}

/// The only command in an error message, as arguments of `kafka-acls.sh`.
fn command(text: &str) -> Vec<String> {
    let (_, rest) = text.split_once("kafka-acls.sh ").expect("a command");
    let (command, rest) = rest.split_once(", with the name").expect("the end of the command");
    assert!(!rest.contains("kafka-acls.sh"), "more than one command: {text}");
    let words = command.split_whitespace().map(|word| word.replace("NAME", "dedupd"));
    words.skip_while(|word| !word.starts_with("--add")).collect()
}

#[test]
fn each_missing_permission_is_reported_with_the_command_that_grants_it() {
    let secured = shared();
    let documented = Documented::all("lacking");
    let needed = |line: &&Documented| !line.comment.contains("create") && line.comment != "optional";
    grant(secured, &documented);
    let pipe = pipe(secured, "lacking");
    let mut reported = 0;
    for permission in documented.iter().filter(needed).flat_map(Documented::singly) {
        change(secured, &["--remove", "--force"], &permission);
        let running = sidecar(secured, &pipe, "lacking", "a").start();
        let code = running.wait(LIMIT).code();
        let text = running.text();
        let last = text.lines().last().unwrap();
        let expected = if permission.contains(&"--transactional-id") { 6 } else { 3 };
        assert_eq!(code, Some(expected), "{permission:?}: {text}");
        assert!(
            last.contains(&format!("the {} permission is missing on", permission[1])),
            "{permission:?}: {text}"
        );
        let command = command(last);
        assert!(
            permission.iter().all(|word| command.iter().any(|it| it == word)),
            "{permission:?}: {command:?}"
        );
        secured.acls(&command.iter().map(String::as_str).collect::<Vec<_>>());
        reported += 1;
    }
    assert_eq!(reported, 11, "number of permissions on the page");
    let running = sidecar(secured, &pipe, "lacking", "a").start();
    running.wait_ready(LIMIT);
    assert_eq!(running.stop(), Some(0), "{}", running.text());
    assert!(!running.text().contains("permission is missing"), "{}", running.text());

    let _guard = CLUSTER_PERMISSIONS.lock().unwrap_or_else(PoisonError::into_inner);
    let optional: Vec<_> = documented.into_iter().filter(|line| line.comment == "optional").collect();
    for line in &optional {
        change(
            secured,
            &["--remove", "--force"],
            &line.arguments.iter().map(String::as_str).collect::<Vec<_>>(),
        );
    }
    let running = sidecar(secured, &pipe, "lacking", "a").start();
    running.wait_ready(LIMIT);
    assert_eq!(running.stop(), Some(0), "{}", running.text());
    let warned = running.text().matches("the DescribeConfigs permission is missing on").count();
    assert_eq!(warned, 4, "{}", running.text());
    // The test that was locked out requires them.
    grant(secured, &optional);
}

#[test]
fn the_create_permission_is_required_only_when_topics_are_missing() {
    let secured = shared();
    let documented = Documented::all("making");
    let (create, others): (Vec<_>, Vec<_>) =
        documented.into_iter().partition(|line| line.comment.contains("create"));
    grant(secured, &others);
    let pipe = Pipe::new(&secured.kafka, "making", 2);
    let properties = sasl("sasl_ssl", "PLAIN", "dedupd", DEDUPD);
    let sidecar = || secured.through(pipe.sidecar("a"), "SASLTLS", &properties);
    let running = sidecar().start();
    assert_eq!(running.wait(LIMIT).code(), Some(3), "{}", running.text());
    assert!(
        running.text().contains("the Create permission is missing on topic making.clean"),
        "{}",
        running.text()
    );
    grant(secured, &create);
    let running = sidecar().start();
    running.wait_ready(LIMIT);
    assert_eq!(running.stop(), Some(0), "{}", running.text());
}

#[test]
fn the_alter_permission_is_required_when_raw_has_grown() {
    let secured = shared();
    let documented = Documented::all("growing");
    grant(secured, &documented);
    let alter = ["--operation", "Alter", "--topic", "growing.clean", "--topic", "growing.clean.dedupd"];
    change(secured, &["--remove", "--force"], &alter);
    let pipe = pipe(secured, "growing");
    let growing = sidecar(secured, &pipe, "growing", "a").with("DEDUPD_TOPICS__CREATE", "true");
    let running = growing.start();
    running.wait_running(4, LIMIT);
    pipe.kafka.send(&pipe.raw, &[Draft::id(0, "a")]);
    pipe.wait_caught_up(4, LIMIT);
    pipe.kafka.grow_topic(&pipe.raw, 5);
    assert_eq!(running.wait(Duration::from_mins(1)).code(), Some(3), "{}", running.text());
    let text = running.text();
    assert!(text.contains("the Alter permission is missing on topic growing."), "{text}");

    change(secured, &["--add"], &alter);
    let running = growing.start();
    running.wait_running(5, Duration::from_mins(1));
    pipe.kafka.send(&pipe.raw, &[Draft::id(4, "b")]);
    pipe.wait_caught_up(5, LIMIT);
    assert_eq!(running.stop(), Some(0), "{}", running.text());
    let findings = pipe.audit();
    assert!(findings.is_clean() && findings.raw == 2, "{findings:?}");
}

#[test]
fn the_documented_permissions_of_rekey_are_sufficient_and_reported_when_missing() {
    let secured = shared();
    let (kafka, name) = (&secured.kafka, "rekeyed");
    let topics = ["orders", "payments"].map(|topic| format!("{name}.{topic}"));
    for topic in &topics {
        kafka.create_topic(topic, 2, &[]);
        kafka.produce(topic, 1, &[("a", "1"), ("b", "2")]);
    }
    let to = format!("{name}.raw");
    kafka.create_topic(&to, 3, &[]);
    let mut rekey = Rekey::new(kafka, &to, &format!("--from {} --from {} --id key", topics[0], topics[1]));
    rekey.bootstrap = secured.at("SASLTLS");
    let properties = sasl("sasl_ssl", "SCRAM-SHA-512", "dedupd", DEDUPD);
    let variables = properties.iter().map(|(name, value)| (variable(name), secured.resolve(value)));
    rekey.environment = variables.collect();
    let running = rekey.start();
    assert_eq!(running.wait(LIMIT).code(), Some(3), "{}", running.text());
    let text = running.text();
    let documented = Documented::below("Permissions of `rekey`", name);
    for missing in documented.iter().flat_map(Documented::singly) {
        assert!(text.contains(&missing.join(" ")), "{missing:?} is not in\n{text}");
    }
    grant(secured, &documented);
    let running = rekey.start();
    let written = || running.metric("dedupd_rekey_written_total");
    wait_until("the records", LIMIT, || (written() == Some(4.0)).then_some(()));
    assert_eq!(running.stop(), Some(0), "{}", running.text());
}
