//! The values that labels can have.

use serde::Serialize;

/// Declares an enum whose variants are the values of a label.
macro_rules! label {
    ($(#[$doc:meta])* $name:ident { $($(#[$variant_doc:meta])* $variant:ident = $value:literal),+ $(,)? }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
        pub enum $name { $($(#[$variant_doc])* #[serde(rename = $value)] $variant),+ }

        impl $name {
            /// Every value, in the order of the documentation.
            pub const ALL: &'static [Self] = &[$(Self::$variant),+];
            /// Every value as exposed.
            pub const NAMES: &'static [&'static str] = &[$($value),+];

            /// The value as exposed.
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $value),+ }
            }
        }
    };
}

label! {
    /// What became of a raw record.
    Outcome {
        /// Written to the clean topic, as new.
        Forwarded = "forwarded",
        /// Written to the clean topic again, after an abort or a crash.
        Retry = "retry",
        /// Dropped: its id is in the window.
        Duplicate = "duplicate",
        /// Probably seen, beyond the exact window; treated by policy.
        Probable = "probable",
        /// Had no id; treated by policy.
        MissingId = "missing_id",
        /// Written to the dead-letter topic.
        DeadLetter = "dead_letter",
        /// Left out because the broker refuses it, as `state.on_poison = "drop"` asks.
        Refused = "refused",
        /// Written to the clean topic although its id is known, because its header asked for it.
        Forced = "forced",
        /// Written to the clean topic without a look at its id, as `dedupe.mode = "bypass"` asks.
        Bypassed = "bypassed",
        /// Handed over by the client a second time; ignored.
        Stale = "stale",
    }
}
label! {
    /// A topic that bytes are read from or written to.
    Topic {
        /// Read.
        Raw = "raw",
        /// Written.
        Clean = "clean",
        /// Written.
        State = "state",
    }
}
label! {
    /// How a transaction ended.
    TransactionResult {
        /// Committed.
        Committed = "committed",
        /// Aborted; its records come again.
        Aborted = "aborted",
        /// Nobody answered; settled by a new producer.
        Unknown = "unknown",
    }
}
label! {
    /// How a transaction that a broker left without its marker was settled.
    Resolution {
        /// What was left open was ended as aborted.
        Aborted = "aborted",
        /// Committed: what was undone of it was written again.
        Redone = "redone",
        /// Its records are processed again.
        Rewound = "rewound",
    }
}
label! {
    /// What memory is used for.
    MemoryPart {
        /// The exact index of the windows.
        Index = "index",
        /// The filters beyond the exact windows.
        Bloom = "bloom",
        /// Keys and values in open transactions: each worker's largest of late.
        Batch = "batch",
    }
}
label! {
    /// Where identities were loaded from.
    RestoreSource {
        /// The local store.
        Local = "local",
        /// The state topic.
        StateTopic = "state_topic",
    }
}
label! {
    /// What was missing of a partition that had stopped coming.
    Stall {
        /// The client had not fetched what the log has: it lost the partition's fetcher.
        NotFetched = "not_fetched",
        /// The client's fetch had reached the end, but no record came. Behind the last record of an upstream
        /// transaction nothing can come, so one of these each is normal there.
        NotDelivered = "not_delivered",
    }
}
label! {
    /// Why a partition goes on where the group's offset does not say.
    Beginning {
        /// It is new: the raw topic has grown.
        Grown = "grown",
        /// The group has no offset, the state has.
        Expired = "expired",
        /// The group's offset lies before what was committed, and `group.on_rewind` says what to do.
        Rewound = "rewound",
        /// The raw log does not hold the group's offset, and `group.on_gap` accepts that.
        Gap = "gap",
    }
}
label! {
    /// What a partition is doing.
    PartitionState {
        /// Assigned; its offset and state are being looked up.
        Starting = "starting",
        /// Its state is being loaded.
        Restoring = "restoring",
        /// Its records are being processed.
        Running = "running",
        /// Stopped by a rule that asks for an operator.
        Stopped = "stopped",
    }
}
