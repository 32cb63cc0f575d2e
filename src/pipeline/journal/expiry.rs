//! Deletes stored owners that no window needs any more, while a journal is read: for a start, or for a standby copy.
//!
//! An owner that still counts for the next worker must stay, so only what every later worker has dropped too is deleted: by a clock
//! that no repair sets back, because the records of a transaction that is undone are read again.

use crate::dedupe::{Checkpoint, JournalId, Windows};
use crate::ports::{Store, StoreError};

/// Drops what has left the windows by the clock of this checkpoint, and what limits have dropped according to it, and deletes that from the store.
pub(crate) fn expire_stored(
    store: &mut impl Store,
    journal: JournalId,
    windows: &mut Windows,
    checkpoint: Option<&Checkpoint>,
) -> Result<(), StoreError> {
    if let Some(checkpoint) = checkpoint {
        windows.set_horizon(checkpoint.horizon_ms);
        windows.inherit(&checkpoint.windows);
    }
    for (kind, window) in windows.iter_mut() {
        window.expire();
        store.expire(kind.window(journal), window.first_live(), window.missing_ms())?;
    }
    Ok(())
}
