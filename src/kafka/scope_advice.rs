//! Which scope a sample of raw recommends.

use super::sample::TopicSample;
use crate::config::Scope;

impl TopicSample {
    /// The scope that the sampled ids require; `None` where the sample shows no difference between the two.
    #[must_use]
    pub fn recommended_scope(&self) -> Option<&'static str> {
        (self.moved_ids > 0).then_some("topic")
    }

    /// The error of a sample without any id, for this reason. Without records it is none.
    #[must_use]
    pub fn no_ids(&self, why: Option<String>, setting: &str) -> Option<String> {
        self.few_ids(why, setting).filter(|_| self.with_id == 0)
    }

    /// The warning about a sample in which one record in a hundred or more has no id, for this reason.
    #[must_use]
    pub fn few_ids(&self, why: Option<String>, setting: &str) -> Option<String> {
        let example = why.map(|why| format!("; for example, {why}")).unwrap_or_default();
        let Self { read, with_id, .. } = self;
        let missing = read - with_id;
        let (how_many, unless) = if *with_id == 0 {
            (format!("none of the newest {read} records of raw has an id"), "")
        } else {
            let have = if missing == 1 { "has" } else { "have" };
            let how_many = format!("{missing} of the newest {read} records of raw {have} no id");
            (how_many, ", unless these need none (identity.on_missing)")
        };
        (missing > 0 && missing * 100 >= *read)
            .then(|| format!("{how_many}{example}; correct {setting}{unless}"))
    }

    /// What the sample shows about the scope, and what to do, in one line. `scope` is the configured one, if there is one.
    #[must_use]
    pub fn advice(&self, scope: Option<Scope>) -> String {
        let Self { partitions, read, with_id, elsewhere: copies, moved_ids, .. } = self;
        if *partitions == 1 {
            return "raw has one partition, so both values of dedupe.scope have the same effect; nothing to do".to_owned();
        }
        if *read == 0 {
            return "raw has no records to sample, so the sample does not show which dedupe.scope is needed"
                .to_owned();
        }
        if *moved_ids == 0 {
            let all = if with_id == read { String::new() } else { format!("with an id, of {read}, ") };
            return format!(
                "no id of the {with_id} sampled records {all}is in several partitions; nothing to do"
            );
        }
        let ids = if *moved_ids == 1 { "id of the sample is" } else { "ids of the sample are" };
        let copies = format!("{copies} {}", if *copies == 1 { "copy" } else { "copies" });
        let action = match scope {
            Some(Scope::Topic) => {
                format!(
                    "dedupe.scope = \"topic\" drops {copies}, which \"partition\" would forward; nothing to do"
                )
            }
            Some(Scope::Partition) => {
                format!("dedupe.scope = \"partition\" forwards {copies}; set dedupe.scope = \"topic\"")
            }
            None => {
                format!(
                    "use dedupe.scope = \"topic\", the default, which drops {copies}; \"partition\" would forward them"
                )
            }
        };
        format!("{moved_ids} {ids} in several partitions: {action}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(with_id: u64, elsewhere: u64, moved_ids: u64) -> TopicSample {
        TopicSample { partitions: 3, read: 9, with_id, elsewhere, moved_ids, ..TopicSample::default() }
    }

    #[test]
    fn ids_in_several_partitions_recommend_topic_scope() {
        let moved = sample(8, 3, 2);
        assert_eq!(moved.recommended_scope(), Some("topic"));
        let starts = "2 ids of the sample are in several partitions: ";
        for (scope, ends) in [
            (
                None,
                "use dedupe.scope = \"topic\", the default, which drops 3 copies; \"partition\" would forward them",
            ),
            (
                Some(Scope::Partition),
                "dedupe.scope = \"partition\" forwards 3 copies; set dedupe.scope = \"topic\"",
            ),
            (
                Some(Scope::Topic),
                "dedupe.scope = \"topic\" drops 3 copies, which \"partition\" would forward; nothing to do",
            ),
        ] {
            assert_eq!(moved.advice(scope), format!("{starts}{ends}"));
        }
        assert!(sample(8, 1, 1).advice(None).starts_with("1 id of the sample is in several partitions: "));
    }

    #[test]
    fn a_sample_without_copies_recommends_nothing() {
        let none = sample(8, 0, 0);
        assert_eq!(none.recommended_scope(), None);
        assert_eq!(
            none.advice(Some(Scope::Partition)),
            "no id of the 8 sampled records with an id, of 9, is in several partitions; nothing to do"
        );
        assert_eq!(sample(1, 0, 0).no_ids(None, "--id"), None);
        assert_eq!(TopicSample::default().no_ids(None, "--id"), None);
        let few = |with_id, read| TopicSample { read, ..sample(with_id, 0, 0) }.few_ids(None, "--id");
        assert_eq!(
            few(8, 9).as_deref(),
            Some(
                "1 of the newest 9 records of raw has no id; correct --id, unless these need none (identity.on_missing)"
            )
        );
        assert!(few(99, 100).is_some() && few(999, 1_000).is_none() && few(9, 9).is_none());
        assert_eq!(
            sample(0, 0, 0).no_ids(Some("the record has no id: it has no key".to_owned()), "--id").as_deref(),
            Some(
                "none of the newest 9 records of raw has an id; for example, the record has no id: it has no key; correct --id"
            )
        );
        let empty = TopicSample { read: 0, ..sample(0, 0, 0) };
        assert!(empty.advice(None).starts_with("raw has no records to sample"));
        let single = TopicSample { partitions: 1, ..sample(8, 0, 0) };
        assert!(single.advice(None).starts_with("raw has one partition"));
    }
}
