//! What `dedupd check` prints about a configuration that it passes.

use std::process::Command;
use std::time::Duration;

use rdkafka::consumer::{BaseConsumer, Consumer};
use serde_json::Value;

use crate::checking::{Checked, check, passed, state};
use crate::support::{Draft, Pipe, Scope, Sidecar, now_ms, shared_kafka, wait_until};

const LIMIT: Duration = Duration::from_mins(1);

#[test]
fn a_member_of_another_program_fails_the_check_and_a_compacted_raw_whose_key_is_the_id_is_a_warning() {
    let kafka = shared_kafka();
    let pipe = Pipe::new(kafka, "check-warns", 1);
    let sidecar = pipe.sidecar("a").with("DEDUPD_IDENTITY__FROM", "[\"key\"]");
    let text = passed(&sidecar);
    assert!(!text.contains("warning: ") && !text.contains("note: "), "{text}");
    let odd = sidecar.clone().scoped(Scope::Partition).with("DEDUPD_GROUP__WORKERS", "64");
    let text = passed(&odd.with("DEDUPD_DEDUPE__MODE", "bypass"));
    assert!(
        text.contains("note: group.workers = 64 is above the number of partitions of raw, 1: 63 get none")
    );
    assert!(text.contains("note: dedupe.mode = bypass: all records are forwarded"), "{text}");
    kafka.alter_topic_config(&pipe.raw, &[("cleanup.policy", "compact")]);
    let compacted = "topic check-warns.raw is compacted: a record that is compacted away";
    let dropped = "identity.from is the key: each update of a key and its tombstone is a duplicate";
    let text = passed(&sidecar);
    assert!(text.contains(compacted) && text.contains(dropped), "{text}");
    let by_value = passed(&pipe.sidecar("a"));
    assert!(by_value.contains(compacted) && !by_value.contains(dropped), "{by_value}");
    kafka.create_topic(&pipe.clean, 1, &[("message.timestamp.type", "LogAppendTime")]);
    let text = passed(&sidecar);
    let restored = format!("--entity-name {} --add-config message.timestamp.type=CreateTime", pipe.clean);
    assert!(
        text.contains("dedupd audit counts each record as altered; run ") && text.contains(&restored),
        "{text}"
    );
    let other: BaseConsumer = kafka
        .client_config()
        .set("group.id", pipe.group())
        .set("client.id", "another")
        .set("session.timeout.ms", "30000")
        .create()
        .unwrap();
    other.subscribe(&[&pipe.raw]).unwrap();
    let failed = wait_until("the member", LIMIT, || {
        drop(other.poll(Duration::from_millis(200)));
        Some(check(&sidecar)).filter(|it| it.code == Some(3))
    });
    let foreign = format!("of group {} (another at ", pipe.group());
    assert!(failed.last.contains(&foreign) && failed.last.contains("stop it, or give it another group.id"));
}

