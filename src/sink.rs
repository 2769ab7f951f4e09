//! Where a value lands: a [`Sink`].
//!
//! | sink | takes | a GET into it comes to |
//! |---|---|---|
//! | `Vec<u8>` | every value; allocates only if it is too small | whether the key was found |
//! | [`SliceSink`] | values that fit memory of the caller's: a slice, registered memory, a buffer of another language | [`SliceOutcome`] |
//! | [`LengthSink`] | no bytes | the value's length |
//! | [`LifeSink`] | no bytes | the entry's life |
//!
//! While a GET looks, bytes of other values, or of parts of several, may come and go in a sink. They count
//! only when the GET says that the key was found. After a miss a vector is empty. After an error, and in a
//! slice after a miss, any bytes may be there.
//!
//! ```
//! use oneread::sink::{SliceOutcome, SliceSink};
//!
//! # use oneread::{Address, Client, Config, Server, ServerConfig, TableSize};
//! # let dir = tempfile::tempdir()?;
//! # let address = Address::Shm(dir.path().join("s"));
//! # let server = Server::start(ServerConfig::new(address.clone(), Config::new().size(TableSize::Keys(100))))?;
//! # let mut client = Client::connect(&address)?;
//! client.put(b"ACME", b"101.25")?;
//! let mut memory = [0; 8];
//! match client.get_into(b"ACME", &mut SliceSink::new(&mut memory))? {
//!     SliceOutcome::Value(len) => assert_eq!(&memory[..len], b"101.25"),
//!     SliceOutcome::TooLong(len) => println!("{len} bytes are needed"),
//!     SliceOutcome::Absent => println!("no such key"),
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#![allow(unsafe_code)]

mod any;
mod lived;

pub(crate) use any::AnySink;
pub(crate) use lived::{LivedSink, LivedValue};

use crate::layout::WORD;
use crate::layout::life::Life;
use std::mem::MaybeUninit;
use std::ops::Range;

/// Takes the bytes of one value. Each look at a key begins again.
pub trait Sink {
    /// What a GET into it comes to.
    type Outcome;
    /// Whether [`Sink::put_life`] is called. If not, a GET has no work with lives.
    const WANTS_LIFE: bool = false;
    /// Whether it takes any of a value's bytes. In a batch, a value that is not in its slot is else not READ.
    const WANTS_BYTES: bool = true;

    /// A value of this length begins: what was put before does not count any more. Returns whether its bytes
    /// are wanted. If so, all of them are put, in order.
    fn begin(&mut self, len: usize) -> bool;

    /// Begins a value whose bytes can be had in part. Returns which of them are put.
    #[inline]
    fn begin_part(&mut self, len: usize) -> Option<Range<usize>> {
        self.begin(len).then_some(0..len)
    }

    /// Puts the next bytes.
    fn put(&mut self, bytes: &[u8]);

    /// Puts the next `len` bytes, which `fill` writes: it is given memory, and where that begins among them,
    /// and returns the same memory with bytes in it. The memory is a multiple of 64 bytes, but for the last.
    fn put_with(&mut self, len: usize, fill: impl FnMut(usize, &mut [MaybeUninit<u8>]) -> &mut [u8]) {
        put_in_parts(self, len, fill);
    }

    /// A value of the first `len` bytes of these `N` words.
    ///
    /// # Panics
    /// When `len` is more than `N` words have.
    #[inline(always)]
    fn put_words<const N: usize>(&mut self, len: usize, word: impl Fn(usize) -> u64) {
        assert!(len <= N * WORD, "no more bytes than there are");
        if self.begin(len) {
            let words: [[u8; WORD]; N] = std::array::from_fn(|n| word(n).to_le_bytes());
            self.put(&words.as_flattened()[..len]);
        }
    }

    /// There is no value.
    fn put_none(&mut self);

