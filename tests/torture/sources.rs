//! The records of other programs with transactions.

use super::program::{Ending, Habits};
use super::round::PARTITIONS;
use super::support::load::StreamClock;
use super::support::{Draft, Record, Scope, crafted, now_ms};

/// The header of the records of foreign programs.
const FOREIGN: &str = "foreign";

pub fn is_foreign(record: &Record) -> bool {
    record.headers.iter().any(|(name, _)| name == FOREIGN)
}

/// A record and its topic.
pub type Line = (String, Draft);

pub trait Source: Send {
    fn habits(&self) -> Habits;

    /// The records of the next transaction.
    fn lines(&mut self, random: &mut fastrand::Rng) -> Vec<Line>;

    /// One record in each partition, which is never committed.
    fn everywhere(&self) -> Vec<Line>;

    /// Called when the outcome of the transaction is known.
    fn ended(&mut self, _: Vec<Line>, _: Ending) {}
}

/// A producer of raw, or of several source topics. It repeats ids, also those of records that were aborted, and writes records without an id. It retries
/// half of the transactions that were not committed.
pub struct Upstream {
    topics: Vec<String>,
    name: String,
    /// The number of ids in each partition, or in all.
    ids: Vec<usize>,
    retry: Option<Vec<Line>>,
}

impl Upstream {
    const RECORDS: usize = 100;

    pub fn new(topics: Vec<String>, number: usize, scope: Scope) -> Self {
        Self {
            topics,
            name: format!("upstream-{number}"),
            ids: vec![0; if scope == Scope::Topic { 1 } else { PARTITIONS }],
            retry: None,
        }
    }

    fn draft(&mut self, partition: usize, list: usize, random: &mut fastrand::Rng) -> Draft {
        let known = self.ids[list];
        let number = match random.u8(..100) {
            0..5 => return Draft::new(number_of(partition), "{\"no\":\"id\"}").key(b"key"),
            5..35 if known > 0 => known - 1 - random.usize(..known.min(Self::RECORDS)),
            _ => {
                self.ids[list] += 1;
                known
            }
        };
        Draft::id(number_of(partition), &format!("{}-{list}-{number}", self.name))
    }
}

impl Source for Upstream {
    fn habits(&self) -> Habits {
        Habits { percentages: [60, 20, 10], timeout: 4_000, open: 1_500, pause: 500 }
    }

    fn lines(&mut self, random: &mut fastrand::Rng) -> Vec<Line> {
        if let Some(lines) = self.retry.take().filter(|_| random.bool()) {
            return lines;
        }
        let places = PARTITIONS * self.topics.len();
        let places = [random.usize(..places), random.usize(..places)];
        let count = random.usize(1..=Self::RECORDS);
        (0..count)
            .map(|_| {
                let place = places[random.usize(..2)];
                let topic = self.topics[place / PARTITIONS].clone();
                (topic, self.draft(place % PARTITIONS, place % self.ids.len(), random))
            })
            .collect()
    }

    fn everywhere(&self) -> Vec<Line> {
        self.topics.iter().flat_map(|topic| everywhere(topic, PARTITIONS)).collect()
    }

    fn ended(&mut self, lines: Vec<Line>, ending: Ending) {
        self.retry = (ending != Ending::Commit).then_some(lines);
    }
}

/// A producer of raw whose transactions keep the readers of one partition waiting, while the others advance.
pub struct Laggard {
    pub topic: String,
    pub partition: usize,
    pub clock: StreamClock,
    written: usize,
}

impl Laggard {
    pub fn new(topic: String, partition: usize, clock: StreamClock) -> Self {
        Self { topic, partition, clock, written: 0 }
    }
}

impl Source for Laggard {
    fn habits(&self) -> Habits {
        Habits { percentages: [50, 20, 10], timeout: 45_000, open: 40_000, pause: 2_000 }
    }

    fn lines(&mut self, _: &mut fastrand::Rng) -> Vec<Line> {
        self.written += 1;
        let draft = Draft::id(number_of(self.partition), &format!("laggard-{}", self.written));
        vec![(self.topic.clone(), draft.at(self.clock.now_ms()))]
    }

    fn everywhere(&self) -> Vec<Line> {
        everywhere(&self.topic, PARTITIONS)
    }
}

/// A producer of raw that chooses ids against the filters of slices ([`crafted`]), and records at the limits: of sizes, also of those
/// that are small only compressed, of times, of headers, and of first bytes. All of them meet the limits of the raw topic.
pub struct Hostile {
    topic: String,
    /// With the timestamps of the load, whose window is short: then the copies of an id are in one transaction and partition.
    clock: Option<StreamClock>,
    ids: Vec<String>,
    written: usize,
}

impl Hostile {
    /// The largest batch that a topic accepts by default.
    const LARGEST: usize = 1_048_588;
    /// Bytes of a batch with one record beside its value, key and headers, at most.
    const OVERHEAD: usize = 100;

