//! Who has each block, and how long a prefix each holder has.

use crate::digests::{Digests, KEY_BYTES, Key};
use crate::directory::Directory;
use crate::error::PrefixError;
use crate::groups::{GROUP, Group, OwnedGroup, tag_of, value_max};
use crate::holders::{self, HOLDERS_MAX, Holder, HolderSet, Record};
use oneread::stats::ClientStats;
use oneread::{Client, Config, PartChange, PartEffect, ScanCursor, ScannedKey, SwapOutcome, TableSize, Tell};
use std::collections::BTreeMap;
use std::ops::{ControlFlow, Range};

/// Others may come between so often where a group is changed.
const ROUNDS: u32 = 1_000;

/// A lookup is made so often where holders are registered meanwhile. Those that are registered during the last one are
/// left out.
const LOOKS: usize = 3;

/// How blocks stand in a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    /// Each in an entry of its own.
    Single,
    /// Eight neighbours of a prompt in one.
    Grouped,
}

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

/// What a holder has of a prompt.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct HolderPrefix {
    /// Who.
    pub holder: Holder,
    /// How many blocks from the first one on, at least 1.
    pub blocks: usize,
}

/// A pass over the table that takes holders out of all sets.
#[derive(Clone, Debug)]
struct Pass {
    cursor: Option<ScanCursor>,
    targets: Vec<(u16, Record)>,
}

/// Who has each block: digest -> a set of up to 256 holders.
///
/// [`PlacementIndex::match_prefix`] answers what a router asks: how long a prefix has each worker? It is one pass
/// over the prompt, by READs of the caller, and ends when no holder is left.
///
/// A table has one of two forms, chosen when it is made:
///
/// | made by | an entry | READs a block | for |
/// |---|---|---|---|
/// | [`PlacementIndex::config`] | a block, in one line of 64 bytes | 1 | digests in any order: events without position, single keys |
/// | [`PlacementIndex::grouped_config`] | eight neighbours of a prompt, in six lines (256 holders) | 1/8, and more where prompts part | digests from a prompt's first block on |
///
/// Blocks stay when their holders restart: the index is the server's, not the router's. Changes are requests to the
/// server, which makes each in one step; of single blocks many at a time, of groups by compare-and-swap.
///
/// `Send`, one handle a thread, as [`Client`]; [`Clone`] makes another one.
#[derive(Clone, Debug)]
pub struct PlacementIndex {
    client: Client,
    form: Form,
    /// Bytes of a set.
    width: usize,
    pass: Option<Pass>,
    directory: Directory,
    /// Memory for the lengths of a lookup, one for each bit.
    lengths: Vec<u32>,
    /// Memory for values of groups.
    values: Vec<Vec<u8>>,
}

/// Bytes of sets of so many holders.
fn width_of(holders: usize) -> Result<usize, PrefixError> {
    match holders {
        1..=HOLDERS_MAX => Ok(holders.div_ceil(8)),
        given => Err(PrefixError::HolderCount { given, max: HOLDERS_MAX }),
    }
}

impl PlacementIndex {
    /// What a table is made from that has an entry for each block: one line of 64 bytes for up to 256 holders. With
    /// [`Config::life`] replaced by `true` one line is enough for 160. There is an entry more for each bit that a
    /// holder can have, and for 20 bytes of each name.
    ///
    /// # Errors
    /// [`PrefixError::HolderCount`] for none, or more than [`HOLDERS_MAX`].
    pub fn config(size: TableSize, holders: usize) -> Result<Config, PrefixError> {
        let config = Config::new().size(size).key_max(KEY_BYTES);
        Ok(config.value_max(width_of(holders)?.max(20)))
    }

    /// What a table is made from that has an entry for eight neighbours of a prompt: six lines for 256 holders,
    /// five for 160, four for 96. [`TableSize::Keys`] then counts groups.
    ///
    /// # Errors
    /// [`PrefixError::HolderCount`] for none, or more than [`HOLDERS_MAX`].
    pub fn grouped_config(size: TableSize, holders: usize) -> Result<Config, PrefixError> {
        let config = Config::new().size(size).key_max(KEY_BYTES);
        Ok(config.value_max(value_max(width_of(holders)?)))
    }