    /// The life of the entry whose value, or part of it, comes next; `None` in a table whose entries have none.
    #[inline]
    fn put_life(&mut self, life: Option<Life>) {
        let _ = life;
    }

    /// The length of the value that began last, whether its bytes were wanted or not.
    fn value_len(&self) -> usize;

    /// The bytes that were put since a value began, where they can be looked at.
    fn landed(&self) -> Option<&[u8]>;

    /// The vector, if it is one: a value can then be decrypted where it has landed.
    #[doc(hidden)]
    fn as_vec(&mut self) -> Option<&mut Vec<u8>> {
        None
    }

    /// What a GET comes to that has found its key, or has not.
    fn outcome(&self, is_found: bool) -> Self::Outcome;
}

/// Whatever lands goes to the sink behind the reference.
impl<S: Sink> Sink for &mut S {
    type Outcome = S::Outcome;
    const WANTS_LIFE: bool = S::WANTS_LIFE;
    const WANTS_BYTES: bool = S::WANTS_BYTES;

    #[inline]
    fn begin(&mut self, len: usize) -> bool {
        S::begin(self, len)
    }

    #[inline]
    fn begin_part(&mut self, len: usize) -> Option<Range<usize>> {
        S::begin_part(self, len)
    }

    #[inline]
    fn put(&mut self, bytes: &[u8]) {
        S::put(self, bytes);
    }

    fn put_with(&mut self, len: usize, fill: impl FnMut(usize, &mut [MaybeUninit<u8>]) -> &mut [u8]) {
        S::put_with(self, len, fill);
    }

    #[inline(always)]
    fn put_words<const N: usize>(&mut self, len: usize, word: impl Fn(usize) -> u64) {
        S::put_words::<N>(self, len, word);
    }

    #[inline]
    fn put_none(&mut self) {
        S::put_none(self);
    }

    #[inline]
    fn put_life(&mut self, life: Option<Life>) {
        S::put_life(self, life);
    }

    #[inline]
    fn value_len(&self) -> usize {
        S::value_len(self)
    }

    fn landed(&self) -> Option<&[u8]> {
        S::landed(self)
    }

    fn as_vec(&mut self) -> Option<&mut Vec<u8>> {
        S::as_vec(self)
    }

    #[inline]
    fn outcome(&self, is_found: bool) -> S::Outcome {
        S::outcome(self, is_found)
    }
}

/// [`Sink::put_with`] for a sink that has no memory of its own for all of it.
pub(crate) fn put_in_parts<S: Sink + ?Sized>(
    sink: &mut S,
    len: usize,
    mut fill: impl FnMut(usize, &mut [MaybeUninit<u8>]) -> &mut [u8],
) {
    let mut memory = [MaybeUninit::uninit(); 4096];
    for at in (0..len).step_by(memory.len()) {
        let part = (len - at).min(memory.len());
        let filled: &[u8] = fill(at, &mut memory[..part]);
        sink.put(filled);
    }
}

/// The contents are replaced. The outcome is whether the key was found.
impl Sink for Vec<u8> {
    type Outcome = bool;

    #[inline]
    fn begin(&mut self, len: usize) -> bool {
        self.clear();
        self.reserve(len);
        true
    }

    #[inline]
    fn put(&mut self, bytes: &[u8]) {
        self.extend_from_slice(bytes);
    }

    fn put_with(&mut self, len: usize, mut fill: impl FnMut(usize, &mut [MaybeUninit<u8>]) -> &mut [u8]) {
        self.reserve(len);
        let before = self.len();
        fill_all(&mut self.spare_capacity_mut()[..len], |memory| fill(0, memory));
        // SAFETY: so much was reserved, and `fill_all` has checked that all of it was written.
        unsafe { self.set_len(before + len) };
    }

    #[inline(always)]
    fn put_words<const N: usize>(&mut self, len: usize, word: impl Fn(usize) -> u64) {
        put_words_at::<N>(self, 0, len, word);
    }

