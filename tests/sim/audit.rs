//! What came out against what went in. Knows nothing of how it was done.

use std::collections::BTreeMap;

use dedupd::dedupe::Offset;

use crate::sim::ask::Wishes;
use crate::sim::cluster::Cluster;

/// Compares clean with raw, partition by partition. A window that `forgets` may let an id through again;
/// gives how often it did.
pub fn audit(cluster: &Cluster, wishes: &Wishes, forgets: bool) -> (Vec<String>, u64) {
    let (mut wrong, mut repeated) = (Vec::new(), 0);
    for partition in 0..cluster.raw.len() {
        wrong.extend(audit_partition(cluster, partition, (wishes, forgets), &mut repeated));
    }
    // What a shorter exact window does not have stays in stored blocks, where a longer one finds it.
    wrong.extend(wishes.unheard(cluster).into_iter().filter(|_| !cluster.shortened));
    (wrong, repeated)
}

fn audit_partition(
    cluster: &Cluster,
    partition: usize,
    (wishes, forgets): (&Wishes, bool),
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
        let mut tell = |what: &str| {
            wrong.push(format!("{what}: id {name} of raw {} at clean {partition}@{at}", clean.at));
        };
        let Some(original) = raw.history.get(&clean.value).filter(|record| !record.rejected) else {
            tell("phantom");
            continue;
        };
        if original != clean {
            tell("altered");
        }
        let times = seen.entry(name).or_default();
        *times += 1;
        let again = *times > wishes.most(partition, name) + raw.replaced.get(name).copied().unwrap_or(0);
        *repeated += u64::from(again && forgets);
        if again && !forgets {
            tell("duplicated");
        }
        if last.is_some_and(|last| last >= original.number) {
            tell("out of order");
        }
        last = Some(original.number);
        // With holes another copy may stand for a first one that was there too late.
        if !raw.holed && *times == 1 && firsts.get(name) != Some(&original.at.offset) {
            tell("not the first");
        }
    }
    let lost = firsts.iter().filter(|(name, _)| !seen.contains_key(**name));
    wrong.extend(lost.map(|(name, offset)| format!("lost: id {name} of raw {partition}@{offset}")));
    wrong
}
