//! The status of standby copies.

use serde::Serialize;

/// The standby copies of journals that other instances own.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct StandbyStatus {
    /// Journals that are followed: partitions of the state topic.
    pub journals: u64,
    /// Those that were read to the end of the state topic.
    pub complete: u64,
    /// Offsets of the state topic that are not read yet, in all of them; `None` while that is not known.
    pub lag_records: Option<u64>,
    /// Why there is no copy of a journal; `None` when every copy can be read.
    pub refused: Option<String>,
    /// Why a takeover would fail: it would read what no restore can use. `None` where that is not known.
    #[serde(skip)]
    pub blocks: Option<String>,
    /// What the thread is waiting for, as the predicate of a sentence; `None` while it makes progress.
    pub slow: Option<String>,
}

impl StandbyStatus {
    /// In one line, for people.
    #[must_use]
    pub fn summary(&self) -> String {
        let Self { journals, complete, lag_records, refused, slow, .. } = self;
        let lag = lag_records.map_or_else(String::new, |lag| format!(", lag {lag} records"));
        let refused = refused.as_ref().map_or_else(String::new, |why| format!("; no copy: {why}"));
        let slow = slow.as_ref().map_or_else(String::new, |what| format!("; the thread {what}"));
        format!("follows {journals} journals, {complete} to the end{lag}{refused}{slow}")
    }
}
