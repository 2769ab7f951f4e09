//! Changes of a part of a value: the server makes the new value of the one that is there.

use smallvec::SmallVec;
use std::time::Duration;

/// A value in private memory: on the stack, if it is one that fits a slot.
pub(crate) type ValueBytes = SmallVec<[u8; 112]>;

/// A change of a part of a value. The server makes it of the value that is there, under the key's lock: no other
/// change of the key comes between. If it ends in an error, nothing is changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PartChange<'a> {
    /// Adds to a counter: a number of 64 bits without a sign, 8 bytes of value, the lowest first
    /// (`u64::to_le_bytes`). A sum below 0, or of more than 64 bits, is an error.
    Add {
        /// What is added; below 0, taken away.
        delta: i64,
        /// What an absent key counts as. `None`: it stays absent.
        initial: Option<u64>,
    },
    /// Adds to a number: decimal text, from -2^63 to 2^63 - 1. Its digits stand behind a `-` if it is below 0, and the
    /// first one is no 0, but in `0` itself. A sum out of that range, and a value that is no such text, are errors.
    Increment {
        /// What is added; below 0, taken away.
        delta: i64,
        /// What an absent key counts as. `None`: it stays absent.
        absent: Option<NewNumber>,
    },
    /// Sets bits of a bit set: those that are 1 here. The first byte here is for the first byte of the value. Bytes
    /// of the value behind the last one here stay as they are; more bytes than the value has are an error. An
    /// absent key gets these bits as its value.
    Or {
        /// The bits to set.
        bits: &'a [u8],
    },
    /// Sets bits of a bit set, as [`PartChange::Or`]; a value that has fewer bytes than there are here is lengthened with
    /// zeros first.
    OrPadded {
        /// The bits to set.
        bits: &'a [u8],
    },
    /// Clears bits of a bit set: those that are 1 here. Lengths are as with [`PartChange::Or`]. An absent key stays
    /// absent.
    AndNot {
        /// The bits to clear.
        bits: &'a [u8],
    },
    /// Appends bytes to the value. An absent key counts as one with an empty value.
    Append {
        /// The bytes.
        bytes: &'a [u8],
        /// The longest value that may come of it. A longer one is an error.
        len_max: usize,
    },
}

/// What an absent key counts as ([`PartChange::Increment`]). The change is added to that.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NewNumber {
    /// The number.
    pub value: i64,
    /// How long the entry lives that comes, as with [`PutOptions::ttl`](crate::PutOptions::ttl). An entry that is there
    /// keeps its end.
    pub ttl: Option<Duration>,
}

impl From<i64> for NewNumber {
    /// This number, of an entry that ends as one that is put without a time.
    fn from(value: i64) -> NewNumber {
        NewNumber { value, ttl: None }
    }
}

/// The number that is this decimal text, if it is one.
fn number_of(text: &[u8]) -> Option<i64> {
    let is_plain = match text.strip_prefix(b"-").unwrap_or(text) {
        [b'0'] => text.len() == 1,
        digits => digits.first().is_some_and(|first| (b'1'..=b'9').contains(first)),
    };
    str::from_utf8(text).ok().filter(|_| is_plain)?.parse().ok()
}

/// Which value a change of a part tells.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Tell {
    /// None.
    #[default]
    Nothing,
    /// The one before.
    Before,
    /// The one after.
    After,
}

/// What a change of a part did with the key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PartEffect {
    /// The key was absent and is now present.
    Inserted,
    /// The key has another value.
    Updated,
    /// The value was already what it should become: bits were set, or clear; nothing was added or appended.
    Unchanged,
    /// The key was absent and stays absent.
    Absent,
}

/// What a change of a part found and did.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PartOutcome {
    /// What it did with the key.
    pub effect: PartEffect,
    /// The value that was asked for ([`Tell`]). `None` if none was, or the key was absent then.
    pub value: Option<Vec<u8>>,
}

impl PartOutcome {
    /// The value, as a counter.
    pub(crate) fn counter(&self) -> Option<u64> {
        Some(u64::from_le_bytes(self.value.as_deref()?.try_into().ok()?))
    }

    /// The value, as a number.
    pub(crate) fn number(&self) -> Option<i64> {
        number_of(self.value.as_deref()?)
    }
}

