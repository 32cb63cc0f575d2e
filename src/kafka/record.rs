//! A raw record in the client's own memory.

use super::native::Message;
use crate::dedupe::Coordinates;
use crate::dedupe::identity::Fields;
use crate::ports::Record;

/// A record borrowed from the client's fetch buffer; nothing is copied until it is forwarded.
pub struct RawRecord<'a>(pub(super) Message<'a>);

/// What a record in the log has that has no timestamp.
const NO_TIMESTAMP: i64 = -1;

/// The timestamp to write a copy with. The client reads both "none" and 0 as "now". The first has a number of its own;
/// for 0, 1 ms after the epoch is the closest it can write.
pub(super) fn written_ms(message: &Message<'_>) -> i64 {
    message.timestamp_ms().map_or(NO_TIMESTAMP, |ms| ms.max(1))
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
        Coordinates {
            partition: u32::try_from(self.0.partition()).unwrap_or(0),
            offset: u64::try_from(self.0.offset()).unwrap_or(0),
        }
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
