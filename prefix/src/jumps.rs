//! Lookups that jump: of holders that have no block without those before it, some blocks tell about the others.
//!
//! The first block of each stretch of a prompt is looked at. Where the same holders have both ends of a stretch, they
//! have all of it. Where not, the stretch is halved, and the block in the middle is looked at: all stretches of a prompt
//! at once, until each holder's first missing block is known. In groups a stretch ends with a group, which is then looked
//! at as a whole.
//!
//! | rule | what is kept |
//! |---|---|
//! | H1 | only holders that are said to be closed are jumped over ([`Keeps::PrefixClosed`]); others, and those before their ends, are looked for block by block |
//! | H2 | a stretch is skipped only if the same holders have both ends |
//! | H3 | one lookup in 64 is made block by block, too. A holder of whom they tell another length, and who is told another one at a second look as well, is not jumped over from then on |
//! | H4 | after batches of events that were not heard a holder is not jumped over until it is cleared |
//!
//! Each has a switch in `crate::faults`.

use crate::digests::Key;
use crate::error::PrefixError;
use crate::faults::{Rule, broken};
use crate::groups::{GROUP, Group, tag_of};
use crate::holders::{self, Holder};
use crate::passes::{JumpCounts, Match};
use crate::placement::PlacementIndex;
use crate::records::{Keeps, Record, record_of};
use crate::sets::HolderSet;
use crate::table::Form;
use std::ops::ControlFlow;

/// Blocks of a stretch, at least.
const STRETCH: usize = 64;
/// Prompts of up to so many blocks are looked at block by block, which is quicker: all READs go at once, and jumps wait for
/// those before them. docs/BENCHMARKS.md has where it changes, by loads.
const WALKED_MAX: usize = 384;
const WALKED_MAX_GROUPED: usize = 512;
/// Stretches of a prompt, at most: as many READs as go ahead of those that are needed in any lookup.
const STRETCHES: usize = 128;
/// One lookup in this number is made block by block, too (H3).
const WALKED: u64 = 64;

/// An entry that was looked at.
struct Probe {
    /// Its number among those of the prompt.
    entry: usize,
    /// Who has its first block.
    set: HolderSet,
    /// A group.
    value: Vec<u8>,
}

impl Probe {
    /// `before` have the blocks before it.
    fn of(form: Form, entry: usize, key: &Key, value: &[u8], before: &HolderSet) -> Probe {
        let mut set = before.clone();
        match form {
            Form::Single => {
                set.keep(value, |_| {});
                Probe { entry, set, value: Vec::new() }
            }
            Form::Grouped => {
                let head = Group::of(value).and_then(|group| group.set(tag_of(key), 0));
                set.keep(head.unwrap_or_default(), |_| {});
                Probe { entry, set, value: value.to_vec() }
            }
        }
    }

    /// Behind the last one: nobody has it.
    fn end(entries: usize) -> Probe {
        Probe { entry: entries, set: HolderSet::default(), value: Vec::new() }
    }
}

/// The middle of a stretch whose ends differ. `None` for one that is to be looked at no further.
fn middle(begin: &Probe, end: &Probe) -> Option<usize> {
    let length = end.entry - begin.entry;
    let differ = begin.set != end.set && length > 1 && !broken(Rule::HalveStretch);
    differ.then_some(begin.entry + length / 2)
}

impl PlacementIndex {
    /// What its lookups did by jumps.
    pub fn jumps(&self) -> JumpCounts {
        self.jumps.counts
    }

    /// Looks at each block from now on, whoever has it. So do clones of this handle.
    pub fn look_at_all(&mut self) {
        self.jumps.are_off = true;
    }

    /// The live holders that are jumped over in a prompt of this number of blocks.
    pub(crate) fn closed(&self, live: &HolderSet, blocks: usize) -> HolderSet {
        let most = match self.table.form {
            Form::Single => WALKED_MAX,
            Form::Grouped => WALKED_MAX_GROUPED,
        };
        if blocks <= most || self.jumps.are_off {
            return HolderSet::default();
        }
        if broken(Rule::JumpClosed) { live.clone() } else { live.and(self.directory.closed()) }
    }