    #[inline]
    fn put_none(&mut self) {
        self.clear();
    }

    #[inline]
    fn value_len(&self) -> usize {
        self.len()
    }

    #[inline]
    fn landed(&self) -> Option<&[u8]> {
        Some(self)
    }

    fn as_vec(&mut self) -> Option<&mut Vec<u8>> {
        Some(self)
    }

    #[inline(always)]
    fn outcome(&self, is_found: bool) -> bool {
        is_found
    }
}

/// Replaces what is in `out` from byte `start` on with the first `len` bytes of `N` words. Copies all the words:
/// that is quicker than to copy a length known at run time.
///
/// # Panics
/// When there are no bytes up to `start`, or `len` is more than `N` words have.
#[inline(always)]
fn put_words_at<const N: usize>(out: &mut Vec<u8>, start: usize, len: usize, word: impl Fn(usize) -> u64) {
    assert!(len <= N * WORD, "no more bytes than there are");
    assert!(start <= out.len(), "the bytes before are there");
    if out.capacity() - start < N * WORD {
        make_room(out, start, N * WORD);
    }
    // SAFETY: `start` is no more than the vector's capacity.
    let to = unsafe { out.as_mut_ptr().add(start) }.cast::<[u8; WORD]>();
    for n in 0..N {
        // SAFETY: the vector has memory for `N` words from `start` on, and nobody else refers to it.
        unsafe { to.add(n).write(word(n).to_le_bytes()) };
    }
    // SAFETY: the bytes before `start` were there, and `len` bytes from it on, or more, were written.
    unsafe { out.set_len(start + len) };
}

#[cold]
#[inline(never)]
fn make_room(out: &mut Vec<u8>, start: usize, bytes: usize) {
    out.truncate(start);
    out.reserve(bytes);
    assert!(out.len() == start && out.capacity() - start >= bytes, "room was made");
}

/// Values one behind the other, in one vector: the one that landed last can be kept. The outcome is whether the key
/// was found.
#[derive(Clone, Debug, Default)]
pub(crate) struct TailSink {
    bytes: Vec<u8>,
    /// How many of them are kept: where each value begins.
    kept: usize,
}

impl TailSink {
    /// No values.
    pub const fn new() -> TailSink {
        TailSink { bytes: Vec::new(), kept: 0 }
    }

    /// All bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Keeps no value, but the memory.
    pub fn clear(&mut self) {
        self.bytes.clear();
        self.kept = 0;
    }

    /// Keeps the value that landed last. Returns where it is among the bytes.
    #[inline(always)]
    pub fn keep(&mut self) -> Range<usize> {
        let value = self.kept..self.bytes.len();
        self.kept = value.end;
        value
    }
}

impl Sink for TailSink {
    type Outcome = bool;

    #[inline]
    fn begin(&mut self, len: usize) -> bool {
        self.bytes.truncate(self.kept);
        self.bytes.reserve(len);
        true
    }

    #[inline]
    fn put(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    fn put_with(&mut self, len: usize, fill: impl FnMut(usize, &mut [MaybeUninit<u8>]) -> &mut [u8]) {
        self.bytes.put_with(len, fill);
    }

    #[inline(always)]
    fn put_words<const N: usize>(&mut self, len: usize, word: impl Fn(usize) -> u64) {
        put_words_at::<N>(&mut self.bytes, self.kept, len, word);
    }

    #[inline]
    fn put_none(&mut self) {
        self.bytes.truncate(self.kept);
    }

    fn value_len(&self) -> usize {
        self.bytes.len() - self.kept
    }

    fn landed(&self) -> Option<&[u8]> {
        Some(&self.bytes[self.kept..])
    }

    fn outcome(&self, is_found: bool) -> bool {
        is_found
    }
}

/// Compares the first bytes with a key, and passes what is behind it on to a sink in which a value has begun.
pub(crate) struct KeySink<'a, S> {
    /// What is still to come of the key.
    key: &'a [u8],
    is_its: bool,
    value: &'a mut S,
}

