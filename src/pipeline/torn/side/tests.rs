use super::*;
use crate::ports::OutputTopic;

const LOG: LogId = LogId { topic: OutputTopic::DeadLetter, partition: 0 };
const TIMEOUT: Duration = Duration::from_secs(10);

fn raw(offset: Offset) -> Coordinates {
    Coordinates { partition: 3, offset }
}

/// The state after reading open records from offset 100 on, each with its writer and raw offset.
fn seen(records: &[(Option<&str>, Option<Offset>)]) -> Seen {
    let high = 100 + records.len() as u64;
    let mut seen = Seen::new(&LogBounds { low: 0, stable: 100, high }, Duration::ZERO);
    for (offset, (writer, at)) in (100..).zip(records) {
        let (writer, raw) = (writer.map(str::to_owned), at.map(raw));
        seen.take(SideRecord { log: LOG, offset, writer, raw, is_outside: false }, "a");
    }
    seen.next = high;
    seen
}

fn at(next: Offset, is_final: bool) -> BTreeMap<PartitionId, ResumePoint> {
    BTreeMap::from([(3, ResumePoint { next, is_final })])
}

fn settle(writer: &str, copies: &[Offset]) -> SideDecision {
    SideDecision::Settle(writer.to_owned(), copies.to_vec())
}

#[test]
fn records_below_the_committed_offset_are_copied() {
    let seen =
        seen(&[(Some("a"), Some(7)), (Some("b"), Some(70)), (Some("a"), Some(8)), (Some("a"), Some(9))]);
    assert_eq!(seen.decide("a", true, &at(9, true)), settle("a", &[100, 102]));
    assert_eq!(seen.decide("a", true, &at(7, true)), settle("a", &[]));
    assert_eq!(seen.raw().collect::<BTreeSet<_>>(), BTreeSet::from([3]));
}

#[test]
fn records_beyond_a_committed_offset_that_may_advance_wait() {
    let seen = seen(&[(Some("a"), Some(7)), (Some("a"), Some(8))]);
    assert_eq!(seen.decide("a", true, &at(8, false)), SideDecision::Unknown(3));
    assert_eq!(seen.decide("a", true, &at(9, false)), settle("a", &[100, 101]));
    assert_eq!(seen.decide("a", true, &BTreeMap::new()), SideDecision::Unknown(3));
}

#[test]
fn a_record_that_another_worker_has_written_instead_is_not_copied() {
    let seen = seen(&[(Some("a"), Some(7)), (Some("a"), Some(8)), (Some("b"), Some(7))]);
    assert_eq!(seen.decide("a", true, &at(9, true)), settle("a", &[101]));
}

#[test]
fn a_record_of_another_group_does_not_replace_ours() {
    let seen = seen(&[(Some("a"), Some(7)), (None, Some(7))]);
    assert_eq!(seen.decide("a", true, &at(9, true)), settle("a", &[100]));
}

#[test]
fn a_record_and_its_copy_from_before_a_crash_are_copied_once() {
    let seen = seen(&[(Some("a"), Some(7)), (Some("a"), Some(7))]);
    assert_eq!(seen.decide("a", true, &at(9, true)), settle("a", &[101]));
}

#[test]
fn a_record_that_was_copied_outside_of_transactions_is_not_copied_again() {
    let mut seen = seen(&[(None, None), (Some("a"), Some(7)), (Some("a"), Some(8))]);
    let copy = |offset| SideRecord {
        log: LOG,
        offset,
        writer: Some("a".to_owned()),
        raw: Some(raw(7)),
        is_outside: true,
    };
    seen.take(copy(103), "a");
    assert_eq!(seen.decide("a", true, &at(9, true)), settle("a", &[102]));
    let mut alone = Seen::new(&LogBounds { low: 0, stable: 100, high: 100 }, Duration::ZERO);
    alone.take(copy(100), "a");
    assert_eq!(alone.decide("a", true, &at(9, true)), SideDecision::Leave);
}

#[test]
fn leftovers_of_other_writers_alone_are_left_to_them() {
    for writer in [Some("b"), None] {
        let seen = seen(&[(writer, Some(7))]);
        assert_eq!(seen.decide("a", true, &at(9, true)), SideDecision::Leave);
    }
}

#[test]
fn a_transaction_of_another_writer_before_ours_is_settled_after_the_transaction_timeout() {
    let behind = seen(&[(Some("b"), Some(70)), (Some("a"), Some(7))]);
    assert!(!behind.is_due("a", OWN_OPEN_MIN, TIMEOUT) && behind.is_due("a", TIMEOUT, TIMEOUT));
    assert_eq!(behind.decide("a", false, &at(80, true)), SideDecision::Wait);
    assert_eq!(behind.decide("a", true, &at(80, true)), settle("b", &[100]));
    let foreign = seen(&[(None, None), (Some("a"), Some(7))]);
    assert!(!foreign.is_due("a", OWN_OPEN_MIN, TIMEOUT));
    assert_eq!(foreign.decide("a", true, &at(80, true)), settle("a", &[101]));
}

#[test]
fn a_purge_without_its_marker_is_settled_by_its_own_writer() {
    assert_eq!(seen(&[(Some("a"), None)]).decide("a", true, &BTreeMap::new()), settle("a", &[]));
}

#[test]
fn nothing_is_decided_before_all_is_read_and_due() {
    let young = seen(&[(Some("a"), Some(7))]);
    assert!(!young.is_due("a", OWN_OPEN_MIN / 2, TIMEOUT) && young.is_due("a", OWN_OPEN_MIN, TIMEOUT));
    assert_eq!(young.decide("a", false, &at(9, true)), SideDecision::Wait);
    let unread = Seen { next: 100, ..young.clone() };
    assert_eq!(unread.decide("a", true, &at(9, true)), SideDecision::Wait);
}

#[test]
fn open_records_are_read_again_after_the_last_stable_offset_moves() {
    let before = seen(&[(Some("a"), Some(7))]);
    let same =
        Seen::updated(Some(before.clone()), &LogBounds { low: 0, stable: 100, high: 105 }, OWN_OPEN_MIN);
    assert_eq!(same, Seen { high: 105, ..before.clone() });
    let moved = LogBounds { low: 0, stable: 101, high: 105 };
    assert_eq!(Seen::updated(Some(before), &moved, OWN_OPEN_MIN), Seen::new(&moved, OWN_OPEN_MIN));
}
