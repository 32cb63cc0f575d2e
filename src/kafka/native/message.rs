//! A record in librdkafka's memory. Unlike the Rust client's type it returns header names as bytes: a producer may send any
//! bytes, and the Rust client panics on names that are not UTF-8.

use std::ffi::CStr;
use std::marker::PhantomData;
use std::ptr::{self, NonNull};
use std::sync::LazyLock;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use rdkafka::bindings as sys;
use rdkafka::error::{IsError, RDKafkaErrorCode};

use super::poll::{ReadError, text};
use crate::dedupe::Coordinates;
use crate::kafka::error::is_damage;
use crate::kafka::partitions::coordinates;

/// A header: its name and its value, `None` when null. The name ends before its first zero byte, because the C API returns no
/// length.
pub type MessageHeader<'a> = (&'a [u8], Option<&'a [u8]>);

/// An event from a queue; destroyed on drop.
pub(super) struct Event(pub(super) NonNull<sys::rd_kafka_event_t>);

impl Drop for Event {
    fn drop(&mut self) {
        // SAFETY: we own the event, and it is destroyed only here.
        unsafe { sys::rd_kafka_event_destroy(self.0.as_ptr()) }
    }
}

/// The version of librdkafka whose record layout [`Message::is_without_headers`] relies on: 2.12.1. With another version the
/// headers of every record are parsed.
const KNOWN_LAYOUT: i32 = 0x020c_01ff;
static LAYOUT_IS_KNOWN: LazyLock<bool> = LazyLock::new(|| {
    // SAFETY: returns a constant.
    unsafe { sys::rd_kafka_version() == KNOWN_LAYOUT }
});
/// The first records of a process prove the layout: their headers are parsed in any case, and compared.
const PROOFS: u32 = 10_000;
/// Records compared so far. Beyond [`PROOFS`] the layout is used.
static PROVED: AtomicU32 = AtomicU32::new(0);
/// A record has contradicted the layout.
static IS_REFUTED: AtomicBool = AtomicBool::new(false);

/// A record in the fetch buffer of a consumer. It must not outlive the consumer.
pub struct Message<'a> {
    native: NonNull<sys::rd_kafka_message_t>,
    /// The event that owns the record. A record without an event is destroyed on drop.
    event: Option<Event>,
    _consumer: PhantomData<&'a ()>,
}

impl Drop for Message<'_> {
    fn drop(&mut self) {
        if self.event.is_none() {
            // SAFETY: we own the message, and it is destroyed only here.
            unsafe { sys::rd_kafka_message_destroy(self.native.as_ptr()) }
        }
    }
}

