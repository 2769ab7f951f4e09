//! The table: what is read and changed of it, for publishers and for queries.

use crate::events::Tier;
use crate::worker::{
    Holding, LINK, LinkEntry, Meaning, Name, Partition, Place, Progress, PublisherId, Worker, link_key,
    moved_link,
};
use oneread::error::{FeedError, GetError, MutateError, PutError};
use oneread::{Client, PutOutcome, ScanCursor, SwapOutcome};
use oneread_prefix::{Added, Digests, Holder, KEY_BYTES, PlacementIndex, PrefixError};
use serde_json::{Value, json};
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, HashMap, HashSet};

const VERSION: &[u8] = b"#v";
/// The longest entry of a worker that is registered: with its next incarnation it is less than the longest value that each
/// table of holders has.
const WORKER_BYTES_MAX: usize = 1_200;
/// Entries that a step of [`Store::sweep`] looks at.
const SWEEP: usize = 4_096;

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

    // ---- links ----------------------------------------------------------------------------------

    /// What is known of names, and whether the worker has their blocks. Those of which nothing is known are left out. READs
    /// only.
    ///
    /// # Errors
    /// The table's.
    pub fn look(
        &mut self,
        worker: &Worker,
        base: u64,
        holders: &BTreeMap<Place, Holder>,
        names: &[Name],
    ) -> Result<HashMap<Name, Found>, StoreError> {
        let keys: Vec<[u8; 15]> = names.iter().map(|name| link_key(worker.id(), *name)).collect();
        let entry = |found: Result<Option<Vec<u8>>, _>| LinkEntry::from_bytes(&found.ok()??);
        let entries = names.iter().zip(self.client.get_many(&keys)?);
        let there: Vec<(Name, Meaning)> =
            entries.filter_map(|(name, found)| Some((*name, entry(found)?.meaning))).collect();
        let keys: Vec<[u8; 16]> =
            there.iter().map(|(_, meaning)| meaning.block_key(worker.partition(), base)).collect();
        let sets = self.index.sets(&Digests::from(&keys[..]))?;
        // Whoever was dropped has nothing, whoever has his bit by now.
        let mut live = HashMap::new();
        for (place, holder) in holders {
            match self.index.check(holder) {
                Ok(()) => drop(live.insert(place, holder)),
                Err(PrefixError::HolderGone { .. }) => {}
                Err(error) => return Err(error.into()),
            }
        }
        let found = |((name, meaning), set): ((Name, Meaning), oneread_prefix::BlockSet)| {
            (name, Found { meaning, is_had: live.get(&name.place).is_some_and(|holder| set.has(holder)) })
        };
        Ok(there.into_iter().zip(sets).map(found).collect())
    }

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

    /// Writes links. Those that find no room do not stop the others.
    ///
    /// # Errors
    /// The table's. It may be repeated.
    pub fn put_links(
        &mut self,
        links: &[([u8; 15], [u8; 32])],
    ) -> Result<Vec<Result<PutOutcome, PutError>>, StoreError> {
        if links.is_empty() {
            return Ok(Vec::new());
        }
        let (some, failed) = self.step(links.len());
        let put = self.client.put_many(&links[..some])?;
        failed.map(|()| put)
    }

    /// Takes links away.
    ///
    /// # Errors
    /// The table's. It may be repeated.
    pub fn remove_links(&mut self, keys: &[[u8; 15]]) -> Result<(), StoreError> {
        if keys.is_empty() {
            return Ok(());
        }
        let (some, failed) = self.step(keys.len());
        self.client.remove_many(&keys[..some])?;
        failed
    }

    /// How many keys of a change are made, and what becomes of the others. Tests count changes, and have one fail half way.
    #[cfg(not(test))]
    fn step(&mut self, keys: usize) -> (usize, Result<(), StoreError>) {
        (keys, Ok(()))
    }

    #[cfg(test)]
    fn step(&mut self, keys: usize) -> (usize, Result<(), StoreError>) {
        self.steps.next(keys)
    }

    /// Copies all that a publisher has to another one, which has nothing before. Returns `false` if its blocks were hidden
    /// meanwhile: then the copy is not to be used.
    ///
    /// # Errors
    /// The table's. It may be repeated.
    pub fn copy(&mut self, from: &Worker, to: &Worker, base: u64) -> Result<bool, StoreError> {
        let (old, new) = (from.id(), to.id());
        self.hide(new, |_| true)?;
        self.forget(new)?;
        let before = self.holders_of(old)?;
        let progress = self.progress(old)?.unwrap_or_default();
        let mut holders: BTreeMap<Place, Holder> = BTreeMap::new();
        let mut cursor: Option<ScanCursor> = None;
        loop {
            let mut scan = self.client.scan().prefix(&[b'#', LINK]).values(true);
            if let Some(cursor) = cursor.take() {
                scan = scan.from(cursor);
            }
            let Some(batch) = scan.next_batch()? else { break };
            cursor = Some(scan.cursor());
            let mut blocks: BTreeMap<Place, Vec<[u8; 16]>> = BTreeMap::new();
            let mut links = Vec::new();
            for entry in batch {
                if let Some(found) = entry.value.as_deref().and_then(LinkEntry::from_bytes)
                    && found.id == old
                    && let Some(key) = moved_link(&entry.key, old, new)
                {
                    blocks
                        .entry(found.place)
                        .or_default()
                        .push(found.meaning.block_key(to.partition(), base));
                    links.push((key, LinkEntry { id: new, ..found }.to_bytes()));
                }
            }
            for (place, keys) in blocks {
                let holder = match holders.entry(place) {
                    Entry::Occupied(there) => there.into_mut(),
                    Entry::Vacant(free) => free.insert(self.index.holder(&place.holder_name(to))?),
                };
                self.index.add(holder, &Digests::from(&keys[..]), 0)?;
            }
            for put in self.client.put_many(&links)? {
                put.map_err(PrefixError::Refused)?;
            }
        }
        self.put_progress(new, progress)?;
        Ok(self.holders_of(old)? == before)
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

    /// Takes links away of blocks that their workers have no more, in a step. Returns how many, and whether the walk has
    /// come to its end.
    ///
    /// A link is written behind its block, and taken away behind it, so one without a block is nobody's. It is removed
    /// only as it was seen: its block may come again meanwhile, and the link then has another stamp.
    ///
    /// # Errors
    /// The table's.
    pub fn sweep(
        &mut self,
        cursor: &mut Option<ScanCursor>,
        workers: &HashMap<PublisherId, Worker>,
        base: u64,
    ) -> Result<(usize, bool), StoreError> {
        let (mut seen, mut swept) = (0, 0);
        while seen < SWEEP {
            let mut scan = self.client.scan().prefix(&[b'#', LINK]).values(true);
            if let Some(cursor) = cursor.take() {
                scan = scan.from(cursor);
            }
            let Some(batch) = scan.next_batch()? else { return Ok((swept, true)) };
            *cursor = Some(scan.cursor());
            let entry = |entry: oneread::ScannedKey| {
                let value = entry.value?;
                Some((entry.key, LinkEntry::from_bytes(&value)?, value))
            };
            let entries: Vec<_> = batch.into_iter().filter_map(entry).collect();
            seen += entries.len().max(1);
            let key_of = |entry: &LinkEntry| {
                let worker = workers.get(&entry.id)?;
                Some(entry.meaning.block_key(worker.partition(), base))
            };
            // What nobody has registered is not looked for: its block may be another worker's, too.
            let keys: Vec<[u8; 16]> =
                entries.iter().map(|(_, entry, _)| key_of(entry).unwrap_or_default()).collect();
            let mut is_held = vec![false; keys.len()];
            self.index.holders_of(&Digests::from(&keys[..]), |block, holder| {
                let (_, entry, _) = &entries[block];
                let holding = Holding::of(holder.name());
                is_held[block] |= holding.is_some_and(|it| it.id == entry.id && it.place == entry.place);
            })?;
            for ((key, _, value), is_held) in entries.iter().zip(is_held) {
                if !is_held && self.client.remove_if(key, value)? == SwapOutcome::Swapped {
                    swept += 1;
                }
            }
        }
        Ok((swept, false))
    }
}
