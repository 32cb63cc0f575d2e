//! The part of the configuration that concerns the local state, for commands that connect to no broker.

use super::forms::{Hash, Maybe, Sources};
use super::keys::{HashChoice, Http, State, Window};
use super::kinds::{Kind, Kinds};
use super::reading::Reading;
use super::section::{Form, Section};
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
    /// Directory and limits of the local store.
    pub state: State,
    /// The HTTP endpoint of a running instance.
    pub http: Http,
}

impl Local {
    /// Reads only the keys of the local state. Returns `None` only after a problem was recorded.
    pub(super) fn read(reading: &mut Reading<'_>) -> Option<Self> {
        let from = Maybe(Sources).read("identity.from", reading);
        let hash = Hash.read("identity.hash", reading);
        let window = Window::read("window", reading);
        let kinds = Kinds.read("kinds", reading);
        let state = State::read("state", reading);
        let http = Http::read("http", reading);
        Some(Self { from: from?, hash: hash?, window: window?, kinds: kinds?, state: state?, http: http? })
    }
}
