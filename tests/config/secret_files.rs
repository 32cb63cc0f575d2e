//! Values of properties in files.

use std::fs;

use dedupd::config::{Properties, Property};

fn read(lines: &[String]) -> Result<Vec<(String, String)>, String> {
    let typed: Properties = lines.iter().map(|line| Property::parse(line).unwrap()).collect();
    let read = typed.with_files_read().map_err(|problems| problems.to_string())?;
    Ok(read.iter().map(|(name, value)| (name.to_owned(), value.to_owned())).collect())
}

#[test]
fn a_value_is_the_content_of_its_file_without_the_line_end() {
    let dir = tempfile::tempdir().unwrap();
    for (content, value) in [
        ("pass word \n", "pass word "),
        ("one\r\n", "one"),
        ("none", "none"),
        ("-----BEGIN\nKEY\n-----END\n\n", "-----BEGIN\nKEY\n-----END\n"),
    ] {
        let file = dir.path().join("secret");
        fs::write(&file, content).unwrap();
        let mut lines =
            ["client.id=x", "security.protocol=sasl_ssl", "sasl.mechanism=PLAIN"].map(str::to_owned).to_vec();
        lines.push(format!("sasl.password.file={}", file.display()));
        let expected = [
            ("client.id", "x"),
            ("sasl.mechanism", "PLAIN"),
            ("sasl.password", value),
            ("security.protocol", "sasl_ssl"),
        ];
        assert_eq!(read(&lines).unwrap(), expected.map(|(k, v)| (k.to_owned(), v.to_owned())));
    }
    let own =
        [format!("sasl.oauthbearer.assertion.private.key.file={}", dir.path().join("secret").display())];
    assert_eq!(
        read(&own).unwrap()[0].0,
        "sasl.oauthbearer.assertion.private.key.file",
        "the client reads it"
    );
}

#[test]
fn every_file_that_cannot_be_used_is_told() {
    let dir = tempfile::tempdir().unwrap();
    let (empty, full) = (dir.path().join("empty"), dir.path().join("full"));
    fs::write(&empty, "\n").unwrap();
    fs::write(&full, "canary").unwrap();
    let lines = [
        "ssl.key.password.file=/nowhere/to/be/found".to_owned(),
        format!("ssl.keystore.password.file={}", empty.display()),
        format!("sasl.password.file={}", full.display()),
        "sasl.password=canary".to_owned(),
        format!("acks.file={}", full.display()),
        "ssl.ca.pem.file=/dev/zero".to_owned(),
    ];
    let told = read(&lines).unwrap_err();
    for words in [
        "kafka.properties.ssl.key.password.file = \"/nowhere/to/be/found\": cannot be read: No such file",
        "is empty; give a file that contains only the value",
        "names a file, but sasl.password is set as well; set only one of them",
        "kafka.properties.acks.file = ",
        "kafka.properties.ssl.ca.pem.file = \"/dev/zero\": cannot be read: it is not a regular file; give",
    ] {
        assert!(told.contains(words), "{words:?} is not in:\n{told}");
    }
    assert!(!told.contains("canary"), "{told}");
}
