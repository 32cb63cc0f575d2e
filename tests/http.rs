//! Claims about the HTTP server: it says what the workers said, serves GET only, and no client can
//! hold it.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    reason = "a test fails by panicking"
)]

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use dedupd::http::{Door, Endpoint, Limits, serve_within};
use dedupd::metrics::{
    About, History, Metrics, Outcome, PartitionState, PartitionStatus, Recent, Status, Totals, Warning,
    WindowStatus, WorkerStatus,
};
use tokio::net::TcpListener;
use tokio::sync::oneshot;

/// Two looks, five seconds apart.
fn history() -> History {
    let mut history = History::default();
    history.note(Duration::from_secs(0), Totals::default());
    history.note(Duration::from_secs(5), Totals { records: 5_000, duplicates: 500, lag: 7 });
    history
}

struct Server {
    address: SocketAddr,
    metrics: Metrics,
    status: Arc<Status>,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    fn start(limits: Limits) -> Self {
        Self::start_with(limits, Door::default())
    }

    fn start_with(limits: Limits, door: Door) -> Self {
        let text = str::to_owned;
        let about = About {
            version: text("9"),
            group: text("g"),
            instance: text("i"),
            raw: text("raw<b>"),
            clean: text("clean"),
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
                    door,
                    config: "[kafka]\nbootstrap_servers = \"a:1\"\n".into(),
                    history: Arc::new(Mutex::new(history())),
                    recent: Recent::default(),
                };
                let warning =
                    Warning { time_ms: 1_700_000_000_000, text: "the <b>broker</b> is away".to_owned() };
                endpoint.recent.add(warning.clone());
                endpoint.recent.add(warning);
                serve_within(limits, listener, endpoint, async { drop(stopped.await) }).await;
            });
        });
        Self { address: address.recv().unwrap(), metrics, status, stop: Some(stop), thread: Some(thread) }
    }

    fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        stream
    }

    /// The whole answer to a request without a body.
    fn ask(&self, method: &str, path: &str) -> String {
        let mut stream = self.connect();
        write!(stream, "{method} {path} HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    }

    fn stop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            thread.join().unwrap();
        }
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
        window_ids: 10,
        window_seconds: 60.0,
        window: WindowStatus { asked_seconds: 60.0, ..WindowStatus::default() },
        false_positive_rate: 0.0,
    };
    WorkerStatus { not_ready: None, partitions: vec![partition], ..WorkerStatus::starting() }
}

#[test]
fn health_follows_what_the_workers_say() {
    let server = Server::start(Limits::default());
    let answer = server.ask("GET", "/readyz");
    assert!(answer.starts_with("HTTP/1.1 503 "), "{answer}");
    assert!(answer.ends_with("not ready\nworker 0: is starting\n"), "{answer}");
    assert!(server.ask("GET", "/livez").starts_with("HTTP/1.1 200 "));

    server.status.publish(0, running());
    let answer = server.ask("GET", "/readyz");
    assert!(answer.starts_with("HTTP/1.1 200 ") && answer.ends_with("\r\n\r\nready\n"), "{answer}");

    server.status.fail("worker 0 panicked");
    let answer = server.ask("GET", "/livez");
    assert!(
        answer.starts_with("HTTP/1.1 503 ") && answer.ends_with("failed: worker 0 panicked\n"),
        "{answer}"
    );
    assert!(server.ask("GET", "/readyz").starts_with("HTTP/1.1 503 "));
}

#[test]
fn the_pages_show_the_same_figures() {
    let server = Server::start(Limits::default());
    server.status.publish(0, running());
    server.metrics.records(Outcome::Duplicate).inc_by(7);

    let metrics = server.ask("GET", "/metrics");
    assert!(metrics.contains("content-type: text/plain; version=0.0.4"), "{metrics}");
    assert!(metrics.contains("\ndedupd_records_total{outcome=\"duplicate\"} 7\n"), "{metrics}");
    assert!(metrics.contains("\ndedupd_window_ids{partition=\"5\"} 10\n"), "{metrics}");

    let answer = server.ask("GET", "/status.json");
    let body = answer.split_once("\r\n\r\n").unwrap().1;
    let document: serde_json::Value = serde_json::from_str(body).unwrap();
    assert_eq!(document["records"]["duplicate"], 7);
    assert_eq!(document["about"]["group"], "g");
    assert_eq!(document["readiness"]["ready"], true);
    assert_eq!(document["workers"][0]["partitions"][0]["state"], "running");

    let page = server.ask("GET", "/");
    assert!(page.contains("<strong>Ready</strong>") && page.contains("raw&lt;b&gt;"), "{page}");
    assert!(!page.contains("raw<b>") && !page.contains("http://") && !page.contains("https://"), "{page}");
    assert!(page.contains("content-security-policy: default-src 'none'"), "{page}");
}

