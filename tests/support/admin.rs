//! Admin requests of tests: topics, their settings, offsets of groups.

use std::collections::HashMap;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use dedupd::clock::monotonic;
use rdkafka::admin::{
    AdminClient, AdminOptions, AlterConfig, ConfigSource, NewPartitions, NewTopic, ResourceSpecifier,
    TopicReplication,
};
use rdkafka::client::DefaultClientContext;
use rdkafka::config::FromClientConfig;
use rdkafka::consumer::{BaseConsumer, CommitMode, Consumer};
use rdkafka::metadata::MetadataTopic;
use rdkafka::producer::{BaseProducer, Producer};
use rdkafka::{Offset, TopicPartitionList};

use super::{Isolation, Kafka, tool, wait_until};

const CALL_LIMIT: Duration = Duration::from_secs(30);

impl Kafka {
    /// An admin client on the direct listener. It survives restarts of the broker.
    pub fn admin(&self) -> &AdminClient<DefaultClientContext> {
        self.admin.get_or_init(|| AdminClient::from_config(&self.client_config()).expect("an admin client"))
    }

    /// Whether the broker responds, lists all nodes and has a leader for every partition.
    pub(super) fn serves(&self) -> bool {
        let metadata = self.admin().inner().fetch_metadata(None, Duration::from_millis(250));
        metadata.is_ok_and(|metadata| {
            let mut partitions = metadata.topics().iter().flat_map(MetadataTopic::partitions);
            metadata.brokers().len() == self.nodes && partitions.all(|partition| partition.leader() >= 0)
        })
    }

    /// Creates a topic and waits until all its partitions have a leader.
    /// In a cluster of three or more nodes it has three replicas.
    pub fn create_topic(&self, name: &str, partitions: usize, settings: &[(&str, &str)]) {
        let count = i32::try_from(partitions).unwrap();
        let replicas = if self.nodes < 3 { 1 } else { 3 };
        let mut topic = NewTopic::new(name, count, TopicReplication::Fixed(replicas));
        for (key, value) in settings {
            topic = topic.set(key, value);
        }
        let results = block_on(self.admin().create_topics([&topic], &options())).expect("create_topics");
        assert_eq!(results, [Ok(name.to_owned())], "topic {name} could not be created");
        self.wait_for_partitions(name, partitions);
    }

    /// Creates a topic, each partition of it on one node.
    pub fn create_topic_on(&self, name: &str, nodes: &[i32]) {
        let replicas: Vec<&[i32]> = nodes.chunks(1).collect();
        let topic =
            NewTopic::new(name, i32::try_from(nodes.len()).unwrap(), TopicReplication::Variable(&replicas));
        let results = block_on(self.admin().create_topics([&topic], &options())).expect("create_topics");
        assert_eq!(results, [Ok(name.to_owned())], "topic {name} could not be created");
        self.wait_for_partitions(name, nodes.len());
    }

    /// Deletes a topic and waits until it is removed from the metadata.
    pub fn delete_topic(&self, name: &str) {
        let results = block_on(self.admin().delete_topics(&[name], &options())).expect("delete_topics");
        assert_eq!(results, [Ok(name.to_owned())], "topic {name} could not be deleted");
        self.renew_consumers();
        self.wait_for_partitions(name, 0);
    }

    /// Grows a topic to `total` partitions.
    pub fn grow_topic(&self, name: &str, total: usize) {
        let growth = NewPartitions::new(name, total);
        let results =
            block_on(self.admin().create_partitions([&growth], &options())).expect("create_partitions");
        assert_eq!(results, [Ok(name.to_owned())], "topic {name} could not be grown");
        self.renew_consumers();
        self.wait_for_partitions(name, total);
    }

    /// Number of partitions with a leader, 0 if the topic does not exist.
    pub fn partitions(&self, name: &str) -> usize {
        // With several nodes, the client may send the request to an unavailable one.
        let all = wait_until("metadata", CALL_LIMIT * 3, || {
            self.admin().inner().fetch_metadata(None, Duration::from_secs(3)).ok()
        });
        let topic = all.topics().iter().find(|topic| topic.name() == name);
        topic.map_or(0, |topic| topic.partitions().iter().filter(|partition| partition.leader() >= 0).count())
    }

