//! The name of a record that `rekey` copied: `topic/partition@offset#topic id.leader epoch`.
//!
//! The position alone identifies no record: in a topic that was recreated, and in a log that was truncated, another record
//! has it. Topic id and leader epoch are stored in the cluster and in the record's batch, so every read of a record finds
//! the same name. A topic name contains neither `/`, `@` nor `#`.

use std::fmt::Write as _;

use crate::dedupe::coordinates::Offset;

/// In the place of a topic id or a leader epoch that the brokers do not report.
const UNKNOWN: &str = "-";
/// Most characters of a topic name.
const MOST_NAME: usize = 249;
/// Characters of a topic id: base64 of 16 bytes.
const ID_CHARS: usize = 22;

/// Replaces `text` by the name of a record of the log `topic/partition`.
pub fn name_source(text: &mut String, log: &str, offset: Offset, id: Option<&str>, epoch: Option<i32>) {
    text.clear();
    let id = id.unwrap_or(UNKNOWN);
    // Writing to a String cannot fail.
    write!(text, "{log}@{offset}#{id}.").ok();
    match epoch {
        Some(epoch) => write!(text, "{epoch}").ok(),
        None => write!(text, "{UNKNOWN}").ok(),
    };
}

/// Whether this is a name as [`name_source`] writes it.
pub(super) fn is_source_name(value: &[u8]) -> bool {
    let parsed = || {
        let (topic, rest) = std::str::from_utf8(value).ok()?.split_once('/')?;
        let (partition, rest) = rest.split_once('@')?;
        let (offset, rest) = rest.split_once('#')?;
        let (id, epoch) = rest.split_once('.')?;
        let is_legal = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
        let is_base64 = |c: char| is_legal(c) && c != '.';
        let is_id = id.len() == ID_CHARS && id.chars().all(is_base64);
        Some(
            (1..=MOST_NAME).contains(&topic.len())
                && topic.chars().all(is_legal)
                && is_number(partition, i32::MAX.unsigned_abs().into())
                && is_number(offset, i64::MAX.unsigned_abs())
                && (id == UNKNOWN || is_id)
                && (epoch == UNKNOWN || is_number(epoch, i32::MAX.unsigned_abs().into())),
        )
    };
    parsed().unwrap_or(false)
}

/// Whether this is a number of at most `most` in its only spelling.
fn is_number(text: &str, most: u64) -> bool {
    text.parse().is_ok_and(|number: u64| number <= most && number.to_string() == text)
}
