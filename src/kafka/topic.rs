//! Writes records through a topic handle. The Rust client writes by topic name, and librdkafka then looks up the name under a
//! lock for every record; that lookup is a third of the cost of a send.
#![expect(unsafe_code, reason = "foreign functions; each block states what it relies on")]

use std::ffi::{CStr, CString, c_void};
use std::ptr::{self, NonNull};

use rdkafka::ClientContext;
use rdkafka::bindings as sys;
use rdkafka::client::Client;
use rdkafka::error::{IsError, KafkaError, RDKafkaErrorCode};

use super::native::Message;
use super::partitions::kafka_partition;
use super::record::written_ms;

/// `RD_KAFKA_PARTITION_UA`: the partitioner chooses.
const UNASSIGNED: i32 = -1;

/// A topic handle of one client. Must be dropped before the client, which waits for it.
pub struct TopicHandle(NonNull<sys::rd_kafka_topic_t>);

// SAFETY: the handle is a counted reference into the client, which any thread may use.
unsafe impl Send for TopicHandle {}

/// A record to write.
pub struct Outgoing<'a> {
    /// Partition to write to; `None` = the partitioner chooses.
    pub partition: Option<i32>,
    /// The key; `None` = null.
    pub key: Option<&'a [u8]>,
    /// The value; `None` = null.
    pub value: Option<&'a [u8]>,
    /// Epoch milliseconds; −1 = none, 0 = now.
    pub timestamp: i64,
    pub headers: Headers,
    /// Returned with the delivery report.
    pub opaque: usize,
}

impl<'a> Outgoing<'a> {
    /// An unchanged copy of a record, for the partition with the same number.
    pub fn copy_of(message: &'a Message<'_>, opaque: usize) -> Result<Self, KafkaError> {
        Ok(Self::with_headers(message, Headers::copy_of(message)?, opaque))
    }

    /// The same, but takes over the headers instead of copying each of them.
    pub fn moved_from(message: &'a mut Message<'_>, opaque: usize) -> Result<Self, KafkaError> {
        let headers = Headers::taken_from(message)?;
        Ok(Self::with_headers(message, headers, opaque))
    }

    /// With further headers at the end.
    pub fn with_more_headers(mut self, more: &[(&'static str, impl AsRef<str>)]) -> Result<Self, KafkaError> {
        more.iter().try_for_each(|(name, value)| self.headers.add(name, value.as_ref())).map(|()| self)
    }

    /// Bytes of its key and value.
    pub fn size(&self) -> usize {
        self.key.map_or(0, <[u8]>::len) + self.value.map_or(0, <[u8]>::len)
    }

    /// A copy with other headers.
    pub fn with_headers(message: &'a Message<'_>, headers: Headers, opaque: usize) -> Self {
        Self {
            partition: Some(kafka_partition(message.coordinates().partition)),
            key: message.key(),
            value: message.value(),
            timestamp: written_ms(message),
            headers,
            opaque,
        }
    }
}

impl TopicHandle {
    /// The handle of the topic with this name.
    pub fn open<C: ClientContext>(client: &Client<C>, name: &str) -> Result<Self, KafkaError> {
        Self::new(client, name, ptr::null_mut())
    }

    /// The same for records that are not compressed, whatever the client's setting is.
    pub fn uncompressed<C: ClientContext>(client: &Client<C>, name: &str) -> Result<Self, KafkaError> {
        // SAFETY: the client is alive, and the call returns a copy that we own.
        let config = unsafe { sys::rd_kafka_default_topic_conf_dup(client.native_ptr()) };
        // SAFETY: the configuration is alive, the texts are C strings, and no error text is requested.
        unsafe {
            let (key, value) = (c"compression.type".as_ptr(), c"none".as_ptr());
            sys::rd_kafka_topic_conf_set(config, key, value, ptr::null_mut(), 0);
        }
        Self::new(client, name, config)
    }

    fn new<C: ClientContext>(
        client: &Client<C>,
        name: &str,
        config: *mut sys::rd_kafka_topic_conf_t,
    ) -> Result<Self, KafkaError> {
        let name = CString::new(name)?;
        // SAFETY: the client is alive, the name is a C string that is copied. The call takes over the configuration; null selects the client's
        // own.
        let topic = unsafe { sys::rd_kafka_topic_new(client.native_ptr(), name.as_ptr(), config) };
        NonNull::new(topic).map(Self).ok_or(KafkaError::MessageProduction(RDKafkaErrorCode::UnknownTopic))
    }

    /// The name of the topic.
    pub fn name(&self) -> &str {
        // SAFETY: the topic is alive, and its name is a C string that lives as long.
        let name = unsafe { CStr::from_ptr(sys::rd_kafka_topic_name(self.0.as_ptr())) };
        // Names of topics are ASCII.
        name.to_str().unwrap_or_default()
    }

    /// Copies a record into the queue of the client. It must be the client that the topic was opened with. After a failure
    /// the record can be sent again.
    pub fn send<C: ClientContext>(
        &self,
        client: &Client<C>,
        record: &mut Outgoing<'_>,
    ) -> Result<(), KafkaError> {
        use sys::rd_kafka_vtype_t as vtype;
        let bytes = |part: Option<&[u8]>| -> (*mut c_void, usize) {
            part.map_or((ptr::null_mut(), 0), |part| (part.as_ptr().cast_mut().cast(), part.len()))
        };
        let ((value, value_len), (key, key_len)) = (bytes(record.value), bytes(record.key));
        // SAFETY: client and topic are alive and belong together. Value and key are copied before the call returns. Every
        // tag is followed by the types that librdkafka documents for it.
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
                record.headers.0,
                vtype::RD_KAFKA_VTYPE_END,
            )
        };
        if code.is_error() {
            return Err(KafkaError::MessageProduction(code.into()));
        }
        // The client takes ownership of the headers only when it accepts the record.
        record.headers.0 = ptr::null_mut();
        Ok(())
    }
}

