//! The forms of the connection to Kafka.

use crate::config::page::{Page, quoted};
use crate::config::problem::ValueFault;
use crate::config::properties::{Properties, Property, rejection};
use crate::config::reading::ConfigReading;
use crate::config::section::{Form, Shape};
use crate::config::topic_name::TopicName;
use crate::config::topic_pattern::TopicPattern;

/// One or more brokers as `host:port`, separated by commas.
pub(in crate::config) struct Servers;

impl Form<String> for Servers {
    fn read(&self, key: &str, reading: &mut ConfigReading<'_>) -> Option<String> {
        let text = reading.required(key, "give host:port of one or more brokers, or --bootstrap-servers")?;
        let servers: Vec<_> = text.split(',').map(str::trim).filter(|server| !server.is_empty()).collect();
        if servers.iter().any(|server| server.contains('@')) {
            let remedy = "give host:port only, and the password as kafka.properties.\"sasl.password\"";
            reading.reject(key, None, ValueFault::new("seems to contain a password", remedy));
            return None;
        }
        if servers.iter().any(|server| server.contains(char::is_whitespace)) {
            let remedy = "separate brokers by commas, as in a:9092,b:9092";
            reading.reject(key, Some(text), ValueFault::new("contains a space", remedy));
            return None;
        }
        let fault = servers.iter().find_map(|server| {
            let what = match server.split_once("://") {
                Some((scheme, _)) => format!("has the scheme {scheme:?} in {server:?}"),
                None if !has_port(server) => format!("has no port in {server:?}"),
                None => return None,
            };
            let protocol = "; the protocol is kafka.properties.\"security.protocol\"";
            let remedy = "give host:port, as in localhost:9092".to_owned();
            let remedy = if server.contains("://") { remedy + protocol } else { remedy };
            Some(ValueFault::new(what, remedy))
        });
        if let Some(fault) = fault {
            reading.reject(key, Some(text), fault);
            return None;
        }
        Some(servers.join(","))
    }

    fn print(&self, name: &str, value: &String, page: &mut Page) {
        page.text(name, value);
    }
}

fn has_port(server: &str) -> bool {
    server.rsplit_once(':').is_some_and(|(host, port)| !host.is_empty() && port.parse::<u16>().is_ok())
}

/// librdkafka properties by name. Values that may be secret are not printed.
pub(in crate::config) struct PropertyMap;

impl Form<Properties> for PropertyMap {
    fn read(&self, key: &str, reading: &mut ConfigReading<'_>) -> Option<Properties> {
        let properties = reading.map(key);
        for (name, value) in &properties {
            if let Some(fault) = rejection(&name.to_lowercase()) {
                // The values of rejected properties are not secret, except for user:password@host.
                let value = Some(*value).filter(|value| !value.contains('@'));
                reading.reject(&format!("{key}.{name}"), value, fault);
            }
        }
        let property =
            |(name, value): (&str, &str)| Property { name: name.to_owned(), value: value.to_owned() };
        Some(properties.into_iter().map(property).collect())
    }

    fn print(&self, name: &str, value: &Properties, page: &mut Page) {
        page.section(&format!("kafka.{name}"));
        for (name, value) in value.shown() {
            page.text(&quoted(name), value);
        }
    }

    fn shape(&self) -> Shape {
        Shape::Map
    }
}

/// The topics that `rekey` reads: at least one name, or regular expression of librdkafka, which begins with `^`.
pub(in crate::config) struct SourceTopics;

impl Form<Vec<String>> for SourceTopics {
    fn read(&self, key: &str, reading: &mut ConfigReading<'_>) -> Option<Vec<String>> {
        let remedy = "give names of topics, or one regular expression that begins with '^'";
        let texts = reading.texts(key).unwrap_or_default();
        if texts.is_empty() {
            reading.reject(key, None, ValueFault::new("is missing", format!("{remedy}, or --from")));
            return None;
        }
        let mut is_valid = true;
        for (place, text) in texts.iter().enumerate() {
            let fault = if text.starts_with('^') {
                TopicPattern::parse(text).err()
            } else {
                TopicName::parse(text).err()
            };
            let is_repeated = || texts.iter().take(place).any(|earlier| earlier == text);
            let fault = fault.or_else(|| is_repeated().then(|| "is listed twice".to_owned()));
            is_valid &= fault.is_none();
            if let Some(what) = fault {
                reading.reject(key, Some(text), ValueFault::new(what, remedy));
            }
        }
        is_valid.then(|| texts.to_vec())
    }

    fn print(&self, name: &str, value: &Vec<String>, page: &mut Page) {
        page.list(name, value);
    }

    fn shape(&self) -> Shape {
        Shape::List
    }
}
