//! Who has each block, and how long a prefix each holder has.

use crate::digests::{Digests, Key};
use crate::directory::Directory;
use crate::error::PrefixError;
use crate::groups::{GROUP, Group, OwnedGroup, tag_of};
use crate::holders::{self, Holder, HolderOptions};
use crate::passes::{Jumps, LookupMemory};
use crate::records::Record;
use crate::sets::HolderSet;
use crate::table::{Form, PlacementTable};
use oneread::error::{PartError, PutError};
use oneread::stats::ClientStats;
use oneread::{Client, PartChange, PartEffect, ScanCursor, ScannedKey, SwapOutcome, Tell};
use std::collections::BTreeMap;
use std::ops::Range;

/// Others may come between so often where a group is changed.
const ROUNDS: u32 = 1_000;

/// What a step of [`PlacementIndex::clean`] did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Cleaned {
    /// Entries that were looked at.
    pub entries: usize,
    /// Bits of holders that are free again.
    pub freed: usize,
    /// No holder that was dropped is left to be cleaned.
    pub is_done: bool,
}

/// What [`PlacementIndex::add_each`] did.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct Added {
    /// Blocks that the holder did not have before; in a grouped table, entries that were changed.
    pub changed: usize,
    /// Blocks that the table has no room for, by their numbers among the digests, and why.
    pub refused: Vec<(usize, PutError)>,
}

/// A pass over the table that takes holders out of all sets.
#[derive(Clone, Debug)]
struct Pass {
    cursor: Option<ScanCursor>,
    targets: Vec<(u16, Record)>,
}

/// Who has each block: digest -> a set of up to 4,096 holders.
///
/// [`PlacementIndex::match_prefix`] answers what a router asks: how long a prefix has each worker? It is one pass
/// over the prompt, by READs of the caller, and ends when no holder is left.
///
/// [`PlacementTable`] says what its table is made from.
///
/// Blocks stay when their holders restart: the index is the server's, not the router's. Changes are requests to the
/// server, which makes each in one step; of single blocks many at a time, of groups by compare-and-swap.
///
/// `Send`, one handle a thread, as [`Client`]; [`Clone`] makes another one.
#[derive(Clone, Debug)]
pub struct PlacementIndex {
    pub(crate) client: Client,
    pub(crate) table: PlacementTable,
    pass: Option<Pass>,
    pub(crate) directory: Directory,
    pub(crate) memory: LookupMemory,
    pub(crate) jumps: Jumps,
}

impl PlacementIndex {
    /// Over the table of this client, which is marked as one of holders. The client is nobody's: it has no owner. 1 READ.
    ///
    /// # Errors
    /// [`PrefixError::Table`] if the table was not made for this, or is not marked ([`PlacementIndex::create`]).
    pub fn new(mut client: Client) -> Result<PlacementIndex, PrefixError> {
        let table = PlacementTable::of(&mut client)?;
        Ok(PlacementIndex::over(client, table))
    }

    /// Marks the table of this client, if it is not marked yet, and opens the index. It may be repeated, by each client. 1
    /// READ, and 1 round trip.
    ///
    /// # Errors
    /// [`PrefixError::Table`] if the table was made from another [`PlacementTable`].
    pub fn create(mut client: Client, table: PlacementTable) -> Result<PlacementIndex, PrefixError> {
        table.mark_by(&mut client)?;
        Ok(PlacementIndex::over(client, table))
    }

    fn over(client: Client, table: PlacementTable) -> PlacementIndex {
        let (directory, memory, jumps) = (Directory::default(), LookupMemory::default(), Jumps::default());
        PlacementIndex { client, table, pass: None, directory, memory, jumps }
    }

    /// Whether eight neighbours stand in one entry.
    pub fn is_grouped(&self) -> bool {
        self.table.is_grouped()
    }

    /// Most holders at a time.
    pub fn holders_max(&self) -> usize {
        self.table.holders()
    }

    // ---- holders --------------------------------------------------------------------------------