    /// The lengths of all live holders' prefixes, by jumps for those that are `closed`.
    pub(crate) fn match_by_jumps(
        &mut self,
        keys: &[Key],
        live: &HolderSet,
        closed: &HolderSet,
        lengths: &mut [u32],
    ) -> Result<(), PrefixError> {
        self.jumps.counts.lookups += 1;
        self.jump(keys, live, closed, lengths)?;
        // H3.
        if self.jumps.counts.lookups.is_multiple_of(WALKED) && !broken(Rule::WalkSome) {
            self.jumps.counts.walked += 1;
            self.compare(keys, live, closed, lengths)?;
        }
        Ok(())
    }

    fn jump(
        &mut self,
        keys: &[Key],
        live: &HolderSet,
        closed: &HolderSet,
        lengths: &mut [u32],
    ) -> Result<(), PrefixError> {
        let open = live.and_not(closed);
        let (mut first, mut left) = (0, closed.clone());
        if !open.is_empty() && !self.first_block(keys, live)?.and(&open).is_empty() {
            // H1: block by block, as long as one of the others is left.
            let mut pass = Match::new(live.clone(), lengths).for_(open);
            self.walk(keys, &mut pass)?;
            let Some(last) = pass.done().checked_sub(1) else { return Ok(()) };
            if last + 1 == keys.len() {
                pass.end(keys.len());
                return Ok(());
            }
            first = last / self.table.blocks_of_entry();
            left = pass.left();
        }
        if left.is_empty() {
            return Ok(());
        }
        let probes = self.probes(keys, first, &left)?;
        let known = probes.first().map_or(&left, |probe| &probe.set);
        for bit in left.and_not(known).bits() {
            lengths[usize::from(bit)] = (first * self.table.blocks_of_entry()) as u32;
        }
        self.ends(keys, &probes, lengths)
    }

    /// Who of the live holders has the first block. 1 READ.
    fn first_block(&mut self, keys: &[Key], live: &HolderSet) -> Result<HolderSet, PrefixError> {
        let mut value = Vec::new();
        self.client.get_into(&keys[0], &mut value)?;
        Ok(Probe::of(self.table.form, 0, &keys[0], &value, live).set)
    }

    /// Looks at entries from `first` on until each stretch between two of them is settled.
    fn probes(&mut self, keys: &[Key], first: usize, left: &HolderSet) -> Result<Vec<Probe>, PrefixError> {
        let blocks = self.table.blocks_of_entry();
        let entries = keys.len().div_ceil(blocks);
        let stretch = keys.len().div_ceil(STRETCHES).next_power_of_two().max(STRETCH) / blocks;
        let mut at: Vec<usize> = (first..entries).step_by(stretch).collect();
        if at.last() != Some(&(entries - 1)) {
            at.push(entries - 1);
        }
        let (form, mut probes, mut left) = (self.table.form, Vec::<Probe>::new(), left.clone());
        let heads: Vec<Key> = at.iter().map(|entry| keys[entry * blocks]).collect();
        let _ = self.client.get_many_in_order(&heads, |nth, answer| {
            let value = answer.ok().flatten().unwrap_or_default();
            let probe = Probe::of(form, at[nth], &heads[nth], value, &left);
            left = probe.set.clone();
            probes.push(probe);
            if left.is_empty() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        })?;
        if !left.is_empty() {
            probes.push(Probe::end(entries));
        }
        // H2.
        loop {
            let begins: Vec<(usize, usize)> = probes
                .windows(2)
                .enumerate()
                .filter_map(|(nth, pair)| Some((nth, middle(&pair[0], &pair[1])?)))
                .collect();
            if begins.is_empty() {
                return Ok(probes);
            }
            let heads: Vec<Key> = begins.iter().map(|(_, entry)| keys[entry * blocks]).collect();
            let mut found = Vec::with_capacity(heads.len());
            let _ = self.client.get_many_in_order(&heads, |nth, answer| {
                let (begin, entry) = begins[nth];
                let value = answer.ok().flatten().unwrap_or_default();
                found.push((begin, Probe::of(form, entry, &heads[nth], value, &probes[begin].set)));
                ControlFlow::<()>::Continue(())
            })?;
            let mut found = found.into_iter().peekable();
            let mut next = Vec::with_capacity(probes.len() + found.len());
            for (nth, probe) in probes.into_iter().enumerate() {
                next.push(probe);
                next.extend(found.next_if(|(begin, _)| *begin == nth).map(|(_, probe)| probe));
            }
            probes = next;
        }
    }

