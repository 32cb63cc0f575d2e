//! The status page in a real browser: its content for a running, restoring or waiting instance, its readability on
//! every screen, and that it loads nothing from other hosts.
#![allow(clippy::float_cmp, reason = "counts are whole numbers in f64")]

mod driver;
mod duplicates;
mod look;

use std::time::Duration;

use serde_json::{Map, Value};

use crate::support::{Kafka, Load, Pipe, Running, api, shared_kafka, shared_proxy, wait_until};
use driver::Browser;

const PARTITIONS: usize = 3;
const LIMIT: Duration = Duration::from_mins(1);

fn address(running: &Running) -> String {
    format!("http://127.0.0.1:{}/", running.port)
}

/// Opens the page of an instance in its own browser.
fn shown(pipe: &Pipe<'_>, running: &Running) -> Browser {
    let browser = Browser::open(pipe.dir.path());
    browser.go(&address(running));
    browser
}

/// A running sidecar under load.
fn working(pipe: &Pipe<'_>, workers: usize) -> (Running, Load) {
    // The copies of the load have numbers of their own.
    let sidecar = pipe.sidecar("a").sharing(workers).comparing_ids();
    let running = sidecar.start();
    running.wait_running(PARTITIONS, LIMIT);
    let load = pipe.load(PARTITIONS, 500);
    load.more(1_000);
    (running, load)
}

/// Waits until the page contains the words, without any input.
fn wait_for(browser: &Browser, words: &str) -> String {
    let start = dedupd::clock::monotonic();
    loop {
        let text = browser.text();
        if text.contains(words) {
            return text;
        }
        assert!(start.elapsed() < LIMIT, "the page does not contain {words:?}:\n{text}");
        std::thread::sleep(Duration::from_millis(100));
    }
}

#[test]
fn the_checks_detect_a_page_that_is_hard_to_read() {
    let dir = tempfile::tempdir().unwrap();
    let browser = Browser::open(dir.path());
    let look_at = |style: &str| {
        let lines = "<p>It can be read.</p>".repeat(12);
        let page = format!(
            "<!doctype html><meta name=viewport content=width=device-width><style>{style}</style>{lines}"
        );
        browser.go(&format!("data:text/html,{}", page.replace('%', "%25").replace('#', "%23")));
        std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| look::at_all(&browser, "sample")))
            .map_err(|why| why.downcast_ref::<String>().cloned().unwrap_or_default())
    };
    let good = "html { color-scheme: light dark; background: Canvas; color: CanvasText; }";
    look_at(good).unwrap();
    for (bad, expected) in [
        ("p { color: #888; }", "light: contrast below"),
        ("p { opacity: .4; }", "light: contrast below"),
        ("html { color: black; }", "dark: contrast below"),
        ("p { width: 400px; }", "sample-phone-light is 4"),
        ("html { color-scheme: light; }", "light and dark have the same background"),
    ] {
        let message = look_at(&format!("{good} {bad}")).unwrap_err();
        assert!(message.contains(expected), "{bad}: {message}");
    }
}

/// The browser console is empty, and the browser sent requests only to this instance.
fn assert_self_contained(browser: &Browser, running: &Running) {
    let console = browser.console();
    assert!(console.is_empty(), "the console contains {console:?}");
    let urls = browser.requested();
    assert!(urls.len() > 1, "requests of the browser were not recorded: {urls:?}");
    let home = address(running);
    let outside: Vec<_> = urls.iter().filter(|url| !url.starts_with(&home) && *url != "data:,").collect();
    assert!(outside.is_empty(), "requests to {outside:?}");
}

/// The rows of the partition table: the text of each cell by column name.
fn partitions(browser: &Browser) -> Vec<Map<String, Value>> {
    let rows = browser.evaluate(
        "const table = document.querySelector('#partitions');
        if (!table) return [];
        const names = [...table.querySelectorAll('th')].map(it => it.innerText.trim());
        const rows = [...table.querySelectorAll('tr')].filter(row => row.querySelector('td'));
        return rows.map(row => Object.fromEntries(
            [...row.querySelectorAll('td')].map((it, at) => [names[at], it.innerText.trim()])));",
    );
    serde_json::from_value(rows).unwrap()
}

