//! Tokens of AWS IAM for Amazon MSK: their form, their signature, the sources of the credentials, and that all commands
//! authenticate with them on a real Apache Kafka. No AWS service takes part: the broker verifies only the form, and an STS of
//! the test returns the credentials of a web identity.

mod capture;
mod signature;

use std::fs;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::path::Path;
use std::process::{Command, Output};
use std::thread;
use std::time::Duration;

use crate::support::jvm::class_path;
use crate::support::kafka::JVM;
use crate::support::ports::free_port;
use crate::support::secured::variable;
use crate::support::{Kafka, Pipe, Rekey};
use capture::Capture;
use signature::SignedUrl;

const LIMIT: Duration = Duration::from_mins(1);
const PROPERTIES: [(&str, &str); 3] = [
    ("security.protocol", "sasl_plaintext"),
    ("sasl.mechanism", "OAUTHBEARER"),
    ("sasl.oauthbearer.config", "msk_iam_region=eu-west-1"),
];
const KEY: &str = "AKIDEXAMPLE";
const SECRET: &str = "secret-access-key-canary";
const TOPICS: [&str; 6] = ["--raw", "none", "--clean", "nothing", "--id", "key"];

type Environment<'a> = &'a [(&'a str, &'a str)];

const STATIC: Environment<'_> = &[("AWS_ACCESS_KEY_ID", KEY), ("AWS_SECRET_ACCESS_KEY", SECRET)];

/// Runs a command with credentials only from this environment.
fn run(arguments: &[&str], servers: &str, environment: Environment<'_>) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_dedupd"));
    command.args(arguments).args(["--bootstrap-servers", servers]);
    for (name, value) in PROPERTIES {
        command.args(["-X", &format!("{name}={value}")]);
    }
    command.env("AWS_EC2_METADATA_DISABLED", "true").envs(environment.iter().copied());
    command.output().unwrap()
}

fn text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

/// The token that a command sends with this environment. It is rejected, which is reported.
fn token(arguments: &[&str], environment: Environment<'_>) -> SignedUrl {
    let capture = Capture::start();
    let output = run(arguments, &format!("127.0.0.1:{}", capture.port), environment);
    let text = text(&output);
    assert!(!output.status.success(), "{text}");
    assert!(!text.contains("canary"), "{text}");
    SignedUrl::parse(capture.take().first().unwrap_or_else(|| panic!("no token: {text}")))
}

#[test]
fn every_command_sends_a_signed_url() {
    for command in ["check", "audit"] {
        let url = token(&[&[command], &TOPICS[..]].concat(), STATIC);
        assert_eq!(url.host(), "kafka.eu-west-1.amazonaws.com");
        assert_eq!(url.get("Action"), Some("kafka-cluster:Connect"));
        assert_eq!(url.get("X-Amz-Expires"), Some("900"));
        let credential = url.get("X-Amz-Credential").unwrap();
        assert!(credential.starts_with(&format!("{KEY}/")), "{credential}");
        assert!(credential.ends_with("/eu-west-1/kafka-cluster/aws4_request"), "{credential}");
        assert_eq!(url.get("X-Amz-Signature"), Some(url.expected_signature(SECRET).as_str()));
    }
    let url = token(&["generate", "--topic", "none"], STATIC);
    assert_eq!(url.get("X-Amz-Signature"), Some(url.expected_signature(SECRET).as_str()));
}

#[test]
fn credentials_come_from_session_profile_or_web_identity() {
    let check = [&["check"], &TOPICS[..]].concat();
    let session = [STATIC, &[("AWS_SESSION_TOKEN", "session-token")]].concat();
    assert_eq!(token(&check, &session).get("X-Amz-Security-Token"), Some("session-token"));
    let dir = tempfile::tempdir().unwrap();
    let file = |name: &str, text: &str| {
        let path = dir.path().join(name);
        fs::write(&path, text).unwrap();
        path.display().to_string()
    };
    let profiles = file(
        "credentials",
        "[default]\naws_access_key_id = OTHER\naws_secret_access_key = other\n\n\
         [events]\naws_access_key_id = AKIDPROFILE\naws_secret_access_key = profile\n",
    );
    let profile = [("AWS_SHARED_CREDENTIALS_FILE", profiles.as_str()), ("AWS_PROFILE", "events")];
    let url = token(&check, &profile);
    assert!(url.get("X-Amz-Credential").unwrap().starts_with("AKIDPROFILE/"));
    let identity = file("identity", "web-identity");
    let sts = format!("http://127.0.0.1:{}", start_sts());
    let web = [
        ("AWS_WEB_IDENTITY_TOKEN_FILE", identity.as_str()),
        ("AWS_ROLE_ARN", "arn:aws:iam::123456789012:role/events"),
        ("AWS_ENDPOINT_URL_STS", &sts),
    ];
    let url = token(&check, &web);
    assert!(url.get("X-Amz-Credential").unwrap().starts_with("AKIDWEBIDENTITY/"));
    assert_eq!(url.get("X-Amz-Security-Token"), Some("web-session"));
}

