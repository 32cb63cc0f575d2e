//! The HTTP server: it reports the status of the workers, serves GET only, and no client can block
//! it.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    reason = "a test fails by panicking"
)]

mod admin;
mod duplicates;
mod forget;
mod health;
mod openapi;

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use dedupd::clock::{monotonic, wall_ms};
use dedupd::http::{AdminApi, ClientLimits, Endpoint, serve};
use dedupd::metrics::{
    About, History, Metrics, Outcome, PartitionState, PartitionStatus, Recent, Status, Totals, Warning,
    WindowStatus, WorkerStatus,
};
use tokio::net::TcpListener;
use tokio::sync::oneshot;

/// Three samples, five seconds apart. The lag of the last one is not known.
fn history() -> History {
    let history = History::default();
    for sample in 0..3 {
        let latency = vec![(0.1, sample * 4_000), (0.5, sample * 4_490), (f64::INFINITY, sample * 4_500)];
        let totals = Totals {
            records: sample * 5_000,
            duplicates: sample * 500,
            lag: (sample < 2).then_some(sample * 7),
            latency,
        };
        history.note(Duration::from_secs(sample * 5), totals);
    }
    history
}
/// Bytes of a large page.
const HUGE: usize = 8 << 20;

struct Server {
    address: SocketAddr,
    metrics: Metrics,
    status: Arc<Status>,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    fn start(limits: ClientLimits) -> Self {
        Self::start_with(limits, AdminApi::default())
    }

    fn start_with(limits: ClientLimits, admin: AdminApi) -> Self {
        let text = str::to_owned;
        let about = About {
            version: text("9"),
            group: text("g"),
            instance: text("i"),
            raw: text("raw<b>"),
            clean: text("clean"),
            scope: text("topic"),
        };
        let (metrics, status) = (Metrics::new(), Arc::new(Status::new(about, 1)));
        let (stop, stopped) = oneshot::channel::<()>();
        let (bound, address) = std::sync::mpsc::channel();
        let served = (metrics.clone(), Arc::clone(&status));
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
                bound.send(listener.local_addr().unwrap()).unwrap();
                let endpoint = Endpoint {
                    metrics: served.0,
                    status: served.1,
                    admin,
                    config: "[kafka]\nbootstrap_servers = \"a:1\"\n".into(),
                    history: history(),
                    recent: Recent::default(),
                    began: monotonic(),
                };
                let warning =
                    |ago_ms, text: &str| Warning { time_ms: wall_ms() - ago_ms, text: text.to_owned() };
                endpoint.recent.add(warning(3_700_000, "an old problem"));
                endpoint.recent.add(warning(90_000, "the <b>broker</b> is down"));
                endpoint.recent.add(warning(60_000, "the <b>broker</b> is down"));
                serve(limits, listener, endpoint, async { drop(stopped.await) }).await;
            });
        });
        Self { address: address.recv().unwrap(), metrics, status, stop: Some(stop), thread: Some(thread) }
    }

    fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        stream
    }

    /// The complete response to a request without a body.
    fn request(&self, method: &str, path: &str) -> String {
        let mut stream = self.connect();
        write!(stream, "{method} {path} HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    }

    /// Makes `/readyz` larger than the buffers of two sockets.
    fn fill_pages(&self) {
        let notes = vec!["x".repeat(HUGE)];
        self.status.publish(0, WorkerStatus { notes, ..running() });
    }

    fn stop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            thread.join().unwrap();
        }
    }
}

/// Reads until the server closes or resets the connection. Panics if it stays open.
fn read_until_cut(client: &mut TcpStream, answer: &mut Vec<u8>) {
    use std::io::ErrorKind::{ConnectionAborted, ConnectionReset};
    if let Err(error) = client.read_to_end(answer) {
        assert!([ConnectionReset, ConnectionAborted].contains(&error.kind()), "not cut off: {error}");
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop();
    }
}