    /// The lengths of those that are lost between two probes that are neighbours.
    fn ends(&mut self, keys: &[Key], probes: &[Probe], lengths: &mut [u32]) -> Result<(), PrefixError> {
        let mut lost = HolderSet::default();
        for pair in probes.windows(2) {
            // Somebody who is lost, and is seen again, is not closed, or changes meanwhile: the shorter length counts.
            let gone = pair[0].set.and_not(&pair[1].set).and_not(&lost);
            if gone.is_empty() {
                continue;
            }
            lost = lost.or(&gone);
            match self.table.form {
                Form::Single => {
                    for bit in gone.bits() {
                        lengths[usize::from(bit)] = pair[0].entry as u32 + 1;
                    }
                }
                Form::Grouped => self.end_in_group(keys, &pair[0], gone, lengths)?,
            }
        }
        Ok(())
    }

    /// The lengths of those that have the first block of a group, and not that of the next one.
    fn end_in_group(
        &mut self,
        keys: &[Key],
        probe: &Probe,
        gone: HolderSet,
        lengths: &mut [u32],
    ) -> Result<(), PrefixError> {
        let begin = probe.entry * GROUP;
        let end = keys.len().min(begin + GROUP);
        let mut pass = Match::new(gone, lengths);
        let goes_on = match pass.group(keys, begin..end, Group::of(&probe.value).as_slice()) {
            ControlFlow::Continue(()) => true,
            ControlFlow::Break(None) => false,
            ControlFlow::Break(branch) => self.with_values(|index, values| {
                values[0].clone_from(&probe.value);
                index.rest_of_group(keys, branch, &mut pass, values)
            })?,
        };
        if goes_on {
            pass.end(end);
        }
        Ok(())
    }

    /// H3: compares with a lookup block by block, whose lengths count where they differ.
    fn compare(
        &mut self,
        keys: &[Key],
        live: &HolderSet,
        closed: &HolderSet,
        lengths: &mut [u32],
    ) -> Result<(), PrefixError> {
        let mut walked = self.walked(keys, live)?;
        let differ = |one: &[u32], other: &[u32]| {
            let differs = |bit: &u16| one.get(usize::from(*bit)) != other.get(usize::from(*bit));
            closed.bits().filter(differs).collect::<HolderSet>()
        };
        let mut stays = differ(lengths, &walked);
        if !stays.is_empty() && !broken(Rule::LookTwice) {
            let mut jumped = vec![0; lengths.len()];
            self.jump(keys, live, closed, &mut jumped)?;
            walked = self.walked(keys, live)?;
            stays = stays.and(&differ(&jumped, &walked));
        }
        lengths.copy_from_slice(&walked);
        for bit in stays.bits() {
            self.jumps.counts.stopped += 1;
            let record = self.directory.record(bit).filter(|record| record.keeps == Keeps::PrefixClosed);
            match record.map(|record| holders::keep_any(&mut self.client, bit, record)) {
                None | Some(Ok(_)) => {}
                // It may only read.
                Some(Err(PrefixError::Change(_))) => self.jumps.are_off = true,
                Some(Err(error)) => return Err(error),
            }
        }
        Ok(())
    }

    /// The lengths of all live holders' prefixes, block by block.
    fn walked(&mut self, keys: &[Key], live: &HolderSet) -> Result<Vec<u32>, PrefixError> {
        let mut lengths = vec![0; self.holders_max()];
        self.walk(keys, &mut Match::new(live.clone(), &mut lengths))?;
        Ok(lengths)
    }

    /// H4: some of what the holder stored and removed was not heard.
    pub(crate) fn has_missed(&mut self, holder: &Holder) -> Result<(), PrefixError> {
        if broken(Rule::GapStops) {
            return Ok(());
        }
        let is_its = |record: &Record| {
            record.is_live()
                && record.incarnation == holder.incarnation
                && record.keeps == Keeps::PrefixClosed
        };
        while let Some(record) = record_of(&mut self.client, holder.bit)?.filter(is_its) {
            if holders::keep_any(&mut self.client, holder.bit, record)? {
                break;
            }
        }
        Ok(())
    }
}
