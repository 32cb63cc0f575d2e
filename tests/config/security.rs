//! Properties of TLS and SASL that could not work.

use std::fs;

use dedupd::config::{Properties, Property};

/// The problems of these properties, without the heading.
fn problems(lines: &[&str]) -> Vec<String> {
    let typed: Properties = lines.iter().map(|line| Property::parse(line).unwrap()).collect();
    let reported = typed.with_files_read().map_or_else(|problems| problems.to_string(), |_| String::new());
    reported.lines().skip(1).map(|line| line.trim_start().to_owned()).collect()
}

const NO_EFFECT: &str = "has no effect without security.protocol = sasl_ssl or sasl_plaintext; set \
                         kafka.properties.\"security.protocol\", or leave it out";

#[test]
fn properties_of_sasl_have_no_effect_without_sasl() {
    let dir = tempfile::tempdir().unwrap();
    let (secret, protocol) = (dir.path().join("secret"), dir.path().join("protocol"));
    fs::write(&secret, "canary\n").unwrap();
    fs::write(&protocol, "sasl_ssl\n").unwrap();
    let password = format!("sasl.password.file={}", secret.display());
    let given = ["sasl.mechanism=PLAIN", "sasl.username=canary", &password];
    let named = ["sasl.mechanism", "sasl.password.file", "sasl.username"];
    let expected = named.map(|name| format!("kafka.properties.{name}: {NO_EFFECT}"));
    for protocol in [&[][..], &["security.protocol=plaintext"], &["security.protocol=SSL"]] {
        assert_eq!(problems(&[&given[..], protocol].concat()), expected, "{protocol:?}");
    }
    assert_eq!(
        problems(&["sasl.mechanisms=PLAIN"]),
        [format!("kafka.properties.sasl.mechanisms: {NO_EFFECT}")]
    );
    let protocol = format!("security.protocol.file={}", protocol.display());
    // The client rejects the last one.
    for protocol in
        [&protocol, "security.protocol=sasl_plaintext", "security.protocol=SASL_SSL", "security.protocol=x"]
    {
        assert!(problems(&[&given[..], &[protocol]].concat()).is_empty(), "{protocol}");
    }
    assert!(problems(&["sasl.username=", "ssl.endpoint.identification.algorithm=none"]).is_empty());
}

#[test]
fn sasl_needs_a_mechanism_except_for_kerberos() {
    for protocol in ["sasl_ssl", "sasl_plaintext"] {
        let line = format!("security.protocol={protocol}");
        let missing = format!(
            "kafka.properties.sasl.mechanism: is missing; security.protocol = {protocol} needs it: give PLAIN, SCRAM-SHA-256, \
             SCRAM-SHA-512, OAUTHBEARER or GSSAPI (Kerberos), whichever the broker offers"
        );
        for more in [&[][..], &["sasl.username=u", "sasl.password=p"], &["sasl.mechanism="]] {
            assert_eq!(problems(&[&[line.as_str()][..], more].concat()), [missing.as_str()], "{more:?}");
        }
        for more in ["sasl.mechanism=PLAIN", "sasl.mechanisms=PLAIN", "sasl.kerberos.keytab=/k"] {
            assert!(problems(&[&line, more]).is_empty(), "{more}");
        }
    }
}

#[test]
fn files_of_tls_must_exist() {
    let dir = tempfile::tempdir().unwrap();
    let (file, missing) = (dir.path().join("ca.pem"), dir.path().join("missing"));
    fs::write(&file, "x").unwrap();
    let (file, missing, dir) = (file.display(), missing.display(), dir.path().display());
    let below = format!("{file}/below");
    for name in [
        "ssl.ca.location",
        "ssl.certificate.location",
        "ssl.key.location",
        "ssl.keystore.location",
        "ssl.crl.location",
        "sasl.oauthbearer.assertion.private.key.file",
    ] {
        let of = |path: &dyn std::fmt::Display| problems(&[&format!("{name}={path}")]);
        let reported = of(&missing);
        let start = format!("kafka.properties.{name} = \"{missing}\": does not exist; give a file ");
        assert!(reported.len() == 1 && reported[0].starts_with(&start), "{reported:?}");
        let reported = of(&below);
        assert!(
            reported.len() == 1 && reported[0].contains("cannot be read: Not a directory"),
            "{reported:?}"
        );
        assert!(of(&file).is_empty(), "{name}");
        assert!(of(&"/dev/zero")[0].contains(": is not a regular file; "), "{name}");
        let is_authorities = name == "ssl.ca.location";
        let reported = of(&dir);
        assert_eq!(reported.is_empty(), is_authorities, "{reported:?}");
        assert!(is_authorities || reported[0].contains(": is a directory; "), "{reported:?}");
        assert_eq!(of(&"probe").is_empty(), is_authorities, "{name}");
        let reported = of(&"-----BEGIN PRIVATE KEY-----canary");
        assert!(
            reported[0].starts_with(&format!("kafka.properties.{name}: is the content of a file")),
            "{reported:?}"
        );
    }
}
