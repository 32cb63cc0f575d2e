//! Parses the frames of the Kafka protocol, as far as the proxy requires it.
//!
//! A frame is a length (i32, big endian) and a body. The body of a request starts with API key (i16), API
//! version (i16) and correlation id (i32), the body of a response with the correlation id
//! (kafka.apache.org/protocol, "Protocol Primitive Types" and "Request Header").

use std::io::{self, Read};

/// API key of Produce requests.
pub const PRODUCE: i16 = 0;
/// API key of Metadata requests.
pub const METADATA: i16 = 3;

/// Maximum length of a frame, bytes; the limit of librdkafka.
const FRAME_MAX: usize = 1 << 30;

/// Reads one complete frame, including its length field.
pub fn read(from: &mut impl Read) -> io::Result<Vec<u8>> {
    let mut length = [0; 4];
    from.read_exact(&mut length)?;
    let body = usize::try_from(i32::from_be_bytes(length)).ok().filter(|body| *body <= FRAME_MAX);
    let body =
        body.ok_or_else(|| io::Error::other("not a frame of the Kafka protocol: its length is invalid"))?;
    let mut frame = length.to_vec();
    let read = from.take(body as u64).read_to_end(&mut frame)?;
    if read < body { Err(io::ErrorKind::UnexpectedEof.into()) } else { Ok(frame) }
}

/// API key and correlation id of a request.
pub fn request(frame: &[u8]) -> Option<(i16, i32)> {
    let api = frame.get(4..6)?.first_chunk()?;
    Some((i16::from_be_bytes(*api), i32::from_be_bytes(*frame.get(8..12)?.first_chunk()?)))
}

/// Correlation id of a response.
pub fn response(frame: &[u8]) -> Option<i32> {
    Some(i32::from_be_bytes(*frame.get(4..8)?.first_chunk()?))
}

/// A broker's address and the port of 127.0.0.1 that replaces it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Detour {
    /// The advertised host of the broker: a name or address of the loopback interface.
    pub host: String,
    /// The advertised port of the broker.
    pub port: u16,
    /// The port of the proxy for this broker.
    pub proxy_port: u16,
}

impl Detour {
    /// The length of this broker's address at the start of `bytes`, if it is there: the length of the host (i16,
    /// or one byte with the length + 1 in newer versions), the host, then the port (i32).
    fn address_length(&self, bytes: &[u8]) -> Option<usize> {
        let length = u16::try_from(self.host.len()).ok()?;
        let port = i32::from(self.port).to_be_bytes();
        let classic = length.to_be_bytes().to_vec();
        let compact = vec![u8::try_from(length + 1).ok().filter(|byte| *byte < 0x80)?];
        [classic, compact].into_iter().find_map(|prefix| {
            let address = [&prefix, self.host.as_bytes(), &port].concat();
            bytes.starts_with(&address).then_some(address.len())
        })
    }
}

/// Redirects clients to the proxy: replaces the ports of known brokers in a response. The port has a fixed
/// size, so nothing else in the frame changes. Returns the number of replaced ports.
pub fn redirect(frame: &mut [u8], detours: &[Detour]) -> usize {
    let (mut at, mut replaced) = (0, 0);
    while let Some(rest) = frame.get(at..).filter(|rest| !rest.is_empty()) {
        let found = detours.iter().find_map(|detour| Some((detour.address_length(rest)?, detour.proxy_port)));
        let Some((length, proxy_port)) = found else {
            at += 1;
            continue;
        };
        at += length;
        if let Some(port) = frame.get_mut(at - 4..at) {
            port.copy_from_slice(&i32::from(proxy_port).to_be_bytes());
            replaced += 1;
        }
    }
    replaced
}

#[cfg(test)]
mod tests {
    use super::*;

    fn detour(host: &str, port: u16, proxy_port: u16) -> Detour {
        Detour { host: host.to_owned(), port, proxy_port }
    }

    fn classic(host: &str, port: i32) -> Vec<u8> {
        let length = u16::try_from(host.len()).unwrap().to_be_bytes();
        [&length[..], host.as_bytes(), &port.to_be_bytes()].concat()
    }

    fn compact(host: &str, port: i32) -> Vec<u8> {
        let length = [u8::try_from(host.len() + 1).unwrap()];
        [&length[..], host.as_bytes(), &port.to_be_bytes()].concat()
    }

    #[test]
    fn only_the_ports_of_known_brokers_change() {
        let detours = [detour("127.0.0.1", 9092, 40_001), detour("localhost", 9093, 40_002)];
        for write in [classic, compact] {
            let frame = |a: i32, b: i32| {
                let others = write("127.0.0.1", 9094);
                [&[0, 1, 2][..], &write("127.0.0.1", a), &others, &write("localhost", b), &[9]].concat()
            };
            let mut patched = frame(9092, 9093);
            assert_eq!(redirect(&mut patched, &detours), 2);
            assert_eq!(patched, frame(40_001, 40_002));
        }
    }

    #[test]
    fn a_host_without_its_length_is_not_an_address() {
        let mut frame = [&[7, 7][..], b"127.0.0.1", &9092_i32.to_be_bytes()].concat();
        assert_eq!(redirect(&mut frame, &[detour("127.0.0.1", 9092, 40_001)]), 0);
        assert_eq!(redirect(&mut [], &[detour("127.0.0.1", 9092, 40_001)]), 0);
    }

    #[test]
    fn frames_are_read_completely_or_not_at_all() {
        let request_frame = [0, 0, 0, 8, 0, 3, 0, 12, 0, 0, 1, 2];
        let mut stream = &[&request_frame[..], &[0, 0, 0, 9, 1]].concat()[..];
        let frame = read(&mut stream).unwrap();
        assert_eq!(frame, request_frame);
        assert_eq!(request(&frame), Some((METADATA, 258)));
        assert_eq!(response(&[0, 0, 0, 4, 0, 0, 0, 5]), Some(5));
        assert!(read(&mut stream).is_err());
        assert!(read(&mut &[0xff; 8][..]).is_err(), "a negative length");
    }
}
