//! What an operator may ask for: where an id is, and to have it forgotten.
//!
//! Nobody may, unless the configuration names a file with a secret; then whoever has the secret.

use std::fmt;
use std::sync::{Arc, OnceLock};

use axum::body::Bytes;
use axum::extract::{FromRequestParts, Query, State};
use axum::http::request::Parts;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Deserialize;
use serde_json::json;

use super::Endpoint;
use super::server::Trusted;
use crate::control::{Answer, Control, Refusal};

/// The shortest secret, in bytes.
const SHORTEST: usize = 16;

/// The secret of those who may ask.
#[derive(Clone)]
pub struct Token(Arc<str>);

impl Token {
    /// A secret; `None` when it is shorter than 16 bytes.
    #[must_use]
    pub fn new(secret: &str) -> Option<Self> {
        (secret.len() >= SHORTEST).then(|| Self(secret.into()))
    }

    /// Compares every byte, so that the time tells nothing about where they differ.
    fn is(&self, other: &str) -> bool {
        let differing =
            self.0.bytes().zip(other.bytes()).fold(0, |seen, (mine, theirs)| seen | (mine ^ theirs));
        self.0.len() == other.len() && differing == 0
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(…)")
    }
}

/// The way to the workers, once there are any.
#[derive(Debug, Clone, Default)]
pub struct Door {
    /// Who may use it: whoever has this, or nobody.
    pub token: Option<Token>,
    /// Set when the workers have started.
    pub control: Arc<OnceLock<Control>>,
}

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

/// Somebody who has shown the secret. Comes before anything of the request's body is read.
pub(super) struct Operator;

impl FromRequestParts<Endpoint> for Operator {
    type Rejection = Response;

    async fn from_request_parts(parts: &mut Parts, shown: &Endpoint) -> Result<Self, Response> {
        let Some(token) = &shown.door.token else {
            let why = "nobody may ask here: name a file with a secret in http.token_file, and start again";
            return Err(refuse(StatusCode::FORBIDDEN, why));
        };
        let given = parts.headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
        if !given.and_then(|given| given.strip_prefix("Bearer ")).is_some_and(|given| token.is(given.trim()))
        {
            let why = "send the secret of http.token_file, as in: Authorization: Bearer SECRET";
            return Err(refuse(StatusCode::UNAUTHORIZED, why));
        }
        if let Some(trusted) = parts.extensions.get::<Trusted>() {
            trusted.grant();
        }
        Ok(Self)
    }
}

/// `GET /state?id=…`: where an id is.
pub(super) async fn state(
    _operator: Operator,
    State(shown): State<Endpoint>,
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
    ask(shown.door, texts, partition, false).await
}

/// `POST /forget`: takes an id back.
pub(super) async fn forget(
    _operator: Operator,
    State(shown): State<Endpoint>,
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
            ask(shown.door, texts, partition, true).await
        }
        Err(error) => refuse(
            StatusCode::BAD_REQUEST,
            &format!(r#"send {{"id": "TEXT"}} or {{"id": ["PART", "PART"], "partition": NUMBER}}: {error}"#),
        ),
    }
}

async fn ask(door: Door, texts: Vec<String>, partition: Option<u32>, forget: bool) -> Response {
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
