//! Generates the events, without Kafka: the same seed gives the same ids, keys and repeats.

use std::collections::VecDeque;
use std::fmt::Write as _;

use fastrand::Rng;

/// The default of [`EventShape::repeatable`].
pub const REPEATABLE: usize = 1 << 18;
/// Start of the clock of [`Generator`] as an iterator, epoch milliseconds; a round date in the past.
const EPOCH_MS: i64 = 1_700_000_000_000;
/// Amounts are below this, hundredths.
const MOST_AMOUNT: u32 = 1_000_000;
/// The end of a value.
const END: &str = "\"}";
const KINDS: [&str; 6] = ["order", "payment", "refund", "login", "click", "shipment"];
const PADDING: &str = "the quick brown fox jumps over the lazy dog while five boxing wizards watch. ";

/// The properties of the events.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct EventShape {
    /// Determines ids, keys and repeats.
    pub seed: u64,
    /// Size of a value, bytes; a value is never shorter than its fields ([`Self::least_size`]).
    pub size: usize,
    /// Share of records that repeat an earlier id, from 0 to below 1.
    pub duplicates: f64,
    /// Number of distinct keys, at least 1.
    pub keys: u64,
    /// How many of the last originals can be repeated, at least 1.
    pub repeatable: usize,
}

impl EventShape {
    /// The least size that all values can have, bytes.
    #[must_use]
    pub fn least_size(&self) -> usize {
        let fields = Fields {
            id: uuid(&mut Rng::with_seed(0)),
            kind: KINDS.into_iter().max_by_key(|kind| kind.len()).unwrap_or_default(),
            key: key(self.keys.max(1) - 1),
            amount: MOST_AMOUNT - 1,
            made_ms: 9_999_999_999_999,
        };
        fields.begin(true).len() + END.len()
    }
}

/// The fields of a value.
struct Fields<'a> {
    id: String,
    kind: &'a str,
    key: String,
    /// Hundredths.
    amount: u32,
    made_ms: i64,
}

impl Fields<'_> {
    /// The value up to its padding, which [`END`] follows.
    fn begin(&self, is_attempt: bool) -> String {
        let Self { id, kind, key, amount, made_ms } = self;
        let (whole, cents) = (amount / 100, amount % 100);
        let attempt = if is_attempt { r#""attempt":2,"# } else { "" };
        format!(
            r#"{{"id":"{id}","type":"{kind}","user":"{key}","amount":{whole}.{cents:02},"ts":{made_ms},{attempt}"note":""#
        )
    }
}

fn key(number: u64) -> String {
    format!("user-{number}")
}

/// How a repeat differs from its original.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Repeat {
    /// The same bytes and timestamp, as in a retry of the client library.
    Identical,
    /// The same bytes with a later timestamp, as in a retry of the application.
    Later,
    /// A later timestamp and `"attempt":2` in the value.
    Attempt,
}

/// One record to write.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    /// The id, a UUID (version 4) as text, the field `id` of the value.
    pub id: String,
    /// The key; a repeat has the key, and so the partition, of its original.
    pub key: String,
    /// A JSON object.
    pub value: String,
    /// Headers; only some events have any, and some values are null.
    pub headers: Vec<(&'static str, Option<String>)>,
    /// Epoch milliseconds.
    pub timestamp_ms: i64,
    /// How it repeats an earlier event; `None` for the first event with its id.
    pub repeat: Option<Repeat>,
}

/// Generates events. As an iterator it has its own clock, one millisecond per event.
#[derive(Debug, Clone)]
pub struct Generator {
    shape: EventShape,
    draws: Rng,
    originals: u64,
    /// Creation times of the last originals, epoch milliseconds; everything else follows from the seed.
    times_ms: VecDeque<i64>,
    made: i64,
}

impl Generator {
    /// A generator before its first event.
    #[must_use]
    pub fn new(shape: EventShape) -> Self {
        Self { shape, draws: Rng::with_seed(shape.seed), originals: 0, times_ms: VecDeque::new(), made: 0 }
    }

    /// The next event, created at `now_ms` (epoch milliseconds).
    pub fn next_at(&mut self, now_ms: i64) -> Event {
        let repeats = self.draws.f64() < self.shape.duplicates;
        if repeats && !self.times_ms.is_empty() {
            return self.repeat(now_ms);
        }
        let number = self.originals;
        self.originals += 1;
        self.times_ms.push_back(now_ms);
        if self.times_ms.len() > self.shape.repeatable.max(1) {
            self.times_ms.pop_front();
        }
        self.event(number, now_ms, None, now_ms)
    }

    fn repeat(&mut self, now_ms: i64) -> Event {
        let back = self.distance();
        let kind = match self.draws.u8(..4) {
            0 => Repeat::Later,
            1 => Repeat::Attempt,
            _ => Repeat::Identical,
        };
        let index = self.times_ms.len() - back;
        let original_ms = self.times_ms.get(index).copied().unwrap_or(now_ms);
        let timestamp_ms = if kind == Repeat::Identical { original_ms } else { now_ms };
        self.event(self.originals - back as u64, original_ms, Some(kind), timestamp_ms)
    }

