//! The part of the configuration that says what the local state is: for commands that ask no broker.

use super::{HashChoice, Http, Kind, State, Window, http, identity, kinds, state, window};
use crate::config::as_typed::AsTyped;
use crate::config::id_source::IdSource;
use crate::config::reading::Reading;

/// What it takes to read the local state. Brokers, topics and group may be missing.
#[derive(Debug, Clone, PartialEq)]
pub struct Local {
    /// Where an id stands, if that is configured; several parts make one id.
    pub from: Option<Vec<IdSource>>,
    /// How an id becomes 16 bytes.
    pub hash: HashChoice,
    /// How long an identity is remembered.
    pub window: Window,
    /// Records with windows of their own.
    pub kinds: Vec<Kind>,
    /// The local state.
    pub state: State,
    /// Where a running instance answers.
    pub http: Http,
}

pub(in crate::config) fn validate(typed: &AsTyped, reading: &mut Reading<'_>) -> Option<Local> {
    let from = typed.identity.from.as_deref().map(|texts| identity::sources(texts, reading));
    let hash = identity::hash(&typed.identity, reading);
    let window = window::validate(&typed.window, reading);
    let kinds = kinds::validate(&typed.kinds, (window.as_ref(), &typed.window), reading);
    let state = state::validate(&typed.state, reading);
    let http = http::validate(&typed.http, reading);
    Some(Local {
        from: from.flatten(),
        hash: hash?,
        window: window?,
        kinds: kinds?,
        state: state?,
        http: http?,
    })
}
