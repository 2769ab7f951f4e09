//! Runs: batches that are taken in together, folded to what they leave behind.
//!
//! A publisher's batches that have come are one run. Of each block in each place the last word counts, and of each engine's
//! hash; what was said before is not written. A fold only READs the table: links of parents and of removed blocks, and who
//! has them. It looks into the run first.
//!
//! *A run that was written in part may be folded again, in other cuts, and leaves the same.* Its changes are last words: each
//! may be repeated. What a fold READs must be what the first one has READ, although some is written:
//!
//! * A parent that the table knows is not removed in the run that needs it: such a batch begins the next run ([`first_run`]).
//!   So it is there as long as the number of its child's batch is not written.
//! * A batch that clears begins a run, and what is cleared is hidden before anything else is written. What the run READs of a
//!   cleared place does not count.
//! * A removed block's link goes behind the number of the run. So it is known when the block is removed again.

use crate::chain::{self, Link};
use crate::counts::Counts;
use crate::events::{Batch, Content, EngineHash, Event, Stored, Tier};
use crate::links::Whose;
use crate::numbers::Known;
use crate::store::{Found, Store, StoreError};
use crate::worker::{Meaning, Name, Place, RANK_MAX, Worker};
use oneread_prefix::Holder;
use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::mem::take;
use std::sync::Arc;

/// Events that wait for their parents, of one publisher.
const ORPHANS_MAX: usize = 256;
/// Tokens of all of them.
const ORPHAN_TOKENS_MAX: usize = 1 << 20;

/// A batch that was heard.
#[derive(Debug)]
pub struct Told {
    /// Its number, and a hash of its bytes.
    pub known: Known,
    /// What it says. `None`: it is no batch of events.
    pub batch: Option<Batch>,
}

impl Told {
    /// Blocks that it names.
    pub fn blocks(&self) -> usize {
        self.events().map(blocks_of).sum()
    }

    fn events(&self) -> impl Iterator<Item = &Event> {
        self.batch.iter().flat_map(|batch| &batch.events)
    }

    fn rank(&self, worker: &Worker) -> u32 {
        let rank = self.batch.as_ref().and_then(|batch| batch.rank);
        rank.unwrap_or(worker.rank).min(RANK_MAX)
    }

    /// Whether places are hidden.
    fn clears(&self) -> bool {
        self.batch.is_none()
            || self.events().any(|event| matches!(event, Event::Cleared(_) | Event::Unreadable))
    }
}

fn blocks_of(event: &Event) -> usize {
    match event {
        Event::Stored(stored) => stored.hashes.len(),
        Event::Removed { hashes, .. } => hashes.len(),
        Event::Cleared(_) | Event::Ignored(_) | Event::Unreadable => 0,
    }
}

/// Which places are cleared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// All of the worker: what it has is not known any more.
    Unknown,
    /// All of a rank.
    Rank(u32),
    /// One.
    Place(Place),
}

impl Scope {
    /// Whether this place is one of them.
    pub fn has(self, place: Place) -> bool {
        match self {
            Scope::Unknown => true,
            Scope::Rank(rank) => place.rank == rank,
            Scope::Place(one) => place == one,
        }
    }
}

/// The last word on a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Word {
    /// It is there.
    Stored,
    /// It is gone.
    Removed,
}

/// Blocks whose parent is not known.
#[derive(Clone, Debug)]
pub struct Orphan {
    /// The number of their batch.
    pub number: u64,
    place: Place,
    stored: Arc<Stored>,
    /// Which of them were removed meanwhile.
    gone: Vec<bool>,
}

/// What a run leaves behind.
#[derive(Debug, Default)]
pub struct Run {
    /// What is hidden, before all else.
    pub clears: Vec<Scope>,
    /// The last word on each block.
    pub blocks: BTreeMap<Place, HashMap<[u8; 16], Word>>,
    /// What each name means from then on. `None`: nothing.
    pub links: HashMap<Name, Option<Meaning>>,
    /// Blocks that wait for their parents.
    pub orphans: VecDeque<Orphan>,
    /// How many batches it has.
    pub batches: usize,
    /// The last one of them.
    pub last: Option<Known>,
    /// What it counts.
    pub counts: Counts,
}

/// How many of these batches are one run: up to the first one that clears, or removes a parent that the run needs and the
/// table knows.
pub fn first_run(batches: &[Told], worker: &Worker) -> usize {
    let (mut needed, mut stored) = (HashSet::new(), HashSet::new());
    for (nth, told) in batches.iter().enumerate() {
        let rank = told.rank(worker);
        let removes = |event: &Event| match event {
            Event::Removed { hashes, group, .. } => {
                hashes.iter().any(|hash| needed.contains(&(rank, *group, *hash)))
            }
            Event::Stored(_) | Event::Cleared(_) | Event::Ignored(_) | Event::Unreadable => false,
        };
        if nth > 0 && (told.clears() || told.events().any(removes)) {
            return nth;
        }
        for event in told.events() {
            let Event::Stored(Stored { hashes, parent, group, .. }) = event else { continue };
            needed.extend(
                parent.map(|parent| (rank, *group, parent)).filter(|parent| !stored.contains(parent)),
            );
            stored.extend(hashes.iter().map(|hash| (rank, *group, *hash)));
        }
    }
    batches.len()
}

