//! GETs in tables whose entries may have owners: is what was found hidden? (O2)
//!
//! ```text
//! look ── the owner's bit ──  clear, and none was cleared since before the look   -> Found
//!                             otherwise another look: the same entry?  clear      -> Found
//!                                                                      set        -> Absent
//!                                                     another entry?              -> from the beginning
//! ```

use super::Reader;
use super::batch::{EachLived, Keys};
use super::patience::RetryBudget;
use crate::fabric::{Fabric, Proof, Stretch};
use crate::faults::{Rule, broken, kept};
use crate::get::Retry;
use crate::hints::Hints;
use crate::layout::WORD;
use crate::layout::extent::Reference;
use crate::layout::life::Life;
use crate::layout::owners;
use crate::sink::{AnySink, LifeSink, LivedSink, LivedValue, Sink};
use rustc_hash::FxHashSet;
use std::collections::VecDeque;
use std::ops::{ControlFlow, Range};

/// A value of a batch that has an owner: where its bytes are among those of all.
struct OwnedValue<M> {
    number: usize,
    life: Life,
    mark: Option<M>,
    value: Range<usize>,
}

impl<F: Fabric> Reader<'_, F> {
    /// A GET of a key that cannot be looked for plainly: nothing may be hidden, or no table holds such a key.
    #[cold]
    #[inline(never)]
    pub(super) fn get_unhidden(
        &mut self,
        key: &[u8],
        hints: Option<&Hints>,
        value: &mut AnySink<'_>,
    ) -> Result<Option<Option<Reference>>, F::Error> {
        self.check_key(key)?;
        let home = self.geometry.hashed(key).home();
        let mut patience = RetryBudget::default();
        let found = loop {
            let mark = self.fabric.mark(home);
            let mut entry = LivedSink::new(&mut *value);
            let found = self.look_and_bring(key, hints, &mut entry, &mut patience)?;
            let life = entry.life.filter(|life| found.is_some() && life.owner != 0);
            let Some(life) = life else { break found };
            match self.is_visible(key, &life, mark, &mut patience)? {
                Some(true) => break found,
                Some(false) => {
                    value.put_none();
                    break None;
                }
                None => {
                    self.stats.count(Retry::Replaced);
                    let now_ns = self.clock.now_ns();
                    patience.again(Retry::Replaced, now_ns, &self.limits)?.take(&self.clock);
                }
            }
        };
        self.stats.answered(found.is_some());
        Ok(found)
    }

    /// Answers for many keys: their looks are under way at the same time, and so many at a time are followed by one
    /// READ of the bits of all their owners. A key of which that does not decide is asked for by itself.
    pub(super) fn answer_unhidden(
        &mut self,
        keys: &Keys<'_>,
        numbers: Vec<usize>,
        each: &mut EachLived<'_>,
    ) -> Result<ControlFlow<()>, F::Error> {
        /// Keys before a READ of the bits: their marks are not too old by then.
        const TOGETHER: usize = 128;
        /// Bytes of their values from which on it is made for fewer keys.
        const TOGETHER_BYTES: usize = 1 << 20;
        if self.fabric.is_direct() {
            return self.answer_unhidden_one_by_one(keys, numbers, each);
        }
        let (mut bytes, mut mask, mut again) = (Vec::new(), Vec::new(), LivedValue::default());
        let mut left = VecDeque::from(numbers);
        while !left.is_empty() {
            let mut some: Vec<usize> = left.drain(..TOGETHER.min(left.len())).collect();
            // Values that have an owner, one behind the other.
            let mut owned: Vec<OwnedValue<F::Mark>> = Vec::new();
            let mut answered = FxHashSet::default();
            bytes.clear();
            let flow = self.ask_for(keys, some.clone(), &mut |number, found| {
                answered.insert(number);
                let Some(found) = found else { return each(number, Ok(None), None) };
                let Some(life) = found.life.filter(|life| life.owner != 0) else {
                    return each(number, Ok(Some(found.value)), found.life);
                };
                let start = bytes.len();
                bytes.extend_from_slice(found.value);
                owned.push(OwnedValue { number, life, mark: found.mark, value: start..bytes.len() });
                match bytes.len() {
                    TOGETHER_BYTES.. => ControlFlow::Break(()),
                    _ => ControlFlow::Continue(()),
                }
            })?;
            if flow.is_break() {
                if bytes.len() < TOGETHER_BYTES {
                    return Ok(flow);
                }
                some.retain(|number| !answered.contains(number));
                some.into_iter().rev().for_each(|number| left.push_front(number));
            }
            let words = owned.iter().map(|it| self.geometry.owner_word(it.life.owner));
            let Some((first, last)) = words.clone().min().zip(words.max()) else { continue };
            mask.clear();
            let len = (last + 1 - first) * WORD;
            self.fetch(&[Stretch { offset: (first * WORD) as u64, len }], &mut mask)?;
            for OwnedValue { number, life, mark, value } in owned {
                let key = keys(number);
                let at = (self.geometry.owner_word(life.owner) - first) * WORD;
                let word = mask.get(at..at + WORD).and_then(|word| word.try_into().ok());
                let is_hidden = word.map_or(0, u64::from_le_bytes) & owners::bit(life.owner) != 0;
                let home = self.geometry.hashed(key).home();
                let is_proven = mark.is_some_and(|mark| self.is_proven(home, mark));
                let flow = if (!is_hidden && is_proven) || broken(Rule::OwnerMask) {
                    each(number, Ok(Some(&bytes[value])), Some(life))
                } else {
                    self.stats.take_back();
                    self.answer_unhidden_one(keys, number, None, &mut again, each)?
                };
                if flow.is_break() {
                    return Ok(flow);
                }
            }
        }
        Ok(ControlFlow::Continue(()))
    }

    /// Answers for many keys where READs are loads.
    fn answer_unhidden_one_by_one(
        &mut self,
        keys: &Keys<'_>,
        numbers: Vec<usize>,
        each: &mut EachLived<'_>,
    ) -> Result<ControlFlow<()>, F::Error> {
        let mut value = LivedValue::default();
        for number in numbers {
            if self.answer_unhidden_one(keys, number, self.hints, &mut value, each)?.is_break() {
                return Ok(ControlFlow::Break(()));
            }
        }
        Ok(ControlFlow::Continue(()))
    }

    /// Answers for one key. Its value may land in `value`.
    fn answer_unhidden_one(
        &mut self,
        keys: &Keys<'_>,
        number: usize,
        hints: Option<&Hints>,
        value: &mut LivedValue,
        each: &mut EachLived<'_>,
    ) -> Result<ControlFlow<()>, F::Error> {
        if self.wants_bytes {
            let found = self.get_unhidden(keys(number), hints, &mut AnySink::of(value))?;
            return Ok(each(number, Ok(found.map(|_| &value.sink[..])), value.life));
        }
        let mut life = LifeSink::default();
        let found = self.get_unhidden(keys(number), hints, &mut AnySink::of(&mut life))?;
        Ok(each(number, Ok(found.map(|_| &[][..])), life.life()))
    }

    /// Whether no bit was cleared since `mark` that was set when the entry was found.
    fn is_proven(&mut self, home: u64, mark: F::Mark) -> bool {
        kept(Rule::OwnerProof, || matches!(self.fabric.proof(home, mark), Proof::NoMove | Proof::InGrace))
    }

    /// Whether an entry is there for readers that a look since `mark` has found. `None` if it was there, and that is all
    /// that is known.
    fn is_visible(
        &mut self,
        key: &[u8],
        life: &Life,
        mark: F::Mark,
        patience: &mut RetryBudget,
    ) -> Result<Option<bool>, F::Error> {
        if broken(Rule::OwnerMask) {
            return Ok(Some(true));
        }
        let is_hidden = self.is_hidden(life.owner)?;
        let home = self.geometry.hashed(key).home();
        if !is_hidden && self.is_proven(home, mark) {
            return Ok(Some(true));
        }
        if is_hidden && broken(Rule::OwnerAgain) {
            return Ok(Some(false));
        }
        let mut again = LifeSink::default();
        Ok(match self.look_and_bring(key, None, &mut again, patience)? {
            None => Some(false),
            // Then it was there when its owner's bit was read.
            _ if again.life().is_some_and(|now| now.number == life.number) => Some(!is_hidden),
            Some(_) => None,
        })
    }

    /// READs an owner's bit.
    fn is_hidden(&mut self, owner: u16) -> Result<bool, F::Error> {
        let (offset, mut bytes) = (self.geometry.owner_word(owner) * WORD, Vec::with_capacity(WORD));
        self.fetch(&[Stretch { offset: offset as u64, len: WORD }], &mut bytes)?;
        let word = bytes.try_into().map_or(0, u64::from_le_bytes);
        Ok(word & owners::bit(owner) != 0)
    }
}
