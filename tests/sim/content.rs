//! What the worker reports about the contents of records with one id.

use dedupd::ports::Reason;

use crate::sim::raw::Raw;
use crate::sim::universe::Universe;

impl Universe {
    /// Compares what the worker found about a record and its owner with what they contain.
    pub fn check_content(&self, record: &Raw, reason: &Reason) {
        let is_conflict = reason.code == "conflict";
        let Some(at) = reason.owner.filter(|_| is_conflict || reason.code == "duplicate") else { return };
        let count = &self.compared[usize::from(is_conflict)];
        count.set(count.get() + 1);
        let mut cluster = self.cluster.borrow_mut();
        // A log that was rewritten has had several records there.
        let Some(log) = cluster.raw.get(at.partition as usize) else {
            cluster.violations.push(format!("raw {}: its owner {at} is in no partition", record.at));
            return;
        };
        let mut owners = log.history.values().filter(|it| it.at == at).peekable();
        let is_owner = owners.peek().is_some();
        if is_owner && owners.all(|owner| (owner.content() != record.content()) != is_conflict) {
            let what = if is_conflict { "a conflict is invented" } else { "a conflict is missed" };
            cluster.violations.push(format!("{what}: raw {} and its owner {at}", record.at));
        }
    }
}
