//! Compares the clean topic with the raw topic. The audit does not depend on how the worker works.

use std::collections::{BTreeMap, BTreeSet};

use dedupd::dedupe::Offset;

use crate::sim::chance::Fault;
use crate::sim::cluster::Cluster;
use crate::sim::operator::ForgetRequests;
use crate::sim::raw::RawLog;

/// Compares clean with raw, partition by partition. With `forgets`, a window may forward an id more than once.
/// Returns the violations and the number of such records.
pub fn audit(cluster: &Cluster, requests: &ForgetRequests, forgets: bool) -> (Vec<String>, u64) {
    let (mut wrong, mut repeated) = (Vec::new(), 0);
    if cluster.topic_ids.is_some() {
        wrong.extend(audit_topic(cluster, (requests, forgets), &mut repeated));
    } else {
        for partition in 0..cluster.raw.len() {
            wrong.extend(audit_partition(cluster, partition, (requests, forgets), &mut repeated));
        }
    }
    wrong.extend(requests.not_shown());
    // A shorter exact window leaves older ids in stored runs, where a longer one finds them.
    wrong.extend(requests.not_forwarded_again(cluster).into_iter().filter(|_| !cluster.shortened));
    (wrong, repeated)
}

fn audit_partition(
    cluster: &Cluster,
    partition: usize,
    (requests, forgets): (&ForgetRequests, bool),
    repeated: &mut u64,
) -> Vec<String> {
    let raw = &cluster.raw[partition];
    let mut firsts: BTreeMap<&str, Offset> = BTreeMap::new();
    for record in raw.records().filter(|record| !record.rejected) {
        firsts.entry(record.name()).or_insert(record.at.offset);
    }
    let mut wrong = Vec::new();
    let mut seen: BTreeMap<&str, usize> = BTreeMap::new();
    let mut last = None;
    for (at, clean) in cluster.clean[partition].ever_committed() {
        let name = clean.name();
        let mut report = |what: &str| {
            wrong.push(format!("{what}: id {name} of raw {} at clean {partition}@{at}", clean.at));
        };
        let Some(original) = raw.history.get(&clean.value).filter(|record| !record.rejected) else {
            report("phantom");
            continue;
        };
        if original != clean {
            report("altered");
        }
        let times = seen.entry(name).or_default();
        *times += 1;
        let is_repeated =
            *times > requests.copies_max(partition, name) + raw.replaced.get(name).copied().unwrap_or(0);
        *repeated += u64::from(is_repeated && forgets);
        if is_repeated && !forgets {
            report("duplicated");
        }
        if last.is_some_and(|last| last >= original.number) {
            report("out of order");
        }
        last = Some(original.number);
        // In a log with holes, a later copy may be forwarded in place of the first one.
        if !raw.holed && *times == 1 && firsts.get(name) != Some(&original.at.offset) {
            report("not the first");
        }
    }
    let lost = firsts.iter().filter(|(name, _)| !seen.contains_key(**name));
    wrong.extend(lost.map(|(name, offset)| format!("lost: id {name} of raw {partition}@{offset}")));
    wrong
}

/// In topic scope: each id once in all partitions, and each record in its partition, in the order of raw.
fn audit_topic(
    cluster: &Cluster,
    (requests, forgets): (&ForgetRequests, bool),
    repeated: &mut u64,
) -> Vec<String> {
    let mut wrong = Vec::new();
    let mut seen: BTreeMap<&str, usize> = BTreeMap::new();
    let is_torn = cluster.chance.counts().contains_key(Fault::TornClean.name());
    let replaced = |name: &str| cluster.raw.iter().filter_map(|raw| raw.replaced.get(name)).sum::<usize>();
    for (partition, raw) in cluster.raw.iter().enumerate() {
        let mut firsts: BTreeMap<&str, Offset> = BTreeMap::new();
        for record in raw.records().filter(|record| !record.rejected) {
            firsts.entry(record.name()).or_insert(record.at.offset);
        }
        let (mut last, mut seen_here) = (None, BTreeSet::new());
        for (at, clean) in cluster.clean[partition].ever_committed() {
            let name = clean.name();
            let mut report = |what: &str| {
                wrong.push(format!("{what}: id {name} of raw {} at clean {partition}@{at}", clean.at));
            };
            let Some(original) = raw.history.get(&clean.value).filter(|record| !record.rejected) else {
                report("phantom");
                continue;
            };
            if original != clean {
                report("altered");
            }
            let times = seen.entry(name).or_default();
            *times += 1;
            let is_repeated = *times > requests.copies_anywhere_max(name) + replaced(name);
            *repeated += u64::from(is_repeated && forgets);
            if is_repeated && !forgets {
                report("duplicated");
            }
            if last.is_some_and(|last| last >= original.number) {
                report("out of order");
            }
            last = Some(original.number);
            // An earlier record may have been dropped as a copy of one in another partition that was forgotten, lost, or undone by
            // a missing clean marker since.
            let is_simple = !is_torn
                && !raw.holed
                && !forgets
                && requests.copies_anywhere_max(name) + replaced(name) == 1;
            if is_simple && seen_here.insert(name) && firsts.get(name) != Some(&original.at.offset) {
                report("not the first");
            }
        }
    }
    let all = cluster.raw.iter().flat_map(RawLog::records).filter(|record| !record.rejected);
    let lost = all.filter(|record| !seen.contains_key(record.name()) && !is_excused(cluster, record.name()));
    wrong.extend(lost.map(|record| format!("lost: id {} of raw {}", record.name(), record.at)));
    wrong
}

/// A record was dropped as a copy of one in another partition, and both were in a transaction whose clean marker is missing there.
/// That record is read again, unless compaction has removed it before.
pub fn is_excused(cluster: &Cluster, name: &str) -> bool {
    let is_removed = |raw: &RawLog| {
        let left = raw.records().filter(|record| record.name() == name).count();
        raw.holed && raw.history.values().filter(|record| record.name() == name).count() > left
    };
    cluster.chance.counts().contains_key(Fault::TornClean.name()) && cluster.raw.iter().any(is_removed)
}
