//! Links in the table: from what engines call blocks to what queries ask for.
//!
//! Most engines call a block alike. So a link is *common* to the workers of a model and tenant: it says what a hash means.
//! A worker that means something else by it has an *own* link. Who has a block is said by the block's set of holders alone
//! (docs/KV-CACHE.md, "Links", has the rules and their proofs).
//!
//! | who | does, in this order |
//! |---|---|
//! | stores a block | the block; READs both links; takes the common one, or has its own |
//! | removes a block | its bit; its own link; READs the common one; READs the block; takes the link if nobody has the block |
//! | sweeps | READs a link; READs its block; takes the link as it was |

use crate::faults::{Rule, broken};
use crate::store::{Found, Store, StoreError};
use crate::worker::{
    COMMON, CommonLink, Holding, LINK, LinkEntry, Meaning, Name, Partition, Place, Progress, PublisherId,
    Worker, common_key, link_key, moved_link,
};
use oneread::error::PutError;
use oneread::{ScanCursor, ScannedKey, SwapOutcome};
use oneread_prefix::{BlockSet, Digests, Holder, PrefixError};
use std::collections::{BTreeMap, HashMap, HashSet};

/// Others may come between so often where a common link is changed.
const ROUNDS: u32 = 1_000;
/// Entries that a step of [`Store::sweep`] looks at.
const SWEEP: usize = 4_096;

/// Whose links they are.
#[derive(Clone, Copy, Debug)]
pub struct Whose {
    /// The worker.
    pub id: PublisherId,
    /// Its model and tenant.
    pub partition: Partition,
    /// The seed of hashes.
    pub base: u64,
}

impl Whose {
    /// Of a worker.
    pub fn new(worker: &Worker, base: u64) -> Whose {
        Whose { id: worker.id(), partition: worker.partition(), base }
    }

    /// The key of the block that this means.
    pub fn block(self, meaning: Meaning) -> [u8; 16] {
        meaning.block_key(self.partition, self.base)
    }

    fn common(self, meaning: Meaning, stamp: u64) -> CommonLink {
        let Whose { partition, base, .. } = self;
        CommonLink { meaning, partition: meaning.partition(partition, base), stamp }
    }
}

/// The two links of a name, as they were READ.
#[derive(Clone, Copy, Debug)]
struct Both {
    own: Option<Meaning>,
    common: Option<CommonLink>,
}

/// A common link, before and after.
type Swap = ([u8; 15], Option<[u8; 32]>, Option<[u8; 32]>);

/// Says whether what takes long may go on: an error ends it.
pub type GoesOn<'a> = &'a mut dyn FnMut(&mut Store) -> Result<(), StoreError>;

/// What was not written.
pub type Refused = Vec<((Name, Meaning), PutError)>;

impl Store {
    /// Both links of each name. 2 READs each.
    fn both(&mut self, whose: Whose, names: &[Name]) -> Result<Vec<Both>, StoreError> {
        let keys: Vec<[u8; 15]> = names
            .iter()
            .flat_map(|name| [link_key(whose.id, *name), common_key(whose.partition, *name)])
            .collect();
        let found = self.client.get_many(&keys)?;
        let value = |found: &Result<Option<Vec<u8>>, _>| found.as_ref().ok().cloned().flatten();
        let both = |pair: &[Result<Option<Vec<u8>>, _>]| Both {
            own: value(&pair[0]).and_then(|bytes| LinkEntry::from_bytes(&bytes)).map(|entry| entry.meaning),
            common: value(&pair[1]).and_then(|bytes| CommonLink::from_bytes(&bytes)),
        };
        Ok(found.chunks_exact(2).map(both).collect())
    }