fn running() -> WorkerStatus {
    let partition = PartitionStatus {
        partition: 5,
        state: PartitionState::Running,
        reason: None,
        next: Some(1_234),
        committed: Some(1_234),
        lag_records: Some(0),
        window_ids: Some(10),
        window_seconds: 60.0,
        window: WindowStatus { asked_seconds: 60.0, ..WindowStatus::default() },
    };
    WorkerStatus { not_ready: None, partitions: vec![partition], ..WorkerStatus::starting() }
}

#[test]
fn partitions_without_an_owner_make_every_instance_unready() {
    let server = Server::start(ClientLimits::default());
    server.status.publish(0, running());
    server.status.update(|it| it.group_lag = BTreeMap::from([(5, 0), (6, 700)]));
    // This is normal during a rebalance.
    server.status.update(|it| it.unassigned = 2);
    assert!(server.request("GET", "/readyz").starts_with("HTTP/1.1 200 "));
    let metrics = server.request("GET", "/metrics");
    assert!(metrics.contains("\ndedupd_group_unassigned_partitions 2\n"), "{metrics}");
    assert!(metrics.contains("\ndedupd_group_lag_records{partition=\"6\"} 700\n"), "{metrics}");
    assert!(server.request("GET", "/status.json").contains("\"unassigned_partitions\":2"));

    let obstacle = Some("partitions without an owner: 6, 7".to_owned());
    server.status.update(|it| it.unassigned_obstacle = obstacle);
    let answer = server.request("GET", "/readyz");
    assert!(answer.starts_with("HTTP/1.1 503 "), "{answer}");
    assert!(answer.ends_with("not ready\npartitions without an owner: 6, 7\n"), "{answer}");
    server.status.update(|it| (it.unassigned, it.unassigned_obstacle) = (0, None));
    assert!(server.request("GET", "/readyz").starts_with("HTTP/1.1 200 "));
}

#[test]
fn the_pages_show_the_same_figures() {
    let server = Server::start(ClientLimits::default());
    server.status.publish(0, running());
    server.metrics.records(Outcome::Duplicate).inc_by(7);

    let metrics = server.request("GET", "/metrics");
    assert!(metrics.contains("content-type: text/plain; version=0.0.4"), "{metrics}");
    assert!(metrics.contains("\ndedupd_records_total{outcome=\"duplicate\"} 7\n"), "{metrics}");
    assert!(metrics.contains("\ndedupd_window_ids{partition=\"5\"} 10\n"), "{metrics}");

    let answer = server.request("GET", "/status.json");
    let body = answer.split_once("\r\n\r\n").unwrap().1;
    let document: serde_json::Value = serde_json::from_str(body).unwrap();
    assert_eq!(document["records"]["duplicate"], 7);
    assert_eq!(document["about"]["group"], "g");
    assert_eq!(document["readiness"]["ready"], true);
    assert_eq!(document["workers"][0]["partitions"][0]["state"], "running");

    let page = server.request("GET", "/");
    assert!(page.contains("<strong>Ready</strong>") && page.contains("raw&lt;b&gt;"), "{page}");
    assert!(!page.contains("raw<b>") && !page.contains("http://") && !page.contains("https://"), "{page}");
    assert!(page.contains("content-security-policy: default-src 'none'; script-src 'self';"), "{page}");
    let script = server.request("GET", "/page.js");
    assert!(script.contains("content-type: text/javascript") && script.contains("replaceWith"), "{script}");
}

/// The page has all of these texts, in this order.
fn assert_in_order(page: &str, texts: &[&str]) {
    let place = |text: &&str| page.find(text).unwrap_or_else(|| panic!("{text:?} is not in {page}"));
    let places: Vec<usize> = texts.iter().map(place).collect();
    assert!(places.is_sorted(), "{places:?} in {page}");
}

