//! The status page in a real browser: what it says of an instance that works, restores, or waits, that it can be
//! read on every screen, that it asks nobody else for anything.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::float_cmp,
    reason = "a test fails by panicking; counts are whole numbers in f64"
)]

mod support;

#[path = "browser/driver.rs"]
mod driver;
#[path = "browser/look.rs"]
mod look;

use std::time::Duration;

use serde_json::{Map, Value};

use driver::Browser;
use support::{Kafka, Load, Pipe, Running, api, shared_kafka, wait_until};

const PARTITIONS: usize = 3;
const LIMIT: Duration = Duration::from_mins(1);

fn address(running: &Running) -> String {
    format!("http://127.0.0.1:{}/", running.port)
}

/// The page of an instance, in a browser of its own.
fn shown(pipe: &Pipe<'_>, running: &Running) -> Browser {
    let browser = Browser::open(pipe.dir.path());
    browser.go(&address(running));
    browser
}

/// A sidecar at work under load.
fn working(pipe: &Pipe<'_>, workers: usize) -> (Running, Load) {
    let mut sidecar = pipe.sidecar("a");
    sidecar.workers = workers;
    let running = sidecar.start();
    running.wait_running(PARTITIONS, LIMIT);
    let load = pipe.load(PARTITIONS, 500);
    load.more(1_000);
    (running, load)
}

/// Waits until the page, which nobody touches, reads so.
fn wait_for(browser: &Browser, words: &str) -> String {
    let start = dedupd::clock::monotonic();
    loop {
        let text = browser.text();
        if text.contains(words) {
            return text;
        }
        assert!(start.elapsed() < LIMIT, "the page does not say {words:?}:\n{text}");
        std::thread::sleep(Duration::from_millis(100));
    }
}

#[test]
fn a_page_that_is_hard_to_read_is_noticed() {
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
    for (bad, noticed) in [
        ("p { color: #888; }", "light: contrast below"),
        ("p { opacity: .4; }", "light: contrast below"),
        ("html { color: black; }", "dark: contrast below"),
        ("p { width: 400px; }", "sample-phone-light is 4"),
        ("html { color-scheme: light; }", "light and dark have one background"),
    ] {
        let said = look_at(&format!("{good} {bad}")).unwrap_err();
        assert!(said.contains(noticed), "{bad}: {said}");
    }
}

/// The browser had nothing to complain about, and asked only this instance.
fn assert_self_contained(browser: &Browser, running: &Running) {
    let console = browser.console();
    assert!(console.is_empty(), "the console says {console:?}");
    let asked = browser.requested();
    assert!(asked.len() > 1, "what the browser asks for was not noted: {asked:?}");
    let home = address(running);
    let outside: Vec<_> = asked.iter().filter(|url| !url.starts_with(&home) && *url != "data:,").collect();
    assert!(outside.is_empty(), "asked for {outside:?}");
}

/// The rows of the table of partitions: each column's word with the text of the cell.
fn partitions(browser: &Browser) -> Vec<Map<String, Value>> {
    let rows = browser.ask(
        "const table = document.querySelector('#partitions');
        if (!table) return [];
        const names = [...table.querySelectorAll('th')].map(it => it.innerText.trim());
        const rows = [...table.querySelectorAll('tr')].filter(row => row.querySelector('td'));
        return rows.map(row => Object.fromEntries(
            [...row.querySelectorAll('td')].map((it, at) => [names[at], it.innerText.trim()])));",
    );
    serde_json::from_value(rows).unwrap()
}

/// A number in a cell, without the thin spaces in it.
fn number(row: &Map<String, Value>, column: &str) -> u64 {
    let text = row[column].as_str().unwrap();
    let digits: String = text.chars().filter(|sign| *sign != '\u{202f}').collect();
    digits.parse().unwrap_or_else(|_| panic!("{column} is {text:?}"))
}

/// The points of a line of the charts.
fn points(browser: &Browser, line: &str) -> Vec<String> {
    let script =
        format!("const it = document.querySelector('path.{line}'); return it ? it.getAttribute('d') : ''");
    let points = browser.ask(&script);
    points.as_str().unwrap().split_whitespace().map(str::to_owned).collect()
}

#[test]
fn an_instance_at_work_is_shown_as_it_is() {
    let pipe = Pipe::new(shared_kafka(), "page-working", PARTITIONS);
    let (running, load) = working(&pipe, 2);
    let browser = shown(&pipe, &running);
    assert_eq!(browser.title(), "Ready: page-working.raw to page-working.clean");
    // Nobody touches it: the page comes again by itself, and what was put into it is gone.
    browser.ask("window.touched = true");
    let first = browser.ask("return document.querySelector('time').innerText");
    wait_until("the page to load itself again", LIMIT, || {
        (browser.ask("return window.touched") == Value::Null).then_some(())
    });
    assert_ne!(browser.ask("return document.querySelector('time').innerText"), first);
    for line in ["all", "again", "lag"] {
        // The first look may be before the lag is known.
        wait_until(&format!("line {line}"), LIMIT, || (points(&browser, line).len() > 3).then_some(()));
    }
    let floor = |line| points(&browser, line).iter().all(|point| point.ends_with(",88.0"));
    assert!(!floor("all") && !floor("again"), "both have been more than nothing");
    look::at_all(&browser, "working");
    load.finish();
    pipe.wait_caught_up(PARTITIONS, LIMIT);
    table_is_right(&browser, &pipe, &running);
    links_lead_there_and_back(&browser, &running);
    assert_self_contained(&browser, &running);
}

