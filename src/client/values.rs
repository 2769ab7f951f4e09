//! The values of a batch, in one buffer.

use crate::outcome::KeyError;
use crate::reader::{Answers, StoredAnswer};
use crate::sink::{Sink, TailSink};
use std::ops::{ControlFlow, Range};

/// The values of many keys, in the order of the keys. Use one repeatedly: it keeps its memory.
#[derive(Clone, Debug, Default)]
pub struct Values {
    bytes: TailSink,
    /// For each key, where its value is among the bytes.
    spans: Vec<Span>,
    refused: Vec<(usize, KeyError)>,
}

/// Some bytes: where they begin, and how many they are.
#[derive(Clone, Copy, Debug)]
struct Span {
    start: usize,
    len: usize,
}

impl Span {
    /// The span of an absent key. No value has this length.
    const NONE: Span = Span { start: 0, len: usize::MAX };

    #[inline(always)]
    fn of(bytes: Range<usize>) -> Span {
        Span { start: bytes.start, len: bytes.end - bytes.start }
    }

    #[inline]
    fn in_bytes(self, bytes: &[u8]) -> Option<&[u8]> {
        (self.len != Span::NONE.len).then(|| &bytes[self.start..][..self.len])
    }
}

impl Values {
    /// No values.
    pub const fn new() -> Values {
        Values { bytes: TailSink::new(), spans: Vec::new(), refused: Vec::new() }
    }

    /// The number of keys.
    pub fn len(&self) -> usize {
        self.spans.len()
    }

    /// Whether there are no keys.
    pub fn is_empty(&self) -> bool {
        self.spans.is_empty()
    }

    /// The value of key number `key`. `None` if the key is absent, or was refused.
    ///
    /// # Panics
    /// When there is no key of this number.
    pub fn get(&self, key: usize) -> Option<&[u8]> {
        self.spans[key].in_bytes(self.bytes.bytes())
    }

    /// The value of each key, in order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = Option<&[u8]>> {
        self.spans.iter().map(|span| span.in_bytes(self.bytes.bytes()))
    }

    /// The numbers of the keys without an outcome, and why: the table cannot hold such a key, or with
    /// encryption its value does not decrypt.
    pub fn refused(&self) -> &[(usize, KeyError)] {
        &self.refused
    }

    /// Makes it an outcome of this many keys, all absent.
    pub(crate) fn reset(&mut self, keys: usize) {
        self.bytes.clear();
        self.spans.clear();
        self.spans.resize(keys, Span::NONE);
        self.refused.clear();
    }

    /// Sets the outcome of key number `key`.
    pub(crate) fn set(&mut self, key: usize, answer: Result<Option<&[u8]>, KeyError>) {
        match answer {
            Ok(Some(value)) => {
                self.bytes.begin(value.len());
                self.bytes.put(value);
                self.spans[key] = Span::of(self.bytes.keep());
            }
            Ok(None) => {}
            Err(error) => self.refused.push((key, error)),
        }
    }
}

/// Writes values to their final place.
impl Answers for Values {
    type Sink = TailSink;

    #[inline(always)]
    fn sink(&mut self) -> &mut TailSink {
        &mut self.bytes
    }

    #[inline(always)]
    fn landed(&mut self, number: usize, is_there: bool) -> ControlFlow<()> {
        if is_there {
            self.spans[number] = Span::of(self.bytes.keep());
        }
        ControlFlow::Continue(())
    }

    fn answer(&mut self, number: usize, answer: StoredAnswer<'_>) -> ControlFlow<()> {
        self.set(number, answer.map_err(KeyError::from));
        ControlFlow::Continue(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Answers come in any order, and are in the order of the keys. A second batch leaves nothing of
    /// the first.
    #[test]
    fn values_are_in_the_order_of_the_keys() {
        let mut values = Values::new();
        assert!(values.is_empty());
        for (keys, answers) in [(3, &[(2, "two"), (0, "")][..]), (2, &[(1, "one")])] {
            values.reset(keys);
            answers.iter().for_each(|&(key, value)| values.set(key, Ok(Some(value.as_bytes()))));
            let expected = |key| answers.iter().find(|(n, _)| *n == key).map(|(_, value)| value.as_bytes());
            assert_eq!(values.len(), keys);
            assert!((0..keys).all(|key| values.get(key) == expected(key)));
            assert!(values.iter().eq((0..keys).map(expected)));
        }
    }
}
