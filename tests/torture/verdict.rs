//! The result of a round, as text and as JSON.

use std::any::Any;
use std::fmt::{self, Write as _};
use std::fs::File;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::json;

use super::evidence::Hidden;
use super::faults::FaultCounts;
use super::programs::AllCounts;
use super::recipe::Recipe;
use super::rekeyed::RekeyCounts;
use super::round::RECOVERY;
use super::sides::SideFindings;
use super::support::{Findings, Scope};

#[derive(Clone, Debug)]
pub struct Verdict {
    recipe: Recipe,
    pub replay: String,
    pub counts: FaultCounts,
    pub sent: u64,
    /// Raw records that were never committed.
    pub unread: i64,
    /// Records of the source topics that `rekey` has not committed.
    pub unread_sources: u64,
    pub findings: Findings,
    /// The comparison of the source topics of `rekey` with clean.
    pub chain: Findings,
    pub sides: SideFindings,
    /// How often instances began to write to a side topic outside of transactions.
    pub rewrites: usize,
    /// Transactions of other programs.
    pub programs: AllCounts,
    pub hidden: Hidden,
    /// Time from the last fault until everything was committed.
    pub recovery: Option<Duration>,
    /// Intervals between kills in which transactions committed.
    pub between: usize,
    /// Torn transactions that instances found.
    pub torn: usize,
    pub problems: Vec<String>,
    pub logs: Option<PathBuf>,
}

impl Verdict {
    pub fn of(recipe: &Recipe) -> Self {
        Self {
            recipe: recipe.clone(),
            replay: recipe.replay(),
            counts: FaultCounts::default(),
            sent: 0,
            unread: 0,
            unread_sources: 0,
            findings: Findings::default(),
            chain: Findings::default(),
            sides: SideFindings::default(),
            rewrites: 0,
            programs: AllCounts::default(),
            hidden: Hidden::default(),
            recovery: None,
            between: 0,
            torn: 0,
            problems: Vec::new(),
            logs: None,
        }
    }

    /// The verdict of a round that panicked.
    pub fn of_panic(recipe: &Recipe, panic: &(dyn Any + Send)) -> Self {
        let text = panic.downcast_ref::<String>().cloned();
        let text = text.or_else(|| panic.downcast_ref::<&str>().map(ToString::to_string));
        let problem = format!("the round panicked: {}", text.unwrap_or_default());
        Self { problems: vec![problem], ..Self::of(recipe) }
    }

    /// The errors of the round.
    fn faults(&self) -> Vec<String> {
        let mut found = self.problems.clone();
        if !self.findings.is_clean() {
            found.push(format!("not exactly once: {:?}", self.findings));
        }
        if !self.chain.is_clean() {
            found.push(format!("not exactly once from the source topics: {:?}", self.chain));
        }
        if !self.sides.is_clean(self.rewrites) {
            found.push(format!(
                "side topics, {} times outside of transactions: {:?}",
                self.rewrites, self.sides
            ));
        }
        match self.recovery {
            Some(took) if took <= RECOVERY => {}
            Some(took) => found.push(format!("late: everything was committed only after {took:.1?}")),
            None => found.push(format!(
                "stuck: {} records of raw and {} of source topics are unread",
                self.unread, self.unread_sources
            )),
        }
        found.extend(self.counts.exits.iter().map(|exit| format!("unexpected exit: {exit}")));
        found
    }

