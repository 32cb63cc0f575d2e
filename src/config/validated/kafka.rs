//! Connection to Kafka.

use crate::config::as_typed::TypedKafka;
use crate::config::properties::{Properties, rejection};
use crate::config::reading::Reading;

/// Connection to Kafka.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Kafka {
    /// `host:port`, several separated by commas.
    pub bootstrap_servers: String,
    /// librdkafka properties for every client; none of them breaks the exactly-once guarantee.
    pub properties: Properties,
}

pub(super) fn validate(typed: &TypedKafka, reading: &mut Reading<'_>) -> Option<Kafka> {
    let bootstrap_servers = servers(typed.bootstrap_servers.as_deref(), reading);
    for (name, value) in typed.properties.iter() {
        if let Some(rejection) = rejection(&name.to_lowercase()) {
            let key = format!("kafka.properties.{name}");
            // The values of rejected properties are not secret, except for user:password@host.
            let value = Some(value).filter(|value| !value.contains('@'));
            reading.reject(&key, value, rejection.what, rejection.remedy);
        }
    }
    Some(Kafka { bootstrap_servers: bootstrap_servers?, properties: typed.properties.clone() })
}

fn servers(value: Option<&str>, reading: &mut Reading<'_>) -> Option<String> {
    let key = "kafka.bootstrap_servers";
    let text =
        reading.required(key, value, "give host:port of one or more brokers, or --bootstrap-servers")?;
    let servers: Vec<_> = text.split(',').map(str::trim).filter(|server| !server.is_empty()).collect();
    if servers.iter().any(|server| server.contains('@')) {
        let remedy = "give host:port only, and the password as kafka.properties.\"sasl.password\"";
        reading.reject(key, None, "seems to contain a password", remedy);
        return None;
    }
    if let Some(server) = servers.iter().find(|server| !has_port(server)) {
        let what = format!("has no port in {server:?}");
        reading.reject(key, Some(text), &what, "give host:port, as in localhost:9092");
        return None;
    }
    Some(servers.join(","))
}

fn has_port(server: &str) -> bool {
    server.rsplit_once(':').is_some_and(|(host, port)| !host.is_empty() && port.parse::<u16>().is_ok())
}
