//! The state commands: their output, exit codes and effects on the directory.

use std::fs;

use dedupd::clock::monotonic;
use dedupd::store::Lock;
use serde_json::Value;

use super::*;

fn entries(dir: &Path) -> Vec<String> {
    let names = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<_> = names.collect();
    names.sort();
    names
}

#[test]
fn inspect_and_export_change_no_byte() {
    let (dir, out) = (filled(), tempfile::tempdir().unwrap());
    let scratch = tempfile::tempdir().unwrap();
    let (before, target) = (files(dir.path()), out.path().join("state"));
    for words in [
        &["inspect"][..],
        &["inspect", "--json"],
        &["inspect", "--id", "order-0-5"],
        &["export", "--to", target.to_str().unwrap()],
    ] {
        let output = dedupd_with(dir.path(), words, &[("TMPDIR", scratch.path().to_str().unwrap())]);
        assert_eq!((output.code, output.err.as_str()), (0, ""), "{words:?}: {output:?}");
        assert!(files(dir.path()) == before, "{words:?} changed the directory");
        assert_eq!(entries(scratch.path()), [""; 0], "{words:?} left its copy behind");
    }
    for words in [&["inspect"][..], &["export", "--to", target.to_str().unwrap()]] {
        let output = dedupd_with(dir.path(), words, &[("TMPDIR", "/nowhere")]);
        assert!(output.code == 4 && output.err.contains("; set TMPDIR to a directory"), "{output:?}");
    }
    // The state is still intact: a start opens it.
    opened(dir.path(), HashKind::Xxh3).close().unwrap();
}

#[test]
fn an_inspection_is_printed_as_text_and_as_json() {
    let dir = filled();
    let output = dedupd(dir.path(), &["inspect"]);
    for part in ["events.raw (id raw-id), 3 partitions", "37,800", "2023-11-15T08:13:19.000Z", "  36000  "] {
        assert!(output.out.contains(part), "no {part:?} in\n{}", output.out);
    }
    assert!(output.out.lines().all(|line| line.len() <= 140), "{}", output.out);
    let json: Value = serde_json::from_str(&dedupd(dir.path(), &["inspect", "--json"]).out).unwrap();
    assert_eq!(json["binding"]["hash"], "xxh3");
    assert_eq!(json["partitions"][1]["partition"], 2);
    assert_eq!(json["partitions"][0]["stream_time_ms"], T + 35_999_000);
    assert_eq!(json["windows"][1]["ids"], 1_800);
}

#[test]
fn the_result_for_an_id_is_in_text_json_and_exit_code() {
    let dir = filled();
    let inspect_id = |words: &[&str]| dedupd(dir.path(), &[&["inspect"], words].concat());
    let exact = inspect_id(&["--id", "order-0-35999"]);
    assert!(exact.code == 0 && exact.out.contains("partition 0 offset 35999"), "{exact:?}");
    assert!(exact.out.contains("is a duplicate"), "{exact:?}");
    assert!(inspect_id(&["--id", "order-0-3"]).out.contains("older than the window"));
    let absent = inspect_id(&["--id", "order-0-36000"]);
    assert!(absent.code == 1 && absent.out.contains("not found") && absent.err.is_empty(), "{absent:?}");
    assert_eq!(inspect_id(&["--id", "order-0-35999", "--partition", "2"]).code, 1);
    let json: Value = serde_json::from_str(&inspect_id(&["--id", "order-0-20000", "--json"]).out).unwrap();
    assert_eq!((&json["found"][0]["offset"], &json["found"][0]["partition"]), (&20_000.into(), &0.into()));
    assert_eq!(json["found"][0]["standing"], "exact");
    for (words, expected) in [
        (&["--id", ""][..], "empty"),
        (&["--id", "x", "--partition", "3"], "partitions 0 to 2"),
        (&["--partition", "3"], "--id"),
    ] {
        let output = inspect_id(words);
        assert!(output.code == 2 && output.err.contains(expected), "{words:?}: {output:?}");
    }
    let composite = [("DEDUPD_IDENTITY__FROM", "[\"key\", \"header:x\"]")];
    let output = dedupd_with(dir.path(), &["inspect", "--id", "a"], &composite);
    assert!(output.code == 2 && output.err.contains("key, header:x"), "{output:?}");
    assert_eq!(dedupd_with(dir.path(), &["inspect", "--id", "a", "--id", "b"], &composite).code, 1);
}

