//! Free TCP ports of 127.0.0.1.
//!
//! Taken from below the range that the kernel hands out by itself (32768 and up on Linux). A port from inside
//! that range can be lost while the broker is down: to any outgoing connection, even to a client's own
//! attempt to reconnect, which on a local port without a listener can connect to itself.

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::net::TcpListener;
use std::ops::Range;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU16, Ordering};

const RANGE: Range<u16> = 20_000..32_000;

/// A port that nobody listens on now. No two calls of one process get the same one.
pub fn free_port() -> u16 {
    static NEXT: OnceLock<AtomicU16> = OnceLock::new();
    let next = NEXT.get_or_init(|| {
        let random = RandomState::new().hash_one("where to begin, so that processes rarely meet");
        AtomicU16::new(u16::try_from(random >> 48).unwrap())
    });
    (0..RANGE.len())
        .map(|_| RANGE.start + next.fetch_add(1, Ordering::Relaxed) % (RANGE.end - RANGE.start))
        .find(|port| TcpListener::bind(("127.0.0.1", *port)).is_ok())
        .expect("a free port below 32000")
}
