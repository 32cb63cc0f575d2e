//! Clients that are being closed.

use std::cell::RefCell;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use crate::clock;

/// Time limit of the drop.
const LIMIT: Duration = Duration::from_secs(5);

/// Closes clients, each in a thread of its own, because that takes 100 ms or more: the Rust client polls a consumer until it
/// is closed, and waits for the thread of an admin client.
///
/// The drop waits for these threads, at most [`LIMIT`]. A process that runs exit handlers, as a test does, can crash in the TLS library while a client is being closed.
#[derive(Default)]
pub struct Closing(RefCell<Vec<JoinHandle<()>>>);

impl Closing {
    /// Begins to close a client.
    pub fn close(&self, client: impl Send + 'static) {
        let mut threads = self.0.borrow_mut();
        threads.retain(|thread| !thread.is_finished());
        // Without a thread, the failed call closes the client.
        let thread = thread::Builder::new().name("close-client".to_owned()).spawn(move || drop(client));
        threads.extend(thread.ok());
    }
}

impl Drop for Closing {
    fn drop(&mut self) {
        let until = clock::monotonic() + LIMIT;
        for thread in self.0.take() {
            while !thread.is_finished() && clock::monotonic() < until {
                thread::sleep(Duration::from_millis(5));
            }
            if !thread.is_finished() {
                tracing::warn!(
                    "a Kafka client was not closed within {} s; its connections end with the process",
                    LIMIT.as_secs()
                );
                return;
            }
            if thread.join().is_err() {
                tracing::warn!("a thread that closes a Kafka client panicked");
            }
        }
    }
}
