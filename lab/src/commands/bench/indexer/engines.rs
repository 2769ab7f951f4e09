//! Prompts that part from each other, engines that hold their beginnings, and what an indexer should tell of these.
//!
//! Blocks of an engine leave from the ends of prompts. One that leaves from the middle is told in two ways: by some
//! indexers what is behind it stays part of the prefix.

use oneread::internals::layout::hash::{mix, reduce};
use oneread_indexer::packed::Value;
use oneread_indexer::source::{removed, stored};
use std::collections::BTreeMap;
use std::ops::Range;

/// Tokens of a block.
pub const BLOCK_TOKENS: u32 = 16;
/// Most blocks of an event.
pub const EVENT_BLOCKS: u32 = 16;
/// Prompts that have their first blocks in common.
const SIBLINGS: usize = 8;
/// Fewer families are no crowd.
const FAMILIES_MIN: usize = 4;
/// Tokens are below it, as those of a vocabulary.
const VOCABULARY: u64 = 128_000;

/// Blocks that each engine has of a prompt, by the engine's number.
pub type Lengths = BTreeMap<u64, u32>;

/// Numbers of no pattern that come again with the same seed.
#[derive(Clone, Debug)]
pub struct Dice(u64);

impl Dice {
    pub fn new(seed: u64) -> Dice {
        Dice(mix(seed))
    }

    /// A number below `sides`.
    pub fn roll(&mut self, sides: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        reduce(mix(self.0), sides as u64) as usize
    }
}

/// A block of some prompts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Block(u64);

impl Block {
    fn tokens(self) -> impl Iterator<Item = u32> {
        (0..u64::from(BLOCK_TOKENS))
            .map(move |token| reduce(mix(self.0 * u64::from(BLOCK_TOKENS) + token), VOCABULARY) as u32)
    }

    fn name(self, names: Names) -> u64 {
        mix(mix(names.0) ^ self.0)
    }
}

/// What blocks are called by an engine.
#[derive(Clone, Copy, Debug)]
pub struct Names(u64);

impl Names {
    /// What all engines call them whose hashes have one seed.
    pub const COMMON: Names = Names(u64::MAX);

    /// What nobody else calls them.
    pub fn of(engine: u64) -> Names {
        Names(engine)
    }
}

/// Prompts, in families whose first blocks are the same.
#[derive(Debug)]
pub struct Prompts {
    /// Blocks that a family has in common.
    shared: u32,
    /// Blocks of each prompt.
    lengths: Vec<u32>,
}

impl Prompts {
    /// Prompts of up to `longest` blocks, which together have twice as many as an engine has room for.
    pub fn new(longest: u32, room: u64) -> Prompts {
        let shared = longest / 4;
        let mut dice = Dice::new(u64::from(longest));
        let (mut lengths, mut blocks) = (Vec::new(), 0);
        while lengths.len() < FAMILIES_MIN * SIBLINGS || blocks < 2 * room {
            let own = (0..SIBLINGS).map(|_| 1 + dice.roll((longest - shared) as usize) as u32);
            let own: Vec<u32> = own.collect();
            blocks += u64::from(shared + own.iter().sum::<u32>());
            lengths.extend(own.iter().map(|own| shared + own));
        }
        Prompts { shared, lengths }
    }

    pub fn count(&self) -> usize {
        self.lengths.len()
    }

    /// Prompts that stay as they are while the others change: the first half of the families.
    pub fn staying(&self) -> Range<usize> {
        0..self.lengths.len() / SIBLINGS / 2 * SIBLINGS
    }

    /// Prompts that change.
    pub fn changing(&self) -> Range<usize> {
        self.staying().end..self.lengths.len()
    }

    /// Blocks of a prompt.
    pub fn length(&self, prompt: usize) -> u32 {
        self.lengths[prompt]
    }

    fn block(&self, prompt: usize, depth: u32) -> Block {
        let (of, is_own) = if depth < self.shared { (prompt / SIBLINGS, 0) } else { (prompt, 1) };
        Block((of as u64) << 33 | u64::from(depth) << 1 | is_own)
    }

    /// The tokens of its first blocks.
    pub fn tokens(&self, prompt: usize, blocks: u32) -> Vec<u32> {
        (0..blocks).flat_map(|depth| self.block(prompt, depth).tokens()).collect()
    }
}

/// The only block of a prompt that nobody has but to say: all that was told before it was heard.
#[derive(Clone, Copy, Debug)]
pub struct Marker(pub u32);

impl Marker {
    fn block(self) -> Block {
        Block(u64::MAX / u64::from(BLOCK_TOKENS) - u64::from(self.0))
    }

    pub fn tokens(self) -> Vec<u32> {
        self.block().tokens().collect()
    }

