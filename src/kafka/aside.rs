//! Records that go to a side topic instead of the clean one.

use crate::dedupe::Coordinates;
use crate::ports::Reason;

/// The headers that say why a record is here and where it stood in the raw topic; they come behind its own.
pub(super) fn explained(at: Coordinates, reason: &Reason, raw: &str) -> Vec<(&'static str, String)> {
    let always = [
        ("dedupd.reason", reason.code.to_owned()),
        ("dedupd.detail", reason.detail.clone()),
        ("dedupd.topic", raw.to_owned()),
        ("dedupd.partition", at.partition.to_string()),
        ("dedupd.offset", at.offset.to_string()),
    ];
    let known = [
        ("dedupd.owner", reason.owner.map(|owner| owner.to_string())),
        ("dedupd.owner_time", reason.owner_ms.map(|ms| ms.to_string())),
        ("dedupd.slice", reason.slice_ms.map(|ms| ms.to_string())),
    ];
    let known = known.into_iter().filter_map(|(key, value)| Some((key, value?)));
    always.into_iter().chain(known).collect()
}