    /// How many originals ago the repeated one was, at least 1. The logarithm is uniformly distributed: 1 to 10
    /// ago is as frequent as 1,000 to 10,000, so most repeats come soon and some very late.
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "between 1 and the number of stored times"
    )]
    fn distance(&mut self) -> usize {
        let stored = self.times_ms.len();
        ((stored as f64).powf(self.draws.f64()) as usize).clamp(1, stored)
    }

    /// Original `number`, created at `made_ms`, or a repeat of it.
    fn event(&self, number: u64, made_ms: i64, repeat: Option<Repeat>, timestamp_ms: i64) -> Event {
        let mut draws = Rng::with_seed(self.shape.seed ^ (number + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let fields = Fields {
            id: uuid(&mut draws),
            key: key(draws.u64(..self.shape.keys.max(1))),
            kind: draws.choice(KINDS).unwrap_or("order"),
            amount: draws.u32(100..MOST_AMOUNT),
            made_ms,
        };
        let mut value = fields.begin(repeat == Some(Repeat::Attempt));
        let padding = PADDING.chars().cycle().skip(usize::from(draws.u8(..64)));
        value.extend(padding.take(self.shape.size.saturating_sub(value.len() + END.len())));
        value.push_str(END);
        let mut headers = Vec::new();
        if draws.u8(..4) == 0 {
            headers.push(("source", Some(format!("shop-{}", draws.u8(..8)))));
            if draws.u8(..4) == 0 {
                headers.push(("trace", None));
            }
        }
        let Fields { id, key, .. } = fields;
        Event { id, key, value, headers, timestamp_ms, repeat }
    }
}

impl Iterator for Generator {
    type Item = Event;

    fn next(&mut self) -> Option<Event> {
        self.made += 1;
        Some(self.next_at(EPOCH_MS + self.made))
    }
}

/// A random UUID (RFC 9562, version 4) as text.
fn uuid(draws: &mut Rng) -> String {
    let bits = (draws.u128(..) & !(0xf << 76 | 0x3 << 62)) | 0x4 << 76 | 0x2 << 62;
    let digits = format!("{bits:032x}");
    let mut text = String::with_capacity(36);
    for (at, digit) in digits.chars().enumerate() {
        let hyphen = if [8, 12, 16, 20].contains(&at) { "-" } else { "" };
        // Writing to a string cannot fail.
        write!(text, "{hyphen}{digit}").unwrap_or_default();
    }
    text
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;

    const SHAPE: EventShape =
        EventShape { seed: 7, size: 300, duplicates: 0.2, keys: 50, repeatable: REPEATABLE };

    #[test]
    fn the_same_seed_makes_the_same_events() {
        let events = |seed| Generator::new(EventShape { seed, ..SHAPE }).take(2_000).collect::<Vec<_>>();
        assert_eq!(events(7), events(7));
        assert_ne!(events(7), events(8));
    }

    #[test]
    fn the_share_of_repeats_is_the_configured_one() {
        for duplicates in [0.0, 0.05, 0.2, 0.5, 0.9] {
            let events = Generator::new(EventShape { duplicates, ..SHAPE }).take(20_000);
            let mut ids = HashMap::new();
            let mut repeats = 0;
            for event in events {
                let known = ids.insert(event.id.clone(), event.key.clone());
                assert_eq!(event.repeat.is_some(), known.is_some(), "a repeat has an earlier id");
                if let Some(key) = known {
                    assert_eq!(key, event.key, "a repeat has the key of its original");
                    repeats += 1;
                }
            }
            let share = f64::from(repeats) / 20_000.0;
            assert!((share - duplicates).abs() < 0.02, "{share} instead of {duplicates}");
        }
    }

    #[test]
    fn most_repeats_come_soon_and_some_late() {
        let mut born = HashMap::new();
        let mut distances = Vec::new();
        for (at, event) in Generator::new(SHAPE).take(50_000).enumerate() {
            match event.repeat {
                None => drop(born.insert(event.id, at)),
                Some(_) => distances.push(at - born[&event.id]),
            }
        }
        distances.sort_unstable();
        let within = |limit| distances.partition_point(|distance| *distance < limit) * 100 / distances.len();
        assert!(within(1_000) > 55, "{} % within 1,000", within(1_000));
        assert!(within(10_000) < 95, "{} % within 10,000", within(10_000));
    }

    #[test]
    fn values_are_json_of_the_configured_size_and_repeats_differ_by_their_kind() {
        let mut originals: HashMap<String, Event> = HashMap::new();
        let mut kinds = [0; 3];
        for event in Generator::new(SHAPE).take(5_000) {
            let json: serde_json::Value = serde_json::from_str(&event.value).unwrap();
            assert_eq!(json["id"].as_str(), Some(event.id.as_str()));
            assert_eq!(event.value.len(), SHAPE.size);
            assert_eq!((event.id.len(), event.id.as_bytes()[14]), (36, b'4'));
            let Some(repeat) = event.repeat else {
                originals.insert(event.id.clone(), event);
                continue;
            };
            let original = &originals[&event.id];
            kinds[repeat as usize] += 1;
            let same = (event.value == original.value, event.timestamp_ms == original.timestamp_ms);
            match repeat {
                Repeat::Identical => assert_eq!(same, (true, true)),
                Repeat::Later => assert_eq!(same, (true, false)),
                Repeat::Attempt => assert_eq!((same, json["attempt"].as_u64()), ((false, false), Some(2))),
            }
        }
        assert!(kinds.iter().all(|count| *count > 100), "{kinds:?}");
        let small = EventShape { size: 1, ..SHAPE };
        let longest = Generator::new(small).take(5_000).map(|event| event.value.len()).max().unwrap();
        assert_eq!(longest, small.least_size());
    }
}
