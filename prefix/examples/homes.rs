//! What neighbours in one READ would take if keys of a group had one home: a simulation of placement, without slots.
//! `cargo run --release -p oneread-prefix --example homes [-- trace.jsonl [SPLIT]]`
//!
//! Eight consecutive blocks of a prompt are a group. In this design both windows of a key come from its group, so a group
//! may stand in one window, and a lookup READs that, and the other one where a key of the group was displaced. A key for
//! which neither has room has windows of its own, which a lookup READs, too. Beside it is the same table with homes from
//! the whole key. Without a trace, prompts have 8,000 blocks and nothing in common. With one (a line of JSON a request,
//! its blocks in `hash_ids`, each cut into SPLIT), prompts part inside groups.

use oneread::internals::layout::hash::{mix, reduce};
use serde::Deserialize;
use std::collections::{BTreeMap, HashSet};
use std::error::Error;

/// Blocks of a group.
const GROUP: usize = 8;
/// Most keys that one insert moves.
const MOVES_MAX: usize = 500;
const LOADS: [u64; 4] = [40, 60, 80, 90];

#[derive(Deserialize)]
struct Request {
    hash_ids: Vec<u64>,
}

/// A block, and its group: that group's first block.
#[derive(Clone, Copy)]
struct Block {
    key: u64,
    group: u64,
}

/// Where a block may stand, and stands.
#[derive(Clone, Copy)]
struct Placed {
    block: Block,
    windows: [usize; 2],
    is_displaced: bool,
    /// Its windows are of its own key, although others' are of their group.
    is_alone: bool,
}

/// Slots that stand in a row, in windows that begin at each of them and overlap.
struct Table {
    slots: Vec<Option<usize>>,
    window: usize,
    placed: Vec<Placed>,
    random: u64,
}

impl Table {
    fn new(slots: usize, window: usize) -> Table {
        Table { slots: vec![None; slots], window, placed: Vec::new(), random: 1 }
    }

    fn pick(&mut self, bound: usize) -> usize {
        self.random = mix(self.random.wrapping_add(0x9e37_79b9_7f4a_7c15));
        reduce(self.random, bound as u64) as usize
    }

    fn free(&self, first: usize) -> Option<usize> {
        (first..first + self.window).find(|&slot| self.slots[slot].is_none())
    }

    fn windows(&self, home: u64) -> [usize; 2] {
        let homes = (self.slots.len() - self.window) as u64;
        [1, 2].map(|way: u64| reduce(mix(home ^ way << 60), homes) as usize)
    }

    /// Says whether there was room.
    fn insert(&mut self, block: Block, is_grouped: bool) -> bool {
        let windows = self.windows(if is_grouped { block.group } else { block.key });
        let mut number = self.placed.len();
        self.placed.push(Placed { block, windows, is_displaced: false, is_alone: false });
        loop {
            let Some(left) = self.place(number) else { return true };
            number = left;
            let Placed { block, is_alone, .. } = self.placed[number];
            if is_alone || !is_grouped {
                return false;
            }
            // Not those of the key: a group is named by its first block.
            let windows = self.windows(mix(!block.key));
            self.placed[number] = Placed { block, windows, is_displaced: false, is_alone: true };
        }
    }

    /// Moves others until there is room. Returns who has none.
    fn place(&mut self, mut number: usize) -> Option<usize> {
        for _ in 0..MOVES_MAX {
            let Placed { windows, is_displaced, .. } = self.placed[number];
            let ways = [is_displaced, !is_displaced];
            if let Some((way, slot)) =
                ways.into_iter().find_map(|way| Some((way, self.free(windows[usize::from(way)])?)))
            {
                self.slots[slot] = Some(number);
                self.placed[number].is_displaced = way;
                return None;
            }
            let way = self.pick(2) == 1;
            let slot = windows[usize::from(way)] + self.pick(self.window);
            let moved = self.slots[slot].replace(number).expect("no slot of both windows was free");
            self.placed[number].is_displaced = way;
            number = moved;
            self.placed[number].is_displaced ^= true;
        }
        Some(number)
    }

    /// Of a lookup of all blocks, group by group: of the windows of a group its first, and the second if a block of it
    /// stands there; and so of each block that is alone.
    fn reads(&self, is_grouped: bool) -> usize {
        let mut sought = BTreeMap::new();
        for Placed { block, is_displaced, is_alone, .. } in &self.placed {
            if is_grouped {
                // Who is alone was sought here before.
                *sought.entry((true, block.group)).or_insert(false) |= is_displaced & !is_alone;
            }
            if !is_grouped || *is_alone {
                sought.insert((false, block.key), *is_displaced);
            }
        }
        sought.len() + sought.values().filter(|&&second| second).count()
    }
}

