//! Values that are one word out of a few.

/// Declares an enum whose variants are words of the configuration.
macro_rules! choice {
    ($(#[$doc:meta])* $name:ident { $($(#[$variant_doc:meta])* $variant:ident = $word:literal),+ $(,)? }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum $name { $($(#[$variant_doc])* $variant),+ }

        impl Choice for $name {
            const WORDS: &'static [(&'static str, Self)] = &[$(($word, Self::$variant)),+];
        }

        impl $name {
            /// The word as written in the configuration.
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $word),+ }
            }
        }
    };
}

/// A value that is one word out of a few.
pub(super) trait Choice: Copy + 'static {
    /// Every word with its meaning, in the order of the documentation.
    const WORDS: &'static [(&'static str, Self)];
}

choice! {
    /// Where to begin when neither the group nor the state topic knows an offset.
    Start {
        /// At the first record still in the log.
        Earliest = "earliest",
        /// At the records that arrive from now on.
        Latest = "latest",
        /// Nowhere: stop and say so.
        Stop = "stop",
    }
}
choice! {
    /// What to do when the group's offset is below what the state topic committed.
    OnRewind {
        /// Stop and name both offsets.
        Stop = "stop",
        /// What was committed stays committed: records below the old position are dropped.
        Skip = "skip",
        /// Forget the owners at or beyond the group's offset and write their records again.
        Reemit = "reemit",
    }
}
choice! {
    /// What to do when the raw log does not hold the offset to go on at.
    OnGap {
        /// Stop and name the offsets.
        Stop = "stop",
        /// Go on at the near end of what there is, counted.
        Accept = "accept",
    }
}
choice! {
    /// What to do with a record that has no id.
    OnMissing {
        /// Write it to the clean topic, counted.
        Forward = "forward",
        /// Leave it out, counted.
        Drop = "drop",
        /// Write it to the dead-letter topic.
        DeadLetter = "dead_letter",
        /// Stop at it.
        Stop = "stop",
    }
}
choice! {
    /// What to do with a record that only the Bloom part of the window knows.
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
    /// What to do with a record that the broker refuses.
    OnPoison {
        /// Stop at it.
        Stop = "stop",
        /// Write it to the dead-letter topic.
        DeadLetter = "dead_letter",
        /// Leave it out, counted.
        Drop = "drop",
    }
}
choice! {
    /// What happens when an identity more comes than `window.max_ids` allows.
    Overflow {
        /// The oldest are forgotten: the window becomes shorter.
        Shrink = "shrink",
        /// One of the oldest is overwritten, in a table of fixed size: the window gets gaps.
        Evict = "evict",
    }
}
choice! {
    /// What is done with duplicates.
    Mode {
        /// They are dropped.
        Drop = "drop",
        /// Everything is forwarded; what would have been dropped is marked and counted.
        Shadow = "shadow",
        /// Everything is forwarded, and nothing remembered.
        Bypass = "bypass",
    }
}
choice! {
    /// Which clock moves the window.
    WindowTime {
        /// The records' timestamps, as a running maximum.
        Record = "record",
        /// The time of arrival.
        Arrival = "arrival",
    }
}
