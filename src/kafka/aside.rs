//! Records that go to a side topic instead of the clean one.

use rdkafka::Message;
use rdkafka::message::{BorrowedHeaders, Header, OwnedHeaders};

use super::record::RawRecord;
use crate::ports::{Reason, Record};

/// The record's own headers, and behind them why it is here and where it stood in the raw topic.
pub(super) fn explained(record: &RawRecord<'_>, reason: &Reason, raw: &str) -> OwnedHeaders {
    let headers = record.0.headers().map_or_else(OwnedHeaders::new, BorrowedHeaders::detach);
    let at = record.coordinates();
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
    always
        .into_iter()
        .chain(known)
        .fold(headers, |headers, (key, value)| headers.insert(Header { key, value: Some(&value) }))
}