impl Message<'_> {
    /// The record of a fetch event; `None` when the event has none.
    ///
    /// # Safety
    /// `event` must be a fetch event of a consumer that lives as long as the message.
    pub(super) unsafe fn of(event: Event) -> Option<Self> {
        // SAFETY: the event is alive; it owns the message, which is dropped with it.
        let native = unsafe { sys::rd_kafka_event_message_next(event.0.as_ptr()) };
        let native = NonNull::new(native.cast_mut())?;
        Some(Self { native, event: Some(event), _consumer: PhantomData })
    }

    /// A record of a batch; `None` when the pointer is null.
    ///
    /// # Safety
    /// The caller must own the message, and its consumer must live as long as the result.
    pub(super) unsafe fn owned(native: *mut sys::rd_kafka_message_t) -> Option<Self> {
        Some(Self { native: NonNull::new(native)?, event: None, _consumer: PhantomData })
    }

    fn parts(&self) -> &sys::rd_kafka_message_t {
        // SAFETY: the message lives as long as its event, which we own.
        unsafe { self.native.as_ref() }
    }

    /// The error in place of a record.
    pub(super) fn error(&self) -> Option<RDKafkaErrorCode> {
        let code = self.parts().err;
        code.is_error().then(|| code.into())
    }

    /// Makes the client read on at the offset of an error that a fetch has returned for a partition. `rd_kafka_consume_batch_queue` moves the
    /// position behind each message, errors included, and after a pause, as for each rebalance, the client reads on at that position: one
    /// record would be skipped. Not for the end of a partition, and not for damaged bytes, behind which the client reads on anyway.
    pub(super) fn keep_position(&self, code: RDKafkaErrorCode) {
        use RDKafkaErrorCode::{AutoOffsetReset, PartitionEOF};
        let ((partition, offset), topic) = (self.place(), self.parts().rkt);
        let is_other = matches!(code, PartitionEOF | AutoOffsetReset) || is_damage(code);
        if is_other || offset < 0 || topic.is_null() {
            return;
        }
        // SAFETY: the message keeps its topic alive. Without a time limit the call returns at once; it has no effect on a partition that is
        // not assigned any more.
        let code = unsafe { sys::rd_kafka_seek(topic, partition, offset, 0) };
        if code.is_error() {
            tracing::debug!(partition, offset, "a partition with a read error was not sought");
        }
    }

    /// The text of the error in place of a record; empty when there is none.
    pub(super) fn error_text(&self) -> String {
        // SAFETY: the message is alive, and the text lives as long as the message.
        unsafe { text(sys::rd_kafka_message_errstr(self.native.as_ptr())) }
    }

    /// The error in place of a record, with its code and text.
    pub(super) fn read_error(&self, code: RDKafkaErrorCode, reason: String) -> ReadError {
        let topic = self.topic().to_string_lossy().into_owned();
        ReadError { code, fatal: false, at: Some(self.place()), topic, reason }
    }

    /// Partition and offset as the client returned them; an error has a negative offset when it is unknown.
    pub(super) fn place(&self) -> (i32, i64) {
        (self.parts().partition, self.parts().offset)
    }

    /// The name of its topic; empty for an error that is not about a topic.
    pub fn topic(&self) -> &CStr {
        let topic = self.parts().rkt;
        if topic.is_null() {
            return c"";
        }
        // SAFETY: the message keeps its topic alive, and the topic has a name that never changes.
        unsafe { CStr::from_ptr(sys::rd_kafka_topic_name(topic)) }
    }

    /// Partition and offset of the record.
    pub fn coordinates(&self) -> Coordinates {
        let (partition, offset) = self.place();
        coordinates(partition, offset)
    }

    /// The key; `None` when null.
    pub fn key(&self) -> Option<&[u8]> {
        // SAFETY: the bytes belong to the message.
        unsafe { bytes(self.parts().key.cast(), self.parts().key_len) }
    }

    /// The value; `None` when null.
    pub fn value(&self) -> Option<&[u8]> {
        // SAFETY: the bytes belong to the message.
        unsafe { bytes(self.parts().payload.cast(), self.parts().len) }
    }

    /// The timestamp, epoch milliseconds; `None` when the record has none.
    pub fn timestamp_ms(&self) -> Option<i64> {
        let mut kind = sys::rd_kafka_timestamp_type_t::RD_KAFKA_TIMESTAMP_NOT_AVAILABLE;
        // SAFETY: the message is alive, and the kind is written before use.
        let ms = unsafe { sys::rd_kafka_message_timestamp(self.native.as_ptr(), ptr::from_mut(&mut kind)) };
        (ms != -1 && kind != sys::rd_kafka_timestamp_type_t::RD_KAFKA_TIMESTAMP_NOT_AVAILABLE).then_some(ms)
    }

    /// The leader epoch under which the record was appended; `None` when the log does not have it.
    pub fn leader_epoch(&self) -> Option<i32> {
        // SAFETY: the message is alive.
        let epoch = unsafe { sys::rd_kafka_message_leader_epoch(self.native.as_ptr()) };
        (epoch >= 0).then_some(epoch)
    }

    /// Whether the record certainly has no headers. The client parses headers at the first access and allocates more than a
    /// kilobyte for that even when there are none: 130 to 200 ns for a record, a tenth of its time when it is small. This check
    /// takes 30 to 45 ns, with the release of the record in both.
    pub(in crate::kafka) fn is_without_headers(&self) -> bool {
        let Some(count) = self.header_count() else { return false };
        if PROVED.load(Ordering::Relaxed) < PROOFS && !self.proves(count) {
            return false;
        }
        count == 0 && !IS_REFUTED.load(Ordering::Relaxed)
    }

    /// The first byte of the number of headers; `None` when its place is unknown.
    fn header_count(&self) -> Option<u8> {
        let parts = self.parts();
        // Only the record format 2 has a leader epoch. The client replaces an empty value by a constant.
        if !*LAYOUT_IS_KNOWN || parts.payload.is_null() || parts.len == 0 || self.leader_epoch().is_none() {
            return None;
        }
        // SAFETY: in format 2 the number of headers, a varint, follows the value, and a value that is not empty is in the
        // buffer of the response or of the decompressed batch (rd_kafka_msgset_reader_msg_v2), not in a copy.
        Some(unsafe { *parts.payload.cast::<u8>().add(parts.len) })
    }

    /// Parses the headers and compares them with that byte.
    fn proves(&self, count: u8) -> bool {
        PROVED.fetch_add(1, Ordering::Relaxed);
        let parsed = self.parsed_headers().count();
        let is_right = agrees(count, parsed) || self.has_unreadable_headers();
        if !is_right && !IS_REFUTED.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                count,
                parsed,
                "the client stores headers in another way; parsing those of every record"
            );
        }
        is_right
    }

    /// Whether the client cannot parse the headers.
    fn has_unreadable_headers(&self) -> bool {
        use sys::rd_kafka_resp_err_t::RD_KAFKA_RESP_ERR__NOENT;
        let mut list = ptr::null_mut();
        // SAFETY: the message is alive; the list is not used.
        let code = unsafe { sys::rd_kafka_message_headers(self.native.as_ptr(), ptr::from_mut(&mut list)) };
        code.is_error() && code != RD_KAFKA_RESP_ERR__NOENT
    }

    fn parsed_headers(&self) -> impl Iterator<Item = MessageHeader<'_>> {
        // SAFETY: the message is alive for as long as the iterator.
        unsafe { headers(self.native.as_ptr()) }
    }

    /// The headers in order.
    pub fn headers(&self) -> impl Iterator<Item = MessageHeader<'_>> {
        (!self.is_without_headers()).then(|| self.parsed_headers()).into_iter().flatten()
    }

    pub(in crate::kafka) fn ptr(&self) -> *const sys::rd_kafka_message_t {
        self.native.as_ptr()
    }
}

