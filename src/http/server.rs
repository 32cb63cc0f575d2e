//! Connections: how many, and for how long.

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

use super::Endpoint;
use super::routes::router;

/// What a client may take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Open connections; for one more the oldest is cut off.
    pub connections: usize,
    /// Until the request's head must be there.
    pub head: Duration,
    /// Until the connection must be over. A connection serves one request.
    pub connection: Duration,
    /// The same for an operator who has shown the secret, and is not cut off for others.
    pub control: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections: 64,
            head: Duration::from_secs(2),
            connection: Duration::from_secs(10),
            // Longer than the workers have to answer an operator.
            control: Duration::from_secs(70),
        }
    }
}

/// A request's head may have so many bytes.
const MAX_HEAD: usize = 16 * 1024;

/// Serves until `shutdown` ends, with the default [`Limits`]. Open connections are given until
/// their own limit to finish.
pub async fn serve(listener: TcpListener, endpoint: Endpoint, shutdown: impl Future<Output = ()>) {
    serve_within(Limits::default(), listener, endpoint, shutdown).await;
}

/// Whether the client of a connection has shown the secret.
#[derive(Debug, Clone, Default)]
pub(super) struct Trusted(Arc<AtomicBool>);

impl Trusted {
    /// It has.
    pub(super) fn grant(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    fn is_granted(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// The open connections, oldest first.
#[derive(Default)]
struct Open {
    tasks: JoinSet<()>,
    order: VecDeque<(AbortHandle, Trusted)>,
}

impl Open {
    /// Takes one more. Slow clients can take every place, but none for longer than others want it: health
    /// and metrics are answered within milliseconds, so the oldest is never one of those.
    fn take(&mut self, stream: TcpStream, limits: Limits, router: &axum::Router) {
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

/// Serves until `shutdown` ends.
pub async fn serve_within(
    limits: Limits,
    listener: TcpListener,
    endpoint: Endpoint,
    shutdown: impl Future<Output = ()>,
) {
    let router = router(endpoint);
    let mut open = Open::default();
    tokio::pin!(shutdown);
    loop {
        let accepted = tokio::select! {
            () = &mut shutdown => break,
            accepted = listener.accept() => accepted,
        };
        match accepted {
            Ok((stream, _)) => open.take(stream, limits, &router),
            Err(error) => {
                // Out of file descriptors, mostly. Trying again at once would spin.
                tracing::warn!(%error, "the HTTP server cannot accept a connection; it tries again");
                sleep(Duration::from_millis(200)).await;
            }
        }
    }
    drop(listener);
    while open.tasks.join_next().await.is_some() {}
}

/// Serves one request, or gives up in time.
async fn connection(stream: TcpStream, limits: Limits, router: axum::Router, trusted: Trusted) {
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
        Ok(Err(error)) => tracing::debug!(%error, "an HTTP client was cut off"),
        Err(_) => tracing::debug!("an HTTP client took too long and was cut off"),
    }
}
