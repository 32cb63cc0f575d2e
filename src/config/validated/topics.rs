//! The topics.

use crate::config::as_typed::TypedTopics;
use crate::config::reading::Reading;
use crate::config::topic_name::TopicName;

/// The topics, all different.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Topics {
    /// The topic that is read.
    pub raw: TopicName,
    /// The topic that is written.
    pub clean: TopicName,
    /// The state topic.
    pub state: TopicName,
    /// The dead-letter topic, for records of policies set to `dead_letter`.
    pub dead_letter: Option<TopicName>,
    /// The topic for dropped records, with headers that name the owner.
    pub duplicates: Option<TopicName>,
    /// Whether missing topics are created, shaped like raw.
    pub create: bool,
}

pub(super) fn validate(typed: &TypedTopics, reading: &mut Reading<'_>) -> Option<Topics> {
    let raw = required("topics.raw", typed.raw.as_deref(), "give the topic to read, or --raw", reading);
    let clean =
        required("topics.clean", typed.clean.as_deref(), "give the topic to write, or --clean", reading);
    let state = match (&typed.state, &clean) {
        (Some(text), _) => reading.topic("topics.state", text),
        (None, Some(clean)) => reading.topic("topics.state", &format!("{clean}.dedupd")),
        (None, None) => None,
    };
    let dead_letter = optional("topics.dead_letter", typed.dead_letter.as_deref(), reading);
    let duplicates = optional("topics.duplicates", typed.duplicates.as_deref(), reading);
    let create = reading.flag("topics.create", typed.create.as_deref());
    check_distinct(
        &[
            ("topics.raw", raw.as_ref()),
            ("topics.clean", clean.as_ref()),
            ("topics.state", state.as_ref()),
            ("topics.dead_letter", dead_letter.as_ref()),
            ("topics.duplicates", duplicates.as_ref()),
        ],
        reading,
    );
    Some(Topics { raw: raw?, clean: clean?, state: state?, dead_letter, duplicates, create: create? })
}

fn required(key: &str, value: Option<&str>, remedy: &str, reading: &mut Reading<'_>) -> Option<TopicName> {
    let text = reading.required(key, value, remedy)?;
    reading.topic(key, text)
}

fn optional(key: &str, value: Option<&str>, reading: &mut Reading<'_>) -> Option<TopicName> {
    value.and_then(|text| reading.topic(key, text))
}

/// Rejects every topic that is the same as an earlier one: dedupd would read its own output, or mix records with state.
fn check_distinct(topics: &[(&str, Option<&TopicName>)], reading: &mut Reading<'_>) {
    for (place, (key, topic)) in topics.iter().enumerate() {
        let Some(topic) = topic else { continue };
        let earlier = topics.iter().take(place).find(|(_, other)| *other == Some(*topic));
        if let Some((other, _)) = earlier {
            let what = format!("is the same topic as {other}");
            reading.reject(key, Some(topic.as_str()), &what, "give different topics");
        }
    }
}
