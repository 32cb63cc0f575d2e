//! Polls a consumer through its event queue. The Rust client's own poll does not report which partition an error is about.

use std::ffi::CStr;
use std::ptr::NonNull;

use rdkafka::bindings as sys;
use rdkafka::config::RDKafkaLogLevel;
use rdkafka::consumer::{BaseConsumer, Consumer, ConsumerContext};
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::topic_partition_list::TopicPartitionList;

use super::message::{Event, Message};

/// The event queue of a consumer: records, errors, rebalances and logs. Must be dropped before its consumer.
pub struct Queue(pub(super) NonNull<sys::rd_kafka_queue_t>);

// SAFETY: the handle is a counted reference to a queue with its own lock.
unsafe impl Send for Queue {}

impl Queue {
    /// The queue of a consumer. Fails when it has no `group.id`.
    pub fn of<C: ConsumerContext>(consumer: &BaseConsumer<C>) -> Result<Self, KafkaError> {
        // SAFETY: the client is alive; we own the returned reference.
        let queue = unsafe { sys::rd_kafka_queue_get_consumer(consumer.client().native_ptr()) };
        let no_group = || KafkaError::Subscription("there is no group.id".to_owned());
        NonNull::new(queue).map(Self).ok_or_else(no_group)
    }

    /// The next event, without waiting for one.
    fn next(&self) -> Option<Event> {
        // SAFETY: the queue is alive; we own the returned event.
        NonNull::new(unsafe { sys::rd_kafka_queue_poll(self.0.as_ptr(), 0) }).map(Event)
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        // SAFETY: we own the reference, and it is destroyed only here.
        unsafe { sys::rd_kafka_queue_destroy(self.0.as_ptr()) }
    }
}

/// A read error of a consumer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReadError {
    pub code: RDKafkaErrorCode,
    /// Whether the client is unusable.
    pub fatal: bool,
    /// Partition and offset, when the error is about one partition; the offset is negative when it is unknown.
    pub at: Option<(i32, i64)>,
    /// The topic of that partition; empty when it is unknown.
    pub topic: String,
    /// The error text of the client.
    pub reason: String,
}

impl ReadError {
    /// Whether it is about the connection to a broker, not about a partition.
    pub fn is_of_connection(&self) -> bool {
        use RDKafkaErrorCode as C;
        let is_connection = matches!(
            self.code,
            C::BrokerTransportFailure | C::AllBrokersDown | C::Resolve | C::SSL | C::Authentication
        );
        is_connection && !self.fatal && self.at.is_none()
    }

    /// The same error as the Rust client's poll would return it.
    pub fn error(&self) -> KafkaError {
        match (self.code, self.at) {
            (RDKafkaErrorCode::PartitionEOF, Some((partition, _))) => KafkaError::PartitionEOF(partition),
            (code, _) if self.fatal => KafkaError::MessageConsumptionFatal(code),
            (code, _) => KafkaError::MessageConsumption(code),
        }
    }
}

/// What a poll returned.
pub enum Served<'a> {
    Record(Message<'a>),
    /// A rebalance event, which was passed to the context.
    Rebalance,
    /// Nothing has arrived.
    Nothing,
}

/// Serves the events that have arrived, up to a record or a rebalance event.
pub fn poll<'a, C: ConsumerContext>(
    consumer: &'a BaseConsumer<C>,
    queue: &Queue,
) -> Result<Served<'a>, ReadError> {
    while let Some(event) = queue.next() {
        // SAFETY: the event is alive.
        match unsafe { sys::rd_kafka_event_type(event.0.as_ptr()) } {
            sys::RD_KAFKA_EVENT_FETCH => {
                // SAFETY: it is a fetch event of a consumer that the result borrows.
                if let Some(message) = unsafe { Message::of(event) } {
                    return record(message).map(Served::Record);
                }
            }
            sys::RD_KAFKA_EVENT_ERROR => return Err(read_error(consumer, &event)),
            sys::RD_KAFKA_EVENT_REBALANCE => {
                rebalance(consumer, &event);
                return Ok(Served::Rebalance);
            }
            kind => notify(consumer, &event, kind),
        }
    }
    Ok(Served::Nothing)
}

