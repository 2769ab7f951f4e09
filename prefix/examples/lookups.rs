//! What a lookup of a long prompt costs, in READs and time, in each index:
//! `cargo run --release -p oneread-prefix --example lookups`. Rounds of all alternate; medians are printed.

use oneread::{Address, Client, PutOptions, Server, ServerConfig, TableSize};
use oneread_prefix::{Digests, Found, Key, Location, LocationIndex, PlacementIndex, PlacementTable, Search};
use std::error::Error;
use std::time::Instant;

/// Blocks of a prompt.
const BLOCKS: usize = 8_000;
const PROMPTS: usize = 64;
const ROUNDS: usize = 9;

fn prompt(number: usize) -> Vec<Key> {
    let mut state = number as u128 + 1;
    let next = |_| {
        state = (state ^ state >> 64).wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835).wrapping_add(1);
        state.to_le_bytes()
    };
    (0..BLOCKS).map(next).collect()
}

fn main() -> Result<(), Box<dyn Error>> {
    let folder = tempfile::tempdir()?;
    let keys = (BLOCKS * PROMPTS) as u64;
    let placements = [PlacementTable::single(256)?, PlacementTable::grouped(256)?];
    let tables = [
        placements[0].config(TableSize::Keys(keys)),
        placements[1].config(TableSize::Keys(keys / 8)),
        LocationIndex::config(TableSize::Keys(keys)),
    ];
    let (mut servers, mut clients) = (Vec::new(), Vec::new());
    for (number, table) in tables.into_iter().enumerate() {
        let address = Address::Shm(folder.path().join(number.to_string()));
        servers.push(Server::start(ServerConfig::new(address.clone(), table))?);
        clients.push(Client::connect(&address)?);
    }
    let [single, grouped, located] = <[Client; 3]>::try_from(clients).map_err(|_| "three clients")?;
    let mut single = PlacementIndex::create(single, placements[0])?;
    let mut grouped = PlacementIndex::create(grouped, placements[1])?;
    let mut located = LocationIndex::new(located)?;
    let prompts: Vec<Vec<Key>> = (0..PROMPTS).map(prompt).collect();
    let holders = [single.holder("a")?, grouped.holder("a")?];
    let mut before = Vec::new();
    for keys in &prompts {
        let digests = Digests::from(&keys[..]);
        single.add(&holders[0], &digests, 0)?;
        grouped.add(&holders[1], &digests, 0)?;
        for put in located.put(&digests, &vec![Location::default(); BLOCKS], PutOptions::new())? {
            put?;
        }
        let mut found = vec![Found::default(); BLOCKS];
        located.locate_many(&digests, &mut found)?;
        before.push(found);
    }
    let (mut prefixes, mut found) = (Vec::new(), vec![Found::default(); BLOCKS]);
    let mut same = vec![false; BLOCKS];
    let names = ["match_prefix", "match_prefix, grouped", "longest_prefix", "locate_prefix", "revalidate"];
    let mut times = vec![Vec::new(); names.len()];
    let mut reads = vec![0.0; names.len()];
    for round in 0..ROUNDS * PROMPTS {
        for (what, times) in times.iter_mut().enumerate() {
            // None finds the lines in cache that the one before has asked for.
            let prompt = (round * 7 + what * 13) % PROMPTS;
            let digests = Digests::from(&prompts[prompt][..]);
            let count = |single: &PlacementIndex, grouped: &PlacementIndex, located: &LocationIndex| {
                [single.stats(), grouped.stats(), located.stats()]
                    .map(|stats| stats.read.reads)
                    .iter()
                    .sum::<u64>()
            };
            let counted = count(&single, &grouped, &located);
            let begun = Instant::now();
            let length = match what {
                0 => single.match_prefix(&digests, &mut prefixes)?,
                1 => grouped.match_prefix(&digests, &mut prefixes)?,
                2 => located.longest_prefix(&digests, Search::Exact)?,
                3 => located.locate_prefix(&digests, &mut found)?,
                _ => located.revalidate(&digests, &before[prompt], &mut same)?,
            };
            times.push(begun.elapsed().as_nanos() as f64 / BLOCKS as f64);
            assert_eq!(length, BLOCKS, "{}", names[what]);
            reads[what] += (count(&single, &grouped, &located) - counted) as f64;
        }
    }
    println!("{BLOCKS} blocks a prompt, {keys} in all       READs a block   ns a block");
    for ((name, times), reads) in names.iter().zip(&mut times).zip(reads) {
        times.sort_by(f64::total_cmp);
        let a_block = reads / (ROUNDS * PROMPTS * BLOCKS) as f64;
        println!("{name:38} {a_block:13.3} {:12.1}", times[times.len() / 2]);
    }
    Ok(())
}