/// Why a part of a value was not changed. Nothing was.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PartError {
    /// The value is no counter.
    #[error("the value is {given} bytes long, and a counter has 8; put one first")]
    CounterLength {
        /// Length of the value.
        given: usize,
    },
    /// The counter would leave its range.
    #[error("the counter is {value}, and {delta:+} would take it out of 0 to {}", u64::MAX)]
    CounterRange {
        /// The counter.
        value: u64,
        /// What was to be added.
        delta: i64,
    },
    /// The value is no number.
    #[error(
        "the value, {given} bytes long, is no decimal text of a number from {} to {}; put one first (`Client::add` is for counters of 8 bytes)",
        i64::MIN,
        i64::MAX
    )]
    NoNumber {
        /// Length of the value.
        given: usize,
    },
    /// The number would leave its range.
    #[error("the number is {value}, and {delta:+} would take it out of {} to {}", i64::MIN, i64::MAX)]
    NumberRange {
        /// The number.
        value: i64,
        /// What was to be added.
        delta: i64,
    },
    /// There are more bits than the value has.
    #[error("{given} bytes of bits were given, and the value has {max}; put one that is as long first")]
    BitsLength {
        /// Bytes given.
        given: usize,
        /// Bytes of the value.
        max: usize,
    },
    /// The value would be longer than the caller allows.
    #[error("the value would be {given} bytes long, and the bound of this append is {max}")]
    AppendLength {
        /// Length that the value would have.
        given: usize,
        /// The bound.
        max: usize,
    },
    /// The value that was asked for does not fit the server's answer.
    #[error(
        "the value is {given} bytes long, and a server's answer has room for {max}; do not ask for it: get it"
    )]
    AnswerLength {
        /// Length of the value.
        given: usize,
        /// Longest that the server tells.
        max: usize,
    },
    /// An error that this version does not know.
    #[error(
        "a part of the value was not changed, for a reason that this version does not know ({code}); use the same version of oneread on both sides"
    )]
    Other {
        /// The error's number.
        code: u64,
    },
}

impl PartError {
    /// The error's number and what it says, for a reply.
    pub(crate) fn to_parts(self) -> [u64; 3] {
        match self {
            PartError::CounterLength { given } => [1, given as u64, 0],
            PartError::CounterRange { value, delta } => [2, value, delta as u64],
            PartError::BitsLength { given, max } => [3, given as u64, max as u64],
            PartError::AppendLength { given, max } => [4, given as u64, max as u64],
            PartError::AnswerLength { given, max } => [5, given as u64, max as u64],
            PartError::NoNumber { given } => [6, given as u64, 0],
            PartError::NumberRange { value, delta } => [7, value as u64, delta as u64],
            PartError::Other { code } => [code, 0, 0],
        }
    }

    pub(crate) fn from_parts([code, a, b]: [u64; 3]) -> PartError {
        let (given, max) = (a as usize, b as usize);
        match code {
            1 => PartError::CounterLength { given },
            2 => PartError::CounterRange { value: a, delta: b as i64 },
            3 => PartError::BitsLength { given, max },
            4 => PartError::AppendLength { given, max },
            5 => PartError::AnswerLength { given, max },
            6 => PartError::NoNumber { given },
            7 => PartError::NumberRange { value: a as i64, delta: b as i64 },
            code => PartError::Other { code },
        }
    }
}

