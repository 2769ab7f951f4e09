//! Lookups: who has how long a prefix, and who has each block.

use crate::digests::{Digests, Key};
use crate::error::PrefixError;
use crate::groups::{GROUP, Group};
use crate::holders::{self, Holder};
use crate::passes::Match;
use crate::placement::PlacementIndex;
use crate::sets::HolderSet;
use crate::table::Form;
use std::ops::ControlFlow;

/// A lookup is made so often where holders are registered meanwhile. Those that are registered during the last one are
/// left out.
const LOOKS: usize = 3;

/// What a holder has of a prompt.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct HolderPrefix {
    /// Who.
    pub holder: Holder,
    /// How many blocks from the first one on, at least 1.
    pub blocks: usize,
}

/// Who has a block, as its entry says ([`PlacementIndex::sets`]).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BlockSet(HolderSet);

impl BlockSet {
    /// From the value of a block's entry, in a table whose blocks have entries of their own.
    pub fn from_bytes(value: &[u8]) -> BlockSet {
        BlockSet(HolderSet::from_bytes(value))
    }

    /// Whether this holder is in it.
    pub fn has(&self, holder: &Holder) -> bool {
        self.0.has(holder.bit)
    }

    /// Whether somebody else is in it than this holder.
    pub fn has_others(&self, holder: Option<&Holder>) -> bool {
        let own = holder.map(|holder| HolderSet::of(holder.bit)).unwrap_or_default();
        !self.0.and_not(&own).is_empty()
    }

    /// Nobody has the block, or there is no entry of it.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl PlacementIndex {
    /// Who has how long a prefix of these blocks, into `found`: those that have the first block, the longest prefix first.
    /// Returns the longest. What is told of a name is of that name, whoever had its bit before or gets it during the
    /// lookup.
    ///
    /// 2 READs for the live holders and the epoch, and 1 a block, in a grouped table 1 for eight and more where prompts
    /// part; no more than 128 READs behind the longest prefix. Values that do not fit their slots take 3 more
    /// ([`PlacementTable`](crate::PlacementTable)). A block that nobody has ends all of them. The first lookup of a handle, and
    /// the first after a registration, READ who has each bit besides: 2 READs for 64, and the names. Where holders go by
    /// themselves ([`HolderOptions::absent_for`](crate::HolderOptions)), a lookup READs twice a second which of them are there:
    /// 2 READs for 64, and 2 for each.
    ///
    /// # Errors
    /// [`PrefixError::Get`].
    pub fn match_prefix(
        &mut self,
        digests: &Digests<'_>,
        found: &mut Vec<HolderPrefix>,
    ) -> Result<usize, PrefixError> {
        found.clear();
        let mut lengths = std::mem::take(&mut self.memory.lengths);
        let looked = self.look(|index, live| index.match_once(digests.keys(), live, &mut lengths));
        let told = looked.and_then(|((), told)| self.tell(&told, &lengths, found));
        self.memory.lengths = lengths;
        told?;
        found.sort_by_key(|one| std::cmp::Reverse(one.blocks));
        Ok(found.first().map_or(0, |longest| longest.blocks))
    }

    /// Puts those of these holders into `found` that have a block.
    fn tell(
        &mut self,
        told: &HolderSet,
        lengths: &[u32],
        found: &mut Vec<HolderPrefix>,
    ) -> Result<(), PrefixError> {
        for bit in told.bits() {
            if let Some(&blocks @ 1..) = lengths.get(usize::from(bit))
                && let Some(holder) = self.directory.holder(&mut self.client, bit)?
            {
                found.push(HolderPrefix { holder, blocks: blocks as usize });
            }
        }
        Ok(())
    }

    /// Makes a lookup of the live holders, again where others are registered meanwhile. Returns also of whom the answer
    /// is to be told: those that had their bits all the while.
    fn look<R: Default>(
        &mut self,
        mut once: impl FnMut(&mut PlacementIndex, &HolderSet) -> Result<R, PrefixError>,
    ) -> Result<(R, HolderSet), PrefixError> {
        let mut look = 1;
        loop {
            let live = holders::live(&mut self.client, &mut self.memory.mask)?;
            if live.is_empty() {
                return Ok((R::default(), live));
            }
            self.directory.prepare(&mut self.client, self.table.holders())?;
            let live = self.directory.present(&mut self.client, self.table.holders(), live)?;
            if live.is_empty() {
                return Ok((R::default(), live));
            }
            let answer = once(self, &live)?;
            let Some(kept) = self.directory.kept(&mut self.client, self.table.holders())? else {
                return Ok((answer, live));
            };
            if look == LOOKS || self.directory.named().and_not(&kept).is_empty() {
                return Ok((answer, live.and(&kept)));
            }
            look += 1;
        }
    }

    fn match_once(
        &mut self,
        keys: &[Key],
        live: &HolderSet,
        lengths: &mut Vec<u32>,
    ) -> Result<(), PrefixError> {
        lengths.clear();
        lengths.resize(self.holders_max(), 0);
        let closed = self.closed(live, keys.len());
        if closed.is_empty() {
            return self.walk(keys, &mut Match::new(live.clone(), lengths));
        }
        self.match_by_jumps(keys, live, &closed, lengths)
    }