    /// The holder of this name, 1 to 200 bytes; a new one if no live one has it. A worker that has lost its blocks is
    /// dropped first. 4 READs for 64 holders that there can be, and some round trips. It may have any blocks
    /// ([`PlacementIndex::holder_with`]).
    ///
    /// Where no bit is known to be free, it cleans the whole table first, as [`PlacementIndex::clean`] does. That
    /// is so in a new table, and where holders were dropped and not cleaned, or what told that bits are free had to
    /// make room for other entries. There is an entry for 64 bits afterwards.
    ///
    /// Its entries are pinned for as long as this handle is connected. They may have to make room afterwards, in a
    /// table that evicts: then the holder is gone.
    ///
    /// # Errors
    /// [`PrefixError::Name`]; [`PrefixError::Holders`] if all bits are live holders'; those of
    /// [`PlacementIndex::clean`].
    pub fn holder(&mut self, name: &str) -> Result<Holder, PrefixError> {
        self.holder_with(name, HolderOptions::new())
    }

    /// The holder of this name, as [`PlacementIndex::holder`], which blocks it has, and whether it goes by itself. Which blocks
    /// it has counts as it was said first, until it is dropped; but a live one of which somebody says that it has any blocks has
    /// them from then on. It goes by itself once somebody has said so, until it is dropped.
    ///
    /// With [`HolderOptions::absent_for`] it makes a connection, which the holder and its clones keep. When they are dropped,
    /// or their process has ended, the holder may be away for that long, in time for which the server was awake
    /// (docs/PROTOCOL.md, O6). Then no lookup tells it any more, half a second later at the latest; adds for it are refused;
    /// and whoever registers a holder where no bit is free, cleans, or calls [`PlacementIndex::drop_absent`] drops it. Who
    /// registers its name before that joins it, with the blocks that it has.
    ///
    /// # Errors
    /// As [`PlacementIndex::holder`]. With `absent_for` [`PrefixError::Table`] if the table keeps no owners
    /// ([`PlacementTable::owners`]), [`PrefixError::Connect`].
    pub fn holder_with(
        &mut self,
        name: &str,
        options: impl Into<HolderOptions>,
    ) -> Result<Holder, PrefixError> {
        let options = options.into();
        loop {
            if let Some(holder) = holders::register(&mut self.client, name, options, self.table.holders())? {
                self.table.pin(&mut self.client)?;
                return Ok(holder);
            }
            self.pass = None;
            self.clean(usize::MAX)?;
        }
    }

    /// All live holders. 2 READs for 64 that there can be, those of the names, and 2 for each that goes by itself.
    ///
    /// # Errors
    /// [`PrefixError::Get`].
    pub fn holders(&mut self) -> Result<Vec<Holder>, PrefixError> {
        holders::all(&mut self.client, self.table.holders())
    }

    /// Hides the holder of this name, whoever registered it and how often it was cleared: as soon as this returns, it has
    /// no block for any reader. (A reader may see it for a moment more while the same name is being registered.) Returns
    /// whether it was there. Its bit is taken out of the sets by [`PlacementIndex::clean`]. 2 READs for 64 holders that there
    /// can be, some more, and 2 round trips, however many blocks it has. It may be repeated.
    ///
    /// # Errors
    /// [`PrefixError::Name`], [`PrefixError::Get`], [`PrefixError::Change`].
    pub fn drop_holder(&mut self, name: &str) -> Result<bool, PrefixError> {
        holders::hide(&mut self.client, name, self.table.holders())
    }

    /// Drops the holders that go by themselves ([`HolderOptions::absent_for`]) and are gone. Returns how many. Lookups leave
    /// them out in any case; this frees their bits for [`PlacementIndex::clean`], which calls it, too. 2 READs for 64 holders
    /// that there can be, 2 for each that goes by itself, and 2 round trips for each that is gone.
    ///
    /// # Errors
    /// [`PrefixError::Get`], [`PrefixError::Change`]. It may be repeated.
    pub fn drop_absent(&mut self) -> Result<usize, PrefixError> {
        holders::drop_absent(&mut self.client, self.table.holders())
    }

