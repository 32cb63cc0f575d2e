//! The part of the configuration that `dedupd rekey` uses.

use std::net::SocketAddr;
use std::time::Duration;

use super::choices::OnGap;
use super::forms::{ADDRESS, FLAG, ID_PARTS, Instance, Word};
use super::keys::{KafkaConfig, RekeyConfig, SESSION_TIMEOUT, SchemasConfig};
use super::page::Page;
use super::reading::ConfigReading;
use super::rules;
use super::section::{ConfigSection, Form, Table};
use crate::dedupe::IdPart;

/// The configuration of `rekey`. Keys that only `run` uses may be missing.
#[derive(Debug, Clone, PartialEq)]
pub struct Rekeying {
    /// Brokers and client properties.
    pub kafka: KafkaConfig,
    /// Source topics, target topic, group, partitioner.
    pub rekey: RekeyConfig,
    /// The topics that `run` writes with the same configuration: no regular expression matches them.
    pub hidden: Vec<String>,
    /// `topics.create`: whether a missing target topic is created.
    pub create: bool,
    /// `identity.from`: the parts of the id, at least one.
    pub id: Vec<IdPart>,
    /// Schemas of keys and values.
    pub schemas: SchemasConfig,
    /// `group.instance`: the name of this instance in the group, the same after a restart.
    pub instance: String,
    /// `group.static_membership`: whether a restarted instance gets its partitions back without a rebalance.
    pub static_membership: bool,
    /// `group.session_timeout`: how long the broker waits for heartbeats of a member.
    pub session_timeout: Duration,
    /// `group.on_gap`: the policy when a source topic does not contain the committed offset.
    pub on_gap: OnGap,
    /// `http.listen`: address and port of metrics and health.
    pub listen: SocketAddr,
}

impl Rekeying {
    /// Reads only the keys of `rekey`. Returns `None` only after a problem was recorded.
    pub(super) fn read(reading: &mut ConfigReading<'_>) -> Option<Self> {
        let kafka = KafkaConfig::read("kafka", reading);
        let rekey = RekeyConfig::read("rekey", reading);
        let hidden = rules::written_by_run(reading).into_iter().map(|(_, name)| name).collect();
        let create = FLAG.read("topics.create", reading);
        let id = ID_PARTS.read("identity.from", reading);
        let schemas = SchemasConfig::read("schemas", reading);
        rules::schemas_for("identity.from", reading);
        let instance = Instance.read("group.instance", reading);
        let static_membership = FLAG.read("group.static_membership", reading);
        let session_timeout = SESSION_TIMEOUT.read("group.session_timeout", reading);
        let on_gap = Word.read("group.on_gap", reading);
        let listen = ADDRESS.read("http.listen", reading);
        Some(Self {
            kafka: kafka?,
            rekey: rekey?,
            hidden,
            create: create?,
            id: id?,
            schemas: schemas?,
            instance: instance?,
            static_membership: static_membership?,
            session_timeout: session_timeout?,
            on_gap: on_gap?,
            listen: listen?,
        })
    }

    /// The effective configuration as TOML, as [`super::Config::show`] prints it.
    pub fn show(&self) -> String {
        let mut page = Page::default();
        Table.print("kafka", &self.kafka, &mut page);
        Table.print("rekey", &self.rekey, &mut page);
        page.section("topics");
        FLAG.print("create", &self.create, &mut page);
        page.section("identity");
        ID_PARTS.print("from", &self.id, &mut page);
        Table.print("schemas", &self.schemas, &mut page);
        page.section("group");
        Instance.print("instance", &self.instance, &mut page);
        FLAG.print("static_membership", &self.static_membership, &mut page);
        SESSION_TIMEOUT.print("session_timeout", &self.session_timeout, &mut page);
        Word.print("on_gap", &self.on_gap, &mut page);
        page.section("http");
        ADDRESS.print("listen", &self.listen, &mut page);
        page.into_text()
    }
}
