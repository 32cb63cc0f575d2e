//! Metrics, health and status.

use std::net::SocketAddr;

use crate::config::as_typed::TypedHttp;
use crate::config::choices::Control;
use crate::config::reading::Reading;

/// Metrics, health and status.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Http {
    /// Address and port; port 0 means any.
    pub listen: SocketAddr,
    /// Who may ask about ids and have them forgotten.
    pub control: Control,
}

pub(super) fn validate(typed: &TypedHttp, reading: &mut Reading<'_>) -> Option<Http> {
    let key = "http.listen";
    let remedy = "give an IP address and a port, as in 127.0.0.1:9464, or 0.0.0.0:9464 for all interfaces";
    let text = reading.required(key, typed.listen.as_deref(), remedy)?;
    let control = reading.choice("http.control", typed.control.as_deref());
    let listen = text.trim().parse().ok();
    if listen.is_none() {
        reading.refuse(key, Some(text), "is no address with a port", remedy);
    }
    Some(Http { listen: listen?, control: control? })
}
