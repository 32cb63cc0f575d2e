//! Writing by a topic's handle. The Rust client writes by name, and the client then looks the name up,
//! under a lock, for every record; on the way of each record that is a third of its cost.
#![expect(unsafe_code, reason = "foreign functions; each block states what it relies on")]

use std::ffi::{CString, c_void};
use std::ptr::{self, NonNull};

use rdkafka::ClientContext;
use rdkafka::bindings as sys;
use rdkafka::client::Client;
use rdkafka::error::{IsError, KafkaError, RDKafkaErrorCode};
use rdkafka::message::BorrowedMessage;

/// A topic of one client. Has to be dropped before its client, which waits for it.
pub struct Topic(NonNull<sys::rd_kafka_topic_t>);

// SAFETY: the handle is a counted reference into the client, which may be used by any thread.
unsafe impl Send for Topic {}

/// A record to write.
#[derive(Debug, Clone, Copy)]
pub struct Outgoing<'a> {
    /// Partition to write to.
    pub partition: i32,
    /// The key; `None` = null.
    pub key: Option<&'a [u8]>,
    /// The value; `None` = null.
    pub value: Option<&'a [u8]>,
    /// Ms since the epoch; −1 = none, 0 = now.
    pub timestamp: i64,
    /// The record whose headers are taken along.
    pub headers_of: Option<&'a BorrowedMessage<'a>>,
    /// Comes back with the delivery.
    pub opaque: usize,
}

impl Topic {
    /// The handle of the topic with this name.
    pub fn open<C: ClientContext>(client: &Client<C>, name: &str) -> Result<Self, KafkaError> {
        let name = CString::new(name)?;
        // SAFETY: the client is alive, the name is a C string that is copied, and a null configuration
        // stands for the client's own.
        let topic = unsafe { sys::rd_kafka_topic_new(client.native_ptr(), name.as_ptr(), ptr::null_mut()) };
        NonNull::new(topic).map(Self).ok_or(KafkaError::MessageProduction(RDKafkaErrorCode::UnknownTopic))
    }

    /// Hands a record, copied, to the client that the topic was opened with.
    pub fn send<C: ClientContext>(
        &self,
        client: &Client<C>,
        record: &Outgoing<'_>,
    ) -> Result<(), KafkaError> {
        use sys::rd_kafka_vtype_t as vtype;
        let bytes = |part: Option<&[u8]>| -> (*mut c_void, usize) {
            part.map_or((ptr::null_mut(), 0), |part| (part.as_ptr().cast_mut().cast(), part.len()))
        };
        let ((value, value_len), (key, key_len)) = (bytes(record.value), bytes(record.key));
        let headers = record.headers_of.map_or(ptr::null_mut(), copied_headers);
        // SAFETY: client and topic are alive and belong together; value and key are copied before the
        // call returns; every tag is followed by the types that the client documents for it.
        let code = unsafe {
            sys::rd_kafka_producev(
                client.native_ptr(),
                vtype::RD_KAFKA_VTYPE_RKT,
                self.0.as_ptr(),
                vtype::RD_KAFKA_VTYPE_PARTITION,
                record.partition,
                vtype::RD_KAFKA_VTYPE_MSGFLAGS,
                sys::RD_KAFKA_MSG_F_COPY,
                vtype::RD_KAFKA_VTYPE_VALUE,
                value,
                value_len,
                vtype::RD_KAFKA_VTYPE_KEY,
                key,
                key_len,
                vtype::RD_KAFKA_VTYPE_OPAQUE,
                record.opaque as *mut c_void,
                vtype::RD_KAFKA_VTYPE_TIMESTAMP,
                record.timestamp,
                vtype::RD_KAFKA_VTYPE_HEADERS,
                headers,
                vtype::RD_KAFKA_VTYPE_END,
            )
        };
        if !code.is_error() {
            return Ok(());
        }
        if !headers.is_null() {
            // SAFETY: the client takes the headers only when it takes the record.
            unsafe { sys::rd_kafka_headers_destroy(headers) };
        }
        Err(KafkaError::MessageProduction(code.into()))
    }
}

/// A copy of a record's headers, for the client to own; null when it has none.
fn copied_headers(record: &BorrowedMessage<'_>) -> *mut sys::rd_kafka_headers_t {
    let mut headers = ptr::null_mut();
    // SAFETY: the message is alive; its headers are read only when the call says that there are some.
    unsafe {
        match sys::rd_kafka_message_headers(record.ptr(), ptr::from_mut(&mut headers)) {
            sys::rd_kafka_resp_err_t::RD_KAFKA_RESP_ERR_NO_ERROR => sys::rd_kafka_headers_copy(headers),
            _ => ptr::null_mut(),
        }
    }
}

impl Drop for Topic {
    fn drop(&mut self) {
        // SAFETY: the reference is ours, and this is its only end.
        unsafe { sys::rd_kafka_topic_destroy(self.0.as_ptr()) }
    }
}
