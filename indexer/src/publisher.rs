//! What a publisher tells, taken into the table.
//!
//! Batches that have come are taken in together: a run ([`crate::run`]). What it leaves behind is written in this order, and
//! its number behind its blocks. Who is killed in between takes the run's batches in again, together or not: each step may be
//! repeated, and the last word on each block is the same.
//!
//! | step | so |
//! |---|---|
//! | 1. places that are cleared are hidden | nothing is told of what was before |
//! | 2. blocks that are there | a link without a block is nobody's ([`Store::sweep`]) |
//! | 3. their links. A block whose link finds no room is taken back | no block is there that nobody could remove |
//! | 4. blocks that are gone | |
//! | 5. the number of the last batch | what it did is done, or done again |
//! | 6. links of blocks that are gone | a block that is there can be removed, also by a run that is taken in again |

use crate::counts::Counts;
use crate::events::{self, Tier};
use crate::links::Whose;
use crate::numbers::{Known, Numbers, digest};
use crate::run::{Orphan, Run, Scope, Told, Word, first_run, fold};
use crate::store::{Store, StoreError, is_full, is_gone};
use crate::worker::{Meaning, Name, Partition, Place, Progress, PublisherId, Worker};
use oneread_prefix::{Holder, PrefixError};
use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};

/// Most batches of a run. Their numbers are known, and as many before them ([`Numbers::recent`]).
const RUN_BATCHES: usize = 128;
/// Blocks that a run names, about: it is then written in some milliseconds, for which queries are not told of it.
const RUN_BLOCKS: usize = 4_096;
/// Bytes of messages that a run is read from, about.
const RUN_BYTES: usize = 1 << 20;