    /// The events by which an engine tells it, and takes the one before away.
    pub fn events(self, names: Names) -> Vec<Value> {
        let stored = stored(None, &[self.block().name(names)], &self.tokens(), BLOCK_TOKENS);
        let before = self.0.checked_sub(1).map(|before| removed(&[Marker(before).block().name(names)]));
        before.into_iter().chain([stored]).collect()
    }
}

/// What an engine has of each prompt.
#[derive(Clone, Debug)]
pub struct Held {
    /// Blocks of each family's common ones.
    shared: Vec<u32>,
    /// Blocks of each prompt behind these.
    own: Vec<u32>,
}

impl Held {
    /// Blocks of a prompt that it has, from the first one on.
    pub fn length(&self, prompts: &Prompts, prompt: usize) -> u32 {
        match self.shared[prompt / SIBLINGS] {
            shared if shared == prompts.shared => shared + self.own[prompt],
            shared => shared,
        }
    }
}

/// Who has how much of the first blocks of a prompt.
pub fn lengths<'a>(
    engines: impl IntoIterator<Item = (u64, &'a Held)>,
    prompts: &Prompts,
    prompt: usize,
    blocks: u32,
) -> Lengths {
    let all = engines.into_iter().map(|(number, held)| (number, held.length(prompts, prompt).min(blocks)));
    all.filter(|(_, length)| *length > 0).collect()
}

/// An engine, as a model.
#[derive(Debug)]
pub struct Engine {
    pub number: u64,
    pub names: Names,
    pub held: Held,
    /// Blocks that it has.
    pub blocks: u64,
    dice: Dice,
}

impl Engine {
    pub fn new(number: u64, names: Names, prompts: &Prompts) -> Engine {
        let held =
            Held { shared: vec![0; prompts.count().div_ceil(SIBLINGS)], own: vec![0; prompts.count()] };
        Engine { number, names, held, blocks: 0, dice: Dice::new(number) }
    }

    fn of(&self, prompts: &Prompts, prompt: usize, depths: Range<u32>) -> Vec<u64> {
        depths.map(|depth| prompts.block(prompt, depth).name(self.names)).collect()
    }

    /// Stores some blocks more of one of these prompts. `None`: it has all of those that it looked at.
    pub fn grow(&mut self, prompts: &Prompts, of: &Range<usize>) -> Option<Value> {
        let first = self.dice.roll(of.len());
        let mut all = (0..of.len()).map(|nth| of.start + (first + nth) % of.len());
        let prompt = all.find(|prompt| self.held.length(prompts, *prompt) < prompts.length(*prompt))?;
        let from = self.held.length(prompts, prompt);
        let to = prompts.length(prompt).min(from + EVENT_BLOCKS);
        let parent = from.checked_sub(1).map(|before| prompts.block(prompt, before).name(self.names));
        let tokens: Vec<u32> = (from..to).flat_map(|depth| prompts.block(prompt, depth).tokens()).collect();
        self.held.shared[prompt / SIBLINGS] = to.min(prompts.shared);
        self.held.own[prompt] = to.saturating_sub(prompts.shared);
        self.blocks += u64::from(to - from);
        Some(stored(parent, &self.of(prompts, prompt, from..to), &tokens, BLOCK_TOKENS))
    }

    /// Drops the last blocks that it has of one of these prompts. `None`: it has none.
    pub fn shrink(&mut self, prompts: &Prompts, of: &Range<usize>) -> Option<Value> {
        let first = self.dice.roll(of.len());
        let mut all = (0..of.len()).map(|nth| of.start + (first + nth) % of.len());
        let prompt = all.find(|prompt| self.held.length(prompts, *prompt) > 0 && self.may_shrink(*prompt))?;
        let to = self.held.length(prompts, prompt);
        let own = self.held.own[prompt];
        let some = if own > 0 { own.min(EVENT_BLOCKS) } else { to.min(EVENT_BLOCKS) };
        match own {
            0 => self.held.shared[prompt / SIBLINGS] -= some,
            _ => self.held.own[prompt] -= some,
        }
        self.blocks -= u64::from(some);
        Some(removed(&self.of(prompts, prompt, to - some..to)))
    }

