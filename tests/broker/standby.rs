//! Standby copies (`state.standby`) on a real Apache Kafka: a takeover reads only the rest of the state topic.

use std::path::Path;
use std::time::Duration;

use crate::support::{Draft, Load, Pipe, Running, Scope, Sidecar, shared_kafka, wait_until};

const PARTITIONS: usize = 6;
const LIMIT: Duration = Duration::from_mins(1);
/// Ids of the windows before an instance is killed.
const IDS: f64 = 25_000.0;

fn standby(pipe: &Pipe<'_>, name: &str) -> Sidecar {
    pipe.sidecar(name).with("DEDUPD_STATE__STANDBY", "true")
}

fn sum(running: &Running, name: &str) -> f64 {
    let page = running.get("/metrics").expect("the metrics page");
    let values = page.lines().filter(|line| line.starts_with(name));
    values.filter_map(|line| line.rsplit_once(' ')?.1.parse::<f64>().ok()).sum()
}

fn restored(running: &Running, source: &str) -> f64 {
    running.metric(&format!("dedupd_restored_ids_total{{source=\"{source}\"}}")).unwrap()
}

/// Waits until the copies of this many journals were read to the end of the state topic.
fn wait_copied(running: &Running, journals: usize) {
    wait_until("the standby copies", LIMIT, || {
        let page = running.get("/status.json")?;
        let complete = format!("\"standby\":{{\"complete\":{journals},");
        page.contains(&complete).then_some(())
    });
    wait_until("no lag of the copies", LIMIT, || {
        running.metric("dedupd_standby_lag_records").filter(|lag| *lag < 0.5)
    });
}

/// Asserts that the process has read only the rest of the state topic since the takeover.
fn assert_read_the_rest(running: &Running) {
    let (rest, all) = (restored(running, "state_topic"), sum(running, "dedupd_window_ids{"));
    println!("{rest} of {all} ids were read from the state topic after the takeover");
    assert!(all >= IDS && rest < all / 4.0, "{rest} of {all} ids:\n{}", running.text());
    assert!(restored(running, "local") > 0.0 || rest > 0.0, "{}", running.text());
}

fn fill(load: &Load) {
    load.more(45_000);
}

#[test]
fn a_spare_that_follows_takes_over_after_kill_9_and_reads_only_the_rest() {
    let pipe = Pipe::new(shared_kafka(), "standby-killed", PARTITIONS);
    let load = pipe.load(PARTITIONS, 5_000);
    let sidecars = ["a", "b"].map(|name| standby(&pipe, name));
    // Of two that start at the same time, either can become active.
    let active = sidecars[0].start();
    active.wait_running(PARTITIONS, LIMIT);
    let mut running = [active, sidecars[1].start()];
    wait_copied(&running[1], 1);
    fill(&load);
    for round in 0..3 {
        let (active, spare) = (round % 2, (round + 1) % 2);
        wait_copied(&running[spare], 1);
        load.more(10_000);
        assert_eq!(running[spare].metric("dedupd_standby_journals"), Some(1.0));
        assert!(sum(&running[spare], "dedupd_sealed_ids_total") > 0.0, "a copy is sealed as it grows");
        running[active].kill9();
        running[spare].wait_running(PARTITIONS, LIMIT);
        assert_read_the_rest(&running[spare]);
        assert_eq!(running[spare].metric("dedupd_standby_journals"), Some(0.0));
        load.more(10_000);
        // It continues with the state that it had as the active instance.
        running[active] = sidecars[active].start();
    }
    wait_copied(&running[0], 1);
    pipe.finish(load, &running);
}

#[test]
fn instances_that_share_the_partitions_follow_those_of_the_others() {
    let pipe = Pipe::new(shared_kafka(), "standby-shared", PARTITIONS);
    let load = pipe.load(PARTITIONS, 5_000);
    let sidecars = ["a", "b"].map(|name| standby(&pipe, name).scoped(Scope::Partition));
    let mut running = [sidecars[0].start(), sidecars[1].start()];
    let owned = |running: &Running| running.metric("dedupd_partitions{state=\"running\"}");
    for round in 0..3 {
        wait_until("both to share the partitions", LIMIT, || {
            running.iter().all(|it| owned(it) == Some(PARTITIONS as f64 / 2.0)).then_some(())
        });
        for instance in &running {
            wait_copied(instance, PARTITIONS / 2);
        }
        if round == 0 {
            fill(&load);
        }
        load.more(10_000);
        let (killed, other) = (round % 2, (round + 1) % 2);
        let before = restored(&running[other], "state_topic");
        running[killed].kill9();
        running[other].wait_running(PARTITIONS, LIMIT);
        let rest = restored(&running[other], "state_topic") - before;
        let all = sum(&running[other], "dedupd_window_ids{");
        println!("{rest} of {all} ids were read from the state topic after the takeover");
        assert!(all >= IDS && rest < all / 8.0, "{rest} of {all} ids:\n{}", running[other].text());
        load.more(10_000);
        running[killed] = sidecars[killed].start();
    }
    wait_until("both to share the partitions", LIMIT, || {
        running.iter().all(|it| owned(it) == Some(PARTITIONS as f64 / 2.0)).then_some(())
    });
    pipe.finish(load, &running);
}

