//! `dedupd demo`, which runs the whole program on the embedded broker.

use std::process::Command;

#[test]
fn the_demo_ends_with_an_audit_without_findings() {
    let output = Command::new(env!("CARGO_BIN_EXE_dedupd"))
        .args(["demo", "--seconds", "1", "--rate", "500", "--listen", "127.0.0.1:0"])
        .output()
        .unwrap();
    let text = [output.stdout, output.stderr].concat();
    let text = String::from_utf8_lossy(&text);
    assert_eq!(output.status.code(), Some(0), "{text}");
    assert!(text.contains("lost 0, duplicated 0"), "{text}");
}
