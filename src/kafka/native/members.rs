//! Who is in a consumer group, and which partitions its coordinator has assigned to whom.

use std::ffi::{CStr, CString, c_char};
use std::ptr;
use std::time::Duration;

use rdkafka::client::Client;
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::{ClientContext, bindings as sys};
use sys::rd_kafka_consumer_group_state_t as State;

use super::describe::{code_of, one_group};
use crate::kafka::group_monitor::{GroupState, GroupView, Member};

/// The group as its coordinator describes it, with what its members have of `topic`.
pub fn members<C: ClientContext>(
    client: &Client<C>,
    name: &str,
    topic: &str,
    wait: Duration,
) -> Result<GroupView, KafkaError> {
    let topic = CString::new(topic)?;
    one_group(client, name, wait, |group| {
        // SAFETY: `one_group` hands over a live description, and everything reached from it lives as long.
        unsafe { view(group, &topic) }
    })
}

/// # Safety
/// `group` must be alive.
unsafe fn view(
    group: *const sys::rd_kafka_ConsumerGroupDescription_t,
    topic: &CStr,
) -> Result<GroupView, KafkaError> {
    // SAFETY: alive by contract; the members are asked for within the count that the description has.
    unsafe {
        match code_of(sys::rd_kafka_ConsumerGroupDescription_error(group)) {
            // What Kafka 4 answers about a group that has no members and no offsets.
            Some(RDKafkaErrorCode::GroupIdNotFound) => return Ok(GroupView::default()),
            Some(code) => return Err(KafkaError::AdminOp(code)),
            None => {}
        }
        let state = match sys::rd_kafka_ConsumerGroupDescription_state(group) {
            State::RD_KAFKA_CONSUMER_GROUP_STATE_STABLE => GroupState::Stable,
            State::RD_KAFKA_CONSUMER_GROUP_STATE_EMPTY | State::RD_KAFKA_CONSUMER_GROUP_STATE_DEAD => {
                GroupState::Empty
            }
            _ => GroupState::Rebalancing,
        };
        let count = sys::rd_kafka_ConsumerGroupDescription_member_count(group);
        let member = |at| member(sys::rd_kafka_ConsumerGroupDescription_member(group, at), topic);
        Ok(GroupView { state, members: (0..count).filter_map(member).collect() })
    }
}

/// # Safety
/// `member` must be null or alive.
unsafe fn member(member: *const sys::rd_kafka_MemberDescription_t, topic: &CStr) -> Option<Member> {
    if member.is_null() {
        return None;
    }
    // SAFETY: not null, so alive by contract; the list and its texts belong to the member.
    unsafe {
        let client_id = text(sys::rd_kafka_MemberDescription_client_id(member));
        let assignment = sys::rd_kafka_MemberDescription_assignment(member);
        let list = if assignment.is_null() {
            ptr::null()
        } else {
            sys::rd_kafka_MemberAssignment_partitions(assignment)
        };
        let elements = if list.is_null() || (*list).elems.is_null() {
            &[]
        } else {
            std::slice::from_raw_parts((*list).elems, usize::try_from((*list).cnt).unwrap_or(0))
        };
        let of_topic = elements.iter().filter(|it| !it.topic.is_null() && CStr::from_ptr(it.topic) == topic);
        let partitions = of_topic.filter_map(|it| u32::try_from(it.partition).ok()).collect();
        Some(Member { client_id, partitions })
    }
}

/// # Safety
/// `text` must be null or a C string that is alive.
unsafe fn text(text: *const c_char) -> String {
    if text.is_null() {
        return String::new();
    }
    // SAFETY: not null, so a C string by contract.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}
