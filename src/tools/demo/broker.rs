//! The embedded broker of librdkafka; it stops when its value is dropped.

use rdkafka::ClientConfig;
use rdkafka::error::KafkaError;
use rdkafka::producer::{BaseProducer, Producer};

use crate::kafka::hasten_groups;

/// Partitions of each topic. The embedded broker keeps only 5 MiB per partition.
pub(super) const PARTITIONS: i32 = 12;

/// The embedded broker; it stops with the client that created it.
pub(super) struct Broker {
    _client: BaseProducer,
    servers: String,
}

impl Broker {
    pub(super) fn start(topics: [&str; 3]) -> Result<Self, KafkaError> {
        let client: BaseProducer = ClientConfig::new().set("test.mock.num.brokers", "1").create()?;
        let cluster = client
            .client()
            .mock_cluster()
            .ok_or_else(|| KafkaError::ClientCreation("the client has no embedded broker".to_owned()))?;
        for topic in topics {
            cluster.create_topic(topic, PARTITIONS, 1)?;
        }
        let servers = cluster.bootstrap_servers();
        drop(cluster);
        hasten_groups(client.client());
        Ok(Self { _client: client, servers })
    }

    pub(super) fn bootstrap_servers(&self) -> &str {
        &self.servers
    }
}