#[test]
fn what_is_wrong_precedes_the_figures() {
    let server = Server::start(ClientLimits::default());
    let note = "the window is short".to_owned();
    server.status.publish(0, WorkerStatus { notes: vec![note], ..running() });
    server.metrics.records(Outcome::Forwarded).inc_by(75);
    server.metrics.records(Outcome::Duplicate).inc_by(25);
    server.status.update(|it| it.members = BTreeMap::from([("other at 10.0.0.7".to_owned(), 3)]));
    let page = server.request("GET", "/");
    let texts = [
        "<strong>Ready, with a warning</strong>",
        "the window is short",
        "Warnings of the last hour",
        "(1m ago) the &lt;b&gt;broker",
        "<dt>duplicates, last 10 minutes<dd>10.0 %<small>25.0 % since the start",
        "<dd>25<small>of 100 records",
        "<dd>at most 500ms<small>99 %; half of them at most 100ms",
        "<dt>shortest window<dd>1m<small>of 1m",
        "<dt>running for<dd>",
        "<dd>other at 10.0.0.7 with 3 partitions",
        "<path",
        "Records since the start",
        "id=\"partitions\"",
    ];
    assert_in_order(&page, &texts);
    assert!(!page.contains("an old problem"), "{page}");
    let status = server.request("GET", "/status.json");
    assert!(
        status.contains("an old problem") && status.contains("\"members\":{\"other at 10.0.0.7\":3}"),
        "{status}"
    );
}

#[test]
fn only_get_is_served() {
    let server = Server::start(ClientLimits::default());
    for (method, path) in [("POST", "/metrics"), ("DELETE", "/"), ("PUT", "/nowhere"), ("HEAD", "/livez")] {
        assert!(server.request(method, path).starts_with("HTTP/1.1 405 "), "{method} {path}");
    }
    assert!(server.request("GET", "/nowhere").starts_with("HTTP/1.1 404 "));
}

#[test]
fn the_limits_are_the_documented_ones() {
    let limits = ClientLimits::default();
    assert_eq!((limits.connections, limits.head), (64, Duration::from_secs(2)));
    assert_eq!((limits.connection, limits.control), (Duration::from_secs(10), Duration::from_secs(70)));
}

#[test]
fn a_client_that_does_not_finish_its_head_is_cut_off() {
    let (head, connection) = (Duration::from_millis(200), Duration::from_mins(10));
    let server = Server::start(ClientLimits { head, connection, ..ClientLimits::default() });
    let mut silent = server.connect();
    let mut slow = server.connect();
    slow.write_all(b"GET /metrics HTTP/1.1\r\nHost: ").unwrap();
    for client in [&mut slow, &mut silent] {
        let mut answer = Vec::new();
        client.read_to_end(&mut answer).unwrap();
        assert!(!answer.starts_with(b"HTTP/1.1 200"), "{}", String::from_utf8_lossy(&answer));
    }
    assert!(server.request("GET", "/livez").starts_with("HTTP/1.1 200 "));
}

#[test]
fn an_endless_head_is_rejected() {
    let server = Server::start(ClientLimits { head: Duration::from_mins(10), ..ClientLimits::default() });
    let mut client = server.connect();
    client.write_all(b"GET / HTTP/1.1\r\nX: ").unwrap();
    // The server may close while this is still being written.
    drop(client.write_all(&vec![b'x'; 64 * 1024]));
    let mut answer = Vec::new();
    read_until_cut(&mut client, &mut answer);
    let answer = String::from_utf8_lossy(&answer);
    assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 4"), "{answer}");
    assert!(server.request("GET", "/livez").starts_with("HTTP/1.1 200 "));
}

