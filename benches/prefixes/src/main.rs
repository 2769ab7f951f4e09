//! How long a prefix of a prompt each worker has: oneread's index, in both of its forms, block by block and by jumps, beside
//! the structures of `dynamo-kv-router`, in one process, without HTTP, one thread that asks.
//!
//! Each prompt is shared by eight workers, each to some depth. All are told the same lengths, which is checked; rounds
//! alternate, and each looks for each prompt in each round. Dynamo's structures are given hashes of each block alone, and
//! oneread's index rolling ones, which Dynamo's own software computes here: what it takes to compute hashes is a row of its
//! own.

use clap::Parser;
use dynamo_kv_router::indexer::positional::SearchMode;
use dynamo_kv_router::indexer::{KvIndexerInterface, SyncIndexer, ThreadPoolIndexer};
use dynamo_kv_router::protocols::{
    BlockHashOptions, ExternalSequenceBlockHash, KvCacheEvent, KvCacheEventData, KvCacheRemoveData,
    KvCacheStoreData, KvCacheStoredBlockData, LocalBlockHash, OverlapScores, RouterEvent,
    compute_block_hash_for_seq, compute_seq_hash_for_block,
};
use dynamo_kv_router::{ConcurrentRadixTreeCompressed, PositionalIndexer, RadixTree};
use oneread::{Address, Client, Server, ServerConfig, TableSize};
use oneread_prefix::{
    Digests, HashScheme, Holder, HolderPrefix, Keeps, PlacementIndex, PlacementTable, block_hashes,
};
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use std::collections::BTreeMap;
use std::error::Error;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

type Outcome<T> = Result<T, Box<dyn Error>>;

/// Tokens of a block.
const TOKENS: usize = 16;
/// Workers that share a prompt.
const SHARED: usize = 8;

/// Looks for prefixes of prompts, in each system, in one run
#[derive(Parser)]
struct Arguments {
    /// Blocks of a prompt
    #[arg(long, value_delimiter = ',', default_values_t = [64, 128, 1_000, 10_000])]
    blocks: Vec<usize>,
    /// Workers
    #[arg(long, value_delimiter = ',', default_values_t = [4, 64, 1_024])]
    workers: Vec<usize>,
    /// Prompts of each length
    #[arg(long, default_value_t = 16)]
    prompts: usize,
    /// Times that each prompt is looked for
    #[arg(long, default_value_t = 21)]
    rounds: usize,
    /// Afterwards, so many seconds of lookups each with and without changes: 20,000 blocks a second come, and as many go. 0: none
    #[arg(long, default_value_t = 0.0)]
    changes: f64,
}

/// A prompt, and who has how many of its blocks.
struct Prompt {
    tokens: Vec<u32>,
    local: Vec<LocalBlockHash>,
    rolling: Vec<u64>,
    digests: Digests<'static>,
    depths: BTreeMap<usize, usize>,
}

impl Prompt {
    fn new(random: &mut SmallRng, blocks: usize, workers: usize) -> Prompt {
        let tokens: Vec<u32> = (0..blocks * TOKENS).map(|_| random.random_range(0..100_000)).collect();
        let local = compute_block_hash_for_seq(&tokens, TOKENS as u32, BlockHashOptions::default());
        let rolling = compute_seq_hash_for_block(&local);
        let mut depths = BTreeMap::new();
        while depths.len() < SHARED.min(workers) {
            depths.insert(random.random_range(0..workers), random.random_range(1..=blocks));
        }
        let digests = Digests::numbers(&rolling);
        Prompt { tokens, local, rolling, digests, depths }
    }

    /// That a worker has stored its blocks.
    fn stored(&self, worker: usize, depth: usize) -> RouterEvent {
        let block = |(local, rolling): (&LocalBlockHash, &u64)| KvCacheStoredBlockData {
            block_hash: ExternalSequenceBlockHash(*rolling),
            tokens_hash: *local,
            mm_extra_info: None,
        };
        let blocks = self.local[..depth].iter().zip(&self.rolling).map(block).collect();
        let data =
            KvCacheEventData::Stored(KvCacheStoreData { parent_hash: None, start_position: None, blocks });
        RouterEvent::new(worker as u64, KvCacheEvent { event_id: 0, data, dp_rank: 0 })
    }

