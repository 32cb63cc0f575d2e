//! The part of the configuration that concerns the local state, for commands that connect to no broker.

use super::forms::{Hash, ID_PARTS, Maybe, Word};
use super::keys::{Config, HashChoice, HttpConfig, StateConfig, WindowConfig};
use super::kinds::{KindConfig, KindsForm};
use super::reading::ConfigReading;
use super::section::{ConfigSection, Form};
use crate::dedupe::{Frame, IdPart};

/// The configuration for reading the local state. Brokers, topics and group may be missing.
#[derive(Debug, Clone, PartialEq)]
pub struct Local {
    /// The parts of an id, if configured.
    pub from: Option<Vec<IdPart>>,
    /// The hash that maps an id to 16 bytes.
    pub hash: HashChoice,
    /// Where the schema of a document is named: a part of the identity rule.
    pub frame: Frame,
    /// How long an id is stored.
    pub window: WindowConfig,
    /// Kinds of records with separate windows.
    pub kinds: Vec<KindConfig>,
    /// Directory and limits of the local store.
    pub state: StateConfig,
    /// The HTTP endpoint of a running instance.
    pub http: HttpConfig,
}

impl Local {
    /// These keys of the configuration of a service.
    #[must_use]
    pub fn of(config: &Config) -> Self {
        Self {
            from: Some(config.identity.from.clone()),
            hash: config.identity.hash.clone(),
            frame: config.schemas.frame,
            window: config.window.clone(),
            kinds: config.kinds.clone(),
            state: config.state.clone(),
            http: config.http.clone(),
        }
    }

    /// Reads only the keys of the local state. Returns `None` only after a problem was recorded.
    pub(super) fn read(reading: &mut ConfigReading<'_>) -> Option<Self> {
        let from = Maybe(ID_PARTS).read("identity.from", reading);
        let hash = Hash.read("identity.hash", reading);
        let frame = Word.read("schemas.frame", reading);
        let window = WindowConfig::read("window", reading);
        let kinds = KindsForm.read("kinds", reading);
        let state = StateConfig::read("state", reading);
        let http = HttpConfig::read("http", reading);
        Some(Self {
            from: from?,
            hash: hash?,
            frame: frame?,
            window: window?,
            kinds: kinds?,
            state: state?,
            http: http?,
        })
    }
}