#[test]
fn a_client_that_does_not_read_its_response_is_cut_off() {
    let limits = ClientLimits { connection: Duration::from_millis(300), ..ClientLimits::default() };
    let server = Server::start(limits);
    server.fill_pages();
    let mut idle = server.connect();
    write!(idle, "GET /readyz HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
    // Long enough for a server that gets little processor time.
    std::thread::sleep(Duration::from_secs(2));
    let mut answer = Vec::new();
    read_until_cut(&mut idle, &mut answer);
    assert!(answer.starts_with(b"HTTP/1.1 200 "), "no response was started");
    assert!(answer.len() < HUGE, "the complete response was delivered");
}

#[test]
fn a_connection_beyond_the_limit_closes_the_oldest_one() {
    let long = Duration::from_mins(10);
    let server = Server::start(ClientLimits { connections: 2, head: long, connection: long, control: long });
    let (mut first, mut second) = (server.connect(), server.connect());
    for silent in [&mut first, &mut second] {
        silent.write_all(b"GET /livez HTTP/1.1\r\n").unwrap();
        assert!(server.request("GET", "/livez").starts_with("HTTP/1.1 200 "));
    }
    let mut answer = Vec::new();
    read_until_cut(&mut first, &mut answer);
    assert!(answer.is_empty(), "the oldest connection received a response");
    // Both requests were answered, so one connection was free when the last one came.
    second.write_all(b"Host: x\r\n\r\n").unwrap();
    let mut answer = String::new();
    second.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
}

#[test]
fn slow_clients_do_not_delay_health_checks() {
    let server = Server::start(ClientLimits::default());
    server.fill_pages();
    let client = |request: &[u8]| {
        let mut client = server.connect();
        client.set_nonblocking(true).unwrap();
        drop(client.write(request));
        client
    };
    // Some send single bytes, some request a large page and never read it.
    let begin = || client(b"GET /metrics HTTP/1.1\r\nX: ");
    let mut slow: Vec<TcpStream> = (0..200).map(|_| begin()).collect();
    let (mut unread, mut times): (Vec<TcpStream>, Vec<Duration>) = Default::default();
    for _ in 0..40 {
        let start = monotonic();
        assert!(server.request("GET", "/livez").starts_with("HTTP/1.1 200 "));
        times.push(start.elapsed());
        for client in &mut slow {
            if client.write(b"x").is_err() {
                *client = begin();
            }
        }
        unread.extend((0..2).map(|_| client(b"GET /readyz HTTP/1.1\r\nHost: x\r\n\r\n")));
        std::thread::sleep(Duration::from_millis(20));
    }
    times.sort();
    // The probe timeout of Kubernetes is 1 s, and three failures count. The machine itself may be slow once.
    assert!(times[37] < Duration::from_secs(1) && times[39] < Duration::from_secs(5), "{times:?}");
}

#[test]
fn shutdown_ends_the_server_and_frees_the_port() {
    let mut server = Server::start(ClientLimits::default());
    assert!(server.request("GET", "/livez").starts_with("HTTP/1.1 200 "));
    server.stop();
    assert!(TcpStream::connect(server.address).is_err());
}

#[test]
fn the_page_shows_rates_warnings_and_the_configuration() {
    let server = Server::start(ClientLimits::default());
    let page = server.request("GET", "/");
    assert!(page.contains("1\u{202f}000 records/s") && page.contains("100 duplicates/s"), "{page}");
    assert!(page.contains("<path") && !page.contains("http://"), "{page}");
    assert_eq!(page.matches("<script").count(), 1, "only /page.js: {page}");
    let warning = "the &lt;b&gt;broker&lt;/b&gt; is down";
    assert_eq!(page.matches(warning).count(), 1, "a repeated warning is shown once: {page}");
    assert!(server.request("GET", "/config").contains("bootstrap_servers = \"a:1\""));
    let answer = server.request("GET", "/status.json");
    let status: serde_json::Value = serde_json::from_str(answer.split_once("\r\n\r\n").unwrap().1).unwrap();
    assert_eq!((&status["rates"][0]["records"], &status["rates"][0]["lag"]), (&1000.0.into(), &7.into()));
    assert_eq!(status["warnings"][0]["text"], "the <b>broker</b> is down");
}