    /// What names mean to a worker, and whether it has their blocks. Those of which nothing is known are left out. READs
    /// only.
    ///
    /// # Errors
    /// The table's.
    pub fn look(
        &mut self,
        whose: Whose,
        holders: &BTreeMap<Place, Holder>,
        names: &[Name],
    ) -> Result<HashMap<Name, Found>, StoreError> {
        let both = self.both(whose, names)?;
        let keys: Vec<[u8; 16]> = both
            .iter()
            .flat_map(|both| [both.own, both.common.map(|common| common.meaning)])
            .map(|meaning| meaning.map_or([0; 16], |meaning| whose.block(meaning)))
            .collect();
        let sets = self.index.sets(&Digests::from(&keys[..]))?;
        // Whoever was dropped has nothing, whoever has his bit by now.
        let mut live = HashMap::new();
        for (place, holder) in holders {
            match self.index.check(holder) {
                Ok(()) => drop(live.insert(*place, holder)),
                Err(PrefixError::HolderGone { .. }) => {}
                Err(error) => return Err(error.into()),
            }
        }
        let found = |((name, both), sets): ((&Name, Both), &[BlockSet])| {
            let has = |set: &BlockSet| live.get(&name.place).is_some_and(|holder| set.has(holder));
            let common = both.common.map(|common| common.meaning);
            let found = match (both.own, common) {
                // Whatever others mean by it.
                (Some(meaning), _) => Found { meaning, is_had: has(&sets[0]) },
                // H9
                (None, Some(meaning)) if has(&sets[1]) || broken(Rule::HasByLink) => {
                    Found { meaning, is_had: true }
                }
                // Nobody has it any more. Of what others have, this worker may mean something else.
                (None, Some(meaning)) if sets[1].is_empty() => Found { meaning, is_had: false },
                (None, Some(_) | None) => return None,
            };
            Some((*name, found))
        };
        Ok(names.iter().zip(both).zip(sets.chunks_exact(2)).filter_map(found).collect())
    }

    /// Writes what names mean, whose blocks are there. Returns those that find no room; they do not stop the others.
    ///
    /// # Errors
    /// The table's. It may be repeated.
    pub fn put_links(
        &mut self,
        whose: Whose,
        mut links: Vec<(Name, Meaning)>,
        stamp: u32,
    ) -> Result<Refused, StoreError> {
        let mut refused = Vec::new();
        for _ in 0..ROUNDS {
            if links.is_empty() {
                return Ok(refused);
            }
            links = self.put_once(whose, links, stamp, &mut refused)?;
        }
        Err(PrefixError::Busy { rounds: ROUNDS }.into())
    }

    /// Returns those where others came between.
    fn put_once(
        &mut self,
        whose: Whose,
        links: Vec<(Name, Meaning)>,
        stamp: u32,
        refused: &mut Refused,
    ) -> Result<Vec<(Name, Meaning)>, StoreError> {
        let names: Vec<Name> = links.iter().map(|(name, _)| *name).collect();
        let both = self.both(whose, &names)?;
        let (mut swaps, mut common): (Vec<Swap>, Vec<Vec<(Name, Meaning)>>) = (Vec::new(), Vec::new());
        let (mut pairs, mut own) = (Vec::new(), Vec::new());
        let mut nth: HashMap<[u8; 15], (usize, Meaning)> = HashMap::new();
        let mut needless = HashSet::new();
        for (one, both) in links.into_iter().zip(both) {
            let (name, meaning) = one;
            let key = common_key(whose.partition, name);
            // A name in another tier may be the first of this run to say what it means.
            let first = nth.get(&key).copied();
            let before = both.common.map(|common| common.meaning).or(first.map(|(_, meaning)| meaning));
            // H10
            if before.is_some_and(|before| before != meaning) && !broken(Rule::OneMeaning) {
                let entry = LinkEntry { meaning, id: whose.id, place: name.place, stamp };
                pairs.push((link_key(whose.id, name), entry.to_bytes()));
                own.push(one);
                continue;
            }
            // H11
            if both.own.is_some() && !broken(Rule::OwnStays) {
                needless.insert(name);
            }
            if let Some((nth, _)) = first {
                common[nth].push(one);
                continue;
            }
            nth.insert(key, (swaps.len(), meaning));
            let next = match both.common {
                // H8
                Some(common) if !broken(Rule::StampStays) => common.stamp.wrapping_add(1),
                Some(common) => common.stamp,
                None => rand::random(),
            };
            swaps.push((
                key,
                both.common.map(CommonLink::to_bytes),
                Some(whose.common(meaning, next).to_bytes()),
            ));
            common.push(vec![one]);
        }
        let mut again = Vec::new();
        for (ones, swapped) in common.into_iter().zip(self.swap_links(&swaps)?) {
            match swapped {
                Ok(SwapOutcome::Swapped) => continue,
                Ok(_) => again.extend(&ones),
                Err(why) => refused.extend(ones.iter().map(|one| (*one, why.clone()))),
            }
            needless.retain(|name| ones.iter().all(|(one, _)| one != name));
        }
        if !pairs.is_empty() {
            let (some, failed) = self.step(pairs.len());
            let put = self.client.put_many(&pairs[..some])?;
            failed?;
            let put = own.into_iter().zip(put);
            refused.extend(put.filter_map(|(one, put)| Some((one, put.err()?))));
        }
        let needless: Vec<[u8; 15]> = needless.into_iter().map(|name| link_key(whose.id, name)).collect();
        self.remove_own(&needless)?;
        Ok(again)
    }

