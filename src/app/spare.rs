//! A spare: an instance that waits outside of the group while another instance is the active one.
//!
//! With `dedupe.scope = "topic"` a worker joins the group only when no other worker is in it. A spare sends two
//! descriptions of the group per second. It has no influence on the group, so spares start, stop and die without a
//! rebalance. In partition scope a worker waits only when the others do better without it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::ExitError;
use super::obstacles::TakeoverNeeds;
use super::ownership::instance;
use super::standby::Follower;
use super::supervisor::pause;
use crate::clock::monotonic;
use crate::kafka::{Member, Settings};
use crate::metrics::{Role, Status, WorkerStatus};
use crate::pipeline::{Fatal, Progress, failpoint};
use crate::store::Takeover;

/// Interval between two descriptions of the group: part of the time without an active instance.
const INTERVAL: Duration = Duration::from_millis(500);
/// Time limit of one description.
pub(super) const REQUEST_LIMIT: Duration = Duration::from_secs(2);
/// A spare without an answer for longer does not count as ready: it cannot take over.
const UNANSWERED: Duration = Duration::from_secs(5);
/// Interval between two checks of what a takeover needs.
const LOOK: Duration = Duration::from_secs(30);
/// For how long an instance that may fail leaves a group without an active instance to the others: each of them describes the group and joins meanwhile.
const PRECEDENCE: Duration = Duration::from_secs(2);
/// The same after it has left the group itself, so that it is the first of those that cannot reach the registry: its state is complete.
const RETURN: Duration = Duration::from_secs(1);
/// The longest time that a worker waits for the registry before it leaves the group to the others again.
const MAX_PATIENCE: Duration = Duration::from_mins(1);
/// Why an instance waits whose name is in use.
const TWIN: &str = "another process with the same group.instance is in the group: give each process a name of its own; waiting until that one \
                    has left";

