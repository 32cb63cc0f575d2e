//! TLS, SASL and authorization on a real Apache Kafka: valid credentials work, invalid ones are reported with the
//! reason, and the documented permissions are exactly the required ones.

mod connections;
mod rights;
mod secrets;
mod takeover;

use std::sync::OnceLock;
use std::time::Duration;

use crate::support::Secured;

const LIMIT: Duration = Duration::from_secs(30);

fn shared() -> &'static Secured {
    static SHARED: OnceLock<Secured> = OnceLock::new();
    SHARED.get_or_init(Secured::start)
}

type Properties<'a> = &'a [(&'a str, &'a str)];

const TLS: Properties<'_> = &[("security.protocol", "ssl"), ("ssl.ca.location", "@ca.pem")];

/// The properties of a user with a password.
fn sasl<'a>(
    protocol: &'a str,
    mechanism: &'a str,
    user: &'a str,
    password: &'a str,
) -> Vec<(&'a str, &'a str)> {
    vec![
        ("security.protocol", protocol),
        ("ssl.ca.location", "@ca.pem"),
        ("sasl.mechanism", mechanism),
        ("sasl.username", user),
        ("sasl.password", password),
    ]
}