#[test]
fn only_get_is_served() {
    let server = Server::start(Limits::default());
    for (method, path) in [("POST", "/metrics"), ("DELETE", "/"), ("PUT", "/nowhere"), ("HEAD", "/livez")] {
        assert!(server.ask(method, path).starts_with("HTTP/1.1 405 "), "{method} {path}");
    }
    assert!(server.ask("GET", "/nowhere").starts_with("HTTP/1.1 404 "));
}

#[test]
fn the_limits_are_the_documented_ones() {
    let limits = Limits::default();
    assert_eq!((limits.connections, limits.head), (64, Duration::from_secs(2)));
}

#[test]
fn a_client_that_does_not_finish_its_head_is_cut_off() {
    let head = Duration::from_millis(200);
    let server = Server::start(Limits { head, connection: Duration::from_mins(10), ..Limits::default() });
    let mut silent = server.connect();
    let mut slow = server.connect();
    slow.write_all(b"GET /metrics HTTP/1.1\r\nHost: ").unwrap();
    for client in [&mut slow, &mut silent] {
        let mut answer = Vec::new();
        client.read_to_end(&mut answer).unwrap();
        assert!(!answer.starts_with(b"HTTP/1.1 200"), "{}", String::from_utf8_lossy(&answer));
    }
    assert!(server.ask("GET", "/livez").starts_with("HTTP/1.1 200 "));
}

#[test]
fn a_head_without_end_is_refused() {
    let server = Server::start(Limits { head: Duration::from_mins(10), ..Limits::default() });
    let mut client = server.connect();
    client.write_all(b"GET / HTTP/1.1\r\nX: ").unwrap();
    // The server may close while this is still being written.
    drop(client.write_all(&vec![b'x'; 64 * 1024]));
    let mut answer = Vec::new();
    drop(client.read_to_end(&mut answer));
    let answer = String::from_utf8_lossy(&answer);
    assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 4"), "{answer}");
    assert!(server.ask("GET", "/livez").starts_with("HTTP/1.1 200 "));
}

#[test]
fn a_client_that_does_not_read_its_answer_is_cut_off() {
    let limits = Limits { connections: 1, connection: Duration::from_millis(300), ..Limits::default() };
    let server = Server::start(limits);
    // More than the buffers of both sockets hold.
    let notes = vec!["x".repeat(64 << 20)];
    server.status.publish(0, WorkerStatus { notes, ..running() });
    let mut idle = server.connect();
    write!(idle, "GET /readyz HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
    // The only place is taken until the idle client is cut off.
    assert!(server.ask("GET", "/livez").starts_with("HTTP/1.1 200 "));
    let mut answer = Vec::new();
    drop(idle.read_to_end(&mut answer));
    assert!(answer.len() < 64 << 20, "the whole answer was delivered");
}

#[test]
fn more_clients_than_places_wait() {
    let long = Duration::from_mins(10);
    let server = Server::start(Limits { connections: 1, head: long, connection: long });
    let first = server.connect();
    let mut second = server.connect();
    write!(second, "GET /livez HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
    second.set_read_timeout(Some(Duration::from_millis(300))).unwrap();
    let error = second.read(&mut [0]).unwrap_err();
    assert!([ErrorKind::WouldBlock, ErrorKind::TimedOut].contains(&error.kind()), "{error}");

    drop(first);
    second.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    let mut answer = String::new();
    second.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
}

#[test]
fn shutdown_ends_the_server_and_frees_the_port() {
    let mut server = Server::start(Limits::default());
    assert!(server.ask("GET", "/livez").starts_with("HTTP/1.1 200 "));
    server.stop();
    assert!(TcpStream::connect(server.address).is_err());
}

#[test]
fn the_page_shows_rates_warnings_and_the_configuration() {
    let server = Server::start(Limits::default());
    let page = server.ask("GET", "/");
    assert!(page.contains("1000 records/s") && page.contains("100 duplicates/s"), "{page}");
    assert!(page.contains("<polyline") && !page.contains("<script") && !page.contains("http://"), "{page}");
    assert_eq!(page.matches("2023-11-14T22:13:20Z").count(), 1, "a repeated warning is shown once: {page}");
    assert!(page.contains("the &lt;b&gt;broker&lt;/b&gt; is away"), "{page}");
    assert!(server.ask("GET", "/config").contains("bootstrap_servers = \"a:1\""));
    let answer = server.ask("GET", "/status.json");
    let status: serde_json::Value = serde_json::from_str(answer.split_once("\r\n\r\n").unwrap().1).unwrap();
    assert_eq!((&status["rates"][0]["records"], &status["rates"][0]["lag"]), (&1000.0.into(), &7.into()));
    assert_eq!(status["warnings"][0]["text"], "the <b>broker</b> is away");
}