    /// Takes holders that were dropped out of the sets, in a step: about `entries` entries are looked at, and those
    /// that have such a holder are changed. Goes on where the last step ended; when all entries were seen, the
    /// bits are free. Call it now and then, from one handle that stays: by several it is no quicker, and what one
    /// has just freed, and a new holder has just added, another may take away.
    ///
    /// Bits of which nothing is known are cleaned, too: all in a new table, and those whose records had to make
    /// room. The handle pins the records of what it cleans for as long as it is connected.
    ///
    /// A client that was stopped in the middle of an add for so long that its holder was dropped, cleaned, and the
    /// bit given again, takes its blocks back when it goes on, with an error. In between, they may be taken for
    /// the next holder's.
    ///
    /// # Errors
    /// [`PrefixError::Scan`], [`PrefixError::Get`], [`PrefixError::Change`]. The next step begins a pass again.
    pub fn clean(&mut self, entries: usize) -> Result<Cleaned, PrefixError> {
        let begun = self.pass.take();
        let is_first = begun.is_none();
        let mut pass = match begun {
            Some(pass) => pass,
            None => {
                let targets = holders::leaving(&mut self.client, self.table.holders())?;
                Pass { cursor: None, targets }
            }
        };
        let all = |pass: &Pass| pass.targets.iter().map(|(bit, _)| *bit).collect::<HolderSet>();
        let mut cleaned = Cleaned::default();
        while cleaned.entries < entries.max(1) {
            if pass.targets.is_empty() {
                return Ok(Cleaned { is_done: is_first && cleaned.entries == 0, ..cleaned });
            }
            let Some(batch) = self.next_entries(&mut pass.cursor)? else {
                cleaned.freed = holders::free(&mut self.client, &pass.targets, self.table.holders())?;
                return Ok(cleaned);
            };
            cleaned.entries += batch.len();
            let block = |entry: ScannedKey| Some((Key::try_from(entry.key).ok()?, entry.value?));
            let mut blocks: Vec<(Key, Vec<u8>)> = batch.into_iter().filter_map(block).collect();
            let gone = all(&pass);
            blocks.retain(|(_, value)| self.has(value, &gone));
            if blocks.is_empty() {
                continue;
            }
            // Another client may have cleaned one meanwhile, and the bit be somebody else's. If it is not by now,
            // what was read is not somebody else's either.
            holders::still(&mut self.client, &mut pass.targets, self.table.holders())?;
            let gone = all(&pass);
            blocks.retain(|(_, value)| self.has(value, &gone));
            match self.table.form {
                Form::Single => {
                    let bits = gone.to_bytes();
                    // No entry gets a bit that nobody has.
                    let part = |(key, value): (Key, Vec<u8>)| (key, bits.len().min(value.len()));
                    let blocks: Vec<_> = blocks.into_iter().map(part).collect();
                    self.take_bits(blocks.iter().map(|(key, length)| (key, &bits[..*length])))?;
                }
                Form::Grouped => self.clean_groups(blocks, &gone)?,
            }
        }
        self.pass = Some(pass);
        Ok(cleaned)
    }

    /// The next entries of a walk over the table. `None` at its end.
    fn next_entries(
        &mut self,
        cursor: &mut Option<ScanCursor>,
    ) -> Result<Option<Vec<ScannedKey>>, PrefixError> {
        let mut scan = self.client.scan().values(true);
        if let Some(cursor) = cursor.take() {
            scan = scan.from(cursor);
        }
        let batch = scan.next_batch()?;
        *cursor = Some(scan.cursor());
        Ok(batch)
    }

    /// Whether an entry has one of these holders.
    fn has(&self, value: &[u8], holders: &HolderSet) -> bool {
        match self.table.form {
            Form::Single => holders.meets(value),
            Form::Grouped => Group::of(value).is_some_and(|group| group.has(holders)),
        }
    }

