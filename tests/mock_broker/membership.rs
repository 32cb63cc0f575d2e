//! One member and its group: it leaves quickly in every state, never keeps a partition without reading it, and
//! returns an error when it can no longer be a member.

use std::collections::BTreeMap;
use std::time::Duration;

use dedupd::clock::monotonic;
use dedupd::kafka::{KafkaSource, Settings, SourceLog, SourceReader};
use dedupd::ports::{Failure, GroupEvent, GroupMember, Record, Remedy, Source};
use rdkafka::types::{RDKafkaApiKey as Api, RDKafkaErrorCode as Code};

use crate::member::{Clean, LIMIT, Member, Pace};
use crate::support::mock::Mock;
use crate::support::wait_until;
use crate::transactions::{SLICE, WATCHDOG, fill, joined, poll, read, unless_lost, watched};

const STRATEGIES: [&str; 2] = ["cooperative-sticky", "range"];
/// Maximum time to leave the group on a machine that stalls for seconds. A join round of the mock takes a second of it: the mock
/// does not answer other requests meanwhile. A member that waits for an answer to an event never leaves.
const QUICK: Duration = Duration::from_secs(8);
const SESSION: Duration = Duration::from_secs(2);

fn with_strategy(mock: &Mock, name: &str, strategy: &str) -> Settings {
    let mut settings = Settings { session_timeout: SESSION, ..mock.settings(name) };
    settings.properties.push(("partition.assignment.strategy".to_owned(), strategy.to_owned()));
    settings
}