/// The number in a cell, without its thin spaces. `None` if it is unknown now.
fn known(row: &Map<String, Value>, column: &str) -> Option<u64> {
    let text = row[column].as_str().unwrap();
    let digits: String = text.chars().filter(|sign| *sign != '\u{202f}').collect();
    (text != "?").then(|| digits.parse().unwrap_or_else(|_| panic!("{column} is {text:?}")))
}

fn number(row: &Map<String, Value>, column: &str) -> u64 {
    known(row, column).unwrap_or_else(|| panic!("{column} is unknown: {row:?}"))
}

/// The points of a line in the charts.
fn points(browser: &Browser, line: &str) -> Vec<String> {
    let script =
        format!("const it = document.querySelector('path.{line}'); return it ? it.getAttribute('d') : ''");
    let points = browser.evaluate(&script);
    points.as_str().unwrap().split_whitespace().map(str::to_owned).collect()
}

#[test]
fn the_page_shows_a_running_instance_correctly() {
    let pipe = Pipe::new(shared_kafka(), "page-working", PARTITIONS);
    let (running, load) = working(&pipe, 2);
    let browser = shown(&pipe, &running);
    // An instance whose producer is being replaced is not ready for a moment.
    wait_until("the title of a ready instance", LIMIT, || {
        (browser.title() == "Ready: page-working.raw to page-working.clean").then_some(())
    });
    // The content is replaced without a reload: a variable that was set in the page stays.
    let now = || browser.evaluate("return document.querySelector('.quiet time').innerText");
    let first = now();
    browser.evaluate("window.touched = true");
    wait_until("the content to be replaced", LIMIT, || (now() != first).then_some(()));
    assert_eq!(browser.evaluate("return window.touched"), Value::Bool(true), "the page was reloaded");
    for line in ["all", "again", "lag"] {
        // The lag may be unknown in the first version of the page.
        wait_until(&format!("line {line}"), LIMIT, || (points(&browser, line).len() > 3).then_some(()));
    }
    let floor = |line| points(&browser, line).iter().all(|point| point.ends_with(",88.0"));
    assert!(!floor("all") && !floor("again"), "a line is zero everywhere");
    look::at_all(&browser, "working");
    load.finish();
    pipe.wait_caught_up(PARTITIONS, LIMIT);
    assert_table(&browser, &pipe, &running);
    assert_links(&browser, &running);
    assert_self_contained(&browser, &running);
}

/// After all records are processed: offsets as in Kafka, ids as the audit counts them, owners as in the status.
fn assert_table(browser: &Browser, pipe: &Pipe<'_>, running: &Running) {
    let ends: Vec<u64> =
        (0..).take(PARTITIONS).map(|p| pipe.kafka.watermarks(&pipe.raw, p).1.try_into().unwrap()).collect();
    let rows = wait_until("the page to show the log ends", LIMIT, || {
        let rows = partitions(browser);
        let is_known = rows.iter().all(|row| known(row, "lag").is_some());
        let next = rows.iter().map(|row| known(row, "next offset"));
        (is_known && next.eq(ends.iter().copied().map(Some))).then_some(rows)
    });
    let findings = pipe.assert_exactly_once();
    let ids: u64 = rows.iter().map(|row| number(row, "ids")).sum();
    assert_eq!(ids, (findings.raw - findings.repeats) as u64);
    let status = running.page("/status.json");
    let status: Value = serde_json::from_str(status.split_once("\r\n\r\n").unwrap().1).unwrap();
    for (at, row) in rows.iter().enumerate() {
        assert_eq!(number(row, "partition"), at as u64);
        assert_eq!(
            (&row["state"], number(row, "lag"), &row["window"]),
            (&"running".into(), 0, &"24h".into())
        );
        let owned = &status["workers"][usize::try_from(number(row, "worker")).unwrap()]["partitions"];
        assert!(owned.as_array().unwrap().iter().any(|it| it["partition"] == at), "partition {at}: {owned}");
    }
    let workers: std::collections::BTreeSet<u64> = rows.iter().map(|row| number(row, "worker")).collect();
    assert_eq!(workers.len(), 2, "one worker has all partitions");
    wait_for(browser, "lag: 0");
}

fn assert_links(browser: &Browser, running: &Running) {
    let home = address(running);
    for (link, path, content) in [
        ("metrics", "metrics", "# HELP dedupd_records_total"),
        ("readiness", "readyz", "ready"),
        ("configuration", "config", "bootstrap_servers = "),
        ("this page as JSON", "status.json", "\"readiness\":{"),
    ] {
        browser.click(link);
        let text = wait_for(browser, content);
        assert_eq!(browser.url(), format!("{home}{path}"), "{text}");
        browser.back();
        wait_for(browser, "dedupd: page-working.raw");
        assert_eq!(browser.url(), home);
    }
}

