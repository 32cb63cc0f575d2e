//! The kinds of records and their settings.

use std::time::Duration;

use crate::config::OnProbable;
use crate::dedupe::{
    Fields, Fingerprint, JournalId, KindId, KindRule, MissingSchema, Schemas, TimeSource, WindowId,
    WindowLimits,
};

/// The settings of one kind.
#[derive(Debug, Clone)]
pub struct Kind {
    /// Its name in metrics and messages; empty for the records that belong to no named kind.
    pub name: String,
    /// The number that stands for its name in window ids; 0 for the unnamed kind.
    pub id: KindId,
    /// Which records belong to it; `None` for the unnamed kind, which has all remaining records.
    pub rule: Option<KindRule>,
    /// For how long its ids are stored; `None` when its records are forwarded without a lookup.
    pub window: Option<WindowLimits>,
    /// Policy for records whose id was probably seen.
    pub on_probable: OnProbable,
}

/// All kinds. The first one is the unnamed kind.
#[derive(Debug, Clone)]
pub struct Kinds(Vec<Kind>);

impl Kinds {
    /// A record belongs to the first kind of `named` whose rule matches it.
    pub fn new(window: WindowLimits, on_probable: OnProbable, named: impl IntoIterator<Item = Kind>) -> Self {
        let unnamed =
            Kind { name: String::new(), id: KindId::UNNAMED, rule: None, window: Some(window), on_probable };
        Self(std::iter::once(unnamed).chain(named).collect())
    }

    /// The number of the kind that a record belongs to. Fails when that cannot be read without a schema that is not known.
    #[inline]
    pub fn number_of<F: Fields>(&self, record: &F, schemas: &Schemas) -> Result<usize, MissingSchema> {
        for (number, kind) in self.0.iter().enumerate().skip(1) {
            if let Some(rule) = &kind.rule
                && rule.takes(record, schemas)?
            {
                return Ok(number);
            }
        }
        Ok(0)
    }

    /// The kind with this number.
    pub fn get(&self, number: usize) -> Option<&Kind> {
        self.0.get(number)
    }

    /// All kinds, by number.
    pub fn iter(&self) -> impl Iterator<Item = &Kind> {
        self.0.iter()
    }

    /// Number of windows of a journal.
    pub fn windows(&self) -> u64 {
        self.0.iter().filter(|kind| kind.window.is_some()).count() as u64
    }

    /// The same kinds with windows without a limit on their number of ids.
    pub(crate) fn unlimited(&self) -> Self {
        let unlimited = |window: WindowLimits| WindowLimits { max_ids: u64::MAX, ..window };
        Self(self.0.iter().map(|kind| Kind { window: kind.window.map(unlimited), ..kind.clone() }).collect())
    }

    /// The windows of a journal. That of the unnamed kind is the last: what the store reports for it applies to all.
    pub fn windows_of(&self, journal: JournalId) -> Vec<WindowId> {
        self.0.iter().rev().filter(|kind| kind.window.is_some()).map(|kind| kind.id.window(journal)).collect()
    }

    /// The identity rule of each window, given the rule `of` for all records.
    pub fn rules(&self, of: Fingerprint) -> Vec<(KindId, Fingerprint)> {
        let with_window = self.0.iter().filter(|kind| kind.window.is_some());
        with_window
            .map(|kind| (kind.id, kind.rule.as_ref().map_or(of, |rule| rule.fingerprint(of))))
            .collect()
    }

    /// One fingerprint of all these rules.
    pub fn fingerprint(&self, of: Fingerprint) -> Fingerprint {
        let rules = self.rules(of);
        let rule_of = |kind: &Kind| rules.iter().find(|(id, _)| *id == kind.id).map(|(_, rule)| *rule);
        let named = self.0.iter().skip(1).filter_map(|kind| Some((kind.name.as_str(), rule_of(kind)?)));
        Fingerprint::of_all(of, &named.collect::<Vec<_>>())
    }

    /// What advances stream time: the same for all windows.
    pub fn time(&self) -> TimeSource {
        self.0.iter().find_map(|kind| kind.window).map_or_else(TimeSource::default, |window| window.time)
    }

    /// The length of the longest window.
    pub fn longest(&self) -> Duration {
        self.0.iter().filter_map(|kind| kind.window).map(|window| window.length()).max().unwrap_or_default()
    }

    /// [`Self::longest`] in milliseconds.
    pub fn longest_ms(&self) -> i64 {
        i64::try_from(self.longest().as_millis()).unwrap_or(i64::MAX)
    }

    /// The name of a kind; `None` for the unnamed one.
    pub fn name_of(&self, id: KindId) -> Option<&str> {
        self.0.iter().skip(1).find(|kind| kind.id == id).map(|kind| kind.name.as_str())
    }
}
