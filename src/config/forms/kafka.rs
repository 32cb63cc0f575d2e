//! The forms of the connection to Kafka.

use super::ListForm;
use crate::config::page::{Page, quoted};
use crate::config::problem::ValueFault;
use crate::config::properties::{Properties, Property, rejection};
use crate::config::reading::ConfigReading;
use crate::config::section::{Form, Shape};
use crate::config::topic_name::TopicName;

/// One or more brokers as `host:port`, separated by commas.
pub(in crate::config) struct Servers;

impl Form<String> for Servers {
    fn read(&self, key: &str, reading: &mut ConfigReading<'_>) -> Option<String> {
        let text = reading.required(key, "give host:port of one or more brokers, or --bootstrap-servers")?;
        // A password is not repeated.
        let shown = (!text.contains('@')).then_some(text);
        parse_servers(text).map_err(|fault| reading.reject(key, shown, fault)).ok()
    }

    fn print(&self, name: &str, value: &String, page: &mut Page) {
        page.text(name, value);
    }
}

/// The brokers without spaces between them.
pub(crate) fn parse_servers(text: &str) -> Result<String, ValueFault> {
    let servers: Vec<_> = text.split(',').map(str::trim).filter(|server| !server.is_empty()).collect();
    if text.contains('@') {
        let remedy = "give host:port only, and the password as kafka.properties.\"sasl.password\"";
        return Err(ValueFault::new("seems to contain a password", remedy));
    }
    if servers.is_empty() {
        return Err(ValueFault::new("names no broker", "give host:port, as in localhost:9092"));
    }
    for server in &servers {
        let (what, remedy) = if server.contains(|c: char| c.is_whitespace() || c == ';') {
            let remedy = "separate brokers with commas, as in a:9092,b:9092";
            (format!("contains a space or ';' in {server:?}"), remedy)
        } else if let Some((scheme, _)) = server.split_once("://") {
            let remedy = "give host:port, as in localhost:9092; the protocol is kafka.properties.\"security.protocol\"";
            (format!("has the scheme {scheme:?} in {server:?}"), remedy)
        } else {
            match server.rsplit_once(':').filter(|(host, _)| !host.is_empty()) {
                Some((_, port)) if port.parse().is_ok_and(|port: u16| port > 0) => continue,
                Some((_, port)) if !port.is_empty() && port.bytes().all(|b| b.is_ascii_digit()) => {
                    (format!("has a port out of range in {server:?}"), "give a port from 1 to 65535")
                }
                _ => (format!("has no port in {server:?}"), "give host:port, as in localhost:9092"),
            }
        };
        return Err(ValueFault::new(what, remedy));
    }
    Ok(servers.join(","))
}

/// librdkafka properties by name. Values that may be secret are not printed.
pub(in crate::config) struct PropertyMap;

impl Form<Properties> for PropertyMap {
    fn read(&self, key: &str, reading: &mut ConfigReading<'_>) -> Option<Properties> {
        let properties = reading.map(key);
        for (name, value) in &properties {
            if let Some(fault) = rejection(&name.to_lowercase(), value) {
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
pub(in crate::config) const SOURCE_TOPICS: ListForm<String> = ListForm(Shape::List, |key, reading| {
    let remedy = "give names of topics, or one regular expression that begins with '^'";
    let texts = reading.texts(key).unwrap_or_default();
    if texts.is_empty() {
        reading.reject(key, None, ValueFault::new("is missing", format!("{remedy}, or --from")));
        return None;
    }
    let mut is_valid = true;
    for (place, text) in texts.iter().enumerate() {
        // A regular expression is checked by the client.
        let fault = if text.starts_with('^') { None } else { TopicName::parse(text).err() };
        let is_repeated = || texts.iter().take(place).any(|earlier| earlier == text);
        let fault = fault.or_else(|| is_repeated().then(|| "is listed twice".to_owned()));
        is_valid &= fault.is_none();
        if let Some(what) = fault {
            reading.reject(key, Some(text), ValueFault::new(what, remedy));
        }
    }
    is_valid.then(|| texts.to_vec())
});
