//! The values of a batch, in one buffer.

use crate::outcome::KeyError;
use std::ops::Range;

/// The values of many keys, in the order of the keys. Use one again and again: it keeps its memory.
#[derive(Clone, Debug, Default)]
pub struct Values {
    bytes: Vec<u8>,
    /// Where each key's value is among the bytes. `None` for an absent key.
    spans: Vec<Option<Range<usize>>>,
    refused: Vec<(usize, KeyError)>,
}

impl Values {
    /// No values.
    pub const fn new() -> Values {
        Values { bytes: Vec::new(), spans: Vec::new(), refused: Vec::new() }
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
        self.spans[key].clone().map(|span| &self.bytes[span])
    }

    /// The value of each key, in order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = Option<&[u8]>> {
        self.spans.iter().map(|span| span.clone().map(|span| &self.bytes[span]))
    }

    /// The numbers of the keys without an outcome, and why: the table cannot hold such a key, or with
    /// encryption its value does not decrypt.
    pub fn refused(&self) -> &[(usize, KeyError)] {
        &self.refused
    }

    /// So many keys, all absent.
    pub(crate) fn reset(&mut self, keys: usize) {
        self.bytes.clear();
        self.spans.clear();
        self.spans.resize(keys, None);
        self.refused.clear();
    }

    /// Sets the outcome of key number `key`.
    #[inline(always)]
    pub(crate) fn set(&mut self, key: usize, answer: Result<Option<&[u8]>, KeyError>) {
        match answer {
            Ok(value) => {
                self.spans[key] = value.map(|value| {
                    let start = self.bytes.len();
                    self.bytes.extend_from_slice(value);
                    start..self.bytes.len()
                });
            }
            Err(error) => self.refused.push((key, error)),
        }
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
