//! Where each block is.

use crate::digests::{Digests, KEY_BYTES, Key};
use crate::error::{PrefixError, one_each};
use crate::names::{endpoint_name, intern};
use bytemuck::{Pod, Zeroable};
use oneread::error::PutError;
use oneread::stats::ClientStats;
use oneread::{
    BatchAnswer, Client, Config, EntryLife, LifeAnswer, OwnerOptions, PutOptions, PutOutcome, SwapOutcome,
    TableSize,
};
use std::collections::HashMap;
use std::ops::ControlFlow;

/// Bytes of a location in a table.
pub const LOCATION_BYTES: usize = 20;
/// The form of a location that this version writes and reads.
const FORM: u8 = 1;
/// A prefix is looked up so many blocks at a time, and no further than to the first one that is missing.
const PART: usize = 128;

/// Where a block is: `length` bytes at `address` of an endpoint's memory or file, in one of its tiers.
///
/// ```text
/// 0..8    address    u64
/// 8..12   length     u32
/// 12..16  endpoint   u32   number of its name (LocationIndex::endpoint)
/// 16      tier       u8    as the engines number theirs: device, host, disk, ...
/// 17      form       u8    1
/// 18..20  zero
/// ```
///
/// With a key of 16 bytes and the entry's life it takes one line of 64 bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Location {
    /// The number of the endpoint's name.
    pub endpoint: u32,
    /// The tier.
    pub tier: u8,
    /// Where it begins.
    pub address: u64,
    /// Its bytes.
    pub length: u32,
}

impl Location {
    /// As it stands in a table.
    pub fn to_bytes(self) -> [u8; LOCATION_BYTES] {
        let mut bytes = [0; LOCATION_BYTES];
        bytes[..8].copy_from_slice(&self.address.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.length.to_le_bytes());
        bytes[12..16].copy_from_slice(&self.endpoint.to_le_bytes());
        bytes[16] = self.tier;
        bytes[17] = FORM;
        bytes
    }

    /// The location in these bytes. `None` for what no version up to this one has written.
    #[inline]
    pub fn from_bytes(bytes: &[u8]) -> Option<Location> {
        let bytes: &[u8; LOCATION_BYTES] = bytes.try_into().ok()?;
        let [a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p, tier, FORM, 0, 0] = *bytes else { return None };
        Some(Location {
            address: u64::from_le_bytes([a, b, c, d, e, f, g, h]),
            length: u32::from_le_bytes([i, j, k, l]),
            endpoint: u32::from_le_bytes([m, n, o, p]),
            tier,
        })
    }
}

/// What was found of a block. 32 bytes without a pointer, so that a slice of them is a buffer in any language; all
/// zero for a block that is not there.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
pub struct Found {
    address: u64,
    number: u64,
    length: u32,
    endpoint: u32,
    owner: u16,
    tier: u8,
    is_there: u8,
    zero: [u8; 4],
}

impl Found {
    /// Whether the block is there.
    pub fn is_there(&self) -> bool {
        self.is_there != 0
    }

    /// Where it is.
    pub fn location(&self) -> Option<Location> {
        self.is_there().then_some(Location {
            endpoint: self.endpoint,
            tier: self.tier,
            address: self.address,
            length: self.length,
        })
    }

    /// Which entry it is, of all entries of all tables ([`EntryLife::number`]).
    pub fn number(&self) -> u64 {
        self.number
    }

    /// Whose entry it is; 0: nobody's.
    pub fn owner(&self) -> u16 {
        self.owner
    }

    /// What an answer says. A value that is no location is none.
    #[inline]
    fn of(answer: LifeAnswer<'_>) -> Found {
        match answer {
            Ok(Some((value, Some(life)))) => Found::at(value, life),
            _ => Found::default(),
        }
    }

    #[inline]
    fn at(value: &[u8], EntryLife { number, owner, .. }: EntryLife) -> Found {
        let Some(Location { endpoint, tier, address, length }) = Location::from_bytes(value) else {
            return Found::default();
        };
        Found { address, number, length, endpoint, owner, tier, is_there: 1, zero: [0; 4] }
    }
}

/// Which blocks must be there for a prefix to count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Search {
    /// Every block, from the first on. READs the prefix, and over verbs at most 128 blocks behind it. (HiCache: all
    /// pages.)
    Exact,
    /// Whoever stores here stores no block without those before it, and loses the last ones first: so the length is
    /// searched for, with some log2(n) READs one after the other. Where that does not hold, any length up to a block
    /// that is there, and whose successor is not, may be the answer.
    PrefixClosed,
    /// The last so many blocks of the prefix, as sliding windows and states want it; all of a shorter one. READs
    /// all blocks. (HiCache: trailing pages.)
    Trailing(usize),
}

