//! From a key to its home, its other windows, its tags and its shard.
//!
//! Three hashes with independent seeds (seahash, 4 x 64 bits of seed each):
//!
//! * `first` decides the home (its high bits) and the tags (its low bits);
//! * `second` decides the other windows. It is computed only when a GET leaves the primary window;
//! * `shard` decides nothing here. It is for whoever spreads keys over several servers, so that a
//!   shard's keys do not crowd into a part of its homes.
//!
//! Seeds are random per table. seahash is fast and not cryptographic: the seeds keep accidental patterns
//! apart, not an adversary who can measure collisions.

/// Seeds of the three hashes, as they stand in the superblock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seeds(pub [[u64; 4]; 3]);

impl Seeds {
    /// Seeds from the operating system's random source.
    ///
    /// # Errors
    /// The operating system's error when it has no random bytes to give.
    pub fn random() -> std::io::Result<Seeds> {
        let mut words = [[0u64; 4]; 3];
        let bytes: &mut [u8] = bytemuck::cast_slice_mut(&mut words);
        let mut filled = 0;
        while filled < bytes.len() {
            filled += rustix::rand::getrandom(&mut bytes[filled..], rustix::rand::GetRandomFlags::empty())?;
        }
        Ok(Seeds(words))
    }

    /// Seeds that follow from `n`: for reproducible measurements and tests.
    pub fn from_number(n: u64) -> Seeds {
        let mut state = n;
        let mut next = || {
            state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
            mix(state)
        };
        Seeds(std::array::from_fn(|_| std::array::from_fn(|_| next())))
    }

    fn hash(&self, which: usize, key: &[u8]) -> u64 {
        let [a, b, c, d] = self.0[which];
        seahash::hash_seeded(key, a, b, c, d)
    }

    /// The hash that decides home and tags.
    #[inline]
    pub fn first(&self, key: &[u8]) -> First {
        First(self.hash(0, key))
    }

    /// The hash that decides a key's other windows.
    #[inline]
    pub fn second(&self, key: &[u8]) -> u64 {
        self.hash(1, key)
    }

    /// The hash kept for sharding: independent of homes, windows and tags.
    pub fn shard(&self, key: &[u8]) -> u64 {
        self.hash(2, key)
    }
}

/// A key's first hash: home from the high bits, tags from the low ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct First(pub u64);

impl First {
    /// What a moved key leaves behind in its old slot: 1..=255, 0 means "nobody".
    #[inline]
    pub fn ghost(self) -> u8 {
        // The low 5 bits choose the filter bit; the next 16 are independent of them.
        1 + (((self.0 >> 5) & 0xffff) % 255) as u8
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
        assert_eq!(Seeds::from_number(0).0[0][..3], published);
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
        let mut seeds = Seeds::random().expect("random bytes");
        assert_ne!(seeds, Seeds::random().expect("random bytes"));
        assert!(seeds.0.iter().flatten().all(|&word| word != 0), "{seeds:?}");
        let hashes = |seeds: &Seeds| [seeds.first(b"key").0, seeds.second(b"key"), seeds.shard(b"key")];
        for which in 0..3 {
            let before = hashes(&seeds);
            seeds.0[which][3] ^= 1 << 40;
            let changed = |n: usize| before[n] != hashes(&seeds)[n];
            assert_eq!([0, 1, 2].map(changed), [0, 1, 2].map(|n| n == which));
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