    /// That it has removed all of them.
    fn removed(&self, worker: usize) -> RouterEvent {
        let block_hashes = self.rolling.iter().map(|hash| ExternalSequenceBlockHash(*hash)).collect();
        let data = KvCacheEventData::Removed(KvCacheRemoveData { block_hashes });
        RouterEvent::new(worker as u64, KvCacheEvent { event_id: 0, data, dp_rank: 0 })
    }
}

/// What is asked.
trait System {
    fn name(&self) -> String;
    fn fill(&mut self, prompt: &Prompt) -> Outcome<()>;
    /// How long a lookup takes, in microseconds, and what it tells: lengths by worker.
    fn look(&mut self, prompt: &Prompt) -> Outcome<(f64, BTreeMap<usize, usize>)>;
    /// READs, and bytes that they asked for, so far.
    fn reads(&self) -> Option<[u64; 2]> {
        None
    }
    /// What has a worker store all blocks of a prompt, or remove them. `None` where another thread cannot change it, or
    /// where it is the same index as another system's.
    fn changes(&self) -> Option<Change> {
        None
    }
}

type Change = Box<dyn FnMut(&Prompt, usize, bool) + Send>;

struct Oneread {
    name: &'static str,
    index: PlacementIndex,
    holders: Vec<Holder>,
    found: Vec<HolderPrefix>,
    fills: bool,
    _server: std::rc::Rc<(Server, tempfile::TempDir)>,
}

impl Oneread {
    /// One table, and two handles: one looks at each block, the other jumps.
    fn both(
        names: [&'static str; 2],
        table: PlacementTable,
        entries: usize,
        workers: usize,
    ) -> Outcome<[Oneread; 2]> {
        let dir = tempfile::tempdir()?;
        let address = Address::Shm(dir.path().join("socket"));
        let size = TableSize::Keys((entries + entries / 8 + 5_000) as u64);
        let server = Server::start(ServerConfig::new(address.clone(), table.config(size)).workers(1))?;
        table.mark(&server)?;
        let server = std::rc::Rc::new((server, dir));
        let make = |name, fills: bool| -> Outcome<Oneread> {
            let mut index = PlacementIndex::new(Client::connect(&address)?)?;
            if !fills {
                index.look_at_all();
            }
            let holders = (0..workers)
                .map(|n| index.holder_with(&n.to_string(), Keeps::PrefixClosed))
                .collect::<Result<_, _>>()?;
            Ok(Oneread { name, index, holders, found: Vec::new(), fills, _server: server.clone() })
        };
        Ok([make(names[0], true)?, make(names[1], false)?])
    }
}

impl System for Oneread {
    fn name(&self) -> String {
        self.name.into()
    }

    fn fill(&mut self, prompt: &Prompt) -> Outcome<()> {
        if self.fills {
            for (worker, depth) in &prompt.depths {
                self.index.add(&self.holders[*worker], &Digests::numbers(&prompt.rolling[..*depth]), 0)?;
            }
        }
        Ok(())
    }

    fn look(&mut self, prompt: &Prompt) -> Outcome<(f64, BTreeMap<usize, usize>)> {
        let begun = Instant::now();
        self.index.match_prefix(&prompt.digests, &mut self.found)?;
        let took = begun.elapsed().as_nanos() as f64 / 1e3;
        let lengths = self.found.iter().map(|one| Ok((one.holder.name().parse()?, one.blocks)));
        Ok((took, lengths.collect::<Outcome<_>>()?))
    }

    fn reads(&self) -> Option<[u64; 2]> {
        let read = self.index.stats().read;
        Some([read.reads, read.bytes])
    }

