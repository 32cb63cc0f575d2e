//! A server that speaks as much of Kafka's protocol as the authentication needs: it stores the token, and rejects it.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;

use crate::support::ports::free_port;

const SASL_HANDSHAKE: i16 = 17;
const API_VERSIONS: i16 = 18;
const SASL_AUTHENTICATE: i16 = 36;
const UNSUPPORTED_VERSION: i16 = 35;
const AUTHENTICATION_FAILED: i16 = 58;

/// Listens until the test process ends.
pub struct Capture {
    pub port: u16,
    tokens: Arc<Mutex<Vec<String>>>,
}

impl Capture {
    pub fn start() -> Self {
        let port = free_port();
        let listener = TcpListener::bind(("127.0.0.1", port)).unwrap();
        let tokens: Arc<Mutex<Vec<String>>> = Arc::default();
        let received = Arc::clone(&tokens);
        thread::spawn(move || {
            for socket in listener.incoming().flatten() {
                let received = Arc::clone(&received);
                thread::spawn(move || serve(socket, &received));
            }
        });
        Self { port, tokens }
    }

    /// The tokens since the last call.
    pub fn take(&self) -> Vec<String> {
        std::mem::take(&mut self.tokens.lock().unwrap())
    }
}

/// Responds to the requests of one connection until it ends.
fn serve(mut socket: TcpStream, tokens: &Mutex<Vec<String>>) {
    let mut length = [0; 4];
    while socket.read_exact(&mut length).is_ok() {
        let mut request = vec![0; u32::from_be_bytes(length) as usize];
        if socket.read_exact(&mut request).is_err() {
            return;
        }
        let i16_at = |at: usize| i16::from_be_bytes([request[at], request[at + 1]]);
        let body = match (i16_at(0), i16_at(2)) {
            (API_VERSIONS, 0) => versions(0),
            (API_VERSIONS, _) => versions(UNSUPPORTED_VERSION),
            // One mechanism.
            (SASL_HANDSHAKE, _) => [&[0, 0, 0, 0, 0, 1, 0, 11][..], b"OAUTHBEARER"].concat(),
            (SASL_AUTHENTICATE, _) => {
                let text = String::from_utf8_lossy(&request).into_owned();
                let token = text.split_once("auth=Bearer ").expect("a token").1;
                tokens.lock().unwrap().push(token.split('\u{1}').next().unwrap().to_owned());
                // No message, no bytes.
                [&AUTHENTICATION_FAILED.to_be_bytes()[..], &[0xff, 0xff, 0, 0, 0, 0]].concat()
            }
            other => panic!("unexpected request {other:?}"),
        };
        let response = [&request[4..8], &body].concat();
        let length = u32::try_from(response.len()).unwrap().to_be_bytes();
        if socket.write_all(&[&length[..], &response].concat()).is_err() {
            return;
        }
    }
}

/// A response of version 0: an error code, and the supported versions.
fn versions(error: i16) -> Vec<u8> {
    let apis: [[i16; 3]; 3] = [[SASL_HANDSHAKE, 0, 1], [API_VERSIONS, 0, 0], [SASL_AUTHENTICATE, 0, 0]];
    let count = u32::try_from(apis.len()).unwrap().to_be_bytes();
    let apis = apis.iter().flatten().flat_map(|number| number.to_be_bytes());
    error.to_be_bytes().into_iter().chain(count).chain(apis).collect()
}
