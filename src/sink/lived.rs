//! A sink for a value, and for the life of its entry.

use super::Sink;
use crate::layout::life::Life;
use std::mem::MaybeUninit;
use std::ops::Range;

/// Passes a value on to `sink`, and keeps the life of its entry. The outcome is whether the key was found.
#[derive(Debug, Default)]
pub(crate) struct LivedSink<S> {
    pub sink: S,
    /// The life of the entry that was looked at last, if it has one.
    pub life: Option<Life>,
}

/// A value in memory of its own, with the life of its entry.
pub(crate) type LivedValue = LivedSink<Vec<u8>>;

impl<S> LivedSink<S> {
    /// The value goes to `sink`.
    #[inline]
    pub fn new(sink: S) -> LivedSink<S> {
        LivedSink { sink, life: None }
    }
}

impl<S: Sink> Sink for LivedSink<S> {
    type Outcome = bool;
    const WANTS_LIFE: bool = true;
    const WANTS_BYTES: bool = S::WANTS_BYTES;

    #[inline]
    fn begin(&mut self, len: usize) -> bool {
        self.sink.begin(len)
    }

    #[inline]
    fn begin_part(&mut self, len: usize) -> Option<Range<usize>> {
        self.sink.begin_part(len)
    }

    #[inline]
    fn put(&mut self, bytes: &[u8]) {
        self.sink.put(bytes);
    }

    fn put_with(&mut self, len: usize, fill: impl FnMut(usize, &mut [MaybeUninit<u8>]) -> &mut [u8]) {
        self.sink.put_with(len, fill);
    }

    #[inline(always)]
    fn put_words<const N: usize>(&mut self, len: usize, word: impl Fn(usize) -> u64) {
        self.sink.put_words::<N>(len, word);
    }

    fn put_none(&mut self) {
        self.life = None;
        self.sink.put_none();
    }

    #[inline]
    fn put_life(&mut self, life: Option<Life>) {
        self.life = life;
        self.sink.put_life(life);
    }

    fn value_len(&self) -> usize {
        self.sink.value_len()
    }

    fn landed(&self) -> Option<&[u8]> {
        self.sink.landed()
    }

    fn as_vec(&mut self) -> Option<&mut Vec<u8>> {
        self.sink.as_vec()
    }

    fn outcome(&self, is_found: bool) -> bool {
        is_found
    }
}
