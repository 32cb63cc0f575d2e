//! What a store belongs to. State of another topic or cluster must never decide about ours.

use serde::{Deserialize, Serialize};

use crate::dedupe::{Fingerprint, HashKind, KindId, PartitionId};

/// What the store's identities and offsets refer to; written into the database.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Binding {
    /// Kafka's id of the cluster.
    pub cluster_id: String,
    /// Name of the raw topic.
    pub raw: String,
    /// Name of the clean topic.
    pub clean: String,
    /// Name of the state topic.
    pub state: String,
    /// Name of the consumer group.
    pub group: String,
    /// Partitions of the raw topic. May grow.
    pub partitions: u32,
    /// The hash that makes the identities.
    #[serde(with = "hash_text")]
    pub hash: HashKind,
    /// Kafka's id of the raw topic, where known: tells a re-created topic from its predecessor.
    pub raw_id: Option<String>,
    /// Kafka's id of the clean topic, where known.
    pub clean_id: Option<String>,
    /// Kafka's id of the state topic, where known.
    pub state_id: Option<String>,
    /// The kinds with windows of their own, by name, in order. What the store knows is complete for these alone.
    #[serde(default)]
    pub kinds: Vec<String>,
    /// The rules by which identities are made: of the records of no named kind, then of `kinds`. Empty where not known.
    #[serde(default)]
    pub rules: Vec<Fingerprint>,
    /// For how long these windows have been kept, in ms: what a longer one needs may have been deleted. Empty where not known.
    #[serde(default)]
    pub kept_ms: Vec<u64>,
    /// Of the configuration alone: state made by other rules may be set aside.
    #[serde(skip)]
    pub accepts_change: bool,
}

/// How a stored binding stands to the configured one.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Relation {
    /// The store is ours; the binding to keep in it (more partitions, ids now known).
    Ours(Box<Binding>),
    /// The store belongs to something else, for this reason.
    Foreign(String),
    /// Same topics, but made with this other hash.
    OtherHash(HashKind),
    /// Same topics, but made by another rule: of which kind, and which.
    OtherRule(Option<String>, Fingerprint),
}

impl Binding {
    /// The hash as text: `xxh3`, or `siphash:` and the key id in hex.
    #[must_use]
    pub fn hash_text(&self) -> String {
        hash_text::text(self.hash)
    }

    /// The windows of all partitions: the kind's name, if it has one, the partition, and the number that their blocks are
    /// filed under, by which they are sorted.
    #[must_use]
    pub fn windows(&self) -> Vec<(Option<&str>, PartitionId, PartitionId)> {
        let kinds = std::iter::once(None).chain(self.kinds.iter().map(|name| Some(name.as_str())));
        let of = |kind: Option<&str>| kind.map_or(KindId::UNNAMED, KindId::named);
        let mut all: Vec<_> = kinds
            .flat_map(|kind| (0..self.partitions).map(move |id| (kind, id, of(kind).filed(id))))
            .collect();
        all.sort_unstable_by_key(|(_, _, filed)| *filed);
        all
    }

    /// All rules together, by which an operator accepts a change to them; `None` where they are not known.
    #[must_use]
    pub fn fingerprint(&self) -> Option<Fingerprint> {
        let (unnamed, named) = self.rules.split_first()?;
        let named: Vec<_> = self.kinds.iter().map(String::as_str).zip(named.iter().copied()).collect();
        Some(Fingerprint::of_all(*unnamed, &named))
    }

