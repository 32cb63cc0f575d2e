//! Certificate authorities and certificates, which `openssl` creates for a test.

use std::fs;
use std::path::Path;
use std::process::Command;

/// Creates the authorities `ca` and `stranger`: `NAME.key` and `NAME.pem`.
pub fn make_authorities(at: &Path) {
    for authority in ["ca", "stranger"] {
        let subject = format!("/CN={authority}");
        let (key, pem) = (format!("{authority}.key"), format!("{authority}.pem"));
        let new = ["req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", &subject];
        openssl(at, &[&new[..], &["-keyout", &key, "-out", &pem]].concat());
    }
}

/// Creates a key and a certificate of the authority `ca`: `NAME.key`, `NAME.crt`, and both in `NAME.pem`.
pub fn issue(at: &Path, name: &str, extension: &str, valid: Option<(&str, &str)>) {
    let file = |end: &str| format!("{name}.{end}");
    let (key, request, certificate) = (file("key"), file("csr"), file("crt"));
    let subject = format!("/CN={name}");
    let new = ["req", "-newkey", "rsa:2048", "-nodes", "-subj", &subject];
    openssl(at, &[&new[..], &["-keyout", &key, "-out", &request]].concat());
    let extensions = file("ext");
    fs::write(at.join(&extensions), format!("{extension}\n")).unwrap();
    let signed = ["-in", &request, "-out", &certificate, "-extfile", &extensions];
    match valid {
        None => {
            let by = ["-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-days", "2"];
            openssl(at, &[&["x509", "-req"][..], &signed, &by].concat());
        }
        Some((from, until)) => {
            fs::write(
                at.join("ca.conf"),
                "[ca]\ndefault_ca=d\n[d]\ndatabase=index.txt\nnew_certs_dir=.\nrand_serial=yes\n\
                 default_md=sha256\npolicy=p\n[p]\ncommonName=supplied\n",
            )
            .unwrap();
            fs::write(at.join("index.txt"), "").unwrap();
            let by =
                ["ca", "-batch", "-notext", "-config", "ca.conf", "-cert", "ca.pem", "-keyfile", "ca.key"];
            openssl(at, &[&by[..], &["-startdate", from, "-enddate", until], &signed].concat());
        }
    }
    let text = |end: &str| fs::read_to_string(at.join(file(end))).unwrap();
    let both = text("key") + &text("crt") + &fs::read_to_string(at.join("ca.pem")).unwrap();
    fs::write(at.join(file("pem")), both).unwrap();
}

/// Runs `openssl` in a directory.
pub fn openssl(at: &Path, arguments: &[&str]) {
    let output = Command::new("openssl").args(arguments).current_dir(at).output();
    let output = output.expect("openssl is installed");
    assert!(output.status.success(), "openssl {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
}