impl PartChange<'_> {
    /// The bytes that it brings.
    pub(crate) fn bytes(&self) -> &[u8] {
        match self {
            PartChange::Add { .. } | PartChange::Increment { .. } => &[],
            PartChange::Or { bits } | PartChange::OrPadded { bits } | PartChange::AndNot { bits } => bits,
            PartChange::Append { bytes, .. } => bytes,
        }
    }

    /// How long the entry lives that comes of it where the key is absent.
    pub(crate) fn ttl(&self) -> Option<Duration> {
        match self {
            PartChange::Increment { absent, .. } => absent.and_then(|new| new.ttl),
            PartChange::Add { .. }
            | PartChange::Or { .. }
            | PartChange::OrPadded { .. }
            | PartChange::AndNot { .. }
            | PartChange::Append { .. } => None,
        }
    }

    /// How long this value becomes, if it becomes another one; `None`: the key is absent.
    pub(crate) fn len_after(&self, value: Option<&[u8]>) -> usize {
        let len = value.map_or(0, <[u8]>::len);
        match self {
            PartChange::Add { .. } => size_of::<u64>(),
            PartChange::Increment { .. } => {
                let mut after = ValueBytes::from_slice(value.unwrap_or_default());
                self.apply(&mut after, value.is_some()).map_or(len, |_| after.len())
            }
            PartChange::Or { bits } | PartChange::OrPadded { bits } | PartChange::AndNot { bits } => {
                len.max(bits.len())
            }
            PartChange::Append { bytes, .. } => len.saturating_add(bytes.len()),
        }
    }

    /// Makes it of a value; of an empty one, where the key is absent. After an error, and where the key is absent
    /// and stays so, the value is of no use.
    pub(crate) fn apply(&self, value: &mut ValueBytes, is_there: bool) -> Result<PartEffect, PartError> {
        let effect = |is_other| match (is_there, is_other) {
            (false, _) => PartEffect::Inserted,
            (true, true) => PartEffect::Updated,
            (true, false) => PartEffect::Unchanged,
        };
        match *self {
            PartChange::Add { delta, initial } => {
                let before = if is_there {
                    let given = value.len();
                    let bytes = value[..].try_into().map_err(|_| PartError::CounterLength { given })?;
                    u64::from_le_bytes(bytes)
                } else {
                    let Some(initial) = initial else { return Ok(PartEffect::Absent) };
                    initial
                };
                let after = before
                    .checked_add_signed(delta)
                    .ok_or(PartError::CounterRange { value: before, delta })?;
                value.clear();
                value.extend_from_slice(&after.to_le_bytes());
                Ok(effect(after != before))
            }
            PartChange::Increment { delta, absent } => {
                let before = match (is_there, absent) {
                    (true, _) => number_of(value).ok_or(PartError::NoNumber { given: value.len() })?,
                    (false, Some(new)) => new.value,
                    (false, None) => return Ok(PartEffect::Absent),
                };
                let after =
                    before.checked_add(delta).ok_or(PartError::NumberRange { value: before, delta })?;
                value.clear();
                value.extend_from_slice(after.to_string().as_bytes());
                Ok(effect(after != before))
            }
            PartChange::Or { bits } | PartChange::OrPadded { bits } if !is_there => {
                value.extend_from_slice(bits);
                Ok(PartEffect::Inserted)
            }
            PartChange::AndNot { .. } if !is_there => Ok(PartEffect::Absent),
            PartChange::Or { bits } => Ok(effect(with_bits(value, bits, |byte, bits| byte | bits)?)),
            PartChange::OrPadded { bits } => {
                let is_longer = bits.len() > value.len();
                if is_longer {
                    value.resize(bits.len(), 0);
                }
                Ok(effect(with_bits(value, bits, |byte, bits| byte | bits)? || is_longer))
            }
            PartChange::AndNot { bits } => Ok(effect(with_bits(value, bits, |byte, bits| byte & !bits)?)),
            PartChange::Append { bytes, len_max } => {
                let given = value.len().saturating_add(bytes.len());
                if given > len_max {
                    return Err(PartError::AppendLength { given, max: len_max });
                }
                value.extend_from_slice(bytes);
                Ok(effect(!bytes.is_empty()))
            }
        }
    }
}

/// Changes the first bytes of a value. Returns whether it is another one then.
fn with_bits(value: &mut [u8], bits: &[u8], change: impl Fn(u8, u8) -> u8) -> Result<bool, PartError> {
    let max = value.len();
    let bytes = value.get_mut(..bits.len()).ok_or(PartError::BitsLength { given: bits.len(), max })?;
    let mut is_other = false;
    for (byte, bits) in bytes.iter_mut().zip(bits) {
        let after = change(*byte, *bits);
        is_other |= after != *byte;
        *byte = after;
    }
    Ok(is_other)
}

#[cfg(test)]
mod tests {
    use super::*;

    type Made = Result<(PartEffect, Vec<u8>), PartError>;

    fn make(part: PartChange<'_>, value: Option<&[u8]>) -> Made {
        let mut bytes = ValueBytes::from_slice(value.unwrap_or_default());
        let len_after = part.len_after(value);
        let effect = part.apply(&mut bytes, value.is_some())?;
        assert!(effect == PartEffect::Absent || bytes.len() == len_after, "{part:?} of {value:?}");
        Ok((effect, bytes.to_vec()))
    }

