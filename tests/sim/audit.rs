//! Compares the clean topic with the raw topic. The audit does not depend on how the worker works.

use std::collections::BTreeMap;

use dedupd::dedupe::Offset;

use crate::sim::cluster::Cluster;
use crate::sim::operator::ForgetRequests;

/// Compares clean with raw, partition by partition. With `forgets`, a window may forward an id more than once.
/// Returns the violations and the number of such records.
pub fn audit(cluster: &Cluster, requests: &ForgetRequests, forgets: bool) -> (Vec<String>, u64) {
    let (mut wrong, mut repeated) = (Vec::new(), 0);
    for partition in 0..cluster.raw.len() {
        wrong.extend(audit_partition(cluster, partition, (requests, forgets), &mut repeated));
    }
    // A shorter exact window leaves older ids in stored blocks, where a longer one finds them.
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
