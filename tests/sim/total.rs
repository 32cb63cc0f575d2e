//! What several histories have counted.

use crate::sim::{Counts, Outcome};

/// The outcomes of several histories.
#[derive(Default)]
pub struct Total {
    pub histories: u64,
    pub counts: Counts,
    pub raw: usize,
    pub clean: usize,
    pub failed: Vec<(u64, Vec<String>)>,
}

impl Total {
    pub fn add(&mut self, seed: u64, outcome: Outcome) {
        self.histories += 1;
        self.raw += outcome.raw;
        self.clean += outcome.clean;
        outcome.counts.into_iter().for_each(|(name, count)| *self.counts.entry(name).or_default() += count);
        if !outcome.violations.is_empty() {
            self.failed.push((seed, outcome.violations));
        }
    }

    pub fn join(mut self, other: Self) -> Self {
        self.histories += other.histories;
        self.raw += other.raw;
        self.clean += other.clean;
        other.counts.into_iter().for_each(|(name, count)| *self.counts.entry(name).or_default() += count);
        self.failed.extend(other.failed);
        self
    }
}

/// The first violations of the first seeds that have some.
pub fn described(failed: &[(u64, Vec<String>)]) -> String {
    let one = |(seed, violations): &(u64, Vec<String>)| {
        let first: Vec<&str> = violations.iter().take(4).map(String::as_str).collect();
        let command = "cargo test --features failpoints --test simulation";
        format!("DEDUPD_SIM_SEED={seed} {command}\n    {}", first.join("\n    "))
    };
    let mut failed: Vec<_> = failed.iter().collect();
    failed.sort_by_key(|(seed, _)| *seed);
    failed.into_iter().take(12).map(one).collect::<Vec<_>>().join("\n")
}
