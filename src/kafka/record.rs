//! A raw record in the client's own memory.

use rdkafka::Message;
use rdkafka::message::{BorrowedMessage, Headers};

use crate::dedupe::Coordinates;
use crate::dedupe::identity::Fields;
use crate::ports::Record;

/// A record borrowed from the client's fetch buffer; nothing is copied until it is forwarded.
pub struct RawRecord<'a>(pub(super) BorrowedMessage<'a>);

impl Fields for RawRecord<'_> {
    fn key(&self) -> Option<&[u8]> {
        self.0.key()
    }

    fn value(&self) -> Option<&[u8]> {
        self.0.payload()
    }

    fn header(&self, name: &str) -> Option<&[u8]> {
        let headers = self.0.headers()?;
        headers.iter().filter(|header| header.key == name).last().and_then(|header| header.value)
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
        self.0.timestamp().to_millis()
    }

    fn size(&self) -> usize {
        self.0.key_len() + self.0.payload_len()
    }

    fn has_header(&self, name: &str) -> bool {
        self.0.headers().is_some_and(|headers| headers.iter().any(|header| header.key == name))
    }
}
