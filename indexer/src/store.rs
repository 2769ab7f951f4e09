//! The table: what is read and changed of it, for publishers and for queries.

use crate::events::Tier;
use crate::worker::{Holding, Meaning, Partition, Place, Progress, PublisherId, Worker};
use oneread::error::{FeedError, GetError, MutateError};
use oneread::{Client, ScanCursor, SwapOutcome};
use oneread_prefix::{Added, Digests, Holder, KEY_BYTES, PlacementIndex, PrefixError};
use serde_json::{Value, json};
use std::collections::{BTreeMap, HashSet};

const VERSION: &[u8] = b"#v";
/// The longest entry of a worker that is registered: with its next incarnation it is less than the longest value that each
/// table of holders has.
const WORKER_BYTES_MAX: usize = 1_200;

/// Why the table did not answer, or did not change.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The index.
    #[error(transparent)]
    Index(Box<PrefixError>),
    /// A lookup.
    #[error(transparent)]
    Get(#[from] GetError),
    /// A change.
    #[error(transparent)]
    Change(Box<MutateError>),
    /// A walk.
    #[error(transparent)]
    Scan(Box<FeedError>),
    /// A worker is not registered any more, or is another incarnation by now: nothing is changed for this one.
    #[error("the worker was unregistered, or another indexer has taken it over")]
    Gone,
    /// A worker does not fit an entry.
    #[error("the worker's names and endpoints have {given} bytes together, and {max} fit; shorten them")]
    Long {
        /// Their bytes.
        given: usize,
        /// The most.
        max: usize,
    },
}

impl From<PrefixError> for StoreError {
    fn from(error: PrefixError) -> StoreError {
        StoreError::Index(Box::new(error))
    }
}

impl From<MutateError> for StoreError {
    fn from(error: MutateError) -> StoreError {
        StoreError::Change(Box::new(error))
    }
}

impl From<FeedError> for StoreError {
    fn from(error: FeedError) -> StoreError {
        StoreError::Scan(Box::new(error))
    }
}

/// Whether the table refused what it has no room for.
pub fn is_full(error: &StoreError) -> bool {
    match error {
        StoreError::Index(error) => match &**error {
            PrefixError::Refused(_) | PrefixError::Holders { .. } => true,
            PrefixError::Change(error) => error.rejection().is_some(),
            _ => false,
        },
        StoreError::Change(error) => error.rejection().is_some(),
        StoreError::Get(_) | StoreError::Scan(_) | StoreError::Long { .. } | StoreError::Gone => false,
    }
}

/// Whether a holder is not there any more.
pub fn is_gone(error: &StoreError) -> bool {
    matches!(error, StoreError::Index(error) if matches!(**error, PrefixError::HolderGone { .. }))
}

/// What the table says of a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Found {
    /// What it means.
    pub meaning: Meaning,
    /// Whether the worker has that block there.
    pub is_had: bool,
}

/// A handle on the table. One thread uses it at a time; a clone is another one.
#[derive(Clone, Debug)]
pub struct Store {
    /// Entries of this crate's own.
    pub client: Client,
    /// Blocks and holders.
    pub index: PlacementIndex,
    /// Of tests: changes that were made.
    #[cfg(test)]
    pub steps: crate::tests::Steps,
}

impl Store {
    /// Over a table of holders with an entry for each block.
    ///
    /// # Errors
    /// The table is another one.
    pub fn new(client: Client) -> Result<Store, StoreError> {
        let index = PlacementIndex::new(client.clone())?;
        if index.is_grouped() {
            return Err(PrefixError::Grouped.into());
        }
        Ok(Store {
            client,
            index,
            #[cfg(test)]
            steps: crate::tests::Steps::default(),
        })
    }

    /// Whether entries of the table make room for others, or have.
    pub fn evicts(&mut self) -> bool {
        let counts = self.client.evictions().ok().flatten().unwrap_or_default();
        counts.records > 0 || counts.ahead + counts.at_put + counts.for_heap > 0
    }

    // ---- workers --------------------------------------------------------------------------------

    /// All workers. A walk over the table.
    ///
    /// # Errors
    /// The table's.
    pub fn workers(&mut self) -> Result<Vec<Worker>, StoreError> {
        let mut workers = Vec::new();
        let mut scan = self.client.scan().prefix(b"#r").values(true);
        while let Some(batch) = scan.next_batch()? {
            workers.extend(batch.into_iter().filter_map(|entry| Worker::from_bytes(&entry.value?)));
        }
        Ok(workers)
    }

