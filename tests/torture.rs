//! Random kills and freezes of instances and brokers under load on a real Apache Kafka: the result is exactly once,
//! and every instance recovers by itself.
//!
//! `cargo test` runs one short round. `make torture` runs many long ones. [`recipe::Plan`] documents its variables.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    reason = "a test fails by panicking"
)]

#[path = "torture/evidence.rs"]
mod evidence;
#[path = "torture/faults.rs"]
mod faults;
#[path = "torture/program.rs"]
mod program;
#[path = "torture/programs.rs"]
mod programs;
#[path = "torture/progress.rs"]
mod progress;
#[path = "torture/recipe.rs"]
mod recipe;
#[path = "torture/round.rs"]
mod round;
#[path = "torture/sides.rs"]
mod sides;
#[path = "torture/sources.rs"]
mod sources;
mod support;
#[path = "torture/verdict.rs"]
mod verdict;

use recipe::{Plan, Recipe};
use verdict::Verdict;

#[test]
fn random_faults_lose_and_duplicate_nothing_and_every_partition_recovers() {
    let plan = Plan::from_environment();
    let mut verdicts = Vec::new();
    for seed in plan.seeds() {
        let recipe = Recipe::of(seed, &plan);
        println!("{recipe}");
        let verdict = std::panic::catch_unwind(|| round::run(&recipe, &plan.dir))
            .unwrap_or_else(|panic| Verdict::of_panic(&recipe, panic.as_ref()));
        verdict.append_to(&plan.dir.join("rounds.jsonl"));
        println!("{verdict}");
        verdicts.push(verdict);
    }
    println!("{}", verdict::summary(&verdicts));
    let failed: Vec<&Verdict> = verdicts.iter().filter(|verdict| !verdict.passed()).collect();
    assert!(!verdicts.is_empty() && failed.is_empty(), "{} rounds failed:\n{}", failed.len(), {
        let lines: Vec<String> = failed.iter().map(|verdict| format!("replay: {}", verdict.replay)).collect();
        lines.join("\n")
    });
}
