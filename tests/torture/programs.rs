//! Other programs that use transactions: producers of raw, and writers of the clean topic and the side topics.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::{Scope, ScopedJoinHandle};

use super::program::{Ending, Program};
use super::recipe::Recipe;
use super::rekeyed;
use super::sides;
use super::sources::{Foreign, Hostile, Laggard, Source, Upstream};
use super::support::load::StreamClock;
use super::support::{Kafka, Pipe};

/// Counts of transactions by their end, and of written records.
#[derive(Debug, Default)]
pub struct Counts {
    endings: [AtomicUsize; 4],
    written: AtomicUsize,
}

impl Counts {
    pub fn add(&self, ending: Ending, records: usize) {
        self.endings[ending as usize].fetch_add(1, Ordering::Relaxed);
        self.written.fetch_add(records, Ordering::Relaxed);
    }

    /// The numbers of transactions that were committed, aborted, fenced and expired.
    pub fn by_end(&self) -> [usize; 4] {
        self.endings.each_ref().map(|count| count.load(Ordering::Relaxed))
    }

    /// Whether transactions were committed and aborted.
    pub fn both(&self) -> bool {
        let [committed, aborted, ..] = self.by_end();
        committed > 0 && aborted > 0
    }

    /// Number of transactions whose program did not end them.
    pub fn left_open(&self) -> usize {
        let [_, _, fenced, expired] = self.by_end();
        fenced + expired
    }
}

/// The counts of the programs that write to raw, to clean, and to the side topics, and of those that are hostile or hold a partition.
#[derive(Clone, Debug, Default)]
pub struct AllCounts {
    pub raw: Arc<Counts>,
    pub clean: Arc<Counts>,
    pub sides: Arc<Counts>,
    pub hostile: Arc<Counts>,
    pub lag: Arc<Counts>,
}

/// A transactional id, what is written, and its counts.
type Kind<'a> = (String, Box<dyn Source>, &'a Arc<Counts>);

/// The running programs of a round. They stop when this is dropped.
pub struct Programs<'scope> {
    stop: Arc<AtomicBool>,
    threads: Vec<ScopedJoinHandle<'scope, ()>>,
    counts: AllCounts,
}

impl<'scope> Programs<'scope> {
    pub fn start<'env>(
        scope: &'scope Scope<'scope, 'env>,
        (pipe, nodes): (&'env Pipe<'env>, &'env [Kafka]),
        recipe: &Recipe,
        clock: Option<&StreamClock>,
    ) -> Self {
        let counts = AllCounts::default();
        let mut all: Vec<Kind<'_>> = Vec::new();
        for number in 0..recipe.upstreams {
            let source = Upstream::new(rekeyed::loaded_topics(pipe, recipe), number, recipe.copies());
            all.push((format!("upstream.{number}"), Box::new(source), &counts.raw));
        }
        for number in 0..recipe.foreign {
            let source = Foreign::in_clean(&pipe.clean);
            all.push((format!("foreign.clean.{number}"), Box::new(source), &counts.clean));
            if recipe.side_partitions == 0 {
                continue;
            }
            let source = Foreign::in_sides(sides::topics(pipe), recipe.side_partitions);
            all.push((format!("foreign.sides.{number}"), Box::new(source), &counts.sides));
        }
        for number in 0..recipe.hostile {
            let source = Hostile::new(pipe.raw.clone(), clock.cloned());
            all.push((format!("hostile.{number}"), Box::new(source), &counts.hostile));
        }
        if let Some(clock) = clock {
            let source = Laggard::new(pipe.raw.clone(), 0, clock.clone());
            all.push(("laggard".to_owned(), Box::new(source), &counts.lag));
        }
        let stop = Arc::new(AtomicBool::new(false));
        let start = |(at, (id, source, counts)): (u64, Kind<'_>)| {
            let mut program = Program {
                nodes,
                config: pipe.kafka.client_config(),
                id,
                source,
                ended: 0,
                random: fastrand::Rng::with_seed(recipe.seed ^ (at << 48)),
                stop: Arc::clone(&stop),
                counts: Arc::clone(counts),
            };
            scope.spawn(move || program.run())
        };
        let threads = (1..).zip(all).map(start).collect();
        Self { stop, threads, counts }
    }

    /// Number of records that were written to raw or the source topics, whatever the outcome.
    pub fn written(&self) -> u64 {
        let Self { counts, .. } = self;
        let of_raw = [&counts.raw, &counts.hostile, &counts.lag];
        of_raw.iter().map(|counts| counts.written.load(Ordering::Relaxed) as u64).sum()
    }

    /// Ends all programs and all their transactions. The brokers must be running or starting.
    pub fn finish(mut self) -> AllCounts {
        self.stop.store(true, Ordering::Relaxed);
        for thread in std::mem::take(&mut self.threads) {
            thread.join().expect("a program with transactions");
        }
        self.counts.clone()
    }
}

impl Drop for Programs<'_> {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}