    /// Writes a worker, if the one before is as it was. Returns whether it was.
    ///
    /// # Errors
    /// The table's; the worker's texts are too long.
    pub fn swap_worker(
        &mut self,
        before: Option<&Worker>,
        after: Option<&Worker>,
    ) -> Result<bool, StoreError> {
        let Some(one) = after.or(before) else { return Ok(true) };
        let key = one.identity().key(b'r');
        let (before, after) = (before.map(Worker::to_bytes), after.map(Worker::to_bytes));
        let given = after.as_ref().map_or(0, Vec::len);
        if before.is_none() && given > WORKER_BYTES_MAX {
            return Err(StoreError::Long { given, max: WORKER_BYTES_MAX });
        }
        // Behind it, so that who has looked between looks again; and before it, as this one may be killed in between.
        self.client.add(VERSION, 1, Some(1))?;
        let swapped = self.client.compare_exchange(&key, before.as_deref(), after.as_deref())?;
        self.client.add(VERSION, 1, Some(1))?;
        Ok(swapped == SwapOutcome::Swapped)
    }

    /// Refuses a worker that is not registered any more, or is another incarnation by now.
    ///
    /// # Errors
    /// [`StoreError::Gone`]; the table's.
    pub fn check(&mut self, worker: &Worker) -> Result<(), StoreError> {
        let found = self.client.get(&worker.identity().key(b'r'))?;
        let is_it =
            found.as_deref().and_then(Worker::from_bytes).is_some_and(|found| found.id() == worker.id());
        if is_it { Ok(()) } else { Err(StoreError::Gone) }
    }

    /// A number that is another one after each change of workers.
    ///
    /// # Errors
    /// The table's.
    pub fn version(&mut self) -> Result<Vec<u8>, StoreError> {
        Ok(self.client.get(VERSION)?.unwrap_or_default())
    }

    /// How far a publisher's batches have been taken in, if any were.
    ///
    /// # Errors
    /// The table's.
    pub fn progress(&mut self, id: PublisherId) -> Result<Option<Progress>, StoreError> {
        let found = self.client.get(&id.key(b'n'))?;
        Ok(found.as_deref().and_then(Progress::from_bytes))
    }

    /// Writes how far a publisher's batches have been taken in.
    ///
    /// # Errors
    /// The table's.
    pub fn put_progress(&mut self, id: PublisherId, progress: Progress) -> Result<(), StoreError> {
        let (some, failed) = self.step(1);
        if some == 1 {
            self.client.put(&id.key(b'n'), &progress.to_bytes())?;
        }
        failed
    }

    /// Hides all blocks of a worker, in the places that `of` names. Returns how many places it had.
    ///
    /// # Errors
    /// The table's. It may be repeated.
    pub fn hide(&mut self, id: PublisherId, of: impl Fn(Place) -> bool) -> Result<usize, StoreError> {
        let is_of = |name: &str| Holding::of(name).is_some_and(|it| it.id == id && of(it.place));
        let all = self.index.holders()?;
        let names: Vec<&str> = all.iter().map(|holder| holder.name()).filter(|name| is_of(name)).collect();
        let (some, failed) = self.step(names.len());
        for name in &names[..some] {
            self.index.drop_holder(name)?;
        }
        failed.map(|()| names.len())
    }

    /// The places of a worker, and their holders.
    ///
    /// # Errors
    /// The table's.
    pub fn holders_of(&mut self, id: PublisherId) -> Result<BTreeMap<Place, Holder>, StoreError> {
        let of = |holder: Holder| {
            let place = Holding::of(holder.name()).filter(|it| it.id == id)?.place;
            Some((place, holder))
        };
        Ok(self.index.holders()?.into_iter().filter_map(of).collect())
    }

    /// Hides all blocks of workers that the table does not have. `known`: those that it had a while ago.
    ///
    /// # Errors
    /// The table's. It may be repeated.
    pub fn hide_others(&mut self, known: &HashSet<PublisherId>) -> Result<(), StoreError> {
        let is_of =
            |name: &str, ids: &HashSet<PublisherId>| Holding::of(name).is_none_or(|it| ids.contains(&it.id));
        let mut others = self.index.holders()?;
        others.retain(|holder| !is_of(holder.name(), known));
        if others.is_empty() {
            return Ok(());
        }
        // A holder is registered behind its worker, as what that is or will be. So one whose worker is not there by now has
        // none, for ever: no two incarnations have one name. Who has lost the lease, and does not know, harms none of who
        // has it.
        let there: HashSet<PublisherId> = self.workers()?.iter().flat_map(Worker::ids).collect();
        for holder in others.iter().filter(|holder| !is_of(holder.name(), &there)) {
            self.index.drop_holder(holder.name())?;
        }
        Ok(())
    }

