//! Hashes of blocks from their tokens, as others compute them.
//!
//! The RFC that Mooncake wrote for indexes (kvcache-ai/Mooncake, issues 1403 and 1527; its document
//! `docs/source/design/conductor/indexer-api-design.md`, "Hashing standard") recommends XXH3 of 64 bits with a seed S:
//!
//! ```text
//! local[i]    XXH3(the block's tokens, u32 little-endian, S)
//! rolling[0]  local[0]
//! rolling[i]  XXH3(rolling[i - 1], local[i], u64 little-endian, S)
//! ```
//!
//! Dynamo's router has the same with S = 1337, but that adapter and salt change the seed of local hashes, and of these
//! only: `1337 + XXH3(adapter, 0) + XXH3(salt, 1)`.

use crate::error::HashError;
use std::num::NonZeroUsize;
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// The seed of Dynamo's hashes.
const DYNAMO: u64 = 1337;

/// How hashes are computed. All who use one index use one scheme.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum HashScheme<'a> {
    /// As of Mooncake's RFC 1403. Its events name adapter and salt beside the hashes, and the hashes have nothing of them:
    /// give each adapter and each salt a table, or a seed, of its own.
    Rfc1403 {
        /// What all who take part have agreed on.
        seed: u64,
    },
    /// As Dynamo's router (`compute_block_hash_for_seq`, version 1.6.1).
    Dynamo {
        /// The name of the adapter (LoRA). An empty one is none.
        lora: &'a str,
        /// What keeps tenants apart, its `cache_namespace`. An empty one is none.
        salt: &'a str,
    },
}

impl HashScheme<'_> {
    /// The seeds of local and of rolling hashes.
    fn seeds(self) -> (u64, u64) {
        let of = |name: &str, seed| match name {
            "" => 0,
            name => xxh3_64_with_seed(name.as_bytes(), seed),
        };
        match self {
            HashScheme::Rfc1403 { seed } => (seed, seed),
            HashScheme::Dynamo { lora, salt } => {
                (DYNAMO.wrapping_add(of(lora, 0)).wrapping_add(of(salt, 1)), DYNAMO)
            }
        }
    }
}

/// Hashes of a prompt's blocks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct BlockHashes {
    /// Of each block's tokens alone.
    pub local: Vec<u64>,
    /// Of each block with all those before it: what an index wants.
    pub rolling: Vec<u64>,
}

impl BlockHashes {
    /// The rolling hashes as digests of 8 bytes.
    pub fn digests(&self) -> crate::Digests<'static> {
        crate::Digests::numbers(&self.rolling)
    }
}

/// The hashes of a prompt's blocks. Tokens behind the last whole block have none.
///
/// # Errors
/// [`HashError`] for blocks without tokens.
pub fn block_hashes(
    tokens: &[u32],
    block_size: usize,
    scheme: HashScheme<'_>,
) -> Result<BlockHashes, HashError> {
    let block_size = NonZeroUsize::new(block_size).ok_or(HashError::BlockSize)?.get();
    let (of_tokens, of_hashes) = scheme.seeds();
    let mut hashes = BlockHashes::default();
    let mut bytes = Vec::new();
    for block in tokens.chunks_exact(block_size) {
        bytes.clear();
        bytes.extend(block.iter().flat_map(|token| token.to_le_bytes()));
        let local = xxh3_64_with_seed(&bytes, of_tokens);
        let rolling = match hashes.rolling.last() {
            None => local,
            Some(before) => {
                let both = [before.to_le_bytes(), local.to_le_bytes()];
                xxh3_64_with_seed(both.as_flattened(), of_hashes)
            }
        };
        hashes.local.push(local);
        hashes.rolling.push(rolling);
    }
    Ok(hashes)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TENS: [u32; 10] = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10];

    /// Local hashes that Dynamo's own software computed: `dynamo._core.compute_block_hash_for_seq` of the wheel
    /// `ai-dynamo-runtime` 1.6.1, with `lora_name` and `cache_namespace`.
    #[test]
    fn local_hashes_are_dynamo_s() {
        let of = |lora, salt| block_hashes(&TENS, 4, HashScheme::Dynamo { lora, salt }).unwrap().local;
        assert_eq!(of("", ""), [14_643_705_804_678_351_452, 16_777_012_769_546_811_212]);
        assert_eq!(of("adapter", ""), [5_402_321_046_179_341_001, 14_483_578_958_650_678_965]);
        assert_eq!(of("", "tenant"), [17_621_909_411_505_482_860, 2_865_997_321_390_064_198]);
        assert_eq!(of("adapter", "tenant"), [18_236_049_043_930_474_413, 17_511_390_760_979_262_066]);
        // Long enough for each path of XXH3: 256 bytes a block.
        let tokens: Vec<u32> = (0..3 * 64u32).map(|n| n.wrapping_mul(2_654_435_761)).collect();
        let hashes = block_hashes(&tokens, 64, HashScheme::Dynamo { lora: "", salt: "" }).unwrap();
        let expected = [13_815_553_331_808_045_002, 8_924_245_194_481_243_652, 343_925_613_416_004_191];
        assert_eq!(hashes.local, expected);
    }

    /// Rolling hashes of the RFC's rule, computed with the reference implementation of XXH3 (libxxhash, by Python's `xxhash`
    /// 4.1.0). No software of Mooncake computes them: its indexer takes hashes of engines.
    #[test]
    fn rolling_hashes_follow_the_rfc() {
        let tokens: Vec<u32> = (1..=12).collect();
        for (seed, expected) in [
            (0, [8_052_976_908_588_476_977, 4_185_132_130_981_121_146, 9_410_009_423_372_290_283]),
            (1_337, [14_643_705_804_678_351_452, 4_945_711_292_740_353_085, 12_583_592_247_330_656_132]),
            (u64::MAX, [2_498_564_416_888_662_579, 7_915_251_108_642_614_200, 4_607_154_152_492_057_286]),
        ] {
            assert_eq!(block_hashes(&tokens, 4, HashScheme::Rfc1403 { seed }).unwrap().rolling, expected);
        }
        // Without adapter and salt, Dynamo's are these.
        let dynamo = block_hashes(&tokens, 4, HashScheme::Dynamo { lora: "", salt: "" }).unwrap();
        assert_eq!(dynamo, block_hashes(&tokens, 4, HashScheme::Rfc1403 { seed: 1_337 }).unwrap());
    }

    /// A block's rolling hash says all that is before it, and its local one nothing of it.
    #[test]
    fn rolling_hashes_are_of_prefixes() {
        for scheme in [HashScheme::Rfc1403 { seed: 7 }, HashScheme::Dynamo { lora: "a", salt: "b" }] {
            let one = block_hashes(&[1, 2, 5, 6, 7], 2, scheme).unwrap();
            let other = block_hashes(&[3, 4, 5, 6], 2, scheme).unwrap();
            assert_eq!((one.local.len(), one.rolling.len()), (2, 2), "the last token has none");
            assert_eq!(one.local[1], other.local[1]);
            assert_ne!(one.rolling[1], other.rolling[1]);
            assert_eq!(one.rolling[0], one.local[0]);
            assert_eq!(one.digests().keys()[1][..8], one.rolling[1].to_ne_bytes());
            assert_eq!(block_hashes(&[1], 2, scheme).unwrap(), BlockHashes::default());
            assert_eq!(block_hashes(&[1], 0, scheme).unwrap_err(), HashError::BlockSize);
        }
    }
}
