//! The admin API: looks up an id (`GET /state`), forgets an id (`POST /forget`), and replaces the filter of the log
//! (`POST /log`).
//!
//! They are disabled until `http.token_file` is set, and then require its content as bearer token.

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
use super::routes::json_text;
use super::server::Trusted;
use crate::control::{Answer, AskedId, Control, LogFilter, RequestError};

/// Minimum length of a bearer token, in bytes.
const SHORTEST: usize = 16;

/// The bearer token of the admin API.
#[derive(Clone)]
pub struct Token(Arc<str>);

impl Token {
    /// A token; `None` when `secret` is shorter than 16 bytes.
    #[must_use]
    pub fn new(secret: &str) -> Option<Self> {
        (secret.len() >= SHORTEST).then(|| Self(secret.into()))
    }

    /// The text that a request has to have.
    pub(crate) fn secret(&self) -> &str {
        &self.0
    }

    /// Compares every byte, so that the time does not reveal where the texts differ.
    fn matches(&self, other: &str) -> bool {
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

/// The admin API and its channel to the workers.
#[derive(Debug, Clone, Default)]
pub struct AdminApi {
    /// The required bearer token; without it the admin API is disabled.
    pub token: Option<Token>,
    /// The channel to the workers, set when they have started.
    pub control: Arc<OnceLock<Control>>,
    /// The filter of the log.
    pub log: LogFilter,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(untagged)]
enum Id {
    Text(String),
    Parts(Vec<String>),
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct ForgetRequest {
    id: Option<Id>,
    identity: Option<String>,
    partition: Option<u32>,
}

impl ForgetRequest {
    /// The id, or what stands for it; `None` without either, with both, or with another text than an identity.
    fn asked(self) -> Option<(AskedId, Option<u32>)> {
        let asked = match (self.id, self.identity) {
            (Some(Id::Text(text)), None) => AskedId::Id(vec![text]),
            (Some(Id::Parts(parts)), None) => AskedId::Id(parts),
            (None, Some(identity)) => AskedId::identity(&identity)?,
            _ => return None,
        };
        Some((asked, self.partition))
    }
}

/// Proof that the client sent the bearer token. Extracted before the request body is read.
pub(super) struct Operator;

impl FromRequestParts<Endpoint> for Operator {
    type Rejection = Response;

    async fn from_request_parts(parts: &mut Parts, shown: &Endpoint) -> Result<Self, Response> {
        let Some(token) = &shown.admin.token else {
            let why =
                "the admin API is disabled; set http.token_file to a file with a bearer token and restart";
            return Err(error_response(StatusCode::FORBIDDEN, why));
        };
        let given = parts.headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
        let given = given.and_then(|given| given.split_once(' '));
        if !given.is_some_and(|(scheme, given)| {
            scheme.eq_ignore_ascii_case("Bearer") && token.matches(given.trim())
        }) {
            let why = "bearer token missing or wrong; send the content of http.token_file as Authorization: Bearer TOKEN";
            return Err(error_response(StatusCode::UNAUTHORIZED, why));
        }
        if let Some(trusted) = parts.extensions.get::<Trusted>() {
            trusted.grant();
        }
        Ok(Self)
    }
}

/// `GET /state?id=…`, or `?identity=…`: looks up an id.
pub(super) async fn state(
    _operator: Operator,
    State(shown): State<Endpoint>,
    Query(parameters): Query<Vec<(String, String)>>,
) -> Response {
    let (mut texts, mut identity, mut partition) = (Vec::new(), None, None);
    for (name, value) in parameters {
        match (name.as_str(), value.parse::<u32>()) {
            // What stands for bytes that are no UTF-8.
            ("id", _) if value.contains(char::REPLACEMENT_CHARACTER) => {
                return error_response(
                    StatusCode::BAD_REQUEST,
                    "the id is not UTF-8; use identity=32 hex digits, which dedupd explain prints for a record",
                );
            }
            ("id", _) => texts.push(value),
            ("partition", Ok(number)) => partition = Some(number),
            ("identity", _) if let Some(asked) = AskedId::identity(&value) => identity = Some(asked),
            _ => {
                return error_response(
                    StatusCode::BAD_REQUEST,
                    "invalid query; use id=TEXT, once for each part of the id, or identity=32 hex digits, and optionally partition=NUMBER",
                );
            }
        }
    }
    request(shown.admin, identity.unwrap_or(AskedId::Id(texts)), partition, false).await
}

/// `POST /forget`: forgets an id.
pub(super) async fn forget(
    _operator: Operator,
    State(shown): State<Endpoint>,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    let kind = headers.get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
    if kind.split(';').next().map(str::trim) != Some("application/json") {
        return error_response(
            StatusCode::UNSUPPORTED_MEDIA_TYPE,
            "unsupported content type; send content-type: application/json",
        );
    }
    let usage = r#"send {"id": "TEXT"}, {"id": ["PART", "PART"]} or {"identity": "32 hex digits"}, and optionally "partition": NUMBER"#;
    match serde_json::from_slice::<ForgetRequest>(&body).map(ForgetRequest::asked) {
        Ok(Some((asked, partition))) => request(shown.admin, asked, partition, true).await,
        Ok(None) => error_response(
            StatusCode::BAD_REQUEST,
            &format!("the body has to have one id, or one identity; {usage}"),
        ),
        Err(error) => error_response(StatusCode::BAD_REQUEST, &format!("invalid body: {error}; {usage}")),
    }
}

/// `POST /log`: replaces the filter of the log. The body has the syntax of `RUST_LOG`; an empty one restores the filter of the
/// start.
pub(super) async fn log(_operator: Operator, State(shown): State<Endpoint>, body: String) -> Response {
    match shown.admin.log.replace(body.trim()) {
        Ok(filter) => json_text(&json!({ "filter": filter })).into_response(),
        Err(why) => error_response(
            StatusCode::BAD_REQUEST,
            &format!(
                "invalid filter: {why}; send for example debug, or info,dedupd::kafka=debug,librdkafka=debug"
            ),
        ),
    }
}

async fn request(admin: AdminApi, asked: AskedId, partition: Option<u32>, forget: bool) -> Response {
    let Some(control) = admin.control.get().cloned() else {
        return error_response(
            StatusCode::SERVICE_UNAVAILABLE,
            "the workers have not started yet; see /readyz",
        );
    };
    let result = tokio::task::spawn_blocking(move || control.ask(&asked, partition, forget)).await;
    match result {
        Ok(Ok(answer)) => answer_response(&answer, forget),
        Ok(Err(RequestError::Invalid(why))) => error_response(StatusCode::BAD_REQUEST, &why),
        Ok(Err(RequestError::Unavailable(why))) => error_response(StatusCode::SERVICE_UNAVAILABLE, &why),
        Err(_) => {
            error_response(StatusCode::INTERNAL_SERVER_ERROR, "the request failed; the cause is in the log")
        }
    }
}

/// 200 with the places of the id. 404 when no partition of this process has the id, with the partitions that
/// were searched: another instance may have it. 503 when a partition that may have it could not be searched; to be retried.
fn answer_response(answer: &Answer, forget: bool) -> Response {
    let code = match answer.places.is_empty() {
        is_missing if !answer.not_ready.is_empty() && (is_missing || forget) => {
            StatusCode::SERVICE_UNAVAILABLE
        }
        true => StatusCode::NOT_FOUND,
        false => StatusCode::OK,
    };
    let verb = if forget { "forgotten" } else { "found" };
    let document = json!({
        "identity": answer.identity,
        verb: answer.places,
        "looked_into": answer.looked_into,
        "not_ready": answer.not_ready,
    });
    (code, json_text(&document)).into_response()
}

fn error_response(code: StatusCode, why: &str) -> Response {
    (code, json_text(&json!({ "error": why }))).into_response()
}