/// Once all is processed: offsets as Kafka knows them, ids as the audit counts them, owners as both workers say.
fn table_is_right(browser: &Browser, pipe: &Pipe<'_>, running: &Running) {
    let ends: Vec<u64> =
        (0..).take(PARTITIONS).map(|p| pipe.kafka.watermarks(&pipe.raw, p).1.try_into().unwrap()).collect();
    wait_until("the page to come to the end", LIMIT, || {
        let rows = partitions(browser);
        rows.iter().map(|row| number(row, "next offset")).eq(ends.iter().copied()).then_some(())
    });
    let rows = partitions(browser);
    let findings = pipe.assert_exactly_once();
    let ids: u64 = rows.iter().map(|row| number(row, "ids")).sum();
    assert_eq!(ids, (findings.raw - findings.repeats) as u64);
    let status = running.get("/status.json").unwrap();
    let status: Value = serde_json::from_str(status.split_once("\r\n\r\n").unwrap().1).unwrap();
    for (at, row) in rows.iter().enumerate() {
        assert_eq!(number(row, "partition"), at as u64);
        assert_eq!(
            (&row["state"], number(row, "lag"), &row["window"]),
            (&"running".into(), 0, &"24 h".into())
        );
        let owned = &status["workers"][usize::try_from(number(row, "worker")).unwrap()]["partitions"];
        assert!(owned.as_array().unwrap().iter().any(|it| it["partition"] == at), "partition {at}: {owned}");
    }
    let workers: std::collections::BTreeSet<u64> = rows.iter().map(|row| number(row, "worker")).collect();
    assert_eq!(workers.len(), 2, "both workers have partitions");
    let text = browser.text();
    assert!(text.contains("lag: 0; at most"), "{text}");
}

fn links_lead_there_and_back(browser: &Browser, running: &Running) {
    let home = address(running);
    for (link, path, says) in [
        ("metrics", "metrics", "# HELP dedupd_records_total"),
        ("readiness", "readyz", "ready"),
        ("configuration", "config", "bootstrap_servers = "),
        ("this page as JSON", "status.json", "\"readiness\":{"),
    ] {
        browser.click(link);
        let text = wait_for(browser, says);
        assert_eq!(browser.url(), format!("{home}{path}"), "{text}");
        browser.back();
        wait_for(browser, "dedupd: page-working.raw");
        assert_eq!(browser.url(), home);
    }
}

#[test]
fn an_instance_that_waits_for_its_broker_says_so() {
    let kafka = Kafka::start();
    let pipe = Pipe::new(&kafka, "page-waiting", PARTITIONS);
    let (running, load) = working(&pipe, 1);
    let browser = shown(&pipe, &running);
    wait_until("the charts", LIMIT, || (points(&browser, "all").len() > 1).then_some(()));
    kafka.kill9();
    wait_for(&browser, "Not ready\nworker 0: waits for the broker: ");
    wait_for(&browser, "Last warnings\n");
    assert_eq!(browser.title(), "Not ready: page-waiting.raw to page-waiting.clean");
    look::at_all(&browser, "waiting");
    kafka.restart();
    let text = wait_for(&browser, "\nReady\n");
    assert!(text.contains("Last warnings\n"), "what happened is still told: {text}");
    load.finish();
    assert_self_contained(&browser, &running);
}

#[test]
fn an_instance_that_restores_says_how_far_it_is() {
    let pipe = Pipe::new(shared_kafka(), "page-loading", PARTITIONS);
    let (running, load) = working(&pipe, 1);
    load.finish();
    pipe.wait_caught_up(PARTITIONS, LIMIT);
    assert_eq!(running.stop(), Some(0), "{}", running.text());
    let mut sidecar = pipe.sidecar("a");
    std::fs::remove_dir_all(&sidecar.state_dir).unwrap();
    let proxy = pipe.kafka.proxy();
    sidecar.bootstrap = proxy.bootstrap();
    // Longer than the page takes to load itself again.
    proxy.hold_responses(api::FETCH, 10_000, Duration::from_secs(6));
    let running = sidecar.start();
    wait_until("the page", LIMIT, || running.get("/"));
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
    proxy.heal();
    wait_for(&browser, "\nReady\n");
    let rows = partitions(&browser);
    let running_rows = rows.iter().filter(|row| row["state"] == "running").count();
    assert_eq!((rows.len(), running_rows), (PARTITIONS, PARTITIONS), "{}", browser.text());
    assert_self_contained(&browser, &running);
}
