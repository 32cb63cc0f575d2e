//! What must be true of every history, from the raw log and the clean topic alone.

use std::collections::HashMap;

use dedupd::dedupe::Offset;

use super::world::{Raw, Settings};

/// One record of the clean topic, or one that was dropped.
#[derive(Debug, Clone, Copy)]
struct Judged {
    at: Offset,
    id: u8,
    forwarded: bool,
    /// Stream time when it was committed, computed here.
    time: i64,
    /// The latest stream time there ever was, before a rewind too: what was forgotten then stays so.
    latest: i64,
    /// How many records had been forwarded, before a rewind too.
    forwarded_before: u64,
}

/// Follows the committed transactions with a plain memory that never forgets.
pub struct Auditor {
    settings: Settings,
    judged: Vec<Judged>,
    time: i64,
    latest: i64,
    forwarded: u64,
    /// Stream time may lag behind after a rewind, so memory may be longer than the window.
    rewound: bool,
    violations: Vec<String>,
}

impl Auditor {
    pub fn new(settings: Settings) -> Self {
        Self {
            settings,
            judged: Vec::new(),
            time: 0,
            latest: 0,
            forwarded: 0,
            rewound: false,
            violations: Vec::new(),
        }
    }

    pub fn violation(&mut self, what: String) {
        self.violations.push(what);
    }

    /// A record is part of a committed transaction.
    pub fn committed(&mut self, at: Offset, record: Raw, forwarded: bool) {
        if let Some(last) = self.judged.last().filter(|last| last.at >= at) {
            self.violations.push(format!("{at} is committed after {}", last.at));
        }
        self.time = self.time.max(record.timestamp.unwrap_or(0).min(super::NOW + 300_000));
        self.latest = self.latest.max(self.time);
        self.judged.push(Judged {
            at,
            id: record.id,
            forwarded,
            time: self.time,
            latest: self.latest,
            forwarded_before: self.forwarded,
        });
        self.forwarded += u64::from(forwarded);
    }

    /// The group was moved back. With it goes the stream time of the commit, so that from here on
    /// only the timestamps that are still to come tell the time.
    pub fn rewind(&mut self) {
        self.rewound = true;
        self.time = 0;
    }

    /// The group was told to emit everything from here again.
    pub fn forget_from(&mut self, from: Offset) {
        self.judged.retain(|judged| judged.at < from);
    }

    /// 0 lost, 0 duplicated, or the list of them.
    pub fn judge(mut self, raw: &[Raw]) -> Vec<String> {
        let unseen = raw.iter().zip(0..).filter(|(record, at)| {
            record.there && self.judged.binary_search_by_key(at, |judged| judged.at).is_err()
        });
        self.violations.extend(unseen.map(|(_, at)| format!("lost: {at} was never committed")));
        let mut owners: HashMap<u8, Judged> = HashMap::new();
        for judged in &self.judged {
            let owner = owners.get(&judged.id);
            if judged.forwarded {
                if let Some(owner) = owner
                    && judged.latest - owner.time <= self.settings.exact_ms
                    && judged.forwarded_before - owner.forwarded_before <= self.remembered()
                {
                    self.violations.push(format!("duplicated: {owner:?} and {judged:?}"));
                }
                owners.insert(judged.id, *judged);
            } else if owner.is_none_or(|owner| self.too_old(owner, judged)) {
                self.violations.push(format!("lost: {judged:?}, last forwarded {owner:?}"));
            }
        }
        self.violations
    }

    /// Identities that are certainly remembered. A table that evicts may lose any but the very last.
    fn remembered(&self) -> u64 {
        if !self.settings.evicts || self.settings.max_ids > 1_000 { self.settings.max_ids } else { 0 }
    }

    /// Whether nothing can excuse that the owner was still remembered.
    fn too_old(&self, owner: &Judged, judged: &Judged) -> bool {
        let exact = self.settings.exact_ms;
        let longest = exact + exact / 256 + exact / 32;
        !self.rewound && owner.time > 0 && judged.time - owner.time > longest
    }
}
