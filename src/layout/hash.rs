//! From a key to its home, its other windows, its tags and its shard.
//!
//! Three hashes with independent seeds:
//!
//! * `first` decides the home (its high bits) and the tags (its low bits). It is rapidhash, which
//!   takes some twenty instructions for a key of 16 bytes;
//! * `second` decides the other windows. It follows from the first hash, so the key is read once;
//! * `shard` decides nothing here. It is for whoever spreads keys over several servers, so that a
//!   shard's keys do not crowd into a part of its homes. It is another function (seahash), so that
//!   it has nothing in common with the first but the key.
//!
//! Seeds are random per table. None of these functions is cryptographic: the seeds keep accidental
//! patterns apart, not an adversary who can measure collisions.

use crate::base::random;
use rapidhash::v3::{RapidSecrets, rapidhash_v3_micro_inline};

/// Seeds of the three hashes, as they stand in the superblock.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, bytemuck::Pod, bytemuck::Zeroable)]
pub struct Seeds {
    /// Of the first hash: rapidhash's seed and its seven secrets.
    pub first: [u64; 8],
    /// Of the second hash.
    pub second: u64,
    /// Of the hash for sharding: seahash's four seeds.
    pub shard: [u64; 4],
}

impl Seeds {
    /// Seeds from the operating system's random source.
    ///
    /// # Errors
    /// The operating system's error when it has no random bytes to give.
    pub fn random() -> std::io::Result<Seeds> {
        Ok(Seeds::from_words(random::words()?))
    }

    /// Seeds that follow from `n`: for reproducible measurements and tests.
    pub fn from_number(n: u64) -> Seeds {
        let mut state = n;
        Seeds::from_words(std::array::from_fn(|_| {
            state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
            mix(state)
        }))
    }

    fn from_words([first, second, shard @ ..]: [u64; 6]) -> Seeds {
        let RapidSecrets { seed, secrets: [a, b, c, d, e, f, g] } = RapidSecrets::seed(first);
        Seeds { first: [seed, a, b, c, d, e, f, g], second, shard }
    }

    /// The hash that decides home and tags.
    pub fn first(&self, key: &[u8]) -> First {
        FirstHash::new(self).of(key)
    }

    /// The hash that decides the other windows of a key with this first hash.
    #[inline]
    pub fn second(&self, first: First) -> u64 {
        mix(first.0 ^ self.second)
    }

    /// The other half of a long key's digest (`long.rs`): another function than the first hash, with seeds that
    /// follow from the second one's.
    pub(super) fn check(&self, key: &[u8]) -> u64 {
        let [a, b, c, d] = [1, 2, 3, 4].map(|n| mix(self.second.wrapping_add(n)));
        seahash::hash_seeded(key, a, b, c, d)
    }

    /// The hash kept for sharding: independent of homes, windows and tags.
    pub fn shard(&self, key: &[u8]) -> u64 {
        let [a, b, c, d] = self.shard;
        seahash::hash_seeded(key, a, b, c, d)
    }
}

/// Keys of 8 to this many bytes are hashed in a few instructions, without a call.
pub(crate) const SHORT_KEY: usize = 16;

/// The hash that decides home and tags, ready to be computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FirstHash(RapidSecrets);

impl FirstHash {
    pub fn new(seeds: &Seeds) -> FirstHash {
        let [seed, secrets @ ..] = seeds.first;
        FirstHash(RapidSecrets { seed, secrets })
    }

    #[inline(always)]
    pub fn of(&self, key: &[u8]) -> First {
        match (key.len(), key.first_chunk(), key.last_chunk()) {
            (8..=SHORT_KEY, Some(begin), Some(end)) => {
                self.of_short(u64::from_le_bytes(*begin), u64::from_le_bytes(*end), key.len() as u64)
            }
            _ => self.of_any(key),
        }
    }

    /// rapidhash of a key of 8 to 16 bytes: of its first eight, its last eight, and its length. The
    /// same as below, without a call and without the cases of other lengths.
    #[inline(always)]
    fn of_short(&self, begin: u64, end: u64, len: u64) -> First {
        let folded = |a: u64, b: u64| {
            let product = u128::from(a) * u128::from(b);
            (product as u64, (product >> 64) as u64)
        };
        let secret = self.0.secrets[1];
        let (low, high) = folded(begin ^ secret, end ^ self.0.seed ^ len);
        let (low, high) = folded(low ^ 0xaaaa_aaaa_aaaa_aaaa, high ^ secret ^ len);
        First(low ^ high)
    }

