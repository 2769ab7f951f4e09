//! Workers: who publishes, and what of that is in the table.
//!
//! ```text
//! worker   '#' 'r' id (8)                       ->  a Worker as JSON
//! number   '#' 'n' id (8)                       ->  a Progress
//! link     '#' 'y' hash (13)                    ->  a CommonLink: an engine's hash -> what queries ask for
//! own link '#' 'x' hash (13)                    ->  a LinkEntry: of a worker that means something else by a hash
//! version  '#' 'v'                              ->  a number that each change of workers makes higher
//! lease    '#' 'l'                              ->  who takes events in (lease.rs)
//! peer     '#' 'q' hash (8)                     ->  the URL of another indexer
//! ```
//!
//! These keys are shorter than a block's, as those of the index itself are (`oneread_prefix`): it leaves them alone. A
//! block's key is its rolling hash and its [`Partition`].

use crate::chain::Link;
use crate::endpoint::{Endpoint, Reach};
use crate::events::{EngineHash, Tier};
use serde::{Deserialize, Serialize};
use std::num::NonZeroU32;
use xxhash_rust::xxh3::{xxh3_64, xxh3_128};

/// The longest name of a model, tenant, adapter or salt, in bytes.
pub const TEXT_MAX: usize = 200;
/// The longest name of an instance, in bytes: a holder's name has more beside it.
pub const INSTANCE_MAX: usize = 140;

/// A model's and a tenant's blocks: no query for one finds another's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Partition(u64);

/// A hash of texts. Each has its length before it, so no two lists have the same bytes.
fn hash_of(texts: &[&str]) -> u64 {
    let mut bytes = Vec::new();
    for text in texts {
        bytes.extend((text.len() as u64).to_le_bytes());
        bytes.extend(text.as_bytes());
    }
    xxh3_64(&bytes)
}

impl Partition {
    /// Of a model and a tenant.
    pub fn of(model: &str, tenant: &str) -> Partition {
        Partition(hash_of(&[model, tenant]))
    }

    /// From a holder's name.
    pub fn of_holder(name: &str) -> Option<Partition> {
        let (partition, _) = name.strip_prefix("k1/")?.split_once('/')?;
        u64::from_str_radix(partition, 16).ok().map(Partition)
    }

    /// Of rolling hashes that were published as such, whose adapter and salt are named beside: the hashes have nothing
    /// of them. `seed` is what local hashes with these have, `base` what those with none have.
    pub fn of_rolling(self, seed: u64, base: u64) -> Partition {
        if seed == base { self } else { Partition(hash_of(&[&self.0.to_string(), &seed.to_string()])) }
    }

    /// The key of a block.
    pub fn key(self, rolling: u64) -> [u8; 16] {
        let mut key = [0; 16];
        key[..8].copy_from_slice(&rolling.to_le_bytes());
        key[8..].copy_from_slice(&self.0.to_le_bytes());
        key
    }

    /// The rolling hash of a block's key, if it is of this partition.
    pub fn rolling_of(self, key: &[u8]) -> Option<u64> {
        let (rolling, partition) = key.split_first_chunk::<8>()?;
        (*partition == self.0.to_le_bytes()).then_some(u64::from_le_bytes(*rolling))
    }
}

/// Who publishes, of whom there is one connection and one row of numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PublisherId(u64);

impl PublisherId {
    /// The key of an entry of one kind.
    pub fn key(self, kind: u8) -> [u8; 10] {
        let mut key = [b'#'; 10];
        key[1] = kind;
        key[2..].copy_from_slice(&self.0.to_le_bytes());
        key
    }
}

