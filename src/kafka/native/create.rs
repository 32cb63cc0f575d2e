//! Creates topics and adds partitions. The Rust client drops the text with which the brokers reject one.

use std::ffi::{CStr, CString, c_char};
use std::ptr;
use std::time::Duration;

use rdkafka::admin::{NewTopic, TopicReplication};
use rdkafka::client::Client;
use rdkafka::error::{IsError, KafkaError, RDKafkaErrorCode};
use rdkafka::{ClientContext, bindings as sys};

use super::describe::admin_request;
use super::millis;
use super::poll::text;

/// How much longer the response may take than the broker may take to execute the request.
const MARGIN: Duration = Duration::from_secs(1);

/// What the brokers answer about a topic that is to be created or changed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct TopicAnswer {
    pub name: String,
    /// `None` when it was done, or could be done.
    pub error: Option<RDKafkaErrorCode>,
    /// The reason for the error, in the words of the brokers.
    pub why: String,
}

/// How a request is executed.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Execution {
    /// The brokers only validate the request.
    pub validate_only: bool,
    /// Time limit.
    pub wait: Duration,
}

/// Creates these topics.
pub(crate) fn create_topics<C: ClientContext>(
    client: &Client<C>,
    topics: &[NewTopic<'_>],
    how: Execution,
) -> Result<Vec<TopicAnswer>, KafkaError> {
    let new: Vec<_> = topics.iter().map(new_topic).collect::<Result<_, _>>()?;
    let operation = sys::rd_kafka_admin_op_t::RD_KAFKA_ADMIN_OP_CREATETOPICS;
    // SAFETY: the calls belong to the operation.
    unsafe {
        request(client, operation, &new, how, sys::rd_kafka_CreateTopics, |event, count| {
            sys::rd_kafka_CreateTopics_result_topics(sys::rd_kafka_event_CreateTopics_result(event), count)
        })
    }
}

/// Adds partitions to these topics, until each has `total`.
pub(crate) fn add_partitions<C: ClientContext>(
    client: &Client<C>,
    topics: &[&str],
    total: usize,
    how: Execution,
) -> Result<Vec<TopicAnswer>, KafkaError> {
    let new: Vec<_> = topics.iter().map(|name| new_partitions(name, total)).collect::<Result<_, _>>()?;
    let operation = sys::rd_kafka_admin_op_t::RD_KAFKA_ADMIN_OP_CREATEPARTITIONS;
    // SAFETY: the calls belong to the operation.
    unsafe {
        request(client, operation, &new, how, sys::rd_kafka_CreatePartitions, |event, count| {
            let result = sys::rd_kafka_event_CreatePartitions_result(event);
            sys::rd_kafka_CreatePartitions_result_topics(result, count)
        })
    }
}

/// The call that sends a request about several topics.
type SendRequest<T> = unsafe extern "C" fn(
    *mut sys::rd_kafka_t,
    *mut *mut T,
    usize,
    *const sys::rd_kafka_AdminOptions_t,
    *mut sys::rd_kafka_queue_t,
);

/// # Safety
/// `send` and `results` must belong to the operation.
unsafe fn request<C: ClientContext, T>(
    client: &Client<C>,
    operation: sys::rd_kafka_admin_op_t,
    topics: &[Handle<T>],
    how: Execution,
    send: SendRequest<T>,
    results: impl FnOnce(*mut sys::rd_kafka_event_t, *mut usize) -> *mut *const sys::rd_kafka_topic_result_t,
) -> Result<Vec<TopicAnswer>, KafkaError> {
    let mut pointers: Vec<_> = topics.iter().map(|it| it.pointer).collect();
    // SAFETY: the topics and the options outlive the request, and the results live as long as the event.
    unsafe {
        let send = |rk, options: *const sys::rd_kafka_AdminOptions_t, queue| {
            let (to_set, none) = (options.cast_mut(), ptr::null_mut());
            sys::rd_kafka_AdminOptions_set_validate_only(to_set, how.validate_only.into(), none, 0);
            sys::rd_kafka_AdminOptions_set_operation_timeout(to_set, millis(how.wait), none, 0);
            send(rk, pointers.as_mut_ptr(), pointers.len(), options, queue);
        };
        admin_request(client, operation, how.wait + MARGIN, send, |event| {
            let mut count = 0;
            let list = results(event, &raw mut count);
            let list = if list.is_null() { &[] } else { std::slice::from_raw_parts(list, count) };
            Ok(list.iter().map(|result| answer(*result)).collect())
        })
    }
}

/// An object of the client library, and the function that destroys it.
struct Handle<T> {
    pointer: *mut T,
    destroy: unsafe extern "C" fn(*mut T),
}

impl<T> Handle<T> {
    /// Takes an object. There is none when the client library rejects its parts, and writes why.
    fn made(
        destroy: unsafe extern "C" fn(*mut T),
        make: impl FnOnce(*mut c_char, usize) -> *mut T,
    ) -> Result<Self, KafkaError> {
        let mut why = [0; 256];
        let pointer = make(why.as_mut_ptr(), why.len());
        if !pointer.is_null() {
            return Ok(Self { pointer, destroy });
        }
        // SAFETY: the text ends with a zero: the buffer had only zeros, and the client library terminates what it writes.
        let why = unsafe { CStr::from_ptr(why.as_ptr()) };
        Err(KafkaError::AdminOpCreation(why.to_string_lossy().into_owned()))
    }
}

impl<T> Drop for Handle<T> {
    fn drop(&mut self) {
        // SAFETY: the object is owned, and destroyed only here.
        unsafe { (self.destroy)(self.pointer) }
    }
}

fn new_topic(topic: &NewTopic<'_>) -> Result<Handle<sys::rd_kafka_NewTopic_t>, KafkaError> {
    let (name, partitions) = (CString::new(topic.name)?, topic.num_partitions);
    let replication = if let TopicReplication::Fixed(count) = topic.replication { count } else { -1 };
    // SAFETY: the texts outlive the calls, which copy them.
    unsafe {
        let new = Handle::made(sys::rd_kafka_NewTopic_destroy, |why, size| {
            sys::rd_kafka_NewTopic_new(name.as_ptr(), partitions, replication, why, size)
        })?;
        for (key, value) in &topic.config {
            let (key, value) = (CString::new(*key)?, CString::new(*value)?);
            sys::rd_kafka_NewTopic_set_config(new.pointer, key.as_ptr(), value.as_ptr());
        }
        Ok(new)
    }
}

fn new_partitions(topic: &str, total: usize) -> Result<Handle<sys::rd_kafka_NewPartitions_t>, KafkaError> {
    let name = CString::new(topic)?;
    // SAFETY: the text outlives the call, which copies it.
    let make = |why, size| unsafe { sys::rd_kafka_NewPartitions_new(name.as_ptr(), total, why, size) };
    Handle::made(sys::rd_kafka_NewPartitions_destroy, make)
}

/// # Safety
/// `result` must be alive.
unsafe fn answer(result: *const sys::rd_kafka_topic_result_t) -> TopicAnswer {
    // SAFETY: alive by contract, as its texts are.
    unsafe {
        let code = sys::rd_kafka_topic_result_error(result);
        TopicAnswer {
            name: text(sys::rd_kafka_topic_result_name(result)),
            error: code.is_error().then(|| code.into()),
            why: text(sys::rd_kafka_topic_result_error_string(result)),
        }
    }
}
