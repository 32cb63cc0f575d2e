//! Why a broker's certificate is not accepted. The client's own error does not include the reason.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::ptr;
use std::time::Duration;

use rdkafka::client::{Client, DefaultClientContext};
use rdkafka::config::{ClientConfig, RDKafkaLogLevel};
use rdkafka::types::RDKafkaType;
use rdkafka::{ClientContext, bindings as sys};

use super::millis;
use crate::clock;

/// The facility under which librdkafka logs the result of [`verify_callback`].
const FACILITY: &CStr = c"SSLCERTVRFY";

/// Opens an extra connection to find out why a broker's certificate is not accepted: its subject, its issuer and what is
/// wrong with it. `None` when no certificate was rejected within `wait`.
pub fn rejection(config: &ClientConfig, wait: Duration) -> Option<String> {
    let mut config = config.clone();
    // The reason is reported as a log line.
    config.set_log_level(RDKafkaLogLevel::Error);
    let native = config.create_native_config().ok()?;
    // SAFETY: the configuration is alive, and the function has the required type.
    unsafe { sys::rd_kafka_conf_set_ssl_cert_verify_cb(native.ptr(), Some(verify_callback)) };
    let kind = RDKafkaType::RD_KAFKA_PRODUCER;
    let client = Client::new(&config, native, kind, DefaultClientContext).ok()?;
    let deadline = clock::monotonic() + wait;
    while clock::monotonic() < deadline {
        if let Some(reason) = next_rejection(&client, Duration::from_millis(100)) {
            return Some(reason);
        }
    }
    None
}

/// The reason for the rejection, if that is the next event within `wait`.
fn next_rejection<C: ClientContext>(client: &Client<C>, wait: Duration) -> Option<String> {
    // SAFETY: queue and event are destroyed here, after the last use of the texts, which the event owns.
    unsafe {
        let queue = sys::rd_kafka_queue_get_main(client.native_ptr());
        let event = sys::rd_kafka_queue_poll(queue, millis(wait));
        sys::rd_kafka_queue_destroy(queue);
        if event.is_null() {
            return None;
        }
        let (mut facility, mut text, mut level) = (ptr::null(), ptr::null(), 0);
        let log = sys::rd_kafka_event_type(event) == sys::RD_KAFKA_EVENT_LOG
            && sys::rd_kafka_event_log(event, &raw mut facility, &raw mut text, &raw mut level) == 0
            && !facility.is_null()
            && !text.is_null();
        let reason = (log && CStr::from_ptr(facility) == FACILITY)
            .then(|| CStr::from_ptr(text).to_string_lossy().into_owned());
        sys::rd_kafka_event_destroy(event);
        reason
    }
}

/// Verifies nothing itself: returns OpenSSL's result, with a text that explains the error.
unsafe extern "C" fn verify_callback(
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
    // SAFETY: librdkafka passes a pointer to its error number, and a buffer of `text_size` bytes.
    unsafe {
        if error.is_null() || *error == 0 {
            return 1;
        }
        let explanation = meaning(*error);
        let length = explanation.count_bytes().min(text_size.saturating_sub(1));
        if !text.is_null() && text_size > 0 {
            ptr::copy_nonoverlapping(explanation.as_ptr(), text, length);
            *text.add(length) = 0;
        }
        0
    }
}

/// Explanation and action for the errors of OpenSSL's `x509_vfy.h` that an operator can resolve.
fn meaning(error: c_int) -> &'static CStr {
    match error {
        9 => c"it is not valid yet; check the clocks, or have it reissued",
        10 => c"it has expired; have it renewed",
        62 | 64 => {
            c"it is not for the host name of the connection; use a name from the certificate in kafka.bootstrap_servers \
               and in the broker's advertised.listeners, or have it issued with that name"
        }
        18..=21 => {
            c"its issuer is not among the trusted ones; set ssl.ca.location to the file with the certificate of the \
               authority that issued it"
        }
        23 => c"it has been revoked; have another one issued",
        _ => c"OpenSSL does not accept it; see openssl s_client -connect HOST:PORT -CAfile FILE",
    }
}
