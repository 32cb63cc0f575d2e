//! A TCP proxy between clients and the broker that parses Kafka's frames.
//!
//! It can drop or delay exactly one type of request or response, for example only the response to `EndTxn`: then the
//! broker has executed a request whose result is unknown to the client. This also causes real duplicates. A dropped
//! frame closes the connection, as on a network.
//!
//! A frame is a length (i32) and a body. A request body starts with api key (i16), api version (i16) and
//! correlation id (i32), a response body with the correlation id (kafka.apache.org/protocol). Plain text only.

use std::collections::HashMap;
use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread;
use std::time::{Duration, Instant};

use dedupd::clock::monotonic;

use super::wait_until;

/// API keys of the requests that tests use.
pub mod api {
    pub const PRODUCE: i16 = 0;
    pub const FETCH: i16 = 1;
    pub const LIST_OFFSETS: i16 = 2;
    pub const METADATA: i16 = 3;
    pub const OFFSET_FETCH: i16 = 9;
    pub const JOIN_GROUP: i16 = 11;
    pub const HEARTBEAT: i16 = 12;
    pub const INIT_PRODUCER_ID: i16 = 22;
    pub const ADD_PARTITIONS_TO_TXN: i16 = 24;
    pub const ADD_OFFSETS_TO_TXN: i16 = 25;
    pub const END_TXN: i16 = 26;
    pub const TXN_OFFSET_COMMIT: i16 = 28;
}

/// Maximum number of buffered frames per direction of a connection. Then the sender waits.
const IN_FLIGHT: usize = 256;
/// Higher than librdkafka's own limit on a response.
const FRAME_LIMIT: usize = 1 << 30;

/// The direction of a frame: requests to the broker, responses to the client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Direction {
    Request,
    Response,
}

#[derive(Clone, Copy)]
enum Fault {
    Drop,
    Hold(Duration),
    EndAt(i64),
}

/// The current faults. Tests write them, and connections read them at each frame.
#[derive(Default)]
struct Rules {
    refuse: bool,
    delays: HashMap<Direction, Duration>,
    rates: HashMap<Direction, u32>,
    faults: HashMap<(Direction, i16), (Fault, usize)>,
    hits: HashMap<(Direction, i16), usize>,
    seen: HashMap<(Direction, i16), usize>,
    connections: Vec<Arc<Connection>>,
}

#[derive(Default)]
struct Shared {
    rules: Mutex<Rules>,
    changed: Condvar,
    closed: AtomicBool,
}

/// A running proxy. A drop cuts its connections and releases its port.
pub struct Proxy {
    port: u16,
    shared: Arc<Shared>,
    acceptor: Option<thread::JoinHandle<()>>,
}

impl Proxy {
    /// Listens on 127.0.0.1:`port` and forwards to 127.0.0.1:`upstream`.
    pub fn start(port: u16, upstream: u16) -> Proxy {
        let listener = TcpListener::bind(("127.0.0.1", port)).unwrap_or_else(|error| {
            panic!("the proxy cannot listen on port {port}: {error}; is there another one?")
        });
        let shared = Arc::new(Shared::default());
        let acceptor = thread::spawn({
            let shared = Arc::clone(&shared);
            move || accept(&listener, upstream, &shared)
        });
        Proxy { port, shared, acceptor: Some(acceptor) }
    }

