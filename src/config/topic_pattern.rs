//! A regular expression for names of topics.
//!
//! The Kafka client compiles them with these functions of the C library, as extended expressions of POSIX. Others accept other
//! expressions, and would reject some that the client accepts.
#![expect(unsafe_code, reason = "regular expressions of the C library")]

use std::ffi::{CStr, CString, c_char, c_int};
use std::mem::MaybeUninit;
use std::ptr;

/// A compiled expression. It stays at its address: POSIX does not permit to move it.
pub struct TopicPattern(Box<libc::regex_t>);

impl TopicPattern {
    /// Compiles an expression. The error is the predicate of a sentence.
    pub fn parse(text: &str) -> Result<Self, String> {
        let text = CString::new(text).map_err(|_| "contains a zero byte".to_owned())?;
        let mut compiled = Box::new(MaybeUninit::<libc::regex_t>::zeroed());
        let flags = libc::REG_EXTENDED | libc::REG_NOSUB;
        // SAFETY: the text is a C string, and the other pointer is to memory for the result.
        let code = unsafe { libc::regcomp(compiled.as_mut_ptr(), text.as_ptr(), flags) };
        if code != 0 {
            return Err(format!("is no regular expression ({})", reason(code, &compiled)));
        }
        // SAFETY: the call has succeeded, so it has filled the memory.
        Ok(Self(unsafe { compiled.assume_init() }))
    }

    /// Whether a part of the name matches.
    pub fn matches(&self, name: &str) -> bool {
        let Ok(name) = CString::new(name) else { return false };
        // SAFETY: the expression is compiled, the name is a C string, and no places of matches are requested.
        unsafe { libc::regexec(&raw const *self.0, name.as_ptr(), 0, ptr::null_mut(), 0) == 0 }
    }
}

impl Drop for TopicPattern {
    fn drop(&mut self) {
        // SAFETY: the expression is compiled, and not used any more.
        unsafe { libc::regfree(&raw mut *self.0) }
    }
}

/// The text of an error of `regcomp`.
fn reason(code: c_int, compiled: &MaybeUninit<libc::regex_t>) -> String {
    let mut text: [c_char; 128] = [0; 128];
    // SAFETY: the expression is the one of the failed call, and the text is cut to the length of the buffer, with its zero byte.
    unsafe {
        libc::regerror(code, compiled.as_ptr(), text.as_mut_ptr(), text.len());
        CStr::from_ptr(text.as_ptr()).to_string_lossy().into_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn expressions_that_the_client_rejects_are_rejected() {
        for good in ["^", "^shop\\..*", "^(a|b)$", "^[]a]+", "^a{1,2}$", "^[[:alpha:]]", "^b/.*"] {
            assert_eq!(TopicPattern::parse(good).err(), None, "{good}");
        }
        for bad in ["^(", "^(a|b", "^[a", "^a\\", "^a{2,1}", "^[[:none:]]", "^a\0"] {
            assert!(TopicPattern::parse(bad).is_err(), "{bad} was accepted");
        }
        let Err(why) = TopicPattern::parse("^(") else { panic!("accepted") };
        assert!(why.starts_with("is no regular expression (") && why.len() > 30, "{why}");
    }

    #[test]
    fn an_expression_matches_a_part_of_a_name() {
        let pattern = TopicPattern::parse("^shop\\.").unwrap();
        assert!(pattern.matches("shop.orders") && !pattern.matches("shops") && !pattern.matches("a.shop.b"));
        assert!(!pattern.matches("shop\0.a"));
    }
}