    fn add(delta: i64, initial: Option<u64>, value: Option<&[u8]>) -> Result<(PartEffect, u64), PartError> {
        let (effect, bytes) = make(PartChange::Add { delta, initial }, value)?;
        Ok((effect, if bytes.is_empty() { 0 } else { u64::from_le_bytes(bytes.try_into().unwrap()) }))
    }

    /// A counter goes up and down between 0 and the largest number, and never out of that.
    #[test]
    fn counters_stay_in_range() {
        use PartEffect::{Absent, Inserted, Unchanged, Updated};
        let is = |n: u64| n.to_le_bytes();
        assert_eq!(add(5, None, Some(&is(250))), Ok((Updated, 255)));
        assert_eq!(add(-250, None, Some(&is(250))), Ok((Updated, 0)));
        assert_eq!(add(0, None, Some(&is(250))), Ok((Unchanged, 250)));
        assert_eq!(add(i64::MAX, None, Some(&is(1 << 63))), Ok((Updated, u64::MAX)));
        assert_eq!(add(i64::MIN, None, Some(&is(1 << 63))), Ok((Updated, 0)));
        for (value, delta) in [(u64::MAX, 1), (0, -1), (4, -5), (1, i64::MIN), (u64::MAX - 3, i64::MAX)] {
            assert_eq!(add(delta, None, Some(&is(value))), Err(PartError::CounterRange { value, delta }));
        }
        // An absent key counts as what the caller says, and stays absent if he says nothing.
        assert_eq!(add(5, None, None), Ok((Absent, 0)));
        assert_eq!(add(5, Some(0), None), Ok((Inserted, 5)));
        assert_eq!(add(0, Some(9), None), Ok((Inserted, 9)));
        assert_eq!(add(-1, Some(0), None), Err(PartError::CounterRange { value: 0, delta: -1 }));
        assert_eq!(add(5, Some(7), Some(&is(1))), Ok((Updated, 6)), "it is there");
        for given in [0, 1, 7, 9] {
            assert_eq!(add(1, Some(0), Some(&vec![0; given])), Err(PartError::CounterLength { given }));
        }
    }

    /// A number is decimal text. It goes up and down in its range, and what is no such text is refused.
    #[test]
    fn numbers_are_decimal_text() {
        use PartEffect::{Absent, Inserted, Unchanged, Updated};
        let add = |delta, absent: Option<i64>, value: Option<&str>| {
            let part = PartChange::Increment { delta, absent: absent.map(NewNumber::from) };
            make(part, value.map(str::as_bytes))
                .map(|(effect, text)| (effect, String::from_utf8(text).unwrap()))
        };
        let is = |effect, text: &str| Ok((effect, text.to_owned()));
        assert_eq!(add(1, None, Some("9")), is(Updated, "10"));
        assert_eq!(add(-11, None, Some("10")), is(Updated, "-1"));
        assert_eq!(add(1, None, Some("-1")), is(Updated, "0"));
        assert_eq!(add(0, None, Some("7")), is(Unchanged, "7"));
        assert_eq!(add(i64::MAX, None, Some("-9223372036854775808")), is(Updated, "-1"));
        assert_eq!(add(-1, None, Some("-9223372036854775807")), is(Updated, "-9223372036854775808"));
        for (value, delta) in [(i64::MAX, 1), (i64::MIN, -1), (1, i64::MAX), (-2, i64::MIN)] {
            let refused = add(delta, Some(0), Some(&value.to_string()));
            assert_eq!(refused, Err(PartError::NumberRange { value, delta }));
        }
        assert_eq!(add(5, None, None), is(Absent, ""));
        assert_eq!(add(5, Some(-7), None), is(Inserted, "-2"));
        assert_eq!(add(1, Some(i64::MAX), None), Err(PartError::NumberRange { value: i64::MAX, delta: 1 }));
        for text in ["", "-", "+1", "-0", "00", "01", "1.0", " 1", "1 ", "1e3", "x", "9223372036854775808"] {
            assert_eq!(
                add(1, Some(0), Some(text)),
                Err(PartError::NoNumber { given: text.len() }),
                "{text:?}"
            );
        }
        assert_eq!(add(1, Some(0), Some(&"1".repeat(500))), Err(PartError::NoNumber { given: 500 }));
        let binary = make(PartChange::Increment { delta: 1, absent: None }, Some(&[0xff; 8]));
        assert_eq!(binary, Err(PartError::NoNumber { given: 8 }));
    }