    /// `host:port` for clients.
    pub fn bootstrap(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// Cuts all connections now, and discards their buffered frames.
    pub fn cut_all(&self) {
        for connection in self.rules().connections.drain(..) {
            connection.cut();
        }
        self.shared.changed.notify_all();
    }

    /// Cuts all connections now on the side of the client. The broker still receives their held requests.
    pub fn cut_clients(&self) {
        for connection in &self.rules().connections {
            connection.client.shutdown(Shutdown::Both).ok(); // it may be closed already
        }
    }

    /// Rejects or accepts new connections from now on. Open ones stay.
    pub fn refuse(&self, refuse: bool) {
        self.rules().refuse = refuse;
    }

    /// Delays each frame from now on. Later frames do not wait for earlier ones.
    pub fn delay(&self, direction: Direction, delay: Duration) {
        self.rules().delays.insert(direction, delay);
    }

    /// Limits each connection to this number of bytes per second from now on.
    pub fn throttle(&self, direction: Direction, bytes_per_second: u32) {
        self.rules().rates.insert(direction, bytes_per_second);
    }

    /// Drops the next `times` responses of this type and their connections. The broker has executed the requests.
    pub fn drop_responses(&self, api_key: i16, times: usize) {
        self.rules().faults.insert((Direction::Response, api_key), (Fault::Drop, times));
    }

    /// Drops the next `times` requests of this type and their connections. The broker does not receive them.
    pub fn drop_requests(&self, api_key: i16, times: usize) {
        self.rules().faults.insert((Direction::Request, api_key), (Fault::Drop, times));
    }

    /// Holds the next `times` responses of this type, and all later frames of their connections, for this duration.
    pub fn hold_responses(&self, api_key: i16, times: usize, hold: Duration) {
        self.rules().faults.insert((Direction::Response, api_key), (Fault::Hold(hold), times));
    }

    /// Holds the next `times` requests of this type for this duration. They reach the broker even if the client has
    /// closed the connection by then, as a delayed packet does.
    pub fn hold_requests(&self, api_key: i16, times: usize, hold: Duration) {
        self.rules().faults.insert((Direction::Request, api_key), (Fault::Hold(hold), times));
    }

    /// Empties the next `times` fetch responses, and replaces the end of the log in them: a new leader that does not know its
    /// high watermark responds like this. Only for fetches of one partition.
    pub fn end_fetches(&self, at: i64, times: usize) {
        self.rules().faults.insert((Direction::Response, api::FETCH), (Fault::EndAt(at), times));
    }

    /// Removes all faults for later frames and connections. Held frames stay held.
    pub fn heal(&self) {
        let mut rules = self.rules();
        rules.refuse = false;
        rules.delays.clear();
        rules.rates.clear();
        rules.faults.clear();
    }

    /// Removes all faults, and cuts the connections, also those with held frames.
    pub fn release(&self) {
        self.heal();
        self.cut_all();
    }

    /// Number of frames of this type, including dropped ones.
    pub fn seen(&self, direction: Direction, api_key: i16) -> usize {
        self.rules().seen.get(&(direction, api_key)).copied().unwrap_or(0)
    }

    /// Number of frames of this type that a fault has hit.
    pub fn hits(&self, direction: Direction, api_key: i16) -> usize {
        self.rules().hits.get(&(direction, api_key)).copied().unwrap_or(0)
    }

    /// Waits until faults have hit `times` frames of this type in total.
    pub fn wait_hits(&self, direction: Direction, api_key: i16, times: usize, limit: Duration) {
        let what = format!("{times} faults at {direction:?} {api_key}");
        wait_until(&what, limit, || (self.hits(direction, api_key) >= times).then_some(()));
    }

    fn rules(&self) -> MutexGuard<'_, Rules> {
        self.shared.rules.lock().unwrap()
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.shared.closed.store(true, Ordering::SeqCst);
        self.cut_all();
        TcpStream::connect(("127.0.0.1", self.port)).ok(); // wakes the acceptor, if it has not ended already
        if let Some(acceptor) = self.acceptor.take() {
            acceptor.join().ok(); // its panic has been printed
        }
    }
}

/// Both ends of one proxied connection, and the request type of each outstanding correlation id.
struct Connection {
    client: TcpStream,
    broker: TcpStream,
    cut: AtomicBool,
    kinds: Mutex<HashMap<i32, i16>>,
}

impl Connection {
    fn cut(&self) {
        self.cut.store(true, Ordering::SeqCst);
        for end in [&self.client, &self.broker] {
            end.shutdown(Shutdown::Both).ok(); // the end may be closed already
        }
    }

    /// The source and the destination of frames in this direction.
    fn ends(&self, direction: Direction) -> (&TcpStream, &TcpStream) {
        match direction {
            Direction::Request => (&self.client, &self.broker),
            Direction::Response => (&self.broker, &self.client),
        }
    }

    /// The API key of a frame. A request contains it, and a response has the key of its request.
    fn kind(&self, direction: Direction, body: &[u8]) -> Option<i16> {
        let mut kinds = self.kinds.lock().unwrap();
        let i32_at = |at: usize| Some(i32::from_be_bytes(body.get(at..at + 4)?.try_into().ok()?));
        match direction {
            Direction::Request => {
                let key = i16::from_be_bytes(body.get(..2)?.try_into().ok()?);
                kinds.insert(i32_at(4)?, key);
                Some(key)
            }
            Direction::Response => kinds.remove(&i32_at(0)?),
        }
    }
}

fn accept(listener: &TcpListener, upstream: u16, shared: &Arc<Shared>) {
    while let Ok((client, _)) = listener.accept() {
        if shared.closed.load(Ordering::SeqCst) {
            return;
        }
        let Ok(broker) = TcpStream::connect(("127.0.0.1", upstream)) else { continue };
        client.set_nodelay(true).ok(); // the option only saves time
        broker.set_nodelay(true).ok();
        let connection =
            Arc::new(Connection { client, broker, cut: AtomicBool::new(false), kinds: Mutex::default() });
        let mut rules = shared.rules.lock().unwrap();
        // Under the lock: a connection is either rejected, or the next cut_all() cuts it.
        if rules.refuse || shared.closed.load(Ordering::SeqCst) {
            continue;
        }
        rules.connections.retain(|other| !other.cut.load(Ordering::SeqCst));
        rules.connections.push(Arc::clone(&connection));
        drop(rules);
        for direction in [Direction::Request, Direction::Response] {
            let (frames, queue) = sync_channel(IN_FLIGHT);
            let (connection, shared) = (Arc::clone(&connection), Arc::clone(shared));
            let reader = Pump { direction, connection, shared };
            let writer = reader.clone();
            thread::spawn(move || reader.read(&frames));
            thread::spawn(move || writer.write(&queue));
        }
    }
}