/// Where each block is: digest -> tier, address and length at an endpoint.
///
/// It answers by READs of the caller, in batches: about 1 READ of a window a block (docs/LAYOUTS.md has the bytes),
/// in loads on shm, and without the server's CPU. Changes are requests to the server, as many ahead of their
/// replies as [`Client::put_many`] sends.
///
/// It allocates nothing in engines' memory and moves no data. An owner removes a location, or its owner's entries
/// as a whole, *before* it uses the memory for anything else. A reader fetches, then calls
/// [`LocationIndex::revalidate`].
///
/// `Send`, one handle a thread, as [`Client`]; [`Clone`] makes another one.
#[derive(Clone, Debug)]
pub struct LocationIndex {
    client: Client,
    /// Names of endpoints that were asked for.
    names: HashMap<u32, String>,
}

impl LocationIndex {
    /// What a table for locations is made from: one line of 64 bytes a block, lives and owners.
    pub fn config(size: TableSize) -> Config {
        let config = Config::new().size(size).key_max(KEY_BYTES).value_max(LOCATION_BYTES);
        config.life(true).owners(true)
    }

    /// Over the table of this client. The client may be an owner's ([`Client::owner`]): the blocks that it puts
    /// are then that owner's.
    ///
    /// # Errors
    /// [`PrefixError::Table`] if the table cannot hold locations with their lives.
    pub fn new(client: Client) -> Result<LocationIndex, PrefixError> {
        let geometry = client.geometry();
        let lacks = match () {
            () if !geometry.has_life() => Some("keeps no lives of entries"),
            () if geometry.key_max() < KEY_BYTES => Some("takes no keys of 16 bytes"),
            () if client.value_max() < LOCATION_BYTES => Some("takes no values of 20 bytes"),
            () => None,
        };
        if let Some(why) = lacks {
            let address = Box::new(client.address().clone());
            return Err(PrefixError::Table { address, why, make: "LocationIndex::config" });
        }
        Ok(LocationIndex { client, names: HashMap::new() })
    }

    /// Another handle, whose blocks are this owner's. They are gone at once for all readers when the owner has been
    /// away for as long as it says, or by [`LocationIndex::remove_owner`].
    ///
    /// # Errors
    /// [`PrefixError::Connect`], with the reason. While blocks of the owner's last life are still being removed, the
    /// number is not given: try again. That takes 1 s for some ten thousands of them.
    pub fn as_owner(&self, owner: OwnerOptions) -> Result<LocationIndex, PrefixError> {
        LocationIndex::new(self.client.owner(owner)?)
    }

    /// Hides all blocks of an owner at once, and has them removed. Whoever restarts under an owner's number calls it
    /// first, then [`LocationIndex::as_owner`] until it is taken. Returns whether there was such an owner. 1 round
    /// trip.
    ///
    /// # Errors
    /// [`PrefixError::Change`].
    pub fn remove_owner(&mut self, number: u16) -> Result<bool, PrefixError> {
        Ok(self.client.remove_owner(number)?)
    }

    /// The number of an endpoint's name, 1 to 200 bytes: for [`Location::endpoint`]. The same name has the same
    /// number for as long as the table lives, also after its record was evicted (but for names whose hashes of 32
    /// bits collide). 1 READ, and 2 round trips for a name that is new.
    ///
    /// Ask with a handle that is no owner's: what an owner puts goes with it, names, too.
    ///
    /// # Errors
    /// [`PrefixError::Name`], and those of a GET and a put.
    pub fn endpoint(&mut self, name: &str) -> Result<u32, PrefixError> {
        let number = intern(&mut self.client, name)?;
        self.names.insert(number, name.into());
        Ok(number)
    }

    /// The name of an endpoint. The first time 2 READs or more, then none. `None` if there is no such number, or
    /// its record was evicted and its engine has not asked for it again.
    ///
    /// # Errors
    /// [`PrefixError::Get`].
    pub fn endpoint_name(&mut self, number: u32) -> Result<Option<&str>, PrefixError> {
        if !self.names.contains_key(&number)
            && let Some(name) = endpoint_name(&mut self.client, number)?
        {
            self.names.insert(number, name);
        }
        Ok(self.names.get(&number).map(String::as_str))
    }