    fn wait_for_partitions(&self, name: &str, count: usize) {
        let what = format!("{count} partitions of {name}");
        wait_until(&what, CALL_LIMIT, || (self.partitions(name) == count).then_some(()));
        // One node of a cluster may know of the change later than others. A new client asks the only one that it knows.
        for node in self.bootstrap().split(',').filter(|_| self.nodes > 1) {
            let mut config = self.client_config();
            let asks: BaseConsumer = config.set("bootstrap.servers", node).create().unwrap();
            wait_until(&what, CALL_LIMIT, || {
                let Ok(found) = asks.fetch_metadata(Some(name), Duration::from_secs(3)) else {
                    return Some(());
                };
                (found.topics()[0].partitions().len() == count).then_some(())
            });
        }
    }

    /// The topic id as Kafka's own tool prints it.
    pub fn topic_id(&self, name: &str) -> String {
        let arguments = ["--bootstrap-server", self.bootstrap(), "--describe", "--topic", name];
        let text = tool("org.apache.kafka.tools.TopicCommand", &arguments);
        let (_, rest) = text.split_once("TopicId: ").unwrap_or_else(|| panic!("{text}"));
        rest.split_whitespace().next().unwrap().to_owned()
    }

    /// The effective settings of a topic, including defaults.
    pub fn topic_config(&self, name: &str) -> HashMap<String, String> {
        self.topic_entries(name, |_| true)
    }

    fn topic_entries(&self, name: &str, keep: impl Fn(&ConfigSource) -> bool) -> HashMap<String, String> {
        let resource = ResourceSpecifier::Topic(name);
        let mut results =
            block_on(self.admin().describe_configs([&resource], &options())).expect("describe_configs");
        let resource = results.remove(0).unwrap_or_else(|code| panic!("settings of topic {name}: {code}"));
        let entries = resource.entries.into_iter().filter(|entry| keep(&entry.source));
        entries.filter_map(|entry| Some((entry.name, entry.value?))).collect()
    }

