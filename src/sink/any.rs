//! A sink whose type is not known where values land.

use super::Sink;
use crate::layout::life::Life;
use std::mem::MaybeUninit;
use std::ops::Range;

/// Writes the bytes from this one on into memory, as [`Sink::put_with`] has it.
type Fill<'f> = dyn FnMut(usize, &mut [MaybeUninit<u8>]) -> &mut [u8] + 'f;

/// What [`AnySink`] calls: a [`Sink`] without what a pointer cannot have.
trait Land {
    fn wants_life(&self) -> bool;
    fn wants_bytes(&self) -> bool;
    fn begin(&mut self, len: usize) -> bool;
    fn begin_part(&mut self, len: usize) -> Option<Range<usize>>;
    fn put(&mut self, bytes: &[u8]);
    fn put_with(&mut self, len: usize, fill: &mut Fill<'_>);
    fn put_none(&mut self);
    fn put_life(&mut self, life: Option<Life>);
    fn value_len(&self) -> usize;
    fn landed(&self) -> Option<&[u8]>;
}

impl<S: Sink> Land for S {
    fn wants_life(&self) -> bool {
        S::WANTS_LIFE
    }

    fn wants_bytes(&self) -> bool {
        S::WANTS_BYTES
    }

    fn begin(&mut self, len: usize) -> bool {
        Sink::begin(self, len)
    }

    fn begin_part(&mut self, len: usize) -> Option<Range<usize>> {
        Sink::begin_part(self, len)
    }

    fn put(&mut self, bytes: &[u8]) {
        Sink::put(self, bytes);
    }

    fn put_with(&mut self, len: usize, fill: &mut Fill<'_>) {
        Sink::put_with(self, len, fill);
    }

    fn put_none(&mut self) {
        Sink::put_none(self);
    }

    fn put_life(&mut self, life: Option<Life>) {
        Sink::put_life(self, life);
    }

    fn value_len(&self) -> usize {
        Sink::value_len(self)
    }

    fn landed(&self) -> Option<&[u8]> {
        Sink::landed(self)
    }
}

/// A sink of any type, behind a pointer. What waits for READs or replies takes it: it is compiled once, and not for
/// each type, and a call through a pointer is nothing beside a READ. The outcome is whether the key was found.
pub(crate) struct AnySink<'a>(&'a mut dyn Land);

impl<'a> AnySink<'a> {
    /// Values land in `sink`.
    #[inline]
    pub fn of<S: Sink>(sink: &'a mut S) -> AnySink<'a> {
        AnySink(sink)
    }

    /// [`Sink::WANTS_LIFE`] of that one.
    pub fn wants_life(&self) -> bool {
        self.0.wants_life()
    }

    /// [`Sink::WANTS_BYTES`] of that one.
    pub fn wants_bytes(&self) -> bool {
        self.0.wants_bytes()
    }
}

impl Sink for AnySink<'_> {
    type Outcome = bool;
    const WANTS_LIFE: bool = true;

    fn begin(&mut self, len: usize) -> bool {
        self.0.begin(len)
    }

    fn begin_part(&mut self, len: usize) -> Option<Range<usize>> {
        self.0.begin_part(len)
    }

    fn put(&mut self, bytes: &[u8]) {
        self.0.put(bytes);
    }

    fn put_with(&mut self, len: usize, mut fill: impl FnMut(usize, &mut [MaybeUninit<u8>]) -> &mut [u8]) {
        self.0.put_with(len, &mut fill);
    }

    fn put_none(&mut self) {
        self.0.put_none();
    }

    fn put_life(&mut self, life: Option<Life>) {
        self.0.put_life(life);
    }

    fn value_len(&self) -> usize {
        self.0.value_len()
    }

    fn landed(&self) -> Option<&[u8]> {
        self.0.landed()
    }

    fn outcome(&self, is_found: bool) -> bool {
        is_found
    }
}
