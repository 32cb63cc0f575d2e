//! A Keycloak with one realm, which also serves TLS, and a broker that accepts its tokens.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::time::Duration;

use serde_json::json;

use crate::server::start_serving;
use crate::support::certificates::{issue, make_authorities};
use crate::support::kafka::JVM;
use crate::support::ports::free_port;
use crate::support::{Kafka, Running, child};

const START_LIMIT: Duration = Duration::from_mins(5);
/// Lifetime of a token. The client requests a new one after 80 % of it.
pub const LIFETIME: Duration = Duration::from_secs(30);
/// How long a connection may be used until it has to be authenticated again.
const SESSION: Duration = Duration::from_secs(15);

/// The secret of both clients of the realm. Tokens of `dedupd` have the audience that the broker requires, tokens of `elsewhere`
/// have not.
pub const SECRET: &str = "client-secret-canary";
const TOKEN_PATH: &str = "/realms/dedupd/protocol/openid-connect/token";

/// Both servers, shared by all tests.
pub struct Oidc {
    pub kafka: Kafka,
    /// Port of the listener that requires a token.
    pub listener: u16,
    pub keycloak: Running,
    /// Port of the Keycloak with TLS. The certificate is issued by the authority `ca`, for 127.0.0.1.
    pub tls: u16,
    dir: tempfile::TempDir,
}

pub fn shared() -> &'static Oidc {
    static SHARED: OnceLock<Oidc> = OnceLock::new();
    SHARED.get_or_init(Oidc::start)
}

impl Oidc {
    fn start() -> Self {
        let dir = tempfile::tempdir().unwrap();
        make_authorities(dir.path());
        issue(dir.path(), "keycloak", "subjectAltName=IP:127.0.0.1", None);
        let (tls, listener) = (free_port(), free_port());
        let keycloak = start_keycloak(dir.path(), tls);
        let issuer = format!("http://127.0.0.1:{}/realms/dedupd", keycloak.port);
        let kafka = start_broker(listener, &issuer);
        Self { kafka, listener, keycloak, tls, dir }
    }

    /// `host:port` of the listener that requires a token.
    pub fn bootstrap(&self) -> String {
        format!("127.0.0.1:{}", self.listener)
    }

    /// The file with the certificate of an authority.
    pub fn authority(&self, name: &str) -> PathBuf {
        self.dir.path().join(format!("{name}.pem"))
    }

    /// The token endpoint with TLS, at this name of the host.
    pub fn tls_endpoint(&self, host: &str) -> String {
        format!("https://{host}:{}{TOKEN_PATH}", self.tls)
    }
}

/// The token endpoint of a Keycloak, or of a gate in front of it.
pub fn endpoint(port: u16) -> String {
    format!("http://127.0.0.1:{port}{TOKEN_PATH}")
}

/// The client properties for the client credentials grant.
pub fn properties(endpoint: &str, client: &str, secret: &str) -> Vec<(String, String)> {
    [
        ("security.protocol", "sasl_plaintext"),
        ("sasl.mechanism", "OAUTHBEARER"),
        ("sasl.oauthbearer.method", "oidc"),
        ("sasl.oauthbearer.client.id", client),
        ("sasl.oauthbearer.client.secret", secret),
        ("sasl.oauthbearer.token.endpoint.url", endpoint),
    ]
    .map(|(name, value)| (name.to_owned(), value.to_owned()))
    .to_vec()
}

/// Starts Keycloak from a copy, because it writes to its own directory.
fn start_keycloak(dir: &Path, tls: u16) -> Running {
    let installed = Path::new(env!("CARGO_MANIFEST_DIR")).join(".integration/keycloak");
    assert!(installed.is_dir(), "no Keycloak in {}: run scripts/setup integration", installed.display());
    let home = dir.join("keycloak");
    fs::create_dir_all(home.join("data/import")).unwrap();
    fs::create_dir_all(home.join("lib")).unwrap();
    for copied in ["bin", "conf", "providers", "lib/quarkus", "lib/quarkus-run.jar"] {
        let copy = Command::new("cp").arg("-r").args([installed.join(copied), home.join(copied)]).status();
        assert!(copy.is_ok_and(|status| status.success()), "{copied}");
    }
    for shared in ["lib/lib", "lib/app", "themes", "version.txt"] {
        symlink(fs::canonicalize(installed.join(shared)).unwrap(), home.join(shared)).unwrap();
    }
    fs::write(home.join("data/import/dedupd-realm.json"), realm().to_string()).unwrap();
    let port = free_port();
    let mut command = child::tied(home.join("bin/kc.sh"));
    command.args(["start-dev", "--import-realm", "--http-host=127.0.0.1", &format!("--http-port={port}")]);
    let file = |name: &str| dir.join(name).display().to_string();
    command.arg(format!("--https-port={tls}"));
    // The issuer of all tokens, also of those that are requested over TLS.
    command.arg(format!("--hostname=http://127.0.0.1:{port}"));
    command.arg(format!("--https-certificate-file={}", file("keycloak.crt")));
    command.arg(format!("--https-certificate-key-file={}", file("keycloak.key")));
    command.env("JAVA_OPTS_APPEND", "-XX:TieredStopAtLevel=1 -Xmx512m -Djava.net.preferIPv4Stack=true");
    start_serving(command, port, dir.join("keycloak.log"), "/realms/dedupd", START_LIMIT)
}

fn realm() -> serde_json::Value {
    let audience = json!({
        "name": "audience", "protocol": "openid-connect", "protocolMapper": "oidc-audience-mapper",
        "config": { "included.custom.audience": "kafka", "access.token.claim": "true" },
    });
    let client = |id: &str, mappers: serde_json::Value| {
        json!({
            "clientId": id, "secret": SECRET, "protocol": "openid-connect", "publicClient": false,
            "serviceAccountsEnabled": true, "standardFlowEnabled": false, "directAccessGrantsEnabled": false,
            "protocolMappers": mappers,
        })
    };
    json!({
        "realm": "dedupd", "enabled": true, "sslRequired": "none", "accessTokenLifespan": LIFETIME.as_secs(),
        "clients": [client("dedupd", json!([audience])), client("elsewhere", json!([]))],
    })
}

fn start_broker(listener: u16, issuer: &str) -> Kafka {
    let keys = format!("{issuer}/protocol/openid-connect/certs");
    let handler = "org.apache.kafka.common.security.oauthbearer.OAuthBearerValidatorCallbackHandler";
    let module = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required;";
    let session = SESSION.as_millis().to_string();
    let allowed = format!("-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls={keys}");
    Kafka::start_listening(
        &[("TOKENS", listener, "SASL_PLAINTEXT")],
        &[
            (JVM, &allowed),
            ("sasl.enabled.mechanisms", "OAUTHBEARER"),
            ("sasl.oauthbearer.jwks.endpoint.url", &keys),
            // From Kafka 4.4.0 on a broker does not start without it.
            ("sasl.oauthbearer.expected.issuer", issuer),
            ("sasl.oauthbearer.expected.audience", "kafka"),
            ("sasl.oauthbearer.clock.skew.seconds", "2"),
            ("listener.name.tokens.oauthbearer.sasl.server.callback.handler.class", handler),
            ("listener.name.tokens.oauthbearer.sasl.jaas.config", module),
            ("listener.name.tokens.oauthbearer.connections.max.reauth.ms", &session),
        ],
    )
}