    /// Whether the last block that it has of a prompt is the last one of all.
    fn may_shrink(&self, prompt: usize) -> bool {
        let family = prompt / SIBLINGS * SIBLINGS;
        let has_more = self.held.own.iter().skip(family).take(SIBLINGS).any(|own| *own > 0);
        self.held.own[prompt] > 0 || !has_more
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    fn list(value: &Value) -> &[Value] {
        match value {
            Value::List(fields) => fields,
            other => panic!("{other:?}"),
        }
    }

    fn numbers(value: &Value) -> Vec<u64> {
        let number = |value: &Value| match value {
            Value::Number(number) => *number,
            other => panic!("{other:?}"),
        };
        list(value).iter().map(number).collect()
    }

    /// Applies an event to a set of blocks. A block comes behind its parent.
    fn apply(event: &Value, has: &mut BTreeSet<u64>) {
        let fields = list(event);
        match &fields[0] {
            Value::Text(tag) if tag == "BlockStored" => {
                if let Value::Number(parent) = fields[2] {
                    assert!(has.contains(&parent), "the parent is there");
                }
                let hashes = numbers(&fields[1]);
                assert_eq!(numbers(&fields[3]).len(), hashes.len() * BLOCK_TOKENS as usize);
                hashes.into_iter().for_each(|hash| assert!(has.insert(hash), "it is new"));
            }
            Value::Text(tag) if tag == "BlockRemoved" => {
                numbers(&fields[1]).iter().for_each(|hash| assert!(has.remove(hash), "it was there"));
            }
            other => panic!("{other:?}"),
        }
    }

    /// Whatever engines tell, the lengths of the model are those of the blocks that were told.
    #[test]
    fn the_model_has_what_was_told() {
        for longest in [1, 2, 9, 64] {
            let prompts = Prompts::new(longest, 300);
            let all = 0..prompts.count();
            assert!(prompts.count() >= FAMILIES_MIN * SIBLINGS);
            assert!(all.clone().all(|prompt| (1..=longest).contains(&prompts.length(prompt))));
            let mut engine = Engine::new(7, Names::of(7), &prompts);
            let mut has = BTreeSet::new();
            let mut dice = Dice::new(1);
            for turn in 0..400 {
                let of = if turn < 200 { all.clone() } else { prompts.changing() };
                let before: Vec<u32> =
                    prompts.staying().map(|prompt| engine.held.length(&prompts, prompt)).collect();
                let event = match dice.roll(3) {
                    0 => engine.shrink(&prompts, &of),
                    _ => engine.grow(&prompts, &of),
                };
                event.iter().for_each(|event| apply(event, &mut has));
                assert_eq!(engine.blocks, has.len() as u64);
                for prompt in all.clone() {
                    let there = |depth: &u32| has.contains(&prompts.block(prompt, *depth).name(Names::of(7)));
                    let length = (0..prompts.length(prompt)).take_while(there).count() as u32;
                    assert_eq!(engine.held.length(&prompts, prompt), length, "prompt {prompt}, turn {turn}");
                }
                if turn >= 200 {
                    let after = prompts.staying().map(|prompt| engine.held.length(&prompts, prompt));
                    assert_eq!(after.collect::<Vec<_>>(), before, "those that stay");
                }
            }
        }
    }

    /// An engine drops all that it has, from the ends on, and stores it again. Nobody calls a block what another one does.
    #[test]
    fn engines_drop_all_and_store_it_again() {
        let prompts = Prompts::new(16, 100);
        let all = 0..prompts.count();
        let (mut one, mut other) =
            (Engine::new(1, Names::of(1), &prompts), Engine::new(2, Names::of(2), &prompts));
        for _ in 0..2 {
            let mut has = [BTreeSet::new(), BTreeSet::new()];
            for (engine, has) in [&mut one, &mut other].into_iter().zip(&mut has) {
                while let Some(event) = engine.grow(&prompts, &all) {
                    apply(&event, has);
                }
            }
            assert!(has[0].len() > 100 && has[0].is_disjoint(&has[1]));
            let whole = lengths([(1, &one.held), (2, &other.held)], &prompts, 3, u32::MAX);
            assert_eq!(whole, Lengths::from([(1, prompts.length(3)), (2, prompts.length(3))]));
            assert_eq!(lengths([(1, &one.held)], &prompts, 3, 1), Lengths::from([(1, 1)]));
            for (engine, has) in [&mut one, &mut other].into_iter().zip(&mut has) {
                while let Some(event) = engine.shrink(&prompts, &all) {
                    apply(&event, has);
                }
                assert!(has.is_empty() && engine.blocks == 0);
            }
            assert_eq!(lengths([(1, &one.held)], &prompts, 3, u32::MAX), Lengths::new());
        }
    }

    /// Prompts begin alike in a family, and differ where they part; a marker is none of them.
    #[test]
    fn prompts_part_from_each_other() {
        let prompts = Prompts::new(16, 100);
        let [one, sibling, other] = [0, 1, SIBLINGS].map(|prompt| prompts.tokens(prompt, 5));
        let common = (4 * BLOCK_TOKENS) as usize;
        assert!(one[..common] == sibling[..common] && one[common..] != sibling[common..]);
        assert!(one[..common] != other[..common] && Marker(0).tokens() != Marker(1).tokens());
        assert!(
            ![&one, &other].iter().any(|tokens| tokens[..BLOCK_TOKENS as usize] == Marker(0).tokens()[..])
        );
        assert_eq!([Marker(0).events(Names::COMMON).len(), Marker(1).events(Names::COMMON).len()], [1, 2]);
    }
}
