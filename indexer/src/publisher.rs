//! What a publisher tells, taken into the table.
//!
//! A batch is taken in as a whole, and its number is written behind its blocks. Who is killed in between takes the batch
//! in again: each step may be repeated, and the last word on each block is the same.
//!
//! | step | order | so |
//! |---|---|---|
//! | blocks are stored | the block, then its link | a link without a block is nobody's ([`Store::sweep`]) |
//! | blocks are removed | the block, then its link | a block that is there can be removed |
//! | the table has no room | the block is taken back, and has no link | no block is there that nobody could remove |
//! | a batch ends | its number | what it did is done, or done again |

use crate::chain::{self, Link};
use crate::counts::Counts;
use crate::events::{self, Batch, Content, EngineHash, Event, Stored, Tier};
use crate::numbers::{Known, Numbers, digest};
use crate::store::{Store, StoreError, is_full};
use crate::worker::{LinkEntry, Place, Progress, PublisherId, RANK_MAX, Worker, link_key};
use oneread_prefix::{Digests, Holder, PrefixError};
use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};

/// Events that wait for their parents, of one publisher.
const ORPHANS_MAX: usize = 256;
/// Tokens of all of them.
const ORPHAN_TOKENS_MAX: usize = 1 << 20;

/// Blocks whose parent is not known.
#[derive(Clone, Debug)]
struct Orphan {
    number: u64,
    place: Place,
    stored: Stored,
    /// Which of them were removed meanwhile.
    gone: Vec<bool>,
}

/// A publisher, and what is known of it beside the table.
#[derive(Debug)]
pub struct Publisher {
    worker: Arc<Worker>,
    id: PublisherId,
    base: u64,
    blocks: u64,
    /// Numbers of its batches.
    pub numbers: Numbers,
    holders: BTreeMap<Place, Holder>,
    orphans: VecDeque<Orphan>,
    counts: Arc<Counts>,
    registering: Arc<Mutex<()>>,
    /// Of the next links: no two writes of one have the same.
    stamp: u32,
    /// A sweep would find something.
    pub leaves_links: bool,
    /// It has blocks elsewhere than in its device.
    pub has_tiers: bool,
}

impl Publisher {
    /// A worker's, as the table knows it.
    ///
    /// # Errors
    /// The table's.
    pub fn load(
        store: &mut Store,
        worker: Arc<Worker>,
        base: u64,
        counts: Arc<Counts>,
        registering: Arc<Mutex<()>>,
    ) -> Result<Publisher, StoreError> {
        let id = worker.id();
        let Progress { last, blocks } = store.progress(id)?;
        let (holders, orphans) = (BTreeMap::new(), VecDeque::new());
        let numbers = Numbers::after(last);
        let (stamp, leaves_links) = (rand::random(), false);
        Ok(Publisher {
            worker,
            id,
            base,
            blocks,
            numbers,
            holders,
            orphans,
            counts,
            registering,
            stamp,
            leaves_links,
            has_tiers: false,
        })
    }

    /// Blocks that the worker has.
    pub fn blocks(&self) -> u64 {
        self.blocks
    }

    /// Takes a batch in. After an error it may be taken in again.
    ///
    /// # Errors
    /// The table's.
    pub fn take(&mut self, store: &mut Store, number: u64, payload: &[u8]) -> Result<(), StoreError> {
        match events::read(payload) {
            Ok(batch) => self.take_events(store, number, batch)?,
            Err(_) => {
                self.counts.garbage.one();
                tracing::warn!(worker = %self.worker.instance, number, "a message is no batch of events; the worker is cleared");
                self.clear(store)?;
            }
        }
        self.numbers.took(number, digest(payload));
        self.write(store)?;
        self.counts.batches.one();
        Ok(())
    }

