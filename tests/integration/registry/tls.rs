//! A registry with TLS, whose certificate a private authority issued.

use std::path::Path;

use super::{API, LIMIT, ORDER_1, Registry, draft, string, total};
use crate::support::certificates::{issue, make_authorities};
use crate::support::ports::free_port;
use crate::support::{Pipe, Running, Sidecar, child, shared_kafka, wait_until};

const NAMES: &str = "subjectAltName=IP:127.0.0.1";

/// A sidecar with ids in Avro, and these settings of the registry beside its URL.
fn sidecar(pipe: &Pipe<'_>, url: &str, settings: &[(&str, &Path)]) -> Sidecar {
    let sidecar = pipe
        .sidecar("a")
        .with("DEDUPD_IDENTITY__FROM", "[\"avro:/id\"]")
        .with("DEDUPD_SCHEMAS__REGISTRY", url);
    settings.iter().fold(sidecar, |sidecar, (name, path)| sidecar.with(name, path.to_str().unwrap()))
}

/// The partition of the records waits, with these words.
fn assert_waits(pipe: &Pipe<'_>, sidecar: &Sidecar, words: &[&str]) {
    let running = sidecar.start();
    // Before that it leaves the group to others for a short time.
    let needed = [words, &["partition 0 is waiting (needs schema"]].concat();
    let page = wait_until(&format!("{needed:?}, see {}", running.log.display()), LIMIT, || {
        running.get("/readyz").filter(|page| needed.iter().all(|word| page.contains(word)))
    });
    println!("{}", page.lines().last().unwrap_or_default());
    assert!(page.starts_with("HTTP/1.1 503"), "{page}");
    assert_eq!(total(pipe), 0, "nothing is forwarded without the schema");
    let audit = sidecar.audit().unwrap_err();
    assert!(words.iter().all(|word| audit.contains(word)), "{audit}");
    assert_eq!(running.stop(), Some(0), "{}", running.text());
}

/// Starts an instance, waits until the clean topic has this number of records, and audits.
fn assert_reads(pipe: &Pipe<'_>, sidecar: &Sidecar, expected: usize) {
    let running = sidecar.start();
    wait_until(&format!("{expected} records, see {}", running.log.display()), LIMIT, || {
        (total(pipe) == expected).then_some(())
    });
    sidecar.audit().unwrap();
    assert_eq!(running.stop(), Some(0), "{}", running.text());
}

#[test]
fn schemas_are_read_over_tls_with_the_authority_of_the_registry() {
    let dir = tempfile::tempdir().unwrap();
    let file = |name: &str| dir.path().join(name);
    make_authorities(dir.path());
    issue(dir.path(), "registry", NAMES, None);
    let port = free_port();
    let (certificate, key) = (file("registry.crt"), file("registry.key"));
    let properties = [
        ("quarkus.http.ssl-port", port.to_string()),
        ("quarkus.http.ssl.certificate.files", certificate.display().to_string()),
        ("quarkus.http.ssl.certificate.key-files", key.display().to_string()),
    ];
    let properties = properties.each_ref().map(|(name, value)| (*name, value.as_str()));
    let registry = Registry::start_with(free_port(), dir.path(), &properties);
    let [order, ..] = registry.fill();

    let pipe = Pipe::new(shared_kafka(), "registry-tls", 2);
    let order = |id: &str| draft(0, order, &string(id));
    pipe.kafka.send(&pipe.raw, &["a", "a", "b"].map(order));
    let url = format!("https://127.0.0.1:{port}{API}");
    let with = |settings: &[(&str, &Path)]| sidecar(&pipe, &url, settings);
    let words = [&format!("GET {url}/schemas/ids/"), "certificate verify failed", "set schemas.ca_file"];
    assert_waits(&pipe, &with(&[]), &words);
    assert_waits(&pipe, &with(&[("DEDUPD_SCHEMAS__CA_FILE", &file("stranger.pem"))]), &words);

    assert_reads(&pipe, &with(&[("DEDUPD_SCHEMAS__CA_FILE", &file("ca.pem"))]), 2);

    // `SSL_CERT_FILE` replaces the store of the operating system for OpenSSL.
    pipe.kafka.send(&pipe.raw, &["b", "c"].map(order));
    assert_reads(&pipe, &with(&[("SSL_CERT_FILE", &file("ca.pem"))]), 3);
}

/// Serves the files of a directory as HTTP responses, to clients with a certificate of the authority `ca`.
fn serve_files(dir: &Path, port: u16) -> Running {
    let mut command = child::tied("openssl");
    command.current_dir(dir).args(["s_server", "-accept", &format!("127.0.0.1:{port}"), "-HTTP", "-quiet"]);
    command.args(["-cert", "registry.crt", "-key", "registry.key", "-CAfile", "ca.pem"]);
    command.args(["-Verify", "1", "-verify_return_error"]);
    Running::start(command, port, dir.join("server.log"))
}

#[test]
fn a_registry_receives_the_certificate_of_the_client() {
    let dir = tempfile::tempdir().unwrap();
    let file = |name: &str| dir.path().join(name);
    make_authorities(dir.path());
    issue(dir.path(), "registry", NAMES, None);
    issue(dir.path(), "trusted", "extendedKeyUsage=clientAuth", None);
    let body = serde_json::json!({ "schema": ORDER_1 }).to_string();
    std::fs::create_dir_all(file("schemas/ids")).unwrap();
    let response = format!("HTTP/1.0 200 OK\r\nContent-Length: {}\r\n\r\n{body}", body.len());
    std::fs::write(file("schemas/ids/7"), response).unwrap();
    let port = free_port();
    let server = serve_files(dir.path(), port);

    let pipe = Pipe::new(shared_kafka(), "registry-mtls", 2);
    pipe.kafka.send(&pipe.raw, &["a", "a", "b"].map(|id| draft(0, 7, &string(id))));
    let url = format!("https://127.0.0.1:{port}");
    let ca = ("DEDUPD_SCHEMAS__CA_FILE", &*file("ca.pem"));
    let words = ["does not accept the certificate of this client", "set schemas.certificate_file"];
    assert_waits(&pipe, &sidecar(&pipe, &url, &[ca]), &words);
    let (certificate, key) = (file("trusted.crt"), file("trusted.key"));
    let own = [
        ca,
        ("DEDUPD_SCHEMAS__CERTIFICATE_FILE", certificate.as_path()),
        ("DEDUPD_SCHEMAS__PRIVATE_KEY_FILE", key.as_path()),
    ];
    assert_reads(&pipe, &sidecar(&pipe, &url, &own), 2);
    assert!(server.ended().is_none(), "{}", server.text());
}
