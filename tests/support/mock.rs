//! librdkafka's embedded broker with injected errors, outages and short rebalances.
//!
//! It does not support transactions (see [`testkit::mock`]), so tests on it check only the *client*.

use std::time::Duration;

use rdkafka::ClientConfig;
use rdkafka::mocking::{MockCluster, MockCoordinator};
use rdkafka::producer::DefaultProducerContext;
use rdkafka::types::{RDKafkaApiKey, RDKafkaErrorCode, RDKafkaRespErr};

use dedupd::kafka::Settings;
use testkit::mock::Broker;

pub const RAW: &str = "raw";
pub const CLEAN: &str = "clean";
pub const STATE: &str = "state";
pub const DEAD: &str = "dead";
pub const GROUP: &str = "group";

/// A cluster in this process.
pub struct Mock(Broker);

impl Mock {
    /// A broker with the four topics, each with this number of partitions.
    pub fn start(partitions: i32) -> Self {
        Self::of(1, partitions)
    }

    /// Two brokers. The second one is only the group coordinator.
    pub fn with_group_apart(partitions: i32) -> Self {
        let mock = Self::of(2, partitions);
        for (topic, partition) in
            [RAW, CLEAN, STATE, DEAD].into_iter().flat_map(|topic| (0..partitions).map(move |id| (topic, id)))
        {
            mock.cluster().partition_leader(topic, partition, Some(1)).expect("a leader");
        }
        mock.cluster().coordinator(MockCoordinator::Group(GROUP.to_owned()), 2).expect("a coordinator");
        mock
    }

    /// Makes the first broker the coordinator of this producer.
    pub fn coordinates(&self, transactional_id: &str) {
        let producer = MockCoordinator::Transaction(transactional_id.to_owned());
        self.cluster().coordinator(producer, 1).expect("a coordinator");
    }

    /// Stops the group coordinator.
    pub fn second_down(&self) {
        self.cluster().broker_down(2).expect("the broker goes down");
    }

    fn of(brokers: u32, partitions: i32) -> Self {
        Self(Broker::start(brokers, &[RAW, CLEAN, STATE, DEAD], partitions).expect("an embedded broker"))
    }

    fn cluster(&self) -> MockCluster<'_, DefaultProducerContext> {
        self.0.cluster().expect("an embedded broker")
    }

    pub fn create_topic(&self, topic: &str, partitions: i32) {
        self.cluster().create_topic(topic, partitions, 1).expect("a new topic");
    }

    pub fn bootstrap(&self) -> String {
        self.0.bootstrap_servers().to_owned()
    }

    /// Answers the next requests of this type with these errors, one each.
    pub fn inject(&self, api: RDKafkaApiKey, errors: &[RDKafkaErrorCode]) {
        let errors: Vec<RDKafkaRespErr> = errors
            .iter()
            .map(|code| RDKafkaRespErr::try_from(*code as i32).expect("a code of the protocol"))
            .collect();
        self.cluster().request_errors(api, &errors);
    }

    /// Removes unused errors of [`Mock::inject`].
    pub fn clear(&self, api: RDKafkaApiKey) {
        self.cluster().clear_request_errors(api);
    }

    /// Sets the highest version of an API; the lowest one is 0. `None` removes the API.
    pub fn limit(&self, api: RDKafkaApiKey, highest: Option<i16>) {
        self.cluster().apiversion(api, highest.map(|_| 0), highest).expect("a version");
    }

    /// Closes all connections and rejects new ones.
    pub fn down(&self) {
        self.cluster().broker_down(-1).expect("the broker goes down");
    }

    /// Accepts connections again.
    pub fn up(&self) {
        self.cluster().broker_up(-1).expect("the broker comes up");
    }

    /// Sets the round-trip time.
    pub fn slow(&self, round_trip: Duration) {
        self.cluster().broker_round_trip_time(-1, round_trip).expect("a slower broker");
    }

    /// A plain client.
    pub fn client_config(&self) -> ClientConfig {
        let mut config = ClientConfig::new();
        config.set("bootstrap.servers", self.bootstrap()).set("allow.auto.create.topics", "false");
        config
    }

    /// Settings of a worker named `name`. The session timeout is short, which shortens a join round by a second.
    pub fn settings(&self, name: &str) -> Settings {
        Settings {
            bootstrap_servers: self.bootstrap(),
            properties: Vec::new(),
            raw: RAW.to_owned(),
            clean: CLEAN.to_owned(),
            state: STATE.to_owned(),
            dead_letter: Some(DEAD.to_owned()),
            duplicates: None,
            group: GROUP.to_owned(),
            transactional_id: format!("{GROUP}.{name}.0"),
            client_id: format!("{GROUP}.{name}.0"),
            instance: None,
            session_timeout: Duration::from_millis(2_500),
            transaction_timeout: Duration::from_secs(8),
            interval: Duration::from_millis(100),
            largest_batch: None,
            partitions: 0,
        }
    }
}
