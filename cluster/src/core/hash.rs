//! The hash that says which shard has a key.

use rapidhash::v3::{RapidSecrets, rapidhash_v3_micro_inline};
use serde::{Deserialize, Serialize};

/// The hash that says which shard has a key: rapidhash V3 (micro), with a seed of the cluster's own.
///
/// All nodes and clients must agree on it, whatever their build: its outputs are the same for ever. etcd has the seed.
/// A table places keys by the same function; its own seed is drawn apart, so a shard's keys do not crowd there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "u64", into = "u64")]
pub struct ShardHash {
    seed: u64,
    secrets: RapidSecrets,
}

impl ShardHash {
    /// With this seed: a random number.
    pub fn new(seed: u64) -> ShardHash {
        ShardHash { seed, secrets: RapidSecrets::seed(seed) }
    }

    /// The seed.
    pub fn seed(&self) -> u64 {
        self.seed
    }

    /// The hash of a key.
    #[inline]
    pub fn of(&self, key: &[u8]) -> u64 {
        match (key.len(), key.first_chunk(), key.last_chunk()) {
            (8..=16, Some(begin), Some(end)) => {
                self.of_short(u64::from_le_bytes(*begin), u64::from_le_bytes(*end), key.len() as u64)
            }
            _ => self.of_any(key),
        }
    }

    /// As `of`, for 8 to 16 bytes: without a call, and without the cases of other lengths.
    #[inline]
    fn of_short(&self, begin: u64, end: u64, len: u64) -> u64 {
        let folded = |a: u64, b: u64| {
            let product = u128::from(a) * u128::from(b);
            (product as u64, (product >> 64) as u64)
        };
        let secret = self.secrets.secrets[1];
        let (low, high) = folded(begin ^ secret, end ^ self.secrets.seed ^ len);
        let (low, high) = folded(low ^ 0xaaaa_aaaa_aaaa_aaaa, high ^ secret ^ len);
        low ^ high
    }

    #[inline(never)]
    fn of_any(&self, key: &[u8]) -> u64 {
        rapidhash_v3_micro_inline::<true, false>(key, &self.secrets)
    }
}

impl From<u64> for ShardHash {
    fn from(seed: u64) -> ShardHash {
        ShardHash::new(seed)
    }
}

impl From<ShardHash> for u64 {
    fn from(hash: ShardHash) -> u64 {
        hash.seed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Clients of one build find what nodes of another one have put. Keys of each length that the function treats in its
    /// own way.
    #[test]
    fn hashes_stay_the_same() {
        let key: [u8; 255] = std::array::from_fn(|i| i as u8);
        let hashes = [1, 3, 4, 8, 16, 17, 48, 80, 81, 255].map(|len| ShardHash::new(7).of(&key[..len]));
        let expected = [
            0xf9f4_5a75_9684_e21a,
            0xc991_ba78_9db1_5b9b,
            0xa74e_22e7_ebbf_5c1a,
            0x5f1b_7bca_c1cc_f2bf,
            0xd5d8_b93e_068c_e2a6,
            0xeaa7_811d_b057_d2bf,
            0x8db5_f610_32a2_8159,
            0x3f5f_63bb_bd24_ee31,
            0x2bb1_7e75_dd67_8b76,
            0x1301_24e6_c15a_5bea,
        ];
        assert_eq!(hashes, expected);
        let hash = ShardHash::new(7);
        assert!((1..=255).all(|len| hash.of(&key[..len]) == hash.of_any(&key[..len])), "one function");
        assert_ne!(ShardHash::new(8).of(b"key"), ShardHash::new(7).of(b"key"));
    }

    /// The seed alone is written, and all follows from it.
    #[test]
    fn a_hash_is_written_as_its_seed() {
        let hash = ShardHash::new(u64::MAX);
        let json = serde_json::to_string(&hash).unwrap();
        assert_eq!(json, u64::MAX.to_string());
        assert_eq!(serde_json::from_str::<ShardHash>(&json).unwrap(), hash);
    }

    /// Keys of one shard of 64 are spread over a table's homes like any keys, and shards have as many each: chi-square,
    /// over keys as programs have them.
    #[cfg(feature = "room")]
    #[test]
    fn a_shard_has_keys_all_over_a_table() {
        use oneread::layout::Seeds;
        const KEYS: u64 = 200_000;
        let place = |hash: u64| (hash >> 58) as usize;
        let chi = |counts: &[f64; 64]| {
            let expected = counts.iter().sum::<f64>() / 64.0;
            counts.iter().map(|count| (count - expected).powi(2) / expected).sum::<f64>()
        };
        let shapes: [fn(u64) -> Vec<u8>; 5] = [
            |n| n.to_le_bytes().to_vec(),
            |n| u128::from(n).to_be_bytes().to_vec(),
            |n| format!("user:{n}").into_bytes(),
            |n| format!("/tenants/a/objects/{n:012}/parts/7").into_bytes(),
            |n| [&[7; 100][..], &(n << 20).to_le_bytes()].concat(),
        ];
        for (number, shape) in shapes.into_iter().enumerate() {
            let (seeds, hash) = (Seeds::from_number(number as u64), ShardHash::new(number as u64));
            let (mut shards, mut homes) = ([0.0; 64], [0.0; 64]);
            for key in (0..KEYS).map(shape) {
                let shard = place(hash.of(&key));
                shards[shard] += 1.0;
                if shard == 17 {
                    homes[place(seeds.first(&key).0)] += 1.0;
                }
            }
            // 63 degrees of freedom: 130 is beyond 6 sigma.
            assert!(chi(&shards) < 130.0, "{number}: keys a shard: {}", chi(&shards));
            assert!(chi(&homes) < 130.0, "{number}: keys a home: {}", chi(&homes));
        }
    }
}