    fn take_events(&mut self, store: &mut Store, number: u64, batch: Batch) -> Result<(), StoreError> {
        let rank = batch.rank.unwrap_or(self.worker.rank).min(RANK_MAX);
        for event in batch.events {
            match event {
                Event::Stored(stored) => {
                    let place = Place { rank, tier: stored.tier };
                    self.store_blocks(store, number, place, stored)?;
                }
                Event::Removed { hashes, tier, group } => {
                    self.remove_blocks(store, Place { rank, tier }, group, &hashes)?;
                }
                Event::Cleared(tier) => {
                    self.hide(store, |place| {
                        place.rank == rank && tier.is_none_or(|tier| place.tier == tier)
                    })?;
                }
                Event::Ignored(why) => {
                    tracing::debug!(worker = %self.worker.instance, number, ?why, "an event is ignored");
                    self.counts.ignored.one();
                }
                Event::Unreadable => {
                    self.counts.garbage.one();
                    tracing::warn!(worker = %self.worker.instance, number, "an event that may have removed blocks cannot be read; the worker is cleared");
                    self.clear(store)?;
                }
            }
        }
        Ok(())
    }

    /// Writes how far batches were taken in. Those with blocks that wait for their parents are to come again.
    fn write(&self, store: &mut Store) -> Result<(), StoreError> {
        let waits = self.orphans.iter().map(|orphan| orphan.number).min();
        let before = waits.and_then(|number| self.numbers.recent(number.checked_sub(1)?));
        let last = match (&self.worker.replay, before) {
            (Some(_), Some(before)) => Some(before),
            (Some(_), None) | (None, _) => self.numbers.last(),
        };
        store.put_progress(self.id, Progress { last, blocks: self.blocks })
    }

    /// The worker has nothing that is known: what it has was lost, or is not to be told any more.
    ///
    /// # Errors
    /// The table's. It may be repeated.
    pub fn clear(&mut self, store: &mut Store) -> Result<(), StoreError> {
        if self.hide(store, |_| true)? > 0 {
            self.counts.cleared.one();
        }
        Ok(())
    }

    /// The publisher has begun again, or somebody else goes on where it was: it has nothing, and its next batch may have any
    /// number.
    ///
    /// # Errors
    /// The table's. It may be repeated.
    pub fn restarted(&mut self, store: &mut Store) -> Result<(), StoreError> {
        self.clear(store)?;
        self.numbers.restarted();
        self.write(store)
    }

    fn hide(&mut self, store: &mut Store, of: impl Fn(Place) -> bool) -> Result<usize, StoreError> {
        self.orphans.retain(|orphan| !of(orphan.place));
        let hidden = store.hide(self.id, &of)?;
        self.holders.retain(|place, _| !of(*place));
        if hidden > 0 {
            self.leaves_links = true;
        }
        if self.holders.is_empty() {
            self.blocks = 0;
        }
        Ok(hidden)
    }

    fn holder(&mut self, store: &mut Store, place: Place) -> Result<Holder, StoreError> {
        if let Some(holder) = self.holders.get(&place) {
            return Ok(holder.clone());
        }
        // A laggard's blocks are not told again once somebody has taken over.
        store.check(&self.worker)?;
        let registering = self.registering.lock().unwrap_or_else(PoisonError::into_inner);
        let holder = store.index.holder(&place.holder_name(&self.worker))?;
        drop(registering);
        self.has_tiers |= place.tier != Tier::Gpu;
        self.holders.insert(place, holder.clone());
        Ok(holder)
    }

    /// Does something with a holder, once more if somebody has dropped it meanwhile.
    fn with_holder<R>(
        &mut self,
        store: &mut Store,
        place: Place,
        mut act: impl FnMut(&mut Store, &Holder) -> Result<R, PrefixError>,
    ) -> Result<R, StoreError> {
        let holder = self.holder(store, place)?;
        match act(store, &holder) {
            Err(PrefixError::HolderGone { .. }) => {
                self.holders.remove(&place);
                let holder = self.holder(store, place)?;
                Ok(act(store, &holder)?)
            }
            done => Ok(done?),
        }
    }

