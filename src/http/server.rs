//! Connections: how many, and for how long.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use super::Endpoint;
use super::routes::router;

/// What a client may take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Open connections; more wait in the system's queue.
    pub connections: usize,
    /// Until the request's head must be there.
    pub head: Duration,
    /// Until the connection must be over. A connection serves one request.
    pub connection: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        // Longer than the workers have to answer an operator.
        Self { connections: 64, head: Duration::from_secs(2), connection: Duration::from_secs(70) }
    }
}

/// A request's head may have so many bytes.
const MAX_HEAD: usize = 16 * 1024;

/// Serves until `shutdown` ends, with the default [`Limits`]. Open connections are given until
/// their own limit to finish.
pub async fn serve(listener: TcpListener, endpoint: Endpoint, shutdown: impl Future<Output = ()>) {
    serve_within(Limits::default(), listener, endpoint, shutdown).await;
}

/// Serves until `shutdown` ends.
pub async fn serve_within(
    limits: Limits,
    listener: TcpListener,
    endpoint: Endpoint,
    shutdown: impl Future<Output = ()>,
) {
    let service = TowerToHyperService::new(router(endpoint));
    let places = Arc::new(Semaphore::new(limits.connections));
    let mut open = JoinSet::new();
    tokio::pin!(shutdown);
    loop {
        let accepted = async {
            let place = Arc::clone(&places).acquire_owned().await;
            (place, listener.accept().await)
        };
        let (place, accepted) = tokio::select! {
            () = &mut shutdown => break,
            accepted = accepted => accepted,
        };
        match accepted {
            Ok((stream, _)) => {
                let service = service.clone();
                open.spawn(async move {
                    connection(stream, limits, service).await;
                    drop(place);
                });
            }
            Err(error) => {
                // Out of file descriptors, mostly. Trying again at once would spin.
                tracing::warn!(%error, "the HTTP server cannot accept a connection; it tries again");
                sleep(Duration::from_millis(200)).await;
            }
        }
        while open.try_join_next().is_some() {}
    }
    drop(listener);
    while open.join_next().await.is_some() {}
}

/// Serves one request, or gives up in time.
async fn connection(stream: TcpStream, limits: Limits, service: TowerToHyperService<axum::Router>) {
    let served = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(limits.head)
        .max_buf_size(MAX_HEAD)
        .keep_alive(false)
        .serve_connection(TokioIo::new(stream), service);
    match timeout(limits.connection, served).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => tracing::debug!(%error, "an HTTP client was cut off"),
        Err(_) => tracing::debug!("an HTTP client took too long and was cut off"),
    }
}