    #[inline(always)]
    fn of_any(&self, key: &[u8]) -> First {
        First(rapidhash_v3_micro_inline::<true, false>(key, &self.0))
    }
}

/// Bits of the first hash that choose a directory entry, at most.
pub const DIRECTORY_BITS_MAX: u32 = 24;

/// A key's first hash: home from the high bits, tags from the low ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct First(pub u64);

impl First {
    /// What a moved key leaves behind in its old slot: 1..=255, 0 means "nobody".
    #[inline]
    pub fn ghost(self) -> u8 {
        // The low 5 bits choose the filter bit; the next 16 are independent of them.
        1 + (((self.0 >> 5) & 0xffff) % 255) as u8
    }

    /// Where the key is in the directory of a table that grows: the low bits of this, as many as the
    /// directory has. Neither tag has these bits, and they hardly matter for the home.
    #[inline(always)]
    pub fn directory(self) -> u32 {
        self.all_directory() & ((1 << DIRECTORY_BITS_MAX) - 1)
    }

    /// Like `directory`, with the bits above these, which are none of a sound directory.
    #[inline(always)]
    pub(crate) fn all_directory(self) -> u32 {
        (self.0 >> 24) as u32
    }

    /// A hash of a key with this directory hash.
    pub(crate) fn of_directory(directory: u32) -> First {
        First(u64::from(directory) << 24)
    }

    /// Which of `bits` (a power of two, at most 32) filter bits in the home's header stands for this key.
    #[inline]
    pub fn filter_bit(self, bits: u32) -> u32 {
        1 << (self.0 as u32 & (bits - 1))
    }
}

/// A key that has been hashed for one table, once for each operation.
/// [`Geometry::hashed`](super::geometry::Geometry::hashed) makes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hashed<'a> {
    pub(super) key: &'a [u8],
    pub(super) first: First,
    pub(super) home: u64,
}

impl<'a> Hashed<'a> {
    /// The key.
    #[inline]
    pub fn key(self) -> &'a [u8] {
        self.key
    }

    /// Its first hash.
    #[inline]
    pub fn first(self) -> First {
        self.first
    }

    /// Its home.
    #[inline]
    pub fn home(self) -> u64 {
        self.home
    }

    /// What it leaves behind in a slot that it is moved out of; see [`First::ghost`].
    #[inline]
    pub fn ghost(self) -> u8 {
        self.first.ghost()
    }
}

/// Maps a hash onto `0..n` by its high bits (Lemire, "Fast Random Integer Generation in an Interval",
/// 2019): `n` need not be a power of two.
#[inline]
pub fn reduce(hash: u64, n: u64) -> u64 {
    ((u128::from(hash) * u128::from(n)) >> 64) as u64
}