/// Folds batches, after those of before whose blocks wait. READs the links of parents and of removed blocks, all at once.
///
/// # Errors
/// The table's.
pub fn fold(
    batches: &[Told],
    orphans: &VecDeque<Orphan>,
    of: (&Worker, Whose),
    holders: &BTreeMap<Place, Holder>,
    store: &mut Store,
) -> Result<Run, StoreError> {
    let (worker, whose) = of;
    let known = store.look(whose, holders, &names_of(batches, worker, holders))?;
    let run = Run { orphans: orphans.clone(), ..Run::default() };
    let mut fold = Fold { worker, whose, known, store, evicts: None, run };
    for told in batches {
        fold.batch(told)?;
    }
    Ok(fold.run)
}

/// The names that a fold may look for in the table.
fn names_of(batches: &[Told], worker: &Worker, holders: &BTreeMap<Place, Holder>) -> Vec<Name> {
    let mut names = HashSet::new();
    for told in batches {
        let rank = told.rank(worker);
        for event in told.events() {
            match event {
                Event::Stored(Stored { parent: Some(hash), group, .. }) => {
                    let places = holders.keys().filter(|place| place.rank == rank);
                    names.extend(places.map(|place| Name { place: *place, group: *group, hash: *hash }));
                }
                Event::Removed { hashes, tier, group } => {
                    let place = Place { rank, tier: *tier };
                    names.extend(hashes.iter().map(|hash| Name { place, group: *group, hash: *hash }));
                }
                Event::Stored(_) | Event::Cleared(_) | Event::Ignored(_) | Event::Unreadable => {}
            }
        }
    }
    names.into_iter().collect()
}

struct Fold<'a> {
    worker: &'a Worker,
    whose: Whose,
    known: HashMap<Name, Found>,
    store: &'a mut Store,
    /// Whether the table evicts, once it was asked.
    evicts: Option<bool>,
    run: Run,
}

