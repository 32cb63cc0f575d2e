//! The headers of a record, with their names as bytes. A producer may send any bytes, and the safe functions of the Rust
//! client panic on a name that is not UTF-8.
#![expect(unsafe_code, reason = "foreign functions; each block states what it relies on")]

use std::ffi::CStr;
use std::ptr;

use rdkafka::bindings as sys;
use rdkafka::error::IsError;
use rdkafka::message::{BorrowedMessage, Headers, Message};

use super::record::Header;

/// All headers in order. A name ends before its first zero byte, because the C API returns no length.
pub(super) fn headers<'a>(message: &'a BorrowedMessage<'_>) -> Vec<Header<'a>> {
    let count = message.headers().map_or(0, Headers::count);
    (0..count).map_while(|index| header(message, index)).collect()
}

fn header<'a>(message: &'a BorrowedMessage<'_>, index: usize) -> Option<Header<'a>> {
    let mut list = ptr::null_mut();
    let (mut name, mut value, mut length) = (ptr::null(), ptr::null(), 0);
    // SAFETY: the message is alive for `'a` and owns the list, which owns names and values. Each pointer is used only after
    // the call that sets it returned no error. A name is a C string, and a value that is not null has `length` bytes.
    unsafe {
        if sys::rd_kafka_message_headers(message.ptr(), &raw mut list).is_error() {
            return None;
        }
        if sys::rd_kafka_header_get_all(list, index, &raw mut name, &raw mut value, &raw mut length)
            .is_error()
        {
            return None;
        }
        let value = (!value.is_null()).then(|| std::slice::from_raw_parts(value.cast::<u8>(), length));
        Some((CStr::from_ptr(name).to_bytes(), value))
    }
}