    fn swap_links(&mut self, swaps: &[Swap]) -> Result<Vec<Result<SwapOutcome, PutError>>, StoreError> {
        if swaps.is_empty() {
            return Ok(Vec::new());
        }
        let (some, failed) = self.step(swaps.len());
        let swapped = self.client.compare_exchange_many(&swaps[..some])?;
        failed.map(|()| swapped)
    }

    fn remove_own(&mut self, keys: &[[u8; 15]]) -> Result<(), StoreError> {
        if keys.is_empty() {
            return Ok(());
        }
        let (some, failed) = self.step(keys.len());
        self.client.remove_many(&keys[..some])?;
        failed
    }

    /// Takes the links of names away that a worker has removed, as far as nobody else has their blocks. (The worker itself may
    /// have one by another name.) Returns how many are left: others have the blocks, by these names or by others.
    ///
    /// # Errors
    /// The table's. It may be repeated.
    pub fn drop_links(
        &mut self,
        whose: Whose,
        holders: &BTreeMap<Place, Holder>,
        names: &[Name],
    ) -> Result<usize, StoreError> {
        if names.is_empty() {
            return Ok(0);
        }
        let both = self.both(whose, names)?;
        let own = names.iter().zip(&both).filter(|(_, both)| both.own.is_some());
        let own: Vec<[u8; 15]> = own.map(|(name, _)| link_key(whose.id, *name)).collect();
        let common = names.iter().zip(&both).filter_map(|(name, both)| Some((*name, both.common?)));
        let common: Vec<([u8; 15], CommonLink, Option<&Holder>)> = common
            .map(|(name, link)| (common_key(whose.partition, name), link, holders.get(&name.place)))
            .collect();
        let swept = self.take_unused(&common)?;
        self.remove_own(&own)?;
        Ok(common.len() - swept)
    }

    /// Takes common links away, as they were READ, whose blocks nobody has by now but this holder. Returns how many.
    fn take_unused(
        &mut self,
        links: &[([u8; 15], CommonLink, Option<&Holder>)],
    ) -> Result<usize, StoreError> {
        let blocks: Vec<[u8; 16]> = links.iter().map(|(_, link, _)| link.block_key()).collect();
        // H12: the link was READ before.
        let sets = self.index.sets(&Digests::from(&blocks[..]))?;
        let is_unused = |holder: &Option<&Holder>, set: &BlockSet| !set.has_others(*holder);
        let unused = links
            .iter()
            .zip(sets)
            .filter(|((.., holder), set)| is_unused(holder, set) || broken(Rule::TakeUsed));
        let swaps: Vec<Swap> =
            unused.map(|((key, link, _), _)| (*key, Some(link.to_bytes()), None)).collect();
        let swapped = self.swap_links(&swaps)?;
        Ok(swapped.iter().filter(|swapped| matches!(swapped, Ok(SwapOutcome::Swapped))).count())
    }