/// A worker, as it was registered.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Worker {
    /// What routers call it.
    #[serde(rename = "i")]
    pub instance: String,
    /// Its rank. A batch may say another one.
    #[serde(rename = "d")]
    pub rank: u32,
    /// Its model.
    #[serde(rename = "m")]
    pub model: String,
    /// Its tenant.
    #[serde(rename = "t")]
    pub tenant: String,
    /// Tokens a block.
    #[serde(rename = "b")]
    pub block_size: NonZeroU32,
    /// The adapter of events that name none.
    #[serde(rename = "l", default, skip_serializing_if = "String::is_empty")]
    pub lora: String,
    /// The salt of events that name none.
    #[serde(rename = "s", default, skip_serializing_if = "String::is_empty")]
    pub salt: String,
    /// Where it publishes.
    #[serde(rename = "e", with = "as_text")]
    pub endpoint: Endpoint,
    /// Where it sends batches again.
    #[serde(rename = "a", default, skip_serializing_if = "Option::is_none", with = "as_optional_text")]
    pub replay: Option<Endpoint>,
    /// Where both may be.
    #[serde(rename = "w")]
    pub reach: Reach,
    /// Which life of it in the table this is, a random number: another one for each registration, and for each indexer that
    /// takes over from one that may not be dead.
    #[serde(rename = "n", default)]
    pub incarnation: u32,
    /// The next life, while what it has is copied.
    #[serde(rename = "x", default, skip_serializing_if = "Option::is_none")]
    pub next: Option<u32>,
}

mod as_text {
    use crate::endpoint::Endpoint;
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    pub fn serialize<S: Serializer>(endpoint: &Endpoint, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(endpoint)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Endpoint, D::Error> {
        String::deserialize(from)?.parse().map_err(D::Error::custom)
    }
}

mod as_optional_text {
    use crate::endpoint::Endpoint;
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    pub fn serialize<S: Serializer>(endpoint: &Option<Endpoint>, to: S) -> Result<S::Ok, S::Error> {
        match endpoint {
            Some(endpoint) => to.collect_str(endpoint),
            None => to.serialize_none(),
        }
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Endpoint>, D::Error> {
        let text = Option::<String>::deserialize(from)?;
        text.map(|text| text.parse()).transpose().map_err(D::Error::custom)
    }
}

impl Worker {
    /// Its partition.
    pub fn partition(&self) -> Partition {
        Partition::of(&self.model, &self.tenant)
    }

    /// What tells it from others, whatever its incarnation.
    pub fn identity(&self) -> PublisherId {
        PublisherId(hash_of(&[&self.model, &self.tenant, &self.instance, &self.rank.to_string()]))
    }

    /// The publisher that it is in the table.
    pub fn id(&self) -> PublisherId {
        self.id_of(self.incarnation)
    }

    fn id_of(&self, incarnation: u32) -> PublisherId {
        PublisherId(hash_of(&[&self.identity().0.to_string(), &incarnation.to_string()]))
    }

    /// The publishers in the table that are its, now or soon.
    pub fn ids(&self) -> impl Iterator<Item = PublisherId> {
        [Some(self.incarnation), self.next].into_iter().flatten().map(|incarnation| self.id_of(incarnation))
    }

    /// The bytes of its entry.
    pub fn to_bytes(&self) -> Vec<u8> {
        // Texts and numbers have a form in JSON.
        serde_json::to_vec(self).unwrap_or_default()
    }

    /// A worker of these bytes. `None` for what no version up to this one has written.
    pub fn from_bytes(bytes: &[u8]) -> Option<Worker> {
        serde_json::from_slice(bytes).ok()
    }
}

/// A worker's blocks of one rank in one tier, which is a holder of the index.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Place {
    /// The rank.
    pub rank: u32,
    /// The tier.
    pub tier: Tier,
}

impl Place {
    /// The holder's name.
    pub fn holder_name(self, worker: &Worker) -> String {
        let (partition, id) = (worker.partition().0, worker.id().0);
        let Place { rank, tier } = self;
        format!("k1/{partition:016x}/{id:016x}/{rank}/{}/{}", tier.name(), worker.instance)
    }
}

/// Who has blocks, from a holder's name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Holding<'a> {
    /// The worker, of some incarnation.
    pub id: PublisherId,
    /// The rank and the tier.
    pub place: Place,
    /// What routers call the worker.
    pub instance: &'a str,
}