    // ---- changes --------------------------------------------------------------------------------

    /// A holder has blocks: all of these digests from `from` on. In a grouped table `digests` begin with a prompt's
    /// first block; in the other they may be any, and those before `from` play no part. Repeated, it changes nothing.
    /// Returns how many blocks it did not have before; in a grouped table, how many entries were changed.
    ///
    /// Costs 4 READs and what [`Client::put_many`] costs; in a grouped table 1 READ and 1 compare-and-swap for each
    /// group. A value of more than its slot holds takes a READ more.
    ///
    /// # Errors
    /// [`PrefixError::HolderGone`] if the holder was dropped, before or meanwhile; what was added is then taken back.
    /// [`PrefixError::Change`], [`PrefixError::Refused`] (a full table): some may have been added.
    pub fn add(&mut self, holder: &Holder, digests: &Digests<'_>, from: usize) -> Result<usize, PrefixError> {
        let added = self.add_each(holder, digests, from)?;
        match added.refused.into_iter().next() {
            Some((_, why)) => Err(PrefixError::Refused(why)),
            None => Ok(added.changed),
        }
    }

    /// As [`PlacementIndex::add`], and says which blocks the table has no room for: the others are added. In a grouped
    /// table a refusal is an error.
    ///
    /// # Errors
    /// As [`PlacementIndex::add`].
    pub fn add_each(
        &mut self,
        holder: &Holder,
        digests: &Digests<'_>,
        from: usize,
    ) -> Result<Added, PrefixError> {
        holders::check(&mut self.client, holder)?;
        let bit = HolderSet::of(holder.bit);
        let keys = digests.keys();
        let added = match self.table.form {
            Form::Single => self.add_to(keys, from, &bit),
            Form::Grouped => self
                .change_groups(keys, from, &bit, Change::Add)
                .map(|changed| Added { changed, refused: Vec::new() }),
        };
        // Also where some were refused: the others are there.
        if let Err(gone) = holders::check(&mut self.client, holder) {
            self.take(keys, from, &bit)?;
            return Err(gone);
        }
        added
    }

    /// A holder no longer has blocks: these digests from `from` on, as in [`PlacementIndex::add`]. Blocks without a
    /// holder are removed. Returns how many it had; in a grouped table, how many entries were changed. Costs what
    /// [`PlacementIndex::add`] costs, and as much again for blocks that are removed; in a grouped table 1 READ for
    /// each block of these groups, all under way at once, and 1 compare-and-swap for each entry that has one.
    ///
    /// # Errors
    /// As [`PlacementIndex::add`].
    pub fn remove(
        &mut self,
        holder: &Holder,
        digests: &Digests<'_>,
        from: usize,
    ) -> Result<usize, PrefixError> {
        holders::check(&mut self.client, holder)?;
        self.take(digests.keys(), from, &HolderSet::of(holder.bit))
    }

    fn take(&mut self, keys: &[Key], from: usize, holder: &HolderSet) -> Result<usize, PrefixError> {
        match self.table.form {
            Form::Single => {
                let bits = holder.to_bytes();
                self.take_bits(keys[from.min(keys.len())..].iter().map(|key| (key, &bits[..])))
            }
            Form::Grouped => self.change_groups(keys, from, holder, Change::Take),
        }
    }

    fn add_to(&mut self, keys: &[Key], from: usize, holder: &HolderSet) -> Result<Added, PrefixError> {
        let bits = &holder.to_bytes()[..];
        let keys = keys.iter().enumerate().skip(from);
        let (blocks, parts): (Vec<_>, Vec<_>) =
            keys.map(|(block, key)| (block, (key, PartChange::OrPadded { bits }))).unzip();
        let mut added = Added::default();
        for (block, outcome) in blocks.into_iter().zip(self.client.change_parts(&parts, Tell::Nothing)?) {
            match outcome.map(|outcome| outcome.effect) {
                Ok(PartEffect::Inserted | PartEffect::Updated) => added.changed += 1,
                Ok(_) => {}
                Err(why) => added.refused.push((block, why)),
            }
        }
        Ok(added)
    }

