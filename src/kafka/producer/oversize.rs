//! Records that a topic certainly rejects for their size.
//!
//! Once the retries of a rejected record are exhausted, such records follow the policy without being sent: each would abort a transaction and
//! replace the producer. No record that the topic would accept may be among them. So the value alone, compressed as the client
//! compresses it, must exceed `max.message.bytes` of the topic by more than an eighth and 1 KiB, and the broker has reported that limit in
//! the same transaction.

use std::collections::BTreeMap;
use std::time::Duration;

use rdkafka::error::RDKafkaErrorCode;

use crate::kafka::admin::TopicAdmin;
use crate::kafka::client_config::Settings;
use crate::kafka::error::rejection;
use crate::kafka::topics::largest_batch;
use crate::ports::OutputTopic;

/// Time limit of the request for a limit.
const WAIT: Duration = Duration::from_secs(2);
/// The level at which the client compresses by default.
const LEVEL: i32 = 3;

/// The limits that the broker has reported in this transaction.
#[derive(Default)]
pub(super) struct Oversize {
    admin: Option<TopicAdmin>,
    /// `None` when the broker does not report it.
    limits: BTreeMap<OutputTopic, Option<u64>>,
}

impl Oversize {
    /// A transaction begins.
    pub(super) fn clear(&mut self) {
        self.limits.clear();
    }

    /// Why the topic certainly rejects a record with this value; `None` when that is not certain.
    pub(super) fn rejection(
        &mut self,
        settings: &Settings,
        topic: OutputTopic,
        value: &[u8],
    ) -> Option<String> {
        // Most records fit uncompressed. What another codec makes of a record is not known.
        if (value.len() as u64) < settings.largest_batch? || settings.sets_compression() {
            return None;
        }
        let limit = self.limit(settings, topic)?;
        let most = limit + limit / 8 + 1_024;
        (value.len() as u64 > most && compressed(value) > most)
            .then(|| rejection(settings.topic_of(topic), RDKafkaErrorCode::MessageSizeTooLarge))
    }

    fn limit(&mut self, settings: &Settings, topic: OutputTopic) -> Option<u64> {
        if let Some(known) = self.limits.get(&topic) {
            return *known;
        }
        if self.admin.is_none() {
            self.admin = TopicAdmin::new(settings, WAIT).ok();
        }
        let config = self.admin.as_ref()?.config_if_allowed(settings.topic_of(topic)).ok();
        let limit = config.as_ref().and_then(largest_batch);
        self.limits.insert(topic, limit);
        limit
    }
}

/// Bytes of a value that is compressed with zstd; 0 when that fails.
fn compressed(value: &[u8]) -> u64 {
    let mut buffer = vec![0_u8; zstd_safe::compress_bound(value.len())];
    zstd_safe::compress(buffer.as_mut_slice(), value, LEVEL).map_or(0, |size| size as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_is_as_large_as_the_client_compresses_it() {
        let mut random = fastrand::Rng::with_seed(7);
        let noise: Vec<u8> = (0..100_000).map(|_| random.u8(..)).collect();
        assert!((100_000..100_100).contains(&compressed(&noise)));
        assert!(compressed(&vec![7; 100_000]) < 100);
    }
}