fn record(message: Message<'_>) -> Result<Message<'_>, ReadError> {
    match message.error() {
        None => Ok(message),
        Some(code) => Err(message.read_error(code, String::new())),
    }
}

fn read_error<C: ConsumerContext>(consumer: &BaseConsumer<C>, event: &Event) -> ReadError {
    let event = event.0.as_ptr();
    // SAFETY: the event is alive; its text is copied, and we own the returned topic partition.
    let error = unsafe {
        let place = sys::rd_kafka_event_topic_partition(event);
        let at = place.as_ref().map(|place| (place.partition, place.offset));
        let topic = place.as_ref().map(|place| text(place.topic)).unwrap_or_default();
        if !place.is_null() {
            sys::rd_kafka_topic_partition_destroy(place);
        }
        ReadError {
            code: sys::rd_kafka_event_error(event).into(),
            fatal: sys::rd_kafka_event_error_is_fatal(event) != 0,
            at,
            topic,
            reason: text(sys::rd_kafka_event_error_string(event)),
        }
    };
    consumer.context().error(KafkaError::Global(error.code), error.reason.trim());
    error
}

fn rebalance<C: ConsumerContext>(consumer: &BaseConsumer<C>, event: &Event) {
    // SAFETY: the event is alive and owns the list; the topic names are C strings.
    let (code, named) = unsafe {
        let list = sys::rd_kafka_event_topic_partition_list(event.0.as_ptr());
        let elements = match list.as_ref() {
            Some(list) if list.cnt > 0 => {
                std::slice::from_raw_parts(list.elems, usize::try_from(list.cnt).unwrap_or(0))
            }
            _ => &[],
        };
        let named: Vec<_> = elements.iter().map(|it| (text(it.topic), it.partition)).collect();
        (sys::rd_kafka_event_error(event.0.as_ptr()), named)
    };
    let mut list = TopicPartitionList::with_capacity(named.len());
    for (topic, partition) in named {
        list.add_partition(&topic, partition);
    }
    consumer.context().rebalance(consumer, code, &mut list);
}

/// Passes events to the context that the caller does not need: statistics and log lines.
fn notify<C: ConsumerContext>(consumer: &BaseConsumer<C>, event: &Event, kind: i32) {
    let event = event.0.as_ptr();
    // SAFETY: the event is alive, and its texts live as long as the event.
    unsafe {
        if kind == sys::RD_KAFKA_EVENT_STATS {
            let stats = sys::rd_kafka_event_stats(event);
            if !stats.is_null() {
                consumer.context().stats_raw(CStr::from_ptr(stats).to_bytes());
            }
        } else if kind == sys::RD_KAFKA_EVENT_LOG {
            let (mut facility, mut line, mut level) = (std::ptr::null(), std::ptr::null(), 0);
            if sys::rd_kafka_event_log(event, &raw mut facility, &raw mut line, &raw mut level) == 0 {
                consumer.context().log(severity(level), text(facility).trim(), text(line).trim());
            }
        }
    }
}

/// The level of a log line, numbered as in syslog.
fn severity(level: i32) -> RDKafkaLogLevel {
    use RDKafkaLogLevel as Level;
    match level {
        0 => Level::Emerg,
        1 => Level::Alert,
        2 => Level::Critical,
        3 => Level::Error,
        4 => Level::Warning,
        5 => Level::Notice,
        6 => Level::Info,
        _ => Level::Debug,
    }
}

/// # Safety
/// `text` must be null or a C string.
pub(super) unsafe fn text(text: *const std::ffi::c_char) -> String {
    if text.is_null() {
        return String::new();
    }
    // SAFETY: a C string by contract.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}
