//! The embedded broker of librdkafka.
//!
//! It does not support transactions: it answers the whole protocol, but aborted records stay visible,
//! transactional offsets are not stored, and producers are never fenced.
#![expect(unsafe_code, reason = "a foreign function that the Rust client does not offer")]

use rdkafka::error::KafkaError;
use rdkafka::mocking::MockCluster;
use rdkafka::producer::{BaseProducer, DefaultProducerContext, Producer};
use rdkafka::{ClientConfig, bindings as sys};

/// Brokers in this process; they stop when the value is dropped. They keep only 5 MiB per partition.
pub struct Broker {
    /// The client that the brokers belong to. It has no other purpose.
    client: BaseProducer,
    servers: String,
}

impl Broker {
    /// Starts this number of brokers with these topics, each with this number of partitions.
    pub fn start(brokers: u32, topics: &[&str], partitions: i32) -> Result<Self, KafkaError> {
        let client: BaseProducer =
            ClientConfig::new().set("test.mock.num.brokers", brokers.to_string()).create()?;
        let cluster = cluster(&client)?;
        let servers = cluster.bootstrap_servers();
        for topic in topics {
            cluster.create_topic(topic, partitions, 1)?;
        }
        drop(cluster);
        hasten_groups(&client);
        Ok(Self { client, servers })
    }

    /// `host:port` list.
    #[must_use]
    pub fn bootstrap_servers(&self) -> &str {
        &self.servers
    }

    /// The brokers, to inject errors and outages.
    pub fn cluster(&self) -> Result<MockCluster<'_, DefaultProducerContext>, KafkaError> {
        cluster(&self.client)
    }
}

fn cluster(client: &BaseProducer) -> Result<MockCluster<'_, DefaultProducerContext>, KafkaError> {
    let cluster = client.client().mock_cluster();
    cluster.ok_or_else(|| KafkaError::ClientCreation("the client has no embedded broker".to_owned()))
}

/// Reduces the initial rebalance delay to 100 ms; the default is three seconds.
fn hasten_groups(client: &BaseProducer) {
    // SAFETY: the handle is alive; the cluster belongs to it, and the call only sets a number.
    unsafe {
        let cluster = sys::rd_kafka_handle_mock_cluster(client.client().native_ptr());
        if !cluster.is_null() {
            sys::rd_kafka_mock_group_initial_rebalance_delay_ms(cluster, 100);
        }
    }
}
