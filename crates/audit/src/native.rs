//! What the safe functions of the Rust client do not return: headers with their names as bytes, on which they panic if a
//! producer has sent bytes that are not UTF-8, leader epochs and topic ids.
#![expect(unsafe_code, reason = "foreign functions; each block states what it relies on")]

use std::ffi::{CStr, CString};
use std::ptr;
use std::time::Duration;

use rdkafka::bindings as sys;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::error::{IsError, KafkaError, RDKafkaErrorCode};
use rdkafka::message::{BorrowedMessage, Headers, Message};

use super::events::Events;
use super::record::Header;

/// All headers in order. A name ends before its first zero byte, because the C API returns no length.
pub(super) fn headers<'a>(message: &'a BorrowedMessage<'_>) -> Vec<Header<'a>> {
    let count = message.headers().map_or(0, Headers::count);
    (0..count).map_while(|index| header(message, index)).collect()
}

fn header<'a>(message: &'a BorrowedMessage<'_>, index: usize) -> Option<Header<'a>> {
    let mut list = ptr::null_mut();
    let (mut name, mut value, mut length) = (ptr::null(), ptr::null(), 0);
    // SAFETY: the message is alive for `'a` and owns the list, which owns names and values. Each pointer is used only after
    // the call that sets it returned no error. A name is a C string, and a value that is not null has `length` bytes.
    unsafe {
        if sys::rd_kafka_message_headers(message.ptr(), &raw mut list).is_error() {
            return None;
        }
        if sys::rd_kafka_header_get_all(list, index, &raw mut name, &raw mut value, &raw mut length)
            .is_error()
        {
            return None;
        }
        let value = (!value.is_null()).then(|| std::slice::from_raw_parts(value.cast::<u8>(), length));
        Some((CStr::from_ptr(name).to_bytes(), value))
    }
}

/// The leader epoch in the batch of a record; `None` when its format has none.
pub(super) fn leader_epoch(message: &BorrowedMessage<'_>) -> Option<i32> {
    // SAFETY: the message is alive.
    let epoch = unsafe { sys::rd_kafka_message_leader_epoch(message.ptr()) };
    (epoch >= 0).then_some(epoch)
}

/// The id of a topic, as Kafka's tools print it; `None` when the brokers report none.
pub(super) fn topic_id(
    consumer: &BaseConsumer<Events>,
    topic: &str,
    wait: Duration,
) -> Result<Option<String>, KafkaError> {
    let name = CString::new(topic)?;
    let wait_ms = i32::try_from(wait.as_millis()).unwrap_or(i32::MAX);
    // SAFETY: the client and the name outlive the calls. Every object that is created here is destroyed here, after its last use.
    unsafe {
        let rk = consumer.client().native_ptr();
        let operation = sys::rd_kafka_admin_op_t::RD_KAFKA_ADMIN_OP_DESCRIBETOPICS;
        let options = sys::rd_kafka_AdminOptions_new(rk, operation);
        let mut text = [0; 256];
        sys::rd_kafka_AdminOptions_set_request_timeout(options, wait_ms, text.as_mut_ptr(), text.len());
        let topics = sys::rd_kafka_TopicCollection_of_topic_names([name.as_ptr()].as_mut_ptr(), 1);
        let queue = sys::rd_kafka_queue_new(rk);
        sys::rd_kafka_DescribeTopics(rk, topics, options, queue);
        let event = sys::rd_kafka_queue_poll(queue, wait_ms);
        let id = described_id(event);
        if !event.is_null() {
            sys::rd_kafka_event_destroy(event);
        }
        sys::rd_kafka_queue_destroy(queue);
        sys::rd_kafka_TopicCollection_destroy(topics);
        sys::rd_kafka_AdminOptions_destroy(options);
        id
    }
}

/// # Safety
/// `event` must be null or a live response to the description of one topic.
unsafe fn described_id(event: *mut sys::rd_kafka_event_t) -> Result<Option<String>, KafkaError> {
    if event.is_null() {
        return Err(KafkaError::AdminOp(RDKafkaErrorCode::OperationTimedOut));
    }
    // SAFETY: not null, so alive by contract, like all that is reached from it.
    unsafe {
        let code = sys::rd_kafka_event_error(event);
        if code.is_error() {
            return Err(KafkaError::AdminOp(code.into()));
        }
        let mut count = 0;
        let result = sys::rd_kafka_event_DescribeTopics_result(event);
        let topics = sys::rd_kafka_DescribeTopics_result_topics(result, &raw mut count);
        if count != 1 || topics.is_null() {
            return Err(KafkaError::AdminOp(RDKafkaErrorCode::Inconsistent));
        }
        let code = sys::rd_kafka_error_code(sys::rd_kafka_TopicDescription_error(*topics));
        if code.is_error() {
            return Err(KafkaError::AdminOp(code.into()));
        }
        let id = sys::rd_kafka_TopicDescription_topic_id(*topics);
        let halves =
            [sys::rd_kafka_Uuid_most_significant_bits(id), sys::rd_kafka_Uuid_least_significant_bits(id)];
        let [high, low] = halves.map(|half| u128::from(half.cast_unsigned()));
        Ok(Some(high << 64 | low).filter(|id| *id != 0).map(base64))
    }
}

/// Base64 for URLs (RFC 4648 section 5), without padding.
fn base64(id: u128) -> String {
    let digit = |bits: u128| match u8::try_from(bits & 63).unwrap_or(0) {
        value @ 0..=25 => b'A' + value,
        value @ 26..=51 => b'a' + value - 26,
        value @ 52..=61 => b'0' + value - 52,
        62 => b'-',
        _ => b'_',
    };
    let whole = (0..21).map(|at| digit(id >> (122 - 6 * at)));
    whole.chain([digit(id << 4)]).map(char::from).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_has_the_text_of_kafka() {
        for (id, text) in [
            (1, "AAAAAAAAAAAAAAAAAAAAAQ"),
            (u128::MAX, "_____________________w"),
            (0xfbef_befb_efbe_fbef_befb_efbe_fbef_befb, "---------------------w"),
            (0x0123_4567_89ab_cdef_fedc_ba98_7654_3210, "ASNFZ4mrze_-3LqYdlQyEA"),
        ] {
            assert_eq!(base64(id), text);
        }
    }
}
