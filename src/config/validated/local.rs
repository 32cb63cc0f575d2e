//! The part of the configuration that concerns the local state, for commands that connect to no broker.

use super::{HashChoice, Http, Kind, State, Window, http, identity, kinds, state, window};
use crate::config::as_typed::AsTyped;
use crate::config::reading::Reading;
use crate::dedupe::IdSource;

/// The configuration for reading the local state. Brokers, topics and group may be missing.
#[derive(Debug, Clone, PartialEq)]
pub struct Local {
    /// The sources of an id, if configured; several parts form one id.
    pub from: Option<Vec<IdSource>>,
    /// The hash that maps an id to 16 bytes.
    pub hash: HashChoice,
    /// How long an id is stored.
    pub window: Window,
    /// Kinds of records with separate windows.
    pub kinds: Vec<Kind>,
    /// The local state.
    pub state: State,
    /// The HTTP endpoint of a running instance.
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
