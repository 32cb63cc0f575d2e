//! The fetched records of a consumer, in a queue of their own.
//!
//! `rd_kafka_consume_batch_queue` returns many records for one call. Polled as events, each record costs several clock reads and
//! two more locks. On the queue of the consumer itself the call would also take rebalance events, so the queues of the
//! partitions are forwarded to another queue.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::ffi::{CStr, CString, c_void};
use std::ptr::{self, NonNull};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use rdkafka::bindings as sys;
use rdkafka::consumer::{BaseConsumer, Consumer, ConsumerContext};
use rdkafka::error::KafkaError;

use super::message::Message;
use super::poll::{Queue, ReadError, Served, poll};
use crate::clock;
use crate::kafka::ends::Log;
use crate::kafka::partitions::kafka_partition;
use crate::locked::Locked;

/// How often the queues of the partitions are forwarded again. The client removes the forwarding when it stops to fetch a
/// partition, in its own thread and so possibly after the next assignment.
const FORWARD_INTERVAL: Duration = Duration::from_millis(100);

/// The records of all assigned partitions, and the events of the consumer. Must be dropped before the consumer.
pub struct Fetched {
    events: Queue,
    records: Queue,
    /// The queues of the assigned partitions, by topic and partition.
    partitions: RefCell<BTreeMap<(CString, i32), Queue>>,
    /// When they were forwarded.
    forwarded: Cell<Instant>,
    /// Taken from the queue and not yet returned, because an error was returned first.
    held: RefCell<VecDeque<Message<'static>>>,
    /// Buffer of a batch.
    batch: RefCell<Vec<*mut sys::rd_kafka_message_t>>,
    /// Set by the client's threads. The client refers to it until the drop.
    wake: Arc<Wake>,
}

/// Set when a record or an event arrives.
#[derive(Default)]
struct Wake {
    is_set: Mutex<bool>,
    changed: Condvar,
}

impl Wake {
    fn set(&self) {
        *self.is_set.locked() = true;
        self.changed.notify_one();
    }

    fn clear(&self) {
        *self.is_set.locked() = false;
    }

    fn wait(&self, wait: Duration) {
        let is_set = self.is_set.locked();
        drop(self.changed.wait_timeout_while(is_set, wait, |is_set| !*is_set));
    }
}

/// Called by a thread of the client, with the lock of the queue: it must not call the client.
unsafe extern "C" fn wake(_: *mut sys::rd_kafka_t, wake: *mut c_void) {
    // SAFETY: the reference lives until the callback is removed, which waits for the lock of the queue.
    unsafe { &*wake.cast::<Wake>() }.set();
}

// SAFETY: queues and messages of the client may be used from any thread, by one at a time.
unsafe impl Send for Fetched {}

impl Fetched {
    /// The records and events of a consumer without an assignment. Fails when it has no `group.id`.
    pub fn of<C: ConsumerContext>(consumer: &BaseConsumer<C>) -> Result<Self, KafkaError> {
        let events = Queue::of(consumer)?;
        // SAFETY: the client is alive; we own the returned queue.
        let records = unsafe { sys::rd_kafka_queue_new(consumer.client().native_ptr()) };
        let no_queue = || KafkaError::Subscription("the client has no memory for a queue".to_owned());
        let records = NonNull::new(records).map(Queue).ok_or_else(no_queue)?;
        let this = Self {
            events,
            records,
            partitions: RefCell::default(),
            forwarded: Cell::new(clock::monotonic()),
            held: RefCell::default(),
            batch: RefCell::default(),
            wake: Arc::default(),
        };
        this.set_callback(Some(wake));
        Ok(this)
    }

    fn set_callback(&self, callback: Option<unsafe extern "C" fn(*mut sys::rd_kafka_t, *mut c_void)>) {
        for queue in [&self.events, &self.records] {
            let wake = Arc::as_ptr(&self.wake).cast_mut().cast();
            // SAFETY: the queue is alive. `wake` lives until the callback is removed in `drop`.
            unsafe { sys::rd_kafka_queue_cb_event_enable(queue.0.as_ptr(), callback, wake) }
        }
    }