impl Fold<'_> {
    fn batch(&mut self, told: &Told) -> Result<(), StoreError> {
        let number = told.known.0;
        match &told.batch {
            Some(batch) => self.events(told, batch)?,
            None => {
                self.run.counts.garbage.one();
                tracing::warn!(worker = %self.worker.instance, number, "a message is no batch of events; the worker is cleared");
                self.clear(Scope::Unknown);
            }
        }
        self.run.counts.batches.one();
        self.run.batches += 1;
        self.run.last = Some(told.known);
        Ok(())
    }

    fn events(&mut self, told: &Told, batch: &Batch) -> Result<(), StoreError> {
        let (rank, number) = (told.rank(self.worker), told.known.0);
        for event in &batch.events {
            match event {
                Event::Stored(stored) => {
                    self.store_blocks(number, Place { rank, tier: stored.tier }, stored);
                }
                Event::Removed { hashes, tier, group } => {
                    self.remove_blocks(Place { rank, tier: *tier }, *group, hashes)?;
                }
                Event::Cleared(None) => self.clear(Scope::Rank(rank)),
                Event::Cleared(Some(tier)) => self.clear(Scope::Place(Place { rank, tier: *tier })),
                Event::Ignored(why) => {
                    tracing::debug!(worker = %self.worker.instance, number, ?why, "an event is ignored");
                    self.run.counts.ignored.one();
                }
                Event::Unreadable => {
                    self.run.counts.garbage.one();
                    tracing::warn!(worker = %self.worker.instance, number, "an event that may have removed blocks cannot be read; the worker is cleared");
                    self.clear(Scope::Unknown);
                }
            }
        }
        Ok(())
    }

    /// What was said of these places does not count any more.
    fn clear(&mut self, scope: Scope) {
        self.run.blocks.retain(|place, _| !scope.has(*place));
        self.run.links.retain(|name, _| !scope.has(name.place));
        self.run.orphans.retain(|orphan| !scope.has(orphan.place));
        if !self.run.clears.contains(&scope) {
            self.run.clears.push(scope);
        }
    }

    /// What the table says of a name, unless its place was cleared meanwhile.
    fn known(&self, name: &Name) -> Option<Found> {
        let is_cleared = self.run.clears.iter().any(|scope| scope.has(name.place));
        let found = self.known.get(name).copied();
        found.map(|found| Found { is_had: found.is_had && !is_cleared, ..found })
    }

    /// What blocks behind a block go on from, wherever the worker has it.
    fn parent(&self, rank: u32, group: u32, hash: EngineHash) -> Option<Link> {
        let places = Tier::ALL.map(|tier| Place { rank, tier });
        places.into_iter().find_map(|place| {
            let name = Name { place, group, hash };
            let meaning = match self.run.links.get(&name) {
                Some(word) => *word,
                None => self.known(&name).filter(|found| found.is_had).map(|found| found.meaning),
            };
            meaning.map(|meaning| meaning.link)
        })
    }

    /// Takes blocks in, and those that have waited for them.
    fn store_blocks(&mut self, number: u64, place: Place, stored: &Stored) {
        let gone = vec![false; stored.hashes.len()];
        let mut next = vec![Orphan { number, place, stored: Arc::new(stored.clone()), gone }];
        while let Some(one) = next.pop() {
            let before = Arc::clone(&one.stored);
            if !self.store_some(one) {
                continue;
            }
            let follows = |orphan: &Orphan| {
                orphan.place.rank == place.rank
                    && orphan.stored.parent.is_some_and(|parent| before.hashes.contains(&parent))
            };
            let (ready, waiting): (VecDeque<Orphan>, _) = self.run.orphans.drain(..).partition(follows);
            self.run.orphans = waiting;
            next.extend(ready);
        }
    }

    /// Takes blocks in, if their parent is known. Returns whether others may go on from them.
    fn store_some(&mut self, one: Orphan) -> bool {
        let Orphan { number, place, stored, gone } = &one;
        let (number, place) = (*number, *place);
        if stored.block_size.is_some_and(|size| size != self.worker.block_size.get()) {
            self.run.counts.wrong_block_size.one();
            tracing::warn!(worker = %self.worker.instance, given = ?stored.block_size, registered = %self.worker.block_size, "an event has blocks of another size; register the worker with the engine's");
            return false;
        }
        let named = |event: &Option<String>, own: &str| event.as_deref().unwrap_or(own).to_owned();
        let (lora, salt) = (named(&stored.lora, &self.worker.lora), named(&stored.salt, &self.worker.salt));
        let seed = chain::seed_of(self.whose.base, &lora, &salt);
        let parent = match (&stored.content, stored.parent) {
            (Content::Rolling(_), _) | (Content::Tokens(_), None) => None,
            (Content::Tokens(_), Some(parent)) => match self.parent(place.rank, stored.group, parent) {
                Some(link) => Some(link),
                None => {
                    self.waits(one);
                    return false;
                }
            },
        };
        let Some(links) = chain::of_stored(stored, parent, self.worker.block_size, self.whose.base, seed)
        else {
            self.run.counts.ignored.one();
            tracing::warn!(worker = %self.worker.instance, number, "an event's tokens are not those of its blocks; it is ignored");
            return false;
        };
        let is_rolling = matches!(stored.content, Content::Rolling(_));
        let words = self.run.blocks.entry(place).or_default();
        for ((hash, link), _) in stored.hashes.iter().zip(links).zip(gone).filter(|(_, gone)| !**gone) {
            let meaning = Meaning { link, is_rolling };
            words.insert(self.whose.block(meaning), Word::Stored);
            self.run.links.insert(Name { place, group: stored.group, hash: *hash }, Some(meaning));
        }
        true
    }

    /// Keeps blocks until their parent comes. The oldest go where there are too many.
    fn waits(&mut self, orphan: Orphan) {
        let tokens = |orphan: &Orphan| match &orphan.stored.content {
            Content::Tokens(tokens) => tokens.len(),
            Content::Rolling(hashes) => hashes.len(),
        };
        let orphans = &mut self.run.orphans;
        orphans.push_back(orphan);
        let mut all: usize = orphans.iter().map(tokens).sum();
        while orphans.len() > ORPHANS_MAX || all > ORPHAN_TOKENS_MAX {
            all -= orphans.pop_front().as_ref().map_or(0, tokens);
            self.run.counts.orphans.one();
        }
    }

    fn remove_blocks(&mut self, place: Place, group: u32, hashes: &[EngineHash]) -> Result<(), StoreError> {
        let mut orphans = take(&mut self.run.orphans);
        for orphan in orphans.iter_mut().filter(|it| it.place == place && it.stored.group == group) {
            for (hash, gone) in orphan.stored.hashes.iter().zip(&mut orphan.gone) {
                *gone |= hashes.contains(hash);
            }
        }
        orphans.retain(|orphan| orphan.gone.iter().any(|gone| !gone));
        self.run.orphans = orphans;
        let mut unknown = 0;
        for hash in hashes {
            let name = Name { place, group, hash: *hash };
            let meaning = match (self.run.links.get(&name), self.known(&name)) {
                (Some(Some(meaning)), _) => Some(*meaning),
                (None, Some(found)) => Some(found.meaning).filter(|_| found.is_had),
                (Some(None), _) | (None, None) => {
                    unknown += 1;
                    continue;
                }
            };
            self.run.links.insert(name, None);
            if let Some(meaning) = meaning {
                let key = self.whose.block(meaning);
                self.run.blocks.entry(place).or_default().insert(key, Word::Removed);
            }
        }
        self.run.counts.unknown.add(unknown);
        // Its link may have made room for another entry, while the block is there.
        if unknown > 0 && group == 0 && *self.evicts.get_or_insert_with(|| self.store.evicts()) {
            tracing::warn!(worker = %self.worker.instance, unknown, "removed blocks are not known, and the table evicts; the worker is cleared");
            self.clear(Scope::Unknown);
        }
        Ok(())
    }
}