    /// What is known of the windows: the kind's name, its rule, and how long it is kept.
    fn known<'a, T: Copy>(&'a self, of: &'a [T]) -> impl Iterator<Item = (Option<&'a str>, T)> {
        std::iter::once(None).chain(self.kinds.iter().map(|name| Some(name.as_str()))).zip(of.iter().copied())
    }

    /// The first window of `self` that `stored` has by another rule, and that rule.
    fn other_rule(&self, stored: &Self) -> Option<(Option<String>, Fingerprint)> {
        self.known(&self.rules).find_map(|(kind, ours)| {
            let (_, theirs) = stored.known(&stored.rules).find(|(known, _)| *known == kind)?;
            (theirs != ours).then(|| (kind.map(str::to_owned), theirs))
        })
    }

    /// The first window of `self` that is longer than `stored` has been kept for.
    fn lengthened(&self, stored: &Self) -> Option<String> {
        self.known(&self.kept_ms).find_map(|(kind, ours)| {
            let (_, theirs) = stored.known(&stored.kept_ms).find(|(known, _)| *known == kind)?;
            let of = kind.map(|kind| format!(" of kind {kind:?}")).unwrap_or_default();
            (theirs < ours)
                .then(|| format!("it was kept for a window{of} of {theirs} ms, which is now {ours} ms"))
        })
    }

    /// Compares `self`, as configured, with what a store says of itself.
    pub(super) fn relation(&self, stored: &Self) -> Relation {
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
                return Relation::Foreign(format!(
                    "the {what} topic was re-created: id {theirs}, now {ours}"
                ));
            }
        }
        if stored.partitions > self.partitions {
            let (had, has) = (stored.partitions, self.partitions);
            return Relation::Foreign(format!("the raw topic had {had} partitions and has {has}"));
        }
        if let Some((kind, theirs)) = self.other_rule(stored).filter(|_| stored.hash == self.hash) {
            if !self.accepts_change {
                return Relation::OtherRule(kind, theirs);
            }
            return Relation::Foreign("another identity rule made it, and the change is accepted".to_owned());
        }
        if stored.hash != self.hash {
            if !self.accepts_change {
                return Relation::OtherHash(stored.hash);
            }
            return Relation::Foreign("another hash made it, and the change is accepted".to_owned());
        }
        if stored.kinds != self.kinds {
            return Relation::Foreign(format!("it knows the kinds {:?}, not {:?}", stored.kinds, self.kinds));
        }
        if let Some(reason) = self.lengthened(stored) {
            return Relation::Foreign(reason);
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
            kept_ms: vec![86_400_000, 3_600_000],
            accepts_change: false,
        }
    }

    #[test]
    fn another_rule_of_any_window_is_refused_unless_the_change_is_accepted() {
        let stored = binding();
        for place in [0, 1] {
            let mut ours = binding();
            ours.rules[place] = "0000000f".parse().unwrap();
            let kind = (place == 1).then(|| "payments".to_owned());
            assert_eq!(ours.relation(&stored), Relation::OtherRule(kind, stored.rules[place]));
            ours.accepts_change = true;
            assert!(matches!(ours.relation(&stored), Relation::Foreign(_)), "set aside, never loaded");
            let renamed = Binding { kinds: vec!["money".into()], accepts_change: false, ..ours.clone() };
            let is_refused = matches!(renamed.relation(&stored), Relation::OtherRule(..));
            assert_eq!(is_refused, place == 0, "what it remembers belongs to a kind's name");
        }
        let former = Binding { rules: Vec::new(), kept_ms: Vec::new(), ..binding() };
        assert_eq!(
            binding().relation(&former),
            Relation::Ours(Box::new(binding())),
            "written before this was kept"
        );
        assert_ne!(
            binding().fingerprint(),
            Binding { rules: vec![stored.rules[0]; 2], ..binding() }.fingerprint()
        );
    }

    #[test]
    fn state_kept_for_a_shorter_window_does_not_do_for_a_longer_one() {
        let shorter = Binding { kept_ms: vec![86_400_000, 60_000], ..binding() };
        assert_eq!(shorter.relation(&binding()), Relation::Ours(Box::new(shorter.clone())));
        let Relation::Foreign(reason) = binding().relation(&shorter) else { panic!("believed") };
        assert!(reason.contains("payments") && reason.contains("60000 ms"), "{reason}");
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
    fn every_difference_is_foreign_except_growth_and_newly_known_ids() {
        let stored = binding();
        let changes: [fn(&mut Binding); 7] = [
            |b| b.cluster_id.push('x'),
            |b| b.raw.push('x'),
            |b| b.clean.push('x'),
            |b| b.state.push('x'),
            |b| b.group.push('x'),
            |b| b.raw_id = Some("2".into()),
            |b| b.partitions = 3,
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
        assert_eq!(other.relation(&stored), Relation::OtherHash(stored.hash));
    }
}
