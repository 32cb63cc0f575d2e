//! Regular expressions of the subscription that match no topic.
//!
//! The client reports such a one once, as an error in its text only, and not when a topic matches later.

use std::time::Duration;

use rdkafka::consumer::Consumer;
use rdkafka::metadata::MetadataTopic;

use super::{SourceReader, hidden_topics};
use crate::config::TopicPattern;
use crate::kafka::native::ReadError;
use crate::ports::Failure;

impl SourceReader {
    /// Whether this error, of an unknown topic, is about a regular expression of the subscription. Such a one is logged here.
    pub(super) fn is_of_pattern(&self, error: &ReadError) -> bool {
        let Some(pattern) = self.from.iter().find(|from| is_about(from, &error.reason)) else { return false };
        if self.unmatched.borrow_mut().insert(pattern.clone()) {
            tracing::warn!("{}", note(pattern));
        }
        true
    }

    /// A note for each regular expression that matches no topic.
    pub fn unmatched(&self) -> Vec<String> {
        self.unmatched.borrow().iter().map(|pattern| note(pattern)).collect()
    }

    /// Whether the subscription has only regular expressions that match no topic.
    pub fn is_without_topics(&self) -> bool {
        self.unmatched.borrow().len() == self.from.len()
    }

    /// Removes the regular expressions that match a topic now. Sends a request only if there are any.
    pub fn refresh_unmatched(&self, wait: Duration) -> Result<(), Failure> {
        if self.unmatched.borrow().is_empty() {
            return Ok(());
        }
        let listed = self.ends.stable().fetch_metadata(None, wait);
        let listed = listed.map_err(|e| self.fail("listing the topics", &e))?;
        let hidden = hidden_topics(&self.settings);
        let hidden: Vec<_> = hidden.split(',').filter_map(|text| TopicPattern::parse(text).ok()).collect();
        let names = listed.topics().iter().map(MetadataTopic::name);
        let names: Vec<&str> = names.filter(|name| !hidden.iter().any(|it| it.matches(name))).collect();
        self.unmatched.borrow_mut().retain(|text| {
            let Ok(pattern) = TopicPattern::parse(text) else { return true };
            let found = names.iter().find(|name| pattern.matches(name));
            if let Some(topic) = found {
                tracing::info!(topic, "a topic matches rekey.from = \"{text}\" now");
            }
            found.is_none()
        });
        Ok(())
    }
}

/// Whether the client's text, "…: TOPIC: REASON", is about this regular expression.
fn is_about(from: &str, reason: &str) -> bool {
    from.starts_with('^') && reason.contains(&format!(": {from}: "))
}

fn note(pattern: &str) -> String {
    format!("no topic matches rekey.from = \"{pattern}\"; waiting for one that this user may describe")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_error_of_a_regular_expression_is_told_from_that_of_a_topic() {
        let reason = |topic: &str| {
            format!("Subscribed topic not available: {topic}: Broker: Unknown topic or partition")
        };
        assert!(is_about("^nothing\\.", &reason("^nothing\\.")));
        assert!(!is_about("^nothing", &reason("^nothing\\.")));
        assert!(!is_about("orders", &reason("orders")), "a topic was deleted");
        let note = note("^nothing\\.");
        assert!(note.starts_with(r#"no topic matches rekey.from = "^nothing\."; waiting for one"#), "{note}");
    }
}
