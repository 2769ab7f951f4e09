//! Who has how long a prefix, from the table.

use crate::events::Tier;
use crate::store::{Store, StoreError};
use crate::worker::{Holding, PublisherId};
use oneread_prefix::Digests;
use std::collections::{BTreeMap, HashMap};

/// Blocks that a worker has of a prompt, from the first one on without a gap.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lengths {
    /// In each tier, as [`Tier::ALL`] has them.
    pub tiers: [u32; Tier::ALL.len()],
    /// In any of them.
    pub any: u32,
}

impl Lengths {
    /// In one tier.
    pub fn of(&self, tier: Tier) -> u32 {
        self.tiers[tier as usize]
    }

    /// The longer one of each.
    pub fn longer(self, other: Lengths) -> Lengths {
        let mut tiers = self.tiers;
        tiers.iter_mut().zip(other.tiers).for_each(|(one, other)| *one = (*one).max(other));
        Lengths { tiers, any: self.any.max(other.any) }
    }
}

/// What was found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Found {
    /// Each instance, and each of its ranks, that has the first block.
    pub of: BTreeMap<String, BTreeMap<u32, Lengths>>,
    /// Publishers of these.
    pub ids: Vec<(PublisherId, String, u32)>,
}

impl Found {
    fn add(&mut self, holding: Holding<'_>, lengths: Lengths) {
        let Holding { id, place, instance } = holding;
        let ranks = match self.of.get_mut(instance) {
            Some(ranks) => ranks,
            None => self.of.entry(instance.to_owned()).or_default(),
        };
        let known = ranks.entry(place.rank).or_default();
        // Where a worker is just taken over, it is there twice.
        *known = known.longer(lengths);
        if !self.ids.iter().any(|(known, _, rank)| *known == id && *rank == place.rank) {
            self.ids.push((id, instance.to_owned(), place.rank));
        }
    }

    /// How many of them have each block, from the first on.
    pub fn frequencies(&self) -> Vec<u64> {
        let lengths =
            || self.of.values().flat_map(BTreeMap::values).map(|lengths| lengths.of(Tier::Gpu) as usize);
        let mut frequencies = vec![0; lengths().max().unwrap_or_default()];
        for length in lengths() {
            frequencies[..length].iter_mut().for_each(|count| *count += 1);
        }
        frequencies
    }
}

/// Who has how long a prefix of these blocks. Where no worker has blocks elsewhere than in its device, it looks no further
/// than the longest one has them.
///
/// # Errors
/// The table's.
pub fn find(store: &mut Store, keys: &[[u8; 16]], has_tiers: bool) -> Result<Found, StoreError> {
    let digests = Digests::from(keys);
    let mut found = Found::default();
    if !has_tiers {
        let mut prefixes = Vec::new();
        store.index.match_prefix(&digests, &mut prefixes)?;
        for prefix in &prefixes {
            let Some(holding) = Holding::of(prefix.holder.name()) else { continue };
            let blocks = prefix.blocks as u32;
            let mut lengths = Lengths { any: blocks, ..Lengths::default() };
            lengths.tiers[holding.place.tier as usize] = blocks;
            found.add(holding, lengths);
        }
        return Ok(found);
    }
    let mut lengths: HashMap<(PublisherId, u32), Lengths> = HashMap::new();
    let mut names: HashMap<u64, String> = HashMap::new();
    store.index.holders_of(&digests, |block, holder| {
        let Some(Holding { id, place, .. }) = Holding::of(holder.name()) else { return };
        let block = block as u32;
        let known = lengths.entry((id, place.rank)).or_default();
        for length in [&mut known.tiers[place.tier as usize], &mut known.any] {
            // Blocks come in their order.
            *length += u32::from(*length == block);
        }
        if block == 0 {
            names.entry(holder.number()).or_insert_with(|| holder.name().to_owned());
        }
    })?;
    for name in names.values() {
        let Some(holding) = Holding::of(name) else { continue };
        if let Some(lengths) = lengths.get(&(holding.id, holding.place.rank)) {
            found.add(holding, *lengths);
        }
    }
    Ok(found)
}
