//! A TCP proxy that forwards bytes, counts connections and can refuse them: an outage of a server that keeps running.

use std::io;
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;

use crate::support::ports::free_port;

#[derive(Default)]
struct State {
    refuses: AtomicBool,
    connections: AtomicUsize,
}

/// Listens until the test process ends.
pub struct Gate {
    pub port: u16,
    state: Arc<State>,
}

impl Gate {
    /// A gate in front of 127.0.0.1:`upstream`.
    pub fn start(upstream: u16) -> Self {
        let port = free_port();
        let listener = TcpListener::bind(("127.0.0.1", port)).unwrap();
        let state = Arc::new(State::default());
        let shared = Arc::clone(&state);
        thread::spawn(move || {
            for client in listener.incoming().flatten() {
                shared.connections.fetch_add(1, Ordering::SeqCst);
                if shared.refuses.load(Ordering::SeqCst) {
                    continue;
                }
                let Ok(server) = TcpStream::connect(("127.0.0.1", upstream)) else { continue };
                forward(&client, &server);
                forward(&server, &client);
            }
        });
        Self { port, state }
    }

    /// Closes new connections at once, or forwards them again.
    pub fn refuse(&self, refuse: bool) {
        self.state.refuses.store(refuse, Ordering::SeqCst);
    }

    /// Number of connections, including refused ones.
    pub fn connections(&self) -> usize {
        self.state.connections.load(Ordering::SeqCst)
    }
}

/// Copies one direction in a thread, until it ends.
fn forward(from: &TcpStream, to: &TcpStream) {
    let (mut from, mut to) = (from.try_clone().unwrap(), to.try_clone().unwrap());
    thread::spawn(move || {
        io::copy(&mut from, &mut to).ok(); // a lost connection ends the copy
        to.shutdown(Shutdown::Write).ok(); // it may be closed already
    });
}
