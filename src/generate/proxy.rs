//! A proxy between the generator's producer and the broker that loses answers.
//!
//! This is how duplicates come about in production: the broker has written a batch, the connection
//! breaks before the answer is back, and a producer without idempotence sends the batch again. The proxy
//! passes everything on, but now and then cuts the connection instead of passing on the answer to a
//! produce request.
//!
//! Brokers tell their clients where to connect to, so the proxy puts its own ports into those answers (see
//! [`super::frame::redirect`]). Only the port can be replaced, not the host: this works with plain-text
//! brokers on the loopback interface, as in tests and demos.

use std::collections::HashMap;
use std::io::{self, Write};
use std::net::{Ipv4Addr, Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};

use fastrand::Rng;

use super::frame::{self, Detour, METADATA, PRODUCE};

/// The first answer lost, so that short runs lose one as well.
const FIRST_LOSS: u32 = 3;
/// Answers that pass between two losses.
const BETWEEN_LOSSES: std::ops::Range<u32> = 20..60;

/// A running proxy; dropped, it closes its connections and ports.
pub struct Proxy {
    shared: Arc<Shared>,
    doors: Vec<JoinHandle<()>>,
}

struct Shared {
    detours: Vec<Detour>,
    closing: AtomicBool,
    cuts: AtomicU64,
    losses: Mutex<Losses>,
    lines: Mutex<HashMap<u64, Arc<Line>>>,
}

/// When the next answer is lost.
struct Losses {
    draws: Rng,
    passing: u32,
}

/// One connection of a client with its broker.
struct Line {
    client: TcpStream,
    broker: TcpStream,
    /// Api keys of requests under way, by correlation id.
    asked: Mutex<HashMap<i32, i16>>,
}

impl Proxy {
    /// Opens a door for each broker, given as host and port.
    pub fn start(brokers: &[(String, u16)], seed: u64) -> io::Result<Self> {
        let mut listeners = Vec::new();
        let mut detours = Vec::new();
        for (host, port) in brokers {
            let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
            detours.push(Detour { host: host.clone(), port: *port, door: listener.local_addr()?.port() });
            listeners.push(listener);
        }
        let losses = Losses { draws: Rng::with_seed(seed), passing: FIRST_LOSS };
        let shared = Arc::new(Shared {
            detours,
            closing: AtomicBool::new(false),
            cuts: AtomicU64::new(0),
            losses: Mutex::new(losses),
            lines: Mutex::default(),
        });
        let mut proxy = Self { shared, doors: Vec::new() };
        for (listener, detour) in listeners.into_iter().zip(proxy.shared.detours.clone()) {
            let shared = Arc::clone(&proxy.shared);
            proxy.doors.push(spawn("proxy door", move || shared.accept(&listener, &detour))?);
        }
        Ok(proxy)
    }

    /// `host:port` list for clients.
    pub fn bootstrap_servers(&self) -> String {
        let doors = self.shared.detours.iter().map(|detour| format!("127.0.0.1:{}", detour.door));
        doors.collect::<Vec<_>>().join(",")
    }

    /// How many connections were cut so far.
    pub fn cuts(&self) -> u64 {
        self.shared.cuts.load(Ordering::Relaxed)
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.shared.closing.store(true, Ordering::SeqCst);
        for line in lock(&self.shared.lines).values() {
            line.cut();
        }
        for (door, detour) in self.doors.drain(..).zip(&self.shared.detours) {
            // Wakes the thread that waits there; without it there is nobody to wait for.
            if TcpStream::connect((Ipv4Addr::LOCALHOST, detour.door)).is_ok() {
                drop(door.join());
            }
        }
    }
}

impl Shared {
    fn accept(self: &Arc<Self>, listener: &TcpListener, detour: &Detour) {
        let mut number = u64::from(detour.door) << 32;
        for client in listener.incoming() {
            if self.closing.load(Ordering::SeqCst) {
                return;
            }
            // A client or broker that is gone again: the client tries once more.
            let Ok(client) = client else { continue };
            let Ok(broker) = TcpStream::connect((detour.host.as_str(), detour.port)) else { continue };
            number += 1;
            self.join(number, client, broker);
        }
    }

    /// Passes frames on, in both directions, on threads of their own.
    fn join(self: &Arc<Self>, number: u64, client: TcpStream, broker: TcpStream) {
        let prompt = client.set_nodelay(true).and(broker.set_nodelay(true));
        let line = Arc::new(Line { client, broker, asked: Mutex::default() });
        lock(&self.lines).insert(number, Arc::clone(&line));
        let requests = Arc::clone(&line);
        let shared = Arc::clone(self);
        let started = prompt
            .and_then(|()| spawn("proxy requests", move || requests.pass_requests()))
            .and_then(|_| spawn("proxy answers", move || shared.pass_answers(number, &line)));
        if started.is_err()
            && let Some(line) = lock(&self.lines).remove(&number)
        {
            line.cut();
        }
    }

    fn pass_answers(&self, number: u64, line: &Line) {
        while let Ok(mut answer) = frame::read(&mut &line.broker) {
            let asked = frame::response(&answer).and_then(|id| lock(&line.asked).remove(&id));
            if matches!(asked, Some(METADATA | PRODUCE)) {
                frame::redirect(&mut answer, &self.detours);
            }
            if asked == Some(PRODUCE) && self.loses() {
                self.cuts.fetch_add(1, Ordering::Relaxed);
                break;
            }
            if (&line.client).write_all(&answer).is_err() {
                break;
            }
        }
        line.cut();
        lock(&self.lines).remove(&number);
    }

    /// Whether this answer is lost.
    fn loses(&self) -> bool {
        let mut losses = lock(&self.losses);
        losses.passing = losses.passing.saturating_sub(1);
        if losses.passing > 0 {
            return false;
        }
        losses.passing = losses.draws.u32(BETWEEN_LOSSES);
        true
    }
}

impl Line {
    fn pass_requests(&self) {
        while let Ok(request) = frame::read(&mut &self.client) {
            if let Some((api @ (METADATA | PRODUCE), id)) = frame::request(&request) {
                lock(&self.asked).insert(id, api);
            }
            if (&self.broker).write_all(&request).is_err() {
                break;
            }
        }
        self.cut();
    }

    fn cut(&self) {
        // An end that is closed already needs no closing.
        drop((self.client.shutdown(Shutdown::Both), self.broker.shutdown(Shutdown::Both)));
    }
}

fn spawn(name: &str, work: impl FnOnce() + Send + 'static) -> io::Result<JoinHandle<()>> {
    thread::Builder::new().name(name.to_owned()).spawn(work)
}

/// What is locked here stays right if a thread panics in between.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
