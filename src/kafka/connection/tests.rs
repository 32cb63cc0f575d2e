use super::known::REQUIRES_TLS;
use super::*;

#[test]
fn a_rejection_is_distinguished_from_a_closed_connection() {
    for (reason, rejected) in [
        ("SASL authentication error: Authentication failed: Invalid username or password", Some(true)),
        ("SASL authentication error: SaslAuthenticateRequest failed: Local: Broker transport failure", None),
        (
            "SASL PLAIN mechanism handshake failed: Local: Broker transport failure: broker's supported \
             mechanisms:  (after 2ms in state AUTH_HANDSHAKE)",
            None,
        ),
        (
            "SASL X mechanism handshake failed: Broker: Unsupported SASL mechanism: broker's supported \
             mechanisms: PLAIN (after 2ms in state AUTH_HANDSHAKE)",
            Some(true),
        ),
        (
            "ssl://b:1/1: SSL handshake failed: error:0A000086:SSL routines::certificate verify failed",
            Some(true),
        ),
        (
            "ssl://b:1/1: Receive failed: error:0A00045C:SSL routines::tlsv13 alert certificate required",
            Some(true),
        ),
        (
            "ssl://b:1/1: SSL handshake failed: Disconnected: connecting to a PLAINTEXT broker listener?",
            Some(false),
        ),
        ("b:1/1: Disconnected: connection closed by peer (after 0ms in state APIVERSION_QUERY)", Some(false)),
        ("ssl://b:1/1: Disconnected: connection closed by peer (after 0ms in state APIVERSION_QUERY)", None),
        (
            "b:1/1: Connect to ipv4#127.0.0.1:1 failed: Connection refused (after 0ms in state CONNECT)",
            Some(false),
        ),
        (
            "sasl_plaintext://b:1/bootstrap: SASL PLAIN mechanism handshake failed: Broker: Request not valid in current SASL \
             state: broker's supported mechanisms:  (after 3ms in state AUTH_HANDSHAKE)",
            Some(false),
        ),
        ("b:1/1: Connection setup timed out in state CONNECT (after 30029ms in state CONNECT)", Some(false)),
        (
            "b:1/1: Connect to ipv4#10.0.0.1:1 failed: No route to host (after 3ms in state CONNECT)",
            Some(false),
        ),
        (
            r#"Failed to acquire SASL OAUTHBEARER token: {"error":"invalid_client","error_description":"x"}"#,
            Some(true),
        ),
        ("Failed to acquire SASL OAUTHBEARER token: Empty reply from server", Some(false)),
        (
            "Failed to acquire SASL OAUTHBEARER token: SSL certificate problem: unable to get local issuer certificate",
            Some(true),
        ),
        (r#"sasl_ssl://b:1/1: SASL authentication error: {"status":"invalid_token"}"#, Some(true)),
        ("Kerberos ticket refresh failed: kinit -t k -k p: exited with code 1", Some(false)),
    ] {
        assert_eq!(classify(reason).map(|it| it.refused), rejected, "{reason}");
    }
}

#[test]
fn a_rejection_is_not_replaced_by_its_consequences() {
    let last = LastProblem::default();
    last.record("b:1/1: Disconnected: connection closed by peer (after 0ms in state APIVERSION_QUERY)");
    assert!(!last.latest().unwrap().refused);
    last.record("SASL authentication error: Authentication failed");
    last.record("b:1/1: Disconnected: connection closed by peer (after 0ms in state UP)");
    assert!(last.latest().unwrap().refused);
    last.clear();
    assert_eq!(last.latest(), None);
}

#[test]
fn the_texts_of_a_client_are_explained_when_they_are_recognised() {
    let explained = |texts: &[&str]| {
        explanation(&texts.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>(), "b:1", &[])
            .map(|it| it.what)
    };
    let rejected = "SASL authentication error: Authentication failed";
    let closed = "b:1/1: Disconnected: connection closed by peer (after 0ms in state APIVERSION_QUERY)";
    assert_eq!(
        explained(&[closed, "x"]),
        Some(format!("{REQUIRES_TLS} (b:1/1: Disconnected: connection closed by peer)"))
    );
    assert!(explained(&[rejected, closed]).unwrap().ends_with(&format!("({rejected})")));
    let untrusted =
        "Failed to acquire SASL OAUTHBEARER token: SSL certificate problem: certificate has expired";
    let endpoint = [(TOKEN_ENDPOINT.to_owned(), "https://idp/token".to_owned())];
    let what = explanation(&[untrusted.to_owned()], "b:1", &endpoint).unwrap().what;
    assert!(what.starts_with("https://idp/token: ") && what.contains("https.ca.location"), "{what}");
    let refused =
        explained(&["b:1/1: Connect to ipv4#127.0.0.1:1 failed: Connection refused (after 2ms)"]).unwrap();
    assert!(
        refused.starts_with("nothing listens at the address") && refused.ends_with("Connection refused)")
    );
    let http = "b:1/bootstrap: Receive failed: Invalid response size 1213486160 (0..300000000): increase \
                receive.message.max.bytes";
    assert!(explained(&[http]).unwrap().starts_with("this port answers with HTTP, not as a broker; "));
    assert_eq!(explained(&["b:1/1: something else"]), None);
}

#[test]
fn tokens_and_tickets_have_their_own_advice() {
    for (reason, word) in [
        (r#"Failed to acquire SASL OAUTHBEARER token: {"error":"invalid_client"}"#, "client.secret"),
        (
            r#"Failed to retrieve OIDC token from "http://a/t": Couldn't connect to server (-1)"#,
            "endpoint.url",
        ),
        (r#"b:1/1: SASL authentication error: {"status":"invalid_token"} (after 1ms)"#, "audience"),
        ("Kerberos ticket refresh failed: kinit: exited with code 1", "sasl.kerberos.keytab"),
        (
            "b:1/1: SASL authentication error: Authentication failed: Invalid username or password",
            "sasl.password",
        ),
    ] {
        assert!(advice(reason).is_some_and(|advice| advice.contains(word)), "{reason}");
    }
    // The broker closes the session of an expired token with the answer that it expects another request.
    let state = "SASL OAUTHBEARER mechanism handshake failed: Broker: Request not valid in current SASL state: broker's \
                 supported mechanisms:  (after 1ms in state AUTH_HANDSHAKE)";
    assert!(advice(state).is_some_and(|advice| advice.contains("expired token")));
}

#[test]
fn a_topic_without_an_id_has_no_null_behind_its_name() {
    let error = KafkaError::AdminOpCreation("raw((null))[0](Broker: fenced), raw((null))[1]".to_owned());
    assert!(error_text(&error).ends_with(": raw[0](Broker: fenced), raw[1]"), "{}", error_text(&error));
}
