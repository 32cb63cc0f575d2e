//! The commands and filters without owners: a real store whose first slice has become a filter.

use std::fs;

use dedupd::dedupe::{FilterBits, WindowId};
use dedupd::ports::{FilterJob, SealedLookup, SealedPlaces, Sealing, StoreError, ToForget};

use super::sealed::{
    CUT, END, FORGOTTEN, Instance, Model, SLICE_ENDS, arrival, imported, in_blocks, in_each_state,
    open_shared,
};
use super::*;

/// Makes a filter of the first slice: both partitions together, or one after the other.
fn filter(instance: &Instance) -> SledStore {
    let mut store = open_shared(instance.dir.path(), instance.shares_slices);
    let windows = END.map(|(partition, _)| WindowId::from(partition));
    let jobs =
        if instance.shares_slices { vec![windows.to_vec()] } else { windows.map(|of| vec![of]).to_vec() };
    for windows in jobs {
        let (bits, span_ms) = (FilterBits::at_rate(1e-9), 1_000_000);
        let job = FilterJob { windows, before_ms: arrival(SLICE_ENDS[0]), span_ms, bits };
        assert!(!store.begin_filter(&FilterJob { span_ms: 10_000_000, ..job.clone() }).unwrap(), "too short");
        assert!(
            !store.begin_filter(&FilterJob { before_ms: arrival(2_000), ..job.clone() }).unwrap(),
            "too new"
        );
        assert!(store.begin_filter(&job).unwrap());
        while store.poll_seal().unwrap() != Sealing::Idle {
            std::thread::sleep(Duration::from_millis(1));
        }
        assert!(!store.begin_filter(&job).unwrap(), "there is no second slice that is old enough");
    }
    store
}

fn places(store: &SledStore, partition: u32, identity: Identity) -> Result<SealedPlaces, StoreError> {
    store.sealed_places(&SealedLookup::new(partition.into(), store.positions().key(identity)))
}

#[test]
fn a_filter_has_the_ids_of_its_slices_without_owners_and_the_rest_is_as_before() {
    in_each_state(|instance| {
        filter(instance).close().unwrap();
        let store = open_shared(instance.dir.path(), instance.shares_slices);
        for ((partition, offset), identity) in &instance.model {
            let places = places(&store, *partition, *identity).unwrap();
            let in_filter = *offset < SLICE_ENDS[0];
            assert_eq!(places.filters.len(), usize::from(in_filter), "{partition}@{offset}");
            let is_sealed = !in_filter && *offset < if *partition == 0 { SLICE_ENDS[1] } else { CUT };
            assert_eq!(places.owners.len(), usize::from(is_sealed), "{partition}@{offset}");
        }
        for identity in [id(0, FORGOTTEN[0], Hasher::Xxh3), id(1, 5, Hasher::Xxh3)] {
            assert_eq!(places(&store, 0, identity), Ok(SealedPlaces::default()));
        }
        for (partition, end) in END.map(|(partition, _)| partition).into_iter().zip([SLICE_ENDS[1], CUT]) {
            let ranges: Vec<_> = store.sealed(partition.into()).iter().map(|of| of.first..of.next).collect();
            assert_eq!(ranges, [0..SLICE_ENDS[0], SLICE_ENDS[0]..end]);
        }
        let filters = store.filters(0.into());
        assert_eq!(filters.len(), 1);
        assert_eq!(filters[0].time_ms, (arrival(0), arrival(SLICE_ENDS[0] - 1)));
        store.close().unwrap();
    });
}