    /// Takes links away of blocks that nobody has any more, and workers' own links of blocks that they have not, in a step.
    /// Returns how many, and whether the walk has come to its end.
    ///
    /// A link is written behind its block, and taken away behind it, so one without a block is nobody's. It is removed
    /// only as it was seen: its block may come again meanwhile, and the link then has another stamp. A block that only
    /// holders have who were dropped counts as theirs until they are cleaned.
    ///
    /// # Errors
    /// The table's.
    pub fn sweep(&mut self, cursor: &mut Option<ScanCursor>, base: u64) -> Result<(usize, bool), StoreError> {
        let (mut seen, mut swept) = (0, 0);
        while seen < SWEEP {
            let mut scan = self.client.scan().prefix(b"#").values(true);
            if let Some(cursor) = cursor.take() {
                scan = scan.from(cursor);
            }
            let Some(batch) = scan.next_batch()? else { return Ok((swept, true)) };
            *cursor = Some(scan.cursor());
            seen += batch.len().max(1);
            let (mut common, mut own) = (Vec::new(), Vec::new());
            for entry in batch {
                let (Ok(key), Some(value)) = (<[u8; 15]>::try_from(entry.key), entry.value) else { continue };
                match key[1] {
                    COMMON => common.extend(CommonLink::from_bytes(&value).map(|link| (key, link, None))),
                    LINK => own.extend(LinkEntry::from_bytes(&value).map(|link| (key, link))),
                    _ => {}
                }
            }
            swept += self.take_unused(&common)?;
            swept += self.sweep_own(&own, base)?;
        }
        Ok((swept, false))
    }

    /// Takes own links away of blocks that their workers have not. A worker's holder is there before its links are.
    fn sweep_own(&mut self, links: &[([u8; 15], LinkEntry)], base: u64) -> Result<usize, StoreError> {
        if links.is_empty() {
            return Ok(0);
        }
        let holders = self.index.holders()?;
        let holders: HashMap<(PublisherId, Place), (Partition, &Holder)> = holders
            .iter()
            .filter_map(|holder| {
                let Holding { id, place, .. } = Holding::of(holder.name())?;
                let partition = Partition::of_holder(holder.name())?;
                Some(((id, place), (partition, holder)))
            })
            .collect();
        let of = |link: &LinkEntry| holders.get(&(link.id, link.place)).copied();
        let key = |link: &LinkEntry| {
            of(link).map_or([0; 16], |(partition, _)| link.meaning.block_key(partition, base))
        };
        let keys: Vec<[u8; 16]> = links.iter().map(|(_, link)| key(link)).collect();
        let sets = self.index.sets(&Digests::from(&keys[..]))?;
        let is_nobodys = |(link, set): (&LinkEntry, &BlockSet)| of(link).is_none_or(|(_, it)| !set.has(it));
        let unused = links.iter().zip(&sets).filter(|((_, link), set)| is_nobodys((link, set)));
        let swaps: Vec<Swap> = unused.map(|((key, link), _)| (*key, Some(link.to_bytes()), None)).collect();
        let swapped = self.swap_links(&swaps)?;
        Ok(swapped.iter().filter(|swapped| matches!(swapped, Ok(SwapOutcome::Swapped))).count())
    }

