//! The HTTP server, with limits on the number and the duration of connections.

use std::collections::VecDeque;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use axum::Extension;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::{sleep, timeout};

use super::routes::{ShownState, router};

/// The limits for clients.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClientLimits {
    /// Open connections. A further connection closes the oldest one.
    pub connections: usize,
    /// Time until the request head must be complete.
    pub head: Duration,
    /// Time until the connection is closed. A connection serves one request.
    pub connection: Duration,
    /// The same for an authenticated operator, whose connection is not closed for others.
    pub control: Duration,
}

impl Default for ClientLimits {
    fn default() -> Self {
        Self {
            connections: 64,
            head: Duration::from_secs(2),
            connection: Duration::from_secs(10),
            // Longer than the time limit of the workers for a response to an operator.
            control: Duration::from_secs(70),
        }
    }
}

/// Maximum size of a request head, in bytes.
const MAX_HEAD: usize = 16 * 1024;

/// Whether the client of a connection has sent the bearer token.
#[derive(Debug, Clone, Default)]
pub(super) struct Trusted(Arc<AtomicBool>);

impl Trusted {
    /// Marks the client as authenticated.
    pub(super) fn grant(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    fn is_granted(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// The open connections, oldest first.
#[derive(Default)]
struct OpenConnections {
    tasks: JoinSet<()>,
    order: VecDeque<(AbortHandle, Trusted)>,
}

impl OpenConnections {
    /// Serves one more connection, and closes the oldest one when all places are taken. Requests for health and
    /// metrics are answered within milliseconds, so the oldest connection belongs to a slow client: slow clients
    /// cannot starve the others.
    fn accept(&mut self, stream: TcpStream, limits: ClientLimits, router: &axum::Router) {
        while self.tasks.try_join_next().is_some() {}
        self.order.retain(|(task, _)| !task.is_finished());
        if self.order.len() >= limits.connections {
            let oldest = self.order.iter().position(|(_, trusted)| !trusted.is_granted()).unwrap_or(0);
            if let Some((task, _)) = self.order.remove(oldest) {
                task.abort();
            }
        }
        let trusted = Trusted::default();
        let served = connection(stream, limits, router.clone(), trusted.clone());
        self.order.push_back((self.tasks.spawn(served), trusted));
    }
}

/// Serves until `shutdown` completes. Open connections then have until their own limit to finish.
pub async fn serve(
    limits: ClientLimits,
    listener: TcpListener,
    shown: impl ShownState,
    shutdown: impl Future<Output = ()>,
) {
    let router = router(shown);
    let mut open = OpenConnections::default();
    tokio::pin!(shutdown);
    loop {
        let accepted = tokio::select! {
            () = &mut shutdown => break,
            accepted = listener.accept() => accepted,
        };
        match accepted {
            Ok((stream, _)) => open.accept(stream, limits, &router),
            Err(error) => {
                // Usually out of file descriptors. An immediate retry would spin.
                tracing::warn!(%error, "HTTP connection cannot be accepted; retrying");
                sleep(Duration::from_millis(200)).await;
            }
        }
    }
    drop(listener);
    while open.tasks.join_next().await.is_some() {}
}

/// Serves one request within the time limits.
async fn connection(stream: TcpStream, limits: ClientLimits, router: axum::Router, trusted: Trusted) {
    let service = TowerToHyperService::new(router.layer(Extension(trusted.clone())));
    let served = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(limits.head)
        .max_buf_size(MAX_HEAD)
        .keep_alive(false)
        .serve_connection(TokioIo::new(stream), service);
    tokio::pin!(served);
    let mut ended = timeout(limits.connection, &mut served).await;
    if ended.is_err() && trusted.is_granted() {
        ended = timeout(limits.control.saturating_sub(limits.connection), &mut served).await;
    }
    match ended {
        Ok(Ok(())) => {}
        Ok(Err(error)) => tracing::debug!(%error, "HTTP connection failed"),
        Err(_) => tracing::debug!("HTTP connection closed: time limit reached"),
    }
}
