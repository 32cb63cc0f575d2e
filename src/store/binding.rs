//! The cluster, topics, group and identity rules that a store belongs to. State of another topic or cluster must
//! never be used.

use serde::{Deserialize, Serialize};

use crate::dedupe::{Fingerprint, HashKind, KindId, WindowId};

/// What the store's identities and offsets refer to. Stored in the database.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Binding {
    /// Cluster id that the brokers report.
    pub cluster_id: String,
    /// Name of the raw topic.
    pub raw: String,
    /// Name of the clean topic.
    pub clean: String,
    /// Name of the state topic.
    pub state: String,
    /// Name of the consumer group.
    pub group: String,
    /// Number of partitions of the raw topic. May grow.
    pub partitions: u32,
    /// The hash that computes the identities.
    #[serde(with = "hash_text")]
    pub hash: HashKind,
    /// Kafka's topic id of the raw topic, if known. Distinguishes a recreated topic from the previous one.
    pub raw_id: Option<String>,
    /// Kafka's topic id of the clean topic, if known.
    pub clean_id: Option<String>,
    /// Kafka's topic id of the state topic, if known.
    pub state_id: Option<String>,
    /// Names of the kinds with windows of their own, in order. The stored state is complete only for these kinds.
    pub kinds: Vec<String>,
    /// The identity rules: first the one for records of no named kind, then one for each of `kinds`. Empty if not
    /// known.
    pub rules: Vec<Fingerprint>,
    /// Whether one journal has the owners of all partitions. Otherwise each partition has its own.
    pub topic_scope: bool,
    /// From the configuration only, not stored: state made by other rules may be quarantined.
    #[serde(skip)]
    pub accepts_change: bool,
}

/// A window whose identities were computed by another rule than the configured one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OtherRule<'a> {
    /// Its kind, if it has a name.
    pub kind: Option<&'a str>,
    /// The rule in the store.
    pub stored: Fingerprint,
    /// The rule in the configuration.
    pub configured: Fingerprint,
}

/// How a stored binding relates to the configured one.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Relation {
    /// The store is ours. Contains the binding to store (partitions may have been added, topic ids may be newly
    /// known).
    Ours(Box<Binding>),
    /// The store belongs to something else. Contains the reason.
    Foreign(String),
    /// Same topics, but the identities were computed with another hash.
    OtherHash,
    /// Same topics, but the identities of this kind were computed by another rule.
    OtherRule(Option<String>),
}

impl Binding {
    /// The hash as text: `xxh3`, or `siphash:` and the key id in hex.
    pub fn hash_text(&self) -> String {
        hash_text::text(self.hash)
    }

    /// The journals: one for each partition, or one for all.
    pub fn journals(&self) -> u32 {
        if self.topic_scope { self.partitions.min(1) } else { self.partitions }
    }

    /// All windows, each with the name of its kind, if it has one. Sorted by window id.
    pub fn windows(&self) -> Vec<(Option<&str>, WindowId)> {
        let kinds = std::iter::once(None).chain(self.kinds.iter().map(|name| Some(name.as_str())));
        let of = |kind: Option<&str>| kind.map_or(KindId::UNNAMED, KindId::named);
        let mut all: Vec<_> =
            kinds.flat_map(|kind| (0..self.journals()).map(move |id| (kind, of(kind).window(id)))).collect();
        all.sort_unstable_by_key(|(_, window)| *window);
        all
    }

    /// Fingerprint of all rules together, with which an operator accepts a change of them. `None` if the rules are
    /// not known.
    pub fn fingerprint(&self) -> Option<Fingerprint> {
        let (unnamed, named) = self.rules.split_first()?;
        let named: Vec<_> = self.kinds.iter().map(String::as_str).zip(named.iter().copied()).collect();
        Some(Fingerprint::of_all(*unnamed, &named))
    }

    /// The rules, each with the name of its kind, if it has one.
    fn known_rules(&self) -> impl Iterator<Item = (Option<&str>, Fingerprint)> {
        let kinds = std::iter::once(None).chain(self.kinds.iter().map(|name| Some(name.as_str())));
        kinds.zip(self.rules.iter().copied())
    }

    /// The first window whose stored rule differs from that of `self`. What names no rule for a window counts as ours.
    pub fn other_rule<'a>(&'a self, stored: &Self) -> Option<OtherRule<'a>> {
        self.known_rules().find_map(|(kind, configured)| {
            let (_, stored) = stored.known_rules().find(|(known, _)| *known == kind)?;
            (stored != configured).then_some(OtherRule { kind, stored, configured })
        })
    }

    /// Compares the configured binding `self` with the stored one.
    pub(super) fn relation(&self, stored: &Self) -> Relation {
        let accepted =
            |what| Relation::Foreign(format!("{what}, and identity.accept_change accepts the change"));
        let names = [
            ("cluster", &stored.cluster_id, &self.cluster_id),
            ("raw topic", &stored.raw, &self.raw),
            ("clean topic", &stored.clean, &self.clean),
            ("state topic", &stored.state, &self.state),
            ("group", &stored.group, &self.group),
        ];
        for (what, theirs, ours) in names {
            if theirs != ours {
                return Relation::Foreign(format!("it belongs to {what} {theirs:?}, not {ours:?}"));
            }
        }
        let ids = [
            ("raw", &stored.raw_id, &self.raw_id),
            ("clean", &stored.clean_id, &self.clean_id),
            ("state", &stored.state_id, &self.state_id),
        ];
        for (what, theirs, ours) in ids {
            if let (Some(theirs), Some(ours)) = (theirs, ours)
                && theirs != ours
            {
                return Relation::Foreign(format!("the {what} topic was recreated: id {theirs}, now {ours}"));
            }
        }
        if stored.partitions > self.partitions {
            let (had, has) = (stored.partitions, self.partitions);
            return Relation::Foreign(format!("the raw topic had {had} partitions and now has {has}"));
        }
        if stored.hash != self.hash {
            if self.accepts_change {
                return accepted("it was made with another hash");
            }
            return Relation::OtherHash;
        }
        if let Some(changed) = self.other_rule(stored) {
            if self.accepts_change {
                return accepted("it was made by another identity rule");
            }
            return Relation::OtherRule(changed.kind.map(str::to_owned));
        }
        if stored.kinds != self.kinds {
            return Relation::Foreign(format!(
                "it was made for the kinds {}, not {}",
                stored.kinds.join(", "),
                self.kinds.join(", ")
            ));
        }
        if stored.topic_scope != self.topic_scope {
            let scope = |binding: &Self| if binding.topic_scope { "topic" } else { "partition" };
            return Relation::Foreign(format!(
                "it was written with dedupe.scope = \"{}\", which is now \"{}\"",
                scope(stored),
                scope(self)
            ));
        }
        Relation::Ours(Box::new(Self {
            raw_id: self.raw_id.clone().or_else(|| stored.raw_id.clone()),
            clean_id: self.clean_id.clone().or_else(|| stored.clean_id.clone()),
            state_id: self.state_id.clone().or_else(|| stored.state_id.clone()),
            ..self.clone()
        }))
    }
}