/// Two events of a page view service that share an event id, as in a log that collects what several pages send.
fn page_views() -> Vec<Draft> {
    let view = |id: u32, page: u32| format!(r#"{{"event_id":"e{id}","page":"secret-{page}"}}"#);
    let all = (0..50).map(|id| view(id, id));
    let other_pages = (0..20).map(|id| view(id, id + 100));
    let copies = (20..30).map(|id| view(id, id));
    all.chain(other_pages).chain(copies).map(|value| Draft::new(0, &value)).collect()
}

#[test]
fn copies_with_other_content_are_a_warning_that_names_the_field() {
    let pipe = Pipe::new(shared_kafka(), "check-conflicts", 1);
    pipe.kafka.send(&pipe.raw, &page_views());
    let with = |from: &str, compare: Option<&str>| {
        let sidecar = pipe.sidecar("a").with("DEDUPD_IDENTITY__FROM", from);
        passed(&compare.iter().fold(sidecar, |it, compare| it.with("DEDUPD_IDENTITY__COMPARE", compare)))
    };
    let warning = "of 30 copies in the sample 20 differ from the first record with their id: the id may not be unique. For example, \
                   record 0@50 differs from 0@0 (first difference: json:/page), and record 0@51 differs from 0@1 (first difference: \
                   json:/page). Add the field that distinguishes them to identity.from;";
    let id = r#"["json:/event_id"]"#;
    let text = with(id, None);
    assert!(text.contains(&format!("\nwarning: {warning}")) && !text.contains("secret"), "{text}");
    let named = with(id, Some(r#"["json:/event_id", "json:/page"]"#));
    assert!(named.contains(&format!("\nwarning: {warning}")), "the parts of identity.compare: {named}");
    // The controls: both remedies, and nothing to compare.
    let both = r#"["json:/event_id", "json:/page"]"#;
    for text in [with(both, None), with(id, Some(r#"["json:/event_id"]"#)), with(id, Some("off"))] {
        assert!(!text.contains("differ"), "{text}");
    }
    let nowhere = with(id, Some(r#"["header:nowhere"]"#));
    let none = "none of the 80 records of the sample with an id has header:nowhere as a text, a number or a boolean: nothing is compared";
    assert!(nowhere.contains(&format!("\nwarning: {none}")), "{nowhere}");
    let nowhere = planned_with(&pipe, &["--compare", "header:nowhere"]);
    assert!(nowhere.contains(none), "{nowhere}");
    let planned = planned(&pipe, &["--id", "json:/event_id"]);
    assert!(planned.contains(&format!("  content                        {warning}")), "{planned}");
    assert!(!planned.contains("secret") && planned.contains("37.50 % of the newest 80"), "{planned}");
    for more in [&["--id", "json:/page"][..], &["--compare", "json:/event_id"]] {
        let text = planned_with(&pipe, more);
        assert!(text.contains("all copies equal the first record with their id"), "{text}");
    }
    for more in [&["--compare", "off"][..], &["--compare", "off", "--events", "5"]] {
        let text = planned_with(&pipe, more);
        assert!(
            text.contains("no copies were compared") && text.contains("37.50 % of the newest 80"),
            "{text}"
        );
    }
}

#[test]
fn check_and_plan_do_not_count_forced_records_as_copies() {
    let pipe = Pipe::new(shared_kafka(), "check-forced", 2);
    let forced = |partition: i32, value: &str| Draft::new(partition, value).header("again", None);
    let first = (0..10).map(|id| Draft::new(0, &format!(r#"{{"id":"{id}","n":1}}"#)));
    let resent = (0..10).map(|id| forced(id % 2, &format!(r#"{{"id":"{id}","n":2}}"#)));
    pipe.kafka.send(&pipe.raw, &first.chain(resent).collect::<Vec<_>>());
    let of = |header: Option<&str>| {
        let sidecar =
            header.iter().fold(pipe.sidecar("a"), |it, name| it.with("DEDUPD_IDENTITY__FORCE_HEADER", name));
        let flags: Vec<&str> = header.iter().flat_map(|name| ["--force-header", name]).collect();
        let plan = |more: &str| planned(&pipe, &[&["--id", "json:/id", more], &flags[..]].concat());
        let json: Value = serde_json::from_str(&plan("--json")).unwrap();
        let counts = ["repeats", "elsewhere", "compared"].map(|name| json["sample"][name].as_u64().unwrap());
        (passed(&sidecar), plan("--full"), counts, json["ages"]["copies"].as_u64().unwrap())
    };
    let (check, plan, counts, ages) = of(Some("again"));
    assert!(!check.contains("differ") && check.contains("no id of the 20 sampled records is in"), "{check}");
    assert!(plan.contains("no copies were compared"), "{plan}");
    assert_eq!((counts, ages), ([0, 0, 0], 0));
    // The control.
    let (check, plan, counts, ages) = of(None);
    assert!(
        check.contains("of 10 copies in the sample 10 differ") && !check.contains("no id of the 20"),
        "{check}"
    );
    assert!(plan.contains("of 10 copies in the sample 10 differ"), "{plan}");
    assert_eq!((counts, ages), ([5, 5, 10], 10));
}

fn planned(pipe: &Pipe<'_>, flags: &[&str]) -> String {
    let mut command = Command::new(env!("CARGO_BIN_EXE_dedupd"));
    command.args(["plan", "--bootstrap-servers", pipe.kafka.bootstrap(), "--raw", &pipe.raw]);
    let output = command.args(flags).env_remove("RUST_LOG").output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

fn planned_with(pipe: &Pipe<'_>, more: &[&str]) -> String {
    planned(pipe, &[&["--id", "json:/event_id"], more].concat())
}

#[test]
fn updates_and_tombstones_of_a_key_that_is_the_id_are_copies_with_other_content() {
    let kafka = shared_kafka();
    let of_key = |pipe: &Pipe<'_>| pipe.sidecar("a").with("DEDUPD_IDENTITY__FROM", "[\"key\"]");
    let pipe = Pipe::new(kafka, "check-updates", 1);
    kafka.alter_topic_config(&pipe.raw, &[("cleanup.policy", "compact")]);
    let tombstone = Draft { value: None, ..Draft::default() };
    let updates = [Draft::new(0, "v1"), Draft::new(0, "v2"), tombstone].map(|draft| draft.key(b"k"));
    kafka.send(&pipe.raw, &updates);
    let text = passed(&of_key(&pipe));
    assert!(
        text.contains("each update of a key and its tombstone is a duplicate of the first record"),
        "{text}"
    );
    let warning = "warning: of 2 copies in the sample 2 differ from the first record with their id: the id may not be unique. For \
                   example, record 0@1 differs from 0@0 (first difference: byte 1), and record 0@2 differs from 0@0 (first \
                   difference: one value is null)";
    assert!(text.contains(warning), "{text}");
    // They are dropped indeed.
    pipe.through(1, &of_key(&pipe));
    assert_eq!(kafka.ended_records(&pipe.clean).len(), 1);
    // The control: the key of each record is its own.
    let pipe = Pipe::new(kafka, "check-no-updates", 1);
    kafka.send(&pipe.raw, &[b"k", b"l"].map(|key| Draft::new(0, "v1").key(key)));
    assert!(!passed(&of_key(&pipe)).contains("warning: "));
}

#[test]
fn the_window_that_a_plan_recommends_finds_all_copies_that_it_has_read() {
    const IDS: u32 = 12_000;
    let kafka = shared_kafka();
    let pipe = Pipe::new(kafka, "plan-ages", 1);
    let start = now_ms() - 3 * 86_400_000;
    // The copy of id n is n + 1 seconds old.
    let second = |n: u32| start + i64::from(n) * 1_000;
    let copies = (0..IDS).map(|n| (second(2 * n + 1), n));
    let mut all: Vec<(i64, u32)> = (0..IDS).map(|n| (second(n), n)).chain(copies).collect();
    all.sort_unstable();
    let drafts: Vec<Draft> = all.iter().map(|(at, n)| Draft::id(0, &n.to_string()).at(*at)).collect();
    kafka.send(&pipe.raw, &drafts);
    let ages = |more: &[&str]| {
        let text = planned(&pipe, &[&["--id", "json:/id", "--json"], more].concat());
        serde_json::from_str::<Value>(&text).unwrap()["ages"].clone()
    };
    let full = ages(&["--full"]);
    for (at, age) in [11_880.0, 11_988.0, 11_999.0].into_iter().enumerate() {
        let found = full["seconds"][at].as_f64().unwrap();
        assert!((age..=age * 33.0 / 32.0).contains(&found), "{age}: {full}");
    }
    assert_eq!(
        (&full["copies"], &full["is_whole"], &full["one_in"]),
        (&12_000.into(), &true.into(), &1.into())
    );
    assert_eq!(
        (full["longest_seconds"].as_f64(), full["covered_seconds"].as_f64()),
        (Some(12_000.0), Some(23_999.0))
    );
    assert_eq!(full["exact_seconds"].as_f64(), Some(4.0 * 3_600.0));
    // The newest records are copies whose first records the sample does not have.
    let few = ages(&["--sample", "1000"]);
    assert_eq!(
        (&few["copies"], &few["exact_seconds"], &few["is_whole"]),
        (&0.into(), &Value::Null, &false.into())
    );
    let text = planned(&pipe, &["--id", "json:/id", "--full"]);
    assert!(text.contains("\n  window.exact                   at least 4h\n"), "{text}");
    assert!(text.contains(" (the last hour has none") && text.contains(" 0.500 per second"), "{text}");
    let keys = |more: &[&str]| planned(&pipe, &[&["--id", "json:/id", "--full", "--toml"], more].concat());
    let (day, short) = (keys(&[]), keys(&["--exact", "1h"]));
    assert!(day.contains("\nexact = \"24h\"\n") && !day.contains("need at least"), "{day}");
    assert!(short.contains("need at least 4h.\nexact = \"1h\"\n"), "{short}");
    // The recommended window, and as the control one that a part of the copies outlives.
    let clean = |name: &str, window: &str| {
        let (raw, clean, dir) = (pipe.raw.clone(), format!("plan-ages.{name}"), tempfile::tempdir().unwrap());
        let pipe = Pipe { kafka, raw, clean, dir };
        pipe.through(1, &pipe.sidecar("a").with("DEDUPD_WINDOW__EXACT", window));
        kafka.ended_records(&pipe.clean).len()
    };
    assert_eq!(clean("advised", "4h"), 12_000);
    assert!(clean("short", "2h") > 12_000);
}

#[test]
fn a_clean_topic_that_was_changed_under_a_group_is_a_warning() {
    let pipe = Pipe::new(shared_kafka(), "check-clean", 1);
    pipe.kafka.send(&pipe.raw, &[Draft::id(0, "a")]);
    let sidecar =
        pipe.sidecar("a").with("DEDUPD_GROUP__ID", &pipe.group()).with("DEDUPD_TOPICS__STATE", &state(&pipe));
    pipe.through(1, &sidecar);
    let warning = "has no record, but group ";
    assert!(!passed(&sidecar).contains(warning));
    let clean = format!("{}.other", pipe.clean);
    pipe.kafka.create_topic(&clean, 1, &[]);
    let text = passed(&Sidecar { clean: clean.clone(), ..sidecar });
    assert!(text.contains(&format!("warning: topic {clean} {warning}")), "{text}");
}

#[test]
fn a_sample_of_raw_shows_the_scope_and_the_members_show_the_assignment() {
    let kafka = shared_kafka();
    let pipe = Pipe::new(kafka, "check-sample", 2);
    kafka.send(&pipe.raw, &[(0, "a"), (1, "a"), (1, "b"), (1, "b")].map(|(at, id)| Draft::id(at, id)));
    let sidecar = pipe.sidecar("a").scoped(Scope::Partition);
    let text = passed(&sidecar);
    let advice = "scope: 1 id of the sample is in several partitions: dedupe.scope = \"partition\" forwards 1 copy; \
                  set dedupe.scope = \"topic\"";
    assert!(text.contains(advice), "{text}");
    let next = "has no member; the next instance, with 1 worker, gets all 2 partitions; lag 4";
    assert!(text.contains(next), "{text}");
    let running = sidecar.start();
    pipe.wait_caught_up(2, LIMIT);
    let text = passed(&pipe.sidecar("b").scoped(Scope::Partition));
    let shared = "(2 partitions); with 1 worker more each gets 1 to 1 partitions; lag 0";
    assert!(text.contains("has the members ") && text.contains(shared), "{text}");
    assert!(text.contains("restore: a start without local state reads about 3 ids, in "), "{text}");
    assert_eq!(running.stop(), Some(0), "{}", running.text());
}

#[test]
fn a_check_names_what_rejects_or_loses_a_record() {
    let kafka = shared_kafka();
    let pipe = Pipe::new(kafka, "shorter", 1);
    let again = "shorter.again".to_owned();
    for topic in [&pipe.clean, &again, &state(&pipe)] {
        kafka.create_topic(topic, 1, &[("retention.ms", "259200000"), ("retention.bytes", "-1")]);
    }
    let warnings = || passed(&pipe.sidecar("a").with("DEDUPD_TOPICS__DUPLICATES", &again));
    let named = |text: &str, setting: &str| {
        let command = |topic| format!("--entity-name {topic} --add-config {setting}");
        [&pipe.clean, &again].map(|topic| text.contains(&command(topic)))
    };
    let longer = [("retention.ms", "-1"), ("max.message.bytes", "3000000")];
    kafka.alter_topic_config(&pipe.raw, &longer);
    let text = warnings();
    for setting in ["retention.ms=-1", "max.message.bytes=4504096"] {
        assert_eq!(named(&text, setting), [true; 2], "{setting}: {text}");
    }
    assert!(!text.contains("has message.timestamp") && !text.contains("has retention.bytes"), "{text}");
    for topic in [&pipe.clean, &again] {
        kafka.alter_topic_config(topic, &longer);
    }
    assert!(!warnings().contains("warning: "), "{}", warnings());
}

#[test]
fn a_check_reports_what_prevents_the_start_of_rekey() {
    let kafka = shared_kafka();
    let pipe = Pipe::new(kafka, "checked-rekey", 2);
    kafka.create_topic("checked-rekey.a", 1, &[]);
    let from = r#"["checked-rekey.a", "checked-rekey.b"]"#;
    let sidecar = pipe.sidecar("a").with("DEDUPD_REKEY__FROM", from).with("DEDUPD_REKEY__TO", &pipe.raw);
    let strict = sidecar.clone().with("DEDUPD_TOPICS__CREATE", "false");
    let missing = "\nwarning: rekey would not start: topic checked-rekey.b (rekey.from) does not exist";
    // Beside the problems of `run`, and alone.
    let Checked { code, output, last } = check(&strict);
    assert_eq!(code, Some(3), "{output}{last}");
    assert!(output.contains(missing) && last.contains("(topics.state) does not exist"), "{output}{last}");
    let text = passed(&sidecar);
    assert_eq!(text.matches("rekey would not start").count(), 1, "{text}");
    assert!(text.contains(missing) && !text.contains("rekey: all checks passed"), "{text}");
    assert_eq!(kafka.partitions("checked-rekey.b"), 0, "the check has created a topic");
    kafka.create_topic("checked-rekey.b", 1, &[]);
    let text = passed(&sidecar);
    assert!(text.contains("\nrekey: all checks passed\n") && !text.contains("would not start"), "{text}");
}

/// Offsets that another program has set, or `group.start`: a window that lacks the ids of earlier records must not report its whole length.
#[test]
fn a_group_that_continues_behind_unprocessed_records_has_a_short_window() {
    let kafka = shared_kafka();
    for is_latest in [false, true] {
        let pipe = Pipe::new(kafka, &format!("check-behind-{is_latest}"), 1);
        let ids = |from: u32| (from..from + 10).map(|n| Draft::id(0, &format!("{n}"))).collect::<Vec<_>>();
        kafka.send(&pipe.raw, &ids(0));
        let sidecar = pipe.sidecar("a").with("DEDUPD_GROUP__STATIC_MEMBERSHIP", "false");
        let words = "continues behind records of raw that it has not processed";
        assert!(!passed(&sidecar).contains(words));
        let sidecar = if is_latest {
            sidecar.with("DEDUPD_GROUP__START", "latest")
        } else {
            kafka.commit_offset(&pipe.group(), &pipe.raw, 0, 5);
            sidecar
        };
        assert!(passed(&sidecar).contains(&format!("warning: partitions 0 (1): the group {words}")));
        for from in [10, 20] {
            let running = sidecar.start();
            running.wait_running(1, LIMIT);
            assert!(
                running.value("dedupd_window_seconds{partition=\"0\"}") < 60.0,
                "before the first record of {from}"
            );
            kafka.send(&pipe.raw, &ids(from));
            pipe.wait_caught_up(1, LIMIT);
            assert!(
                running.value("dedupd_window_seconds{partition=\"0\"}") < 60.0,
                "behind the records of {from}"
            );
            assert_eq!(running.text().contains(words), from == 10, "{}", running.text());
            assert_eq!(running.stop(), Some(0), "{}", running.text());
            // The second time from the state topic.
            std::fs::remove_dir_all(&sidecar.state_dir).unwrap();
        }
    }
}

#[test]
fn a_new_group_beside_the_records_of_another_is_a_warning() {
    let pipe = Pipe::new(shared_kafka(), "check-second", 1);
    pipe.kafka.send(&pipe.raw, &[Draft::id(0, "a")]);
    let words = "warning: the clean topic has records, but group second has processed none";
    let second = pipe
        .sidecar("b")
        .with("DEDUPD_GROUP__ID", "second")
        .with("DEDUPD_TOPICS__STATE", "check-second.state");
    assert!(!passed(&second).contains(words));
    pipe.through(1, &pipe.sidecar("a"));
    let text = passed(&second);
    assert!(text.contains(words), "{text}");
    let running = second.start();
    running.wait_running(1, LIMIT);
    assert!(running.text().contains("group second has processed none"), "{}", running.text());
}

#[test]
fn an_address_without_a_broker_beside_one_with_a_broker_hides_no_finding() {
    let pipe = Pipe::new(shared_kafka(), "check-one-dead", 1);
    pipe.kafka.send(&pipe.raw, &[Draft::id(0, "a")]);
    let sidecar = pipe.sidecar("a").with("DEDUPD_IDENTITY__FROM", "[\"json:/nope\"]");
    let sidecar = Sidecar { bootstrap: format!("{},127.0.0.1:1", sidecar.bootstrap), ..sidecar };
    for _ in 0..6 {
        let Checked { code, output, last } = check(&sidecar);
        assert_eq!(code, Some(3), "{output}{last}");
        assert!(last.contains("none of the newest 1 records of raw has an id"), "{last}");
    }
}