    /// Bits change where they are 1, in the first bytes; the length of a value stays, unless it is to be padded.
    #[test]
    fn bits_change_in_the_first_bytes() {
        use PartEffect::{Absent, Inserted, Unchanged, Updated};
        let or = |bits, value| make(PartChange::Or { bits }, value);
        let and_not = |bits, value| make(PartChange::AndNot { bits }, value);
        assert_eq!(or(&[1, 2], Some(&[4, 4, 4])), Ok((Updated, vec![5, 6, 4])));
        assert_eq!(or(&[1, 4], Some(&[5, 4])), Ok((Unchanged, vec![5, 4])));
        assert_eq!(or(&[], Some(&[5])), Ok((Unchanged, vec![5])));
        assert_eq!(or(&[1, 0], None), Ok((Inserted, vec![1, 0])));
        assert_eq!(or(&[0, 0], Some(&[1])), Err(PartError::BitsLength { given: 2, max: 1 }));
        let padded = |bits, value| make(PartChange::OrPadded { bits }, value);
        assert_eq!(padded(&[1, 2], Some(&[4, 4, 4])), Ok((Updated, vec![5, 6, 4])));
        assert_eq!(padded(&[1, 0, 2], Some(&[4])), Ok((Updated, vec![5, 0, 2])), "it is lengthened");
        assert_eq!(padded(&[4, 0], Some(&[4])), Ok((Updated, vec![4, 0])), "by zeros alone, too");
        assert_eq!(padded(&[4], Some(&[5, 4])), Ok((Unchanged, vec![5, 4])));
        assert_eq!(padded(&[1, 0], None), Ok((Inserted, vec![1, 0])));
        assert_eq!(and_not(&[1, 0xff], Some(&[5, 4, 4])), Ok((Updated, vec![4, 0, 4])));
        assert_eq!(and_not(&[2, 2], Some(&[5, 4])), Ok((Unchanged, vec![5, 4])));
        assert_eq!(and_not(&[1], None).unwrap().0, Absent);
        assert_eq!(and_not(&[0, 0], Some(&[1])), Err(PartError::BitsLength { given: 2, max: 1 }));
    }

    /// Bytes are appended up to the bound, and no further.
    #[test]
    fn appends_end_at_the_bound() {
        use PartEffect::{Inserted, Unchanged, Updated};
        let append = |bytes, len_max, value| make(PartChange::Append { bytes, len_max }, value);
        assert_eq!(append(b"cd", 4, Some(b"ab")), Ok((Updated, b"abcd".to_vec())));
        assert_eq!(append(b"cd", 3, Some(b"ab")), Err(PartError::AppendLength { given: 4, max: 3 }));
        assert_eq!(append(b"", 2, Some(b"ab")), Ok((Unchanged, b"ab".to_vec())));
        assert_eq!(append(b"", 1, Some(b"ab")), Err(PartError::AppendLength { given: 2, max: 1 }));
        assert_eq!(append(b"ab", 2, None), Ok((Inserted, b"ab".to_vec())));
        assert_eq!(append(b"ab", 1, None), Err(PartError::AppendLength { given: 2, max: 1 }));
    }

    /// Each error survives a reply, also one that a later version may have.
    #[test]
    fn errors_go_through_replies() {
        for error in [
            PartError::CounterLength { given: 7 },
            PartError::CounterRange { value: 3, delta: -4 },
            PartError::BitsLength { given: 9, max: 8 },
            PartError::AppendLength { given: 9, max: 8 },
            PartError::AnswerLength { given: 9, max: 8 },
            PartError::NoNumber { given: 9 },
            PartError::NumberRange { value: -3, delta: i64::MIN },
            PartError::Other { code: 77 },
        ] {
            assert_eq!(PartError::from_parts(error.to_parts()), error);
        }
        let range = PartError::CounterRange { value: 3, delta: -4 }.to_string();
        assert!(range.contains("is 3, and -4 would"), "{range}");
    }
}
