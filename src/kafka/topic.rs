//! Writing by a topic's handle. The Rust client writes by name, and the client then looks the name up,
//! under a lock, for every record; on the way of each record that is a third of its cost.
#![expect(unsafe_code, reason = "foreign functions; each block states what it relies on")]

use std::ffi::{CString, c_void};
use std::ptr::{self, NonNull};

use rdkafka::ClientContext;
use rdkafka::bindings as sys;
use rdkafka::client::Client;
use rdkafka::error::{IsError, KafkaError, RDKafkaErrorCode};

use super::native::Message;
use super::record::{RawRecord, written_ms};

/// `RD_KAFKA_PARTITION_UA`: the partitioner chooses.
const UNASSIGNED: i32 = -1;

/// A topic of one client. Has to be dropped before its client, which waits for it.
pub struct Topic(NonNull<sys::rd_kafka_topic_t>);

// SAFETY: the handle is a counted reference into the client, which may be used by any thread.
unsafe impl Send for Topic {}

/// A record to write.
#[derive(Clone, Copy)]
pub struct Outgoing<'a> {
    /// Partition to write to; `None` = the partitioner chooses.
    pub partition: Option<i32>,
    /// The key; `None` = null.
    pub key: Option<&'a [u8]>,
    /// The value; `None` = null.
    pub value: Option<&'a [u8]>,
    /// Ms since the epoch; −1 = none, 0 = now.
    pub timestamp: i64,
    /// The record whose headers are taken along.
    pub headers_of: Option<&'a Message<'a>>,
    /// Headers behind those.
    pub more_headers: &'a [(&'static str, String)],
    /// Comes back with the delivery.
    pub opaque: usize,
}

impl<'a> Outgoing<'a> {
    /// A raw record as it is, for the partition of its number.
    pub fn copy_of(record: &'a RawRecord<'_>, opaque: usize) -> Self {
        Self::exact(&record.0, opaque)
    }

    /// The same of any record.
    pub fn exact(message: &'a Message<'_>, opaque: usize) -> Self {
        Self {
            partition: Some(message.partition()),
            key: message.key(),
            value: message.value(),
            timestamp: written_ms(message),
            headers_of: Some(message),
            more_headers: &[],
            opaque,
        }
    }
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
        let mut headers = Headers::copy_of(record.headers_of)?;
        record.more_headers.iter().try_for_each(|(name, value)| headers.add(name, value))?;
        // SAFETY: client and topic are alive and belong together; value and key are copied before the
        // call returns; every tag is followed by the types that the client documents for it.
        let code = unsafe {
            sys::rd_kafka_producev(
                client.native_ptr(),
                vtype::RD_KAFKA_VTYPE_RKT,
                self.0.as_ptr(),
                vtype::RD_KAFKA_VTYPE_PARTITION,
                record.partition.unwrap_or(UNASSIGNED),
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
                headers.0,
                vtype::RD_KAFKA_VTYPE_END,
            )
        };
        if code.is_error() {
            return Err(KafkaError::MessageProduction(code.into()));
        }
        // The client takes the headers only when it takes the record.
        headers.0 = ptr::null_mut();
        Ok(())
    }
}

/// Headers of a record to write; null when it has none.
struct Headers(*mut sys::rd_kafka_headers_t);

impl Headers {
    /// A copy of a record's headers. An error when they cannot be read: the record must not go on without them.
    fn copy_of(record: Option<&Message<'_>>) -> Result<Self, KafkaError> {
        let Some(record) = record else { return Ok(Self(ptr::null_mut())) };
        let mut headers = ptr::null_mut();
        // SAFETY: the message is alive; its headers are read only when the call says that there are some.
        unsafe {
            match sys::rd_kafka_message_headers(record.ptr(), ptr::from_mut(&mut headers)) {
                sys::rd_kafka_resp_err_t::RD_KAFKA_RESP_ERR_NO_ERROR => {
                    Ok(Self(sys::rd_kafka_headers_copy(headers)))
                }
                sys::rd_kafka_resp_err_t::RD_KAFKA_RESP_ERR__NOENT => Ok(Self(ptr::null_mut())),
                code => Err(KafkaError::MessageConsumption(code.into())),
            }
        }
    }

    fn add(&mut self, name: &str, value: &str) -> Result<(), KafkaError> {
        let length = |text: &str| isize::try_from(text.len()).unwrap_or(isize::MAX);
        // SAFETY: the list is ours; name and value are copied, each by its length.
        let code = unsafe {
            if self.0.is_null() {
                self.0 = sys::rd_kafka_headers_new(8);
            }
            let (name_at, value_at) = (name.as_ptr().cast(), value.as_ptr().cast());
            sys::rd_kafka_header_add(self.0, name_at, length(name), value_at, length(value))
        };
        if code.is_error() { Err(KafkaError::MessageProduction(code.into())) } else { Ok(()) }
    }
}

impl Drop for Headers {
    fn drop(&mut self) {
        if !self.0.is_null() {
            // SAFETY: the list is ours unless a record took it, and then it is null.
            unsafe { sys::rd_kafka_headers_destroy(self.0) }
        }
    }
}

impl Drop for Topic {
    fn drop(&mut self) {
        // SAFETY: the reference is ours, and this is its only end.
        unsafe { sys::rd_kafka_topic_destroy(self.0.as_ptr()) }
    }
}