impl<'a, S: Sink> KeySink<'a, S> {
    pub fn new(key: &'a [u8], value: &'a mut S) -> KeySink<'a, S> {
        KeySink { key, is_its: true, value }
    }

    /// Whether the key has come, all of it, and no other.
    pub fn is_its(&self) -> bool {
        self.is_its && self.key.is_empty()
    }
}

impl<S: Sink> Sink for KeySink<'_, S> {
    type Outcome = bool;

    fn begin(&mut self, len: usize) -> bool {
        self.value.begin(len)
    }

    fn put(&mut self, bytes: &[u8]) {
        let (now, later) = self.key.split_at(self.key.len().min(bytes.len()));
        let (key, value) = bytes.split_at(now.len());
        self.is_its &= key == now;
        self.key = later;
        if !value.is_empty() {
            self.value.put(value);
        }
    }

    fn put_with(&mut self, len: usize, mut fill: impl FnMut(usize, &mut [MaybeUninit<u8>]) -> &mut [u8]) {
        // The key is somewhere in this. The bytes behind it land where the value is to be, without a copy between.
        const KEY_AND_LINE: usize = 320;
        let mut memory = [MaybeUninit::uninit(); KEY_AND_LINE];
        let first = if self.key.is_empty() { 0 } else { len.min(KEY_AND_LINE) };
        if first > 0 {
            let filled: &[u8] = fill(0, &mut memory[..first]);
            self.put(filled);
        }
        if len > first {
            self.value.put_with(len - first, |at, memory| fill(first + at, memory));
        }
    }

    fn put_none(&mut self) {
        self.value.put_none();
    }

    fn value_len(&self) -> usize {
        self.value.value_len()
    }

    fn landed(&self) -> Option<&[u8]> {
        self.value.landed()
    }

    fn outcome(&self, _is_found: bool) -> bool {
        self.is_its()
    }
}

/// Lets `fill` write all of this memory.
///
/// # Panics
/// When it returns other memory, or not all of it.
fn fill_all(memory: &mut [MaybeUninit<u8>], fill: impl FnOnce(&mut [MaybeUninit<u8>]) -> &mut [u8]) {
    let (start, len) = (memory.as_ptr().cast::<u8>(), memory.len());
    let filled = fill(memory);
    assert!(std::ptr::eq(filled.as_ptr(), start) && filled.len() == len, "the memory that was given, filled");
}

/// What a GET into memory of the caller's came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum SliceOutcome {
    /// The key is absent.
    Absent,
    /// The value has this length. Its bytes are at the beginning of the memory.
    Value(usize),
    /// The value has this length, and the memory less. No byte in it counts.
    TooLong(usize),
}

/// Memory of the caller's. A value that is longer does not land in it.
#[derive(Debug)]
pub struct SliceSink<'a> {
    /// The first `at` bytes of it are initialized.
    memory: &'a mut [MaybeUninit<u8>],
    at: usize,
    /// The length of the value that began last.
    len: usize,
}

impl<'a> SliceSink<'a> {
    /// Values land in `memory`.
    pub fn new(memory: &'a mut [u8]) -> SliceSink<'a> {
        let (start, len) = (memory.as_mut_ptr().cast(), memory.len());
        // SAFETY:
        // * it is the memory of the slice, which nobody else uses for `'a`;
        // * only initialized bytes are written into it, so it remains a slice of bytes.
        SliceSink::uninit(unsafe { std::slice::from_raw_parts_mut(start, len) })
    }

    /// Values land in `memory`, which need not be initialized.
    pub fn uninit(memory: &'a mut [MaybeUninit<u8>]) -> SliceSink<'a> {
        SliceSink { memory, at: 0, len: 0 }
    }

    /// Values land in the `len` bytes at `start`: memory that a device or another language knows, too.
    ///
    /// # Safety
    /// For as long as `'a`, these bytes can be written, and nobody else reads or writes them.
    pub unsafe fn from_raw(start: *mut u8, len: usize) -> SliceSink<'a> {
        // SAFETY: the caller has said that the memory is there, and nobody else's; it need not be initialized.
        SliceSink::uninit(unsafe { std::slice::from_raw_parts_mut(start.cast(), len) })
    }

    /// The bytes of the value that landed last. Empty if it did not fit. They count only if the GET has said
    /// that the key was found.
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: the first `at` bytes are initialized.
        unsafe { std::slice::from_raw_parts(self.memory.as_ptr().cast(), self.at) }
    }
}

