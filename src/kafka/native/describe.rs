//! Topic descriptions, with the operations that this client is authorized for. The Rust client has none.
//!
//! There is no group description: `DescribeConsumerGroups` ends the process with a failed assertion when the coordinator
//! becomes unavailable during the call (librdkafka 2.12.1, `eonce->refcnt > 0`). See `TopicAdmin::is_group_denied`.

use std::ffi::{CStr, CString};
use std::ptr;
use std::time::Duration;

use rdkafka::client::Client;
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::{ClientContext, bindings as sys};
use sys::rd_kafka_AclOperation_t as Acl;

use super::millis;
use crate::kafka::rights::Operation;

/// The id that the client returns for a topic without one.
const NO_ID: &str = "AAAAAAAAAAAAAAAAAAAAAA";

/// The client has another alphabet for base64 than Kafka.
fn kafka_id(text: &str) -> String {
    text.replace('+', "-").replace('/', "_")
}

/// A topic as the broker describes it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Described {
    /// Topic id as Kafka's tools print it; `None` when the topic does not exist, or the broker reports none.
    pub id: Option<String>,
    /// The operations that this client is authorized for; `None` when the broker does not report them.
    pub allowed: Option<Vec<Operation>>,
    /// The error in place of a description.
    pub error: Option<RDKafkaErrorCode>,
}

/// Describes the named topics, in this order. A broker before Kafka 2.8 reports no ids.
pub fn topics<C: ClientContext>(
    client: &Client<C>,
    names: &[&str],
    wait: Duration,
) -> Result<Vec<Described>, KafkaError> {
    let names: Vec<CString> = names.iter().map(|name| CString::new(*name)).collect::<Result<_, _>>()?;
    let mut pointers: Vec<_> = names.iter().map(|name| name.as_ptr()).collect();
    let count = pointers.len();
    let operation = sys::rd_kafka_admin_op_t::RD_KAFKA_ADMIN_OP_DESCRIBETOPICS;
    // SAFETY: the names outlive the collection, which copies them, and the collection outlives the call. The result is
    // read as the type that belongs to the request.
    unsafe {
        let collection = sys::rd_kafka_TopicCollection_of_topic_names(pointers.as_mut_ptr(), count);
        let send = |rk, options, queue| sys::rd_kafka_DescribeTopics(rk, collection, options, queue);
        let result = admin_request(client, operation, wait, send, |event| described_topics(event, count));
        sys::rd_kafka_TopicCollection_destroy(collection);
        result
    }
}

/// Sends one admin request and reads its response.
///
/// # Safety
/// `send` must send one request of the type `operation`, and `read` must read the response as that type.
pub(super) unsafe fn admin_request<C: ClientContext, T>(
    client: &Client<C>,
    operation: sys::rd_kafka_admin_op_t,
    wait: Duration,
    send: impl FnOnce(*mut sys::rd_kafka_t, *const sys::rd_kafka_AdminOptions_t, *mut sys::rd_kafka_queue_t),
    read: impl FnOnce(*mut sys::rd_kafka_event_t) -> Result<T, KafkaError>,
) -> Result<T, KafkaError> {
    // SAFETY: every object created here is destroyed here, after the last use of what it owns.
    unsafe {
        let rk = client.native_ptr();
        let options = sys::rd_kafka_AdminOptions_new(rk, operation);
        let mut text = [0; 256];
        sys::rd_kafka_AdminOptions_set_request_timeout(options, millis(wait), text.as_mut_ptr(), text.len());
        let error = sys::rd_kafka_AdminOptions_set_include_authorized_operations(options, 1);
        if !error.is_null() {
            sys::rd_kafka_error_destroy(error);
        }
        let queue = sys::rd_kafka_queue_new(rk);
        send(rk, options, queue);
        let event = sys::rd_kafka_queue_poll(queue, millis(wait));
        let result = if event.is_null() {
            Err(KafkaError::AdminOp(RDKafkaErrorCode::OperationTimedOut))
        } else {
            let code = sys::rd_kafka_event_error(event);
            let result = if code == sys::rd_kafka_resp_err_t::RD_KAFKA_RESP_ERR_NO_ERROR {
                read(event)
            } else {
                Err(KafkaError::AdminOp(code.into()))
            };
            sys::rd_kafka_event_destroy(event);
            result
        };
        sys::rd_kafka_queue_destroy(queue);
        sys::rd_kafka_AdminOptions_destroy(options);
        result
    }
}

/// # Safety
/// `event` must be a live `DescribeTopics` response.
unsafe fn described_topics(
    event: *mut sys::rd_kafka_event_t,
    expected: usize,
) -> Result<Vec<Described>, KafkaError> {
    // SAFETY: the result and everything reachable from it live as long as the event.
    unsafe {
        let result = sys::rd_kafka_event_DescribeTopics_result(event);
        let mut count = 0;
        let topics = sys::rd_kafka_DescribeTopics_result_topics(result, ptr::from_mut(&mut count));
        if count != expected || topics.is_null() {
            return Err(KafkaError::AdminOp(RDKafkaErrorCode::Inconsistent));
        }
        let topics = std::slice::from_raw_parts(topics, count);
        Ok(topics.iter().map(|topic| described_topic(*topic)).collect())
    }
}

/// # Safety
/// `topic` must come from a live `DescribeTopics` result.
unsafe fn described_topic(topic: *const sys::rd_kafka_TopicDescription_t) -> Described {
    // SAFETY: the description is alive; it owns the id, and the id owns the base64 text.
    unsafe {
        let error = code_of(sys::rd_kafka_TopicDescription_error(topic));
        if error.is_some() {
            return Described { error, ..Described::default() };
        }
        let id = sys::rd_kafka_TopicDescription_topic_id(topic);
        let text = if id.is_null() { ptr::null() } else { sys::rd_kafka_Uuid_base64str(id) };
        let id = (!text.is_null()).then(|| kafka_id(&CStr::from_ptr(text).to_string_lossy()));
        let id = id.filter(|id| id != NO_ID);
        let mut count = 0;
        let list = sys::rd_kafka_TopicDescription_authorized_operations(topic, ptr::from_mut(&mut count));
        Described { id, allowed: operations(list, count), error }
    }
}

/// # Safety
/// `error` must be null or alive.
unsafe fn code_of(error: *const sys::rd_kafka_error_t) -> Option<RDKafkaErrorCode> {
    if error.is_null() {
        return None;
    }
    // SAFETY: not null, so alive by contract.
    let code = unsafe { sys::rd_kafka_error_code(error) };
    (code != sys::rd_kafka_resp_err_t::RD_KAFKA_RESP_ERR_NO_ERROR).then(|| code.into())
}

/// # Safety
/// `list` must be null or hold `count` operations.
unsafe fn operations(list: *const Acl, count: usize) -> Option<Vec<Operation>> {
    if list.is_null() || count == 0 {
        return None;
    }
    // SAFETY: not null, so it holds `count` elements by contract.
    let list = unsafe { std::slice::from_raw_parts(list, count) };
    Some(list.iter().filter_map(|operation| operation_of(*operation)).collect())
}

fn operation_of(operation: Acl) -> Option<Operation> {
    match operation {
        Acl::RD_KAFKA_ACL_OPERATION_READ => Some(Operation::Read),
        Acl::RD_KAFKA_ACL_OPERATION_WRITE => Some(Operation::Write),
        Acl::RD_KAFKA_ACL_OPERATION_DESCRIBE_CONFIGS => Some(Operation::DescribeConfigs),
        _ => None,
    }
}
