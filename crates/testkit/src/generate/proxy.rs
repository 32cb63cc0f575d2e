//! A proxy between the generator's producer and the brokers that drops responses.
//!
//! It reproduces the cause of duplicates in production: the broker has written a batch, the connection fails
//! before the response arrives, and a producer without idempotence retries the batch. The proxy forwards all
//! frames, but sometimes closes the connection instead of forwarding the response to a Produce request.
//!
//! Brokers send their addresses to clients, so the proxy puts its own ports into those responses (see
//! [`super::frame::redirect`]). It can replace only the port, not the host, so it works only with plaintext
//! brokers on the loopback interface, as in tests and demos.

use std::collections::HashMap;
use std::io::{self, Write};
use std::net::{Ipv4Addr, Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};

use fastrand::Rng;

use super::frame::{self, Detour, METADATA, PRODUCE};

/// Number of the first dropped response, low so that short runs drop one as well.
const FIRST_LOSS: u32 = 3;
/// Responses forwarded between two dropped ones.
const BETWEEN_LOSSES: std::ops::Range<u32> = 20..60;

/// A running proxy; on drop it closes its connections and ports.
pub struct Proxy {
    shared: Arc<Shared>,
    acceptors: Vec<JoinHandle<()>>,
}

struct Shared {
    detours: Vec<Detour>,
    closing: AtomicBool,
    cuts: AtomicU64,
    losses: Mutex<Losses>,
    connections: Mutex<HashMap<u64, Arc<Connection>>>,
}

/// When the next response is dropped.
struct Losses {
    draws: Rng,
    remaining: u32,
}

/// A connection from a client to its broker.
struct Connection {
    client: TcpStream,
    broker: TcpStream,
    /// API keys of requests in flight, by correlation id.
    in_flight: Mutex<HashMap<i32, i16>>,
}

impl Proxy {
    /// Opens a port for each broker, given as host and port.
    pub fn start(brokers: &[(String, u16)], seed: u64) -> io::Result<Self> {
        let mut listeners = Vec::new();
        let mut detours = Vec::new();
        for (host, port) in brokers {
            let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
            detours.push(Detour {
                host: host.clone(),
                port: *port,
                proxy_port: listener.local_addr()?.port(),
            });
            listeners.push(listener);
        }
        let losses = Losses { draws: Rng::with_seed(seed), remaining: FIRST_LOSS };
        let shared = Arc::new(Shared {
            detours,
            closing: AtomicBool::new(false),
            cuts: AtomicU64::new(0),
            losses: Mutex::new(losses),
            connections: Mutex::default(),
        });
        let mut proxy = Self { shared, acceptors: Vec::new() };
        for (listener, detour) in listeners.into_iter().zip(proxy.shared.detours.clone()) {
            let shared = Arc::clone(&proxy.shared);
            proxy.acceptors.push(spawn("proxy accept", move || shared.accept(&listener, &detour))?);
        }
        Ok(proxy)
    }

    /// `host:port` list for clients.
    pub fn bootstrap_servers(&self) -> String {
        let ports = self.shared.detours.iter().map(|detour| format!("127.0.0.1:{}", detour.proxy_port));
        ports.collect::<Vec<_>>().join(",")
    }

    /// Number of connections closed to drop a response.
    pub fn cuts(&self) -> u64 {
        self.shared.cuts.load(Ordering::Relaxed)
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.shared.closing.store(true, Ordering::SeqCst);
        for connection in lock(&self.shared.connections).values() {
            connection.close();
        }
        for (acceptor, detour) in self.acceptors.drain(..).zip(&self.shared.detours) {
            // The connection wakes the thread that accepts on this port. If it fails, the thread has ended.
            if TcpStream::connect((Ipv4Addr::LOCALHOST, detour.proxy_port)).is_ok() {
                drop(acceptor.join());
            }
        }
    }
}

impl Shared {
    fn accept(self: &Arc<Self>, listener: &TcpListener, detour: &Detour) {
        let mut number = u64::from(detour.proxy_port) << 32;
        for client in listener.incoming() {
            if self.closing.load(Ordering::SeqCst) {
                return;
            }
            // If the client or the broker has disconnected, the client reconnects.
            let Ok(client) = client else { continue };
            let Ok(broker) = TcpStream::connect((detour.host.as_str(), detour.port)) else { continue };
            number += 1;
            self.forward(number, client, broker);
        }
    }

    /// Forwards frames in both directions, on two threads.
    fn forward(self: &Arc<Self>, number: u64, client: TcpStream, broker: TcpStream) {
        let no_delay = client.set_nodelay(true).and(broker.set_nodelay(true));
        let connection = Arc::new(Connection { client, broker, in_flight: Mutex::default() });
        lock(&self.connections).insert(number, Arc::clone(&connection));
        let requests = Arc::clone(&connection);
        let shared = Arc::clone(self);
        let started = no_delay
            .and_then(|()| spawn("proxy requests", move || requests.forward_requests()))
            .and_then(|_| spawn("proxy responses", move || shared.forward_responses(number, &connection)));
        if started.is_err()
            && let Some(connection) = lock(&self.connections).remove(&number)
        {
            connection.close();
        }
    }

    fn forward_responses(&self, number: u64, connection: &Connection) {
        while let Ok(mut response) = frame::read(&mut &connection.broker) {
            let api = frame::response(&response).and_then(|id| lock(&connection.in_flight).remove(&id));
            if matches!(api, Some(METADATA | PRODUCE)) {
                frame::redirect(&mut response, &self.detours);
            }
            if api == Some(PRODUCE) && self.drops_next() {
                self.cuts.fetch_add(1, Ordering::Relaxed);
                break;
            }
            if (&connection.client).write_all(&response).is_err() {
                break;
            }
        }
        connection.close();
        lock(&self.connections).remove(&number);
    }

    /// Whether to drop this response.
    fn drops_next(&self) -> bool {
        let mut losses = lock(&self.losses);
        losses.remaining = losses.remaining.saturating_sub(1);
        if losses.remaining > 0 {
            return false;
        }
        losses.remaining = losses.draws.u32(BETWEEN_LOSSES);
        true
    }
}

impl Connection {
    fn forward_requests(&self) {
        while let Ok(request) = frame::read(&mut &self.client) {
            if let Some((api @ (METADATA | PRODUCE), id)) = frame::request(&request) {
                lock(&self.in_flight).insert(id, api);
            }
            if (&self.broker).write_all(&request).is_err() {
                break;
            }
        }
        self.close();
    }

    fn close(&self) {
        // An error means that the end is already closed.
        drop((self.client.shutdown(Shutdown::Both), self.broker.shutdown(Shutdown::Both)));
    }
}

fn spawn(name: &str, work: impl FnOnce() + Send + 'static) -> io::Result<JoinHandle<()>> {
    thread::Builder::new().name(name.to_owned()).spawn(work)
}

/// Ignores poisoning: every locked value stays consistent if a thread panics.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