#[test]
fn ids_are_hashed_as_the_instance_hashes_them() {
    let key = *b"0123456789abcdef";
    let dir = filled_with(Hasher::SipHash { key });
    let key_file = dir.path().with_extension("key");
    fs::write(&key_file, format!("{:032x}\n", u128::from_be_bytes(key))).unwrap();
    let keyed =
        [("DEDUPD_IDENTITY__HASH", "siphash"), ("DEDUPD_IDENTITY__KEY_FILE", key_file.to_str().unwrap())];
    let output = dedupd_with(dir.path(), &["inspect", "--id", "order-2-7"], &keyed);
    assert!(output.code == 0 && output.out.contains("partition 2 offset 7"), "{output:?}");
    let wrong = dedupd(dir.path(), &["inspect", "--id", "order-2-7"]);
    assert!(wrong.code == 4 && wrong.err.contains("siphash:") && wrong.err.contains("xxh3"), "{wrong:?}");
    // Inspecting and exporting the whole state need no key.
    let json: Value = serde_json::from_str(&dedupd(dir.path(), &["inspect", "--json"]).out).unwrap();
    assert!(json["binding"]["hash"].as_str().unwrap().starts_with("siphash:"));
    let file = dir.path().with_extension("state");
    assert_eq!(dedupd(dir.path(), &["export", "--to", file.to_str().unwrap()]).code, 0);
    let other = tempfile::tempdir().unwrap();
    let import = ["import", "--from", file.to_str().unwrap()];
    let wrong = dedupd(other.path(), &import);
    assert!(wrong.code == 4 && wrong.err.contains("siphash:"), "{wrong:?}");
    assert_eq!(dedupd_with(other.path(), &import, &keyed).code, 0);
    fs::remove_file(key_file).unwrap();
    fs::remove_file(file).unwrap();
}

#[test]
fn a_directory_in_use_is_rejected_at_once_with_the_holder_and_its_endpoint() {
    let dir = filled();
    let lock = Lock::acquire(dir.path()).unwrap();
    let holder = fs::read(dir.path().join("lock")).unwrap();
    let before = files(dir.path());
    for words in [
        &["inspect"][..],
        &["inspect", "--id", "x"],
        &["export", "--to", "never-written"],
        &["import", "--from", "never-read"],
        &["reset", "--yes"],
    ] {
        let start = monotonic();
        let output = dedupd_with(dir.path(), words, &[("DEDUPD_HTTP__LISTEN", "127.0.0.1:7777")]);
        assert!(start.elapsed() < Duration::from_secs(5), "{words:?} took {:?}", start.elapsed());
        assert_eq!(output.code, 4, "{words:?}: {output:?}");
        assert!(output.err.contains(&format!("process {}", std::process::id())), "{output:?}");
        assert!(output.err.contains("GET http://127.0.0.1:7777/state"), "{output:?}");
    }
    assert!(files(dir.path()) == before && fs::read(dir.path().join("lock")).unwrap() == holder);
    drop(lock);
    // A process that another test is just starting may hold a copy of the lock for a moment.
    let free = || dedupd(dir.path(), &["inspect"]).code == 0;
    let soon = (0..50).any(|attempt| {
        std::thread::sleep(Duration::from_millis(20 * u64::from(attempt > 0)));
        free()
    });
    assert!(soon, "still locked");
}

#[test]
fn without_state_none_is_created() {
    let dir = tempfile::tempdir().unwrap();
    let absent = dir.path().join("absent");
    for words in [&["inspect"][..], &["export", "--to", "never-written"]] {
        let output = dedupd(&absent, words);
        assert!(
            output.code == 4 && output.err.contains("there is no state") && !absent.exists(),
            "{output:?}"
        );
        assert_eq!(dedupd(dir.path(), words).code, 4);
    }
    // A mistyped directory must not look like one that was reset.
    let output = dedupd(&absent, &["reset", "--yes"]);
    assert!(
        output.code == 4 && output.err.contains("absent") && output.out.is_empty() && !absent.exists(),
        "{output:?}"
    );
    let output = dedupd(dir.path(), &["reset", "--yes"]);
    assert!(output.code == 0 && output.out.contains("nothing to delete"), "{output:?}");
    // A directory that was never that of an instance gets no lock file.
    let foreign = tempfile::tempdir().unwrap();
    let output = dedupd(foreign.path(), &["reset", "--yes"]);
    assert!(output.code == 0 && output.out.contains("nothing to delete"), "{output:?}");
    assert_eq!(foreign.path().read_dir().unwrap().count(), 0);
}

