//! The generator's producer.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use dedupd_tokens::Authenticated;
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::message::{Header, OwnedHeaders};
use rdkafka::producer::{BaseProducer, BaseRecord, DeliveryResult, Producer, ProducerContext};
use rdkafka::{ClientConfig, ClientContext};

use super::error::GenerateError;
use super::events::Event;
use super::proxy::Proxy;

const POLL_INTERVAL: Duration = Duration::from_millis(10);

/// Number of delivered records, and why the first other one failed.
#[derive(Debug, Default)]
struct Deliveries {
    delivered: AtomicU64,
    why: Mutex<Option<KafkaError>>,
}

impl ClientContext for Deliveries {
    /// Ignored: closed connections are intended, and failed records have delivery reports.
    fn error(&self, _: KafkaError, _: &str) {}
}

impl ProducerContext for Deliveries {
    type DeliveryOpaque = ();

    fn delivery(&self, result: &DeliveryResult<'_>, (): ()) {
        match result {
            Ok(_) => _ = self.delivered.fetch_add(1, Ordering::Relaxed),
            Err((error, _)) => {
                let mut why = self.why.lock().unwrap_or_else(PoisonError::into_inner);
                why.get_or_insert_with(|| error.clone());
            }
        }
    }
}

/// A producer for one topic. Without a proxy it is idempotent and writes each record once. With a proxy it is
/// not idempotent, and retries requests without a response.
pub(super) struct Writer<'a> {
    producer: Authenticated<BaseProducer<Deliveries>>,
    topic: &'a str,
}

impl<'a> Writer<'a> {
    pub fn new(direct: &ClientConfig, proxy: Option<&Proxy>, topic: &'a str) -> Result<Self, GenerateError> {
        let mut config = direct.clone();
        let defaults = [
            ("linger.ms", "5"),
            ("partitioner", "murmur2_random"),
            ("enable.idempotence", if proxy.is_some() { "false" } else { "true" }),
            ("acks", "all"),
            ("message.timeout.ms", "60000"),
        ];
        for (name, value) in defaults {
            if direct.get(name).is_none() {
                config.set(name, value);
            }
        }
        if let Some(proxy) = proxy {
            config
                .set("bootstrap.servers", proxy.bootstrap_servers())
                .set("broker.address.family", "v4")
                // Small batches give more responses to drop, and fewer repeats for each.
                .set("batch.num.messages", "500")
                .set("max.in.flight", "5")
                .set("retry.backoff.ms", "20")
                .set("reconnect.backoff.ms", "10")
                .set("reconnect.backoff.max.ms", "100");
        }
        let producer =
            dedupd_tokens::create(&config, Deliveries::default()).map_err(GenerateError::Settings)?;
        Ok(Self { producer, topic })
    }

    /// Gives one event to the client; waits while its queue is full. The error is why a record was not written.
    pub fn send(&self, event: &Event) -> Result<(), KafkaError> {
        let mut record =
            BaseRecord::to(self.topic).key(&event.key).payload(&event.value).timestamp(event.timestamp_ms);
        if !event.headers.is_empty() {
            let headers = OwnedHeaders::new_with_capacity(event.headers.len());
            record = record.headers(event.headers.iter().fold(headers, |headers, (key, value)| {
                headers.insert(Header { key, value: value.as_ref() })
            }));
        }
        while let Err((error, returned)) = self.producer.send(record) {
            if error.rdkafka_error_code() != Some(RDKafkaErrorCode::QueueFull) {
                return Err(error);
            }
            self.poll(POLL_INTERVAL)?;
            record = returned;
        }
        Ok(())
    }

    /// Waits this long and takes the delivery reports; fails if a record was not written.
    pub fn poll(&self, wait: Duration) -> Result<(), KafkaError> {
        // The client would wait as long, and spin in the last millisecond.
        std::thread::sleep(wait);
        self.producer.poll(Duration::ZERO);
        let why = self.producer.context().why.lock().unwrap_or_else(PoisonError::into_inner).clone();
        why.map_or(Ok(()), Err)
    }

    /// Waits until all records are acknowledged or have failed; the client fails a record after a minute.
    pub fn drain(&self, mut progress: impl FnMut(&Self)) -> Result<(), KafkaError> {
        while self.producer.in_flight_count() > 0 {
            self.producer.poll(POLL_INTERVAL * 10);
            progress(self);
        }
        self.poll(Duration::ZERO)
    }

    /// Number of acknowledged records.
    pub fn delivered(&self) -> u64 {
        self.producer.context().delivered.load(Ordering::Relaxed)
    }
}