fn with_each_strategy(check: fn(&'static str)) {
    let checks = STRATEGIES.map(|strategy| std::thread::spawn(move || check(strategy)));
    for check in checks {
        if let Err(panic) = check.join() {
            std::panic::resume_unwind(panic);
        }
    }
}

fn next_event(source: &KafkaSource) -> GroupEvent {
    wait_until("a group event", WATCHDOG, || {
        poll(source, 1, Duration::from_millis(10)).expect("a quiet group");
        source.events().into_iter().next()
    })
}

fn assert_drops_quickly(member: impl Sized, state: &str) {
    let began = monotonic();
    drop(member);
    let took = began.elapsed();
    eprintln!("dropping a member {state} took {took:?}");
    assert!(took < QUICK, "dropping a member {state} took {took:?}");
}

/// The client waits for an answer to every rebalance event. After the drop, no answer follows.
#[test]
fn a_member_is_dropped_quickly_with_a_rebalance_pending() {
    with_each_strategy(|strategy| {
        watched(move |progress| {
            let report = |state: &str| {
                progress.send(format!("{strategy}: dropping {state}")).unwrap();
                format!("{state} ({strategy})")
            };
            let mock = Mock::start(4);
            fill(&mock, 0, 10);
            let state = report("that has not joined");
            let source = KafkaSource::subscribe(&with_strategy(&mock, "new", strategy)).expect("a member");
            assert_drops_quickly(source, &state);

            let state = report("with an unanswered assignment");
            let source =
                KafkaSource::subscribe(&with_strategy(&mock, "assigned", strategy)).expect("a member");
            assert!(matches!(next_event(&source), GroupEvent::Assigned(_)));
            assert_drops_quickly(source, &state);

            let state = report("that reads");
            let source = joined(&with_strategy(&mock, "reading", strategy), &[(0, 0)]);
            read(&source, 1);
            assert_drops_quickly(source, &state);

            let (state, source, other) = unless_lost(|attempt| {
                let state = report("with an unanswered revocation");
                let group = format!("revoked-{attempt}");
                let settings =
                    |name| Settings { group: group.clone(), ..with_strategy(&mock, name, strategy) };
                let source = joined(&settings("revoked"), &[(0, 0)]);
                let other = KafkaSource::subscribe(&settings("other")).expect("a member");
                let event = next_event(&source);
                if matches!(event, GroupEvent::Lost(_)) {
                    return None;
                }
                assert!(matches!(event, GroupEvent::Revoked(_)), "{event:?}");
                Some((state, source, other))
            });
            assert_drops_quickly(source, &state);
            let state = report("that joins while another leaves");
            assert_drops_quickly(other, &state);

            let state = report("with an unanswered loss");
            let source = joined(&with_strategy(&mock, "lost", strategy), &[(0, 0)]);
            mock.inject(Api::Heartbeat, &[Code::UnknownMemberId]);
            assert!(matches!(next_event(&source), GroupEvent::Lost(_)));
            assert_drops_quickly(source, &state);
        });
    });
}

fn reader(mock: &Mock, group: &str) -> SourceReader {
    let settings = mock.settings("reader");
    let settings = Settings { group: group.to_owned(), session_timeout: SESSION, ..settings };
    SourceReader::subscribe(&settings, std::slice::from_ref(&settings.raw), &[]).expect("a member")
}

fn next_change(reader: &SourceReader) -> GroupEvent<SourceLog> {
    wait_until("a change of the assignment", WATCHDOG, || {
        reader.poll(&mut Vec::new(), 1, Duration::from_millis(10)).expect("a quiet group");
        reader.changes().into_iter().next()
    })
}

/// A member with some partitions, all from their first offset.
pub fn placed(mock: &Mock, group: &str) -> SourceReader {
    let reader = reader(mock, group);
    let GroupEvent::Assigned(logs) = next_change(&reader) else { panic!("no assignment") };
    reader.place(&logs.into_iter().map(|log| (log, 0, None)).collect::<Vec<_>>()).expect("accepted");
    reader
}

/// The members of `rekey` accept only incremental changes.
#[test]
fn a_reader_of_rekey_is_dropped_quickly_with_a_change_pending() {
    watched(|progress| {
        let report = |state: &'static str| {
            progress.send(format!("dropping {state}")).unwrap();
            state
        };
        let mock = Mock::start(4);
        fill(&mock, 0, 10);
        let state = report("that has not joined");
        assert_drops_quickly(reader(&mock, "new"), state);

        let state = report("with an unanswered assignment");
        let assigned = reader(&mock, "assigned");
        assert!(matches!(next_change(&assigned), GroupEvent::Assigned(_)));
        assert_drops_quickly(assigned, state);

        let state = report("that reads");
        assert_drops_quickly(placed(&mock, "reading"), state);

        let (state, revoked, other) = unless_lost(|attempt| {
            let state = report("with an unanswered revocation");
            let group = format!("revoked-{attempt}");
            let (revoked, other) = (placed(&mock, &group), reader(&mock, &group));
            let change = next_change(&revoked);
            if matches!(change, GroupEvent::Lost(_)) {
                return None;
            }
            assert!(matches!(change, GroupEvent::Revoked(_)), "{change:?}");
            Some((state, revoked, other))
        });
        assert_drops_quickly(revoked, state);
        let state = report("that joins while another leaves");
        assert_drops_quickly(other, state);

        let state = report("with an unanswered loss");
        let lost = placed(&mock, "lost");
        mock.inject(Api::Heartbeat, &[Code::UnknownMemberId]);
        assert!(matches!(next_change(&lost), GroupEvent::Lost(_)));
        assert_drops_quickly(lost, state);
    });
}

#[test]
fn a_seek_outside_the_assignment_is_an_error() {
    with_each_strategy(|strategy| {
        watched(move |_| {
            let mock = Mock::start(4);
            fill(&mock, 2, 3);
            let source = joined(&with_strategy(&mock, "seeking", strategy), &[]);
            for unknown in [4, 1_000] {
                let failure = source.seek(&[(unknown, 0)]).expect_err("not assigned");
                eprintln!("{strategy}: {failure}");
            }
            source.seek(&[(2, 1)]).expect("assigned");
            assert_eq!(read(&source, 1)[0].coordinates().offset, 1);
            source.unassign(&[2]).expect("unassigned");
            source.seek(&[(2, 0)]).expect_err("no longer assigned");
            let silent = poll(&source, 1, Duration::from_millis(300)).expect("no error");
            assert!(silent.is_empty(), "a record of an unassigned partition");
        });
    });
}

