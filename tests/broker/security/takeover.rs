//! One of three instances lacks a permission, in topic scope.

use super::rights::{Documented, change, grant, pipe, sidecar};
use super::shared;
use crate::support::{Pipe, Sidecar};
use crate::takeovers::{Start, Supervised, assert_never_joins, assert_starved, assert_takeovers};

/// A pipe, and an instance whose user has all permissions. The other ones are super users.
fn permitted(name: &str) -> (Pipe<'static>, Sidecar) {
    let secured = shared();
    grant(secured, &Documented::all(name));
    let pipe = pipe(secured, name);
    let broken = sidecar(secured, &pipe, name, "broken");
    (pipe, broken)
}

fn revoke(permission: &[&str]) {
    change(shared(), &["--remove", "--force"], permission);
}

/// The permission on the transactional id, which only a takeover shows.
fn without_transactional_id(name: &str) -> (Pipe<'static>, Sidecar) {
    let (pipe, broken) = permitted(name);
    let ids = format!("dedupd.{name}.raw.{name}.clean.");
    let which = ["--transactional-id", ids.as_str(), "--resource-pattern-type", "prefixed"];
    revoke(&[&["--operation", "Write"], &which[..]].concat());
    (pipe, broken)
}

#[test]
fn a_spare_that_lacks_a_permission_on_a_topic_is_not_ready_and_keeps_nobody_out() {
    let (pipe, broken) = permitted("revoked");
    assert_never_joins(&pipe, "the Write permission is missing on topic revoked.clean", || {
        let broken = Supervised::spare(broken);
        revoke(&["--operation", "Write", "--topic", "revoked.clean"]);
        broken
    });
}

#[test]
fn an_instance_without_the_permission_on_the_transactional_id_leaves_the_group() {
    let (pipe, broken) = without_transactional_id("denied");
    let broken = assert_takeovers(&pipe, Start::BrokenFirst, || Supervised::forgetful(broken), None);
    assert!(broken.codes.contains(&Some(6)), "{:?}", broken.codes);
}

/// The control of the test above.
#[test]
fn an_instance_that_fails_and_does_not_leave_the_group_keeps_the_others_out() {
    let (pipe, broken) = without_transactional_id("staying");
    let broken = broken.with("DEDUPD_WITHOUT", "resignation");
    assert_starved(&pipe, Start::BrokenFirst, broken, |_| ());
}
