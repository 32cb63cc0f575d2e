//! Recipe 1 of `docs/cookbook.md` with a real Debezium, `PostgreSQL` and Kafka Connect, which is killed and then loses its offsets.

use std::time::Duration;

use crate::connect::{Connect, LIMIT, Postgres, installed, wait_records};
use crate::support::cookbook::recipe;
use crate::support::{Kafka, recorded, wait_until};

const TOPIC: &str = "shop.public.orders";

#[test]
fn changes_that_debezium_writes_again_after_a_kill_are_dropped() {
    let kafka = Kafka::start();
    kafka.create_topic(TOPIC, 2, &[]);
    let dir = tempfile::tempdir().unwrap();
    let database = Postgres::start(dir.path());
    database.execute(&[
        "create table orders (id int primary key, status text, amount int)",
        "insert into orders values (1, 'new', 10), (2, 'new', 20)",
    ]);
    let json = "org.apache.kafka.connect.json.JsonConverter";
    let worker = format!(
        "plugin.path={}\nkey.converter={json}\nvalue.converter={json}\nkey.converter.schemas.enable=false\n\
         value.converter.schemas.enable=false\n",
        installed("debezium").display()
    );
    let connector = format!(
        "connector.class=io.debezium.connector.postgresql.PostgresConnector\nplugin.name=pgoutput\n\
         database.hostname=127.0.0.1\ndatabase.port={}\ndatabase.user=postgres\ndatabase.dbname=postgres\n\
         topic.prefix=shop\ntable.include.list=public.orders\n",
        database.port
    );
    let connect = Connect::new(&kafka, dir.path(), &worker, &connector);
    let running = connect.start();
    wait_records(&kafka, TOPIC, 2, &running);
    // An orderly stop stores the offset behind the snapshot.
    running.signal("TERM");
    running.wait(LIMIT);
    drop(running);

    let running = connect.start();
    wait_until("streaming", LIMIT, || running.text().contains("Starting streaming").then_some(()));
    database.execute(&[
        "insert into orders values (3, 'new', 30)",
        "update orders set status = 'paid' where id = 3",
        "update orders set status = 'new' where id = 3",
        "delete from orders where id = 1",
        "insert into orders values (1, 'again', 10)",
        "update orders set id = 22 where id = 2",
        "copy orders from program 'printf 4,new,40\\\\n5,new,50\\\\n' (format csv)",
    ]);
    // Two deletions have tombstones, and a new key is a deletion and an insertion.
    wait_records(&kafka, TOPIC, 13, &running);
    running.kill9();
    drop(running);
    let running = connect.start();
    wait_records(&kafka, TOPIC, 24, &running);
    running.kill9();
    drop(running);
    // Without its offsets, it makes another snapshot.
    std::fs::remove_file(dir.path().join("offsets")).unwrap();
    let running = connect.start();
    wait_records(&kafka, TOPIC, 29, &running);
    wait_until("streaming", LIMIT, || running.text().contains("Starting streaming").then_some(()));
    std::thread::sleep(Duration::from_secs(2));
    running.kill9();
    let comment = "Debezium 3.6.1.Final for PostgreSQL, from tests/integration/debezium.rs.";
    recorded::save("debezium.jsonl", comment, &[(&kafka, TOPIC, TOPIC)]);

    let recipe = recipe(1);
    let pipe = recipe.pipe(&kafka);
    println!("{}", recipe.play(&pipe));
    assert_eq!(kafka.ended_records(&pipe.clean).len(), 16);
}
