//! GETs by request. A worker looks keys up as every client on shm does, without locks. It writes what it finds into the
//! reply.

use super::shared::ServerState;
use crate::fabric::shm::Shm;
use crate::layout::extent::Reference;
use crate::outcome::{KeyLengthError, ReadError};
use crate::reader::{Answers, Noting, Present, Reader, StoredAnswer};
use crate::wire::{self, GetsRequest, GotWriter};
use smallvec::SmallVec;
use std::ops::ControlFlow;

/// Appends the reply to `out`.
pub(super) fn answer(shared: &ServerState, id: u64, request: &GetsRequest<'_>, out: &mut Vec<u8>) {
    let keys: SmallVec<[&[u8]; 64]> = request.keys().collect();
    let wants = request.wants;
    if wants.bits {
        let mut bits: SmallVec<[u64; 4]> = SmallVec::from_elem(0, keys.len().div_ceil(64));
        return match look(shared, &keys, &mut Present::new(&mut bits)) {
            Ok(()) => wire::encode_bits(out, id, &bits),
            Err(error) => GotWriter::<false>::new(out, id, wants).fail(id, &error),
        };
    }
    match wants.lives {
        false => write(shared, id, &keys, GotWriter::<false>::new(out, id, wants)),
        true => write(shared, id, &keys, GotWriter::<true>::new(out, id, wants)),
    }
}

fn write<const LIVES: bool>(shared: &ServerState, id: u64, keys: &[&[u8]], writer: GotWriter<'_, LIVES>) {
    let mut entries = Entries(writer);
    match look(shared, keys, &mut entries) {
        Ok(()) => entries.0.finish(),
        Err(error) => entries.0.fail(id, &error),
    }
}

/// Looks up all keys until there is no room. In a table that evicts, notes the keys that it finds, as clients on shm
/// do.
fn look(
    shared: &ServerState,
    keys: &[&[u8]],
    answers: &mut (impl Answers + TakesReference),
) -> Result<(), ReadError> {
    let index = &shared.index;
    let mut reader = index.reader();
    let looked = match index.touches() {
        None => look_for(&mut reader, keys, answers),
        Some(_) => {
            let note = |number: usize| index.note_read(keys[number]);
            look_for(&mut reader, keys, &mut Noting { answers, note })
        }
    };
    shared.count_gets(reader.stats());
    looked
}

/// Looks up all keys at once, in order and with overlapping loads. Then looks up those that were not found at once, one
/// by one.
fn look_for(
    reader: &mut Reader<'_, Shm<'_>>,
    keys: &[&[u8]],
    answers: &mut (impl Answers + TakesReference),
) -> Result<(), ReadError> {
    let ControlFlow::Continue(left) = reader.look_for_each(keys, answers) else { return Ok(()) };
    for number in left {
        let flow = match reader.get_with_extent(keys[number], answers.sink()) {
            Ok(found) => answers.landed_at(number, found),
            Err(ReadError::KeyLength { given, max }) => {
                answers.answer(number, Err(KeyLengthError { given, max }))
            }
            Err(error) => return Err(error),
        };
        if flow.is_break() {
            break;
        }
    }
    Ok(())
}

/// A sink that also takes the reference to a value that is not in its slot.
trait TakesReference {
    fn landed_at(&mut self, number: usize, found: Option<Option<Reference>>) -> ControlFlow<()>;
}

fn flow(has_room: bool) -> ControlFlow<()> {
    if has_room { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
}

impl<A: TakesReference, N: FnMut(usize)> TakesReference for Noting<'_, A, N> {
    fn landed_at(&mut self, number: usize, found: Option<Option<Reference>>) -> ControlFlow<()> {
        if found.is_some() {
            (self.note)(number);
        }
        self.answers.landed_at(number, found)
    }
}

/// Entries with values.
struct Entries<'a, const LIVES: bool>(GotWriter<'a, LIVES>);

impl<const LIVES: bool> TakesReference for Entries<'_, LIVES> {
    fn landed_at(&mut self, number: usize, found: Option<Option<Reference>>) -> ControlFlow<()> {
        flow(self.0.end_entry(number, found))
    }
}

impl<'a, const LIVES: bool> Answers for Entries<'a, LIVES> {
    type Sink = GotWriter<'a, LIVES>;

    #[inline(always)]
    fn sink(&mut self) -> &mut GotWriter<'a, LIVES> {
        &mut self.0
    }

    #[inline(always)]
    fn landed(&mut self, number: usize, is_there: bool) -> ControlFlow<()> {
        flow(self.0.end_entry(number, is_there.then_some(None)))
    }

    fn answer(&mut self, number: usize, answer: StoredAnswer<'_>) -> ControlFlow<()> {
        match answer {
            Err(KeyLengthError { max, .. }) => flow(self.0.no_key(number, max)),
            // All values land in the sink.
            Ok(_) => ControlFlow::Continue(()),
        }
    }
}

impl TakesReference for Present<'_> {
    fn landed_at(&mut self, number: usize, found: Option<Option<Reference>>) -> ControlFlow<()> {
        self.landed(number, found.is_some())
    }
}
