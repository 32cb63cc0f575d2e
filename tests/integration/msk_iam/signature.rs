//! The token as a URL, and its signature by AWS Signature Version 4, computed with `openssl`.

use std::collections::BTreeMap;
use std::io::Write;
use std::process::{Command, Stdio};

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;

/// Not signed: the signature itself, and what the signer adds after it.
const UNSIGNED: [&str; 2] = ["X-Amz-Signature", "User-Agent"];

pub struct SignedUrl {
    host: String,
    /// The parameters as they are in the URL.
    raw: Vec<(String, String)>,
    parameters: BTreeMap<String, String>,
}

impl SignedUrl {
    pub fn parse(token: &str) -> Self {
        let url =
            String::from_utf8(URL_SAFE_NO_PAD.decode(token).expect("base64url without padding")).unwrap();
        let rest = url.strip_prefix("https://").expect("a URL");
        let (host, query) = rest.split_once("/?").expect("a query");
        let pairs = query.split('&').filter_map(|pair| pair.split_once('='));
        let raw: Vec<(String, String)> =
            pairs.map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
        let parameters = raw.iter().map(|(name, value)| (name.clone(), decoded(value))).collect();
        Self { host: host.to_owned(), raw, parameters }
    }

    pub fn host(&self) -> &str {
        &self.host
    }

    /// A parameter of the query.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.parameters.get(name).map(String::as_str)
    }

    /// The signature with this secret access key.
    pub fn expected_signature(&self, secret: &str) -> String {
        let mut signed: Vec<_> =
            self.raw.iter().filter(|(name, _)| !UNSIGNED.contains(&name.as_str())).collect();
        signed.sort();
        let query: Vec<String> =
            signed.iter().map(|(name, value)| format!("{name}={}", value.replace('+', "%20"))).collect();
        let request = format!("GET\n/\n{}\nhost:{}\n\nhost\n{}", query.join("&"), self.host, sha256(b""));
        let credential = self.get("X-Amz-Credential").expect("a credential");
        let scope = credential.split_once('/').expect("a scope").1;
        let date = self.get("X-Amz-Date").expect("a date");
        let text = format!("AWS4-HMAC-SHA256\n{date}\n{scope}\n{}", sha256(request.as_bytes()));
        let start = hex(format!("AWS4{secret}").as_bytes());
        let key = scope.split('/').fold(start, |key, part| hmac(&key, part.as_bytes()));
        hmac(&key, text.as_bytes())
    }
}

fn decoded(text: &str) -> String {
    let mut bytes = Vec::new();
    let mut rest = text.as_bytes();
    while let Some((first, after)) = rest.split_first() {
        if *first == b'%' {
            let digits = std::str::from_utf8(&after[..2]).unwrap();
            bytes.push(u8::from_str_radix(digits, 16).unwrap());
            rest = &after[2..];
        } else {
            bytes.push(*first);
            rest = after;
        }
    }
    String::from_utf8(bytes).unwrap()
}

fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write as _;
    bytes.iter().fold(String::new(), |mut text, byte| {
        write!(text, "{byte:02x}").unwrap();
        text
    })
}

fn sha256(data: &[u8]) -> String {
    openssl(&["dgst", "-sha256", "-r"], data)
}

/// Key and result are hexadecimal.
fn hmac(key: &str, data: &[u8]) -> String {
    openssl(&["dgst", "-sha256", "-r", "-mac", "HMAC", "-macopt", &format!("hexkey:{key}")], data)
}

fn openssl(arguments: &[&str], data: &[u8]) -> String {
    let mut command = Command::new("openssl");
    command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.spawn().expect("openssl is installed");
    child.stdin.take().unwrap().write_all(data).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "openssl {arguments:?}");
    String::from_utf8(output.stdout).unwrap().split(' ').next().unwrap().to_owned()
}