    /// Whether some worker has blocks elsewhere than in its device.
    ///
    /// # Errors
    /// The table's.
    pub fn has_tiers(&mut self) -> Result<bool, StoreError> {
        let is_elsewhere = |it: Holding<'_>| it.place.tier != Tier::Gpu;
        Ok(self.index.holders()?.iter().any(|holder| Holding::of(holder.name()).is_some_and(is_elsewhere)))
    }

    /// How many blocks publishers have.
    ///
    /// # Errors
    /// The table's.
    pub fn blocks(&mut self, ids: &[PublisherId]) -> Result<Vec<u64>, StoreError> {
        let keys: Vec<[u8; 10]> = ids.iter().map(|id| id.key(b'n')).collect();
        let blocks = |found: Result<Option<Vec<u8>>, _>| Progress::from_bytes(&found.ok()??);
        let found = self.client.get_many(&keys)?.into_iter();
        Ok(found.map(|found| blocks(found).unwrap_or_default().blocks).collect())
    }

    /// Forgets a publisher's numbers.
    ///
    /// # Errors
    /// The table's.
    pub fn forget(&mut self, id: PublisherId) -> Result<(), StoreError> {
        self.client.remove(&id.key(b'n'))?;
        Ok(())
    }

    // ---- changes of blocks ----------------------------------------------------------------------

    /// Adds blocks to a holder.
    ///
    /// # Errors
    /// The table's. It may be repeated.
    pub fn add_blocks(&mut self, holder: &Holder, keys: &[[u8; 16]]) -> Result<Added, StoreError> {
        let (some, failed) = self.step(keys.len());
        let added = self.index.add_each(holder, &Digests::from(&keys[..some]), 0)?;
        failed.map(|()| added)
    }

    /// Takes blocks from a holder. Returns how many it had.
    ///
    /// # Errors
    /// The table's. It may be repeated.
    pub fn remove_blocks(&mut self, holder: &Holder, keys: &[[u8; 16]]) -> Result<usize, StoreError> {
        let (some, failed) = self.step(keys.len());
        let removed = self.index.remove(holder, &Digests::from(&keys[..some]), 0)?;
        failed.map(|()| removed)
    }

    /// How many keys of a change are made, and what becomes of the others. Tests count changes, and have one fail half way.
    #[cfg(not(test))]
    pub(crate) fn step(&mut self, keys: usize) -> (usize, Result<(), StoreError>) {
        (keys, Ok(()))
    }

    #[cfg(test)]
    pub(crate) fn step(&mut self, keys: usize) -> (usize, Result<(), StoreError>) {
        self.steps.next(keys)
    }

    /// Some blocks of a partition, and who has them. `None` behind the last ones. Each call goes on from the cursor.
    ///
    /// # Errors
    /// The table's.
    pub fn dump(
        &mut self,
        cursor: &mut Option<ScanCursor>,
        partition: Partition,
    ) -> Result<Option<Vec<Value>>, StoreError> {
        let mut scan = self.client.scan();
        if let Some(cursor) = cursor.take() {
            scan = scan.from(cursor);
        }
        let Some(batch) = scan.next_batch()? else { return Ok(None) };
        *cursor = Some(scan.cursor());
        let hashes: Vec<u64> = batch
            .iter()
            .filter(|entry| entry.key.len() == KEY_BYTES)
            .filter_map(|entry| partition.rolling_of(&entry.key))
            .collect();
        let keys: Vec<[u8; 16]> = hashes.iter().map(|hash| partition.key(*hash)).collect();
        let mut workers = vec![Vec::new(); keys.len()];
        self.index.holders_of(&Digests::from(&keys[..]), |block, holder| {
            if let Some(Holding { place, instance, .. }) = Holding::of(holder.name()) {
                workers[block].push(json!([instance, place.rank, place.tier.name()]));
            }
        })?;
        let one = |(hash, workers): (&u64, Vec<Value>)| json!({ "seq_hash": hash, "workers": workers });
        Ok(Some(hashes.iter().zip(workers).filter(|(_, workers)| !workers.is_empty()).map(one).collect()))
    }
}