impl Sink for SliceSink<'_> {
    type Outcome = SliceOutcome;

    #[inline]
    fn begin(&mut self, len: usize) -> bool {
        (self.at, self.len) = (0, len);
        len <= self.memory.len()
    }

    #[inline]
    fn put(&mut self, bytes: &[u8]) {
        let to = &mut self.memory[self.at..][..bytes.len()];
        to.iter_mut().zip(bytes).for_each(|(to, &byte)| *to = MaybeUninit::new(byte));
        self.at += bytes.len();
    }

    fn put_with(&mut self, len: usize, mut fill: impl FnMut(usize, &mut [MaybeUninit<u8>]) -> &mut [u8]) {
        fill_all(&mut self.memory[self.at..][..len], |memory| fill(0, memory));
        self.at += len;
    }

    fn put_none(&mut self) {
        (self.at, self.len) = (0, 0);
    }

    fn value_len(&self) -> usize {
        self.len
    }

    fn landed(&self) -> Option<&[u8]> {
        Some(self.bytes())
    }

    fn outcome(&self, is_found: bool) -> SliceOutcome {
        match is_found {
            false => SliceOutcome::Absent,
            true if self.len <= self.memory.len() => SliceOutcome::Value(self.len),
            true => SliceOutcome::TooLong(self.len),
        }
    }
}

/// Takes a value's length only. A value that is not in its slot is not READ. The outcome is the length, and
/// `None` if the key is absent.
#[derive(Clone, Copy, Debug, Default)]
pub struct LengthSink(usize);

impl Sink for LengthSink {
    type Outcome = Option<usize>;
    const WANTS_BYTES: bool = false;

    #[inline]
    fn begin(&mut self, len: usize) -> bool {
        self.0 = len;
        false
    }

    fn put(&mut self, _bytes: &[u8]) {}

    fn put_none(&mut self) {
        self.0 = 0;
    }

    fn value_len(&self) -> usize {
        self.0
    }

    fn landed(&self) -> Option<&[u8]> {
        None
    }

    fn outcome(&self, is_found: bool) -> Option<usize> {
        is_found.then_some(self.0)
    }
}

/// Takes the life of an entry only. A value that is not in its slot is not READ. The outcome is `None` if the key is
/// absent, and otherwise the life, if entries have one.
#[derive(Clone, Copy, Debug, Default)]
pub struct LifeSink(Option<Life>);

impl LifeSink {
    /// The life of the entry that was looked at last.
    #[inline]
    pub fn life(&self) -> Option<Life> {
        self.0
    }
}

impl Sink for LifeSink {
    type Outcome = Option<Option<Life>>;
    const WANTS_LIFE: bool = true;
    const WANTS_BYTES: bool = false;

    #[inline]
    fn begin(&mut self, _len: usize) -> bool {
        false
    }

    fn put(&mut self, _bytes: &[u8]) {}

    fn put_none(&mut self) {
        self.0 = None;
    }

    #[inline]
    fn put_life(&mut self, life: Option<Life>) {
        self.0 = life;
    }

    fn value_len(&self) -> usize {
        0
    }

    fn landed(&self) -> Option<&[u8]> {
        None
    }