    /// Over the table of this client. The client is nobody's: it has no owner.
    ///
    /// # Errors
    /// [`PrefixError::Table`] if the table was not made for this.
    pub fn new(client: Client) -> Result<PlacementIndex, PrefixError> {
        let (key_max, longest) = (client.geometry().key_max(), client.value_max());
        let (form, width) = if longest <= HOLDERS_MAX / 8 {
            (Form::Single, longest)
        } else {
            let width = (1..=HOLDERS_MAX / 8).find(|&width| value_max(width) == longest);
            (Form::Grouped, width.unwrap_or_default())
        };
        if key_max < KEY_BYTES || width == 0 || form == Form::Single && width < 20 {
            let address = Box::new(client.address().clone());
            let why = "has other lengths of keys and values";
            return Err(PrefixError::Table { address, why, index: "PlacementIndex" });
        }
        let (directory, lengths) = (Directory::default(), Vec::new());
        Ok(PlacementIndex { client, form, width, pass: None, directory, lengths, values: Vec::new() })
    }

    /// Whether eight neighbours stand in one entry.
    pub fn is_grouped(&self) -> bool {
        self.form == Form::Grouped
    }

    /// Most holders at a time.
    pub fn holders_max(&self) -> usize {
        self.width * 8
    }

    // ---- holders --------------------------------------------------------------------------------

    /// The holder of this name, 1 to 200 bytes; a new one if no live one has it. A worker that has lost its blocks is
    /// dropped first. 1 READ for each bit there can be, and some round trips.
    ///
    /// Where no bit is known to be free, it cleans the whole table first, as [`PlacementIndex::clean`] does. That
    /// is so in a new table, and where holders were dropped and not cleaned, or what told that bits are free had to
    /// make room for other entries. There is an entry for each bit afterwards.
    ///
    /// Its entries are pinned for as long as this handle is connected. They may have to make room afterwards, in a
    /// table that evicts: then the holder is gone.
    ///
    /// # Errors
    /// [`PrefixError::Name`]; [`PrefixError::Holders`] if all bits are live holders'; those of
    /// [`PlacementIndex::clean`].
    pub fn holder(&mut self, name: &str) -> Result<Holder, PrefixError> {
        loop {
            if let Some(holder) = holders::register(&mut self.client, name, self.width)? {
                return Ok(holder);
            }
            self.pass = None;
            self.clean(usize::MAX)?;
        }
    }

    /// All live holders. 1 READ for each bit there can be, and those of the names.
    ///
    /// # Errors
    /// [`PrefixError::Get`].
    pub fn holders(&mut self) -> Result<Vec<Holder>, PrefixError> {
        holders::all(&mut self.client, self.width)
    }