    /// The missing events without which a round is not valid.
    fn missing(&self) -> Vec<&'static str> {
        let FaultCounts { instance_kills, broker_kills, open, kills_ms, .. } = &self.counts;
        let AllCounts { raw, clean, .. } = &self.programs;
        let (recipe, without_rekey) = (&self.recipe, self.recipe.rekeys == 0);
        // In topic scope about half of the kills hit spares, which have no transaction: a short round may have no other.
        let has_many_kills = recipe.scope == Scope::Partition || *instance_kills >= 8;
        let (upstream, foreign, sides) =
            (recipe.upstreams > 0, recipe.foreign > 0, recipe.side_partitions > 0);
        [
            (*instance_kills > 0, "no instance was killed"),
            (*broker_kills > 0, "no broker was killed"),
            (*open > 0 || !has_many_kills, "no instance was killed with an open transaction"),
            (self.between >= 1.max(kills_ms.len() / 5), "too few commits between kills"),
            (self.findings.raw > 0, "no records"),
            (self.findings.repeats > 0, "no repeats"),
            (
                recipe.scope == Scope::Partition || self.findings.elsewhere > 0,
                "no repeats in other partitions",
            ),
            (without_rekey || self.counts.rekeys.kills > 0, "no rekey process was killed"),
            (without_rekey || self.chain.elsewhere > 0, "no repeats in other source partitions"),
            (without_rekey || self.rekey_copies() > 0, "rekey wrote no record twice"),
            (!upstream || raw.both(), "no upstream committed and aborted transactions"),
            (!upstream || raw.left_open() > 0, "no upstream left a transaction open"),
            (!upstream || self.hidden.raw > 0, "no uncommitted records in raw"),
            (!foreign || clean.by_end().iter().sum::<usize>() > 0, "no foreign transactions in clean"),
            (!foreign || self.hidden.clean > 0, "no foreign records in clean"),
            (recipe.hostile == 0 || self.programs.hostile.by_end()[0] > 0, "no crafted ids in raw"),
            (!recipe.lags || self.programs.lag.by_end()[0] > 0, "no partition lagged"),
            (!sides || self.sides.records > 0, "no records in side topics"),
            (!sides || !foreign || self.sides.foreign > 0, "no foreign records in side topics"),
        ]
        .into_iter()
        .filter_map(|(seen, missing)| (!seen).then_some(missing))
        .collect()
    }

    /// Records of raw beyond those of the source topics.
    fn rekey_copies(&self) -> usize {
        if self.recipe.rekeys == 0 { 0 } else { self.findings.raw.saturating_sub(self.chain.raw) }
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

    /// Appends a line to the file of results.
    pub fn append_to(&self, path: &Path) {
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        let mut file = File::options().create(true).append(true).open(path).unwrap();
        writeln!(file, "{}", self.to_json()).unwrap();
    }

    fn to_json(&self) -> serde_json::Value {
        let Recipe { seed, duration, instances, workers, brokers, rate, cleanup_ms, pause_ms, .. } =
            &self.recipe;
        let Recipe { upstreams, foreign, side_partitions, scope, rekeys, .. } = &self.recipe;
        let Findings { lost, duplicated, out_of_order, altered, phantom, raw, repeats, elsewhere, .. } =
            &self.findings;
        let counts = &self.counts;
        json!({
            "seed": seed, "scope": scope.name(), "seconds": duration.as_secs(), "instances": instances, "workers": workers,
            "brokers": brokers, "rate": rate, "cleanup_ms": cleanup_ms, "pause_ms": pause_ms,
            "verdict": self.word(), "problems": self.faults(), "missing": self.missing(),
            "records": raw, "repeats": repeats, "elsewhere": elsewhere, "lost": lost, "duplicated": duplicated,
            "out_of_order": out_of_order, "altered": altered, "phantom": phantom, "unread": self.unread,
            "recovery_seconds": self.recovery.map(|took| took.as_secs_f64()),
            "instance_kills": counts.instance_kills, "instance_freezes": counts.instance_freezes,
            "instance_stops": counts.instance_stops,
            "broker_kills": counts.broker_kills, "broker_freezes": counts.broker_freezes,
            "kills_in_open_transactions": counts.open, "intervals_with_commits": self.between,
            "upstreams": upstreams, "foreign": foreign, "side_partitions": side_partitions,
            "transactions": self.transactions_json(),
            "sides": self.sides_json(),
            "rekeys": rekeys, "rekey": self.rekey_json(),
            "torn_transactions": self.torn, "exits": counts.exits.len(), "replay": self.replay,
        })
    }

    fn transactions_json(&self) -> serde_json::Value {
        let AllCounts { raw, clean, sides, hostile, lag } = &self.programs;
        json!({
            "upstream": raw.by_end(), "foreign_in_clean": clean.by_end(), "foreign_in_side_topics": sides.by_end(),
            "hostile": hostile.by_end(), "laggard": lag.by_end(),
        })
    }

    fn sides_json(&self) -> serde_json::Value {
        let SideFindings { lost, twice, unexpected, outside, records, foreign } = &self.sides;
        json!({
            "records": records, "foreign": foreign, "lost": lost, "twice": twice, "unexpected": unexpected, "outside": outside,
            "rewrites": self.rewrites,
        })
    }

    fn rekey_json(&self) -> serde_json::Value {
        let Findings { lost, duplicated, out_of_order, altered, phantom, raw, repeats, elsewhere, .. } =
            &self.chain;
        let RekeyCounts { kills, freezes, stops } = &self.counts.rekeys;
        json!({
            "kills": kills, "freezes": freezes, "stops": stops, "copies": self.rekey_copies(),
            "unread": self.unread_sources, "records": raw, "repeats": repeats, "elsewhere": elsewhere, "lost": lost,
            "duplicated": duplicated, "out_of_order": out_of_order, "altered": altered, "phantom": phantom,
        })
    }

    fn rekey_text(&self) -> String {
        let RekeyCounts { kills, freezes, stops } = &self.counts.rekeys;
        let Findings { raw, repeats, elsewhere, .. } = &self.chain;
        format!(
            "; rekey killed {kills}, frozen {freezes} and stopped {stops}, {} copies; {raw} source records, {repeats} repeats, \
             {elsewhere} of them in other partitions",
            self.rekey_copies()
        )
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let counts = &self.counts;
        let Findings { raw, repeats, elsewhere, .. } = &self.findings;
        let recovery = self.recovery.map_or("no".to_owned(), |took| format!("{:.1} s", took.as_secs_f64()));
        write!(
            f,
            "seed {}: {}; instances killed {} (open transaction {}), frozen {} and stopped {}, brokers killed {} and \
             frozen {}; commits in {} of {} intervals; {raw} records, {repeats} repeats, {elsewhere} of them in other partitions, {} torn; \
             transactions committed, aborted, fenced, expired: upstream {:?}, hostile {:?}, laggard {:?}, foreign in clean {:?}, in side topics {:?}; \
             {} side records ({} of them further ones outside of transactions); recovery {recovery}",
            self.recipe.seed,
            self.word(),
            counts.instance_kills,
            counts.open,
            counts.instance_freezes,
            counts.instance_stops,
            counts.broker_kills,
            counts.broker_freezes,
            self.between,
            counts.kills_ms.len().saturating_sub(1),
            self.torn,
            self.programs.raw.by_end(),
            self.programs.hostile.by_end(),
            self.programs.lag.by_end(),
            self.programs.clean.by_end(),
            self.programs.sides.by_end(),
            self.sides.records,
            self.sides.outside,
        )?;
        if self.recipe.rekeys > 0 {
            f.write_str(&self.rekey_text())?;
        }
        let wrong = self.faults().into_iter().chain(self.missing().into_iter().map(str::to_owned));
        wrong.into_iter().try_for_each(|line| write!(f, "\n  {line}"))?;
        if self.passed() {
            return Ok(());
        }
        self.logs.iter().try_for_each(|logs| write!(f, "\n  logs: {}", logs.display()))?;
        write!(f, "\n  replay: {}", self.replay)
    }
}

/// The summary line of all rounds.
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
        sum(|it| it.counts.instance_kills),
        sum(|it| it.counts.broker_kills),
        sum(|it| it.counts.instance_freezes),
        sum(|it| it.counts.broker_freezes),
        sum(|it| it.findings.raw),
        sum(|it| it.findings.repeats),
        slowest.as_secs_f64(),
    );
    line.unwrap();
    text
}
