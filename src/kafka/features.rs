//! Features of the brokers: which are missing, by the versions of the APIs that the brokers support.
//!
//! The client library requests these versions at each connection and does not expose them. With `debug=feature` its log has a
//! line for each.

use std::collections::BTreeMap;
use std::sync::Mutex;

use rdkafka::ClientConfig;

use super::log_context::log_in_detail;
use crate::locked::Locked;

/// The highest version of each API by its key, the lowest of all brokers that responded.
type Versions = BTreeMap<i16, i16>;

/// The versions that a client logs.
#[derive(Debug, Default)]
pub(super) struct ApiVersions(Mutex<Logged>);

#[derive(Debug, Default)]
struct Logged {
    /// The lines so far of a response that is being logged, by the thread of the connection. A part of a response would look like a broker
    /// without the other APIs.
    arriving: BTreeMap<String, Versions>,
    complete: Versions,
}

impl ApiVersions {
    /// The facility of the log lines.
    pub const FACILITY: &'static str = "APIVERSION";

    /// Makes a client with this configuration log the versions.
    pub fn request(config: &mut ClientConfig) {
        log_in_detail(config, "feature");
    }

    /// Stores a log line. A response begins with a headline, and is followed by lines about the features that the client derives from it.
    pub fn record(&self, line: &str) {
        let Some((thread, text)) = line.split_once("]: ") else { return };
        let Logged { arriving, complete } = &mut *self.0.locked();
        if text.ends_with("Broker API support:") {
            arriving.insert(thread.to_owned(), Versions::new());
        } else if let Some((key, version)) = parse(text) {
            arriving.entry(thread.to_owned()).or_default().insert(key, version);
        } else if text.contains("eature ") {
            for (key, version) in arriving.remove(thread).unwrap_or_default() {
                complete.entry(key).and_modify(|known| *known = version.min(*known)).or_insert(version);
            }
        }
    }

    /// The versions of complete responses; empty when no broker has responded.
    pub fn so_far(&self) -> Versions {
        self.0.locked().complete.clone()
    }
}

/// Key and highest version in a line such as `ApiKey Produce (0) Versions 0..11`.
fn parse(line: &str) -> Option<(i16, i16)> {
    let (key, versions) = line.split_once("ApiKey ")?.1.split_once(") Versions ")?;
    Some((key.rsplit_once('(')?.1.parse().ok()?, versions.split_once("..")?.1.trim().parse().ok()?))
}

/// A feature, the APIs that it needs, and what depends on it.
struct Feature {
    /// Key and lowest version of each API.
    apis: &'static [(i16, i16)],
    is_required: bool,
    missing: &'static str,
}

const FEATURES: [Feature; 3] = [
    Feature {
        // InitProducerId, AddPartitionsToTxn, AddOffsetsToTxn, EndTxn, TxnOffsetCommit.
        apis: &[(22, 0), (24, 0), (25, 0), (26, 0), (28, 0)],
        is_required: true,
        missing: "the brokers have no transactions (InitProducerId, AddPartitionsToTxn, AddOffsetsToTxn, EndTxn, \
                  TxnOffsetCommit): dedupd commits records, state and offsets in one transaction; use a service or a \
                  cluster type that has them",
    },
    Feature {
        // TxnOffsetCommit with the generation of the group, KIP-447.
        apis: &[(28, 3)],
        is_required: true,
        missing: "the brokers cannot guard the offsets of a transaction by the membership in the group (TxnOffsetCommit \
                  version 3): dedupd needs Apache Kafka 2.5 or newer, or a service with this API",
    },
    Feature {
        // OffsetForLeaderEpoch; Metadata and OffsetFetch with leader epochs, KIP-320.
        apis: &[(23, 2), (3, 7), (9, 5)],
        is_required: false,
        missing: "the brokers report no leader epochs (OffsetForLeaderEpoch version 2, Metadata 7, OffsetFetch 5): an \
                  unclean leader election in the raw topic is not detected",
    },
];

/// Metadata with topic ids, KIP-516.
const TOPIC_IDS: (i16, i16) = (3, 10);
const NO_TOPIC_IDS: &str = "the brokers report no topic ids (Metadata version 10, Apache Kafka 2.8): a topic that is deleted \
    and created again under the same name is not detected, and missing permissions on topics are found only when they are \
    needed";