impl Holding<'_> {
    /// Of a holder's name. `None`: it is somebody else's holder.
    pub fn of(name: &str) -> Option<Holding<'_>> {
        let mut parts = name.strip_prefix("k1/")?.splitn(5, '/');
        let (_, id, rank) = (parts.next()?, parts.next()?, parts.next()?);
        let (tier, instance) = (parts.next()?, parts.next()?);
        let tier = Tier::ALL.into_iter().find(|it| it.name() == tier)?;
        let id = PublisherId(u64::from_str_radix(id, 16).ok()?);
        Some(Holding { id, place: Place { rank: rank.parse().ok()?, tier }, instance })
    }
}

/// How far a publisher's batches have been taken in. It is written behind their blocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// The last batch: its number, and a hash of its bytes, by which it is known again.
    pub last: Option<(u64, u64)>,
    /// Blocks that it has.
    pub blocks: u64,
}

impl Progress {
    /// The form that this version writes and reads.
    const FORM: u8 = 1;

    /// The bytes of its entry.
    pub fn to_bytes(self) -> [u8; 26] {
        let mut bytes = [0; 26];
        let (number, digest) = self.last.unwrap_or_default();
        (bytes[0], bytes[1]) = (Progress::FORM, self.last.is_some().into());
        bytes[2..10].copy_from_slice(&number.to_le_bytes());
        bytes[10..18].copy_from_slice(&digest.to_le_bytes());
        bytes[18..].copy_from_slice(&self.blocks.to_le_bytes());
        bytes
    }

    /// Of these bytes. `None` for what no version up to this one has written.
    pub fn from_bytes(bytes: &[u8]) -> Option<Progress> {
        let [Progress::FORM, is_there @ (0 | 1), rest @ ..] = bytes else { return None };
        let (numbers, []) = rest.as_chunks::<8>() else { return None };
        let [number, digest, blocks] = *numbers else { return None };
        let last = (u64::from_le_bytes(number), u64::from_le_bytes(digest));
        Some(Progress { last: (*is_there == 1).then_some(last), blocks: u64::from_le_bytes(blocks) })
    }
}

/// Bytes of a link's key that are a hash.
const LINK_HASH: usize = 13;

/// What the keys of a publisher's links have from it.
fn mask(id: PublisherId) -> [u8; LINK_HASH] {
    let mut mask = [0; LINK_HASH];
    mask.copy_from_slice(&xxh3_128(&id.0.to_le_bytes()).to_le_bytes()[..LINK_HASH]);
    mask
}

/// How an engine calls a block, and where that is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Name {
    /// Where.
    pub place: Place,
    /// The group of layers.
    pub group: u32,
    /// The engine's hash.
    pub hash: EngineHash,
}

/// The key of a common link: of what a model's and tenant's workers call a block, wherever they have it.
pub fn common_key(partition: Partition, name: Name) -> [u8; 15] {
    let mut bytes = [0; 28];
    bytes[..8].copy_from_slice(&partition.0.to_le_bytes());
    bytes[8..12].copy_from_slice(&name.group.to_le_bytes());
    bytes[12..].copy_from_slice(&name.hash.0);
    let mut key = [b'#'; 15];
    key[1] = COMMON;
    key[2..].copy_from_slice(&xxh3_128(&bytes).to_le_bytes()[..LINK_HASH]);
    key
}

/// The kind of a common link's key.
pub const COMMON: u8 = b'y';

/// What a hash means to all workers of a model and tenant but those that have own links of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CommonLink {
    /// What it means.
    pub meaning: Meaning,
    /// The block's partition.
    pub partition: Partition,
    /// A number that each store of the block makes another one. It has 56 bits.
    pub stamp: u64,
}

impl CommonLink {
    /// The form that this version writes and reads; the next one is this of rolling hashes.
    const FORM: u8 = 1;
    const FORM_ROLLING: u8 = 2;

