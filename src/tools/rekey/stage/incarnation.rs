//! Source logs with other records than those that were read at the same offsets: of recreated topics, and truncated logs.

use std::collections::BTreeMap;
use std::slice;

use super::{REQUEST_TIMEOUT, RekeyLoop};
use crate::config::OnGap;
use crate::kafka::SourceLog;
use crate::ports::{Failure, Remedy, Truncation};

/// How the operator accepts it.
pub(super) const ACCEPT: &str =
    "start once with group.on_gap = \"accept\" (in the environment: DEDUPD_GROUP__ON_GAP=accept)";

impl RekeyLoop<'_> {
    /// The ids of the topics of these logs, as far as the brokers describe them.
    pub(super) fn topic_ids(&self, logs: &[SourceLog]) -> Result<BTreeMap<String, Option<String>>, Failure> {
        let topics = logs.iter().map(|log| log.topic.as_str()).collect();
        self.reader.topic_ids(&topics, REQUEST_TIMEOUT)
    }

    /// Whether the topic of a log is another one than the topic `was` of the committed offset, or than this process has read
    /// under this name. Fails if `group.on_gap` does not accept that.
    pub(super) fn is_recreated(
        &self,
        log: &SourceLog,
        was: Option<&str>,
        is: Option<&str>,
    ) -> Result<bool, Failure> {
        let Some(is) = is else { return Ok(false) };
        let mut read = self.rule.topic_ids.borrow_mut();
        let was = was.or(read.get(&log.topic).map(String::as_str)).filter(|was| *was != is);
        if let Some(was) = was {
            let (topic, group) = (&log.topic, &self.settings.group);
            let what = format!(
                "topic {topic} was deleted and recreated: its id is {is}, but group {group} has read the topic {was}. What was not \
                 read of that topic is lost"
            );
            if self.rule.on_gap == OnGap::Stop {
                let what = format!(
                    "{what}. To read the new topic from its start, {ACCEPT}, or run, while dedupd rekey is stopped, \
                     kafka-consumer-groups.sh --bootstrap-server {} --group {group} --reset-offsets --to-earliest --execute \
                     --topic {topic}",
                    self.settings.bootstrap_servers
                );
                return Err(Failure::new(Remedy::Stop, what));
            }
            tracing::warn!("{what}; reading {log} from its start (group.on_gap = accept)");
        }
        let is_recreated = was.is_some();
        read.insert(log.topic.clone(), is.to_owned());
        Ok(is_recreated)
    }

    /// Fails if a topic was recreated since its partitions were assigned: the client continues in the topic of the same name.
    pub(super) fn compare_topic_ids(&self) -> Result<(), Failure> {
        let logs: Vec<SourceLog> = self.logs.all().map(|assigned| assigned.log.clone()).collect();
        let ids = self.topic_ids(&logs)?;
        for log in logs {
            if self.is_recreated(&log, None, ids.get(&log.topic).and_then(Option::as_deref))? {
                return Err(Failure::new(Remedy::Abort, format!("topic {} was recreated", log.topic)));
            }
        }
        Ok(())
    }

    /// Handles the truncations that the client has found by leader epochs. Of those logs, it has returned everything that it had
    /// fetched, and fetches no more.
    pub(super) fn follow_truncations(&mut self) -> Result<(), Failure> {
        for (log, found) in self.reader.truncated() {
            let Some((next, id)) = self.logs.find(&log).map(|it| (it.next, it.topic_id.clone())) else {
                continue;
            };
            let offsets = self.reader.offsets(slice::from_ref(&log), REQUEST_TIMEOUT)?;
            let Some((_, bounds)) = offsets.first() else { continue };
            let from = if let Truncation::At(end) = found { end } else { bounds.low };
            let from = from.min(bounds.high).max(bounds.low);
            let what = format!(
                "{log} was truncated and written again: from offset {from} on it has other records than those that group {} has \
                 read, up to offset {next}; its brokers have lost those (unclean leader election)",
                self.settings.group
            );
            if self.rule.on_gap == OnGap::Stop {
                let what = format!(
                    "{what}. To read the records that replaced them, {ACCEPT}, or set the group's offset to {from} with \
                     kafka-consumer-groups.sh while dedupd rekey is stopped"
                );
                return Err(Failure::new(Remedy::Stop, what));
            }
            tracing::warn!("{what}; continuing at offset {from} (group.on_gap = accept)");
            let start = (log, from, None);
            self.reader.read_again(start.clone())?;
            self.logs.place(start, bounds.stable, id);
        }
        Ok(())
    }
}