    /// Copies the own links of a worker to another incarnation of it, whose holders are there.
    fn copy_own_links(
        &mut self,
        from: PublisherId,
        to: PublisherId,
        may_go_on: GoesOn<'_>,
    ) -> Result<(), StoreError> {
        let (mut cursor, stamp): (Option<ScanCursor>, u32) = (None, rand::random());
        // Tests come between.
        self.step(0).1?;
        loop {
            let mut scan = self.client.scan().prefix(&[b'#', LINK]).values(true);
            if let Some(cursor) = cursor.take() {
                scan = scan.from(cursor);
            }
            let Some(batch) = scan.next_batch()? else { return Ok(()) };
            cursor = Some(scan.cursor());
            may_go_on(self)?;
            let moved = |entry: ScannedKey| {
                let found = LinkEntry::from_bytes(&entry.value?).filter(|found| found.id == from)?;
                let key = moved_link(&entry.key, from, to)?;
                Some((key, LinkEntry { id: to, stamp, ..found }.to_bytes()))
            };
            let links: Vec<_> = batch.into_iter().filter_map(moved).collect();
            for put in self.client.put_many(&links)? {
                put.map_err(PrefixError::Refused)?;
            }
        }
    }

    /// Copies all that a publisher has to another one, which has nothing before. Returns `false` if its blocks were hidden
    /// meanwhile: then the copy is not to be used.
    ///
    /// # Errors
    /// The table's; those of `may_go_on`, which is asked again and again. It may be repeated.
    pub fn copy(&mut self, from: &Worker, to: &Worker, may_go_on: GoesOn<'_>) -> Result<bool, StoreError> {
        let (old, new) = (from.id(), to.id());
        self.hide(new, |_| true)?;
        self.forget(new)?;
        let before = self.holders_of(old)?;
        let last = self.progress(old)?.and_then(|progress| progress.last);
        let mut pairs = Vec::new();
        for (place, holder) in &before {
            pairs.push((holder, self.index.holder(&place.holder_name(to))?));
        }
        // H14
        let blocks = if broken(Rule::BlocksFirst) { self.copy_blocks(&pairs, may_go_on)? } else { 0 };
        self.copy_own_links(old, new, may_go_on)?;
        let blocks = if broken(Rule::BlocksFirst) { blocks } else { self.copy_blocks(&pairs, may_go_on)? };
        self.put_progress(new, Progress { last, blocks })?;
        Ok(self.holders_of(old)? == before)
    }

    /// Gives each second holder what the first one has. Returns how many blocks. A walk over the table.
    fn copy_blocks(&mut self, pairs: &[(&Holder, Holder)], may_go_on: GoesOn<'_>) -> Result<u64, StoreError> {
        let (mut cursor, mut copied): (Option<ScanCursor>, u64) = (None, 0);
        loop {
            let mut scan = self.client.scan().values(true);
            if let Some(cursor) = cursor.take() {
                scan = scan.from(cursor);
            }
            let Some(batch) = scan.next_batch()? else { return Ok(copied) };
            cursor = Some(scan.cursor());
            may_go_on(self)?;
            let block = |entry: ScannedKey| {
                Some((<[u8; 16]>::try_from(entry.key).ok()?, BlockSet::from_bytes(&entry.value?)))
            };
            let blocks: Vec<([u8; 16], BlockSet)> = batch.into_iter().filter_map(block).collect();
            for (old, new) in pairs {
                let keys: Vec<[u8; 16]> =
                    blocks.iter().filter(|(_, set)| set.has(old)).map(|(key, _)| *key).collect();
                if keys.is_empty() {
                    continue;
                }
                let added = self.add_blocks(new, &keys)?;
                if let Some((_, why)) = added.refused.into_iter().next() {
                    return Err(PrefixError::Refused(why).into());
                }
                // H13: whoever took the block from the old holder before may have seen nobody else who has it.
                let sets = self.index.sets(&Digests::from(&keys[..]))?;
                let lost = keys.iter().zip(sets).filter(|(_, set)| !set.has(old) && !broken(Rule::CopyBlind));
                let lost: Vec<[u8; 16]> = lost.map(|(key, _)| *key).collect();
                copied += (keys.len() - lost.len()) as u64;
                if !lost.is_empty() {
                    self.remove_blocks(new, &lost)?;
                }
            }
        }
    }
}