/// Changes the second half of each slice and block file. Returns their number.
fn damage(dir: &Path) -> usize {
    let (mut damaged, mut dirs) = (0, vec![dir.to_path_buf()]);
    while let Some(dir) = dirs.pop() {
        for path in std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()) {
            if path.is_dir() {
                dirs.push(path);
            } else if path.file_name().is_some_and(|name| name.to_string_lossy().parse::<u32>().is_ok()) {
                let mut bytes = std::fs::read(&path).unwrap();
                let middle = bytes.len() / 2;
                bytes[middle..].iter_mut().for_each(|byte| *byte ^= 0x5a);
                std::fs::write(&path, bytes).unwrap();
                damaged += 1;
            }
        }
    }
    damaged
}

#[test]
fn a_damaged_copy_is_rebuilt_and_a_takeover_without_one_restores() {
    let pipe = Pipe::new(shared_kafka(), "standby-damaged", PARTITIONS);
    let load = pipe.load(PARTITIONS, 5_000);
    let sidecars = ["a", "b"].map(|name| standby(&pipe, name));
    let active = sidecars[0].start();
    active.wait_running(PARTITIONS, LIMIT);
    let spare = sidecars[1].start();
    wait_copied(&spare, 1);
    fill(&load);
    assert_eq!(spare.stop(), Some(0), "{}", spare.text());
    assert!(damage(&sidecars[1].state_dir) > 0, "no file is damaged");

    let spare = sidecars[1].start();
    wait_copied(&spare, 1);
    assert!(spare.text().contains("quarantin"), "{}", spare.text());
    assert!(restored(&spare, "standby") >= IDS, "the copy is rebuilt from the state topic");
    load.more(10_000);
    active.kill9();
    spare.wait_running(PARTITIONS, LIMIT);
    assert_read_the_rest(&spare);

    // A spare that has just started has no copy.
    std::fs::remove_dir_all(&sidecars[0].state_dir).unwrap();
    let other = pipe.sidecar("a").start();
    wait_until("the spare", LIMIT, || other.has_role("spare").then_some(()));
    spare.kill9();
    other.wait_running(PARTITIONS, LIMIT);
    assert!(restored(&other, "state_topic") >= IDS, "{}", other.text());
    load.more(10_000);
    pipe.finish(load, [&other]);
}

#[test]
fn a_spare_that_cannot_read_the_state_topic_is_not_ready_and_says_what_a_takeover_does() {
    let pipe = Pipe::new(shared_kafka(), "standby-unusable", PARTITIONS);
    let load = pipe.load(PARTITIONS, 500);
    let sidecars = ["a", "b"].map(|name| standby(&pipe, name));
    let active = sidecars[0].start();
    active.wait_running(PARTITIONS, LIMIT);
    let spare = sidecars[1].start();
    wait_copied(&spare, 1);
    assert!(spare.is_ready(), "the control: {}", spare.text());

    pipe.kafka.send(&format!("{}.dedupd", pipe.clean), &[Draft::new(0, "of another program")]);
    load.more(500);
    wait_until("a spare that is not ready", LIMIT, || {
        let page = spare.get("/readyz").filter(|_| !spare.is_ready())?;
        (page.contains("could not take over: topic ") && page.contains("contains no usable block"))
            .then_some(())
    });
    let copy = spare.complaints().into_iter().find(|line| line.contains("no standby copy")).unwrap();
    assert!(copy.contains("a takeover fails, too, if it has to read the state topic there"), "{copy}");
    active.kill9();
    assert_eq!(spare.wait(LIMIT).code(), Some(6), "{}", spare.text());
    // The state of the active instance does not need that record.
    let active = sidecars[0].start();
    active.wait_running(PARTITIONS, LIMIT);
    pipe.finish(load, [&active]);
}
