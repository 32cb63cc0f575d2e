//! A raw record in librdkafka's memory.

use std::ffi::CStr;

use super::native::Message;
use crate::dedupe::Coordinates;
use crate::dedupe::identity::Fields;
use crate::ports::Record;

/// A record borrowed from the client's fetch buffer; nothing is copied until it is forwarded.
pub struct RawRecord<'a>(pub(super) Message<'a>);

/// The timestamp value of a record without a timestamp.
const NO_TIMESTAMP: i64 = -1;

/// The timestamp of a copy. The client replaces 0 by the current time, so 0 is written as 1 ms, the closest value that it
/// can write. A missing timestamp is written as -1, other negative ones as they are.
pub(super) fn written_ms(message: &Message<'_>) -> i64 {
    message.timestamp_ms().map_or(NO_TIMESTAMP, |ms| if ms == 0 { 1 } else { ms })
}

impl RawRecord<'_> {
    /// The name of its topic.
    pub(crate) fn topic(&self) -> &CStr {
        self.0.topic()
    }
}

impl Fields for RawRecord<'_> {
    fn key(&self) -> Option<&[u8]> {
        self.0.key()
    }

    fn value(&self) -> Option<&[u8]> {
        self.0.value()
    }

    fn header(&self, name: &str) -> Option<&[u8]> {
        self.0.headers().filter(|(header, _)| *header == name.as_bytes()).last().and_then(|(_, value)| value)
    }
}

impl Record for RawRecord<'_> {
    fn coordinates(&self) -> Coordinates {
        self.0.coordinates()
    }

    fn timestamp_ms(&self) -> Option<i64> {
        self.0.timestamp_ms()
    }

    fn leader_epoch(&self) -> Option<i32> {
        self.0.leader_epoch()
    }

    fn size(&self) -> usize {
        self.0.key().map_or(0, <[u8]>::len) + self.0.value().map_or(0, <[u8]>::len)
    }

    fn has_header(&self, name: &str) -> bool {
        self.0.headers().any(|(header, _)| header == name.as_bytes())
    }
}
