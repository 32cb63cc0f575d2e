//! What came of a round, for people and for programs.

use std::any::Any;
use std::fmt::{self, Write as _};
use std::fs::File;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::json;

use super::faults::Deeds;
use super::recipe::Recipe;
use super::round::RECOVERY;
use super::support::Findings;

#[derive(Clone, Debug)]
pub struct Verdict {
    recipe: Recipe,
    pub replay: String,
    pub deeds: Deeds,
    pub sent: u64,
    /// Raw records that were never committed.
    pub unread: i64,
    pub findings: Findings,
    /// From the last fault until everything was committed.
    pub recovery: Option<Duration>,
    /// Intervals between kills in which transactions committed.
    pub between: usize,
    /// Torn transactions that instances saw.
    pub torn: usize,
    pub problems: Vec<String>,
    pub logs: Option<PathBuf>,
}

impl Verdict {
    pub fn of(recipe: &Recipe) -> Self {
        Self {
            recipe: recipe.clone(),
            replay: recipe.replay(),
            deeds: Deeds::default(),
            sent: 0,
            unread: 0,
            findings: Findings::default(),
            recovery: None,
            between: 0,
            torn: 0,
            problems: Vec::new(),
            logs: None,
        }
    }

    /// A round that did not come to its end.
    pub fn of_panic(recipe: &Recipe, panic: &(dyn Any + Send)) -> Self {
        let text = panic.downcast_ref::<String>().cloned();
        let text = text.or_else(|| panic.downcast_ref::<&str>().map(ToString::to_string));
        let problem = format!("the round broke off: {}", text.unwrap_or_default());
        Self { problems: vec![problem], ..Self::of(recipe) }
    }

    /// What is wrong, and why the round proves nothing.
    fn faults(&self) -> Vec<String> {
        let mut found = self.problems.clone();
        if !self.findings.is_clean() {
            found.push(format!("not exact: {:?}", self.findings));
        }
        match self.recovery {
            Some(took) if took <= RECOVERY => {}
            Some(took) => found.push(format!("late: everything was committed only after {took:.1?}")),
            None => found.push(format!("stuck: {} records are unread", self.unread)),
        }
        found.extend(self.deeds.exits.iter().map(|exit| format!("ended by itself: {exit}")));
        found
    }

    /// What a round must have seen to count.
    fn missing(&self) -> Vec<&'static str> {
        let Deeds { instance_kills, broker_kills, open, kills_ms, .. } = &self.deeds;
        [
            (*instance_kills > 0, "no instance was killed"),
            (*broker_kills > 0, "no broker was killed"),
            (*open > 0, "no kill was inside an open transaction"),
            (self.between >= 1.max(kills_ms.len() / 5), "hardly anything was committed between kills"),
            (self.findings.raw > 0, "there were no records"),
            (self.findings.repeats > 0, "there were no repeats"),
        ]
        .into_iter()
        .filter_map(|(seen, missing)| (!seen).then_some(missing))
        .collect()
    }

    pub fn passed(&self) -> bool {
        self.faults().is_empty() && self.missing().is_empty()
    }

    fn word(&self) -> &'static str {
        match (self.faults().is_empty(), self.missing().is_empty()) {
            (true, true) => "exact",
            (true, false) => "void",
            (false, _) => "FAILED",
        }
    }

    /// One more line in the file of results.
    pub fn append_to(&self, path: &Path) {
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        let mut file = File::options().create(true).append(true).open(path).unwrap();
        writeln!(file, "{}", self.to_json()).unwrap();
    }

    fn to_json(&self) -> serde_json::Value {
        let Recipe { seed, duration, instances, workers, brokers, rate, cleanup_ms, pause_ms } = &self.recipe;
        let Findings { lost, duplicated, out_of_order, altered, phantom, raw, repeats, .. } = &self.findings;
        let deeds = &self.deeds;
        json!({
            "seed": seed, "seconds": duration.as_secs(), "instances": instances, "workers": workers,
            "brokers": brokers, "rate": rate, "cleanup_ms": cleanup_ms, "pause_ms": pause_ms,
            "verdict": self.word(), "problems": self.faults(), "missing": self.missing(),
            "records": raw, "repeats": repeats, "lost": lost, "duplicated": duplicated,
            "out_of_order": out_of_order, "altered": altered, "phantom": phantom, "unread": self.unread,
            "recovery_seconds": self.recovery.map(|took| took.as_secs_f64()),
            "instance_kills": deeds.instance_kills, "instance_freezes": deeds.instance_freezes,
            "broker_kills": deeds.broker_kills, "broker_freezes": deeds.broker_freezes,
            "kills_in_open_transactions": deeds.open, "intervals_with_commits": self.between,
            "torn_transactions": self.torn, "exits": deeds.exits.len(), "replay": self.replay,
        })
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let deeds = &self.deeds;
        let Findings { raw, repeats, .. } = &self.findings;
        let recovery = self.recovery.map_or("no".to_owned(), |took| format!("{:.1} s", took.as_secs_f64()));
        write!(
            f,
            "seed {}: {}; instances killed {} (open transaction {}) and frozen {}, brokers killed {} and \
             frozen {}; commits in {} of {} intervals; {raw} records, {repeats} repeats, {} torn; recovery {recovery}",
            self.recipe.seed,
            self.word(),
            deeds.instance_kills,
            deeds.open,
            deeds.instance_freezes,
            deeds.broker_kills,
            deeds.broker_freezes,
            self.between,
            deeds.kills_ms.len().saturating_sub(1),
            self.torn,
        )?;
        let wrong = self.faults().into_iter().chain(self.missing().into_iter().map(str::to_owned));
        wrong.into_iter().try_for_each(|line| write!(f, "\n  {line}"))?;
        if self.passed() {
            return Ok(());
        }
        self.logs.iter().try_for_each(|logs| write!(f, "\n  logs: {}", logs.display()))?;
        write!(f, "\n  replay: {}", self.replay)
    }
}

/// One line for all rounds.
pub fn summary(verdicts: &[Verdict]) -> String {
    let count = |word: &str| verdicts.iter().filter(|verdict| verdict.word() == word).count();
    let sum = |of: fn(&Verdict) -> usize| verdicts.iter().map(of).sum::<usize>();
    let slowest = verdicts.iter().filter_map(|verdict| verdict.recovery).max().unwrap_or_default();
    let mut text = String::new();
    let line = write!(
        text,
        "{} rounds: {} exact, {} failed, {} void; {} instances and {} brokers killed, {} and {} frozen; \
         {} records, {} repeats; slowest recovery {:.1} s",
        verdicts.len(),
        count("exact"),
        count("FAILED"),
        count("void"),
        sum(|it| it.deeds.instance_kills),
        sum(|it| it.deeds.broker_kills),
        sum(|it| it.deeds.instance_freezes),
        sum(|it| it.deeds.broker_freezes),
        sum(|it| it.findings.raw),
        sum(|it| it.findings.repeats),
        slowest.as_secs_f64(),
    );
    line.unwrap();
    text
}
