//! The thread that generates tokens, and the clients that receive them.
#![expect(
    unsafe_code,
    reason = "librdkafka takes tokens by foreign functions, and the Rust client exposes them only to callbacks"
)]

use std::collections::BTreeMap;
use std::ffi::{CStr, CString};
use std::sync::{Arc, Condvar, LazyLock, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rdkafka::bindings as sys;
use rdkafka::types::RDKafka;

use crate::msk_iam::{self, Token};

/// The next attempt after a failure, and how often the clock is compared with the lifetime of the token: a suspended machine
/// does not count the time.
const INTERVAL: Duration = Duration::from_secs(10);
/// The broker takes the principal from the token.
const PRINCIPAL: &CStr = c"";

/// The refreshers by region. Each has one thread, which never ends.
static REFRESHERS: LazyLock<Mutex<BTreeMap<String, Arc<Refresher>>>> = LazyLock::new(Mutex::default);

/// A client of librdkafka.
struct Handle(*mut RDKafka);

// SAFETY: the functions of librdkafka that are called with it can be called from any thread.
unsafe impl Send for Handle {}

#[derive(Default)]
struct State {
    clients: BTreeMap<u64, Handle>,
    next: u64,
    latest: Option<Result<Token, String>>,
}

#[derive(Default)]
struct Refresher {
    state: Mutex<State>,
    /// Never notified: the thread waits on it without the lock.
    timer: Condvar,
}

/// The right of the thread to use a client. It must be dropped before the client.
pub struct Registration {
    refresher: Arc<Refresher>,
    id: u64,
}

impl Drop for Registration {
    fn drop(&mut self) {
        self.refresher.lock().clients.remove(&self.id);
    }
}

/// Gives the tokens of a region to a client, until the registration is dropped.
pub fn register(region: &str, client: *mut RDKafka) -> Registration {
    let refresher = Arc::clone(
        REFRESHERS.lock().unwrap_or_else(PoisonError::into_inner).entry(region.to_owned()).or_insert_with(
            || {
                let refresher = Arc::<Refresher>::default();
                let (thread, region) = (Arc::clone(&refresher), region.to_owned());
                thread::spawn(move || thread.run(&region));
                refresher
            },
        ),
    );
    let mut state = refresher.lock();
    let client = Handle(client);
    if let Some(latest) = &state.latest {
        give(&client, latest);
    }
    let id = state.next;
    state.next += 1;
    state.clients.insert(id, client);
    drop(state);
    Registration { refresher, id }
}

impl Refresher {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Generates tokens until the process ends.
    fn run(&self, region: &str) {
        loop {
            let generated = msk_iam::generate(region);
            match &generated {
                Ok(token) => tracing::debug!(region, expires_ms = token.expires_ms, "token generated"),
                Err(error) => tracing::warn!(region, "{error}; retrying"),
            }
            let refresh_ms = generated.as_ref().ok().map(|token| refresh_at(now_ms(), token.expires_ms));
            let mut state = self.lock();
            state.clients.values().for_each(|client| give(client, &generated));
            state.latest = Some(generated);
            loop {
                state = self.timer.wait_timeout(state, INTERVAL).unwrap_or_else(PoisonError::into_inner).0;
                if refresh_ms.is_none_or(|at| now_ms() >= at) {
                    break;
                }
            }
        }
    }
}

/// When a token is replaced, in epoch milliseconds: after 80 % of its lifetime, as librdkafka does.
fn refresh_at(now_ms: i64, expires_ms: i64) -> i64 {
    now_ms + (expires_ms - now_ms).max(0) / 5 * 4
}

#[expect(clippy::disallowed_methods, reason = "tokens expire by the wall clock")]
fn now_ms() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
}

/// Gives a token, or the reason why there is none, to a client.
fn give(client: &Handle, token: &Result<Token, String>) {
    let mut text = [0; 512];
    let refused = match token {
        Ok(token) => {
            let Ok(value) = CString::new(token.text.as_str()) else { return };
            // SAFETY: the client is alive, because its registration is; the texts outlive the call.
            let code = unsafe {
                sys::rd_kafka_oauthbearer_set_token(
                    client.0,
                    value.as_ptr(),
                    token.expires_ms,
                    PRINCIPAL.as_ptr(),
                    std::ptr::null_mut(),
                    0,
                    text.as_mut_ptr(),
                    text.len(),
                )
            };
            code != sys::rd_kafka_resp_err_t::RD_KAFKA_RESP_ERR_NO_ERROR
        }
        Err(reason) => {
            let Ok(reason) = CString::new(reason.as_str()) else { return };
            // SAFETY: as above.
            unsafe { sys::rd_kafka_oauthbearer_set_token_failure(client.0, reason.as_ptr()) };
            false
        }
    };
    if refused {
        // SAFETY: librdkafka has written a terminated text.
        let reason = unsafe { CStr::from_ptr(text.as_ptr()) };
        tracing::warn!(reason = %reason.to_string_lossy(), "a client does not accept the token");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_replaced_before_it_expires() {
        assert_eq!(refresh_at(1_000, 901_000), 721_000);
        assert_eq!(refresh_at(1_000, 500), 1_000);
    }
}