    /// Looks at all blocks, until none of those is left who are looked for.
    pub(crate) fn walk(&mut self, keys: &[Key], pass: &mut Match<'_>) -> Result<(), PrefixError> {
        if keys.is_empty() {
            return Ok(());
        }
        match self.table.form {
            Form::Single => {
                let stopped = self.client.get_many_in_order(keys, |block, answer| {
                    pass.block::<()>(block, answer.ok().flatten().unwrap_or_default())
                })?;
                if stopped.is_break() {
                    return Ok(());
                }
            }
            Form::Grouped => {
                if !self.with_values(|index, values| index.match_groups(keys, pass, values))? {
                    return Ok(());
                }
            }
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
        let all = sets.iter().fold(HolderSet::default(), |all, set| all.or(set)).and(&told);
        for bit in all.bits() {
            holders[usize::from(bit)] = self.directory.holder(&mut self.client, bit)?;
        }
        for (block, set) in sets.iter().enumerate() {
            for bit in set.and(&all).bits() {
                holders[usize::from(bit)].iter().for_each(|holder| each(block, holder));
            }
        }
        Ok(())
    }

    /// The set of each block as it stands, also with the bits of holders that were dropped and are not cleaned yet. Who asks
    /// whether a holder that he knows is in a set asks [`PlacementIndex::check`] afterwards. 1 READ a block.
    ///
    /// # Errors
    /// [`PrefixError::Grouped`] for a table whose blocks stand in groups; [`PrefixError::Get`].
    pub fn sets(&mut self, digests: &Digests<'_>) -> Result<Vec<BlockSet>, PrefixError> {
        if self.is_grouped() {
            return Err(PrefixError::Grouped);
        }
        let mut sets = vec![BlockSet::default(); digests.len()];
        let _ = self.client.get_many_in_order(digests.keys(), |block, answer| {
            if let Ok(Some(set)) = answer {
                sets[block] = BlockSet(HolderSet::from_bytes(set));
            }
            ControlFlow::<()>::Continue(())
        })?;
        Ok(sets)
    }

    /// Refuses a holder that was dropped since it was registered. 1 READ.
    ///
    /// # Errors
    /// [`PrefixError::HolderGone`]; [`PrefixError::Get`].
    pub fn check(&mut self, holder: &Holder) -> Result<(), PrefixError> {
        holders::check(&mut self.client, holder)
    }

    /// Gives memory for the entries of a prompt's path through a group.
    pub(crate) fn with_values<R>(
        &mut self,
        work: impl FnOnce(&mut PlacementIndex, &mut [Vec<u8>]) -> Result<R, PrefixError>,
    ) -> Result<R, PrefixError> {
        let mut values = std::mem::take(&mut self.memory.values);
        values.resize(GROUP, Vec::new());
        let done = work(self, &mut values);
        self.memory.values = values;
        done
    }

    /// Returns whether all blocks were looked at.
    fn match_groups(
        &mut self,
        keys: &[Key],
        pass: &mut Match<'_>,
        values: &mut [Vec<u8>],
    ) -> Result<bool, PrefixError> {
        let heads: Vec<Key> = keys.iter().step_by(GROUP).copied().collect();
        let mut first = 0;
        while first < heads.len() {
            // Breaks off with the block whose entry is to be READ before the next group is.
            let stopped = self.client.get_many_in_order(&heads[first..], |nth, answer| {
                let blocks = (first + nth) * GROUP..keys.len().min((first + nth + 1) * GROUP);
                let value = answer.ok().flatten().unwrap_or_default();
                pass.group(keys, blocks, Group::of(value).as_slice()).map_break(|branch| {
                    values[0].clear();
                    values[0].extend_from_slice(value);
                    branch
                })
            })?;
            let ControlFlow::Break(branch) = stopped else { break };
            let group = branch.map_or(0, |block| block / GROUP);
            if !self.rest_of_group(keys, branch, pass, values)? {
                return Ok(false);
            }
            first = group + 1;
        }
        Ok(true)
    }

    /// The blocks of a group from `branch` on, which may have begun an entry of its own: READs that, and those that others
    /// have begun. The entry with which the group begins is in `values`. Returns whether somebody is left.
    pub(crate) fn rest_of_group(
        &mut self,
        keys: &[Key],
        mut branch: Option<usize>,
        pass: &mut Match<'_>,
        values: &mut [Vec<u8>],
    ) -> Result<bool, PrefixError> {
        for nth in 1..GROUP {
            let Some(block) = branch else { return Ok(false) };
            if !self.client.get_into(&keys[block], &mut values[nth])? {
                values[nth].clear();
            }
            let path: Vec<_> = values[..=nth].iter().filter_map(|value| Group::of(value)).collect();
            let end = keys.len().min((block / GROUP + 1) * GROUP);
            match pass.group(keys, block..end, &path) {
                ControlFlow::Continue(()) => return Ok(true),
                ControlFlow::Break(next) => branch = next,
            }
        }
        // Each entry of the path has a block at least.
        Ok(false)
    }
}