    /// Assigns partitions to the consumer with `assign`, and reads them from now on. Their queues are forwarded before, so that
    /// none of their records arrive among the events, and after, because an assignment can end the forwarding.
    pub fn assign<'a, C: ConsumerContext>(
        &self,
        consumer: &BaseConsumer<C>,
        logs: impl Iterator<Item = Log<'a>>,
        assign: impl FnOnce() -> Result<(), KafkaError>,
    ) -> Result<(), KafkaError> {
        let mut all = self.partitions.borrow_mut();
        for (topic, partition) in logs {
            let (topic, partition) = (CString::new(topic)?, kafka_partition(partition));
            // SAFETY: the client and the name are alive; we own the returned reference.
            let queue = unsafe {
                sys::rd_kafka_queue_get_partition(consumer.client().native_ptr(), topic.as_ptr(), partition)
            };
            all.extend(NonNull::new(queue).map(|queue| ((topic, partition), Queue(queue))));
        }
        drop(all);
        self.forward();
        assign()?;
        self.forward();
        Ok(())
    }

    /// Discards the records of partitions that were taken from the queue, because the partitions are sought or released.
    pub fn discard(&self, is_discarded: impl Fn(&CStr, i32) -> bool) {
        self.held.borrow_mut().retain(|message| !is_discarded(message.topic(), message.place().0));
    }

    /// Reads only these of its partitions from now on.
    pub fn keep(&self, is_kept: impl Fn(&CStr, i32) -> bool) {
        self.discard(|topic, partition| !is_kept(topic, partition));
        self.partitions.borrow_mut().retain(|(topic, partition), _| is_kept(topic, *partition));
    }

    /// Forwards the queues of the partitions.
    fn forward(&self) {
        for queue in self.partitions.borrow().values() {
            // SAFETY: both queues are alive.
            unsafe { sys::rd_kafka_queue_forward(queue.0.as_ptr(), self.records.0.as_ptr()) }
        }
        self.forwarded.set(clock::monotonic());
    }

    /// Serves the consumer and passes its next records to `each`, at most `most`, and until `each` returns false. Waits at most `wait`, and
    /// only for the first.
    /// Returns at once after a rebalance event, which the context of the consumer has received.
    pub fn poll<'a, C: ConsumerContext>(
        &self,
        consumer: &'a BaseConsumer<C>,
        most: usize,
        wait: Duration,
        each: &mut dyn FnMut(Message<'a>) -> bool,
    ) -> Result<(), ReadError> {
        self.wake.clear();
        if !self.take(consumer, most, each)? && !wait.is_zero() {
            self.wake.wait(wait);
            self.take(consumer, most, each)?;
        }
        Ok(())
    }

    /// Returns false when there was neither a record nor a rebalance event.
    fn take<'a, C: ConsumerContext>(
        &self,
        consumer: &'a BaseConsumer<C>,
        most: usize,
        each: &mut dyn FnMut(Message<'a>) -> bool,
    ) -> Result<bool, ReadError> {
        if self.forwarded.get().elapsed() >= FORWARD_INTERVAL {
            self.forward();
        }
        match poll(consumer, &self.events)? {
            Served::Record(message) => {
                each(message);
                return Ok(true);
            }
            Served::Rebalance => return Ok(true),
            Served::Nothing => {}
        }
        let mut held = self.held.borrow_mut();
        if held.is_empty() {
            self.take_batch(&mut held, most);
        }
        let mut count = 0;
        while count < most
            && let Some(message) = held.pop_front()
        {
            if let Some(code) = message.error() {
                let reason = message.error_text();
                message.keep_position(code);
                consumer.context().error(KafkaError::Global(code), reason.trim());
                return Err(message.read_error(code, reason));
            }
            count += 1;
            if !each(message) {
                break;
            }
        }
        Ok(count > 0)
    }

    fn take_batch(&self, held: &mut VecDeque<Message<'static>>, most: usize) {
        let mut batch = self.batch.borrow_mut();
        batch.resize(most, ptr::null_mut());
        // SAFETY: the queue is alive; the client writes at most `most` pointers and returns their number, or a negative error.
        let count = unsafe {
            sys::rd_kafka_consume_batch_queue(self.records.0.as_ptr(), 0, batch.as_mut_ptr(), most)
        };
        let count = usize::try_from(count).unwrap_or(0);
        // SAFETY: we own the messages. `self` is dropped before the consumer, and what it returns borrows the consumer.
        held.extend(batch.iter().take(count).filter_map(|message| unsafe { Message::owned(*message) }));
    }
}

impl Drop for Fetched {
    fn drop(&mut self) {
        self.set_callback(None);
    }
}