/// The finalizer of SplitMix64 (Steele, Lea, Flood, OOPSLA'14): a bijection that spreads every bit.
#[inline]
pub fn mix(mut x: u64) -> u64 {
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Where a key stands is part of the format: the first outputs of SplitMix64 from state 0, as published.
    #[test]
    fn mixes_as_published() {
        let published = [0xe220_a839_7b1d_cdaf, 0x6e78_9e6a_a1b9_65f4, 0x06c4_5d18_8009_454f];
        for (n, output) in (1..).zip(published) {
            assert_eq!(mix(0x9e37_79b9_7f4a_7c15u64.wrapping_mul(n)), output);
        }
        let seeds = Seeds::from_number(0);
        assert_eq!((seeds.second, seeds.shard[0]), (published[1], published[2]));
    }

    /// Whoever chooses the keys cannot know a table's hashes: every part of the seeds is random.
    #[test]
    fn every_part_of_the_seeds_is_random() {
        let [one, other] = [Seeds::random().unwrap(), Seeds::random().unwrap()];
        assert_ne!(one.first(b"key"), other.first(b"key"));
        assert_ne!(one.second, other.second);
        for (one, other) in one.shard.into_iter().zip(other.shard) {
            assert_ne!(one, other);
        }
    }

    /// The first hash is part of the format, too. A release of the crate with other outputs must not
    /// get by. Keys of each length that the function treats in its own way.
    #[test]
    fn hashes_stay_the_same() {
        let seeds = Seeds::from_number(0);
        let key: [u8; 255] = std::array::from_fn(|i| i as u8);
        let hashes = [1, 3, 4, 8, 16, 17, 48, 80, 81, 255].map(|len| seeds.first(&key[..len]).0);
        let expected = [
            0x0f58_5017_b929_5bf1,
            0x86e8_5788_7ed3_4a69,
            0x36db_0c44_cb7f_f77b,
            0x5165_c49e_14f9_e5e1,
            0xe612_8ea0_68d4_89ec,
            0x770a_a0c5_5c5b_0f01,
            0x1942_c6d6_a5d0_e2d0,
            0x8030_3468_cf37_32c1,
            0x0918_60fc_8fc2_f7d7,
            0x3583_7946_ea66_a6c7,
        ];
        assert_eq!(hashes, expected);
        let first = FirstHash::new(&seeds);
        assert!((1..=255).all(|len| first.of(&key[..len]) == first.of_any(&key[..len])), "one function");
        let others = (seeds.second(First(7)), seeds.shard(b"key"), seeds.check(b"key"));
        assert_eq!(others, (0x189a_ca47_8414_b1fe, 0x4b44_e44a_c5a1_92ea, 0xcbb9_f125_c3f6_e6ca));
    }

    #[test]
    fn parts_of_a_first_hash() {
        for (hash, ghost) in [(0, 1), (31, 1), (32, 2), (254 << 5, 255), (255 << 5, 1), (u64::MAX, 1)] {
            assert_eq!(First(hash).ghost(), ghost, "{hash:#x}");
        }
        assert_eq!(First(0b1_1101).filter_bit(32), 1 << 0b1_1101);
        assert_eq!(First(0b1_1101).filter_bit(8), 1 << 0b101);
        assert_eq!([0, 1 << 63, u64::MAX].map(|hash| reduce(hash, 10)), [0, 5, 9]);
    }

    /// Each of the three hashes has seeds of its own, and random seeds fill all of them.
    #[test]
    fn three_hashes() {
        let seeds = Seeds::random().expect("random bytes");
        assert_ne!(seeds, Seeds::random().expect("random bytes"));
        let words: [u64; 13] = bytemuck::cast(seeds);
        assert!(words.iter().all(|&word| word != 0), "{seeds:?}");
        let hashes = |seeds: &Seeds| [seeds.first(b"key").0, seeds.second(First(7)), seeds.shard(b"key")];
        for (word, which) in [(0, 0), (2, 0), (8, 1), (9, 2), (12, 2)] {
            let mut words = words;
            words[word] ^= 1 << 40;
            let (before, after) = (hashes(&seeds), hashes(&bytemuck::cast(words)));
            assert_eq!([0, 1, 2].map(|n| before[n] != after[n]), [0, 1, 2].map(|n| n == which), "{word}");
        }
    }

    /// Sharding by key must not crowd a shard's keys into some homes: chi-square over 64 homes for the
    /// keys of one shard of four.
    #[test]
    fn shard_is_independent_of_home() {
        let seeds = Seeds::from_number(7);
        let mut per_home = [0f64; 64];
        let mut n = 0f64;
        for i in 0u64..200_000 {
            let key = i.to_le_bytes();
            if reduce(seeds.shard(&key), 4) == 2 {
                per_home[reduce(seeds.first(&key).0, 64) as usize] += 1.0;
                n += 1.0;
            }
        }
        let expected = n / 64.0;
        let chi2: f64 = per_home.iter().map(|o| (o - expected).powi(2) / expected).sum();
        assert!((n - 50_000.0).abs() < 1_000.0, "a quarter of the keys, got {n}");
        assert!(chi2 < 130.0, "63 degrees of freedom, 130 is beyond 6 sigma; got {chi2}");
    }

    #[test]
    fn ghosts_are_never_nobody() {
        assert!((0..100_000u64).all(|i| First(mix(i)).ghost() != 0));
    }
}
