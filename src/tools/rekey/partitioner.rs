//! Which partition of the target topic an id belongs to.

use crate::config::PartitionBy;

/// The partition of these bytes in a topic with `partitions` partitions, 0 in a topic without any.
pub fn partition_of(by: PartitionBy, bytes: &[u8], partitions: u32) -> u32 {
    let hash = match by {
        // The Java client clears the sign bit.
        PartitionBy::Murmur2 => murmur2(bytes) & 0x7fff_ffff,
        PartitionBy::Consistent => crc32fast::hash(bytes),
    };
    hash.checked_rem(partitions).unwrap_or(0)
}

/// `org.apache.kafka.common.utils.Utils.murmur2`.
fn murmur2(bytes: &[u8]) -> u32 {
    const SEED: u32 = 0x9747_b28c;
    const M: u32 = 0x5bd1_e995;
    // Java's lengths have 32 bits.
    #[expect(clippy::cast_possible_truncation, reason = "a record is shorter than 2 GiB")]
    let mut hash = SEED ^ bytes.len() as u32;
    let (words, tail) = bytes.as_chunks::<4>();
    for word in words {
        let mut k = u32::from_le_bytes(*word).wrapping_mul(M);
        k ^= k >> 24;
        hash = hash.wrapping_mul(M) ^ k.wrapping_mul(M);
    }
    if !tail.is_empty() {
        for (place, byte) in tail.iter().enumerate() {
            hash ^= u32::from(*byte) << (8 * place);
        }
        hash = hash.wrapping_mul(M);
    }
    hash ^= hash >> 13;
    hash = hash.wrapping_mul(M);
    hash ^ (hash >> 15)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn murmur2_has_the_values_of_the_java_client() {
        // UtilsTest.testMurmur2 of Apache Kafka.
        for (text, hash) in [
            ("21", -973_932_308),
            ("foobar", -790_332_482),
            ("a-little-bit-long-string", -985_981_536),
            ("a-little-bit-longer-string", -1_486_304_829),
            ("lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58_897_971),
            ("abc", 479_470_107_i32),
        ] {
            assert_eq!(murmur2(text.as_bytes()).cast_signed(), hash, "{text}");
        }
        // unittest_murmur2 of librdkafka, computed with the Java client.
        for (text, hash) in [
            ("kafka", 0xd067_cf64),
            ("giberish123456789", 0x8f55_2b0c),
            ("1234", 0x9fc9_7b14),
            ("234", 0xe7c0_09ca),
            ("34", 0x8739_30da),
            ("4", 0x5a4b_5ca1),
            ("PreAmbleWillBeRemoved,ThePrePartThatIs", 0x7842_4f1c),
            ("reAmbleWillBeRemoved,ThePrePartThatIs", 0x4a62_b377),
            ("", 0x106e_08d9),
        ] {
            assert_eq!(murmur2(text.as_bytes()), hash, "{text}");
        }
    }

    #[test]
    fn the_partition_is_the_hash_without_its_sign_modulo_the_partitions() {
        let murmur2 =
            |text: &str, partitions| partition_of(PartitionBy::Murmur2, text.as_bytes(), partitions);
        // 0xd067cf64 and 0x7fffffff is 0x5067cf64 = 1,348,980,580.
        assert_eq!((murmur2("kafka", 12), murmur2("kafka", 1_000)), (4, 580));
        assert_eq!((murmur2("kafka", 1), murmur2("kafka", 0)), (0, 0));
    }

    #[test]
    fn consistent_is_the_crc32_of_zlib_modulo_the_partitions() {
        let crc32 =
            |text: &str, partitions| partition_of(PartitionBy::Consistent, text.as_bytes(), partitions);
        // The check value of CRC-32/ISO-HDLC is 0xcbf43926 = 3,421,780,262: above the range of a signed number.
        assert_eq!((crc32("123456789", 1_000), crc32("abc", 1_000)), (262, 578));
        assert_eq!(crc32("", 7), 0);
    }
}