/// A publisher, and what is known of it beside the table.
#[derive(Debug)]
pub struct Publisher {
    worker: Arc<Worker>,
    id: PublisherId,
    partition: Partition,
    /// Its number has an entry, so it always finds room.
    has_number: bool,
    /// What that said at first.
    written: Progress,
    base: u64,
    blocks: u64,
    /// Numbers of its batches, also of those that are not written yet.
    pub numbers: Numbers,
    holders: BTreeMap<Place, Holder>,
    orphans: VecDeque<Orphan>,
    counts: Arc<Counts>,
    registering: Arc<Mutex<()>>,
    /// Of the next own links: no two writes of one have the same.
    stamp: u32,
    /// What was heard, and is not written.
    told: Vec<Told>,
    told_blocks: usize,
    told_bytes: usize,
    /// The first batches of these, folded. It is written again after an error.
    run: Option<Run>,
    /// A sweep would find something.
    pub leaves_links: bool,
    /// Common links that were left to others, who may call their blocks otherwise.
    pub left: usize,
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
        let (id, partition) = (worker.id(), worker.partition());
        let found = store.progress(id)?;
        let written = found.unwrap_or_default();
        let Progress { last, blocks } = written;
        Ok(Publisher {
            worker,
            id,
            partition,
            has_number: found.is_some(),
            written,
            base,
            blocks,
            numbers: Numbers::after(last),
            holders: store.holders_of(id)?,
            orphans: VecDeque::new(),
            counts,
            registering,
            stamp: rand::random(),
            told: Vec::new(),
            told_blocks: 0,
            told_bytes: 0,
            run: None,
            leaves_links: false,
            left: 0,
            has_tiers: false,
        })
    }

    /// Blocks that the worker has.
    pub fn blocks(&self) -> u64 {
        self.blocks
    }

    /// The last batch that was heard.
    pub fn last(&self) -> Option<Known> {
        self.numbers.last()
    }

    /// Takes the next batch. It is not in the table before [`Publisher::write`].
    pub fn hear(&mut self, number: u64, payload: &[u8]) {
        let told = Told { known: (number, digest(payload)), batch: events::read(payload).ok() };
        self.numbers.took(number, told.known.1);
        self.told_blocks += told.blocks();
        self.told_bytes += payload.len();
        self.told.push(told);
    }

    /// Whether something was heard that is not written.
    pub fn has_heard(&self) -> bool {
        !self.told.is_empty()
    }

    /// Whether what was heard is to be written before more is heard.
    pub fn is_full(&self) -> bool {
        self.told.len() >= RUN_BATCHES || self.told_blocks >= RUN_BLOCKS || self.told_bytes >= RUN_BYTES
    }

    /// Writes all that was heard. After an error it goes on where it was.
    ///
    /// # Errors
    /// The table's.
    pub fn write(&mut self, store: &mut Store) -> Result<(), StoreError> {
        while !self.told.is_empty() {
            let mut run = match self.run.take() {
                Some(run) => run,
                None => {
                    let batches = &self.told[..first_run(&self.told, &self.worker)];
                    fold(batches, &self.orphans, (&self.worker, self.whose()), &self.holders, store)?
                }
            };
            if let Err(error) = self.write_run(store, &mut run) {
                self.run = Some(run);
                return Err(error);
            }
            self.told.drain(..run.batches);
            self.counts.add_all(&run.counts);
            self.counts.runs.one();
            self.orphans = run.orphans;
        }
        (self.told, self.told_blocks, self.told_bytes) = (Vec::new(), 0, 0);
        Ok(())
    }

    fn write_run(&mut self, store: &mut Store, run: &mut Run) -> Result<(), StoreError> {
        if !self.has_number {
            store.put_progress(self.id, self.written)?;
            self.has_number = true;
        }
        while let Some(scope) = run.clears.last() {
            self.hide(store, *scope)?;
            run.clears.pop();
        }
        self.add_blocks(store, run)?;
        self.put_links(store, run)?;
        self.remove_blocks(store, run)?;
        self.put_progress(store, &run.orphans, run.last)?;
        let gone = run.links.iter().filter(|(_, meaning)| meaning.is_none());
        let gone: Vec<Name> = gone.map(|(name, _)| *name).collect();
        self.left += store.drop_links(self.whose(), &self.holders, &gone)?;
        Ok(())
    }

    fn whose(&self) -> Whose {
        Whose { id: self.id, partition: self.partition, base: self.base }
    }

    fn add_blocks(&mut self, store: &mut Store, run: &mut Run) -> Result<(), StoreError> {
        for (place, words) in &mut run.blocks {
            let stored = words.iter().filter(|(_, word)| **word == Word::Stored);
            let keys: Vec<[u8; 16]> = stored.map(|(key, _)| *key).collect();
            if keys.is_empty() {
                continue;
            }
            let added = self.with_holder(store, *place, |store, holder| store.add_blocks(holder, &keys));
            let (without, why) = match added {
                Ok(added) => {
                    self.counts.stored.add(added.changed as u64);
                    self.blocks += added.changed as u64;
                    let without: HashSet<[u8; 16]> =
                        added.refused.iter().map(|(nth, _)| keys[*nth]).collect();
                    (
                        without,
                        added.refused.into_iter().next().map(|(_, why)| PrefixError::Refused(why).into()),
                    )
                }
                Err(error) if is_full(&error) => (keys.into_iter().collect(), Some(error)),
                Err(error) => return Err(error),
            };
            if let Some(why) = why {
                self.refused(without.len(), &why);
                words.retain(|key, _| !without.contains(key));
                self.without(&mut run.links, *place, &without);
            }
        }
        Ok(())
    }

    /// Writes links. Where the table has no room for some, half of their blocks are taken back, which makes room for others.
    fn put_links(&mut self, store: &mut Store, run: &mut Run) -> Result<(), StoreError> {
        self.stamp = self.stamp.wrapping_add(1);
        let there = run.links.iter().filter_map(|(name, meaning)| Some((*name, (*meaning)?)));
        let mut there: Vec<(Name, Meaning)> = there.collect();
        while !there.is_empty() {
            let refused = store.put_links(self.whose(), there, self.stamp)?;
            let Some((_, why)) = refused.first() else { break };
            let why = PrefixError::Refused(why.clone()).into();
            let mut without: Vec<(Name, Meaning)> = refused.into_iter().map(|(one, _)| one).collect();
            there = without.split_off(without.len().div_ceil(2));
            self.take_back(store, run, without, &why)?;
        }
        Ok(())
    }

    /// Takes blocks back whose links have no room: they could not be removed.
    fn take_back(
        &mut self,
        store: &mut Store,
        run: &mut Run,
        blocks: Vec<(Name, Meaning)>,
        why: &StoreError,
    ) -> Result<(), StoreError> {
        let mut of: BTreeMap<Place, HashSet<[u8; 16]>> = BTreeMap::new();
        for (name, meaning) in blocks {
            of.entry(name.place).or_default().insert(self.whose().block(meaning));
        }
        for (place, keys) in of {
            self.refused(keys.len(), why);
            self.without(&mut run.links, place, &keys);
            run.blocks.entry(place).or_default().extend(keys.into_iter().map(|key| (key, Word::Removed)));
        }
        self.remove_blocks(store, run)
    }

    fn remove_blocks(&mut self, store: &mut Store, run: &mut Run) -> Result<(), StoreError> {
        for (place, words) in &mut run.blocks {
            let removed = words.iter().filter(|(_, word)| **word == Word::Removed);
            let keys: Vec<[u8; 16]> = removed.map(|(key, _)| *key).collect();
            // Who has no holder there has no blocks.
            let Some(holder) = self.holders.get(place).filter(|_| !keys.is_empty()).cloned() else {
                continue;
            };
            match store.remove_blocks(&holder, &keys) {
                Ok(removed) => {
                    self.counts.removed.add(removed as u64);
                    self.blocks = self.blocks.saturating_sub(removed as u64);
                }
                Err(error) if is_gone(&error) => {
                    store.check(&self.worker)?;
                    self.holders.remove(place);
                }
                Err(error) => return Err(error),
            }
            words.retain(|_, word| *word == Word::Stored);
        }
        Ok(())
    }

    /// Tells of blocks that the table has no room for.
    fn refused(&self, blocks: usize, why: &StoreError) {
        self.counts.refused.add(blocks as u64);
        tracing::warn!(worker = %self.worker.instance, blocks, "blocks are not indexed: {why}");
    }

    /// Takes the links of blocks out of a run.
    fn without(&self, links: &mut HashMap<Name, Option<Meaning>>, place: Place, blocks: &HashSet<[u8; 16]>) {
        let whose = self.whose();
        links.retain(|name, meaning| {
            let key = meaning.filter(|_| name.place == place).map(|meaning| whose.block(meaning));
            key.is_none_or(|key| !blocks.contains(&key))
        });
    }

    /// Writes how far batches were taken in. Those with blocks that wait for their parents are to come again.
    fn put_progress(
        &self,
        store: &mut Store,
        orphans: &VecDeque<Orphan>,
        last: Option<Known>,
    ) -> Result<(), StoreError> {
        let waits = orphans.iter().map(|orphan| orphan.number).min();
        let before = waits.and_then(|number| self.numbers.recent(number.checked_sub(1)?));
        let last = match (&self.worker.replay, before) {
            (Some(_), Some(before)) => Some(before),
            (Some(_), None) | (None, _) => last,
        };
        store.put_progress(self.id, Progress { last, blocks: self.blocks })
    }

    /// The publisher has begun again, or somebody else goes on where it was: it has nothing, and its next batch may have any
    /// number. What was heard before is written first.
    ///
    /// # Errors
    /// The table's. It may be repeated.
    pub fn restarted(&mut self, store: &mut Store) -> Result<(), StoreError> {
        self.write(store)?;
        self.orphans.clear();
        self.hide(store, Scope::Unknown)?;
        self.numbers.restarted();
        self.put_progress(store, &VecDeque::new(), None)
    }

    fn hide(&mut self, store: &mut Store, scope: Scope) -> Result<(), StoreError> {
        let hidden = store.hide(self.id, |place| scope.has(place))?;
        self.holders.retain(|place, _| !scope.has(*place));
        if hidden > 0 {
            self.leaves_links = true;
            if scope == Scope::Unknown {
                self.counts.cleared.one();
            }
        }
        if self.holders.is_empty() {
            self.blocks = 0;
        }
        Ok(())
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
        mut act: impl FnMut(&mut Store, &Holder) -> Result<R, StoreError>,
    ) -> Result<R, StoreError> {
        let holder = self.holder(store, place)?;
        match act(store, &holder) {
            Err(error) if is_gone(&error) => {
                self.holders.remove(&place);
                let holder = self.holder(store, place)?;
                act(store, &holder)
            }
            done => done,
        }
    }
}