    /// Takes blocks in, and those that have waited for them.
    fn store_blocks(
        &mut self,
        store: &mut Store,
        number: u64,
        place: Place,
        stored: Stored,
    ) -> Result<(), StoreError> {
        let gone = vec![false; stored.hashes.len()];
        let mut next = vec![Orphan { number, place, stored, gone }];
        while let Some(one) = next.pop() {
            let hashes = one.stored.hashes.clone();
            if !self.store_some(store, one)? {
                continue;
            }
            let follows = |orphan: &Orphan| {
                orphan.place.rank == place.rank
                    && orphan.stored.parent.is_some_and(|parent| hashes.contains(&parent))
            };
            let (ready, waiting): (VecDeque<Orphan>, _) = self.orphans.drain(..).partition(follows);
            self.orphans = waiting;
            next.extend(ready);
        }
        Ok(())
    }

    /// Takes blocks in, if their parent is known. Returns whether others may go on from them.
    fn store_some(&mut self, store: &mut Store, one: Orphan) -> Result<bool, StoreError> {
        let Orphan { number, place, stored, gone } = &one;
        let (number, place) = (*number, *place);
        if stored.block_size.is_some_and(|size| size != self.worker.block_size.get()) {
            self.counts.wrong_block_size.one();
            tracing::warn!(worker = %self.worker.instance, given = ?stored.block_size, registered = %self.worker.block_size, "an event has blocks of another size; register the worker with the engine's");
            return Ok(false);
        }
        let named = |event: &Option<String>, own: &str| event.as_deref().unwrap_or(own).to_owned();
        let (lora, salt) = (named(&stored.lora, &self.worker.lora), named(&stored.salt, &self.worker.salt));
        let seed = chain::seed_of(self.base, &lora, &salt);
        let parent = match (&stored.content, stored.parent) {
            (Content::Rolling(_), _) | (Content::Tokens(_), None) => None,
            (Content::Tokens(_), Some(parent)) => match store.parent(self.id, place, stored.group, parent)? {
                Some(link) => Some(link),
                None => {
                    self.waits(one);
                    return Ok(false);
                }
            },
        };
        let Some(links) = chain::of_stored(stored, parent, self.worker.block_size, self.base, seed) else {
            self.counts.ignored.one();
            tracing::warn!(worker = %self.worker.instance, number, "an event's tokens are not those of its blocks; it is ignored");
            return Ok(false);
        };
        let is_rolling = matches!(stored.content, Content::Rolling(_));
        let some: Vec<(EngineHash, Link)> = stored
            .hashes
            .iter()
            .zip(&links)
            .zip(gone)
            .filter(|(_, gone)| !**gone)
            .map(|((hash, link), _)| (*hash, *link))
            .collect();
        self.add(store, place, stored.group, is_rolling, &some)
    }

    /// Adds blocks, then their links. Returns whether there was room.
    fn add(
        &mut self,
        store: &mut Store,
        place: Place,
        group: u32,
        is_rolling: bool,
        some: &[(EngineHash, Link)],
    ) -> Result<bool, StoreError> {
        let (id, partition, base) = (self.id, self.worker.partition(), self.base);
        self.stamp = self.stamp.wrapping_add(1);
        let stamp = self.stamp;
        let entry = |link: Link| LinkEntry { link, id, place, is_rolling, stamp };
        let keys: Vec<[u8; 16]> =
            some.iter().map(|(_, link)| entry(*link).block_key(partition, base)).collect();
        let digests = Digests::from(&keys[..]);
        let added = match self.with_holder(store, place, |store, holder| store.index.add(holder, &digests, 0))
        {
            Err(error) if is_full(&error) => {
                self.refused(store, place, &keys, &error)?;
                return Ok(false);
            }
            added => added?,
        };
        self.count_stored(added);
        let pairs: Vec<([u8; 15], [u8; 32])> = some
            .iter()
            .map(|(hash, link)| (link_key(id, place, group, *hash), entry(*link).to_bytes()))
            .collect();
        let mut without = Vec::new();
        let mut why = None;
        for (key, put) in keys.iter().zip(store.client.put_many(&pairs)?) {
            if let Err(error) = put {
                without.push(*key);
                why = Some(error);
            }
        }
        let Some(why) = why else { return Ok(true) };
        self.refused(store, place, &without, &PrefixError::Refused(why).into())?;
        Ok(false)
    }

