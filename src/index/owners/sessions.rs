//! The methods of [`Index`] for owners.

use super::{OwnerClaim, OwnerGoes, OwnerSession, Owners};
use crate::index::face::Index;
use crate::index::waits::ChangeWaits;
use crate::index::wanted::WantedChange;
use crate::layout::OWNER_MAX;
use crate::outcome::{PutError, PutOptions, PutOutcome};
use crate::snapshot::SnapshotEntry;
use std::time::Duration;

impl Index {
    /// Begins a session of an owner, of the number 1 to [`OWNER_MAX`](crate::layout::OWNER_MAX). An owner may have
    /// several sessions. When the last one was dropped, and no other has begun within `absent_for`, all entries of the
    /// owner are hidden at once, and then removed by [`Index::tidy`]. While no thread calls that, no owner counts as
    /// away. After a takeover an owner may be away for the longest such time that its sessions have said, or up to
    /// twice as long.
    ///
    /// # Errors
    /// [`PutError::NoOwners`], [`PutError::OwnerNumber`], [`PutError::OwnerGone`] while its entries are being removed.
    pub fn owner(&self, number: u16, absent_for: Duration) -> Result<OwnerSession, PutError> {
        self.owner_by(number, OwnerClaim::Any, absent_for)
    }

    /// Begins another session of the owner with this [`OwnerSession::tenure`]. Refuses if another owner has its number
    /// by now. The next server of the table knows the owner, too.
    ///
    /// # Errors
    /// As [`Index::owner`]; [`PutError::OwnerGone`] if the owner is gone.
    pub fn owner_again(
        &self,
        number: u16,
        tenure: u64,
        absent_for: Duration,
    ) -> Result<OwnerSession, PutError> {
        self.owner_by(number, OwnerClaim::Tenure(tenure), absent_for)
    }

    pub(crate) fn owner_by(
        &self,
        number: u16,
        claim: OwnerClaim,
        absent_for: Duration,
    ) -> Result<OwnerSession, PutError> {
        self.all_owners()?.session(self.region(), self.geometry(), number, claim, absent_for)
    }

    /// Puts an entry that this owner owns.
    ///
    /// # Errors
    /// As [`Index::put_with`]; [`PutError::OwnerGone`] when the owner was removed.
    pub fn put_of(
        &self,
        owner: &OwnerSession,
        key: &[u8],
        value: &[u8],
        options: PutOptions,
    ) -> Result<PutOutcome, PutError> {
        self.make(WantedChange::put(key, options).value(value).by(Some(owner)))
    }

    /// Hides all entries of an owner at once. When this returns, no GET, change, walk or snapshot finds one of them.
    /// [`Index::tidy`] removes them later. The owner's sessions put nothing any more; a new one may begin when the last
    /// entry has gone. Waits for the owner's puts under way, and for another such call. Returns whether this call has
    /// hidden them: `false` if there was no such owner, or another call has.
    ///
    /// # Errors
    /// [`PutError::NoOwners`]; [`PutError::Withdrawn`] if the log's disk has failed: the owner stays.
    pub fn remove_owner(&self, number: u16) -> Result<bool, PutError> {
        self.all_owners()?.remove(self.shared_table(), number)
    }

    /// As [`Index::remove_owner`], for a thread that has others to serve: it waits neither for puts nor for a log.
    pub(crate) fn try_remove_owner(&self, number: u16, waits: &ChangeWaits) -> Result<bool, PutError> {
        match self.all_owners()?.try_remove(self.shared_table(), number)? {
            OwnerGoes::IsHidden { is_new } => Ok(is_new || waits.has_begun()),
            OwnerGoes::Closes { is_new } => {
                waits.goes_on(is_new);
                Err(PutError::Busy { rounds: 0 })
            }
        }
    }

    /// Puts an entry of a snapshot, with this time to live. Leaves it out if its owner's entries are being removed. In
    /// a table without owners, the number stays in the entry, and the table does not use it
    /// ([`DrivenTable::put_until`](crate::driven::DrivenTable::put_until)).
    pub(in crate::index) fn restore_one(
        &self,
        entry: &SnapshotEntry<'_>,
        ttl: Option<Duration>,
    ) -> Result<PutOutcome, PutError> {
        let &SnapshotEntry { key, value, owner, .. } = entry;
        let options = PutOptions::new().ttl(ttl);
        let Some(owners) = self.owners().filter(|_| owner != 0) else {
            let owner = if self.geometry().has_owners() || owner > OWNER_MAX { 0 } else { owner };
            return self.put_with(key, value, PutOptions { owner, ..options });
        };
        match owners.session_of_entry(self.region(), self.geometry(), owner) {
            Some(session) => self.make(WantedChange::put(key, options).value(value).by(Some(&session))),
            None => Ok(PutOutcome::Missing),
        }
    }

    /// The server ends, and with it all owners' sessions. Their entries stay.
    pub(crate) fn end_owners(&self) {
        self.owners().into_iter().for_each(Owners::end);
    }

    fn all_owners(&self) -> Result<&Owners, PutError> {
        self.owners().ok_or(PutError::NoOwners)
    }
}
