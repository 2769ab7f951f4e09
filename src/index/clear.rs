//! Removing all keys, in steps of some microseconds.

use super::face::Index;
use super::waits::{ChangeWait, ChangeWaits};
use super::whole::Walk;
use crate::layout::slot::Key;
use crate::outcome::PutError;
use std::time::Duration;

/// How far a removal of all keys has come. The server keeps nothing of it between two steps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ClearPlace(pub [u64; 2]);

/// What a step of a removal of all keys did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cleared {
    /// Keys removed.
    pub removed: u64,
    /// Parts of a million of the table that have been gone through.
    pub progress_ppm: u32,
    /// Where the next step begins. `None`: this was the last one.
    pub(crate) next: Option<ClearPlace>,
}

impl Index {
    /// Removes every key that is there from the beginning of this call to its end. Returns how many were removed.
    ///
    /// It goes through the table in steps of some microseconds, and removes each key by itself, as [`Index::remove`]
    /// does. GETs and other changes go on. The call is not atomic: a key that is put meanwhile may be removed, or stay.
    /// `progress` is told how far the removal has come, and ends it by returning `false`.
    ///
    /// # Errors
    /// As [`Index::remove`]: some keys were removed, and the others were not.
    pub fn clear(&self, progress: &mut dyn FnMut(Cleared) -> bool) -> Result<u64, PutError> {
        let (mut place, mut removed) = (ClearPlace::default(), 0);
        loop {
            let waits = ChangeWaits::default();
            let step = match self.clear_on(place, Duration::from_millis(1), &waits) {
                Err(_) if self.sleep_through(&waits) => continue,
                step => step?,
            };
            while self.sleep_through(&waits) {
                self.go_on(&waits)?;
            }
            removed += step.removed;
            match step.next {
                Some(next) if progress(Cleared { removed, ..step }) => place = next,
                _ => return Ok(removed),
            }
        }
    }

    /// Continues the removal at a place, for about this long, or until another change of a key is under way. The caller
    /// waits until the last of its changes is made; the others are made before.
    pub(crate) fn clear_on(
        &self,
        place: ClearPlace,
        within: Duration,
        waits: &ChangeWaits,
    ) -> Result<Cleared, PutError> {
        let clock = self.table().clock();
        let ends_ns = clock.now_ns().saturating_add(within.as_nanos() as u64);
        let (mut walk, mut keys, mut removed) = (Walk::at(place.0), Vec::<Key>::new(), 0);
        loop {
            let before = walk.place();
            let mut had_some = self.table().walk_keys(&mut walk, &mut |key| keys.push(key.into()));
            let mut is_busy = false;
            for key in keys.drain(..) {
                let own = ChangeWaits::default();
                match self.try_remove(&key, &own) {
                    Ok(gone) => removed += u64::from(gone),
                    // Another change of the key is under way.
                    Err(PutError::Busy { .. }) if own.end().is_some() => is_busy = true,
                    Err(error) => return Err(error),
                }
                own.decided().into_iter().for_each(|end| waits.was_decided(end));
            }
            if is_busy && removed == 0 {
                waits.begin(ChangeWait::Thread);
                return Err(PutError::Busy { rounds: 0 });
            }
            if is_busy {
                // These keys again.
                (walk, had_some) = (Walk::at(before), true);
            }
            if is_busy || !had_some || clock.now_ns() >= ends_ns {
                let (done, all) = self.table().walked(&walk);
                let progress_ppm =
                    if had_some { (done.min(all) * 999_999 / all.max(1)) as u32 } else { 1_000_000 };
                let next = had_some.then(|| ClearPlace(walk.place()));
                return Ok(Cleared { removed, progress_ppm, next });
            }
        }
    }
}