/// The client's requests about a partition are still pending when its position is set. A late answer must not
/// change the position: the records in between would be skipped without an error.
#[test]
fn a_late_answer_of_the_broker_does_not_move_the_start_offset() {
    with_each_strategy(|strategy| {
        watched(move |progress| {
            let mock = Mock::start(4);
            fill(&mock, 2, 10);
            // The leader is known from the first assignment, so that the second one does not wait for it.
            let source = joined(&with_strategy(&mock, "late", strategy), &[(2, 0)]);
            read(&source, 1);
            source.unassign(&[0, 1, 2, 3]).expect("unassigned");
            mock.slow(Duration::from_millis(300));
            progress.send(format!("{strategy}: position set immediately")).unwrap();
            source.assign(&[(0, None), (1, None), (2, None), (3, None)]).expect("assigned");
            source.seek(&[(2, 3)]).expect("assigned");
            let offsets: Vec<u64> = read(&source, 7).iter().map(|r| r.coordinates().offset).collect();
            assert_eq!(offsets, (3..10).collect::<Vec<_>>(), "{strategy}");
            progress.send(format!("{strategy}: position changed while others are set")).unwrap();
            source.pause(&[2]).expect("assigned");
            source.seek(&[(0, 0)]).expect("assigned");
            source.seek(&[(2, 5)]).expect("assigned");
            source.seek(&[(1, 0), (3, 0)]).expect("assigned");
            let offsets: Vec<u64> = read(&source, 5).iter().map(|r| r.coordinates().offset).collect();
            assert_eq!(offsets, (5..10).collect::<Vec<_>>(), "{strategy}");
        });
    });
}

/// Rewinds with full queues: records fetched before a seek are never returned after it.
#[test]
fn no_record_from_before_a_seek_is_returned_after_it() {
    watched(|progress| {
        let mock = Mock::start(4);
        fill(&mock, 0, 500);
        let source = joined(&mock.settings("rewinding"), &[(0, 0)]);
        read(&source, 10);
        for round in 0..30 {
            progress.send(format!("rewind {round}")).unwrap();
            let start = round * 7 % 400;
            source.pause(&[0]).expect("paused");
            source.seek(&[(0, start)]).expect("sought");
            let offsets: Vec<u64> =
                read(&source, 20).iter().map(|record| record.coordinates().offset).collect();
            assert_eq!(offsets, (start..start + 20).collect::<Vec<_>>(), "rewind {round}");
        }
    });
}

/// The coordinator answers the request for committed offsets with retriable errors first.
#[test]
fn a_partition_starts_after_retriable_coordinator_errors() {
    let mock = Mock::start(4);
    (0..4).for_each(|partition| fill(&mock, partition, 3));
    mock.inject(
        Api::OffsetFetch,
        &[
            Code::NotCoordinator,
            Code::NotCoordinator,
            Code::CoordinatorLoadInProgress,
            Code::UnstableOffsetCommit,
            Code::NotCoordinator,
        ],
    );
    let mut clean = Clean::of(&mock.client_config(), 4);
    let member = Member::worker(mock.settings("retrying"), 4, Pace::FULL);
    member.runs(0..4);
    let wanted: BTreeMap<u32, Vec<String>> =
        (0..4).map(|p| (p, (0..3).map(|offset| format!("{p}-{offset}")).collect())).collect();
    clean.wait_for(&wanted, || member.assert_alive());
    assert_eq!(clean.keys, wanted);
    member.stop();
}

/// Partitions start one after the other, while fetches of the running ones wait at the broker.
#[test]
fn many_idle_partitions_start_within_five_seconds() {
    let start = || {
        let mock = Mock::start(24);
        let member = Member::worker(mock.settings("many"), 24, Pace::FULL);
        wait_until("the assignment", WATCHDOG, || (member.metrics.rebalances().get() > 0).then_some(()));
        let began = monotonic();
        member.runs(0..24);
        let took = began.elapsed();
        eprintln!("24 partitions started in {took:?}");
        member.stop();
        took
    };
    // A stall of the machine delays a single start.
    assert!((0..3).any(|_| start() < Duration::from_secs(5)), "three starts took longer");
}

