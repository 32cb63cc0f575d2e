//! librdkafka calls that the Rust client does not offer. Besides `topic.rs`, the only unsafe code of `kafka`.
#![expect(unsafe_code, reason = "foreign functions; each block states what it relies on")]

mod certificate;
mod create;
mod describe;
mod fetched;
mod message;
mod poll;

use std::ffi::{CStr, CString};
use std::ptr;
use std::time::Duration;

pub(crate) use certificate::rejection as certificate_rejection;
pub(crate) use create::{Execution, TopicAnswer, add_partitions, create_topics};
pub(crate) use describe::Described;
pub use describe::topics;
pub(crate) use fetched::Fetched;
pub use message::Message;
pub(crate) use poll::ReadError;

use rdkafka::client::Client;
use rdkafka::error::{IsError, KafkaError, RDKafkaErrorCode};
use rdkafka::topic_partition_list::TopicPartitionList;
use rdkafka::{ClientContext, bindings as sys};

use super::partitions::partition_id;
use crate::ports::Committed;

/// A time limit as the client takes it.
fn millis(wait: Duration) -> i32 {
    i32::try_from(wait.as_millis()).unwrap_or(i32::MAX)
}

/// This consumer's membership of the group, as the group coordinator sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GroupMetadata {
    /// Generation of the group; negative when not a member.
    pub generation: i32,
    /// Member id; empty when not a member.
    pub member_id: String,
}

/// The current membership of a consumer; `None` when it has no `group.id`.
pub fn membership<C: ClientContext>(client: &Client<C>) -> Option<GroupMetadata> {
    // SAFETY: the client handle is alive for the whole call. We own the returned object; its strings live until it is
    // destroyed and are copied before that.
    unsafe {
        let metadata = sys::rd_kafka_consumer_group_metadata(client.native_ptr());
        if metadata.is_null() {
            return None;
        }
        let generation = sys::rd_kafka_consumer_group_metadata_generation_id(metadata);
        let member = sys::rd_kafka_consumer_group_metadata_member_id(metadata);
        let member_id = if member.is_null() {
            String::new()
        } else {
            CStr::from_ptr(member).to_string_lossy().into_owned()
        };
        sys::rd_kafka_consumer_group_metadata_destroy(metadata);
        Some(GroupMetadata { generation, member_id })
    }
}

/// Committed offsets with their metadata. The Rust client's own accessor panics on metadata that is not UTF-8, and any other
/// program may have written such metadata: bytes that are not UTF-8 are replaced. Each partition can have an error of its own.
pub fn committed<C: ClientContext>(
    client: &Client<C>,
    partitions: &TopicPartitionList,
    wait: Duration,
) -> Result<Vec<Result<Committed, RDKafkaErrorCode>>, KafkaError> {
    // SAFETY: both handles are alive for the whole call. The elements are read within librdkafka's count, before the
    // owner drops the list.
    unsafe {
        let list = partitions.ptr();
        let code = sys::rd_kafka_committed(client.native_ptr(), list, millis(wait));
        if code != sys::rd_kafka_resp_err_t::RD_KAFKA_RESP_ERR_NO_ERROR {
            return Err(KafkaError::OffsetFetch(code.into()));
        }
        let count = usize::try_from((*list).cnt).unwrap_or(0);
        let elements = if count == 0 { &[] } else { std::slice::from_raw_parts((*list).elems, count) };
        Ok(elements.iter().map(|element| committed_offset(element)).collect())
    }
}

/// # Safety
/// `element` must be a live element of a list filled by librdkafka.
unsafe fn committed_offset(element: &sys::rd_kafka_topic_partition_t) -> Result<Committed, RDKafkaErrorCode> {
    if element.err.is_error() {
        return Err(element.err.into());
    }
    let metadata = if element.metadata.is_null() || element.metadata_size == 0 {
        String::new()
    } else {
        // SAFETY: `metadata` points to `metadata_size` bytes as long as the list lives.
        let bytes =
            unsafe { std::slice::from_raw_parts(element.metadata.cast::<u8>(), element.metadata_size) };
        String::from_utf8_lossy(bytes).into_owned()
    };
    Ok(Committed {
        partition: partition_id(element.partition),
        // Negative when the group has none.
        offset: element.offset.try_into().ok(),
        metadata,
    })
}

/// Sets the leader epoch of the record before a partition's offset in the list. When it seeks to that offset, the client
/// first checks with the leader that the log has not been truncated since, by comparing leader epochs.
pub fn set_leader_epoch(list: &TopicPartitionList, topic: &str, partition: i32, epoch: i32) {
    let Ok(topic) = CString::new(topic) else { return };
    // SAFETY: the list is alive, the name is a C string, and the element belongs to the list.
    unsafe {
        let element = sys::rd_kafka_topic_partition_list_find(list.ptr(), topic.as_ptr(), partition);
        if !element.is_null() {
            sys::rd_kafka_topic_partition_set_leader_epoch(element, epoch);
        }
    }
}

/// The high watermark of the last fetch response of a partition; `None` before the first. Sends no request.
pub fn cached_high_watermark<C: ClientContext>(
    client: &Client<C>,
    topic: &str,
    partition: i32,
) -> Option<u64> {
    let topic = CString::new(topic).ok()?;
    let (mut low, mut high) = (-1i64, -1i64);
    // SAFETY: the handle is alive, the name is a C string, and both results are written before use.
    let code = unsafe {
        sys::rd_kafka_get_watermark_offsets(
            client.native_ptr(),
            topic.as_ptr(),
            partition,
            ptr::from_mut(&mut low),
            ptr::from_mut(&mut high),
        )
    };
    (code == sys::rd_kafka_resp_err_t::RD_KAFKA_RESP_ERR_NO_ERROR)
        .then_some(high)
        .and_then(|high| high.try_into().ok())
}

/// Waits at most `wait` until every record is acknowledged or failed; `linger.ms` does not apply meanwhile. Returns false on
/// timeout. Another thread must serve the delivery reports during the call.
///
/// The Rust client's own flush polls in slices of 100 ms.
pub fn flush<C: ClientContext>(client: &Client<C>, wait: Duration) -> bool {
    // SAFETY: the handle is alive for the whole call.
    let code = unsafe { sys::rd_kafka_flush(client.native_ptr(), millis(wait)) };
    code == sys::rd_kafka_resp_err_t::RD_KAFKA_RESP_ERR_NO_ERROR
}