fn prompts() -> Result<Vec<Vec<u64>>, Box<dyn Error>> {
    let Some(path) = std::env::args().nth(1) else {
        return Ok((0..64u64).map(|prompt| (0..8_000).map(|n| mix(prompt << 32 | n)).collect()).collect());
    };
    let split = std::env::args().nth(2).map_or(Ok(1), |split| split.parse::<u64>())?;
    let text = std::fs::read_to_string(path)?;
    let requests: Vec<Request> = text.lines().map(serde_json::from_str).collect::<Result<_, _>>()?;
    let cut = |request: Request| {
        let ids = request.hash_ids.into_iter();
        ids.flat_map(|id| (0..split).map(move |n| mix(id << 16 | n))).collect()
    };
    Ok(requests.into_iter().map(cut).collect())
}

/// All blocks, in the order in which they come first.
fn blocks(prompts: &[Vec<u64>]) -> Vec<Block> {
    let mut known = HashSet::new();
    let mut blocks = Vec::new();
    for group in prompts.iter().flat_map(|prompt| prompt.chunks(GROUP)) {
        let new = group.iter().filter(|&&key| known.insert(key));
        blocks.extend(new.map(|&key| Block { key, group: group[0] }));
    }
    blocks
}

fn main() -> Result<(), Box<dyn Error>> {
    let blocks = blocks(&prompts()?);
    let mut of_group = BTreeMap::new();
    blocks.iter().for_each(|block| *of_group.entry(block.group).or_insert(0) += 1);
    println!(
        "{} blocks in {} groups, {} of them of more than {GROUP}, the largest of {}",
        blocks.len(),
        of_group.len(),
        of_group.values().filter(|&&members| members > GROUP).count(),
        of_group.values().max().unwrap_or(&0),
    );
    println!(
        "slots of a window, homes of, and at each load: READs a block, blocks whose group had no room for them"
    );
    for window in [8, 16, 32] {
        for (name, is_grouped) in [("the key", false), ("the group", true)] {
            print!("{window:7}  {name:9}");
            for load in LOADS {
                let slots = blocks.len() * 100 / load as usize + window;
                let mut table = Table::new(slots, window);
                if !blocks.iter().all(|&block| table.insert(block, is_grouped)) {
                    print!(
                        "   {load} %: {:.1} % were refused at",
                        100.0 * table.placed.len() as f64 / slots as f64
                    );
                    break;
                }
                let alone = table.placed.iter().filter(|placed| placed.is_alone).count();
                let reads = table.reads(is_grouped) as f64 / blocks.len() as f64;
                print!("   {load} %: {reads:.3}, {:.1} %", 100.0 * alone as f64 / blocks.len() as f64);
            }
            println!();
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Groups of eight fill half of a table with windows of eight, but not as much of it as with windows of
    /// sixteen. A group of hundreds finds room alone. Where all stand in their first windows, a lookup READs
    /// each once.
    #[test]
    fn groups_need_wide_windows() {
        let prompts: Vec<Vec<u64>> =
            (0..8).map(|prompt| (0..8_000).map(|n| mix(prompt << 32 | n)).collect()).collect();
        let all_in = |blocks: &[Block], window: usize, load: usize| {
            let mut table = Table::new(blocks.len() * 100 / load + window, window);
            blocks.iter().all(|&block| table.insert(block, true)).then_some(table)
        };
        let apart = blocks(&prompts);
        assert_eq!(apart.len(), 64_000);
        assert!(all_in(&apart, 8, 50).is_some() && all_in(&apart, 8, 85).is_none());
        let table = all_in(&apart, 16, 85).unwrap();
        assert!(table.placed.iter().all(|placed| !placed.is_alone));
        let parted: Vec<_> = prompts.iter().map(|prompt| [&[7], &prompt[..]].concat()).collect();
        let parted = blocks(&parted);
        let table = all_in(&parted, 16, 40).unwrap();
        assert!(table.placed.iter().any(|placed| placed.is_alone));
        let few = all_in(&apart[..16], 16, 1).unwrap();
        assert_eq!((few.reads(true), few.reads(false)), (2, 16));
    }
}