/// One direction of one connection.
#[derive(Clone)]
struct Pump {
    direction: Direction,
    connection: Arc<Connection>,
    shared: Arc<Shared>,
}

struct Frame {
    bytes: Vec<u8>,
    due: Instant,
    hold: Duration,
}

impl Pump {
    /// Reads frames from one end until it closes, and applies faults.
    fn read(&self, frames: &SyncSender<Frame>) {
        let from = self.connection.ends(self.direction).0;
        while let Ok(mut bytes) = read_frame(from) {
            // The time that the frame takes. The sender waits meanwhile, as with a full socket.
            thread::sleep(self.transfer_time(bytes.len()));
            let kind = self.connection.kind(self.direction, &bytes[4..]);
            let (due, hold) = match self.count(kind) {
                (_, Some(Fault::Drop)) => return self.connection.cut(),
                (delay, Some(Fault::Hold(hold))) => (monotonic() + delay, hold),
                (delay, Some(Fault::EndAt(end))) => {
                    bytes = ended_at(end, &bytes);
                    (monotonic() + delay, Duration::ZERO)
                }
                (delay, None) => (monotonic() + delay, Duration::ZERO),
            };
            if frames.send(Frame { bytes, due, hold }).is_err() {
                return;
            }
        }
    }

    fn transfer_time(&self, bytes: usize) -> Duration {
        let rules = self.shared.rules.lock().unwrap();
        let rate = rules.rates.get(&self.direction);
        rate.map_or(Duration::ZERO, |rate| Duration::from_secs_f64(bytes as f64 / f64::from(*rate)))
    }

    /// Counts a frame, and returns its delay and its fault.
    fn count(&self, kind: Option<i16>) -> (Duration, Option<Fault>) {
        let mut rules = self.shared.rules.lock().unwrap();
        let delay = rules.delays.get(&self.direction).copied().unwrap_or_default();
        let Some(kind) = kind else { return (delay, None) };
        let entry = (self.direction, kind);
        *rules.seen.entry(entry).or_default() += 1;
        let fault = match rules.faults.get_mut(&entry) {
            Some((fault, times)) if *times > 0 => {
                *times -= 1;
                Some(*fault)
            }
            _ => None,
        };
        if fault.is_some() {
            *rules.hits.entry(entry).or_default() += 1;
        }
        (delay, fault)
    }

    /// Writes frames to the other end when they are due.
    fn write(&self, frames: &Receiver<Frame>) {
        let mut to = self.connection.ends(self.direction).1;
        for frame in frames {
            let due = frame.due.max(monotonic() + frame.hold);
            if !self.wait(due) || to.write_all(&frame.bytes).is_err() {
                break;
            }
        }
        match self.direction {
            // The client has closed the connection: the broker still receives the buffered frames, then the end of the stream.
            Direction::Request => to.shutdown(Shutdown::Write).map_or((), drop),
            Direction::Response => self.connection.cut(),
        }
    }

    /// Sleeps until `due`. Returns false if the connection was cut meanwhile.
    fn wait(&self, due: Instant) -> bool {
        let mut rules = self.shared.rules.lock().unwrap();
        while !self.connection.cut.load(Ordering::SeqCst) {
            let left = due.saturating_duration_since(monotonic());
            if left.is_zero() {
                return true;
            }
            rules = self.shared.changed.wait_timeout(rules, left).unwrap().0;
        }
        false
    }
}

/// A fetch response (version 13 to 17) of one partition without its records, with this end of the log.
fn ended_at(end: i64, frame: &[u8]) -> Vec<u8> {
    // Length, correlation id, tags, throttle time, error, session, one topic with its id, one partition with number and error.
    const TOPICS: usize = 4 + 4 + 1 + 4 + 2 + 4;
    const END: usize = TOPICS + 1 + 16 + 1 + 4 + 2;
    assert_eq!((frame[TOPICS], frame[TOPICS + 17]), (2, 2), "a response of one partition");
    let log_start = &frame[END + 16..END + 24];
    // No aborted transactions, no preferred replica, no records; no tags of the partition, the topic and the response.
    let rest: &[u8] = &[1, 0xff, 0xff, 0xff, 0xff, 1, 0, 0, 0];
    let end = end.to_be_bytes();
    let mut frame = [&frame[..END], &end, &end, log_start, rest].concat();
    let length = u32::try_from(frame.len() - 4).unwrap();
    frame[..4].copy_from_slice(&length.to_be_bytes());
    frame
}

/// Reads one complete frame, including its length.
fn read_frame(mut from: &TcpStream) -> io::Result<Vec<u8>> {
    let mut length = [0; 4];
    from.read_exact(&mut length)?;
    let body = usize::try_from(i32::from_be_bytes(length)).ok().filter(|body| *body <= FRAME_LIMIT);
    let body = body.ok_or_else(|| io::Error::other("not a Kafka frame"))?;
    let mut bytes = vec![0; 4 + body];
    bytes[..4].copy_from_slice(&length);
    from.read_exact(&mut bytes[4..])?;
    Ok(bytes)
}
