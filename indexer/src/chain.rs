//! From tokens to hashes: each block's rolling hash, as a query computes it.
//!
//! Local hashes are XXH3-64 of a block's tokens, with a seed that adapter and salt change; rolling ones of the hash before
//! and the local one (docs/KV-CACHE.md, "Hashes of tokens"). A block that an engine stores goes on from its parent, so
//! what is known of each block is its [`Link`].

use crate::events::{Content, Extra, Stored};
use std::num::NonZeroU32;
use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

/// The seed of Dynamo's hashes, which is what is taken where nothing else is said.
pub const SEED: u64 = 1337;

/// What blocks behind a block go on from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Link {
    /// The hash of all tokens up to the end of the block.
    pub rolling: u64,
    /// The seed of local hashes.
    pub seed: u64,
}

/// The seed of local hashes with an adapter and a salt. An empty one is none.
pub fn seed_of(base: u64, lora: &str, salt: &str) -> u64 {
    let of = |name: &str, seed| if name.is_empty() { 0 } else { xxh3_64_with_seed(name.as_bytes(), seed) };
    base.wrapping_add(of(lora, 0)).wrapping_add(of(salt, 1))
}

/// The local hash of a block.
fn local(tokens: &[u32], seed: u64, bytes: &mut Vec<u8>) -> u64 {
    bytes.clear();
    bytes.extend(tokens.iter().flat_map(|token| token.to_le_bytes()));
    xxh3_64_with_seed(bytes, seed)
}

fn pair(one: u64, other: u64) -> [u8; 16] {
    let mut both = [0; 16];
    both[..8].copy_from_slice(&one.to_le_bytes());
    both[8..].copy_from_slice(&other.to_le_bytes());
    both
}

/// The rolling hash of a block behind another one, or of the first.
fn rolling(before: Option<u64>, local: u64, base: u64) -> u64 {
    before.map_or(local, |before| xxh3_64_with_seed(&pair(before, local), base))
}

/// Rolling hashes of a prompt's whole blocks.
pub fn of_tokens(tokens: &[u32], block_size: NonZeroU32, base: u64, seed: u64) -> Vec<u64> {
    let (mut bytes, mut before) = (Vec::new(), None);
    tokens
        .chunks_exact(block_size.get() as usize)
        .map(|block| {
            let hash = rolling(before, local(block, seed, &mut bytes), base);
            before = Some(hash);
            hash
        })
        .collect()
}

/// Rolling hashes of blocks whose local ones are given.
pub fn of_locals(locals: &[u64], base: u64) -> Vec<u64> {
    let mut before = None;
    locals
        .iter()
        .map(|local| {
            let hash = rolling(before, *local, base);
            before = Some(hash);
            hash
        })
        .collect()
}

