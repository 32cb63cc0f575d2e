//! A TCP proxy between clients and the broker that understands Kafka's frames.
//!
//! It can lose or delay exactly one kind of request or answer, for example only the answer to `EndTxn`: so the
//! broker has done what the client does not know of. That is how a client learns "unknown", and how real
//! duplicates arise. A lost frame costs the connection, as on a network.
//!
//! A frame is a length (i32) and a body; a request's body begins with api key (i16), api version (i16) and
//! correlation id (i32), an answer's with the correlation id (kafka.apache.org/protocol). Plain text only.

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

/// Api keys of the requests that tests care for.
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

/// Frames under way at once in one direction of a connection; then the sender has to wait.
const IN_FLIGHT: usize = 256;
/// Librdkafka's own limit on an answer is below this.
const FRAME_LIMIT: usize = 1 << 30;

/// Which way a frame goes: requests to the broker, responses to the client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Way {
    Request,
    Response,
}

#[derive(Clone, Copy)]
enum Fault {
    Drop,
    Hold(Duration),
}

/// What the proxy does now; tests write it, connections read it at each frame.
#[derive(Default)]
struct Rules {
    refuse: bool,
    delays: HashMap<Way, Duration>,
    faults: HashMap<(Way, i16), (Fault, usize)>,
    struck: HashMap<(Way, i16), usize>,
    seen: HashMap<(Way, i16), usize>,
    connections: Vec<Arc<Connection>>,
}

#[derive(Default)]
struct Shared {
    rules: Mutex<Rules>,
    changed: Condvar,
    closed: AtomicBool,
}

/// A running proxy. Dropped: cuts its connections and gives its port back.
pub struct Proxy {
    port: u16,
    shared: Arc<Shared>,
    acceptor: Option<thread::JoinHandle<()>>,
}

impl Proxy {
    /// Listens on 127.0.0.1:`port` and passes on to 127.0.0.1:`upstream`.
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

    /// Cuts all connections now, with all that is under way on them.
    pub fn cut_all(&self) {
        for connection in self.rules().connections.drain(..) {
            connection.cut();
        }
        self.shared.changed.notify_all();
    }

    /// From now on cuts each new connection at once (or no longer). Present ones stay.
    pub fn refuse(&self, refuse: bool) {
        self.rules().refuse = refuse;
    }

    /// From now on each frame takes this much longer on its way. Later frames may follow in the meantime.
    pub fn delay(&self, way: Way, delay: Duration) {
        self.rules().delays.insert(way, delay);
    }

    /// The next `times` answers of this kind are lost, with their connection. The broker has acted.
    pub fn drop_responses(&self, api_key: i16, times: usize) {
        self.rules().faults.insert((Way::Response, api_key), (Fault::Drop, times));
    }

    /// The next `times` requests of this kind are lost, with their connection. The broker knows nothing.
    pub fn drop_requests(&self, api_key: i16, times: usize) {
        self.rules().faults.insert((Way::Request, api_key), (Fault::Drop, times));
    }

    /// The next `times` answers of this kind, and what follows them on their connection, come this much later.
    pub fn hold_responses(&self, api_key: i16, times: usize, hold: Duration) {
        self.rules().faults.insert((Way::Response, api_key), (Fault::Hold(hold), times));
    }

    /// The next `times` requests of this kind reach the broker this much later — also when the client has
    /// given up and gone by then, as a packet does that took a long way.
    pub fn hold_requests(&self, api_key: i16, times: usize, hold: Duration) {
        self.rules().faults.insert((Way::Request, api_key), (Fault::Hold(hold), times));
    }

    /// No more faults for frames and connections to come. What is held stays held.
    pub fn heal(&self) {
        let mut rules = self.rules();
        rules.refuse = false;
        rules.delays.clear();
        rules.faults.clear();
    }

    /// How many frames of this kind have come by, lost ones included.
    pub fn seen(&self, way: Way, api_key: i16) -> usize {
        self.rules().seen.get(&(way, api_key)).copied().unwrap_or(0)
    }

    /// How many frames of this kind a fault has struck.
    pub fn struck(&self, way: Way, api_key: i16) -> usize {
        self.rules().struck.get(&(way, api_key)).copied().unwrap_or(0)
    }

    /// Waits until a fault has struck `times` frames of this kind in all.
    pub fn wait_struck(&self, way: Way, api_key: i16, times: usize, limit: Duration) {
        let what = format!("{times} faults at {way:?} {api_key}");
        wait_until(&what, limit, || (self.struck(way, api_key) >= times).then_some(()));
    }

