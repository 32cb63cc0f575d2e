//! A portable filter of the identities in local state: a Bloom filter in the format of Apache `DataSketches`, which has libraries for Java and C++.

use std::hash::{Hash, Hasher};
use std::io::Write as _;
use std::path::Path;

use datasketches::bloom::{BloomFilter, BloomFilterBuilder};
use indicatif::ProgressBar;

use super::error::StateError;
use super::inspect::counted;
use super::transfer::put_in_place;
use super::whole::for_each_unsealed;
use crate::dedupe::{Fingerprint, Identity};
use crate::ports::Store;
use crate::store::Binding;

/// The seed of the hashes is this and the fingerprint of the identity rule for the records of no named kind: the file has no other place for
/// what its libraries do not know. "dedu" in ASCII.
const SEEDS: u64 = 0x6465_6475 << u32::BITS;

/// The 16 bytes of an identity, hashed as the other libraries hash an array of bytes: without its length.
struct Item<'a>(&'a Identity);

impl Hash for Item<'_> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write(&self.0.0);
    }
}

/// What was written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WrittenFilter {
    /// Number of identities.
    pub ids: u64,
    /// Size of the file.
    pub bytes: u64,
}

/// Writes a filter of all owners in the store to a file that must not exist. Ids in filters without owners are missing. `rate` is the expected
/// share of false positives. `bar` counts windows, then ids.
pub fn write_filter(
    store: &impl Store,
    binding: &Binding,
    to: &Path,
    rate: f64,
    bar: &ProgressBar,
) -> Result<WrittenFilter, StateError> {
    let windows = counted(store, binding, bar)?;
    let ids: u64 = windows.iter().map(|window| window.stored.ids()).sum();
    bar.reset();
    bar.set_length(ids);
    let filter = BloomFilterBuilder::with_accuracy(ids.max(1), rate);
    let filter = match binding.rules.first() {
        Some(rule) => filter.seed(SEEDS | u64::from(rule.number())),
        None => filter,
    };
    let mut filter =
        filter.build().map_err(|error| StateError::file(to, &format!("cannot hold {ids} ids: {error}")))?;
    for window in &windows {
        store.scan_sealed(&[window.id], &mut |_, identity, _| {
            filter.insert(Item(&identity));
            bar.inc(1);
            Ok(())
        })?;
        for_each_unsealed(store, window.id, |_, owners| {
            owners.iter().filter_map(|owner| owner.identity).for_each(|identity| {
                filter.insert(Item(&identity));
                bar.inc(1);
            });
            Ok(())
        })?;
    }
    let bytes = filter.serialize();
    put_in_place(to, |file| {
        let written = file.write_all(&bytes).and_then(|()| file.sync_all());
        written.map_err(|error| StateError::io(to, "be written", &error))
    })?;
    Ok(WrittenFilter { ids, bytes: bytes.len() as u64 })
}

/// A filter in a file.
pub struct PortableFilter(BloomFilter);

impl PortableFilter {
    /// Reads a file.
    pub fn read(file: &Path) -> Result<Self, StateError> {
        let unread = |error| StateError::io(file, "be read", &error);
        let unusable = || {
            StateError::file(file, "is not a filter of dedupd state filter, or is damaged; write it again")
        };
        if !std::fs::metadata(file).map_err(unread)?.is_file() {
            return Err(unusable());
        }
        let bytes = std::fs::read(file).map_err(unread)?;
        BloomFilter::deserialize(&bytes).map(Self).map_err(|_| unusable())
    }

    /// The rule of its identities; `None` if it was written without one.
    pub fn rule(&self) -> Option<Fingerprint> {
        let number = self.0.seed() ^ SEEDS;
        u32::try_from(number).ok().map(Fingerprint::numbered)
    }

    /// Whether it may contain an identity. False means that it does not.
    pub fn may_contain(&self, identity: &Identity) -> bool {
        self.0.contains(&Item(identity))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Java's library (datasketches-java 6.1.1, `BloomFilter.update(byte[])`) made this filter of the identities 1, 2 and 3, of 128 bits with 3 hashes
    /// and seed 9001.
    #[test]
    fn an_identity_is_an_array_of_bytes_to_other_libraries() {
        let identity = |number: u128| Identity(number.to_be_bytes());
        let mut ours = BloomFilterBuilder::with_size(128, 3).seed(9001).build().unwrap();
        (1..=3).for_each(|number| ours.insert(Item(&identity(number))));
        let java = include_bytes!("filter/java.bin");
        assert_eq!(BloomFilter::deserialize(java).unwrap(), ours);
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("java.bin");
        std::fs::write(&file, java).unwrap();
        let filter = PortableFilter::read(&file).unwrap();
        let found: Vec<_> = (1..=8).filter(|number| filter.may_contain(&identity(*number))).collect();
        assert_eq!((found, filter.rule()), (vec![1, 2, 3], None));
        for damaged in [&java[..5], b"not a filter at all, but longer than a header of one"] {
            std::fs::write(&file, damaged).unwrap();
            let refused = PortableFilter::read(&file).map(drop).unwrap_err();
            assert!(refused.to_string().contains("is not a filter"), "{refused}");
        }
    }
}