    fn changes(&self) -> Option<Change> {
        let (mut index, holders) = (self.index.clone(), self.holders.clone());
        let change = move |prompt: &Prompt, worker: usize, is_there: bool| {
            let holder = &holders[worker];
            if is_there {
                index.add(holder, &prompt.digests, 0).expect("there is room");
            } else {
                index.remove(holder, &prompt.digests, 0).expect("the server is there");
            }
        };
        self.fills.then(|| Box::new(change) as Change)
    }
}

fn lengths(scores: &OverlapScores) -> BTreeMap<usize, usize> {
    scores.scores.iter().map(|(worker, length)| (worker.worker_id as usize, *length as usize)).collect()
}

/// A structure that threads share, which others change.
struct Shared<T: SyncIndexer> {
    name: &'static str,
    index: Arc<ThreadPoolIndexer<T>>,
    runtime: tokio::runtime::Runtime,
}

impl<T: SyncIndexer> Shared<T> {
    fn new(name: &'static str, index: T) -> Outcome<Shared<T>> {
        let runtime = tokio::runtime::Builder::new_current_thread().build()?;
        Ok(Shared { name, index: Arc::new(ThreadPoolIndexer::new(index, 1, TOKENS as u32)), runtime })
    }
}

impl<T: SyncIndexer> Drop for Shared<T> {
    fn drop(&mut self) {
        self.index.shutdown();
    }
}

impl<T: SyncIndexer> System for Shared<T> {
    fn name(&self) -> String {
        format!("Dynamo, {}", self.name)
    }

    fn fill(&mut self, prompt: &Prompt) -> Outcome<()> {
        self.runtime.block_on(async {
            for (worker, depth) in &prompt.depths {
                self.index.apply_event(prompt.stored(*worker, *depth)).await;
            }
            self.index.flush_and_wait().await
        })?;
        Ok(())
    }

    fn look(&mut self, prompt: &Prompt) -> Outcome<(f64, BTreeMap<usize, usize>)> {
        let begun = Instant::now();
        let scores = self.index.backend().find_matches(&prompt.local, false);
        Ok((begun.elapsed().as_nanos() as f64 / 1e3, lengths(&scores)))
    }

    fn changes(&self) -> Option<Change> {
        let index = self.index.clone();
        let runtime = tokio::runtime::Builder::new_current_thread().build().ok()?;
        Some(Box::new(move |prompt, worker, is_there| {
            let event =
                if is_there { prompt.stored(worker, prompt.local.len()) } else { prompt.removed(worker) };
            runtime.block_on(index.apply_event(event));
        }))
    }
}

/// The tree that one thread has.
struct Tree(RadixTree);

impl System for Tree {
    fn name(&self) -> String {
        "Dynamo, radix tree".into()
    }

    fn fill(&mut self, prompt: &Prompt) -> Outcome<()> {
        for (worker, depth) in &prompt.depths {
            self.0.apply_event(prompt.stored(*worker, *depth))?;
        }
        Ok(())
    }

    fn look(&mut self, prompt: &Prompt) -> Outcome<(f64, BTreeMap<usize, usize>)> {
        let local = prompt.local.clone();
        let begun = Instant::now();
        let scores = self.0.find_matches(local, false);
        Ok((begun.elapsed().as_nanos() as f64 / 1e3, lengths(&scores)))
    }
}

/// Hashes of blocks: of tokens, and rolling ones of these. Both are compared.
struct Hashes {
    is_ours: bool,
}

impl System for Hashes {
    fn name(&self) -> String {
        if self.is_ours { "hashes: oneread" } else { "hashes: Dynamo" }.into()
    }

    fn fill(&mut self, _: &Prompt) -> Outcome<()> {
        Ok(())
    }

