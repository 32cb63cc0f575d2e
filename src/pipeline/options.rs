//! What a worker is told, already validated.

use std::time::Duration;

use super::limits::Limits;
use super::reach::Reach;
pub use crate::config::{Mode, OnMissing, OnPoison, OnProbable, OnRewind, Start};
use crate::dedupe::{HashKind, IdentityRule, WindowLimits};

impl Mode {
    /// What an operator has to know of it, all the time that it is in force.
    #[must_use]
    pub fn warning(self) -> Option<&'static str> {
        match self {
            Self::Drop => None,
            Self::Shadow => Some("dedupe.mode = \"shadow\": no duplicate is dropped, they are only marked"),
            Self::Bypass => Some(
                "dedupe.mode = \"bypass\": every record is forwarded and no id remembered; set it back to \"drop\" as soon as you can",
            ),
        }
    }
}

/// How transactions are settled that a broker left without their marker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Torn {
    /// By what of them is visible: the only right way.
    ByEvidence,
    /// Not at all: a negative control for tests.
    Never,
    /// Always as aborted: a negative control for tests.
    AlwaysAborted,
}

/// Everything a worker has to know.
pub struct Options {
    /// Raw topic, for messages.
    pub raw: String,
    /// State topic, for messages.
    pub state: String,
    /// Which partitions the clean and the state topic have.
    pub reach: Reach,
    /// How many partitions the raw topic had when this process began.
    pub began: u32,
    /// Transactional id of this worker.
    pub writer: String,
    /// Where ids come from.
    pub rule: IdentityRule,
    /// The hash in force.
    pub hash: HashKind,
    /// How much each partition's window may hold.
    pub window: WindowLimits,
    /// How much the windows of this process may hold.
    pub limits: Limits,
    /// What is done with duplicates.
    pub mode: Mode,
    /// Whether dropped records go to the duplicates topic.
    pub keep_duplicates: bool,
    /// A record with this header is forwarded whatever its id.
    pub force_header: Option<String>,
    /// Policy for records without id.
    pub on_missing: OnMissing,
    /// Policy for records that the broker refuses.
    pub on_poison: OnPoison,
    /// Policy for records that have probably been seen.
    pub on_probable: OnProbable,
    /// Where to begin.
    pub start: Start,
    /// Policy for a group that was rewound.
    pub on_rewind: OnRewind,
    /// How torn transactions are settled.
    pub torn: Torn,
    /// Most records of one transaction.
    pub max_records: usize,
    /// Most bytes of one transaction.
    pub max_bytes: usize,
    /// Longest time a transaction stays open while records come.
    pub interval: Duration,
    /// How long the broker keeps a transaction open.
    pub transaction_timeout: Duration,
}

impl Options {
    /// How long identities shall be remembered, exactly or in filters.
    #[must_use]
    pub fn asked(&self) -> Duration {
        // Filters are kept for as much longer as a block may span.
        let exact = self.window.exact;
        self.window.bloom.map_or(exact, |bloom| bloom.bloom.saturating_sub(exact / 32).max(exact))
    }
}
