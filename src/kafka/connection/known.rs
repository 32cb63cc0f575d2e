//! The connection problems that are recognised by their texts, with the action to take.

/// What the text of the client does not contain, and is added to the explanation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProblemDetail {
    Nothing,
    /// Why the broker's certificate is not accepted.
    BrokerCertificate,
    /// The URL of the token endpoint.
    TokenEndpoint,
}

/// A problem that is recognised by its text.
pub struct KnownProblem {
    /// One of these, in lower case, is in the text.
    pub phrases: &'static [&'static str],
    /// The broker was reached and rejected the connection.
    pub refused: bool,
    pub detail: ProblemDetail,
    pub what: &'static str,
}

impl KnownProblem {
    const fn with(self, detail: ProblemDetail) -> Self {
        Self { detail, ..self }
    }

    pub fn is_in(&self, lower_case: &str) -> bool {
        self.phrases.iter().any(|phrase| lower_case.contains(phrase))
    }
}

/// A problem of the connection, which may pass.
const fn obstacle(phrases: &'static [&'static str], what: &'static str) -> KnownProblem {
    KnownProblem { phrases, refused: false, detail: ProblemDetail::Nothing, what }
}

/// The broker was reached and rejected the connection.
const fn rejection(phrases: &'static [&'static str], what: &'static str) -> KnownProblem {
    KnownProblem { refused: true, ..obstacle(phrases, what) }
}

pub const KNOWN: [KnownProblem; 18] = [
    rejection(
        &["certificate verify failed", "failed to verify broker certificate"],
        "the broker's certificate is not accepted; check ssl.ca.location, that it has not expired, and that it names \
         the host",
    )
    .with(ProblemDetail::BrokerCertificate),
    rejection(
        &[
            "alert certificate",
            "alert bad certificate",
            "alert unknown ca",
            "alert unsupported certificate",
            "ssl authentication might be required",
        ],
        "the broker does not accept this client's certificate; set ssl.certificate.location and ssl.key.location to \
         one that has not expired and is issued by an authority in the broker's truststore",
    ),
    rejection(
        &REJECTED_REQUESTS,
        "the OIDC provider rejects the request for a token; correct sasl.oauthbearer.client.id and \
         sasl.oauthbearer.client.secret (or the file of sasl.oauthbearer.client.secret.file), the key and claims of \
         the assertion, or sasl.oauthbearer.scope, or allow the grant for this client at the provider",
    )
    .with(ProblemDetail::TokenEndpoint),
    rejection(
        &PROVIDER_CERTIFICATE,
        "the certificate of the OIDC provider is not accepted; set https.ca.location to the file with the certificate \
         of the authority that issued it, and check that it has not expired and names the host in \
         sasl.oauthbearer.token.endpoint.url",
    )
    .with(ProblemDetail::TokenEndpoint),
    obstacle(
        &["no aws credentials"],
        "there is no token for Amazon MSK",
    ),
    obstacle(
        &[
            "failed to acquire sasl oauthbearer token",
            "failed to retrieve oidc token",
            "failed to retrieve jwt token",
        ],
        "there is no token, because the OIDC provider returned none; check that it runs, and that \
         sasl.oauthbearer.token.endpoint.url is correct and can be reached from here (https.ca.location for its \
         certificate)",
    )
    .with(ProblemDetail::TokenEndpoint),
    rejection(
        &["invalid_token", "sasl oauthbearer authentication failed"],
        "the broker does not accept the token; check that issuer, audience and scope of the token are those that the \
         broker requires (sasl.oauthbearer.scope, and the client at the provider), and that the clocks agree",
    ),
    obstacle(
        &[NO_SASL],
        "this port does not use SASL, or has ended the session of an expired token; if there was never a connection, \
         set security.protocol to plaintext or ssl, or correct the port in kafka.bootstrap_servers",
    ),
    obstacle(
        &["kerberos ticket refresh", "gssapi", "sasl handshake failed (st"],
        "Kerberos authentication fails; check sasl.kerberos.principal and sasl.kerberos.keytab, that \
         sasl.kerberos.service.name and the host name of the broker are its principal, the KDC in krb5.conf, and that \
         the clocks agree",
    ),
    rejection(
        &["sasl authentication error", "sasl authentication failure", "failed to initialize sasl"],
        "the broker does not accept the user or password; correct sasl.username and sasl.password (or the file of \
         sasl.password.file), or create the user for this mechanism on the broker",
    ),
    obstacle(
        &[
            "connecting to a plaintext broker listener",
            "wrong version number",
            "record layer failure",
        ],
        "security.protocol requires TLS, but this port does not seem to use TLS; if the broker is up, correct the \
         port in kafka.bootstrap_servers, or security.protocol",
    ),
    obstacle(
        &[HTTP_AS_SIZE],
        "this port answers with HTTP, not as a broker; correct the port in kafka.bootstrap_servers",
    ),
    obstacle(
        &["connecting to a ssl listener", "invalid response size", "invalid frame size"],
        REQUIRES_TLS,
    ),
    obstacle(
        &["failed to resolve"],
        "the host name of the broker cannot be resolved; correct kafka.bootstrap_servers, the broker's \
         advertised.listeners, or the name service",
    ),
    obstacle(
        &["connection refused"],
        "nothing listens at the address; check that the broker runs, the port in kafka.bootstrap_servers, and the \
         broker's advertised.listeners",
    ),
    obstacle(
        &["timed out in state connect", "connection timed out", "operation timed out"],
        "no answer from the address; check kafka.bootstrap_servers, the broker's advertised.listeners, and the \
         firewalls on the way",
    ),
    obstacle(
        &["apiversionrequest failed"],
        "nothing at the address answers as a broker; check that the broker runs, and that kafka.bootstrap_servers has \
         its port for clients",
    ),
    obstacle(
        &["no route to host", "network is unreachable", "host is down"],
        "the address cannot be reached from this host; check kafka.bootstrap_servers, the broker's \
         advertised.listeners, and the network",
    ),
];
/// The first four bytes of a response are its size: those of a response of HTTP are "HTTP".
const HTTP_AS_SIZE: &str = "size 1213486160";
/// The text of the error `ILLEGAL_SASL_STATE`, with which a port without SASL answers.
pub const NO_SASL: &str = "request not valid in current sasl state";
pub const UNSUPPORTED_MECHANISM: &str =
    "set sasl.mechanism to one that the broker supports, or enable this one on the broker";