/// Headers of a record to write; null when it has none.
pub struct Headers(*mut sys::rd_kafka_headers_t);

impl Headers {
    pub fn none() -> Self {
        Self(ptr::null_mut())
    }

    /// A copy of a record's headers. Unreadable headers are an error: the record must not be forwarded without them.
    fn copy_of(record: &Message<'_>) -> Result<Self, KafkaError> {
        if record.is_without_headers() {
            return Ok(Self::none());
        }
        let mut headers = ptr::null_mut();
        // SAFETY: the message is alive; its headers are read only when the call returned some.
        unsafe {
            let code = sys::rd_kafka_message_headers(record.ptr(), ptr::from_mut(&mut headers));
            Ok(if Self::exist(code)? { Self(sys::rd_kafka_headers_copy(headers)) } else { Self::none() })
        }
    }

    /// The headers of a record, which parses them again when they are read later. No borrowed header outlives this call,
    /// because the record is borrowed mutably.
    fn taken_from(record: &mut Message<'_>) -> Result<Self, KafkaError> {
        if record.is_without_headers() {
            return Ok(Self::none());
        }
        let mut headers = ptr::null_mut();
        // SAFETY: the message is alive, and nothing else uses it. We own the headers when the call returned some.
        let code = unsafe {
            sys::rd_kafka_message_detach_headers(record.ptr().cast_mut(), ptr::from_mut(&mut headers))
        };
        Ok(if Self::exist(code)? { Self(headers) } else { Self::none() })
    }

    fn exist(code: sys::rd_kafka_resp_err_t) -> Result<bool, KafkaError> {
        match code {
            sys::rd_kafka_resp_err_t::RD_KAFKA_RESP_ERR_NO_ERROR => Ok(true),
            sys::rd_kafka_resp_err_t::RD_KAFKA_RESP_ERR__NOENT => Ok(false),
            code => Err(KafkaError::MessageConsumption(code.into())),
        }
    }

    fn add(&mut self, name: &str, value: &str) -> Result<(), KafkaError> {
        let length = |text: &str| isize::try_from(text.len()).unwrap_or(isize::MAX);
        // SAFETY: we own the list; name and value are copied with their lengths.
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
            // SAFETY: we own the list unless a record took it, and then the pointer is null.
            unsafe { sys::rd_kafka_headers_destroy(self.0) }
        }
    }
}

impl Drop for TopicHandle {
    fn drop(&mut self) {
        // SAFETY: we own the reference, and it is destroyed only here.
        unsafe { sys::rd_kafka_topic_destroy(self.0.as_ptr()) }
    }
}
