//! A token endpoint with TLS, whose certificate a private authority issued.

use super::keycloak::{SECRET, properties, shared};
use super::{LIMIT, Properties, assert_commands_report, assert_deduplicates, assert_start_ends, with};
use crate::support::{Draft, Pipe};

/// The properties with the endpoint at this name of the host, and the trusted authority.
fn through(host: &str, authority: Option<&str>) -> Properties {
    let oidc = shared();
    let mut properties = properties(&oidc.tls_endpoint(host), "dedupd", SECRET);
    let location = authority.map(|name| oidc.authority(name).display().to_string());
    properties.extend(location.map(|it| ("https.ca.location".to_owned(), it)));
    properties
}

#[test]
fn tokens_are_received_over_tls_with_the_authority_of_the_provider() {
    let oidc = shared();
    let pipe = Pipe::new(&oidc.kafka, "https", 2);
    oidc.kafka.send(&pipe.raw, &["a", "a", "b"].map(|id| Draft::id(0, id)));
    assert_deduplicates(&pipe, &through("127.0.0.1", Some("ca")));
}

/// `SSL_CERT_FILE` replaces the store of the operating system for OpenSSL.
#[test]
fn without_an_authority_the_store_of_the_operating_system_is_used() {
    let oidc = shared();
    let pipe = Pipe::new(&oidc.kafka, "https.store", 1);
    let sidecar = with(pipe.sidecar("a"), &through("127.0.0.1", None));
    let running = sidecar.with("SSL_CERT_FILE", oidc.authority("ca").to_str().unwrap()).start();
    running.wait_ready(LIMIT);
    assert_eq!(running.stop(), Some(0), "{}", running.text());
}

#[test]
fn a_certificate_that_is_not_accepted_ends_the_start_with_the_endpoint_and_the_property() {
    let cases = [
        ("https.unknown", "127.0.0.1", None, "issuer certificate"),
        ("https.stranger", "127.0.0.1", Some("stranger"), "issuer certificate"),
        ("https.misnamed", "localhost", Some("ca"), "localhost"),
    ];
    std::thread::scope(|all| {
        for (name, host, authority, reason) in cases {
            all.spawn(move || {
                let (properties, endpoint) = (through(host, authority), shared().tls_endpoint(host));
                let what = "the certificate of the OIDC provider is not accepted";
                let words = [&endpoint, what, "https.ca.location", reason];
                assert_start_ends(name, &properties, &words);
                assert_commands_report(&properties, &words);
            });
        }
    });
}
