//! An exported filter, queried by an implementation that is based on docs/state-format.md only.

use serde_json::Value;
use xxhash_rust::xxh3::xxh3_128_with_seed;

use super::*;

/// A filter as described in that document.
struct ForeignFilter {
    blocks: u64,
    draws: u64,
    seed: u64,
    bytes: Vec<u8>,
}

impl ForeignFilter {
    fn all_of(json: &Value) -> Vec<Self> {
        let number = |value: &Value| value.as_u64().unwrap();
        let seed = number(&json["position_seed"]);
        let one = |filter: &Value| Self {
            blocks: number(&filter["blocks"]),
            draws: number(&filter["draws"]),
            seed,
            bytes: decode_base64(filter["bits"].as_str().unwrap()),
        };
        json["filters"].as_array().unwrap().iter().map(one).collect()
    }

    fn contains_identity(&self, identity: [u8; 16]) -> bool {
        let h = xxh3_128_with_seed(&identity, self.seed);
        [h as u64, (h >> 64) as u64].into_iter().all(|position| self.all_set(position))
    }

    fn all_set(&self, position: u64) -> bool {
        let block = ((u128::from(position) * u128::from(self.blocks)) >> 64) as usize;
        let (mut state, mut w) = (position, 0);
        (0..self.draws).all(|draw| {
            if draw % 7 == 0 {
                state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
                w = mix(state);
            }
            let (word, bit) = ((w & 7) as usize, (w >> 3) & 63);
            w >>= 9;
            let at = block * 64 + word * 8;
            let word = u64::from_le_bytes(self.bytes[at..at + 8].try_into().unwrap());
            word >> bit & 1 == 1
        })
    }
}

fn mix(z: u64) -> u64 {
    let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

fn decode_base64(text: &str) -> Vec<u8> {
    let value = |sign: u8| match sign {
        b'A'..=b'Z' => sign - b'A',
        b'a'..=b'z' => sign - b'a' + 26,
        b'0'..=b'9' => sign - b'0' + 52,
        b'+' => 62,
        b'/' => 63,
        _ => panic!("{sign} in base64"),
    };
    let signs = text.trim_end_matches('=').bytes();
    let (mut bytes, mut bits, mut count) = (Vec::new(), 0u32, 0);
    for sign in signs {
        bits = bits << 6 | u32::from(value(sign));
        count += 6;
        if count >= 8 {
            count -= 8;
            bytes.push((bits >> count) as u8);
        }
    }
    bytes
}

/// The identity of a text as described in that document: XXH3-128, little endian.
fn foreign_identity(text: &str) -> [u8; 16] {
    xxh3_128_with_seed(text.as_bytes(), 0x6465_6475_7064_3101).to_le_bytes()
}

#[test]
fn an_implementation_of_the_document_finds_exactly_the_ids_of_the_slice() {
    let dir = filled();
    let output = dedupd(dir.path(), &["inspect", "--json"]);
    let inspection: Value = serde_json::from_str(&output.out).unwrap();
    let (mut checked, mut most) = (0, 0);
    for ((partition, seconds), shown) in FILLED.iter().zip(inspection["partitions"].as_array().unwrap()) {
        for slice in shown["slices"].as_array().unwrap() {
            let filters = exported(dir.path(), *partition, slice);
            most = most.max(filters.len());
            checked += check_ids(&filters, *partition, *seconds, slice);
        }
    }
    assert!(checked > 25_000, "{checked} ids checked");
    assert!(most > 1, "no slice has outgrown its first filter");
}

/// Exports a slice's filters; both forms of the slice's name must have the same result.
fn exported(dir: &Path, partition: PartitionId, slice: &Value) -> Vec<ForeignFilter> {
    let by_utc = format!("{partition}/{}", slice["start"].as_str().unwrap());
    let by_ms = format!("{partition}/{}", slice["start_ms"]);
    let output = dedupd(dir, &["export", "--filter", &by_utc]);
    assert_eq!(
        (output.code, &output.out),
        (0, &dedupd(dir, &["export", "--filter", &by_ms]).out),
        "{}",
        output.err
    );
    let json: Value = serde_json::from_str(&output.out).unwrap();
    assert_eq!((json["format"].as_u64(), &json["end_ms"]), (Some(1), &slice["end_ms"]));
    assert_eq!(json["position_seed"].as_u64(), Some(8_101_821_151_424_638_830), "as documented");
    let ids: u64 = json["filters"].as_array().unwrap().iter().map(|f| f["ids"].as_u64().unwrap()).sum();
    assert_eq!(Some(ids), slice["ids"].as_u64());
    let filters = ForeignFilter::all_of(&json);
    assert_eq!(filters.len() as u64, slice["filters"].as_u64().unwrap());
    assert!(filters.iter().all(|filter| filter.bytes.len() as u64 == filter.blocks * 64));
    filters
}

/// Checks that all ids of the slice are found and ids of other times are not. Returns how many were found.
fn check_ids(filters: &[ForeignFilter], partition: PartitionId, seconds: u64, slice: &Value) -> u64 {
    // A block belongs to the slice of its first time, so ids close to a border may be on either side of it.
    const MARGIN: i64 = 200;
    let second = |key: &str| (slice[key].as_i64().unwrap() - T).div_euclid(1_000);
    let (first, last) = (second("start_ms"), second("end_ms"));
    let mut found = 0;
    for number in 0..seconds {
        let identity = foreign_identity(&text(partition, number));
        let found_in_filter = filters.iter().any(|filter| filter.contains_identity(identity));
        let number = number.cast_signed();
        if (first + MARGIN..last - MARGIN).contains(&number) {
            assert!(found_in_filter, "{number} is missing from {slice}");
            found += 1;
        } else if !(first - MARGIN..last + MARGIN).contains(&number) {
            assert!(!found_in_filter, "{number} is in {slice}");
        }
    }
    found
}

#[test]
fn a_slice_that_does_not_exist_is_rejected_with_a_list_of_those_that_do() {
    let dir = filled();
    let output = dedupd(dir.path(), &["export", "--filter", "0/2001-01-01T00:00:00Z"]);
    assert!(output.code == 1 && output.err.contains("its slices start at 2023-11-"), "{output:?}");
    let output = dedupd(dir.path(), &["export", "--filter", "1/5"]);
    assert!(output.code == 1 && output.err.contains("no partition 1"), "{output:?}");
    let output = dedupd(dir.path(), &["export", "--filter", "0/noon"]);
    assert!(output.code == 2 && output.err.contains("is not a time"), "{output:?}");
    let output = dedupd_with(dir.path(), &["export", "--filter", "0/5"], &[("DEDUPD_WINDOW__BLOOM", "1h")]);
    assert!(output.code == 1 && output.err.contains("window.bloom"), "{output:?}");
}
