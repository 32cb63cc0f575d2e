//! A produce request encoded by the test: the client rejects some timestamps that other producers send.

#![allow(
    clippy::cast_possible_truncation,
    clippy::cast_possible_wrap,
    clippy::cast_sign_loss,
    reason = "the wire format's own widths"
)]

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use super::wait_until;

const LIMIT: Duration = Duration::from_secs(40);
/// `NOT_LEADER_OR_FOLLOWER`.
const NOT_LEADER: i16 = 6;

/// A record of a batch. Key, value and header values may be null.
#[derive(Clone, Debug, Default)]
pub struct Handmade {
    pub timestamp_ms: i64,
    pub key: Option<Vec<u8>>,
    pub value: Option<Vec<u8>>,
    /// Names are bytes, because a producer may write any bytes.
    pub headers: Vec<(Vec<u8>, Option<Vec<u8>>)>,
}

/// A record of which the test encodes the bytes itself.
pub struct Encoded {
    pub timestamp_ms: i64,
    /// The distance of its offset to that of the batch.
    pub delta: i64,
    /// Key, value and headers.
    pub content: Vec<u8>,
}

/// Sends one batch and panics if the broker rejects it.
pub fn send(broker: &str, topic: &str, partition: i32, records: &[Handmade]) {
    let encoded = |(delta, record): (i64, &Handmade)| {
        let content = content(record);
        Encoded { timestamp_ms: record.timestamp_ms, delta, content }
    };
    send_encoded(broker, topic, partition, &(0..).zip(records).map(encoded).collect::<Vec<_>>());
}

/// Sends one batch (message format 2, Produce version 3) to a broker and panics if it rejects the batch.
pub fn send_encoded(broker: &str, topic: &str, partition: i32, records: &[Encoded]) {
    let mut request = Vec::new();
    request.extend(0i16.to_be_bytes()); // Produce
    request.extend(3i16.to_be_bytes());
    request.extend(7i32.to_be_bytes()); // correlation id
    put_string(&mut request, "handmade");
    request.extend((-1i16).to_be_bytes()); // no transactional id
    request.extend(1i16.to_be_bytes()); // acks
    request.extend(5_000i32.to_be_bytes());
    request.extend(1i32.to_be_bytes());
    put_string(&mut request, topic);
    request.extend(1i32.to_be_bytes());
    request.extend(partition.to_be_bytes());
    let batch = batch(records);
    request.extend(length(&batch).to_be_bytes());
    request.extend(batch);

    // For a moment after the topic is created its leader does not accept records.
    let code = wait_until("the leader of a new topic", LIMIT, || {
        Some(exchange(broker, topic, &request)).filter(|code| *code != NOT_LEADER)
    });
    assert_eq!(code, 0, "the broker rejected the batch");
}

/// Sends the request. Returns the error code of its partition.
fn exchange(broker: &str, topic: &str, request: &[u8]) -> i16 {
    let mut stream = TcpStream::connect(broker).expect("the broker listens");
    stream.write_all(&length(request).to_be_bytes()).unwrap();
    stream.write_all(request).unwrap();
    let mut size = [0; 4];
    stream.read_exact(&mut size).expect("an answer");
    let mut answer = vec![0; usize::try_from(i32::from_be_bytes(size)).unwrap()];
    stream.read_exact(&mut answer).unwrap();
    // Correlation id, count of topics, name, count of partitions, partition.
    let at = 4 + 4 + 2 + topic.len() + 4 + 4;
    i16::from_be_bytes(answer[at..at + 2].try_into().unwrap())
}

fn batch(records: &[Encoded]) -> Vec<u8> {
    let last = i32::try_from(records.len() - 1).unwrap();
    let mut body = Vec::new();
    body.extend(0i16.to_be_bytes()); // attributes: plain, create time
    body.extend(last.to_be_bytes());
    body.extend(0i64.to_be_bytes()); // first timestamp, to which the records' timestamps are relative
    body.extend(records.iter().map(|record| record.timestamp_ms).max().unwrap().to_be_bytes());
    body.extend((-1i64).to_be_bytes()); // no producer id, epoch, sequence
    body.extend((-1i16).to_be_bytes());
    body.extend((-1i32).to_be_bytes());
    body.extend((last + 1).to_be_bytes());
    for record in records {
        let encoded = encode(record);
        put_varint(&mut body, encoded.len() as i64);
        body.extend(encoded);
    }
    let mut batch = Vec::new();
    batch.extend(0i64.to_be_bytes()); // base offset, the broker's
    batch.extend((length(&body) + 9).to_be_bytes());
    batch.extend((-1i32).to_be_bytes()); // leader epoch
    batch.push(2); // format
    batch.extend(crc32c::crc32c(&body).to_be_bytes());
    batch.extend(body);
    batch
}

fn encode(record: &Encoded) -> Vec<u8> {
    let mut out = vec![0]; // attributes
    put_varint(&mut out, record.timestamp_ms);
    put_varint(&mut out, record.delta);
    out.extend(&record.content);
    out
}

/// Key, value and headers of a record in the encoding of message format 2, which does not depend on its position.
pub fn content(record: &Handmade) -> Vec<u8> {
    let mut out = Vec::new();
    put_bytes(&mut out, record.key.as_deref());
    put_bytes(&mut out, record.value.as_deref());
    put_varint(&mut out, record.headers.len() as i64);
    for (name, value) in &record.headers {
        put_bytes(&mut out, Some(name));
        put_bytes(&mut out, value.as_deref());
    }
    out
}

fn length(bytes: &[u8]) -> i32 {
    i32::try_from(bytes.len()).unwrap()
}

fn put_string(out: &mut Vec<u8>, text: &str) {
    out.extend(i16::try_from(text.len()).unwrap().to_be_bytes());
    out.extend(text.as_bytes());
}

fn put_bytes(out: &mut Vec<u8>, bytes: Option<&[u8]>) {
    put_varint(out, bytes.map_or(-1, |bytes| bytes.len() as i64));
    out.extend(bytes.unwrap_or_default());
}

/// Zigzag, then seven bits per byte, lowest first.
fn put_varint(out: &mut Vec<u8>, value: i64) {
    let mut rest = ((value << 1) ^ (value >> 63)) as u64;
    while rest >= 0x80 {
        out.push((rest & 0x7f) as u8 | 0x80);
        rest >>= 7;
    }
    out.push(rest as u8);
}