    fn look(&mut self, prompt: &Prompt) -> Outcome<(f64, BTreeMap<usize, usize>)> {
        let begun = Instant::now();
        let rolling = if self.is_ours {
            block_hashes(&prompt.tokens, TOKENS, HashScheme::Dynamo { lora: "", salt: "" })?.rolling
        } else {
            let local =
                compute_block_hash_for_seq(&prompt.tokens, TOKENS as u32, BlockHashOptions::default());
            compute_seq_hash_for_block(&local)
        };
        let took = begun.elapsed().as_nanos() as f64 / 1e3;
        assert_eq!(rolling, prompt.rolling, "both compute the same hashes");
        Ok((took, prompt.depths.clone()))
    }
}

fn at(sorted: &[f64], share: f64) -> f64 {
    sorted[((sorted.len() - 1) as f64 * share).round() as usize]
}

fn run(arguments: &Arguments, workers: usize) -> Outcome<()> {
    let all = arguments.blocks.iter().sum::<usize>() * arguments.prompts;
    let [jumps, walks] = Oneread::both(
        ["oneread, by jumps", "oneread, block by block"],
        PlacementTable::single(workers)?,
        all,
        workers,
    )?;
    let names = ["oneread, groups, by jumps", "oneread, groups, all"];
    let [group_jumps, groups] = Oneread::both(names, PlacementTable::grouped(workers)?, all / 7, workers)?;
    let binary = PositionalIndexer::new_with_mode(64, SearchMode::Binary);
    let mut systems: Vec<Box<dyn System>> = vec![
        Box::new(jumps),
        Box::new(walks),
        Box::new(group_jumps),
        Box::new(groups),
        Box::new(Shared::new("positions", PositionalIndexer::new_with_mode(64, SearchMode::Strided))?),
        Box::new(Shared::new("positions, halved", binary)?),
        Box::new(Shared::new("shared tree", ConcurrentRadixTreeCompressed::new())?),
        Box::new(Tree(RadixTree::new())),
        Box::new(Hashes { is_ours: true }),
        Box::new(Hashes { is_ours: false }),
    ];
    let mut random = SmallRng::seed_from_u64(workers as u64);
    for &blocks in &arguments.blocks {
        let prompts: Vec<Prompt> =
            (0..arguments.prompts).map(|_| Prompt::new(&mut random, blocks, workers)).collect();
        for prompt in &prompts {
            systems.iter_mut().try_for_each(|system| system.fill(prompt))?;
        }
        let mut took = vec![Vec::new(); systems.len()];
        let mut reads = vec![[0; 2]; systems.len()];
        // The first round is for copies and caches.
        for round in 0..=arguments.rounds {
            for prompt in &prompts {
                for turn in 0..systems.len() {
                    // None always finds what the same one has left in the caches.
                    let nth = (turn + round) % systems.len();
                    let system = &mut systems[nth];
                    let before = system.reads();
                    let (us, lengths) = system.look(prompt)?;
                    if lengths != prompt.depths {
                        return Err(
                            format!("{} tells {lengths:?}, not {:?}", system.name(), prompt.depths).into()
                        );
                    }
                    if round > 0 {
                        took[nth].push(us);
                        for (nth, sum) in reads[nth].iter_mut().enumerate() {
                            *sum +=
                                system.reads().zip(before).map_or(0, |(now, before)| now[nth] - before[nth]);
                        }
                    }
                }
            }
        }
        for ((system, mut took), reads) in systems.iter().zip(took).zip(reads) {
            took.sort_by(f64::total_cmp);
            let [reads, bytes] = match system.reads() {
                Some(_) => reads.map(|sum| format!("{:.0}", sum as f64 / took.len() as f64)),
                None => Default::default(),
            };
            println!(
                "| {workers} | {blocks} | {} | {reads} | {bytes} | {:.1} | {:.1} |",
                system.name(),
                at(&took, 0.5),
                at(&took, 0.99)
            );
        }
        if arguments.changes > 0.0 {
            for system in &mut systems {
                with_changes(system.as_mut(), &prompts, Duration::from_secs_f64(arguments.changes), workers)?;
            }
        }
    }
    Ok(())
}

/// Lookups one after the other, and then while others change the index.
fn with_changes(system: &mut dyn System, prompts: &[Prompt], time: Duration, workers: usize) -> Outcome<()> {
    // Of a batch; so many batches come and as many go.
    const BLOCKS: usize = 200;
    const PAUSE: Duration = Duration::from_millis(10);
    let Some(mut change) = system.changes() else { return Ok(()) };
    let looks = |system: &mut dyn System| -> Outcome<Vec<f64>> {
        let (begun, mut took) = (Instant::now(), Vec::new());
        for prompt in prompts.iter().cycle() {
            let (us, lengths) = system.look(prompt)?;
            assert_eq!(lengths, prompt.depths, "what others have plays no part");
            took.push(us);
            if begun.elapsed() >= time {
                break;
            }
        }
        took.sort_by(f64::total_cmp);
        Ok(took)
    };
    let quiet = looks(system)?;
    let is_over = AtomicBool::new(false);
    let (changed, counts) = std::thread::scope(|scope| {
        let changing = scope.spawn(|| {
            let mut random = SmallRng::seed_from_u64(7);
            let others: Vec<Prompt> = (0..64).map(|_| Prompt::new(&mut random, BLOCKS, workers)).collect();
            let (mut next, mut count) = (Instant::now(), 0);
            for turn in 0.. {
                if is_over.load(Ordering::Relaxed) {
                    break;
                }
                let nth = |turn: usize| (&others[turn % others.len()], turn % workers);
                let (prompt, worker) = nth(turn);
                change(prompt, worker, true);
                if let Some(before) = turn.checked_sub(others.len() / 2) {
                    let (prompt, worker) = nth(before);
                    change(prompt, worker, false);
                }
                count += 2 * BLOCKS;
                next += PAUSE;
                std::thread::sleep(next.saturating_duration_since(Instant::now()));
            }
            count
        });
        let changed = looks(system);
        is_over.store(true, Ordering::Relaxed);
        (changed, changing.join().expect("it changes"))
    });
    let changed = changed?;
    let of = |took: &[f64]| [0.5, 0.99, 0.999].map(|share| format!("{:.1}", at(took, share))).join(", ");
    println!(
        "{workers} workers, {} blocks, {}: p50, p99, p99.9 in us {}; while {:.0} blocks a second come or go {}",
        prompts[0].local.len(),
        system.name(),
        of(&quiet),
        counts as f64 / time.as_secs_f64(),
        of(&changed)
    );
    Ok(())
}

fn main() -> Outcome<()> {
    let arguments = Arguments::parse();
    println!("| workers | blocks | | READs | bytes | us, p50 | p99 |\n|---:|---:|---|---:|---:|---:|---:|");
    arguments.workers.iter().try_for_each(|&workers| run(&arguments, workers))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// All systems tell the same lengths, and compute the same hashes.
    #[test]
    fn all_tell_the_same() {
        let arguments = Arguments {
            blocks: vec![1, 64, 300, 1_000],
            workers: vec![],
            prompts: 3,
            rounds: 2,
            changes: 0.05,
        };
        for workers in [4, 300] {
            run(&arguments, workers).unwrap();
        }
    }

    /// The rolling hashes of prompts with a tenant and an adapter are Dynamo's, too.
    #[test]
    fn hashes_are_dynamo_s() {
        let mut random = SmallRng::seed_from_u64(1);
        for (lora, salt) in [("", ""), ("adapter", ""), ("", "tenant"), ("adapter", "tenant")] {
            for tokens in [0, 15, 16, 17, 1_000] {
                let tokens: Vec<u32> = (0..tokens).map(|_| random.random()).collect();
                let some = |name: &'static str| Some(name).filter(|name| !name.is_empty());
                let options = BlockHashOptions {
                    lora_name: some(lora),
                    cache_namespace: some(salt),
                    ..BlockHashOptions::default()
                };
                let local = compute_block_hash_for_seq(&tokens, TOKENS as u32, options);
                let ours = block_hashes(&tokens, TOKENS, HashScheme::Dynamo { lora, salt }).unwrap();
                assert_eq!(ours.local, local.iter().map(|hash| hash.0).collect::<Vec<_>>());
                assert_eq!(ours.rolling, compute_seq_hash_for_block(&local));
            }
        }
    }
}
