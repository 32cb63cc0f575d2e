//! The state of a transaction at its coordinator. The client library does not support the request, so it is encoded
//! here: `DescribeTransactions`, version 0 (kafka.apache.org/protocol).

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use super::Kafka;

/// A broker that is frozen or shutting down does not respond.
const PATIENCE: Duration = Duration::from_millis(500);

impl Kafka {
    /// Whether the transaction of this id is open. `false` also if this node does not respond, or is not its
    /// coordinator.
    pub fn has_open_transaction(&self, transactional_id: &str) -> bool {
        self.transaction_state(transactional_id).is_some_and(|state| state == "Ongoing")
    }

    /// The name of the state in Kafka, for example `Ongoing` or `CompleteCommit`.
    pub fn transaction_state(&self, transactional_id: &str) -> Option<String> {
        let mut socket = TcpStream::connect_timeout(&self.address.parse().ok()?, PATIENCE).ok()?;
        socket.set_read_timeout(Some(PATIENCE)).ok()?;
        let request = request(transactional_id)?;
        socket.write_all(&u32::try_from(request.len()).ok()?.to_be_bytes()).ok()?;
        socket.write_all(&request).ok()?;
        let mut length = [0; 4];
        socket.read_exact(&mut length).ok()?;
        let mut answer = vec![0; usize::try_from(u32::from_be_bytes(length)).ok()?];
        socket.read_exact(&mut answer).ok()?;
        state(&answer)
    }
}

/// Compact strings and arrays have their length plus 1 as a varint, which is one byte here.
fn request(transactional_id: &str) -> Option<Vec<u8>> {
    let mut request = vec![0, 65, 0, 0]; // DescribeTransactions, version 0
    request.extend(1_i32.to_be_bytes()); // correlation id
    request.extend((-1_i16).to_be_bytes()); // no client id
    request.push(0); // no tagged fields
    request.push(2); // one id
    request.push(u8::try_from(transactional_id.len() + 1).ok().filter(|length| *length < 0x80)?);
    request.extend(transactional_id.as_bytes());
    request.push(0);
    Some(request)
}

/// Correlation id, tagged fields, throttle time, array of one: error code, transactional id, state.
fn state(answer: &[u8]) -> Option<String> {
    let (error, rest) = answer.get(4 + 1 + 4 + 1..)?.split_at_checked(2)?;
    let after_id = rest.get(usize::from(*rest.first()?)..)?;
    let length = usize::from(*after_id.first()?).checked_sub(1)?;
    let state = after_id.get(1..=length)?;
    (error == [0, 0]).then(|| String::from_utf8_lossy(state).into_owned())
}
