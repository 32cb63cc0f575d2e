//! The versions of the formats that are text.

/// The version that this build reads and writes.
const VERSION: u32 = 2;

/// The version of a text like `v3;…`, if it is another one than this build reads.
pub fn other_version(text: &str) -> Option<u32> {
    let (number, _) = text.strip_prefix('v')?.split_once(';')?;
    number.parse().ok().filter(|version| *version != VERSION)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_another_version_is_one() {
        for (text, version) in [("v3;s=0;tx=a", 3), ("v1;s=0;tx=a", 1), ("v10;", 10), ("v0;", 0)] {
            assert_eq!(other_version(text), Some(version), "{text:?}");
        }
        for text in ["", "v", "v2;s=0;tx=a", "v2", "v3", "v-1;", "vx;", "3;", "version;"] {
            assert_eq!(other_version(text), None, "{text:?}");
        }
    }
}