    // ---- changes --------------------------------------------------------------------------------

    /// Puts where blocks are; one location for each digest. The last put of a block counts. Returns an answer for
    /// each. Costs what [`Client::put_many`] costs: 1 round trip for some hundreds on shm.
    ///
    /// # Errors
    /// [`PrefixError::Count`]; [`PrefixError::Change`] when the connection failed, or the owner is gone; some may
    /// then have been put.
    pub fn put(
        &mut self,
        digests: &Digests<'_>,
        locations: &[Location],
        options: PutOptions,
    ) -> Result<Vec<Result<PutOutcome, PutError>>, PrefixError> {
        one_each(digests.len(), locations.len())?;
        let pairs: Vec<(&Key, [u8; LOCATION_BYTES])> =
            digests.keys().iter().zip(locations.iter().map(|location| location.to_bytes())).collect();
        let mut answers = vec![Err(PutError::NoLife); pairs.len()];
        self.client.put_many_with(options, &pairs, |number, answer| answers[number] = answer)?;
        Ok(answers)
    }

    /// Removes blocks that still are where the caller says: what others have put in their place stays. Returns how
    /// many it has removed. Costs what [`Client::put_many`] costs.
    ///
    /// # Errors
    /// As [`LocationIndex::put`]. It may be repeated.
    pub fn remove(&mut self, digests: &Digests<'_>, locations: &[Location]) -> Result<usize, PrefixError> {
        one_each(digests.len(), locations.len())?;
        let swaps: Vec<_> = digests
            .keys()
            .iter()
            .zip(locations)
            .map(|(key, location)| (key, Some(location.to_bytes()), None))
            .collect();
        let mut removed = 0;
        for answer in self.client.compare_exchange_many(&swaps)? {
            removed += usize::from(answer? == SwapOutcome::Swapped);
        }
        Ok(removed)
    }

    // ---- lookups --------------------------------------------------------------------------------

    /// Finds all blocks, in the order of the digests, into `found`. Returns how many are there. Costs what
    /// [`Client::get_many_with_life`] costs: about 1 READ a block, many under way at once, and for a block of an
    /// owner a look at the word that tells whether the owner is hidden.
    ///
    /// # Errors
    /// [`PrefixError::Count`]; [`PrefixError::Get`], then `found` has some of the answers.
    pub fn locate_many(&mut self, digests: &Digests<'_>, found: &mut [Found]) -> Result<usize, PrefixError> {
        one_each(digests.len(), found.len())?;
        self.locate(digests.keys(), found)
    }

    /// Finds blocks from the first on, up to one that is not there. Returns how many there are; `found` behind them
    /// is all zero. READs the prefix, and on shm hardly more; over verbs at most 128 blocks behind it.
    ///
    /// # Errors
    /// As [`LocationIndex::locate_many`].
    pub fn locate_prefix(
        &mut self,
        digests: &Digests<'_>,
        found: &mut [Found],
    ) -> Result<usize, PrefixError> {
        one_each(digests.len(), found.len())?;
        let mut length = 0;
        for (keys, found) in digests.keys().chunks(PART).zip(found.chunks_mut(PART)) {
            self.look(keys, found, |found| match found.is_there() {
                true => ControlFlow::Continue(()),
                false => ControlFlow::Break(()),
            })?;
            let there = found.iter().take_while(|found| found.is_there()).count();
            length += there;
            if there < keys.len() {
                break;
            }
        }
        found[length..].fill(Found::default());
        Ok(length)
    }

    fn locate(&mut self, keys: &[Key], found: &mut [Found]) -> Result<usize, PrefixError> {
        let mut there = 0;
        self.look(keys, found, |found| {
            there += usize::from(found.is_there());
            ControlFlow::Continue(())
        })?;
        Ok(there)
    }

    /// Looks for blocks, and breaks off where `each` does, if answers come in order.
    fn look(
        &mut self,
        keys: &[Key],
        found: &mut [Found],
        mut each: impl FnMut(&Found) -> ControlFlow<()>,
    ) -> Result<(), PrefixError> {
        found.fill(Found::default());
        let mut in_order = 0;
        self.client.get_many_with_life(keys, |number, answer| {
            found[number] = Found::of(answer);
            let flow = each(&found[number]);
            in_order += usize::from(number == in_order);
            if in_order == number + 1 { flow } else { ControlFlow::Continue(()) }
        })?;
        Ok(())
    }