    /// The key of the block.
    pub fn block_key(self) -> [u8; 16] {
        self.partition.key(self.meaning.link.rolling)
    }

    /// The bytes of the entry.
    pub fn to_bytes(self) -> [u8; 32] {
        let mut bytes = [0; 32];
        let Meaning { link, is_rolling } = self.meaning;
        bytes[..8].copy_from_slice(&self.stamp.to_le_bytes());
        bytes[7] = if is_rolling { CommonLink::FORM_ROLLING } else { CommonLink::FORM };
        bytes[8..16].copy_from_slice(&link.rolling.to_le_bytes());
        bytes[16..24].copy_from_slice(&link.seed.to_le_bytes());
        bytes[24..].copy_from_slice(&self.partition.0.to_le_bytes());
        bytes
    }

    /// Of these bytes. `None` for what no version up to this one has written.
    pub fn from_bytes(bytes: &[u8]) -> Option<CommonLink> {
        let (numbers, []) = bytes.as_chunks::<8>() else { return None };
        let [stamp, rolling, seed, partition]: [[u8; 8]; 4] = numbers.try_into().ok()?;
        let [.., form] = stamp;
        let is_rolling = match form {
            CommonLink::FORM => false,
            CommonLink::FORM_ROLLING => true,
            _ => return None,
        };
        let link = Link { rolling: u64::from_le_bytes(rolling), seed: u64::from_le_bytes(seed) };
        let stamp = u64::from_le_bytes(stamp) & CommonLink::STAMP;
        let partition = Partition(u64::from_le_bytes(partition));
        Some(CommonLink { meaning: Meaning { link, is_rolling }, partition, stamp })
    }

    const STAMP: u64 = u64::MAX >> 8;
}

/// The key of a worker's own link: of a name.
pub fn link_key(id: PublisherId, name: Name) -> [u8; 15] {
    let mut bytes = [0; 25];
    bytes[..4].copy_from_slice(&name.place.rank.to_le_bytes());
    bytes[4..8].copy_from_slice(&name.group.to_le_bytes());
    bytes[8] = name.place.tier as u8;
    bytes[9..].copy_from_slice(&name.hash.0);
    let hash = xxh3_128(&bytes).to_le_bytes();
    let mut key = [b'#'; 15];
    key[1] = LINK;
    key[2..].iter_mut().zip(hash).zip(mask(id)).for_each(|((byte, hash), mask)| *byte = hash ^ mask);
    key
}

/// The key of a link of one publisher, as another one's. `None`: it is no link's.
pub fn moved_link(key: &[u8], from: PublisherId, to: PublisherId) -> Option<[u8; 15]> {
    let mut key: [u8; 15] = key.try_into().ok().filter(|key: &[u8; 15]| key.starts_with(&[b'#', LINK]))?;
    key[2..].iter_mut().zip(mask(from)).zip(mask(to)).for_each(|((byte, from), to)| *byte ^= from ^ to);
    Some(key)
}

/// The kind of an own link's key.
pub const LINK: u8 = b'x';

/// Beside a tier: the block was told by its rolling hash.
const ROLLING: u8 = 0x80;

/// What an engine's hash of a block means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Meaning {
    /// What blocks behind it go on from.
    pub link: Link,
    /// Whether it was told by its rolling hash, and not by tokens.
    pub is_rolling: bool,
}

impl Meaning {
    /// The block's partition, of a worker with this one.
    pub fn partition(self, partition: Partition, base: u64) -> Partition {
        if self.is_rolling { partition.of_rolling(self.link.seed, base) } else { partition }
    }

    /// The key of the block.
    pub fn block_key(self, partition: Partition, base: u64) -> [u8; 16] {
        self.partition(partition, base).key(self.link.rolling)
    }
}