    /// Hides the holder of this name, whoever registered it and how often it was cleared: as soon as this returns, it has
    /// no block for any reader. (A reader may see it for a moment more while the same name is being registered.) Returns
    /// whether it was there. Its bit is taken out of the sets by [`PlacementIndex::clean`]. 1 READ for each bit there can
    /// be, some READs and 2 round trips, however many blocks it has. It may be repeated.
    ///
    /// # Errors
    /// [`PrefixError::Name`], [`PrefixError::Get`], [`PrefixError::Change`].
    pub fn drop_holder(&mut self, name: &str) -> Result<bool, PrefixError> {
        holders::hide(&mut self.client, name, self.width)
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
            None => Pass { cursor: None, targets: holders::leaving(&mut self.client, self.width)? },
        };
        let all = |pass: &Pass| {
            pass.targets.iter().fold(HolderSet::default(), |all, (of, _)| all.or(HolderSet::of(*of)))
        };
        let mut cleaned = Cleaned::default();
        while cleaned.entries < entries.max(1) {
            if pass.targets.is_empty() {
                return Ok(Cleaned { is_done: is_first && cleaned.entries == 0, ..cleaned });
            }
            let Some(batch) = self.next_entries(&mut pass.cursor)? else {
                cleaned.freed = holders::free(&mut self.client, pass.targets)?;
                return Ok(cleaned);
            };
            cleaned.entries += batch.len();
            let block = |entry: ScannedKey| Some((Key::try_from(entry.key).ok()?, entry.value?));
            let mut blocks: Vec<(Key, Vec<u8>)> = batch.into_iter().filter_map(block).collect();
            let gone = all(&pass);
            blocks.retain(|(_, value)| self.has(value, gone));
            if blocks.is_empty() {
                continue;
            }
            // Another client may have cleaned one meanwhile, and the bit be somebody else's. If it is not by now,
            // what was read is not somebody else's either.
            holders::still(&mut self.client, &mut pass.targets)?;
            let gone = all(&pass);
            blocks.retain(|(_, value)| self.has(value, gone));
            match self.form {
                Form::Single => {
                    let keys: Vec<Key> = blocks.into_iter().map(|(key, _)| key).collect();
                    self.take_from(&keys, gone)?;
                }
                Form::Grouped => self.clean_groups(blocks, gone)?,
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
    fn has(&self, value: &[u8], holders: HolderSet) -> bool {
        match self.form {
            Form::Single => !HolderSet::from_bytes(value).and(holders).is_empty(),
            Form::Grouped => Group::of(value, self.width).is_some_and(|group| {
                let group = group.to_owned();
                let mut without = group.clone();
                without.take(None, holders);
                group != without
            }),
        }
    }

    // ---- changes --------------------------------------------------------------------------------

    /// A holder has blocks: all of these digests from `from` on. In a grouped table `digests` begin with a prompt's
    /// first block; in the other they may be any, and those before `from` play no part. Repeated, it changes nothing.
    /// Returns how many blocks it did not have before; in a grouped table, how many entries were changed.
    ///
    /// Costs 2 READs and what [`Client::put_many`] costs; in a grouped table 1 READ and 1 compare-and-swap for each
    /// group.
    ///
    /// # Errors
    /// [`PrefixError::HolderGone`] if the holder was dropped, before or meanwhile; what was added is then taken back.
    /// [`PrefixError::Change`], [`PrefixError::Refused`] (a full table): some may have been added.
    pub fn add(&mut self, holder: &Holder, digests: &Digests<'_>, from: usize) -> Result<usize, PrefixError> {
        holders::check(&mut self.client, holder)?;
        let bit = HolderSet::of(holder.bit);
        let keys = digests.keys();
        let added = match self.form {
            Form::Single => self.add_to(&keys[from.min(keys.len())..], bit)?,
            Form::Grouped => self.change_groups(keys, from, bit, Change::Add)?,
        };
        if let Err(gone) = holders::check(&mut self.client, holder) {
            self.take(keys, from, bit)?;
            return Err(gone);
        }
        Ok(added)
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
        self.take(digests.keys(), from, HolderSet::of(holder.bit))
    }

    fn take(&mut self, keys: &[Key], from: usize, holders: HolderSet) -> Result<usize, PrefixError> {
        match self.form {
            Form::Single => self.take_from(&keys[from.min(keys.len())..], holders),
            Form::Grouped => self.change_groups(keys, from, holders, Change::Take),
        }
    }

    fn add_to(&mut self, keys: &[Key], holder: HolderSet) -> Result<usize, PrefixError> {
        let bits = holder.to_bytes(self.width);
        let pairs: Vec<(&Key, &[u8])> = keys.iter().map(|key| (key, &bits[..])).collect();
        let mut added = 0;
        for effect in self.client.or_many(&pairs)? {
            added += usize::from(matches!(effect?, PartEffect::Inserted | PartEffect::Updated));
        }
        Ok(added)
    }

    fn take_from(&mut self, keys: &[Key], holders: HolderSet) -> Result<usize, PrefixError> {
        let bits = &holders.to_bytes(self.width)[..];
        let parts: Vec<_> = keys.iter().map(|key| (key, PartChange::AndNot { bits })).collect();
        let (mut taken, mut empty) = (0, Vec::new());
        for (key, outcome) in keys.iter().zip(self.client.change_parts(&parts, Tell::After)?) {
            let outcome = outcome?;
            taken += usize::from(outcome.effect == PartEffect::Updated);
            let is_empty = outcome.value.as_deref().is_some_and(|set| HolderSet::from_bytes(set).is_empty());
            if is_empty {
                // Unless somebody has added a holder again.
                empty.push((key, outcome.value, None));
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
        holders: HolderSet,
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
                let after = entry.after.to_bytes(self.width);
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
        holders: HolderSet,
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
        value.and_then(|value| Group::of(value, self.width)).map(Group::to_owned).unwrap_or_default()
    }

    fn clean_groups(&mut self, blocks: Vec<(Key, Vec<u8>)>, gone: HolderSet) -> Result<(), PrefixError> {
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
                    (key, Some(before), group.to_bytes(self.width))
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

    // ---- lookups --------------------------------------------------------------------------------

    /// Who has how long a prefix of these blocks, into `found`: those that have the first block, the longest prefix first.
    /// Returns the longest. What is told of a name is of that name, whoever had its bit before or gets it during the
    /// lookup.
    ///
    /// 2 READs for the live holders and the epoch, and 1 a block, in a grouped table 1 for eight and more where prompts
    /// part; no more than 128 READs behind the longest prefix. A block that nobody has ends all of them. The first lookup
    /// of a handle, and the first after a registration, READ who has each bit besides: 1 READ a bit, and the names.
    ///
    /// # Errors
    /// [`PrefixError::Get`].
    pub fn match_prefix(
        &mut self,
        digests: &Digests<'_>,
        found: &mut Vec<HolderPrefix>,
    ) -> Result<usize, PrefixError> {
        found.clear();
        let mut lengths = std::mem::take(&mut self.lengths);
        let looked = self.look(|index, live| index.match_once(digests.keys(), live, &mut lengths));
        let told = looked.and_then(|((), told)| {
            told.for_each_while(|bit| {
                if let Some(&blocks @ 1..) = lengths.get(bit)
                    && let Some(holder) = self.directory.holder(&mut self.client, bit as u16)?
                {
                    found.push(HolderPrefix { holder, blocks: blocks as usize });
                }
                Ok(())
            })
        });
        self.lengths = lengths;
        told?;
        found.sort_by_key(|one| std::cmp::Reverse(one.blocks));
        Ok(found.first().map_or(0, |longest| longest.blocks))
    }

    /// Makes a lookup of the live holders, again where others are registered meanwhile. Returns also of whom the answer
    /// is to be told: those that had their bits all the while.
    fn look<R: Default>(
        &mut self,
        mut once: impl FnMut(&mut PlacementIndex, HolderSet) -> Result<R, PrefixError>,
    ) -> Result<(R, HolderSet), PrefixError> {
        let mut look = 1;
        loop {
            let live = holders::live(&mut self.client)?;
            if live.is_empty() {
                return Ok((R::default(), live));
            }
            self.directory.prepare(&mut self.client, self.width)?;
            let answer = once(self, live)?;
            let Some(kept) = self.directory.kept(&mut self.client, self.width)? else {
                return Ok((answer, live));
            };
            if look == LOOKS || self.directory.named().and_not(kept).is_empty() {
                return Ok((answer, live.and(kept)));
            }
            look += 1;
        }
    }

    fn match_once(
        &mut self,
        keys: &[Key],
        live: HolderSet,
        lengths: &mut Vec<u32>,
    ) -> Result<(), PrefixError> {
        lengths.clear();
        lengths.resize(self.holders_max(), 0);
        if keys.is_empty() {
            return Ok(());
        }
        let mut pass = Match { left: live, lengths };
        match self.form {
            Form::Single => {
                let _ = self.client.get_many_in_order(keys, |block, answer| match answer {
                    Ok(Some(set)) => pass.block(block, HolderSet::from_bytes(set)),
                    _ => pass.block::<()>(block, HolderSet::default()),
                })?;
            }
            Form::Grouped => self.match_groups(keys, &mut pass)?,
        }
        pass.end(keys.len());
        Ok(())
    }

    /// Calls `each` with every block and every live holder that has it, whether they have those before it or not.
    /// 2 READs for the live holders and the epoch, and 1 a block; who has each bit is READ as of
    /// [`PlacementIndex::match_prefix`].
    ///
    /// # Errors
    /// [`PrefixError::Grouped`] for a table whose blocks stand in groups; [`PrefixError::Get`].
    pub fn holders_of(
        &mut self,
        digests: &Digests<'_>,
        mut each: impl FnMut(usize, &Holder),
    ) -> Result<(), PrefixError> {
        if self.is_grouped() {
            return Err(PrefixError::Grouped);
        }
        let (sets, told) = self.look(|index, live| {
            let mut sets = vec![HolderSet::default(); digests.len()];
            let _ = index.client.get_many_in_order(digests.keys(), |block, answer| {
                if let Ok(Some(set)) = answer {
                    sets[block] = HolderSet::from_bytes(set).and(live);
                }
                ControlFlow::<()>::Continue(())
            })?;
            Ok(sets)
        })?;
        let mut holders = vec![None; self.holders_max()];
        let all = sets.iter().fold(HolderSet::default(), |all, set| all.or(*set)).and(told);
        all.for_each_while(|bit| {
            holders[bit] = self.directory.holder(&mut self.client, bit as u16)?;
            Ok::<_, PrefixError>(())
        })?;
        for (block, set) in sets.iter().enumerate() {
            set.and(all).for_each(|bit| holders[bit].iter().for_each(|holder| each(block, holder)));
        }
        Ok(())
    }

    fn match_groups(&mut self, keys: &[Key], pass: &mut Match<'_>) -> Result<(), PrefixError> {
        let mut values = std::mem::take(&mut self.values);
        let matched = self.match_groups_in(keys, pass, &mut values);
        self.values = values;
        matched
    }

    /// `values` is memory for the entries of a prompt's path through a group.
    fn match_groups_in(
        &mut self,
        keys: &[Key],
        pass: &mut Match<'_>,
        values: &mut Vec<Vec<u8>>,
    ) -> Result<(), PrefixError> {
        let heads: Vec<Key> = keys.iter().step_by(GROUP).copied().collect();
        let (width, mut first) = (self.width, 0);
        values.resize(GROUP, Vec::new());
        while first < heads.len() {
            // Breaks off with the block whose entry is to be READ before the next group is.
            let stopped = self.client.get_many_in_order(&heads[first..], |nth, answer| {
                let blocks = (first + nth) * GROUP..keys.len().min((first + nth + 1) * GROUP);
                let value = answer.ok().flatten().unwrap_or_default();
                pass.group(keys, blocks, Group::of(value, width).as_slice()).map_break(|branch| {
                    values[0].clear();
                    values[0].extend_from_slice(value);
                    branch
                })
            })?;
            let ControlFlow::Break(mut branch) = stopped else { break };
            for nth in 1.. {
                let Some(block) = branch else { return Ok(()) };
                if !self.client.get_into(&keys[block], &mut values[nth])? {
                    values[nth].clear();
                }
                let path: Vec<_> =
                    values[..=nth].iter().filter_map(|value| Group::of(value, width)).collect();
                let end = keys.len().min((block / GROUP + 1) * GROUP);
                match pass.group(keys, block..end, &path) {
                    ControlFlow::Continue(()) => {
                        first = end.div_ceil(GROUP);
                        break;
                    }
                    ControlFlow::Break(next) => branch = next,
                }
            }
        }
        Ok(())
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
fn take_in_group(keys: &[Key], blocks: Range<usize>, from: usize, holders: HolderSet, entries: &mut Entries) {
    for block in blocks.clone().filter(|&block| block >= from) {
        for at in &keys[blocks.start..=block] {
            if let Some(entry) = entries.get_mut(at) {
                entry.after.take(Some(tag_of(&keys[block])), holders);
            }
        }
    }
}

/// A pass over a prompt.
struct Match<'a> {
    /// Holders that have all blocks so far.
    left: HolderSet,
    lengths: &'a mut [u32],
}

impl Match<'_> {
    /// The block has these holders. Breaks off when none is left.
    #[inline]
    fn block<B: Default>(&mut self, block: usize, set: HolderSet) -> ControlFlow<B> {
        let next = self.left.and(set);
        if next != self.left {
            let gone = self.left.and_not(set);
            gone.for_each(|bit| {
                if let Some(length) = self.lengths.get_mut(bit) {
                    *length = block as u32;
                }
            });
            self.left = next;
        }
        if next.is_empty() { ControlFlow::Break(B::default()) } else { ControlFlow::Continue(()) }
    }

    /// The blocks of a group, or those from one on that may have begun the last entry of the path. Breaks off with the
    /// next one that may have begun an entry, or with nothing, when no holder is left.
    #[inline]
    fn group(
        &mut self,
        keys: &[Key],
        blocks: Range<usize>,
        path: &[Group<'_>],
    ) -> ControlFlow<Option<usize>> {
        for (hint, block) in blocks.enumerate() {
            let tag = tag_of(&keys[block]);
            let set = path.iter().find_map(|group| group.set(tag, hint));
            if set.is_none() && hint > 0 && path.last().is_some_and(Group::is_branched) {
                return ControlFlow::Break(Some(block));
            }
            self.block(block, set.unwrap_or_default())?;
        }
        ControlFlow::Continue(())
    }

    /// Those that are left have all blocks.
    fn end(&mut self, blocks: usize) {
        if !self.left.is_empty() {
            self.left.for_each(|bit| {
                if let Some(length) = self.lengths.get_mut(bit) {
                    *length = blocks as u32;
                }
            });
        }
    }
}