/// Whether a zigzag varint with this first byte is a number of headers.
fn agrees(first_byte: u8, headers: usize) -> bool {
    if headers < 64 { usize::from(first_byte) == 2 * headers } else { first_byte >= 128 }
}

/// # Safety
/// `message` must be alive for `'a`.
unsafe fn headers<'a>(message: *const sys::rd_kafka_message_t) -> impl Iterator<Item = MessageHeader<'a>> {
    let mut list = ptr::null_mut();
    // SAFETY: alive by contract; the message owns the list, which is used only when the call returned one.
    let code = unsafe { sys::rd_kafka_message_headers(message, ptr::from_mut(&mut list)) };
    let list = if code.is_error() { ptr::null_mut() } else { list };
    // SAFETY: as above.
    (0..).map_while(move |index| unsafe { header(list, index) })
}

/// # Safety
/// `list` must be null or alive for `'a`.
unsafe fn header<'a>(list: *const sys::rd_kafka_headers_t, index: usize) -> Option<MessageHeader<'a>> {
    if list.is_null() {
        return None;
    }
    let (mut name, mut value, mut size) = (ptr::null(), ptr::null(), 0);
    // SAFETY: the list is alive by contract; it owns name and value, which are used only when the header exists.
    unsafe {
        let code = sys::rd_kafka_header_get_all(list, index, &raw mut name, &raw mut value, &raw mut size);
        (!code.is_error()).then(|| (CStr::from_ptr(name).to_bytes(), bytes(value.cast(), size)))
    }
}

/// # Safety
/// `start` must be null or point to `length` bytes that live for `'a`.
unsafe fn bytes<'a>(start: *const u8, length: usize) -> Option<&'a [u8]> {
    // SAFETY: not null, so it points to `length` bytes by contract.
    (!start.is_null()).then(|| unsafe { std::slice::from_raw_parts(start, length) })
}

#[cfg(test)]
mod tests;
