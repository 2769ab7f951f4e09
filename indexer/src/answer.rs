//! Answers to queries, in the two forms that they have (`api.rs`). They are written as they are looked through: a map for
//! each engine of hundreds would cost more than the lookup.

use crate::events::Tier;
use crate::lookup::{Found, FoundRank, Lengths};
use serde::ser::{Serialize, SerializeMap, Serializer};
use std::collections::BTreeMap;
use std::num::NonZeroU32;

/// A map, of what this tells.
struct Entries<F>(F);

impl<F, I, K, V> Serialize for Entries<F>
where
    F: Fn() -> I,
    I: Iterator<Item = (K, V)>,
    K: Serialize,
    V: Serialize,
{
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_map((self.0)())
    }
}

/// The names of lengths in a summary.
struct Names {
    gpu: &'static str,
    dp: &'static str,
    cpu: &'static str,
    disk: &'static str,
    other: &'static str,
}

const DYNAMO: Names = Names { gpu: "gpu", dp: "dp", cpu: "cpu", disk: "disk", other: "other" };
const MOONCAKE: Names = Names { gpu: "GPU", dp: "DP", cpu: "CPU", disk: "DISK", other: "OTHER" };

/// What an instance has of a prompt, in tokens: the longest prefix of its ranks, and each.
struct Summary<F> {
    names: &'static Names,
    block_size: NonZeroU32,
    ranks: F,
}

impl<F, I> Serialize for Summary<F>
where
    F: Fn() -> I,
    I: Iterator<Item = (u32, Lengths)>,
{
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let Summary { names, block_size, ranks } = self;
        let best = ranks().fold(Lengths::default(), |best, (_, lengths)| best.longer(lengths));
        let of = |tier: Tier| tokens(best.of(tier), *block_size);
        let mut map = to.serialize_map(None)?;
        map.serialize_entry("longest_matched", &tokens(best.any, *block_size))?;
        map.serialize_entry(names.gpu, &of(Tier::Gpu))?;
        let each = || ranks().map(|(rank, lengths)| (rank, tokens(lengths.any, *block_size)));
        map.serialize_entry(names.dp, &Entries(each))?;
        map.serialize_entry(names.cpu, &of(Tier::Cpu))?;
        map.serialize_entry(names.disk, &of(Tier::Disk))?;
        if best.of(Tier::Other) > 0 {
            map.serialize_entry(names.other, &of(Tier::Other))?;
        }
        map.end()
    }
}

fn tokens(blocks: u32, block_size: NonZeroU32) -> u64 {
    u64::from(blocks) * u64::from(block_size.get())
}

/// An answer as Dynamo's indexer gives it.
#[derive(serde::Serialize)]
struct Dynamo<A, B, C> {
    scores: A,
    frequencies: Vec<u64>,
    tree_sizes: B,
    instances: C,
}

/// As Dynamo's indexer answers: `scores` are of the device.
pub fn dynamo(found: &Found, block_size: NonZeroU32) -> impl Serialize {
    let on_device = |it: &&FoundRank| it.lengths.of(Tier::Gpu) > 0;
    let scores = move || {
        let with_some = found.instances().filter(move |ranks| ranks.iter().any(|it| on_device(&it)));
        with_some.map(move |ranks| {
            let score = move |it: &FoundRank| (it.rank, tokens(it.lengths.of(Tier::Gpu), block_size));
            (&*ranks[0].instance, Entries(move || ranks.iter().filter(on_device).map(score)))
        })
    };
    let tree_sizes = move || {
        found.instances().map(move |ranks| {
            (&*ranks[0].instance, Entries(move || ranks.iter().map(|it| (it.rank, it.blocks))))
        })
    };
    let instances = move || {
        found.instances().map(move |ranks| {
            let ranks_of = move || ranks.iter().map(|it| (it.rank, it.lengths));
            (&*ranks[0].instance, Summary { names: &DYNAMO, block_size, ranks: ranks_of })
        })
    };
    Dynamo {
        scores: Entries(scores),
        frequencies: found.frequencies(),
        tree_sizes: Entries(tree_sizes),
        instances: Entries(instances),
    }
}

/// As Mooncake's document has it: of all that are registered, also if they have nothing.
pub fn mooncake(
    found: &Found,
    registered: &BTreeMap<String, Vec<u32>>,
    tenant: &str,
    block_size: NonZeroU32,
) -> impl Serialize {
    let lengths = |instance: &str, ranks: &[u32]| -> BTreeMap<u32, Lengths> {
        let mut all: BTreeMap<u32, Lengths> = ranks.iter().map(|rank| (*rank, Lengths::default())).collect();
        all.extend(found.instance(instance).iter().map(|it| (it.rank, it.lengths)));
        all
    };
    let instances = move || {
        registered.iter().map(move |(instance, ranks)| {
            let lengths = lengths(instance, ranks);
            let ranks = move || lengths.clone().into_iter();
            (instance, Summary { names: &MOONCAKE, block_size, ranks })
        })
    };
    BTreeMap::from([(tenant.to_owned(), Entries(instances))])
}
