//! Checks every history against the raw log and the clean topic alone.

use std::collections::HashMap;

use dedupd::dedupe::Offset;

use super::world::{Raw, Settings};

/// A record that was forwarded or dropped in a committed transaction.
#[derive(Debug, Clone, Copy)]
struct Processed {
    at: Offset,
    id: u8,
    forwarded: bool,
    /// Its own timestamp, or the stream time if it has none.
    own: i64,
    /// Stream time when it was committed, as the auditor computes it.
    time: i64,
    /// The highest stream time so far, including before a rewind: ids that had expired stay expired.
    latest: i64,
    /// Number of records forwarded before this one, including before a rewind.
    forwarded_before: u64,
}

/// Follows the committed transactions and keeps every id.
pub struct Auditor {
    settings: Settings,
    processed: Vec<Processed>,
    time: i64,
    latest: i64,
    forwarded: u64,
    /// Stream time after the last transaction that wrote an entry.
    entry_time: i64,
    violations: Vec<String>,
}

impl Auditor {
    pub fn new(settings: Settings) -> Self {
        Self {
            settings,
            processed: Vec::new(),
            time: 0,
            latest: 0,
            forwarded: 0,
            entry_time: 0,
            violations: Vec::new(),
        }
    }

    pub fn violation(&mut self, what: String) {
        self.violations.push(what);
    }

    /// Adds a record of a committed transaction.
    pub fn committed(&mut self, at: Offset, record: Raw, forwarded: bool) {
        if let Some(last) = self.processed.last().filter(|last| last.at >= at) {
            self.violations.push(format!("{at} is committed after {}", last.at));
        }
        let own = record.timestamp.unwrap_or(0).min(super::NOW + 300_000);
        self.time = self.time.max(own);
        self.latest = self.latest.max(self.time);
        self.processed.push(Processed {
            at,
            id: record.id,
            forwarded,
            own: if own > 0 { own } else { self.time },
            time: self.time,
            latest: self.latest,
            forwarded_before: self.forwarded,
        });
        self.forwarded += u64::from(forwarded);
    }

    /// The transaction wrote an entry.
    pub fn entry(&mut self) {
        self.entry_time = self.time;
    }

    /// The group was rewound and lost the stream time of the commit: that of the last entry is known.
    pub fn rewind(&mut self) {
        self.time = self.entry_time;
    }

    /// The group processes everything from this offset again.
    pub fn forget_from(&mut self, from: Offset) {
        self.processed.retain(|processed| processed.at < from);
    }

    /// Returns all violations, such as lost and duplicated records.
    pub fn judge(mut self, raw: &[Raw]) -> Vec<String> {
        let unseen = raw.iter().zip(0..).filter(|(record, at)| {
            record.exists && self.processed.binary_search_by_key(at, |processed| processed.at).is_err()
        });
        self.violations.extend(unseen.map(|(_, at)| format!("lost: {at} was never committed")));
        let mut owners: HashMap<u8, Processed> = HashMap::new();
        for processed in &self.processed {
            let owner = owners.get(&processed.id);
            if processed.forwarded {
                if let Some(owner) = owner
                    && processed.latest - owner.time <= self.settings.exact_ms
                    && processed.forwarded_before - owner.forwarded_before <= self.ids_min()
                {
                    self.violations.push(format!("duplicated: {owner:?} and {processed:?}"));
                }
                owners.insert(processed.id, *processed);
            } else if owner.is_none_or(|owner| self.too_old(owner, processed)) {
                self.violations.push(format!("lost: {processed:?}, last forwarded {owner:?}"));
            }
        }
        self.violations
    }

    /// Number of ids that the window must contain. A table that evicts may lose any id except the last.
    fn ids_min(&self) -> u64 {
        if !self.settings.evicts || self.settings.max_ids > 1_000 { self.settings.max_ids } else { 0 }
    }

    /// Whether the owner arrived more than the window before the record was written.
    fn too_old(&self, owner: &Processed, processed: &Processed) -> bool {
        owner.time > 0 && processed.own - owner.time > self.settings.exact_ms
    }
}