    pub fn new(topic: String, clock: Option<StreamClock>) -> Self {
        Self { topic, clock, ids: Vec::new(), written: 0 }
    }

    /// A record at one of the limits.
    fn at_a_limit(&mut self, partition: i32, random: &mut fastrand::Rng) -> Draft {
        self.written += 1;
        let id = format!("hostile-{}", self.written);
        match random.u8(..7) {
            // Compression does not shrink it.
            0 => {
                let mut noise = vec![0; Self::LARGEST - Self::OVERHEAD - random.usize(..200)];
                random.fill(&mut noise);
                Draft::id(partition, &id).header("noise", Some(&noise))
            }
            1 => {
                let pad = "x".repeat(3 * Self::LARGEST);
                Draft::new(partition, &format!("{{\"id\":\"{id}\",\"pad\":\"{pad}\"}}"))
            }
            2 => Draft { value: Some(vec![0, 0, 0, 0, random.u8(..), 3, 0xc3]), ..Draft::new(partition, "") },
            3 => Draft { value: None, ..Draft::new(partition, "") },
            4 => (0..500).fold(Draft::id(partition, &id), |draft, n| {
                draft.header(&format!("h{}", n % 7), (n % 3 > 0).then_some(b"value"))
            }),
            _ if self.clock.is_some() => Draft::id(partition, &id),
            5 => Draft::id(partition, &id).at(1),
            // Brokers accept up to an hour by default.
            _ => Draft::id(partition, &id).at(now_ms() + 50 * 60_000),
        }
    }
}

impl Source for Hostile {
    fn habits(&self) -> Habits {
        Habits { percentages: [85, 5, 5], timeout: 10_000, open: 500, pause: 1_000 }
    }

    fn lines(&mut self, random: &mut fastrand::Rng) -> Vec<Line> {
        if self.ids.is_empty() || self.clock.is_some() {
            let crafted =
                [crafted::one_place(random, 66, true), crafted::one_place(random, 65, false)].concat();
            let pair = crafted::pairs(random, crafted::seeds().take(1));
            self.ids = crafted.iter().chain(&pair).map(ToString::to_string).collect();
        }
        let own = number_of(random.usize(..PARTITIONS));
        let mut drafts: Vec<Draft> = Vec::new();
        for id in self.ids.iter().chain(self.ids.iter().step_by(3)) {
            let partition = if self.clock.is_some() { own } else { number_of(random.usize(..PARTITIONS)) };
            drafts.push(Draft::id(partition, id));
        }
        drafts.push(self.at_a_limit(own, random));
        let now = self.clock.as_ref().map(StreamClock::now_ms);
        let timed = |draft: Draft| Draft { timestamp_ms: draft.timestamp_ms.or(now), ..draft };
        drafts.into_iter().map(|draft| (self.topic.clone(), timed(draft))).collect()
    }

    fn everywhere(&self) -> Vec<Line> {
        everywhere(&self.topic, PARTITIONS)
    }
}

/// A program that writes to topics of dedupd. In the clean topic it never commits.
pub struct Foreign {
    topics: Vec<String>,
    partitions: usize,
    habits: Habits,
    written: usize,
}

impl Foreign {
    pub fn in_clean(topic: &str) -> Self {
        let habits = Habits { percentages: [0, 60, 20], timeout: 10_000, open: 9_000, pause: 8_000 };
        Self { topics: vec![topic.to_owned()], partitions: PARTITIONS, habits, written: 0 }
    }

    pub fn in_sides(topics: Vec<String>, partitions: usize) -> Self {
        let habits = Habits { percentages: [40, 30, 15], timeout: 10_000, open: 9_000, pause: 2_000 };
        Self { topics, partitions, habits, written: 0 }
    }
}

impl Source for Foreign {
    fn habits(&self) -> Habits {
        self.habits
    }

    fn lines(&mut self, random: &mut fastrand::Rng) -> Vec<Line> {
        let topic = &self.topics[random.usize(..self.topics.len())];
        let partition = number_of(random.usize(..self.partitions));
        let count = random.usize(1..=5);
        self.written += count;
        let first = self.written - count;
        (first..self.written)
            .map(|n| (topic.clone(), foreign(Draft::id(partition, &format!("foreign-{n}")))))
            .collect()
    }

    fn everywhere(&self) -> Vec<Line> {
        self.topics.iter().flat_map(|topic| everywhere(topic, self.partitions)).collect()
    }
}

fn foreign(draft: Draft) -> Draft {
    draft.header(FOREIGN, Some(b"yes"))
}

fn everywhere(topic: &str, partitions: usize) -> Vec<Line> {
    let draft = |partition: usize| foreign(Draft::id(number_of(partition), "never"));
    (0..partitions).map(|partition| (topic.to_owned(), draft(partition))).collect()
}

fn number_of(partition: usize) -> i32 {
    i32::try_from(partition).unwrap()
}
