//! The versions of the formats that are text.

/// The version that this build reads and writes.
const VERSION: u32 = 1;

/// The version of a text like `v2;…`, if it is a later one than this build reads.
#[must_use]
pub fn later_version(text: &str) -> Option<u32> {
    let (number, _) = text.strip_prefix('v')?.split_once(';')?;
    number.parse().ok().filter(|version| *version > VERSION)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_later_version_is_one() {
        assert_eq!(later_version("v2;s=0;tx=a"), Some(2));
        assert_eq!(later_version("v10;"), Some(10));
        for text in ["", "v", "v1;s=0;tx=a", "v0;", "v2", "v-2;", "vx;", "2;", "version;"] {
            assert_eq!(later_version(text), None, "{text:?}");
        }
    }
}