    fn rules(&self) -> MutexGuard<'_, Rules> {
        self.shared.rules.lock().unwrap()
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.shared.closed.store(true, Ordering::SeqCst);
        self.cut_all();
        TcpStream::connect(("127.0.0.1", self.port)).ok(); // wakes the acceptor; gone already is as good
        if let Some(acceptor) = self.acceptor.take() {
            acceptor.join().ok(); // its panic has been printed
        }
    }
}

/// Both ends of one proxied connection, and which answer belongs to which kind of request.
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
            end.shutdown(Shutdown::Both).ok(); // an end that is closed already is what we want
        }
    }

    /// The two ends, as a frame going this way meets them.
    fn ends(&self, way: Way) -> (&TcpStream, &TcpStream) {
        match way {
            Way::Request => (&self.client, &self.broker),
            Way::Response => (&self.broker, &self.client),
        }
    }

    /// The api key of a frame: a request says its own, an answer has that of its request.
    fn kind(&self, way: Way, body: &[u8]) -> Option<i16> {
        let mut kinds = self.kinds.lock().unwrap();
        let i32_at = |at: usize| Some(i32::from_be_bytes(body.get(at..at + 4)?.try_into().ok()?));
        match way {
            Way::Request => {
                let key = i16::from_be_bytes(body.get(..2)?.try_into().ok()?);
                kinds.insert(i32_at(4)?, key);
                Some(key)
            }
            Way::Response => kinds.remove(&i32_at(0)?),
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
        // Under the lock: a connection is either refused or seen by the next cut_all().
        if rules.refuse || shared.closed.load(Ordering::SeqCst) {
            continue;
        }
        rules.connections.retain(|other| !other.cut.load(Ordering::SeqCst));
        rules.connections.push(Arc::clone(&connection));
        drop(rules);
        for way in [Way::Request, Way::Response] {
            let (frames, queue) = sync_channel(IN_FLIGHT);
            let (connection, shared) = (Arc::clone(&connection), Arc::clone(shared));
            let reader = Pump { way, connection, shared };
            let writer = reader.clone();
            thread::spawn(move || reader.read(&frames));
            thread::spawn(move || writer.write(&queue));
        }
    }
}

/// One direction of one connection.
#[derive(Clone)]
struct Pump {
    way: Way,
    connection: Arc<Connection>,
    shared: Arc<Shared>,
}

struct Frame {
    bytes: Vec<u8>,
    due: Instant,
    hold: Duration,
}

impl Pump {
    /// Takes frames from one end until it closes, and decides what becomes of each.
    fn read(&self, frames: &SyncSender<Frame>) {
        let from = self.connection.ends(self.way).0;
        while let Ok(bytes) = read_frame(from) {
            let kind = self.connection.kind(self.way, &bytes[4..]);
            let (due, hold) = match self.judge(kind) {
                (_, Some(Fault::Drop)) => return self.connection.cut(),
                (delay, Some(Fault::Hold(hold))) => (monotonic() + delay, hold),
                (delay, None) => (monotonic() + delay, Duration::ZERO),
            };
            if frames.send(Frame { bytes, due, hold }).is_err() {
                return;
            }
        }
    }

    /// The delay of a frame and the fault that strikes it, counted.
    fn judge(&self, kind: Option<i16>) -> (Duration, Option<Fault>) {
        let mut rules = self.shared.rules.lock().unwrap();
        let delay = rules.delays.get(&self.way).copied().unwrap_or_default();
        let Some(kind) = kind else { return (delay, None) };
        let place = (self.way, kind);
        *rules.seen.entry(place).or_default() += 1;
        let fault = match rules.faults.get_mut(&place) {
            Some((fault, times)) if *times > 0 => {
                *times -= 1;
                Some(*fault)
            }
            _ => None,
        };
        if fault.is_some() {
            *rules.struck.entry(place).or_default() += 1;
        }
        (delay, fault)
    }

    /// Gives frames to the other end when their time has come.
    fn write(&self, frames: &Receiver<Frame>) {
        let mut to = self.connection.ends(self.way).1;
        for frame in frames {
            let due = frame.due.max(monotonic() + frame.hold);
            if !self.wait(due) || to.write_all(&frame.bytes).is_err() {
                break;
            }
        }
        match self.way {
            // The client has gone: the broker still gets what was under way, then the end of the stream.
            Way::Request => to.shutdown(Shutdown::Write).map_or((), drop),
            Way::Response => self.connection.cut(),
        }
    }

    /// Sleeps until `due`; false when the connection was cut meanwhile.
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

/// One whole frame, its length included.
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