/// The missing features: what prevents the start, and what only an operator should see.
pub(super) fn missing(versions: &Versions, has_topic_ids: bool) -> (Vec<String>, Vec<String>) {
    let (mut problems, mut warnings) = (Vec::new(), Vec::new());
    let has = |(key, lowest): &(i16, i16)| versions.get(key).is_some_and(|highest| highest >= lowest);
    let is_known = !versions.is_empty();
    if !has_topic_ids || (is_known && !has(&TOPIC_IDS)) {
        warnings.push(NO_TOPIC_IDS.to_owned());
    }
    for feature in FEATURES.iter().filter(|feature| is_known && !feature.apis.iter().all(has)) {
        let list = if feature.is_required { &mut problems } else { &mut warnings };
        list.push(feature.missing.to_owned());
    }
    // A broker without transactions has no guarded ones either.
    problems.truncate(1);
    (problems, warnings)
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEADLINE: &str = "Broker API support:";
    const END: &str = " Feature MsgVer1: Produce (2..2) supported by broker";

    fn record(versions: &ApiVersions, broker: &str, lines: &[&str]) {
        for line in lines {
            let api = if line.contains("Versions") { "  ApiKey " } else { "" };
            versions.record(&format!("[thrd:{broker}:1/1]: {broker}:1/1: {api}{line}"));
        }
    }

    fn brokers(responses: &[&[&str]]) -> Versions {
        let versions = ApiVersions::default();
        for response in responses {
            record(&versions, "a", &[&[HEADLINE][..], response, &[END, "Enabling feature MsgVer1"]].concat());
        }
        versions.so_far()
    }

    const CURRENT: [&str; 8] = [
        "Metadata (3) Versions 0..13",
        "OffsetFetch (9) Versions 1..9",
        "InitProducerId (22) Versions 0..5",
        "OffsetForLeaderEpoch (23) Versions 2..4",
        "AddPartitionsToTxn (24) Versions 0..5",
        "AddOffsetsToTxn (25) Versions 0..4",
        "EndTxn (26) Versions 0..5",
        "TxnOffsetCommit (28) Versions 0..5",
    ];

    fn with(line: &str, other: &str) -> Versions {
        let other: Vec<&str> = CURRENT.map(|known| if known == line { other } else { known }).to_vec();
        brokers(&[&CURRENT, &other])
    }

    #[test]
    fn a_broker_with_all_features_has_no_finding() {
        assert_eq!(missing(&brokers(&[&CURRENT]), true), (vec![], vec![]));
        assert_eq!(missing(&Versions::new(), true), (vec![], vec![]), "unknown");
    }

    #[test]
    fn each_missing_feature_is_named_once() {
        let (problems, warnings) = missing(&brokers(&[&CURRENT[..2]]), true);
        assert_eq!((problems.len(), warnings.len()), (1, 1), "{problems:?} {warnings:?}");
        assert!(problems[0].starts_with("the brokers have no transactions"), "{problems:?}");
        let (problems, warnings) = missing(&with(CURRENT[7], "TxnOffsetCommit (28) Versions 0..2"), true);
        assert_eq!((problems.len(), warnings.len()), (1, 0), "{problems:?} {warnings:?}");
        assert!(problems[0].contains("Apache Kafka 2.5"), "{problems:?}");
        for old in ["OffsetForLeaderEpoch (23) Versions 0..1", "OffsetFetch (9) Versions 0..4"] {
            let line = CURRENT.iter().find(|line| line.split('(').next() == old.split('(').next()).unwrap();
            let (problems, warnings) = missing(&with(line, old), true);
            assert_eq!((problems.len(), warnings.len()), (0, 1), "{problems:?} {warnings:?}");
            assert!(warnings[0].contains("no leader epochs"), "{warnings:?}");
        }
        let old = with(CURRENT[0], "Metadata (3) Versions 0..9");
        for (versions, has_topic_ids) in
            [(brokers(&[&CURRENT]), false), (old, true), (Versions::new(), false)]
        {
            let (problems, warnings) = missing(&versions, has_topic_ids);
            assert_eq!((problems.len(), warnings.len()), (0, 1));
            assert!(warnings[0].contains("no topic ids"), "{warnings:?}");
        }
    }

    /// The lines of a response arrive one after the other, those of two brokers in any order.
    #[test]
    fn a_part_of_a_response_does_not_count() {
        let versions = ApiVersions::default();
        record(&versions, "a", &[HEADLINE, CURRENT[0]]);
        assert_eq!(versions.so_far(), Versions::new());
        record(&versions, "b", &[&[HEADLINE][..], &CURRENT, &[END]].concat());
        assert_eq!(versions.so_far(), brokers(&[&CURRENT]));
        record(&versions, "a", &CURRENT[1..7]);
        record(&versions, "a", &["TxnOffsetCommit (28) Versions 0..4", END]);
        assert_eq!(versions.so_far(), brokers(&[&CURRENT, &["TxnOffsetCommit (28) Versions 0..4"]]));
    }

    /// A broker that does not know the version of the request responds with an error and its versions of that request alone.
    #[test]
    fn a_response_with_an_error_does_not_count() {
        let versions = ApiVersions::default();
        let failed = "ApiVersionRequest v3 failed due to UNSUPPORTED_VERSION: retrying with v2";
        record(&versions, "a", &[HEADLINE, "ApiVersion (18) Versions 0..2", failed]);
        assert_eq!(versions.so_far(), Versions::new());
        record(&versions, "a", &[&[HEADLINE][..], &CURRENT, &[END]].concat());
        assert_eq!(versions.so_far(), brokers(&[&CURRENT]));
    }

    #[test]
    fn the_versions_of_the_broker_with_the_lowest_ones_count() {
        let versions = with(CURRENT[2], "InitProducerId (22) Versions 0..1");
        assert_eq!(versions.get(&22), Some(&1));
        assert_eq!(versions.get(&28), Some(&5));
    }
}
