//! Who has how long a prefix, from the table.

use crate::events::Tier;
use crate::store::{Store, StoreError};
use crate::worker::{Holding, PublisherId};
use oneread_prefix::{Digests, HolderPrefix};
use std::collections::HashMap;

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

/// A rank of an instance that has the first block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FoundRank {
    /// What routers call the worker.
    pub instance: String,
    /// Its rank.
    pub rank: u32,
    /// What it has of the prompt.
    pub lengths: Lengths,
    /// Blocks that it has in all.
    pub blocks: u64,
}

/// What was found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Found {
    /// In the order of instances and ranks.
    ranks: Vec<FoundRank>,
}

impl Found {
    /// Of what each holder has. Where a worker is just taken over, it is there twice.
    fn of(store: &mut Store, mut all: Vec<(Holding<'_>, Lengths)>) -> Result<Found, StoreError> {
        all.sort_by(|(a, _), (b, _)| (a.instance, a.place.rank, a.id).cmp(&(b.instance, b.place.rank, b.id)));
        // What one worker has of a rank, in each of its tiers.
        let each: Vec<_> =
            all.chunk_by(|(a, _), (b, _)| (a.id, a.place.rank) == (b.id, b.place.rank)).collect();
        let ids: Vec<PublisherId> = each.iter().map(|of| of[0].0.id).collect();
        let mut ranks: Vec<FoundRank> = Vec::with_capacity(each.len());
        for (of, blocks) in each.iter().zip(store.blocks(&ids)?) {
            let Holding { instance, place, .. } = of[0].0;
            let lengths = of.iter().fold(Lengths::default(), |longest, (_, one)| longest.longer(*one));
            match ranks.last_mut() {
                Some(last) if last.instance == instance && last.rank == place.rank => {
                    last.lengths = last.lengths.longer(lengths);
                    last.blocks = last.blocks.max(blocks);
                }
                _ => {
                    ranks.push(FoundRank { instance: instance.to_owned(), rank: place.rank, lengths, blocks })
                }
            }
        }
        Ok(Found { ranks })
    }

    /// The ranks of each instance.
    pub fn instances(&self) -> impl Iterator<Item = &[FoundRank]> {
        self.ranks.chunk_by(|one, next| one.instance == next.instance)
    }

    /// The ranks of an instance that have the first block.
    pub fn instance(&self, name: &str) -> &[FoundRank] {
        let from = self.ranks.partition_point(|it| it.instance.as_str() < name);
        let rest = &self.ranks[from..];
        &rest[..rest.iter().take_while(|it| it.instance == name).count()]
    }

    /// How many of them have each block in their devices, from the first on.
    pub fn frequencies(&self) -> Vec<u64> {
        let lengths = || self.ranks.iter().map(|it| it.lengths.of(Tier::Gpu) as usize);
        let mut frequencies = vec![0; lengths().max().unwrap_or_default()];
        // Each ends somewhere, and is counted in what is before it.
        lengths().filter(|length| *length > 0).for_each(|length| frequencies[length - 1] += 1);
        for block in (1..frequencies.len()).rev() {
            frequencies[block - 1] += frequencies[block];
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
    if !has_tiers {
        let mut prefixes = Vec::new();
        store.index.match_prefix(&digests, &mut prefixes)?;
        let mut found = Vec::with_capacity(prefixes.len());
        for HolderPrefix { holder, blocks, .. } in &prefixes {
            let Some(holding) = Holding::of(holder.name()) else { continue };
            let mut lengths = Lengths { any: *blocks as u32, ..Lengths::default() };
            lengths.tiers[holding.place.tier as usize] = lengths.any;
            found.push((holding, lengths));
        }
        return Found::of(store, found);
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
    let mut found = Vec::with_capacity(names.len());
    for name in names.values() {
        if let Some(holding) = Holding::of(name)
            && let Some(lengths) = lengths.get(&(holding.id, holding.place.rank))
        {
            found.push((holding, *lengths));
        }
    }
    Found::of(store, found)
}
