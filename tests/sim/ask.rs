//! An operator who has identities taken back, and what that promises.

use std::sync::mpsc::{Receiver, Sender, sync_channel};

use dedupd::control::{Answer, Request, RequestError};
use dedupd::dedupe::Offset;
use dedupd::dedupe::{Hasher, IdSource, IdentityRule};

use crate::sim::cluster::Cluster;

/// The channel for the answers to one request.
type Answers = Receiver<Result<Answer, RequestError>>;

/// What was asked, and what came of it.
#[derive(Default)]
pub struct Wishes {
    /// Partition and id of each wish.
    pub asked: Vec<(usize, String)>,
    /// Those that were fulfilled.
    pub fulfilled: Vec<Fulfilled>,
    waiting: Vec<(usize, String, Answers)>,
}

/// An id that was taken back.
pub struct Fulfilled {
    /// Partition.
    pub partition: usize,
    /// Id.
    pub name: String,
    /// Its last owner.
    pub owner: Offset,
    /// Raw records from here on were written after the answer.
    pub from: Offset,
}

/// How the simulated ids become identities, by the number of the rule.
pub fn rule(number: u8) -> IdentityRule {
    let hasher = if number == 0 { Hasher::Xxh3 } else { Hasher::SipHash { key: [number; 16] } };
    IdentityRule::new(vec![IdSource::Key], hasher)
}

impl Wishes {
    /// Now and then somebody wants an id taken back, and asks every worker that listens.
    pub fn wish(&mut self, cluster: &mut Cluster, workers: &[Option<Sender<Request>>]) {
        if cluster.chance.rng.u8(0..10) > 0 {
            return;
        }
        let partition = cluster.chance.rng.usize(0..cluster.raw.len());
        let named: Vec<&String> =
            cluster.raw[partition].records().filter_map(|record| record.key.as_ref()).collect();
        if named.is_empty() {
            return;
        }
        let name = named[cluster.chance.rng.usize(0..named.len())].clone();
        let identity = rule(cluster.rule).identify_texts(&[&name]).unwrap();
        let only = cluster.chance.coin().then(|| u32::try_from(partition).unwrap());
        let (answer, answers) = sync_channel(workers.len());
        for worker in workers.iter().flatten() {
            // One that has died since does not listen.
            worker.send(Request { identity, partition: only, forget: true, answer: answer.clone() }).ok();
        }
        tracing::debug!(partition, name, "asked to forget");
        self.asked.push((partition, name.clone()));
        self.waiting.push((partition, name, answers));
    }

    /// Takes in the answers that came.
    pub fn hear(&mut self, cluster: &Cluster) {
        let fulfilled = &mut self.fulfilled;
        for (partition, name, answers) in &self.waiting {
            for answer in answers.try_iter().flatten() {
                let places = answer.places.iter().filter(|place| place.partition as usize == *partition);
                if let Some(owner) = places.filter_map(|place| place.offset).max() {
                    let from = cluster.raw[*partition].end();
                    tracing::debug!(partition, name, owner, from, "forgotten");
                    fulfilled.push(Fulfilled { partition: *partition, name: name.clone(), owner, from });
                }
            }
        }
    }

    /// How often clean may show an id.
    pub fn most(&self, partition: usize, name: &str) -> usize {
        1 + self.asked.iter().filter(|(at, asked)| *at == partition && asked == name).count()
    }

    /// Ids that were taken back, came again, and were not heard.
    pub fn unheard(&self, cluster: &Cluster) -> Vec<String> {
        let unheard = |wish: &&Fulfilled| {
            let raw = &cluster.raw[wish.partition];
            if !raw.replaced.is_empty() {
                // Offsets do not say which came first.
                return false;
            }
            let again = raw.records().any(|record| {
                record.at.offset >= wish.from && record.name() == wish.name && !record.rejected
            });
            let clean = cluster.clean[wish.partition].ever_committed();
            again && !clean.into_iter().any(|(_, it)| it.name() == wish.name && it.at.offset > wish.owner)
        };
        let wrong = self.fulfilled.iter().filter(unheard);
        wrong
            .map(|wish| format!("taken back and not heard again: id {} owned by {}", wish.name, wish.owner))
            .collect()
    }
}