#[test]
fn an_id_leaves_a_filter_when_it_is_forgotten_and_all_of_it_when_owners_are_undone() {
    in_each_state(|instance| {
        let mut store = filter(instance);
        let (gone, kept) = (id(2, 100, Hasher::Xxh3), id(2, 103, Hasher::Xxh3));
        let is_known = |store: &SledStore, identity| !places(store, 2, identity).unwrap().filters.is_empty();
        let head = store.head(2.into()).unwrap().unwrap();
        let identities = [gone, id(2, 1_003_500, Hasher::Xxh3)];
        // An owner is not known, and a record that was forgotten earlier does not affect later ones.
        let forgotten = |before| ToForget { owners: &[u64::MAX], identities: &identities, before };
        store.forget(2.into(), forgotten(0), head).unwrap();
        assert!(is_known(&store, gone));
        store.forget(2.into(), forgotten(4_000), head).unwrap();
        assert!(!is_known(&store, gone) && is_known(&store, kept));
        store.close().unwrap();
        let mut store = open_shared(instance.dir.path(), instance.shares_slices);
        assert!(!is_known(&store, gone) && is_known(&store, kept), "after a restart");
        store.truncate(2.into(), SLICE_ENDS[0]).unwrap();
        assert!(is_known(&store, kept));
        let in_filter = Err(StoreError::InFilter(2.into()));
        assert_eq!(store.truncate(2.into(), 2_000), in_filter);
        store.close().unwrap();
        let mut store = open_shared(instance.dir.path(), instance.shares_slices);
        assert_eq!(store.truncate(2.into(), 2_000), in_filter, "after a restart");
        assert!(is_known(&store, kept));
        store.clear_all(&[0.into(), 2.into()]).unwrap();
        assert!(!is_known(&store, kept) && !store.has_sealed());
        assert_eq!([0, 2].map(|id: PartitionId| store.head(id.into())), [Ok(None), Ok(None)]);
        store.close().unwrap();
        let store = open_shared(instance.dir.path(), instance.shares_slices);
        assert!(!is_known(&store, kept) && !store.has_sealed(), "after a restart");
        store.close().unwrap();
    });
}

#[test]
fn a_filter_is_removed_with_its_last_owners() {
    in_each_state(|instance| {
        let mut store = filter(instance);
        let identity = id(0, 100, Hasher::Xxh3);
        let is_known = |store: &SledStore| !places(store, 0, identity).unwrap().filters.is_empty();
        store.expire(0.into(), SLICE_ENDS[0] - 1, 0).unwrap();
        store.expire(2.into(), SLICE_ENDS[0] - 1, 0).unwrap();
        assert!(is_known(&store));
        store.expire(0.into(), SLICE_ENDS[0], 0).unwrap();
        assert_eq!(is_known(&store), instance.shares_slices);
        store.clear(2.into()).unwrap();
        assert!(!is_known(&store) && store.filters(2.into()).is_empty());
        assert!(!store.sealed(0.into()).is_empty(), "the second slice stays");
        store.close().unwrap();
    });
}

#[test]
fn commands_show_filters_and_an_export_reports_what_it_has_not() {
    in_each_state(|instance| {
        filter(instance).close().unwrap();
        let (dir, in_filters) = (instance.dir.path(), SLICE_ENDS[0]);
        let found = dedupd(dir, &["inspect", "--id", "order-0-100"]);
        assert!(
            found.code == 1 && found.out.contains("in the filter of 2023-11-14T22:13:20.000Z"),
            "{found:?}"
        );
        assert!(found.out.contains("a record with it counts as probably seen"), "{found:?}");
        let text = dedupd(dir, &["inspect"]).out;
        assert!(text.contains("filters without owners of partition 0") && text.contains("e-1"), "{text}");
        let file = dir.with_extension("export");
        let exported = dedupd(dir, &["export", "--to", file.to_str().unwrap()]);
        let missing = instance.model.keys().filter(|(_, at)| *at < in_filters).count();
        assert!(exported.out.contains("which are in filters only"), "{exported:?}, {missing} ids");
        let other = tempfile::tempdir().unwrap();
        imported(&file, other.path());
        let store = open_shared(other.path(), instance.shares_slices);
        let rest: Model =
            instance.model.clone().into_iter().filter(|((_, at), _)| *at >= in_filters).collect();
        assert!(in_blocks(&store) == rest, "{} owners of {}", in_blocks(&store).len(), rest.len());
        for (partition, _) in END {
            assert_eq!(store.missing_ms(partition.into()), Ok(arrival(in_filters - 1) + 1));
        }
        store.close().unwrap();
        fs::remove_file(file).unwrap();
    });
}
