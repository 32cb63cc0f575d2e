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
use crate::dedupe::Identity;
use crate::ports::Store;
use crate::store::Binding;

/// The 16 bytes of an identity, hashed as the other libraries hash an array of bytes: without its length.
struct Item<'a>(&'a Identity);

impl Hash for Item<'_> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write(&self.0.0);
    }
}

/// What a filter has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PortableFilter {
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
) -> Result<PortableFilter, StateError> {
    let windows = counted(store, binding, bar)?;
    let ids: u64 = windows.iter().map(|window| window.stored.ids()).sum();
    bar.reset();
    bar.set_length(ids);
    let filter = BloomFilterBuilder::with_accuracy(ids.max(1), rate).build();
    let mut filter =
        filter.map_err(|error| StateError::file(to, &format!("cannot hold {ids} ids: {error}")))?;
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
    Ok(PortableFilter { ids, bytes: bytes.len() as u64 })
}

/// Whether a file with a filter may contain an identity. False means that it does not.
pub fn may_contain(file: &Path, identity: &Identity) -> Result<bool, StateError> {
    let unread = |error| StateError::io(file, "be read", &error);
    let unusable =
        || StateError::file(file, "is not a filter of dedupd state filter, or is damaged; write it again");
    if !std::fs::metadata(file).map_err(unread)?.is_file() {
        return Err(unusable());
    }
    let bytes = std::fs::read(file).map_err(unread)?;
    let filter = BloomFilter::deserialize(&bytes).map_err(|_| unusable())?;
    Ok(filter.contains(&Item(identity)))
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
        let found: Vec<_> =
            (1..=8).filter(|number| may_contain(&file, &identity(*number)).unwrap()).collect();
        assert_eq!(found, [1, 2, 3]);
        for damaged in [&java[..5], b"not a filter at all, but longer than a header of one"] {
            std::fs::write(&file, damaged).unwrap();
            assert!(may_contain(&file, &identity(1)).unwrap_err().to_string().contains("is not a filter"));
        }
    }
}
