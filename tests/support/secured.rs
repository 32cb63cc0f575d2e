//! A broker with TLS, client certificates, SASL and an authorizer.

use std::path::{Path, PathBuf};

use super::certificates::{issue, make_authorities};
use super::ports::free_port;
use super::{Kafka, Sidecar, config_tool, tool};

/// Passwords of the two users on the broker.
pub const TRUSTED: &str = "trusted-passphrase-1";
pub const DEDUPD: &str = "dedupd-passphrase-2";

/// The listeners and their protocols, each on its own port. All except two have the valid certificate.
const LISTENERS: [(&str, &str); 6] = [
    ("TLS", "SSL"),
    ("MTLS", "SSL"),
    ("MISNAMED", "SSL"),
    ("EXPIRED", "SSL"),
    ("SASLTLS", "SASL_SSL"),
    ("SASLPLAIN", "SASL_PLAINTEXT"),
];

/// The broker with its certificates. The user `trusted` and anonymous clients have all permissions, `dedupd` has
/// the granted ones.
pub struct Secured {
    pub kafka: Kafka,
    ports: Vec<(&'static str, u16)>,
    certificates: tempfile::TempDir,
}

impl Secured {
    pub fn start() -> Self {
        let certificates = tempfile::tempdir().unwrap();
        let at = certificates.path();
        make_certificates(at);
        let ports: Vec<(&str, u16)> = LISTENERS.iter().map(|(name, _)| (*name, free_port())).collect();
        let listeners: Vec<_> = LISTENERS
            .iter()
            .zip(&ports)
            .map(|((name, protocol), (_, port))| (*name, *port, *protocol))
            .collect();
        let settings = settings(at);
        let settings: Vec<(&str, &str)> = settings.iter().map(|(k, v)| (k.as_str(), v.as_str())).collect();
        let kafka = Kafka::start_listening(&listeners, &settings);
        let secured = Self { kafka, ports, certificates };
        secured.set_password("trusted", TRUSTED);
        secured.set_password("dedupd", DEDUPD);
        secured
    }

    /// Sets the SCRAM password of a user.
    pub fn set_password(&self, user: &str, password: &str) {
        let config = format!("SCRAM-SHA-512=[password={password}]");
        let which = ["--entity-type", "users", "--entity-name", user];
        let alter = ["--bootstrap-server", self.kafka.bootstrap(), "--alter", "--add-config", &config];
        config_tool(&[&alter[..], &which].concat());
    }

    /// `host:port` of a listener.
    pub fn at(&self, listener: &str) -> String {
        let port = self.ports.iter().find(|(name, _)| *name == listener).expect("a listener").1;
        format!("127.0.0.1:{port}")
    }

    /// The path of a file, for example of `ca.pem`.
    pub fn file(&self, name: &str) -> PathBuf {
        self.certificates.path().join(name)
    }

    /// The sidecar with another listener and these client properties. A value with `@` is a file name.
    pub fn through(&self, mut sidecar: Sidecar, listener: &str, properties: &[(&str, &str)]) -> Sidecar {
        sidecar.bootstrap = self.at(listener);
        properties
            .iter()
            .fold(sidecar, |sidecar, (name, value)| sidecar.with(&variable(name), &self.resolve(value)))
    }

    /// The path of the file for `@` and a file name, or the unchanged value.
    pub fn resolve(&self, value: &str) -> String {
        value.strip_prefix('@').map_or_else(|| value.to_owned(), |file| self.file(file).display().to_string())
    }

    /// Runs a command of `kafka-acls.sh` on this broker as an administrator.
    pub fn acls(&self, arguments: &[&str]) -> String {
        let server = ["--bootstrap-server", self.kafka.bootstrap()];
        tool("org.apache.kafka.tools.AclCommand", &[&server[..], arguments].concat())
    }
}

/// The environment variable of a client property.
pub fn variable(property: &str) -> String {
    format!("DEDUPD_KAFKA__PROPERTIES__{}", property.replace('.', "_").to_uppercase())
}

fn settings(at: &Path) -> Vec<(String, String)> {
    let pem = |name: &str| at.join(name).display().to_string();
    let plain = format!(
        "org.apache.kafka.common.security.plain.PlainLoginModule required user_trusted=\"{TRUSTED}\" \
         user_dedupd=\"{DEDUPD}\";"
    );
    let mut settings = vec![
        ("authorizer.class.name", "org.apache.kafka.metadata.authorizer.StandardAuthorizer".to_owned()),
        ("super.users", "User:ANONYMOUS;User:trusted".to_owned()),
        ("ssl.keystore.type", "PEM".to_owned()),
        ("ssl.keystore.location", pem("broker.pem")),
        ("ssl.truststore.type", "PEM".to_owned()),
        ("ssl.truststore.location", pem("ca.pem")),
        ("ssl.principal.mapping.rules", "RULE:^CN=(.*)$/$1/".to_owned()),
        ("listener.name.mtls.ssl.client.auth", "required".to_owned()),
        ("sasl.enabled.mechanisms", "PLAIN,SCRAM-SHA-512".to_owned()),
    ];
    for (listener, certificate) in [("misnamed", "misnamed.pem"), ("expired", "expired.pem")] {
        let key: &'static str = Box::leak(format!("listener.name.{listener}.ssl.keystore.location").into());
        let kind: &'static str = Box::leak(format!("listener.name.{listener}.ssl.keystore.type").into());
        settings.extend([(key, pem(certificate)), (kind, "PEM".to_owned())]);
    }
    let scram = "org.apache.kafka.common.security.scram.ScramLoginModule required;";
    let mut settings: Vec<_> = settings.into_iter().map(|(k, v)| (k.to_owned(), v)).collect();
    for listener in ["sasltls", "saslplain"] {
        let key = |mechanism: &str| format!("listener.name.{listener}.{mechanism}.sasl.jaas.config");
        settings.extend([(key("plain"), plain.clone()), (key("scram-sha-512"), scram.to_owned())]);
    }
    settings
}

/// Creates two certificate authorities, three broker certificates (a valid one, one for another host, an expired one)
/// and a client certificate.
fn make_certificates(at: &Path) {
    make_authorities(at);
    issue(at, "broker", "subjectAltName=IP:127.0.0.1,DNS:localhost", None);
    issue(at, "misnamed", "subjectAltName=DNS:elsewhere.example", None);
    issue(
        at,
        "expired",
        "subjectAltName=IP:127.0.0.1,DNS:localhost",
        Some(("20200101000000Z", "20200102000000Z")),
    );
    issue(at, "trusted", "extendedKeyUsage=clientAuth", None);
}