pub const REQUIRES_TLS: &str = "this port seems to require TLS, but security.protocol does not use it; if the broker is up, \
    set security.protocol to ssl or sasl_ssl, or correct the port in kafka.bootstrap_servers";
const REQUIRES_SASL: &str = "this port seems to require SASL, but security.protocol does not use it; if the broker is up, \
    set security.protocol and sasl.mechanism, or correct the port in kafka.bootstrap_servers";

/// The errors of libcurl about the certificate of a server, and about the file with the trusted ones.
const PROVIDER_CERTIFICATE: [&str; 5] = [
    "ssl certificate problem",
    "ssl: no alternative certificate subject name",
    "ssl: certificate subject name",
    "error setting certificate",
    "error adding trust anchors",
];

/// The errors of a token endpoint about the request, RFC 6749 section 5.2. They are in the body of the response.
const REJECTED_REQUESTS: [&str; 6] = [
    "\"invalid_client\"",
    "\"unauthorized_client\"",
    "\"invalid_grant\"",
    "\"invalid_scope\"",
    "\"invalid_request\"",
    "\"unsupported_grant_type\"",
];

/// The likely problem when a broker closes the connection without an error: it does so at the first unexpected bytes.
/// The text starts with the protocol unless that is plaintext.
pub fn closed_without_error(text: &str) -> Option<&'static str> {
    if !text.contains("disconnected") || text.contains("ssl://") {
        None
    } else if text.contains("in state apiversion_query") {
        Some(REQUIRES_TLS)
    } else if text.contains("in state up") && !text.contains("sasl_plaintext://") {
        Some(REQUIRES_SASL)
    } else {
        None
    }
}