    /// Takes these bits out of the sets of blocks, and removes blocks that nobody has any more. Of several bits, all are
    /// within the set. Returns how many had one.
    fn take_bits<'a>(
        &mut self,
        bits: impl Iterator<Item = (&'a Key, &'a [u8])>,
    ) -> Result<usize, PrefixError> {
        let parts: Vec<_> = bits.map(|(key, bits)| (key, PartChange::AndNot { bits })).collect();
        let (mut taken, mut empty) = (0, Vec::new());
        for ((key, _), outcome) in parts.iter().zip(self.client.change_parts(&parts, Tell::After)?) {
            let outcome = match outcome {
                // It is not as wide as the holder's bit: it does not have it.
                Err(PutError::Part(PartError::BitsLength { .. })) => continue,
                outcome => outcome?,
            };
            taken += usize::from(outcome.effect == PartEffect::Updated);
            let is_empty = outcome.value.as_deref().is_some_and(|set| HolderSet::from_bytes(set).is_empty());
            if is_empty {
                // Unless somebody has added a holder again.
                empty.push((*key, outcome.value, None));
            }
        }
        for removed in self.client.compare_exchange_many(&empty)? {
            removed?;
        }
        Ok(taken)
    }

    // ---- groups ---------------------------------------------------------------------------------

    /// Changes the sets of a prompt's blocks from `from` on. Returns how many entries were changed.
    fn change_groups(
        &mut self,
        keys: &[Key],
        from: usize,
        holders: &HolderSet,
        change: Change,
    ) -> Result<usize, PrefixError> {
        let mut left: Vec<usize> = (from / GROUP..keys.len().div_ceil(GROUP)).collect();
        let mut changed = 0;
        for _ in 0..ROUNDS {
            if left.is_empty() {
                return Ok(changed);
            }
            let (mut entries, mut again) = (Entries::new(), Vec::new());
            let blocks_of = |group: usize| group * GROUP..keys.len().min((group + 1) * GROUP);
            // A block may stand in its own entry also where the first one does not say so: that may have had to make
            // room, and have come again. What is not taken out of there would be told when it is branched again.
            let begun_by = |&group: &usize| match change {
                Change::Add => group * GROUP..group * GROUP + 1,
                Change::Take => blocks_of(group),
            };
            let (mut owners, mut begins) = (Vec::new(), Vec::new());
            for group in &left {
                for block in begun_by(group) {
                    owners.push(*group);
                    begins.push(keys[block]);
                }
            }
            for ((group, key), value) in owners.into_iter().zip(&begins).zip(self.client.get_many(&begins)?) {
                let entry = self.entry(group, value.ok().flatten());
                entries.entry(*key).or_insert(entry);
            }
            for &group in &left {
                let blocks = blocks_of(group);
                match change {
                    Change::Take => take_in_group(keys, blocks, from, holders, &mut entries),
                    Change::Add => {
                        if !self.add_in_group(keys, blocks, from, holders, &mut entries)? {
                            again.push(group);
                        }
                    }
                }
            }
            let (mut groups, mut swaps) = (Vec::new(), Vec::new());
            for (key, entry) in entries {
                let after = entry.after.to_bytes();
                if entry.before != after {
                    groups.push(entry.group);
                    swaps.push((key, entry.before, after));
                }
            }
            for (group, outcome) in groups.into_iter().zip(self.client.compare_exchange_many(&swaps)?) {
                match outcome? {
                    SwapOutcome::Swapped => changed += 1,
                    // Somebody else's change came between.
                    _ => again.push(group),
                }
            }
            again.sort_unstable();
            again.dedup();
            left = again;
        }
        Err(PrefixError::Busy { rounds: ROUNDS })
    }

    /// Adds holders to the blocks of one group, beginning with the entry of its first block. Returns whether all is
    /// done: an entry is branched for all to see before that of a block that did not find room is begun.
    fn add_in_group(
        &mut self,
        keys: &[Key],
        blocks: Range<usize>,
        from: usize,
        holders: &HolderSet,
        entries: &mut Entries,
    ) -> Result<bool, PrefixError> {
        let group = blocks.start / GROUP;
        let mut path = vec![keys[blocks.start]];
        for block in blocks {
            let (key, tag) = (keys[block], tag_of(&keys[block]));
            let has = |at: &&Key| entries.get(*at).is_some_and(|entry| entry.after.has(tag));
            let at = match (path.iter().find(has), path.last()) {
                (Some(at), _) => *at,
                (None, Some(last)) if *last == key || !entries.get(last).is_some_and(Entry::is_branched) => {
                    *last
                }
                _ => {
                    self.bring(group, &key, entries)?;
                    path.push(key);
                    key
                }
            };
            let Some(entry) = entries.get_mut(&at).filter(|_| block >= from) else { continue };
            let head = tag_of(&at);
            if !entry.after.add(tag, holders, head) {
                entry.after.branch(head);
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// READs the entry that a block may have begun, unless it is known.
    fn bring(&mut self, group: usize, key: &Key, entries: &mut Entries) -> Result<(), PrefixError> {
        if !entries.contains_key(key) {
            let value = self.client.get(key)?;
            entries.insert(*key, self.entry(group, value));
        }
        Ok(())
    }

    fn entry(&self, group: usize, before: Option<Vec<u8>>) -> Entry {
        let after = self.owned(before.as_deref());
        Entry { group, before, after }
    }

    /// A group to be changed. What is no group is replaced.
    fn owned(&self, value: Option<&[u8]>) -> OwnedGroup {
        value.and_then(Group::of).map(Group::to_owned).unwrap_or_default()
    }

    fn clean_groups(&mut self, blocks: Vec<(Key, Vec<u8>)>, gone: &HolderSet) -> Result<(), PrefixError> {
        let mut left = blocks;
        for _ in 0..ROUNDS {
            if left.is_empty() {
                return Ok(());
            }
            let swaps: Vec<_> = left
                .drain(..)
                .map(|(key, before)| {
                    let mut group = self.owned(Some(&before));
                    group.take(None, gone);
                    (key, Some(before), group.to_bytes())
                })
                .collect();
            let outcomes = self.client.compare_exchange_many(&swaps)?;
            for ((key, ..), outcome) in swaps.into_iter().zip(outcomes) {
                if outcome? == SwapOutcome::Differs
                    && let Some(value) = self.client.get(&key)?.filter(|value| self.has(value, gone))
                {
                    left.push((key, value));
                }
            }
        }
        Err(PrefixError::Busy { rounds: ROUNDS })
    }

    /// What its client counts: GETs, READs, bytes, round trips.
    pub fn stats(&self) -> ClientStats {
        self.client.stats()
    }

    /// The client, for all else.
    pub fn client(&mut self) -> &mut Client {
        &mut self.client
    }
}

/// An entry as it is, and as it is to be, with the number of its group in the prompt.
#[derive(Debug)]
struct Entry {
    group: usize,
    before: Option<Vec<u8>>,
    after: OwnedGroup,
}

impl Entry {
    fn is_branched(&self) -> bool {
        self.after.is_branched
    }
}

type Entries = BTreeMap<Key, Entry>;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Change {
    Add,
    Take,
}

/// Takes holders out of the blocks of one group, in each entry where they may stand: one that a block before has
/// begun, or their own.
fn take_in_group(
    keys: &[Key],
    blocks: Range<usize>,
    from: usize,
    holders: &HolderSet,
    entries: &mut Entries,
) {
    for block in blocks.clone().filter(|&block| block >= from) {
        for at in &keys[blocks.start..=block] {
            if let Some(entry) = entries.get_mut(at) {
                entry.after.take(Some(tag_of(&keys[block])), holders);
            }
        }
    }
}