/// Waits until this instance may join the group.
pub(super) struct Spare {
    settings: Settings,
    status: Arc<Status>,
    progress: Progress,
    needs: Arc<TakeoverNeeds>,
    /// What a takeover lacks, and when that was checked.
    obstacle: (Option<String>, Option<Instant>),
    /// The member that was seen last is one of an earlier run of this instance.
    had_member: bool,
    /// For how long the worker waits for the registry before it leaves the group, since it joined; `None` when it has not joined, or another
    /// instance was in the group since.
    patience: Option<Duration>,
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
        needs: Arc<TakeoverNeeds>,
        follower: Option<Follower>,
    ) -> Self {
        let (obstacle, had_member, patience, logged) = Default::default();
        let settings = settings.clone();
        Self { settings, status, progress, needs, obstacle, had_member, patience, logged, follower }
    }

    /// For how long the worker may wait for the schema registry before it leaves the group to the others. It is twice as long each time that nobody else
    /// has joined: a lone instance stays, but for some seconds.
    pub(super) fn patience(&self) -> Duration {
        self.patience.unwrap_or_default()
    }

    /// Returns true when this worker joins the group, and false when a stop is requested. Follows the state topic meanwhile.
    pub(super) fn wait(&mut self, stop: &AtomicBool) -> Result<bool, ExitError> {
        let joins = self.wait_and_follow(stop);
        self.follower.iter_mut().for_each(Follower::release);
        joins
    }

    fn wait_and_follow(&mut self, stop: &AtomicBool) -> Result<bool, ExitError> {
        let shares = self.needs.shares_partitions();
        self.note_role(Role::Joining, None);
        self.publish(Some("looks for other instances in the group".to_owned()));
        let (mut answered, mut joins_at) = (None, None);
        while !stop.load(Ordering::Acquire) {
            self.progress.advance();
            match self.needs.group.members(REQUEST_LIMIT) {
                Ok(members) => {
                    answered = Some(monotonic());
                    let joins = if shares {
                        self.may_share(&members, &mut joins_at)?
                    } else {
                        self.may_join(members, &mut joins_at)
                    };
                    if joins {
                        return self.join();
                    }
                }
                // The description fails while a broker is down.
                Err(_) if shares && joins_at.is_none() && !self.was_killed() => return self.join(),
                Err(failed) if answered.is_none_or(|last| last.elapsed() >= UNANSWERED) => {
                    let reason = self.needs.group.connection_problem(REQUEST_LIMIT);
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

    fn join(&mut self) -> Result<bool, ExitError> {
        // Until it is complete, a kill means that it has failed.
        self.needs.lock.set_takeover(self.needs.worker, Takeover::Begun)?;
        if !self.needs.shares_partitions() {
            let group = &self.settings.group;
            tracing::info!(group, "no other instance is in the group; joining it to become active");
        }
        self.note_role(Role::Joining, None);
        self.logged = None;
        let first = self.settings.session_timeout / 2;
        self.patience = Some(self.patience.map_or(first, |last| (last * 2).min(MAX_PATIENCE)));
        failpoint::pass("before_join");
        Ok(true)
    }

    /// Whether the process before this one was killed or failed while it took over.
    fn was_killed(&self) -> bool {
        self.needs.lock.found == Takeover::Begun
    }

    /// Whether this worker joins the group now, in partition scope: not while its former self, which was killed while it took over, has the partitions,
    /// and not while this instance could not process any. A lone instance joins at once.
    fn may_share(&mut self, members: &[Member], joins_at: &mut Option<Instant>) -> Result<bool, Fatal> {
        self.needs.check_rules()?;
        let own = &self.settings.client_id;
        let is_member = members.iter().any(|it| it.worker == *own || self.needs.group.is_own_static(it));
        if members.iter().all(|it| instance(&it.worker) == instance(own)) {
            return Ok(true);
        }
        let waits = self.was_killed() && is_member;
        let wait = if waits { self.settings.session_timeout + PRECEDENCE } else { Duration::ZERO };
        if monotonic() < *joins_at.get_or_insert_with(|| monotonic() + wait) {
            let why = self.why_waiting();
            self.publish(Some(format!("leaves its partitions to the other instances first: {why}")));
            return Ok(false);
        }
        // At the start nothing shows whether the others do better.
        if self.patience.is_some() {
            self.look(LOOK);
        }
        let Some(why) = &self.obstacle.0 else {
            self.patience = None;
            return Ok(true);
        };
        self.publish(Some(format!("leaves its partitions to the other instances: {why}")));
        Ok(false)
    }

    /// Whether this instance joins the group now. One that may fail lets the others go first, until `joins_at`.
    fn may_join(&mut self, members: Vec<Member>, joins_at: &mut Option<Instant>) -> bool {
        let (own, others): (Vec<_>, Vec<_>) =
            members.into_iter().partition(|it| self.needs.group.is_own_static(it));
        let foreign = self.needs.group.foreign_member(&others);
        if let Some(other) = others.into_iter().max_by_key(|it| it.partitions.len()) {
            *joins_at = None;
            self.stand_by(&other, foreign);
            return false;
        }
        let joins_at = if let Some(at) = *joins_at {
            at
        } else {
            let since = monotonic();
            let wait = self.precedence(!own.is_empty());
            // The others have the time after the checks, which may take as long.
            let at = *joins_at.insert(monotonic() + wait);
            if !wait.is_zero() {
                tracing::info!(
                    "leaving the group to the other instances first, for {} s: {}",
                    wait.as_secs(),
                    self.why_waiting()
                );
            }
            if since.elapsed() >= INTERVAL {
                // This description of the group is outdated.
                return false;
            }
            at
        };
        // A member that is still there belongs to a live process, which the broker would end for this one. The group removes one that was killed.
        let is_taken = !own.is_empty() && self.needs.lock.takeover() == Takeover::None;
        let why = if monotonic() < joins_at {
            format!("leaves the group to the other instances first: {}", self.why_waiting())
        } else if is_taken {
            self.warn_once(TWIN);
            TWIN.to_owned()
        } else {
            return true;
        };
        self.note_role(Role::Joining, None);
        self.publish(Some(why));
        false
    }

    /// Logs what hinders this instance, unless that was logged last.
    fn warn_once(&mut self, what: &str) {
        if self.logged.as_deref() != Some(what) {
            tracing::warn!("{what}");
            self.logged = Some(what.to_owned());
        }
    }

    fn why_waiting(&self) -> &str {
        self.obstacle.0.as_deref().unwrap_or(
            "a member with this instance name is in the group: an earlier run was killed or failed, and state.dir does not show that it \
             was active, or another process has the same group.instance",
        )
    }

    /// For how long the others may join before this instance. `is_member` is whether its static member of an earlier run is in the group.
    fn precedence(&mut self, is_member: bool) -> Duration {
        // After a kill the member of an active instance continues. One that was taking over would be killed again.
        let last = self.needs.lock.takeover();
        if is_member && last != Takeover::Complete {
            return self.settings.session_timeout + PRECEDENCE;
        }
        // The instance that was active continues at once.
        if !is_member {
            self.look(Duration::ZERO);
        }
        let was_killed = last == Takeover::Begun || self.had_member && last == Takeover::None;
        match &self.obstacle.0 {
            Some(_) if !was_killed && self.patience.is_some() => RETURN,
            None if !was_killed => Duration::ZERO,
            _ => PRECEDENCE,
        }
    }

    /// Looks for what a takeover lacks, unless that was done within this time.
    fn look(&mut self, within: Duration) {
        if self.obstacle.1.is_some_and(|last| last.elapsed() < within) {
            return;
        }
        let found = self.needs.check().err();
        let found = found.or_else(|| self.follower.as_ref().and_then(Follower::obstacle));
        if let Some(why) = found.as_ref().filter(|_| found != self.obstacle.0) {
            tracing::warn!(
                "this instance could not take over: {why}; checking again every {} s",
                LOOK.as_secs()
            );
        }
        self.obstacle = (found, Some(monotonic()));
    }

    /// Publishes that this instance is a spare, which instance is active, and why it could not take over: `foreign` is a member of another program.
    fn stand_by(&mut self, other: &Member, foreign: Option<String>) {
        self.patience = None;
        // With dynamic membership the member of an earlier run stays for a session timeout.
        self.had_member = other.worker == self.settings.client_id;
        if self.had_member {
            self.publish(Some(format!(
                "waits until the group has removed the former member {} of this instance, at most for \
                 group.session_timeout; if it stays longer, another process has the same group.instance",
                other.id
            )));
            return;
        }
        if let Some(what) = &foreign {
            self.warn_once(what);
        }
        if foreign.is_some() && other.partitions.is_empty() {
            self.note_role(Role::Joining, None);
            self.publish(foreign);
            return;
        }
        // As in `dedupd-0 at 10.0.0.7`; the client id of a member that is not of dedupd.
        let active = format!("{} at {}", other.instance(&self.settings.group), other.host);
        if self.logged.as_ref() != Some(&active) {
            let group = &self.settings.group;
            tracing::info!(group, active, "this instance is a spare: another instance is in the group");
            self.logged = Some(active.clone());
        }
        self.note_role(Role::Spare, Some(active));
        self.look(LOOK);
        let why = foreign.as_ref().or(self.obstacle.0.as_ref());
        self.publish(why.map(|why| format!("could not take over: {why}")));
    }

    /// In partition scope there are no roles.
    fn note_role(&self, role: Role, active: Option<String>) {
        if !self.needs.shares_partitions() {
            self.status.update(|it| (it.noted_role, it.active) = (role, active));
        }
    }

    fn publish(&self, not_ready: Option<String>) {
        self.status.publish(self.needs.worker, WorkerStatus { not_ready, ..WorkerStatus::starting() });
    }
}