    fn outcome(&self, is_found: bool) -> Option<Option<Life>> {
        is_found.then_some(self.0)
    }
}

/// Some bytes of a value, for another sink. The outcome is the length of the whole value.
pub(crate) struct PartSink<'a, S> {
    sink: &'a mut S,
    range: Range<usize>,
    len: usize,
    /// The number of the next byte that is put.
    at: usize,
}

impl<'a, S: Sink> PartSink<'a, S> {
    /// These bytes, as far as the value has them.
    pub fn new(range: Range<usize>, sink: &'a mut S) -> PartSink<'a, S> {
        PartSink { sink, range, len: 0, at: 0 }
    }

    /// Which bytes of a value of this length.
    fn range_of(&self, len: usize) -> Range<usize> {
        let start = self.range.start.min(len);
        start..self.range.end.clamp(start, len)
    }
}

impl<S: Sink> Sink for PartSink<'_, S> {
    type Outcome = Option<usize>;

    fn begin(&mut self, len: usize) -> bool {
        (self.len, self.at) = (len, 0);
        self.sink.begin(self.range_of(len).len())
    }

    fn begin_part(&mut self, len: usize) -> Option<Range<usize>> {
        let range = self.range_of(len);
        self.begin(len).then(|| {
            self.at = range.start;
            range
        })
    }

    fn put(&mut self, bytes: &[u8]) {
        let range = self.range_of(self.len);
        let within = |number: usize| number.saturating_sub(self.at).min(bytes.len());
        self.sink.put(&bytes[within(range.start)..within(range.end)]);
        self.at += bytes.len();
    }

    fn put_with(&mut self, len: usize, fill: impl FnMut(usize, &mut [MaybeUninit<u8>]) -> &mut [u8]) {
        let range = self.range_of(self.len);
        assert!(range.start <= self.at && self.at + len <= range.end, "bytes that are wanted");
        self.sink.put_with(len, fill);
        self.at += len;
    }

    fn put_none(&mut self) {
        self.len = 0;
        self.sink.put_none();
    }

    fn value_len(&self) -> usize {
        self.len
    }

    fn landed(&self) -> Option<&[u8]> {
        self.sink.landed()
    }