#[test]
fn an_import_requires_an_empty_directory() {
    let (dir, empty) = (filled(), tempfile::tempdir().unwrap());
    let file = dir.path().with_extension("file");
    assert_eq!(dedupd(dir.path(), &["export", "--to", file.to_str().unwrap()]).code, 0);
    let import = ["import", "--from", file.to_str().unwrap()];
    let before = files(dir.path());
    let output = dedupd(dir.path(), &import);
    assert!(
        output.code == 4 && output.err.contains("db-1") && output.err.contains("state reset"),
        "{output:?}"
    );
    assert!(files(dir.path()) == before);
    fs::write(empty.path().join("notes"), "mine").unwrap();
    assert!(dedupd(empty.path(), &import).err.contains("notes"));
    fs::remove_file(empty.path().join("notes")).unwrap();
    let output = dedupd(empty.path(), &import);
    assert!(output.code == 0 && output.out.contains("37,800 ids"), "{output:?}");
    // A directory that does not exist is created.
    assert_eq!(dedupd(&empty.path().join("new"), &import).code, 0);
    let json: Value =
        serde_json::from_str(&dedupd(&empty.path().join("new"), &["inspect", "--json"]).out).unwrap();
    assert_eq!(json["ids"], 37_800);
    fs::remove_file(file).unwrap();
}

#[test]
fn a_reset_requires_confirmation_and_deletes_only_the_stores_own_entries() {
    let dir = filled();
    fs::create_dir_all(dir.path().join("quarantine-0")).unwrap();
    fs::write(dir.path().join("db-notes"), "mine").unwrap();
    let before = files(dir.path());
    let output = dedupd(dir.path(), &["reset"]);
    assert!(output.code == 2 && output.err.contains("--yes"), "{output:?}");
    assert!(files(dir.path()) == before, "nothing is deleted without an answer");
    let output = dedupd(dir.path(), &["reset", "--yes"]);
    assert_eq!((output.code, output.err.as_str()), (0, ""), "{output:?}");
    assert!(output.out.contains("db-1") && output.out.contains("quarantine-0"), "{output:?}");
    assert!(output.out.contains("The state topic is not changed"), "{output:?}");
    assert!(output.out.contains("not touched") && output.out.contains("db-notes"), "{output:?}");
    assert_eq!(entries(dir.path()), ["db-notes", "lock"]);
    let fresh = opened(dir.path(), HashKind::Xxh3);
    assert_eq!(fresh.head(0.into()).unwrap(), None);
    fresh.close().unwrap();
}

#[test]
fn ids_are_looked_up_only_by_the_rule_of_the_state() {
    let rule = |source: &str| IdentityRule::new(vec![source.parse().unwrap()], Hasher::Xxh3).fingerprint();
    let (dir, files) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let bound = Binding { rules: vec![rule("json:/id")], ..binding(HashKind::Xxh3) };
    let mut store = open(dir.path(), &bound, CACHE_BYTES, DEADLINE).unwrap().store;
    fill(&mut store, 2, 600, Hasher::Xxh3);
    store.close().unwrap();
    let [ours, others] = ["ours", "others"].map(|name| files.path().join(name).to_str().unwrap().to_owned());
    let inspect = ["inspect", "--id", "order-2-7"];
    let [write, write_other] = [&ours, &others].map(|file| ["filter", "--file", file]);
    let ask = ["filter", "--file", &ours, "--contains", "order-2-7"];
    for words in [&inspect[..], &write, &ask] {
        let output = dedupd_with(dir.path(), words, &[("DEDUPD_IDENTITY__FROM", "json:/id")]);
        assert_eq!(output.code, 0, "{words:?}: {output:?}");
    }
    let frame = ("DEDUPD_SCHEMAS__FRAME", "glue");
    let other = ("DEDUPD_IDENTITY__FROM", "json:/a");
    for words in [&inspect[..], &write_other, &ask] {
        let output = dedupd_with(dir.path(), words, &[other]);
        let named = [rule("json:/id"), rule("json:/a")].map(|rule| output.err.contains(&rule.to_string()));
        assert_eq!((output.code, named), (4, [true, true]), "{words:?}: {output:?}");
        assert_eq!(dedupd_with(dir.path(), words, &[("DEDUPD_IDENTITY__FROM", "json:/id"), frame]).code, 4);
    }
    // Without a rule only the hash is compared.
    assert_eq!(dedupd(dir.path(), &inspect).code, 0);
    let unreadable = [("DEDUPD_IDENTITY__HASH", "siphash"), ("DEDUPD_IDENTITY__KEY_FILE", "/no/such/key")];
    assert_eq!(dedupd_with(dir.path(), &write_other, &unreadable).code, 2);
    assert!(!fs::exists(&others).unwrap(), "a filter of another rule was written");
}