    /// Tells which blocks are there: bit `n % 64` of word `n / 64`. Replaces the contents of `present`. About 1
    /// READ a block.
    ///
    /// # Errors
    /// [`PrefixError::Get`].
    pub fn contains_many(
        &mut self,
        digests: &Digests<'_>,
        present: &mut Vec<u64>,
    ) -> Result<(), PrefixError> {
        Ok(self.client.contains_many(digests.keys(), present)?)
    }

    /// The length of the longest prefix that is there, in blocks, as `search` has it.
    ///
    /// # Errors
    /// [`PrefixError::Get`].
    pub fn longest_prefix(&mut self, digests: &Digests<'_>, search: Search) -> Result<usize, PrefixError> {
        let keys = digests.keys();
        match search {
            Search::Exact => {
                let ended =
                    self.client.get_many_in_order(keys, |number, answer: BatchAnswer<'_>| match answer {
                        Ok(Some(_)) => ControlFlow::Continue(()),
                        _ => ControlFlow::Break(number),
                    })?;
                Ok(ended.break_value().unwrap_or(keys.len()))
            }
            Search::PrefixClosed => {
                // Every block before `low` counts as there; the one at `high` is not.
                let (mut low, mut high) = (0, keys.len());
                while low < high {
                    let middle = low.midpoint(high);
                    match self.client.contains(&keys[middle])? {
                        true => low = middle + 1,
                        false => high = middle,
                    }
                }
                Ok(low)
            }
            Search::Trailing(blocks) => {
                let mut present = Vec::new();
                self.client.contains_many(keys, &mut present)?;
                Ok(trailing(&present, keys.len(), blocks))
            }
        }
    }

    /// Tells of each block whether it is still the entry that was found: then its location has been in the table
    /// all the time since, and what was fetched from there meanwhile is the block, if owners remove before they
    /// reuse. Returns how many are the same. Costs what [`LocationIndex::locate_many`] costs.
    ///
    /// # Errors
    /// [`PrefixError::Count`]; [`PrefixError::Get`].
    pub fn revalidate(
        &mut self,
        digests: &Digests<'_>,
        found: &[Found],
        same: &mut [bool],
    ) -> Result<usize, PrefixError> {
        one_each(digests.len(), found.len())?;
        one_each(digests.len(), same.len())?;
        let mut now = vec![Found::default(); found.len()];
        self.look(digests.keys(), &mut now, |_| ControlFlow::Continue(()))?;
        for ((same, before), now) in same.iter_mut().zip(found).zip(&now) {
            *same = before.is_there() && now.is_there() && before.number == now.number;
        }
        Ok(same.iter().filter(|&&same| same).count())
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

/// The longest prefix whose last blocks, so many or all of them, are present.
fn trailing(present: &[u64], blocks: usize, wanted: usize) -> usize {
    let is_there = |number: usize| present[number / 64] >> (number % 64) & 1 == 1;
    let (mut run, mut longest) = (0, 0);
    for number in 0..blocks {
        run = if is_there(number) { run + 1 } else { 0 };
        if run >= wanted.min(number + 1) {
            longest = number + 1;
        }
    }
    longest
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Locations survive their bytes, and no other bytes are one.
    #[test]
    fn locations_have_bytes() {
        let location = Location { endpoint: 7, tier: 2, address: u64::MAX - 5, length: 65_536 };
        let bytes = location.to_bytes();
        assert_eq!(Location::from_bytes(&bytes), Some(location));
        for (at, value) in [(17, 0), (17, 2), (18, 1), (19, 1)] {
            let mut other = bytes;
            other[at] = value;
            assert_eq!(Location::from_bytes(&other), None, "{at}");
        }
        assert_eq!(Location::from_bytes(&bytes[..19]), None);
        let geometry = LocationIndex::config(TableSize::Keys(100)).geometry().unwrap();
        assert_eq!(geometry.shape().bytes(), 64, "one line");
    }

    /// Beside the definition: the longest length whose last blocks are all present.
    #[test]
    fn trailing_blocks_are_as_defined() {
        for bits in 0..1u64 << 8 {
            for wanted in 0..10 {
                let counts = |length: &usize| {
                    (length.saturating_sub(wanted)..*length).all(|number| bits >> number & 1 == 1)
                };
                let expected = (0..=8).rev().find(counts).unwrap();
                assert_eq!(trailing(&[bits], 8, wanted), expected, "{bits:b} {wanted}");
            }
        }
    }
}