/// The links of blocks that were stored. `None` if tokens and hashes do not belong together.
pub fn of_stored(
    stored: &Stored,
    parent: Option<Link>,
    block_size: NonZeroU32,
    base: u64,
    seed: u64,
) -> Option<Vec<Link>> {
    let tokens = match &stored.content {
        Content::Rolling(hashes) => {
            return Some(hashes.iter().map(|rolling| Link { rolling: *rolling, seed }).collect());
        }
        Content::Tokens(tokens) => tokens,
    };
    let size = block_size.get() as usize;
    if stored.hashes.len().checked_mul(size) != Some(tokens.len()) {
        return None;
    }
    let mut seed = parent.map_or(seed, |parent| parent.seed);
    let (mut bytes, mut before) = (Vec::new(), parent.map(|parent| parent.rolling));
    let mut links = Vec::with_capacity(stored.hashes.len());
    for (number, block) in tokens.chunks_exact(size).enumerate() {
        let extra = stored.extras.get(number).copied().unwrap_or_default();
        let hash = match extra {
            Extra::None => local(block, seed, &mut bytes),
            // An engine has the salt in a prompt's first block only, and a query in all of them.
            Extra::Text(salt) if before.is_none() && stored.salt.is_none() => {
                seed = seed.wrapping_add(salt);
                local(block, seed, &mut bytes)
            }
            Extra::Text(other) | Extra::Else(other) => xxh3_64(&pair(local(block, seed, &mut bytes), other)),
        };
        let rolling = rolling(before, hash, base);
        before = Some(rolling);
        links.push(Link { rolling, seed });
    }
    Some(links)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::events::{EngineHash, Tier};
    use oneread_prefix::{HashScheme, block_hashes};

    const FOUR: NonZeroU32 = NonZeroU32::new(4).unwrap();

    fn stored(tokens: &[u32], extras: Vec<Extra>) -> Stored {
        Stored {
            hashes: (0..tokens.len() as u64 / 4).map(EngineHash::number).collect(),
            parent: None,
            content: Content::Tokens(tokens.to_vec()),
            block_size: Some(4),
            lora: None,
            salt: None,
            tier: Tier::Gpu,
            group: 0,
            extras,
        }
    }

    fn hashes(links: Option<Vec<Link>>) -> Vec<u64> {
        links.unwrap().iter().map(|link| link.rolling).collect()
    }

    /// Blocks that come one by one have the hashes that the library computes of the prompt, with adapter and salt and
    /// without; and so have local hashes that are chained.
    #[test]
    fn blocks_one_by_one_are_the_prompts() {
        let prompt: Vec<u32> = (1..=23).collect();
        for (lora, salt) in [("", ""), ("sql", ""), ("", "tenant"), ("sql", "tenant")] {
            let scheme = HashScheme::Dynamo { lora, salt };
            let expected = block_hashes(&prompt, 4, scheme).unwrap();
            let seed = seed_of(SEED, lora, salt);
            assert_eq!(of_tokens(&prompt, FOUR, SEED, seed), expected.rolling);
            assert_eq!(of_locals(&expected.local, SEED), expected.rolling);
            let (mut parent, mut one_by_one) = (None, Vec::new());
            for block in prompt.chunks_exact(4) {
                let links = of_stored(&stored(block, Vec::new()), parent, FOUR, SEED, seed).unwrap();
                parent = links.last().copied();
                one_by_one.extend(links.iter().map(|link| link.rolling));
            }
            assert_eq!(one_by_one, expected.rolling);
        }
    }

    /// A salt beside the first block's tokens counts for all blocks behind it; something beside a later one makes hashes
    /// that no query of tokens has.
    #[test]
    fn what_is_beside_tokens_counts() {
        let prompt: Vec<u32> = (1..=12).collect();
        let salt = Extra::Text(xxh3_64_with_seed(b"tenant", 1));
        let salted = of_tokens(&prompt, FOUR, SEED, seed_of(SEED, "", "tenant"));
        let first = of_stored(&stored(&prompt[..8], vec![salt, Extra::None]), None, FOUR, SEED, SEED);
        assert_eq!(hashes(first.clone()), salted[..2]);
        let next = of_stored(&stored(&prompt[8..], vec![]), first.unwrap().last().copied(), FOUR, SEED, SEED);
        assert_eq!(hashes(next), salted[2..]);
        let plain = of_tokens(&prompt, FOUR, SEED, SEED);
        for other in [salt, Extra::Else(5)] {
            let image = hashes(of_stored(
                &stored(&prompt, vec![Extra::None, other, Extra::None]),
                None,
                FOUR,
                SEED,
                SEED,
            ));
            assert!(image[0] == plain[0] && image[1] != plain[1] && image[2] != plain[2]);
        }
    }

    /// Tokens that are not those of whole blocks are none.
    #[test]
    fn tokens_belong_to_blocks() {
        let mut short = stored(&[1, 2, 3, 4, 5, 6, 7, 8], Vec::new());
        short.content = Content::Tokens(vec![1, 2, 3, 4, 5, 6, 7]);
        assert_eq!(of_stored(&short, None, FOUR, SEED, SEED), None);
    }
}