/// What is known of a block that a worker has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkEntry {
    /// What its name means.
    pub meaning: Meaning,
    /// Whose.
    pub id: PublisherId,
    /// Where.
    pub place: Place,
    /// What tells an entry from the same one that is written again.
    pub stamp: u32,
}

impl LinkEntry {
    /// The bytes of the entry.
    pub fn to_bytes(self) -> [u8; 32] {
        let mut bytes = [0; 32];
        let Meaning { link, is_rolling } = self.meaning;
        bytes[..8].copy_from_slice(&link.rolling.to_le_bytes());
        bytes[8..16].copy_from_slice(&link.seed.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.id.0.to_le_bytes());
        bytes[24..27].copy_from_slice(&self.place.rank.to_le_bytes()[..3]);
        bytes[27] = self.place.tier as u8 | if is_rolling { ROLLING } else { 0 };
        bytes[28..].copy_from_slice(&self.stamp.to_le_bytes());
        bytes
    }

    /// Of these bytes. `None` for what no version up to this one has written.
    pub fn from_bytes(bytes: &[u8]) -> Option<LinkEntry> {
        let bytes: &[u8; 32] = bytes.try_into().ok()?;
        let number = |at: usize| bytes[at..].first_chunk::<8>().map(|bytes| u64::from_le_bytes(*bytes));
        let [a, b, c, tier, stamp @ ..] = *bytes[24..].first_chunk::<8>()?;
        let is_rolling = tier & ROLLING != 0;
        let tier = Tier::ALL.into_iter().find(|it| *it as u8 == tier & !ROLLING)?;
        Some(LinkEntry {
            meaning: Meaning { link: Link { rolling: number(0)?, seed: number(8)? }, is_rolling },
            id: PublisherId(number(16)?),
            place: Place { rank: u32::from_le_bytes([a, b, c, 0]), tier },
            stamp: u32::from_le_bytes(stamp),
        })
    }
}

/// The highest rank.
pub const RANK_MAX: u32 = 0x00ff_ffff;

#[cfg(test)]
mod tests {
    use super::*;

    fn one() -> Worker {
        Worker {
            instance: "vllm/prefill-1".into(),
            rank: 3,
            model: "m".repeat(TEXT_MAX),
            tenant: "default".into(),
            block_size: NonZeroU32::new(16).unwrap(),
            lora: String::new(),
            salt: "w8a8".into(),
            endpoint: "tcp://[::1]:5557".parse().unwrap(),
            replay: Some("tcp://127.0.0.1:5558".parse().unwrap()),
            reach: Reach::Loopback,
            incarnation: u32::MAX,
            next: Some(u32::MAX),
        }
    }

    /// What is in the table survives its bytes, and other bytes are none of it.
    #[test]
    fn entries_have_bytes() {
        let worker = one();
        assert_eq!(Worker::from_bytes(&worker.to_bytes()), Some(worker.clone()));
        let longest = Worker {
            instance: "\u{1}".repeat(INSTANCE_MAX),
            tenant: "\"".repeat(TEXT_MAX),
            endpoint: format!("tcp://{}:65535", "a".repeat(240)).parse().unwrap(),
            ..worker
        };
        assert_eq!(Worker::from_bytes(&longest.to_bytes()), Some(longest));
        for last in [None, Some((7, u64::MAX))] {
            let progress = Progress { last, blocks: 9 };
            let bytes = progress.to_bytes();
            assert_eq!(Progress::from_bytes(&bytes), Some(progress));
            assert_eq!(Progress::from_bytes(&bytes[1..]), None);
        }
        assert_eq!(Progress::from_bytes(&[2; 26]), None);
        for is_rolling in [true, false] {
            let entry = LinkEntry {
                meaning: Meaning { link: Link { rolling: 1, seed: u64::MAX }, is_rolling },
                id: one().id(),
                place: Place { rank: RANK_MAX, tier: Tier::Disk },
                stamp: 5,
            };
            assert_eq!(LinkEntry::from_bytes(&entry.to_bytes()), Some(entry));
            let (meaning, partition) = (entry.meaning, one().partition());
            let common = CommonLink { meaning, partition, stamp: u64::MAX >> 8 };
            assert_eq!(CommonLink::from_bytes(&common.to_bytes()), Some(common));
            let wrapped = CommonLink { stamp: u64::MAX, ..common };
            assert_eq!(wrapped.to_bytes(), common.to_bytes(), "a stamp wraps at 56 bits");
        }
        assert_eq!(LinkEntry::from_bytes(&[9; 32]), None);
        assert_eq!(CommonLink::from_bytes(&[9; 32]), None);
        assert_eq!(CommonLink::from_bytes(&[1; 31]), None);
        assert_eq!(LinkEntry::from_bytes(&[0; 31]), None);
    }

