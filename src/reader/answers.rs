//! Where the answers of a batch go.

use crate::layout::life::Life;
use crate::outcome::KeyLengthError;
use crate::sink::{LengthSink, Sink};
use std::ops::ControlFlow;

/// The outcome of one key of a batch: its value as it is stored, `None` if it is absent, or that the
/// table cannot hold it.
pub type StoredAnswer<'a> = Result<Option<&'a [u8]>, KeyLengthError>;

/// Takes the answers of a batch, each with the key's number, until it breaks off.
pub(crate) trait Answers {
    /// Takes the values that are found by loads.
    type Sink: Sink;

    /// Where the value of the next key lands.
    fn sink(&mut self) -> &mut Self::Sink;

    /// The key has the value that landed last, or is absent.
    fn landed(&mut self, number: usize, is_there: bool) -> ControlFlow<()>;

    /// The answers that follow are of the table with this number ([`Geometry::generation`](crate::layout::Geometry)).
    fn of_table(&mut self, table: u64) {
        let _ = table;
    }

    /// The life of the entry whose value comes as the next answer, if the table's entries have one.
    fn put_life(&mut self, life: Option<Life>) {
        let _ = life;
    }

    /// The key has this answer.
    fn answer(&mut self, number: usize, answer: StoredAnswer<'_>) -> ControlFlow<()>;
}

/// A value that a batch has found, in memory of the batch.
pub(super) struct FoundValue<'v, M> {
    pub value: &'v [u8],
    pub life: Option<Life>,
    /// Of the pass that has found it.
    pub mark: Option<M>,
}

/// Hands each answer to a function.
pub(crate) struct Called<E> {
    value: Vec<u8>,
    each: E,
}

impl<E: FnMut(usize, StoredAnswer<'_>) -> ControlFlow<()>> Called<E> {
    /// Values land in `value`, which may have memory.
    #[inline]
    pub fn new(value: Vec<u8>, each: E) -> Called<E> {
        Called { value, each }
    }

    /// The memory in which values landed.
    #[inline]
    pub fn into_memory(self) -> Vec<u8> {
        self.value
    }
}

impl<E: FnMut(usize, StoredAnswer<'_>) -> ControlFlow<()>> Answers for Called<E> {
    type Sink = Vec<u8>;

    #[inline(always)]
    fn sink(&mut self) -> &mut Vec<u8> {
        &mut self.value
    }

    #[inline(always)]
    fn landed(&mut self, number: usize, is_there: bool) -> ControlFlow<()> {
        (self.each)(number, Ok(is_there.then_some(&self.value)))
    }

    #[inline]
    fn answer(&mut self, number: usize, answer: StoredAnswer<'_>) -> ControlFlow<()> {
        (self.each)(number, answer)
    }
}

/// Which keys of a batch are present. Their values' bytes are not wanted.
pub(crate) struct Present<'a> {
    bits: &'a mut [u64],
    length: LengthSink,
}

impl<'a> Present<'a> {
    /// Sets the bits of those that are, from the lowest bit of the first word on.
    pub fn new(bits: &'a mut [u64]) -> Present<'a> {
        Present { bits, length: LengthSink::default() }
    }
}

impl Answers for Present<'_> {
    type Sink = LengthSink;

    #[inline(always)]
    fn sink(&mut self) -> &mut LengthSink {
        &mut self.length
    }

    #[inline(always)]
    fn landed(&mut self, number: usize, is_there: bool) -> ControlFlow<()> {
        self.bits[number / 64] |= u64::from(is_there) << (number % 64);
        ControlFlow::Continue(())
    }

    fn answer(&mut self, number: usize, answer: StoredAnswer<'_>) -> ControlFlow<()> {
        self.landed(number, answer.is_ok_and(|value| value.is_some()))
    }
}

/// Notes the number of each key that is found.
pub(crate) struct Noting<'a, A, N> {
    pub answers: &'a mut A,
    pub note: N,
}

impl<A: Answers, N: FnMut(usize)> Answers for Noting<'_, A, N> {
    type Sink = A::Sink;

    #[inline(always)]
    fn sink(&mut self) -> &mut A::Sink {
        self.answers.sink()
    }

    #[inline(always)]
    fn landed(&mut self, number: usize, is_there: bool) -> ControlFlow<()> {
        if is_there {
            (self.note)(number);
        }
        self.answers.landed(number, is_there)
    }

    fn of_table(&mut self, table: u64) {
        self.answers.of_table(table);
    }

    fn put_life(&mut self, life: Option<Life>) {
        self.answers.put_life(life);
    }

    #[inline]
    fn answer(&mut self, number: usize, answer: StoredAnswer<'_>) -> ControlFlow<()> {
        if matches!(answer, Ok(Some(_))) {
            (self.note)(number);
        }
        self.answers.answer(number, answer)
    }
}
