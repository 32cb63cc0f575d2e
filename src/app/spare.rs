//! A spare: an instance that waits outside of the group while another instance is the active one.
//!
//! With `dedupe.scope = "topic"` a worker joins the group only when no other worker is in it. A spare sends two
//! descriptions of the group per second. It has no influence on the group, so spares start, stop and die without a
//! rebalance.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use super::ExitError;
use super::standby::Follower;
use super::supervisor::pause;
use crate::clock::monotonic;
use crate::kafka::{GroupMonitor, Member, Settings};
use crate::metrics::{Role, Status, WorkerStatus};
use crate::pipeline::{Progress, failpoint};
use crate::ports::Failure;

/// Interval between two descriptions of the group: part of the time without an active instance.
const INTERVAL: Duration = Duration::from_millis(500);
/// Time limit of one description.
const REQUEST_LIMIT: Duration = Duration::from_secs(2);
/// A spare without an answer for longer does not count as ready: it cannot take over.
const UNANSWERED: Duration = Duration::from_secs(5);

/// Waits until this instance may join the group.
pub(super) struct Spare {
    group: GroupMonitor,
    settings: Settings,
    status: Arc<Status>,
    progress: Progress,
    /// The active instance as last logged.
    logged: Option<String>,
    /// The standby copies, if the state topic is followed.
    follower: Option<Follower>,
}

impl Spare {
    pub(super) fn new(
        settings: &Settings,
        status: Arc<Status>,
        progress: Progress,
        follower: Option<Follower>,
    ) -> Result<Self, Failure> {
        let group = GroupMonitor::new(settings)?;
        Ok(Self { group, settings: settings.clone(), status, progress, logged: None, follower })
    }

    /// Returns true when no other worker is in the group, and false when a stop is requested. Follows the state topic meanwhile.
    pub(super) fn wait(&mut self, stop: &AtomicBool) -> Result<bool, ExitError> {
        let joins = self.wait_and_follow(stop);
        self.follower.iter_mut().for_each(Follower::release);
        joins
    }

    fn wait_and_follow(&mut self, stop: &AtomicBool) -> Result<bool, ExitError> {
        self.status.note_role(Role::Joining, None);
        self.publish(Some("looks for other instances in the group".to_owned()));
        let mut answered = None;
        while !stop.load(Ordering::Acquire) {
            self.progress.advance();
            match self.group.other_member(REQUEST_LIMIT) {
                Ok(None) => {
                    let group = &self.settings.group;
                    tracing::info!(group, "no other instance is in the group; joining it to become active");
                    self.status.note_role(Role::Joining, None);
                    self.logged = None;
                    failpoint::pass("before_join");
                    return Ok(true);
                }
                Ok(Some(other)) => {
                    answered = Some(monotonic());
                    self.stand_by(&other);
                }
                Err(failed) if answered.is_none_or(|last| last.elapsed() >= UNANSWERED) => {
                    let reason = self.group.connection_problem(REQUEST_LIMIT);
                    let reason = reason.map_or_else(String::new, |reason| format!(": {reason}"));
                    self.publish(Some(format!("waits for the broker: {failed}{reason}")));
                }
                Err(failed) => tracing::debug!(%failed, "describing the group failed; retrying"),
            }
            match &mut self.follower {
                Some(follower) => follower.follow(INTERVAL, stop)?,
                None => pause(INTERVAL, stop),
            }
        }
        Ok(false)
    }

    /// Publishes that this instance is a spare, and which instance is active.
    fn stand_by(&mut self, other: &Member) {
        // With dynamic membership the member of an earlier run stays for a session timeout.
        if other.worker == self.settings.client_id {
            self.publish(Some(format!(
                "waits until the group has removed the former member {} of this instance, at most for \
                 group.session_timeout; if it stays longer, another process has the same group.instance",
                other.id
            )));
            return;
        }
        let active = self.instance_of(other);
        if self.logged.as_ref() != Some(&active) {
            let group = &self.settings.group;
            tracing::info!(group, active, "this instance is a spare: another instance is in the group");
            self.logged = Some(active.clone());
        }
        self.status.note_role(Role::Spare, Some(active));
        self.publish(None);
    }

    /// The name of a member's instance and its host, as in `dedupd-0 at 10.0.0.7`; the client id of a member
    /// that is not of dedupd.
    fn instance_of(&self, member: &Member) -> String {
        let own = member.worker.strip_prefix(&self.settings.group).and_then(|it| it.strip_prefix('.'));
        let name = own.and_then(|it| it.rsplit_once('.')).map_or(member.worker.as_str(), |(name, _)| name);
        format!("{name} at {}", member.host)
    }

    fn publish(&self, not_ready: Option<String>) {
        self.status.publish(0, WorkerStatus { not_ready, ..WorkerStatus::starting() });
    }
}