    /// A holder's name tells who it is, also where the instance's name has what stands between its parts.
    #[test]
    fn holders_have_names() {
        let worker = one();
        for tier in Tier::ALL {
            let place = Place { rank: 12, tier };
            let name = place.holder_name(&worker);
            let holding = Holding::of(&name).unwrap();
            assert_eq!(holding, Holding { id: worker.id(), place, instance: "vllm/prefill-1" });
        }
        let longest = Worker { instance: "i".repeat(INSTANCE_MAX), ..worker };
        let place = Place { rank: RANK_MAX, tier: Tier::Other };
        assert!(place.holder_name(&longest).len() <= oneread_prefix::NAME_MAX);
        for other in
            ["", "worker a", "k1/", "k1/0/0/0/GPU", "k1/0/x/0/GPU/a", "k1/0/0/x/GPU/a", "k1/0/0/0/gpu/a"]
        {
            assert_eq!(Holding::of(other), None, "{other}");
        }
    }

    /// Whatever differs between two makes another key of it.
    #[test]
    fn keys_differ() {
        assert_ne!(Partition::of("ab", "c"), Partition::of("a", "bc"));
        let partition = Partition::of("m", "t");
        assert_eq!(partition.of_rolling(5, 5), partition);
        assert!(
            partition.of_rolling(6, 5) != partition
                && partition.of_rolling(6, 5) != partition.of_rolling(7, 5)
        );
        assert_eq!(partition.rolling_of(&partition.key(77)), Some(77));
        assert_eq!(Partition::of("m", "u").rolling_of(&partition.key(77)), None);
        let worker = one();
        let next = Worker { incarnation: 1, ..worker.clone() };
        assert!(worker.id() != next.id() && worker.identity() == next.identity());
        let place = |rank, tier| Place { rank, tier };
        let name = |place, group, hash| Name { place, group, hash: EngineHash::number(hash) };
        let key = |place, group, hash| link_key(worker.id(), name(place, group, hash));
        let keys = [
            key(place(0, Tier::Gpu), 0, 1),
            key(place(1, Tier::Gpu), 0, 1),
            key(place(0, Tier::Cpu), 0, 1),
            key(place(0, Tier::Gpu), 1, 1),
            key(place(0, Tier::Gpu), 0, 2),
            link_key(next.id(), name(place(0, Tier::Gpu), 0, 1)),
        ];
        let common = |partition, group, hash| common_key(partition, name(place(0, Tier::Gpu), group, hash));
        let other = Partition::of("m", "u");
        let commons =
            [common(partition, 0, 1), common(partition, 1, 1), common(partition, 0, 2), common(other, 0, 1)];
        assert_eq!(commons[0], common_key(partition, name(place(7, Tier::Disk), 0, 1)), "wherever it is");
        let keys: Vec<_> = keys.into_iter().chain(commons).collect();
        let different: std::collections::HashSet<_> = keys.iter().collect();
        assert_eq!(different.len(), keys.len());
        assert_eq!(moved_link(&keys[0], worker.id(), next.id()), Some(keys[5]));
        assert_eq!(moved_link(&worker.id().key(b'r'), worker.id(), next.id()), None);
    }
}