    /// Takes blocks back for which there is no room: they could not be removed.
    fn refused(
        &mut self,
        store: &mut Store,
        place: Place,
        keys: &[[u8; 16]],
        why: &StoreError,
    ) -> Result<(), StoreError> {
        self.counts.refused.add(keys.len() as u64);
        tracing::warn!(worker = %self.worker.instance, blocks = keys.len(), "blocks are not indexed: {why}");
        if let StoreError::Index(error) = why
            && let PrefixError::Holders { .. } = **error
        {
            return Ok(());
        }
        let digests = Digests::from(keys);
        let taken =
            self.with_holder(store, place, |store, holder| store.index.remove(holder, &digests, 0))?;
        self.blocks = self.blocks.saturating_sub(taken as u64);
        Ok(())
    }

    fn count_stored(&mut self, added: usize) {
        self.counts.stored.add(added as u64);
        self.blocks += added as u64;
    }

    /// Keeps blocks until their parent comes. The oldest go where there are too many.
    fn waits(&mut self, orphan: Orphan) {
        let tokens = |orphan: &Orphan| match &orphan.stored.content {
            Content::Tokens(tokens) => tokens.len(),
            Content::Rolling(hashes) => hashes.len(),
        };
        self.orphans.push_back(orphan);
        while self.orphans.len() > ORPHANS_MAX
            || self.orphans.iter().map(tokens).sum::<usize>() > ORPHAN_TOKENS_MAX
        {
            self.orphans.pop_front();
            self.counts.orphans.one();
        }
    }

    fn remove_blocks(
        &mut self,
        store: &mut Store,
        place: Place,
        group: u32,
        hashes: &[EngineHash],
    ) -> Result<(), StoreError> {
        for orphan in self.orphans.iter_mut().filter(|it| it.place == place && it.stored.group == group) {
            for (hash, gone) in orphan.stored.hashes.iter().zip(&mut orphan.gone) {
                *gone |= hashes.contains(hash);
            }
        }
        self.orphans.retain(|orphan| orphan.gone.iter().any(|gone| !gone));
        let found = store.links(self.id, place, group, hashes)?;
        let known: Vec<(EngineHash, LinkEntry)> =
            hashes.iter().zip(found).filter_map(|(hash, found)| Some((*hash, found?))).collect();
        let unknown = hashes.len() - known.len();
        self.counts.unknown.add(unknown as u64);
        if !known.is_empty() {
            let partition = self.worker.partition();
            let keys: Vec<[u8; 16]> =
                known.iter().map(|(_, entry)| entry.block_key(partition, self.base)).collect();
            let digests = Digests::from(&keys[..]);
            let removed =
                self.with_holder(store, place, |store, holder| store.index.remove(holder, &digests, 0))?;
            self.counts.removed.add(removed as u64);
            self.blocks = self.blocks.saturating_sub(removed as u64);
            let links: Vec<[u8; 15]> =
                known.iter().map(|(hash, _)| link_key(self.id, place, group, *hash)).collect();
            store.client.remove_many(&links)?;
        }
        // Its link may have made room for another entry, while the block is there.
        if unknown > 0 && group == 0 && store.evicts() {
            tracing::warn!(worker = %self.worker.instance, unknown, "removed blocks are not known, and the table evicts; the worker is cleared");
            self.clear(store)?;
        }
        Ok(())
    }

    /// The last batch that was taken in.
    pub fn last(&self) -> Option<Known> {
        self.numbers.last()
    }
}
