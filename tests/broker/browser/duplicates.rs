//! Duplicates on the page: their ages, the window that they need, conflicts, and the sources that cause them.

use serde_json::{Value, json};

use super::{LIMIT, look, shown, wait_for};
use crate::support::{Draft, Pipe, Running, now_ms, shared_kafka, wait_until};

const MINUTE_MS: i64 = 60_000;
const FIRST: u64 = 40;

fn duplicates(running: &Running) -> Value {
    let answer = running.page("/status.json");
    let mut status: Value = serde_json::from_str(answer.split_once("\r\n\r\n").unwrap().1).unwrap();
    status["duplicates"].take()
}

/// 40 ids, three copies of each half a minute later, and two records with other content after 90 minutes.
fn load(pipe: &Pipe<'_>) {
    let began = now_ms() - 120 * MINUTE_MS;
    let id = |at: u64| Draft::id(0, &format!("id-{at}"));
    let mut drafts: Vec<Draft> = (0..FIRST).map(|at| id(at).at(began)).collect();
    for _ in 0..3 {
        let copy = |at| id(at).at(began + MINUTE_MS / 2).header("app", Some(b"retrying"));
        drafts.extend((0..FIRST).map(copy));
    }
    for at in 0..2 {
        let other = Draft::new(0, &format!("{{\"id\":\"id-{at}\",\"amount\":2}}"));
        drafts.push(other.at(began + 90 * MINUTE_MS).header("app", Some(b"billing<b>")));
    }
    pipe.kafka.send(&pipe.raw, &drafts);
    pipe.wait_caught_up(1, LIMIT);
}

#[test]
fn the_page_shows_duplicates_conflicts_and_their_sources() {
    let pipe = Pipe::new(shared_kafka(), "page-duplicates", 1);
    let sidecar = pipe.sidecar("a").with("DEDUPD_INSIGHT__BY", "[\"header:app\", \"partition\"]");
    let running = sidecar.start();
    running.wait_running(1, LIMIT);
    let browser = shown(&pipe, &running);
    let text = wait_for(&browser, "No duplicate whose first record is known");
    assert!(!text.contains("How long the window must be"), "{text}");
    load(&pipe);
    running.wait_outcomes(&[("forwarded", FIRST), ("duplicate", 3 * FIRST), ("conflict", 2)]);
    assert_eq!(running.value("dedupd_duplicate_age_seconds_count"), 122.0);
    assert_eq!(running.value("dedupd_duplicate_age_seconds_bucket{le=\"60\"}"), 120.0);
    assert_eq!(running.value("dedupd_duplicates_not_compared_total"), 0.0);

    let status = wait_until("the duplicates to be published", LIMIT, || {
        let status = duplicates(&running);
        status["last"][0]["content"].is_string().then_some(status)
    });
    assert_eq!((&status["duplicates"], &status["conflicts"]), (&122.into(), &2.into()));
    // 60 s find 120 of 122, which is less than 99 %, and the next bound is above 90 minutes.
    assert_eq!(status["needed_windows"], json!([{"percent": 99.0, "seconds": 14_400.0}]));
    let [last, before] = [&status["last"][0], &status["last"][2]];
    assert_eq!(
        (&last["owner_offset"], &last["age_seconds"], &last["content"]),
        (&1.into(), &5_400.0.into(), &"different".into())
    );
    assert_eq!((&before["age_seconds"], &before["content"]), (&30.0.into(), &"equal".into()));
    let [app, partition] = [&status["sources"][0], &status["sources"][1]];
    assert_eq!(app["duplicates"]["values"][0], json!({"value": "retrying", "least": 120, "most": 120}));
    assert_eq!(app["conflicts"]["values"], json!([{"value": "billing<b>", "least": 2, "most": 2}]));
    assert_eq!(partition["duplicates"]["values"], json!([{"value": "0", "least": 122, "most": 122}]));

    wait_for(&browser, "99 %\tat most 4h");
    let text = browser.text();
    for words in [
        "Most duplicates by header:app",
        "retrying\t120",
        "billing<b>\t2",
        "window: 24h",
        "0@161\t0@1\t1h 30m\tother",
    ] {
        assert!(text.contains(words), "{words:?} is not in {text}");
    }
    look::at_all(&browser, "duplicates");
    assert!(browser.console().is_empty(), "{:?}", browser.console());
    assert_eq!(running.stop(), Some(0), "{}", running.text());

    // What is compared has changed: the digests of before are of another rule.
    let running = sidecar.comparing_ids().start();
    running.wait_running(1, LIMIT);
    pipe.kafka.send(&pipe.raw, &[Draft::id(0, "id-0").at(now_ms())]);
    running.wait_outcomes(&[("duplicate", 1), ("conflict", 0)]);
    assert_eq!(running.value("dedupd_duplicates_not_compared_total"), 1.0);
    wait_until("the duplicate without a comparison", LIMIT, || {
        (duplicates(&running)["last"][0]["content"] == "not_compared").then_some(())
    });
    assert_eq!(running.stop(), Some(0), "{}", running.text());
}
