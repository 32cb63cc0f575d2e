//! Metrics, health and status.

use std::net::SocketAddr;
use std::path::PathBuf;

use crate::config::as_typed::TypedHttp;
use crate::config::reading::Reading;

/// Metrics, health and status.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Http {
    /// Listen address and port; port 0 means any free port.
    pub listen: SocketAddr,
    /// The file with the bearer token of the admin API, which is disabled without it. Not opened during validation.
    pub token_file: Option<PathBuf>,
}

pub(super) fn validate(typed: &TypedHttp, reading: &mut Reading<'_>) -> Option<Http> {
    let key = "http.listen";
    let remedy = "give an IP address and a port, as in 127.0.0.1:9464, or 0.0.0.0:9464 for all interfaces";
    let text = reading.required(key, typed.listen.as_deref(), remedy)?;
    let token_file = typed.token_file.as_deref().filter(|path| !path.is_empty()).map(PathBuf::from);
    let listen = text.trim().parse().ok();
    if listen.is_none() {
        reading.reject(key, Some(text), "is not an IP address with a port", remedy);
    }
    Some(Http { listen: listen?, token_file })
}