/// The hash as text, for the stored binding and for messages.
mod hash_text {
    use serde::{Deserialize, Deserializer, Serializer, de};

    use crate::dedupe::HashKind;

    /// `xxh3`, or `siphash:` and the key id in hex.
    pub(super) fn text(hash: HashKind) -> String {
        match hash {
            HashKind::Xxh3 => "xxh3".to_owned(),
            HashKind::SipHash { key_id } => format!("siphash:{key_id:016x}"),
        }
    }

    pub(super) fn serialize<S: Serializer>(hash: &HashKind, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(&text(*hash))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<HashKind, D::Error> {
        let text = String::deserialize(from)?;
        match text.split_once(':') {
            None if text == "xxh3" => Ok(HashKind::Xxh3),
            Some(("siphash", key_id)) => u64::from_str_radix(key_id, 16)
                .map(|key_id| HashKind::SipHash { key_id })
                .map_err(de::Error::custom),
            _ => Err(de::Error::custom(format!("unknown hash {text:?}"))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn binding() -> Binding {
        Binding {
            cluster_id: "c".into(),
            raw: "r".into(),
            clean: "l".into(),
            state: "s".into(),
            group: "g".into(),
            partitions: 4,
            hash: HashKind::SipHash { key_id: u64::MAX },
            raw_id: Some("1".into()),
            clean_id: None,
            state_id: None,
            kinds: vec!["payments".into()],
            rules: ["00000001", "00000002"].map(|rule| rule.parse().unwrap()).to_vec(),
            topic_scope: true,
            accepts_change: false,
        }
    }

    #[test]
    fn a_changed_rule_of_any_window_is_rejected_unless_the_change_is_accepted() {
        let stored = binding();
        for place in [0, 1] {
            let mut ours = binding();
            ours.rules[place] = "0000000f".parse().unwrap();
            let kind = (place == 1).then(|| "payments".to_owned());
            assert_eq!(ours.relation(&stored), Relation::OtherRule(kind));
            ours.accepts_change = true;
            assert!(matches!(ours.relation(&stored), Relation::Foreign(_)), "quarantined, never loaded");
            let renamed = Binding { kinds: vec!["money".into()], accepts_change: false, ..ours.clone() };
            let is_rejected = matches!(renamed.relation(&stored), Relation::OtherRule(_));
            assert_eq!(is_rejected, place == 0, "stored ids belong to the name of their kind");
        }
        let former = Binding { rules: Vec::new(), ..binding() };
        assert_eq!(
            binding().relation(&former),
            Relation::Ours(Box::new(binding())),
            "stored before rules were part of the binding"
        );
        assert_ne!(
            binding().fingerprint(),
            Binding { rules: vec![stored.rules[0]; 2], ..binding() }.fingerprint()
        );
    }

    #[test]
    fn a_binding_reads_back_as_written() {
        for hash in [HashKind::Xxh3, HashKind::SipHash { key_id: 0 }, HashKind::SipHash { key_id: u64::MAX }]
        {
            let binding = Binding { hash, ..binding() };
            let json = serde_json::to_vec(&binding).unwrap();
            assert_eq!(serde_json::from_slice::<Binding>(&json).unwrap(), binding);
        }
    }

    #[test]
    fn every_difference_makes_a_store_foreign_except_added_partitions_and_newly_known_ids() {
        let stored = binding();
        let changes: [fn(&mut Binding); 8] = [
            |b| b.cluster_id.push('x'),
            |b| b.raw.push('x'),
            |b| b.clean.push('x'),
            |b| b.state.push('x'),
            |b| b.group.push('x'),
            |b| b.raw_id = Some("2".into()),
            |b| b.partitions = 3,
            |b| b.topic_scope = false,
        ];
        for change in changes {
            let mut ours = binding();
            change(&mut ours);
            assert!(matches!(ours.relation(&stored), Relation::Foreign(_)), "{ours:?}");
        }
        let grown = Binding { partitions: 9, raw_id: None, clean_id: Some("3".into()), ..binding() };
        let kept = Binding { raw_id: Some("1".into()), ..grown.clone() };
        assert_eq!(grown.relation(&stored), Relation::Ours(Box::new(kept)));
        let other = Binding { hash: HashKind::Xxh3, ..binding() };
        assert_eq!(other.relation(&stored), Relation::OtherHash);
    }
}
