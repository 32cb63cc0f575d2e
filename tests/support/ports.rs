//! Free TCP ports of 127.0.0.1.
//!
//! The ports are below the ephemeral range of the kernel (32768 and up on Linux). While the broker is down, an
//! outgoing connection can take a port in that range: even a reconnect attempt of a client, which can connect to
//! itself on a local port without a listener.

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::net::TcpListener;
use std::ops::Range;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU16, Ordering};

const RANGE: Range<u16> = 20_000..32_000;

/// A port without a listener. Calls in one process return different ports.
pub fn free_port() -> u16 {
    static NEXT: OnceLock<AtomicU16> = OnceLock::new();
    let next = NEXT.get_or_init(|| {
        let random = RandomState::new().hash_one("a random start, so that processes rarely collide");
        AtomicU16::new(u16::try_from(random >> 48).unwrap())
    });
    (0..RANGE.len())
        .map(|_| RANGE.start + next.fetch_add(1, Ordering::Relaxed) % (RANGE.end - RANGE.start))
        .find(|port| TcpListener::bind(("127.0.0.1", *port)).is_ok())
        .expect("a free port below 32000")
}
