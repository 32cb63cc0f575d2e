//! Recipe 3 of `docs/cookbook.md` with a real `MirrorMaker` 2 between two clusters, which is killed.

use crate::connect::{Connect, wait_records};
use crate::support::cookbook::recipe;
use crate::support::{Draft, Kafka, Record, recorded};

fn events(numbers: std::ops::RangeInclusive<i32>) -> Vec<Draft> {
    let event = |n: i32| Draft::id(n % 2, &format!("click-{n}")).key(format!("user-{n}").as_bytes());
    numbers.map(|n| event(n).header("trace", Some(format!("trace-{n}").as_bytes()))).collect()
}

/// What a mirror keeps.
fn contents(records: Vec<Record>) -> Vec<Record> {
    let mut all: Vec<Record> = records.into_iter().map(|record| Record { offset: 0, ..record }).collect();
    all.sort();
    all
}

#[test]
fn events_of_two_regions_are_in_clean_once_although_the_mirror_was_killed() {
    let [west, east] = [Kafka::start(), Kafka::start()];
    for region in [&west, &east] {
        region.create_topic("clicks", 2, &[]);
    }
    west.send("clicks", &events(1..=4));
    // Clients got no answer for 3 and 4 in the west, and sent them to the east as well.
    east.send("clicks", &events(3..=5));
    let dir = tempfile::tempdir().unwrap();
    let bytes = "org.apache.kafka.connect.converters.ByteArrayConverter";
    let connector = format!(
        "connector.class=org.apache.kafka.connect.mirror.MirrorSourceConnector\ntopics=clicks\n\
         source.cluster.alias=west\nsource.cluster.bootstrap.servers={}\n\
         target.cluster.alias=east\ntarget.cluster.bootstrap.servers={}\n\
         replication.factor=1\noffset-syncs.topic.replication.factor=1\nsync.topic.acls.enabled=false\n",
        west.bootstrap(),
        east.bootstrap()
    );
    // The default of `header.converter` writes bytes as base64.
    let worker = format!("key.converter={bytes}\nvalue.converter={bytes}\nheader.converter={bytes}\n");
    let connect = Connect::new(&east, dir.path(), &worker, &connector);
    let running = connect.start();
    wait_records(&east, "west.clicks", 4, &running);
    let mirrored = contents(east.ended_records("west.clicks"));
    assert_eq!(mirrored, contents(west.ended_records("clicks")), "a mirror changes offsets only");
    running.kill9();
    drop(running);
    let running = connect.start();
    wait_records(&east, "west.clicks", 8, &running);
    running.kill9();
    let comment = "MirrorMaker 2 of Apache Kafka 4.3.1, from tests/integration/mirror.rs: west/clicks is the source of west.clicks.";
    let topics = [
        (&west, "clicks", "west/clicks"),
        (&east, "clicks", "clicks"),
        (&east, "west.clicks", "west.clicks"),
    ];
    recorded::save("mirror.jsonl", comment, &topics);

    let recipe = recipe(3);
    let pipe = recipe.pipe(&east);
    println!("{}", recipe.play(&pipe));
    assert_eq!(east.ended_records(&pipe.clean).len(), 5);
}
