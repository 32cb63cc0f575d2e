//! An operator who forgets ids through the admin API, and the check of what the API promises.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, sync_channel};

use dedupd::control::{Answer, OwnerPlace, Request, RequestError};
use dedupd::dedupe::{Coordinates, Hasher, IdSource, IdentityRule, Offset};

use crate::sim::cluster::Cluster;
use crate::sim::tx_log::TxLog;

/// Receives the answers to one request.
type Answers = Receiver<Result<Answer, RequestError>>;

/// The requests to forget an id, and their results.
#[derive(Default)]
pub struct ForgetRequests {
    sent: Vec<Sent>,
    /// The ids that a worker has forgotten.
    pub forgotten: Vec<Forgotten>,
}

/// A request that was sent to workers.
struct Sent {
    partition: usize,
    name: String,
    /// The last record with the id that readers of clean had seen before the request.
    last: Option<Offset>,
    answers: Answers,
    /// The workers that have it and have not answered that they forgot nothing. Each of them may forget the id: a partition can move
    /// from one that has answered to one that has not.
    may_forget: usize,
}

/// An id that was forgotten.
pub struct Forgotten {
    /// Partition.
    pub partition: usize,
    /// Id.
    pub name: String,
    /// The owner that was forgotten.
    pub owner: Offset,
    /// The end of the raw partition when the answer arrived.
    pub from: Offset,
    /// Whether readers of clean had seen that owner by then.
    pub is_shown: bool,
}

/// The identity rule with this number.
pub fn rule(number: u8) -> IdentityRule {
    let hasher = if number == 0 { Hasher::Xxh3 } else { Hasher::SipHash { key: [number; 16] } };
    IdentityRule::new(vec![IdSource::Key.into()], hasher)
}

/// The offsets of the records of a partition with this id that were forwarded.
fn shown(cluster: &Cluster, partition: usize, name: &str) -> impl Iterator<Item = Offset> {
    let clean = cluster.clean.iter().flat_map(TxLog::ever_committed);
    let records = clean.filter(move |(_, it)| it.name() == name && it.at.partition as usize == partition);
    records.map(|(_, record)| record.at.offset)
}

impl ForgetRequests {
    /// In one of ten steps, requests every running worker to forget an id.
    pub fn send(&mut self, cluster: &mut Cluster, workers: &[Option<Sender<Request>>]) {
        if cluster.chance.rng.u8(0..10) > 0 {
            return;
        }
        let partition = cluster.chance.rng.usize(0..cluster.raw.len());
        let keys: Vec<&String> =
            cluster.raw[partition].records().filter_map(|record| record.key.as_ref()).collect();
        if keys.is_empty() {
            return;
        }
        let name = keys[cluster.chance.rng.usize(0..keys.len())].clone();
        let only = cluster.chance.coin() && cluster.topic_ids.is_none();
        self.send_for(cluster, workers, (partition, name), only);
    }

    /// Requests every running worker to forget an id, in one partition only or in all of them.
    pub fn send_for(
        &mut self,
        cluster: &Cluster,
        workers: &[Option<Sender<Request>>],
        (partition, name): (usize, String),
        only: bool,
    ) {
        let identity = rule(cluster.rule).identify_texts(&[&name]).unwrap();
        let only = only.then(|| u32::try_from(partition).unwrap());
        let (answer, answers) = sync_channel(workers.len());
        let abandoned = Arc::default();
        let request = || Request {
            identity,
            partition: only,
            forget: true,
            answer: answer.clone(),
            abandoned: Arc::clone(&abandoned),
        };
        // The send to a worker that has ended fails.
        let may_forget = workers.iter().flatten().filter(|worker| worker.send(request()).is_ok()).count();
        tracing::debug!(partition, name, "forget requested");
        let last = shown(cluster, partition, &name).max();
        self.sent.push(Sent { partition, name, last, answers, may_forget });
    }

    /// Receives the answers that have arrived.
    pub fn receive(&mut self, cluster: &Cluster) {
        let forgotten = &mut self.forgotten;
        for Sent { partition, name, last, answers, may_forget } in &mut self.sent {
            for answer in answers.try_iter() {
                let Some(answer) = answer.ok().filter(|answer| !answer.places.is_empty()) else {
                    *may_forget -= 1;
                    continue;
                };
                let is_in = |it: &&OwnerPlace| it.partition.is_none_or(|id| id as usize == *partition);
                let places = || answer.places.iter().filter(is_in);
                let in_filter = places().any(|place| place.offset.is_none());
                // A filter does not have the owner. A record after the request may be forwarded because the id was forgotten.
                let last = last.filter(|_| in_filter);
                if let Some(owner) = places().filter_map(|place| place.offset).max().or(last) {
                    let from = cluster.raw[*partition].end();
                    tracing::debug!(partition, name, owner, from, "forgotten");
                    let (partition, name) = (*partition, name.clone());
                    let is_shown = shown(cluster, partition, &name).any(|at| at == owner);
                    forgotten.push(Forgotten { partition, name, owner, from, is_shown });
                }
            }
        }
    }

    /// How often the clean topic may contain an id.
    pub fn copies_max(&self, partition: usize, name: &str) -> usize {
        let sent = self.sent.iter().filter(|sent| sent.partition == partition && sent.name == name);
        1 + sent.map(|sent| sent.may_forget).sum::<usize>()
    }

    /// How often the clean topic may contain an id, in all partitions.
    pub fn copies_anywhere_max(&self, name: &str) -> usize {
        1 + self.sent.iter().filter(|sent| sent.name == name).map(|sent| sent.may_forget).sum::<usize>()
    }

    /// Violations: ids that were forgotten, and the owner was that of a transaction that had no effect.
    pub fn not_shown(&self) -> Vec<String> {
        let wrong = self.forgotten.iter().filter(|request| !request.is_shown);
        wrong
            .map(|it| format!("forgotten and never forwarded: id {} owned by {}", it.name, it.owner))
            .collect()
    }

    /// Violations: ids that were forgotten, were produced again and were not forwarded again.
    pub fn not_forwarded_again(&self, cluster: &Cluster) -> Vec<String> {
        let is_missing = |request: &&Forgotten| {
            let raw = &cluster.raw[request.partition];
            if !raw.replaced.is_empty() {
                // The log was truncated: offsets do not give the order of records.
                return false;
            }
            let produced_again = raw.records().any(|record| {
                record.at.offset >= request.from && record.name() == request.name && !record.rejected
            });
            let is_after = |at: Coordinates| {
                // A copy in another partition may be forwarded in its place.
                let is_here = at.partition as usize == request.partition;
                if is_here { at.offset > request.owner } else { cluster.topic_ids.is_some() }
            };
            let mut clean = cluster.clean.iter().flat_map(TxLog::ever_committed);
            produced_again && !clean.any(|(_, it)| it.name() == request.name && is_after(it.at))
        };
        let wrong = self.forgotten.iter().filter(is_missing);
        wrong
            .map(|request| {
                format!("forgotten and not forwarded again: id {} owned by {}", request.name, request.owner)
            })
            .collect()
    }
}
