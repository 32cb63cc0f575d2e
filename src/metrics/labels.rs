//! The values of labels.

use serde::Serialize;

/// Declares an enum whose variants are the values of a label.
macro_rules! label {
    ($(#[$doc:meta])* $name:ident { $($(#[$variant_doc:meta])* $variant:ident = $value:literal),+ $(,)? }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
        pub enum $name { $($(#[$variant_doc])* #[serde(rename = $value)] $variant),+ }

        impl $name {
            /// Every value, in the order of the documentation.
            #[allow(dead_code, reason = "not every label is iterated")]
            pub const ALL: &'static [Self] = &[$(Self::$variant),+];
            /// Every value as exported.
            pub const NAMES: &'static [&'static str] = &[$($value),+];

            /// The value as exported.
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $value),+ }
            }
        }
    };
}

label! {
    /// The outcome of a raw record.
    Outcome {
        /// Written to the clean topic as new.
        Forwarded = "forwarded",
        /// Written to the clean topic again, after an abort or a crash.
        Retry = "retry",
        /// Dropped: its id is in the window.
        Duplicate = "duplicate",
        /// Its id is in the window, and its content differs from that of the owner. Handled by `identity.on_conflict`.
        Conflict = "conflict",
        /// Probably seen: only the filters beyond the exact window report its id. Handled by
        /// `window.on_probable`.
        Probable = "probable",
        /// Has no id, and is written to the clean topic without de-duplication.
        MissingId = "missing_id",
        /// Has no id, and is dropped by `identity.on_missing`.
        MissingIdDropped = "missing_id_dropped",
        /// Has no id, and is written to the dead-letter topic by `identity.on_missing`.
        MissingIdDeadLetter = "missing_id_dead_letter",
        /// Written to the dead-letter topic, because the clean topic rejects it.
        DeadLetter = "dead_letter",
        /// Dropped because the broker rejects it and `state.on_poison = "drop"`.
        Rejected = "rejected",
        /// Written to the clean topic although its id is in the window, because it has the force header.
        Forced = "forced",
        /// Written to the clean topic without a check of its id, because of `dedupe.mode = "bypass"`.
        Bypassed = "bypassed",
        /// Returned by the client a second time; ignored.
        Stale = "stale",
    }
}

impl Outcome {
    /// Whether the record is dropped because its id was seen, or probably seen.
    pub const fn is_duplicate(self) -> bool {
        matches!(self, Self::Duplicate | Self::Conflict | Self::Probable)
    }

    /// Whether the record has no id.
    pub const fn is_missing_id(self) -> bool {
        matches!(self, Self::MissingId | Self::MissingIdDropped | Self::MissingIdDeadLetter)
    }
}

label! {
    /// How the content of a duplicate compares with that of its owner.
    ContentLabel {
        /// Their digests are equal.
        Equal = "equal",
        /// Their digests differ.
        Different = "different",
        /// One of them has no digest of the present `identity.compare`.
        NotCompared = "not_compared",
    }
}

label! {
    /// A use of Kafka clients.
    ClientLabel {
        /// Reads raw as a member of the group.
        Consumer = "consumer",
        /// Writes clean, state and side topics.
        Producer = "producer",
    }
}
label! {
    /// A topic that bytes are read from or written to.
    TopicLabel {
        /// Bytes read from the raw topic.
        Raw = "raw",
        /// Bytes written to the clean topic.
        Clean = "clean",
        /// Bytes written to the state topic.
        State = "state",
    }
}
label! {
    /// How a transaction ended.
    TransactionResult {
        Committed = "committed",
        /// Aborted; its records are processed again.
        Aborted = "aborted",
        /// No response from the broker; resolved by a new producer.
        Unknown = "unknown",
    }
}
label! {
    /// How a transaction that a broker left without a transaction marker was resolved.
    Resolution {
        /// The open part was aborted.
        Aborted = "aborted",
        /// Committed: the records of its aborted part were written again.
        Redone = "redone",
        /// Its records are processed again.
        Rewound = "rewound",
    }
}
label! {
    /// The use of memory.
    MemoryPart {
        /// The exact index of the windows.
        Index = "index",
        /// The filters of sealed slices, with and without owners.
        Slices = "slices",
        /// Keys and values in open transactions: the largest recent transaction of each worker.
        Batch = "batch",
    }
}
label! {
    /// Where identities were loaded from.
    RestoreSource {
        Local = "local",
        StateTopic = "state_topic",
        Standby = "standby",
    }
}
label! {
    /// Where records of a stalled partition were missing.
    Stall {
        /// The client did not fetch records that the log has: it lost the partition's fetcher.
        NotFetched = "not_fetched",
        /// The client's fetch reached the end, but returned no record. Behind the last record of an upstream
        /// transaction there is no record to return, so one occurrence per such transaction is normal.
        NotDelivered = "not_delivered",
    }
}
label! {
    /// Why a partition starts at another offset than the committed offset.
    OffsetReset {
        /// It is new: the raw topic has grown.
        Grown = "grown",
        /// The group has no committed offset, but the state has one.
        Expired = "expired",
        /// The group's offset is below the offset that was committed; `group.on_rewind` decides.
        Rewound = "rewound",
        /// The raw log does not contain the committed offset, and `group.on_gap = "accept"`.
        Gap = "gap",
    }
}
label! {
    /// The role of this instance in its group.
    #[derive(Default)]
    Role {
        /// Its worker is in the group and owns partition 0. With `dedupe.scope = "partition"` always.
        #[default]
        Active = "active",
        /// It has found no active instance and joins the group; or it does not know yet whether there is one.
        Joining = "joining",
        /// Another instance is in the group, and this one waits to replace it.
        Spare = "spare",
    }
}
label! {
    /// The phase of a partition, as reported by `dedupd_partitions` and the status page.
    PartitionState {
        /// Assigned; its offset and state are being looked up.
        Starting = "starting",
        /// Its state is being loaded.
        Restoring = "restoring",
        /// The schema of its next record is not known, or the client does not return that record.
        Waiting = "waiting",
        /// Its records are being processed.
        Running = "running",
        /// Stopped; an operator has to act.
        Stopped = "stopped",
    }
}
