//! Why a broker's certificate is not accepted. The client's own error only says that it is not.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::ptr;
use std::time::Duration;

use rdkafka::client::{Client, DefaultClientContext};
use rdkafka::config::{ClientConfig, RDKafkaLogLevel};
use rdkafka::types::RDKafkaType;
use rdkafka::{ClientContext, bindings as sys};

use crate::clock;

/// What the log of librdkafka calls the outcome of [`explain`].
const FACILITY: &CStr = c"SSLCERTVRFY";

/// Connects once more, only to learn why a broker's certificate is not accepted: whose it is, who issued
/// it, what is wrong with it. `None` when none was refused within `wait`.
pub fn judged(config: &ClientConfig, wait: Duration) -> Option<String> {
    let mut config = config.clone();
    // The verdict is a line of the log.
    config.set_log_level(RDKafkaLogLevel::Error);
    let native = config.create_native_config().ok()?;
    // SAFETY: the configuration is alive, and the function is of the type that it asks for.
    unsafe { sys::rd_kafka_conf_set_ssl_cert_verify_cb(native.ptr(), Some(explain)) };
    let kind = RDKafkaType::RD_KAFKA_PRODUCER;
    let client = Client::new(&config, native, kind, DefaultClientContext).ok()?;
    let deadline = clock::monotonic() + wait;
    while clock::monotonic() < deadline {
        if let Some(verdict) = logged(&client, Duration::from_millis(100)) {
            return Some(verdict);
        }
    }
    None
}

/// The verdict, if it is the next event within `wait`.
fn logged<C: ClientContext>(client: &Client<C>, wait: Duration) -> Option<String> {
    let wait_ms = i32::try_from(wait.as_millis()).unwrap_or(i32::MAX);
    // SAFETY: queue and event are destroyed here, after the last use of the texts, which belong to the event.
    unsafe {
        let queue = sys::rd_kafka_queue_get_main(client.native_ptr());
        let event = sys::rd_kafka_queue_poll(queue, wait_ms);
        sys::rd_kafka_queue_destroy(queue);
        if event.is_null() {
            return None;
        }
        let (mut facility, mut text, mut level) = (ptr::null(), ptr::null(), 0);
        let log = sys::rd_kafka_event_type(event) == sys::RD_KAFKA_EVENT_LOG
            && sys::rd_kafka_event_log(event, &raw mut facility, &raw mut text, &raw mut level) == 0
            && !facility.is_null()
            && !text.is_null();
        let verdict = (log && CStr::from_ptr(facility) == FACILITY)
            .then(|| CStr::from_ptr(text).to_string_lossy().into_owned());
        sys::rd_kafka_event_destroy(event);
        verdict
    }
}

/// Verifies nothing itself: agrees with OpenSSL, and says in words what it found.
unsafe extern "C" fn explain(
    _client: *mut sys::rd_kafka_t,
    _broker_name: *const c_char,
    _broker_id: i32,
    error: *mut c_int,
    _depth: c_int,
    _certificate: *const c_char,
    _size: usize,
    text: *mut c_char,
    text_size: usize,
    _opaque: *mut c_void,
) -> c_int {
    // SAFETY: librdkafka passes a number of its own, and room for a text of `text_size` bytes.
    unsafe {
        if error.is_null() || *error == 0 {
            return 1;
        }
        let words = meaning(*error);
        let length = words.count_bytes().min(text_size.saturating_sub(1));
        if !text.is_null() && text_size > 0 {
            ptr::copy_nonoverlapping(words.as_ptr(), text, length);
            *text.add(length) = 0;
        }
        0
    }
}

/// The numbers of OpenSSL's `x509_vfy.h` that an operator can do something about.
fn meaning(error: c_int) -> &'static CStr {
    match error {
        9 => c"it is not valid yet; look at the clocks, or have it issued anew",
        10 => c"it has expired; have it renewed",
        62 | 64 => {
            c"it is not for the host that was connected to; use a name that it has in kafka.bootstrap_servers and in the broker's advertised.listeners, or have it issued with that name"
        }
        18..=21 => {
            c"its issuer is not among the trusted ones; set ssl.ca.location to the file with the certificate of the authority that issued it"
        }
        23 => c"it has been revoked; have another one issued",
        _ => c"OpenSSL does not accept it; see openssl s_client -connect HOST:PORT -CAfile FILE",
    }
}
