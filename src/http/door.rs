//! What an operator may ask for: where an id is, and to have it forgotten.
//!
//! There is no authentication. Who may ask is a matter of `http.control`: by default processes of the
//! same machine. A page in a browser of that machine is none of them: what changes anything has to be
//! JSON, which a browser does not send elsewhere without asking first.

use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, OnceLock};

use axum::body::Bytes;
use axum::extract::{Extension, Query, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Deserialize;
use serde_json::json;

use super::Endpoint;
use crate::control::{Answer, Control, Refusal};

/// Who may ask.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Who {
    /// Nobody.
    #[default]
    Nobody,
    /// Processes of this machine.
    Loopback,
    /// Everybody who reaches the port.
    Anybody,
}

/// The way to the workers, once there are any.
#[derive(Debug, Clone, Default)]
pub struct Door {
    /// Who may use it.
    pub who: Who,
    /// Set when the workers have started.
    pub control: Arc<OnceLock<Control>>,
}

/// Where a request comes from.
#[derive(Debug, Clone, Copy)]
pub(super) struct Peer(pub SocketAddr);

#[derive(Debug, Clone, Deserialize)]
#[serde(untagged)]
enum Texts {
    One(String),
    Parts(Vec<String>),
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct Wish {
    id: Texts,
    partition: Option<u32>,
}

/// `GET /state?id=…`: where an id is.
pub(super) async fn state(
    State(shown): State<Endpoint>,
    Extension(peer): Extension<Peer>,
    Query(asked): Query<Vec<(String, String)>>,
) -> Response {
    let mut texts = Vec::new();
    let mut partition = None;
    for (name, value) in asked {
        match (name.as_str(), value.parse::<u32>()) {
            ("id", _) => texts.push(value),
            ("partition", Ok(number)) => partition = Some(number),
            _ => {
                return refuse(
                    StatusCode::BAD_REQUEST,
                    "ask with id=TEXT, once for each part, and partition=NUMBER",
                );
            }
        }
    }
    ask(shown.door, peer, texts, partition, false).await
}

/// `POST /forget`: takes an id back.
pub(super) async fn forget(
    State(shown): State<Endpoint>,
    Extension(peer): Extension<Peer>,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    let kind = headers.get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
    if kind.split(';').next().map(str::trim) != Some("application/json") {
        return refuse(StatusCode::UNSUPPORTED_MEDIA_TYPE, "send content-type: application/json");
    }
    match serde_json::from_slice::<Wish>(&body) {
        Ok(Wish { id, partition }) => {
            let texts = match id {
                Texts::One(text) => vec![text],
                Texts::Parts(parts) => parts,
            };
            ask(shown.door, peer, texts, partition, true).await
        }
        Err(error) => refuse(
            StatusCode::BAD_REQUEST,
            &format!(r#"send {{"id": "TEXT"}} or {{"id": ["PART", "PART"], "partition": NUMBER}}: {error}"#),
        ),
    }
}

async fn ask(
    door: Door,
    Peer(peer): Peer,
    texts: Vec<String>,
    partition: Option<u32>,
    forget: bool,
) -> Response {
    let may = match door.who {
        Who::Nobody => false,
        Who::Loopback => is_loopback(peer.ip()),
        Who::Anybody => true,
    };
    if !may {
        let why = "http.control does not let you ask; ask from the machine itself, or set it to any";
        return refuse(StatusCode::FORBIDDEN, why);
    }
    let Some(control) = door.control.get().cloned() else {
        return refuse(StatusCode::SERVICE_UNAVAILABLE, "the workers have not started yet; see /readyz");
    };
    let asked = tokio::task::spawn_blocking(move || control.ask(&texts, partition, forget)).await;
    match asked {
        Ok(Ok(answer)) => found(&answer, forget),
        Ok(Err(Refusal::Question(why))) => refuse(StatusCode::BAD_REQUEST, &why),
        Ok(Err(Refusal::Unavailable(why))) => refuse(StatusCode::SERVICE_UNAVAILABLE, &why),
        Err(_) => refuse(StatusCode::INTERNAL_SERVER_ERROR, "the question failed; the log says why"),
    }
}

/// 200 with what was found. 404 where no partition of this process has the id, with the partitions that were
/// asked: another instance may have it.
fn found(answer: &Answer, forget: bool) -> Response {
    let code = if answer.places.is_empty() { StatusCode::NOT_FOUND } else { StatusCode::OK };
    let verb = if forget { "forgotten" } else { "found" };
    let document = json!({
        "identity": answer.identity,
        verb: answer.places,
        "looked_into": answer.looked_into,
        "not_ready": answer.not_ready,
    });
    (code, [(header::CONTENT_TYPE, "application/json")], format!("{document}\n")).into_response()
}

fn refuse(code: StatusCode, why: &str) -> Response {
    (code, [(header::CONTENT_TYPE, "application/json")], format!("{}\n", json!({ "error": why })))
        .into_response()
}

/// Also an IPv4 address that came in through an IPv6 socket.
fn is_loopback(address: IpAddr) -> bool {
    match address {
        IpAddr::V6(six) => six.to_ipv4_mapped().map_or(six.is_loopback(), |four| four.is_loopback()),
        IpAddr::V4(four) => four.is_loopback(),
    }
}