#[test]
fn missing_credentials_are_reported() {
    let capture = Capture::start();
    let output = run(&[&["check"], &TOPICS[..]].concat(), &format!("127.0.0.1:{}", capture.port), &[]);
    let text = text(&output);
    println!("{text}");
    for words in ["there is no token for Amazon MSK", "no AWS credentials", "AWS_PROFILE"] {
        assert!(text.contains(words), "{text}");
    }
    assert_eq!(capture.take(), Vec::<String>::new());
}

/// An STS that returns credentials for the web identity of the test.
fn start_sts() -> u16 {
    let port = free_port();
    let listener = TcpListener::bind(("127.0.0.1", port)).unwrap();
    thread::spawn(move || {
        for mut socket in listener.incoming().flatten() {
            let mut request = [0; 8192];
            let mut length = 0;
            while !String::from_utf8_lossy(&request[..length]).contains("WebIdentityToken=web-identity") {
                match socket.read(&mut request[length..]) {
                    Ok(0) | Err(_) => break,
                    Ok(count) => length += count,
                }
            }
            let body = "<AssumeRoleWithWebIdentityResponse xmlns=\"https://sts.amazonaws.com/doc/2011-06-15/\">\
                        <AssumeRoleWithWebIdentityResult><Credentials><AccessKeyId>AKIDWEBIDENTITY</AccessKeyId>\
                        <SecretAccessKey>web</SecretAccessKey><SessionToken>web-session</SessionToken>\
                        <Expiration>2099-01-01T00:00:00Z</Expiration></Credentials>\
                        <AssumedRoleUser><Arn>arn:aws:sts::123456789012:assumed-role/events/x</Arn>\
                        <AssumedRoleId>A:x</AssumedRoleId></AssumedRoleUser>\
                        </AssumeRoleWithWebIdentityResult></AssumeRoleWithWebIdentityResponse>";
            let length = body.len();
            write!(
                socket,
                "HTTP/1.1 200 OK\r\nContent-Type: text/xml\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{body}"
            )
            .ok(); // the client may have gone
        }
    });
    port
}

/// A broker that accepts the form of the tokens, and requires another authentication every ten seconds.
fn broker(listener: u16, classes: &Path) -> Kafka {
    let source =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/integration/msk_iam/SignedUrlValidator.java");
    let jars = class_path();
    let compiled = Command::new("javac").args(["-cp", &jars, "-d"]).arg(classes).arg(source).status();
    assert!(compiled.is_ok_and(|status| status.success()), "javac failed: run scripts/setup integration");
    let all = format!("{}:{jars}", classes.display());
    let module = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required;";
    Kafka::start_listening(
        &[("IAM", listener, "SASL_PLAINTEXT")],
        &[
            (JVM, "-cp"),
            (JVM, &all),
            ("sasl.enabled.mechanisms", "OAUTHBEARER"),
            ("listener.name.iam.oauthbearer.sasl.server.callback.handler.class", "SignedUrlValidator"),
            ("listener.name.iam.oauthbearer.sasl.jaas.config", module),
            ("listener.name.iam.oauthbearer.connections.max.reauth.ms", "10000"),
        ],
    )
}

#[test]
fn all_clients_of_all_commands_authenticate_on_a_broker() {
    let (classes, listener) = (tempfile::tempdir().unwrap(), free_port());
    let kafka = broker(listener, classes.path());
    let servers = format!("127.0.0.1:{listener}");
    let generate = ["generate", "--topic", "iam.source", "--records", "2000", "--partitions", "2"];
    let generated = run(&generate, &servers, STATIC);
    assert!(generated.status.success(), "{}", text(&generated));
    let pipe = Pipe::new(&kafka, "iam", 2);
    let mut rekey = Rekey::new(&kafka, &pipe.raw, "--from iam.source --id json:/id");
    rekey.bootstrap.clone_from(&servers);
    let own = PROPERTIES.map(|(name, value)| (variable(name), value.to_owned()));
    let credentials = STATIC.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
    let environment: Vec<_> = own.into_iter().chain(credentials).collect();
    rekey.environment.extend(environment.iter().cloned());
    let rekeying = rekey.start();
    rekey.wait_done(&kafka, &["iam.source"]);
    assert_eq!(rekeying.stop(), Some(0), "{}", rekeying.text());
    // The copies of the load have other content.
    let mut sidecar = pipe.sidecar("a").with("DEDUPD_IDENTITY__COMPARE", "off");
    sidecar.bootstrap.clone_from(&servers);
    let sidecar = environment.iter().fold(sidecar, |sidecar, (name, value)| sidecar.with(name, value));
    let load = pipe.load(2, 300);
    let running = sidecar.start();
    running.wait_running(2, LIMIT);
    // Several sessions of every connection.
    thread::sleep(Duration::from_secs(40));
    load.finish();
    pipe.wait_caught_up(2, LIMIT);
    assert_eq!(running.complaints(), Vec::<String>::new());
    assert_eq!(running.stop(), Some(0), "{}", running.text());
    pipe.assert_exactly_once();
    sidecar.audit().unwrap();
}