#[test]
fn errors_of_offset_fetch_have_the_right_remedy() {
    watched(|progress| {
        let mock = Mock::start(4);
        let source = joined(&mock.settings("fetching"), &[]);
        for (code, expected) in [
            (Code::NotCoordinator, None),
            (Code::CoordinatorLoadInProgress, None),
            (Code::UnstableOffsetCommit, None),
            (Code::GroupAuthorizationFailed, Some(Remedy::Stop)),
        ] {
            progress.send(format!("OffsetFetch returns {code:?}")).unwrap();
            mock.inject(Api::OffsetFetch, &[code]);
            let first = source.committed(&[0, 1], SLICE);
            mock.clear(Api::OffsetFetch);
            match expected {
                Some(remedy) => assert_eq!(first.expect_err("an error").remedy, remedy, "{code:?}"),
                None => assert!(
                    first
                        .as_ref()
                        .map_or_else(|failure| failure.remedy == Remedy::Retry, |all| all.len() == 2),
                    "{code:?}: {first:?}"
                ),
            }
            let answers = source.committed(&[0, 1], SLICE).expect("an answer");
            assert_eq!(answers.len(), 2, "{answers:?}");
            assert!(answers.iter().all(|answer| answer.offset.is_none()), "{answers:?}");
        }
    });
}

/// Polls until a failure.
fn failure_of(source: &KafkaSource) -> Failure {
    wait_until("a failure", WATCHDOG, || poll(source, 1, Duration::from_millis(100)).err())
}

#[test]
fn a_poll_returns_the_reason_why_it_cannot_read() {
    watched(|progress| {
        let mock = Mock::start(4);
        fill(&mock, 0, 10);

        progress.send("missing permission on the topic".to_owned()).unwrap();
        let source = joined(&mock.settings("topic"), &[(0, 0)]);
        mock.inject(Api::Fetch, &[Code::TopicAuthorizationFailed; 8]);
        let failure = failure_of(&source);
        mock.clear(Api::Fetch);
        assert_eq!(failure.remedy, Remedy::Stop, "{failure}");
        assert!(
            failure.what.contains("run dedupd check, which names it with the command that grants it"),
            "{failure}"
        );
        drop(source);

        progress.send("an offset outside of the log".to_owned()).unwrap();
        let source = joined(&mock.settings("outside"), &[(0, 99)]);
        let failure = failure_of(&source);
        // The next location of the partitions finds which one it is, and the bounds of its log.
        assert_eq!(failure.remedy, Remedy::Abort, "{failure}");
        assert!(failure.what.contains("outside of its log"), "{failure}");
    });
}

#[test]
fn a_member_without_the_permission_to_join_ends_and_names_the_missing_acl() {
    let mock = Mock::start(4);
    mock.inject(Api::JoinGroup, &[Code::GroupAuthorizationFailed; 20]);
    let why = Member::worker(mock.settings("unauthorized"), 4, Pace::FULL).end().expect_err("no permission");
    assert!(why.starts_with("Operator"), "{why}");
    assert!(why.contains("--operation Read --group group"), "{why}");
}

/// Two processes with one `group.instance`: the group keeps the newer member. A member that is replaced once
/// rejoins, because a lost answer looks the same. After repeated replacement, it must end.
#[test]
fn a_static_member_that_is_replaced_repeatedly_ends() {
    let mock = Mock::start(4);
    fill(&mock, 0, 3);
    let mut settings = mock.settings("replaced");
    settings.instance = Some("replaced.0".to_owned());
    let member = Member::worker(settings, 4, Pace::FULL);
    member.runs(0..4);
    mock.inject(Api::Heartbeat, &[Code::FencedInstanceId]);
    wait_until("the second assignment", LIMIT, || {
        member.assert_alive();
        (member.metrics.rebalances().get() >= 2).then_some(())
    });
    member.runs(0..4);
    mock.inject(Api::Heartbeat, &[Code::FencedInstanceId; 8]);
    let why = member.end().expect_err("replaced");
    assert!(why.starts_with("Fenced"), "{why}");
    assert!(why.contains("give each process its own group.instance"), "{why}");
}