#[test]
fn the_page_shows_that_an_instance_waits_for_its_broker() {
    let kafka = Kafka::start();
    let pipe = Pipe::new(&kafka, "page-waiting", PARTITIONS);
    let (running, load) = working(&pipe, 1);
    let browser = shown(&pipe, &running);
    wait_until("the charts", LIMIT, || (points(&browser, "all").len() > 1).then_some(()));
    kafka.kill9();
    wait_for(&browser, "Not ready\nworker 0: waits for the broker: ");
    wait_for(&browser, "Warnings of the last hour\n");
    assert_eq!(browser.title(), "Not ready: page-waiting.raw to page-waiting.clean");
    look::at_all(&browser, "waiting");
    kafka.restart();
    let text = wait_for(&browser, "\nReady\n");
    assert!(text.contains("Warnings of the last hour\n"), "earlier warnings are no longer shown: {text}");
    load.finish();
    assert_self_contained(&browser, &running);
}

#[test]
fn the_page_continues_after_a_restart_of_the_instance_without_a_reload() {
    let pipe = Pipe::new(shared_kafka(), "page-restart", PARTITIONS);
    let sidecar = pipe.sidecar("a").sharing(1);
    let running = sidecar.start();
    running.wait_running(PARTITIONS, LIMIT);
    let (browser, port) = (shown(&pipe, &running), running.port);
    browser.evaluate("window.touched = true");
    wait_for(&browser, "\nReady\n");
    running.kill9();
    let text = wait_for(&browser, "No answer since ");
    assert!(text.contains("Partitions\n"), "the last state is still there: {text}");
    assert!(browser.title().starts_with("No answer: page-restart.raw"), "{}", browser.title());
    look::at_all(&browser, "unanswered");
    let running = sidecar.start_on(port);
    running.wait_running(PARTITIONS, LIMIT);
    let text = wait_for(&browser, "\nReady\n");
    assert!(!text.contains("No answer"), "{text}");
    assert_eq!(browser.evaluate("return window.touched"), Value::Bool(true), "the page was reloaded");
    assert_eq!(browser.title(), "Ready: page-restart.raw to page-restart.clean");
}

#[test]
fn the_page_shows_the_progress_of_a_restore() {
    let pipe = Pipe::new(shared_kafka(), "page-loading", PARTITIONS);
    let (running, load) = working(&pipe, 1);
    load.finish();
    pipe.wait_caught_up(PARTITIONS, LIMIT);
    assert_eq!(running.stop(), Some(0), "{}", running.text());
    let mut sidecar = pipe.sidecar("a").sharing(1);
    std::fs::remove_dir_all(&sidecar.state_dir).unwrap();
    let (_guard, proxy) = shared_proxy();
    sidecar.bootstrap = proxy.bootstrap();
    // Responses are held only from here on, because the reads before a restore have a timeout of 10 s.
    let gate = pipe.dir.path().join("gate");
    let running = sidecar.held_at("before_state_open", &gate).start();
    wait_until("the restore to begin", LIMIT, || gate.exists().then_some(()));
    proxy.hold_responses(api::FETCH, usize::MAX, LIMIT);
    std::fs::remove_file(&gate).unwrap();
    let browser = shown(&pipe, &running);
    wait_for(&browser, "% of the state topic read");
    look::at_all(&browser, "restoring");
    let text = browser.text();
    assert!(text.contains("Not ready\nworker 0: partition 0 is restoring ("), "{text}");
    let restoring = |row: &Map<String, Value>| {
        let state = row["state"].as_str().unwrap();
        state.starts_with("restoring: ") && state.ends_with(" % of the state topic read") && row["lag"] == "?"
    };
    assert!(partitions(&browser).iter().any(restoring), "{text}");
    proxy.release();
    wait_for(&browser, "\nReady\n");
    let rows = partitions(&browser);
    let running_rows = rows.iter().filter(|row| row["state"] == "running").count();
    assert_eq!((rows.len(), running_rows), (PARTITIONS, PARTITIONS), "{}", browser.text());
    assert_self_contained(&browser, &running);
}
