//! Brings values that are not in their slots (X4), and keys that are not (F).

use super::Reader;
use super::answers::FoundValue;
use super::batch::{Each, Keys, NamedValue};
use super::look::Looked;
use super::patience::RetryBudget;
use crate::fabric::{Fabric, ReadCounts, Stretch};
use crate::faults::{Rule, broken, by_rule, kept};
use crate::get::Retry;
use crate::layout::crc;
use crate::layout::extent::Reference;
use crate::layout::life::Life;
use crate::outcome::ReadError;
use crate::sink::{AnySink, KeySink, LivedSink, LivedValue, Sink};
use smallvec::SmallVec;
use std::ops::{ControlFlow, Range};

/// A batch READs up to this many bytes of long values with one doorbell, and a longer value alone: they
/// land before the marks of their keys' passes are too old, and the memory that they land in stays small.
const TOGETHER_BYTES: usize = 256 << 10;

/// What another look has shown, and the life of the entry that it found.
type LookedAgain<M> = (Looked<M>, Option<Life>);

/// Extents that a GET has seen to be other keys' with the same digest: their numbers.
pub(super) type Others = SmallVec<[u64; 2]>;

impl<F: Fabric> Reader<'_, F> {
    /// Brings the bytes that are wanted of the value that a look has found, and looks again as often as X4
    /// demands. Returns the extent, and `Some(None)` if the value is in its slot.
    pub(super) fn bring(
        &mut self,
        key: &[u8],
        mut others: Others,
        mut looked: Looked<F::Mark>,
        value: &mut AnySink<'_>,
        patience: &mut RetryBudget,
    ) -> Result<Option<Option<Reference>>, F::Error> {
        let mut times = 0;
        loop {
            let (reference, mark) = match looked {
                Looked::Absent => {
                    value.put_none();
                    return Ok(None);
                }
                Looked::Here => return Ok(Some(None)),
                Looked::At(reference, mark) => (reference, mark),
            };
            // First: a slot may name any length, and the sink takes memory for it.
            let before = self.bytes_before_value(key, &reference)?;
            let range = value.begin_part(reference.len as usize - before);
            if before == 0 && range.is_none() {
                return Ok(Some(Some(reference)));
            }
            let is_its = self.fetch_part(key, &reference, range, value)?;
            times += 1;
            if !is_its {
                if broken(Rule::OthersPassed) {
                    value.put_none();
                    return Ok(None);
                }
                self.pass_over(&reference, &mut others, patience)?;
                looked = self.look_up(key, &others, value, patience)?;
                continue;
            }
            let part = value.landed();
            let again = self.look_again(key, &others, &reference, mark, part, patience)?;
            let Some((again, life)) = again else { return Ok(Some(Some(reference))) };
            looked = again;
            value.put_life(life);
            match looked {
                Looked::Absent => {}
                Looked::Here => {
                    if value.begin(self.value.len()) {
                        value.put(&self.value);
                    }
                }
                Looked::At(now, _) => {
                    self.stats.count(Retry::Replaced);
                    match patience.again(Retry::Replaced, self.clock.now_ns(), &self.limits) {
                        Ok(rest) => rest.take(&self.clock),
                        Err(_) => return Err(ReadError::Replaced { len: now.len as usize, times }.into()),
                    }
                }
            }
        }
    }

    /// Whether bytes that were READ are the value, or a part of it (X4): `None` if they are. Else what another
    /// look has shown; a value that is in its slot is then in `self.value`.
    fn look_again(
        &mut self,
        key: &[u8],
        others: &[u64],
        reference: &Reference,
        mark: F::Mark,
        part: Option<&[u8]>,
        patience: &mut RetryBudget,
    ) -> Result<Option<LookedAgain<F::Mark>>, F::Error> {
        let allowance = self.geometry.heap().allowance(self.geometry.grace(), reference.len);
        let is_proven = self.fabric.took_less(mark, allowance);
        if kept(Rule::ExtentLook, || is_proven) {
            return self.check_crc(key, reference, part).map(|()| None);
        }
        // The second look, begun after the last byte. It has another place for a short value.
        let mut short = LivedSink::new(std::mem::take(&mut self.value));
        let again = self.look_up(key, others, &mut AnySink::of(&mut short), patience);
        let LivedSink { sink: value, life } = short;
        self.value = value;
        let again = again?;
        let is_same = match &again {
            Looked::At(now, _) => by_rule(
                Rule::ExtentNumber,
                now.number == reference.number,
                (now.offset, now.len) == (reference.offset, reference.len),
            ),
            Looked::Absent | Looked::Here => false,
        };
        if is_same {
            return self.check_crc(key, reference, part).map(|()| None);
        }
        Ok(Some((again, life)))
    }

    /// Bytes in front of the value in this extent, if it is the key's.
    fn bytes_before_value(&self, key: &[u8], reference: &Reference) -> Result<usize, ReadError> {
        self.check_sound(reference)?;
        let before = self.geometry.bytes_before_value(key);
        match before <= reference.len as usize {
            true => Ok(before),
            false => Err(ReadError::Damaged { what: "its slot names no place for its key" }),
        }
    }

    /// READs the bytes that are wanted of a value; of a key that does not fit its slot, the key, too. Returns
    /// whether that is this one (F1).
    fn fetch_part(
        &mut self,
        key: &[u8],
        reference: &Reference,
        range: Option<Range<usize>>,
        value: &mut AnySink<'_>,
    ) -> Result<bool, F::Error> {
        let before = self.geometry.bytes_before_value(key);
        let Range { start, end } = range.unwrap_or_default();
        let part = self.stretch(reference, before + start..before + end)?;
        if before == 0 {
            return self.fetch(&[part], value).map(|()| true);
        }
        let mut parts = KeySink::new(key, value);
        match start {
            0 => self.fetch(&[self.stretch(reference, 0..before + end)?], &mut parts)?,
            _ => self.fetch(&[self.stretch(reference, 0..before)?, part], &mut parts)?,
        }
        Ok(kept(Rule::WholeKeyRead, || parts.is_its()))
    }

    /// F2: the key has not this number, or not any more, and the GET goes on without it.
    #[cold]
    fn pass_over(
        &mut self,
        reference: &Reference,
        others: &mut Others,
        patience: &mut RetryBudget,
    ) -> Result<(), F::Error> {
        self.stats.count(Retry::OtherKey);
        others.push(reference.number);
        let rest = patience.again(Retry::OtherKey, self.clock.now_ns(), &self.limits)?;
        rest.take(&self.clock);
        Ok(())
    }

    /// Checks that what a slot names is in the heap, and no longer than values of this table.
    fn check_sound(&self, reference: &Reference) -> Result<(), ReadError> {
        match reference.is_sound(self.geometry) {
            true => Ok(()),
            false => Err(ReadError::Damaged { what: "its slot names no place of the heap" }),
        }
    }

    /// Where these bytes of a long value are.
    fn stretch(&self, reference: &Reference, range: Range<usize>) -> Result<Stretch, ReadError> {
        self.check_sound(reference)?;
        Ok(Stretch { offset: reference.offset + range.start as u64, len: range.len() })
    }

    /// READs parts of long values, one behind the other, with one doorbell.
    pub(super) fn fetch(&mut self, stretches: &[Stretch], parts: &mut impl Sink) -> Result<(), F::Error> {
        let bytes: usize = stretches.iter().map(|bytes| bytes.len).sum();
        if bytes == 0 {
            return Ok(());
        }
        let reads = stretches.len() as u64;
        self.reads += ReadCounts { reads, bytes: bytes as u64, doorbells: 1 };
        self.fabric.fetch(stretches, parts)
    }

    /// Over a network a whole value is checked once more, as a belt: X4 suffices.
    fn check_crc(&self, key: &[u8], reference: &Reference, part: Option<&[u8]>) -> Result<(), F::Error> {
        let before = &key[..self.geometry.bytes_before_value(key)];
        let len = before.len() + part.map_or(0, <[u8]>::len);
        let whole = part.filter(|_| !F::EXACT && len == reference.len as usize);
        let Some(whole) = whole else { return Ok(()) };
        let crc = || crc::append_long(crc::append_long(0, before), whole);
        match kept(Rule::CrcCheck, || crc() == reference.crc) {
            true => Ok(()),
            false => Err(ReadError::Damaged { what: "its CRC is another" }.into()),
        }
    }

    /// Brings the values of keys whose slots say where they are: as many with one doorbell as have
    /// [`TOGETHER_BYTES`].
    pub(super) fn finish_each(
        &mut self,
        keys: &Keys<'_>,
        named: Vec<NamedValue<F::Mark>>,
        each: &mut Each<'_, F::Mark>,
    ) -> Result<ControlFlow<()>, F::Error> {
        let (mut values, mut value) = (Vec::new(), LivedValue::default());
        let mut left = &named[..];
        while !left.is_empty() {
            let mut bytes = 0;
            let fits = |named: &&NamedValue<F::Mark>| {
                bytes += named.reference.len as usize;
                bytes <= TOGETHER_BYTES
            };
            let (together, others) = left.split_at(left.iter().take_while(fits).count().max(1));
            left = others;
            let lens = together.iter().map(|it| {
                let before = self.bytes_before_value(keys(it.number), &it.reference)?;
                Ok(if self.wants_bytes { it.reference.len as usize } else { before })
            });
            let lens = lens.collect::<Result<SmallVec<[_; 4]>, ReadError>>()?;
            let places = together.iter().zip(&lens).filter(|&(_, &len)| len > 0);
            let places = places.map(|(it, &len)| self.stretch(&it.reference, 0..len));
            let places = places.collect::<Result<SmallVec<[_; 4]>, _>>()?;
            values.clear();
            self.fetch(&places, &mut values)?;
            let mut rest = &values[..];
            for (NamedValue { number, reference, mark, life }, &len) in together.iter().zip(&lens) {
                let (part, behind) = rest.split_at(len);
                rest = behind;
                if len == 0 {
                    // The slot says all that is wanted.
                    let (value, life, mark) = (part, *life, Some(*mark));
                    self.stats.answered(true);
                    if each(*number, Some(FoundValue { value, life, mark })).is_break() {
                        return Ok(ControlFlow::Break(()));
                    }
                    continue;
                }
                let (key, mut patience, mut others) = (keys(*number), RetryBudget::default(), Others::new());
                let (before, part) = part.split_at(self.bytes_before_value(key, reference)?);
                let is_its = before.is_empty() || kept(Rule::WholeKeyRead, || before == key);
                let again = if is_its {
                    let part = Some(part);
                    let again = self.look_again(key, &others, reference, *mark, part, &mut patience)?;
                    again.map(|(again, life)| {
                        value.life = life;
                        again
                    })
                } else {
                    self.pass_over(reference, &mut others, &mut patience)?;
                    Some(self.look_up(key, &others, &mut AnySink::of(&mut value), &mut patience)?)
                };
                if is_its && matches!(again, Some(Looked::Here)) {
                    std::mem::swap(&mut value.sink, &mut self.value);
                }
                // The mark is of the first pass: after another, who goes by it asks for more.
                let (mark, life) = (Some(*mark), *life);
                let found = match again {
                    None => Some(FoundValue { value: part, life, mark }),
                    Some(again) => {
                        let brought =
                            self.bring(key, others, again, &mut AnySink::of(&mut value), &mut patience)?;
                        brought.map(|_| FoundValue { value: &value.sink, life: value.life, mark })
                    }
                };
                self.stats.answered(found.is_some());
                if each(*number, found).is_break() {
                    return Ok(ControlFlow::Break(()));
                }
            }
        }
        Ok(ControlFlow::Continue(()))
    }
}
