//! Engines with bounded caches, and the prompts of a trace.

use super::requests::TracedRequest;
use oneread::internals::layout::hash::mix;
use rustc_hash::FxHashMap;
use std::collections::BTreeMap;
use std::ops::Range;
use std::rc::Rc;

/// A digest.
pub type Key = [u8; 16];

/// Some neighbouring blocks of a prompt that come and go together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unit {
    pub id: u64,
    /// Which blocks of the prompt they are.
    pub blocks: Range<usize>,
}

/// A request's blocks.
#[derive(Clone, Debug)]
pub struct Prompt {
    pub keys: Rc<[Key]>,
    pub units: Vec<Unit>,
}

fn key(unit: u64, block: usize) -> Key {
    let seed = mix(unit.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(block as u64 + 1));
    let halves = [mix(seed), mix(seed ^ 0xa076_1d64_78bd_642f)];
    let mut key = [0; 16];
    key[..8].copy_from_slice(&halves[0].to_le_bytes());
    key[8..].copy_from_slice(&halves[1].to_le_bytes());
    key
}

/// The prompt of a request, each of whose blocks is split into so many. Blocks of the trace that follow the same
/// block are different, but prompts part anywhere in them: so they have some of their small blocks in common.
pub fn prompt_of(request: &TracedRequest, split: usize) -> Prompt {
    let (mut keys, mut units) = (Vec::with_capacity(request.hash_ids.len() * split), Vec::new());
    let mut before = 0;
    for &id in &request.hash_ids {
        let shared = (mix(before) % split as u64) as usize;
        for (unit, blocks) in [(2 * before + 1, shared), (2 * (id + 1), split - shared)] {
            let first = keys.len();
            keys.extend((0..blocks).map(|block| key(unit, block)));
            if blocks > 0 {
                units.push(Unit { id: unit, blocks: first..keys.len() });
            }
        }
        before = id + 1;
    }
    Prompt { keys: keys.into(), units }
}

/// Where a unit of a cache stands: when it was used, and in which prompt.
#[derive(Clone, Debug)]
struct Cached {
    used: u64,
    keys: Rc<[Key]>,
    blocks: Range<usize>,
}

/// An engine's cache: what was used least recently leaves, the end of a prompt before its beginning.
#[derive(Debug, Default)]
pub struct Engine {
    room: usize,
    blocks: usize,
    clock: u64,
    units: FxHashMap<u64, Cached>,
    by_age: BTreeMap<u64, u64>,
}

/// Blocks of a prompt.
pub type Blocks = (Rc<[Key]>, Range<usize>);

impl Engine {
    /// With room for so many blocks.
    pub fn new(room: usize) -> Engine {
        Engine { room, ..Engine::default() }
    }

    /// How many blocks it has.
    pub fn blocks(&self) -> usize {
        self.blocks
    }

    /// Whether it has these blocks.
    pub fn holds(&self, unit: &Unit) -> bool {
        self.units.contains_key(&unit.id)
    }

    /// How many blocks of a prompt it has from the first one on.
    pub fn has(&self, prompt: &Prompt) -> usize {
        let there = prompt.units.iter().take_while(|unit| self.holds(unit));
        there.last().map_or(0, |unit| unit.blocks.end)
    }

    /// Serves a prompt: it has all its blocks then, if there is room for them. Returns what left, and what came.
    pub fn serve(&mut self, prompt: &Prompt) -> (Vec<Blocks>, Vec<Blocks>) {
        let (mut left, mut came) = (Vec::new(), Vec::new());
        for unit in prompt.units.iter().rev() {
            self.clock += 1;
            let cached = Cached { used: self.clock, keys: prompt.keys.clone(), blocks: unit.blocks.clone() };
            if let Some(before) = self.units.insert(unit.id, cached) {
                self.by_age.remove(&before.used);
            } else {
                self.blocks += unit.blocks.len();
                came.push((prompt.keys.clone(), unit.blocks.clone()));
            }
            self.by_age.insert(self.clock, unit.id);
        }
        while self.blocks > self.room {
            let Some((_, id)) = self.by_age.pop_first() else { break };
            let Some(gone) = self.units.remove(&id) else { continue };
            self.blocks -= gone.blocks.len();
            // It came only now: then nobody need hear of it.
            let is_new = |(keys, blocks): &Blocks| Rc::ptr_eq(keys, &gone.keys) && *blocks == gone.blocks;
            match came.iter().position(is_new) {
                Some(at) => drop(came.swap_remove(at)),
                None => left.push((gone.keys, gone.blocks)),
            }
        }
        came.reverse();
        (left, came)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(ids: &[u64]) -> TracedRequest {
        TracedRequest { hash_ids: ids.to_vec() }
    }

    /// Prompts have the blocks in common that they should, and no others.
    #[test]
    fn prompts_part_inside_blocks() {
        let one = prompt_of(&request(&[0, 1, 2]), 32);
        let other = prompt_of(&request(&[0, 1, 3]), 32);
        let same = one.keys.iter().zip(other.keys.iter()).take_while(|(a, b)| a == b).count();
        assert_eq!((one.keys.len(), other.keys.len()), (96, 96));
        assert!((64..96).contains(&same) && one.keys[same..].iter().all(|key| !other.keys.contains(key)));
        assert_eq!(prompt_of(&request(&[5, 6]), 1).units.len(), 2);
    }

    /// The least recently used leave, ends first, and what an engine has is what came and has not left.
    #[test]
    fn caches_are_bounded() {
        let mut engine = Engine::new(5);
        let [one, other] = [&[1, 2, 3][..], &[7, 8, 9, 10]].map(|ids| prompt_of(&request(ids), 1));
        let (left, came) = engine.serve(&one);
        assert_eq!((left.len(), came.len(), engine.has(&one)), (0, 3, 3));
        let (left, came) = engine.serve(&other);
        assert_eq!(left.iter().map(|(_, blocks)| blocks.start).collect::<Vec<_>>(), [2, 1]);
        assert_eq!((came.len(), engine.has(&one), engine.has(&other)), (4, 1, 4));
        let long = prompt_of(&request(&(20..30).collect::<Vec<_>>()), 1);
        let (left, came) = engine.serve(&long);
        assert_eq!((left.len(), came.len(), engine.has(&long)), (5, 5, 5));
    }
}