    /// Changes settings of a topic and keeps the others.
    pub fn alter_topic_config(&self, name: &str, changes: &[(&str, &str)]) {
        // The librdkafka call replaces all overrides of the topic, so the current ones are included.
        let mut all = self.topic_entries(name, |source| matches!(source, ConfigSource::DynamicTopic));
        all.extend(changes.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())));
        let change =
            all.iter().fold(AlterConfig::new(ResourceSpecifier::Topic(name)), |change, (key, value)| {
                change.set(key, value)
            });
        let results = block_on(self.admin().alter_configs([&change], &options())).expect("alter_configs");
        assert!(
            results.iter().all(Result::is_ok),
            "settings of topic {name} could not be changed: {results:?}"
        );
        for (key, value) in changes {
            let what = format!("{key}={value} on topic {name}");
            wait_until(&what, CALL_LIMIT, || (self.topic_config(name).get(*key)? == value).then_some(()));
        }
    }

    /// Deletes the records of a partition below offset `before`, as retention would.
    pub fn delete_records(&self, topic: &str, partition: i32, before: i64) {
        let mut offsets = TopicPartitionList::new();
        offsets.add_partition_offset(topic, partition, Offset::Offset(before)).unwrap();
        let deleted = block_on(self.admin().delete_records(&offsets, &options())).expect("delete_records");
        deleted.elements()[0]
            .error()
            .unwrap_or_else(|error| panic!("records of {topic}/{partition}: {error}"));
        assert_eq!(self.watermarks(topic, partition).0, before, "log start of {topic}/{partition}");
    }

    /// First offset and high watermark of a partition, open transactions included.
    pub fn watermarks(&self, topic: &str, partition: i32) -> (i64, i64) {
        // The admin client reads as read_committed, so it would return the last stable offset.
        self.log_ends(topic, partition, Isolation::Uncommitted)
    }

    /// The last stable offset of a partition: the end for `read_committed` consumers.
    pub fn last_stable_offset(&self, topic: &str, partition: i32) -> i64 {
        self.log_ends(topic, partition, Isolation::Committed).1
    }

    /// Waits until no transaction is open in a topic, at most this long: the broker acknowledges a commit before it has written all
    /// markers, and records without a marker cannot be read.
    pub fn wait_ended(&self, topic: &str, limit: Duration) {
        let mut open: Vec<i32> = (0..i32::try_from(self.partitions(topic)).unwrap()).collect();
        let start = monotonic();
        while !open.is_empty() && start.elapsed() < limit {
            let end = |partition| self.watermarks(topic, partition).1;
            open.retain(|partition| self.last_stable_offset(topic, *partition) < end(*partition));
        }
    }

    /// The bounds of a log. The request is retried, because a restarted broker may reject it at first.
    fn log_ends(&self, topic: &str, partition: i32, isolation: Isolation) -> (i64, i64) {
        wait_until(&format!("the ends of {topic}/{partition}"), CALL_LIMIT * 3, || {
            let reader = self.plain_consumer("harness", isolation);
            reader.fetch_watermarks(topic, partition, CALL_LIMIT).inspect_err(|_| self.renew_consumers()).ok()
        })
    }

    /// A consumer without a subscription, for the offsets of logs and groups. There is one per group and isolation
    /// level: tests request offsets in loops, and a new client costs several connections and threads.
    fn plain_consumer(&self, group: &str, isolation: Isolation) -> Arc<BaseConsumer> {
        let create = || {
            let mut config = self.client_config();
            config
                .set("group.id", group)
                .set("enable.auto.commit", "false")
                .set("isolation.level", isolation.level());
            Arc::new(config.create().expect("a consumer"))
        };
        let mut all = self.consumers.lock().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(all.entry((group.to_owned(), isolation.level())).or_insert_with(create))
    }

    /// The next requests use new consumers. The old ones do not know the partitions of a topic that has changed.
    fn renew_consumers(&self) {
        self.consumers.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }

    /// The committed offset of a group with its metadata. Waits for pending transactions on it.
    pub fn committed(&self, group: &str, topic: &str, partition: i32) -> Option<(i64, String)> {
        let mut partitions = TopicPartitionList::new();
        partitions.add_partition(topic, partition);
        // A restarted broker may still be loading group metadata.
        let found = wait_until(&format!("the offsets of group {group}"), CALL_LIMIT, || {
            let client = self.plain_consumer(group, Isolation::Committed);
            client
                .committed_offsets(partitions.clone(), CALL_LIMIT)
                .inspect_err(|_| self.renew_consumers())
                .ok()
        });
        let element = &found.elements()[0];
        let Offset::Offset(offset) = element.offset() else { return None };
        Some((offset, element.metadata().to_owned()))
    }

    /// Sets the committed offset of a group after its last member has left or timed out.
    pub fn commit_offset(&self, group: &str, topic: &str, partition: i32, offset: i64) {
        self.commit_with(group, (topic, partition), offset, "");
    }

    /// The same with metadata.
    pub fn commit_with(&self, group: &str, (topic, partition): (&str, i32), offset: i64, metadata: &str) {
        let mut offsets = TopicPartitionList::new();
        let mut element = offsets.add_partition(topic, partition);
        element.set_offset(Offset::Offset(offset)).unwrap();
        element.set_metadata(metadata);
        let client = self.plain_consumer(group, Isolation::Committed);
        wait_until(&format!("group {group} to be empty"), CALL_LIMIT, || {
            client.commit(&offsets, CommitMode::Sync).ok()
        });
    }

    /// Deletes a group and its offsets after its last member has left or timed out.
    pub fn delete_group(&self, group: &str) {
        wait_until(&format!("group {group} to be deleted"), CALL_LIMIT, || {
            let results = block_on(self.admin().delete_groups(&[group], &options())).expect("delete_groups");
            (results == [Ok(group.to_owned())]).then_some(())
        });
    }

    /// Fences the producer with this transactional id, and aborts its open transaction.
    pub fn fence(&self, transactional_id: &str) {
        let producer: BaseProducer =
            self.client_config().set("transactional.id", transactional_id).create().expect("a producer");
        producer.init_transactions(CALL_LIMIT).expect("init_transactions");
    }
}

fn options() -> AdminOptions {
    AdminOptions::new().operation_timeout(Some(CALL_LIMIT)).request_timeout(Some(CALL_LIMIT))
}

fn block_on<F: Future>(future: F) -> F::Output {
    tokio::runtime::Builder::new_current_thread().build().expect("a runtime").block_on(future)
}