    fn outcome(&self, is_found: bool) -> Option<usize> {
        is_found.then_some(self.len)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// Puts a value in pieces, in each of the ways that there are.
    fn put<S: Sink>(sink: &mut S, value: &[u8]) -> S::Outcome {
        if sink.begin(value.len()) {
            let (begin, end) = value.split_at(value.len() / 3);
            sink.put(begin);
            sink.put(end);
        }
        sink.outcome(true)
    }

    fn put_at_once<S: Sink>(sink: &mut S, value: &[u8]) -> S::Outcome {
        if let Some(range) = sink.begin_part(value.len()) {
            let value = &value[range];
            sink.put_with(value.len(), |at, memory| {
                let len = memory.len();
                let mut part = SliceSink::uninit(memory);
                part.put(&value[at..][..len]);
                // SAFETY: all of it has just been written.
                unsafe { std::slice::from_raw_parts_mut(part.memory.as_mut_ptr().cast(), len) }
            });
        }
        sink.outcome(true)
    }

    /// Values of every length about that of the memory. What does not fit says its length, and leaves no byte.
    #[test]
    fn slices_take_what_fits() {
        let value: Vec<u8> = (1..=100).collect();
        for len in 0..=100 {
            for room in [0, 1, 7, 8, 50, 100] {
                let mut memory = vec![0; room];
                for at_once in [false, true] {
                    let (value, fits) = (&value[..len], len <= room);
                    let mut sink = SliceSink::new(&mut memory);
                    let filled = if at_once { put_at_once(&mut sink, value) } else { put(&mut sink, value) };
                    assert_eq!(
                        filled,
                        if fits { SliceOutcome::Value(len) } else { SliceOutcome::TooLong(len) }
                    );
                    assert_eq!(sink.bytes(), if fits { value } else { &[] });
                    sink.put_none();
                    assert_eq!(sink.outcome(false), SliceOutcome::Absent);
                }
            }
        }
    }

    /// The words of a value go to each sink as its bytes would.
    #[test]
    fn words_are_bytes() {
        let word = |n: usize| u64::from_le_bytes(std::array::from_fn(|byte| (8 * n + byte) as u8));
        let bytes: Vec<u8> = (0..32).collect();
        for len in 0..=32 {
            let (mut memory, mut vec, mut length) = ([0xff; 32], vec![9; 3], LengthSink::default());
            let mut slice = SliceSink::new(&mut memory);
            let mut tail = TailSink::new();
            tail.put(b"kept");
            assert_eq!(tail.keep(), 0..4);
            slice.put_words::<4>(len, word);
            vec.put_words::<4>(len, word);
            length.put_words::<4>(len, word);
            // What is not kept is replaced.
            tail.put(b"another value");
            tail.put_words::<4>(len, word);
            assert_eq!((slice.bytes(), &vec[..]), (&bytes[..len], &bytes[..len]));
            assert_eq!((tail.landed(), tail.value_len()), (Some(&bytes[..len]), len));
            assert_eq!((tail.keep(), &tail.bytes()[..4]), (4..4 + len, &b"kept"[..]));
            assert_eq!(length.outcome(true), Some(len));
        }
    }

    /// A value and the life of its entry land together. After a miss there is neither.
    #[test]
    fn lives_stay_beside_values() {
        let (value, life) = (b"a value of some bytes", Life { number: 7, owner: 3, expiry: 9 });
        let mut parted = Vec::new();
        let mut part = PartSink::new(2..7, &mut parted);
        let mut lived = LivedSink::new(&mut part);
        lived.put_life(Some(life));
        assert!(put(&mut lived, value));
        assert_eq!(
            (lived.life, lived.value_len(), lived.landed()),
            (Some(life), value.len(), Some(&value[2..7]))
        );
        lived.put_none();
        assert_eq!((lived.life, lived.value_len()), (None, 0));
        let (mut own, mut length) = (LivedValue::default(), LivedSink::new(LengthSink::default()));
        for at_once in [false, true] {
            own.put_life(Some(life));
            assert!(if at_once { put_at_once(&mut own, value) } else { put(&mut own, value) });
            assert_eq!((&own.sink[..], own.life), (&value[..], Some(life)));
            own.put_none();
            assert_eq!((own.landed(), own.life), (Some(&[][..]), None));
        }
        // A sink that wants no bytes is brought none, whatever stands around it.
        fn wants<S: Sink>(_: &S) -> [bool; 2] {
            [S::WANTS_BYTES, S::WANTS_LIFE]
        }
        assert_eq!(
            [wants(&own), wants(&length), wants(&&mut length)],
            [[true, true], [false, true], [false, true]]
        );
        assert!(put(&mut length, value) && length.sink.outcome(true) == Some(value.len()));
    }

    /// A part of a value, put whole or only in part, is the part.
    #[test]
    fn parts_of_values() {
        let value: Vec<u8> = (1..=60).collect();
        for len in [0, 1, 30, 60] {
            for (start, end) in (0..62).flat_map(|start| [0, 1, 20, 60, 99].map(|more| (start, start + more)))
            {
                let expected = &value[start.min(len)..end.min(len)];
                let mut got = vec![7; 5];
                assert_eq!(put(&mut PartSink::new(start..end, &mut got), &value[..len]), Some(len));
                assert_eq!(got, expected, "{start}..{end} of {len}");
                assert_eq!(put_at_once(&mut PartSink::new(start..end, &mut got), &value[..len]), Some(len));
                assert_eq!(got, expected, "{start}..{end} of {len}");
            }
        }
    }
}
