//! Enumerated values of the configuration.

use crate::dedupe::Frame;

/// Declares an enum whose variants are the allowed words of a key.
macro_rules! choice {
    ($(#[$doc:meta])* $name:ident { $($(#[$variant_doc:meta])* $variant:ident = $word:literal),+ $(,)? }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum $name { $($(#[$variant_doc])* $variant),+ }

        impl Choice for $name {
            const ALL: &'static [Self] = &[$(Self::$variant),+];

            fn word(self) -> &'static str {
                self.as_str()
            }
        }

        impl $name {
            /// The word as written in the configuration.
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $word),+ }
            }
        }
    };
}

pub(super) trait Choice: Copy + 'static {
    /// All values, in the order of the documentation.
    const ALL: &'static [Self];

    /// The word as written in the configuration.
    fn word(self) -> &'static str;
}

impl Choice for Frame {
    const ALL: &'static [Self] = &Self::ALL;

    fn word(self) -> &'static str {
        self.as_str()
    }
}

choice! {
    /// The start offset when neither the group nor the state topic has an offset.
    Start {
        /// The log start offset.
        Earliest = "earliest",
        /// The end of the log: only new records are read.
        Latest = "latest",
        /// Stop with an error.
        Stop = "stop",
    }
}
choice! {
    /// The policy when the group's offset is below the offset committed in the state topic.
    OnRewind {
        /// Stop with an error that names both offsets.
        Stop = "stop",
        /// Keep the committed result: records below the old position are dropped.
        Skip = "skip",
        /// Forget the owners at or beyond the group's offset and write their records again.
        Reemit = "reemit",
    }
}
choice! {
    /// The policy when the raw log does not contain the next offset to process.
    OnGap {
        /// Stop with an error that names the offsets.
        Stop = "stop",
        /// Continue at the nearest available offset; the gap is counted.
        Accept = "accept",
    }
}
choice! {
    /// What a member of the group does at a stop.
    OnStop {
        /// It leaves the group: other members take over its partitions at once.
        Leave = "leave",
        /// It stays a member until its session ends: the restarted instance resumes its partitions.
        Remain = "remain",
    }
}
choice! {
    /// The policy for a record without an id.
    OnMissing {
        /// Write it to the clean topic, counted.
        Forward = "forward",
        /// Drop it, counted with the outcome `missing_id_dropped`.
        Drop = "drop",
        /// Write it to the dead-letter topic.
        DeadLetter = "dead_letter",
        /// Stop with an error.
        Stop = "stop",
        /// Use its name in the source topic of `rekey`, from the header `dedupd.source`, as its id. Without this
        /// header, write it to the clean topic, counted.
        Source = "source",
    }
}
choice! {
    /// The policy for a record whose id is in the window, with other content.
    OnConflict {
        /// Treat it as a duplicate, counted with the outcome `conflict`.
        Drop = "drop",
        /// Write it to the dead-letter topic.
        DeadLetter = "dead_letter",
        /// Stop with an error.
        Stop = "stop",
    }
}
choice! {
    /// The policy for a record whose id only filters report as seen.
    OnProbable {
        /// Treat it as a duplicate.
        Drop = "drop",
        /// Treat it as new.
        Forward = "forward",
        /// Write it to the dead-letter topic.
        DeadLetter = "dead_letter",
    }
}
choice! {
    /// The policy for a record that the broker rejects.
    OnPoison {
        /// Stop with an error.
        Stop = "stop",
        /// Write it to the dead-letter topic.
        DeadLetter = "dead_letter",
        /// Drop it, counted with the outcome `rejected`.
        Drop = "drop",
    }
}
choice! {
    /// The behaviour when a new id exceeds `window.max_ids`.
    Overflow {
        /// The oldest ids are forgotten: the window becomes shorter.
        Shrink = "shrink",
        /// One of the oldest ids is overwritten, in a table of fixed size: the window gets gaps.
        Evict = "evict",
    }
}
choice! {
    /// The handling of duplicates.
    Mode {
        /// Duplicates are not written to the clean topic.
        Drop = "drop",
        /// All records are forwarded; those that `drop` would drop are marked and counted.
        Shadow = "shadow",
        /// All records are forwarded, and no id is stored.
        Bypass = "bypass",
    }
}
choice! {
    /// Where copies of a record are found.
    Scope {
        /// In all partitions of the raw topic. One instance processes all of them.
        Topic = "topic",
        /// In the same partition only. Several instances and workers share the partitions.
        Partition = "partition",
    }
}
choice! {
    /// How `rekey` maps an id to a partition.
    PartitionBy {
        /// The default of the Java client.
        Murmur2 = "murmur2",
        /// The `consistent` partitioner of librdkafka, its default for records with a key.
        Consistent = "consistent",
    }
}
choice! {
    /// The clock that advances the window.
    WindowTime {
        /// The records' timestamps, as a running maximum.
        Record = "record",
        /// The time of arrival.
        Arrival = "arrival",
    }
}
