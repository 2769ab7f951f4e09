//! The direct look: a GET's first pass, on a fabric whose READs are loads.
//!
//! It ends in a hit, a miss, or in neither. Then the GET machine ([`Get`](crate::get::Get)) starts
//! from the beginning. The machine has the whole algorithm. This is the part of it that most GETs
//! need, on memory that can be loaded word by word:
//!
//! ```text
//! counter of begun moves for the key's home
//! each slot of the primary window:  the word in which the key ends differs   -> not here (G8)
//!                                   the same, and the slot is at rest        -> Found, if it holds the key
//! home's filter names the key?      the same with its next window, and so on
//! counter unchanged                                                          -> Absent (G6)
//! ```
//!
//! In a table that grows, the directory entry comes after the counter. Where it names a pair, it is loaded again
//! before the counter is (E8). Where the home has gone to the other segment, that is looked at first, for a hit (G9);
//! without one the machine goes on.
//!
//! [`glance`] does this for the primary window alone, where slots are one line. It answers nearly every
//! GET. Where it has no answer, [`look`] starts again.
//!
//! Out of cache, time goes in steps: a GET takes half as long where the instructions up to the next
//! one's loads fit into the processor's reorder buffer, some 300 of them (`docs/BENCHMARKS.md`). So
//! [`get`] is a function of its own: the less it has to keep for others, the fewer it takes.

use super::ReadCounts;
use crate::faults::{Rule, broken, kept};
use crate::get::Proof;
use crate::layout::WORD;
use crate::layout::chain::CHAIN_MAX;
use crate::layout::compare::{self, KeyEnd, Lines, Loadable};
use crate::layout::control::{DIRECTORY_LINE, move_counter_line};
use crate::layout::geometry::Geometry;
use crate::layout::hash::{First, Hashed};
use crate::layout::life::Life;
use crate::layout::mapped::{self, LineShows};
use crate::layout::owners;
use crate::layout::segment::{self, HomeState};
use crate::layout::slot::{Header, SlotShape};
use crate::layout::words::{self, EIGHT_LINES, Words};
use crate::placement::families;

use crate::base::sync::{Ordering, fence};
use crate::sink::{LifeSink, LivedSink, Sink};

/// What a direct look for a key of a batch goes by when its turn comes. Made when the key's lines were asked for.
#[derive(Clone, Copy, Debug)]
pub struct BegunLook {
    first: First,
    /// The counter of begun moves, loaded before the entry.
    begun: u64,
    /// The directory entry's first word ([`locate`]).
    entry: u64,
    /// The word in which the primary window begins. Where damaged bytes have led, anywhere.
    window: usize,
}

impl BegunLook {
    /// Nothing was asked for: no glance has an answer.
    pub(crate) const NOTHING: BegunLook =
        BegunLook { first: First(0), begun: 0, entry: 0, window: usize::MAX };

    /// The key, hashed: again, where no look has begun.
    #[inline]
    pub(crate) fn hashed<'k>(&self, geometry: &Geometry, key: &'k [u8]) -> Hashed<'k> {
        match self.window {
            usize::MAX => geometry.hashed(key),
            _ => geometry.hashed_to(key, self.first),
        }
    }
}

/// Asks for the first lines of the key's window.
#[inline(always)]
pub(crate) fn expect(memory: impl Loadable + Copy, geometry: &Geometry, key: &[u8]) -> BegunLook {
    let key = geometry.hashed(key);
    let control = memory.control();
    let begun = begun(control, key.home());
    let Some((entry, window)) = locate(memory, control, geometry, key) else {
        return BegunLook { first: key.first(), ..BegunLook::NOTHING };
    };
    memory.expect(window);
    BegunLook { first: key.first(), begun, entry, window }
}

/// The counter of begun moves, at the beginning of a look.
#[inline(always)]
fn begun(control: impl Words, home: u64) -> u64 {
    let begun = control.line(move_counter_line(home)).load(0);
    // R3, as in `Shm::mark`.
    fence(Ordering::Acquire);
    begun
}

/// The first word of the key's directory entry, and the word in which the key's window begins. In a table of
/// one size there is no entry: 0, which names no pair. `None` where damaged bytes lead out of the region.
#[inline(always)]
fn locate(
    memory: impl Loadable + Copy,
    control: impl Words,
    geometry: &Geometry,
    key: Hashed<'_>,
) -> Option<(u64, usize)> {
    match geometry.grows() {
        true => locate_if::<true>(memory, control, geometry, key),
        false => locate_if::<false>(memory, control, geometry, key),
    }
}

/// Like `locate`, for callers that know whether the table grows.
#[inline(always)]
fn locate_if<const GROWS: bool>(
    memory: impl Loadable + Copy,
    control: impl Words,
    geometry: &Geometry,
    key: Hashed<'_>,
) -> Option<(u64, usize)> {
    if !GROWS {
        return Some((0, geometry.home_word(key.home())));
    }
    let entry = entry(memory, control, geometry, key.first())?;
    Some((entry, geometry.home_word_in(segment::memory(entry), key.home())))
}

/// Loads the first word of a directory entry. `None` where a damaged directory word leads out of the region.
#[inline(always)]
fn entry(memory: impl Loadable + Copy, control: impl Words, geometry: &Geometry, key: First) -> Option<u64> {
    let bits = control.line(DIRECTORY_LINE).load(0) as u32;
    // Pairs with the release fence before the directory word is stored: the entries are there.
    fence(Ordering::Acquire);
    memory.word_within(segment::segment_word(geometry, key.all_directory() & segment::low(bits & 31)))
}

/// What nearly every GET needs of the look below, where slots are one line: a look at the primary window.
/// `None` says nothing, not even that the key has a length that it may have, and leaves nothing behind.
///
/// Keeps nothing for the cases that it leaves to others. Where [`Geometry::can_glance`]: who asks looks there first, and
/// hashes no key in vain.
#[inline(always)]
pub(crate) fn glance(
    memory: impl Loadable + Copy,
    geometry: &Geometry,
    key: Hashed<'_>,
    value: &mut impl Sink,
) -> Option<bool> {
    debug_assert!(geometry.can_glance(key.key()));
    if geometry.can_glance_in_one_size(key.key()) {
        return glance_simply::<false>(memory, geometry, key, value);
    }
    if geometry.can_glance_simply(key.key()) {
        return glance_simply::<true>(memory, geometry, key, value);
    }
    glance_elsewhere(memory, geometry, key, value)
}

/// The simplest glance: at eight slots. Tables that grow have another one than those of one size.
#[inline(always)]
fn glance_simply<const GROWS: bool>(
    memory: impl Loadable + Copy,
    geometry: &Geometry,
    key: Hashed<'_>,
    value: &mut impl Sink,
) -> Option<bool> {
    let control = memory.control();
    let begun = begun(control, key.home());
    let (entry, first) = locate_if::<GROWS>(memory, control, geometry, key)?;
    let window = memory.eight_lines_within(first)?;
    match window.lines_with(key.key()) {
        0 => glance_ends(memory, control, geometry, key, begun, entry, aux(window), value),
        shown => match glance_at(window.line(compare::first_line(shown)), key.key(), value) {
            // Others may end like this one.
            Some(false) => glance_anywhere::<GROWS>(memory, geometry, key.key(), key.first(), value),
            seen => seen,
        },
    }
}

/// Like `glance_simply`, for a key of a batch. Its lines are four and four: most keys are in the first four, and a wrong
/// guess is cheap where the lines are near.
#[inline(always)]
pub(crate) fn glance_expected(
    memory: impl Loadable + Copy,
    geometry: &Geometry,
    key: &[u8],
    expected: &BegunLook,
    value: &mut impl Sink,
) -> Option<bool> {
    if geometry.can_glance_simply(key) {
        return glance_at_eight(memory, geometry, key, expected, value);
    }
    if geometry.can_glance(key) {
        return glance_elsewhere(memory, geometry, geometry.hashed_to(key, expected.first), value);
    }
    None
}

/// The simplest glance at the window of a look that has begun.
#[inline(always)]
fn glance_at_eight(
    memory: impl Loadable + Copy,
    geometry: &Geometry,
    key: &[u8],
    expected: &BegunLook,
    value: &mut impl Sink,
) -> Option<bool> {
    let window = memory.eight_lines_within(expected.window)?;
    let (four, others) = window.split(EIGHT_LINES / 2)?;
    let shown = match four.lines_with(key) {
        0 => others.lines_with(key) << compare::bit_of(4),
        shown => shown,
    };
    let key = geometry.hashed_to(key, expected.first);
    match shown {
        0 => {
            let BegunLook { begun, entry, .. } = *expected;
            glance_ends(memory, memory.control(), geometry, key, begun, entry, aux(window), value)
        }
        _ => match glance_at(window.line(compare::first_line(shown)), key.key(), value) {
            // Others may end like this one.
            Some(false) => glance_elsewhere(memory, geometry, key, value),
            seen => seen,
        },
    }
}

/// A glance that is not the simplest.
#[inline(always)]
fn glance_elsewhere(
    memory: impl Loadable + Copy,
    geometry: &Geometry,
    key: Hashed<'_>,
    value: &mut impl Sink,
) -> Option<bool> {
    match geometry.grows() {
        true => glance_anywhere::<true>(memory, geometry, key.key(), key.first(), value),
        false => glance_anywhere::<false>(memory, geometry, key.key(), key.first(), value),
    }
}

/// A glance at windows of any size, for keys of any length, and where several keys of a window end in the same
/// bytes.
#[inline(never)]
fn glance_anywhere<const GROWS: bool>(
    memory: impl Loadable + Copy,
    geometry: &Geometry,
    key: &[u8],
    first: First,
    value: &mut impl Sink,
) -> Option<bool> {
    let key = geometry.hashed_to(key, first);
    let control = memory.control();
    let begun = begun(control, key.home());
    let (entry, first) = locate_if::<GROWS>(memory, control, geometry, key)?;
    let window = memory.words_within(first, geometry.window_words())?;
    let mut rest = window;
    while let Some((lines, after)) = rest.split(EIGHT_LINES) {
        if glance_through(lines, key.key(), value)? {
            return Some(true);
        }
        rest = after;
    }
    if rest.len() > 0 && glance_through_few(rest, key.key(), value)? {
        return Some(true);
    }
    glance_ends(memory, control, geometry, key, begun, entry, aux(window), value)
}

/// Whether a glance has shown that the key is absent.
#[inline(always)]
#[expect(clippy::too_many_arguments, reason = "it is a part of the functions that call it, once for each")]
fn glance_ends(
    memory: impl Loadable + Copy,
    control: impl Words,
    geometry: &Geometry,
    key: Hashed<'_>,
    begun: u64,
    entry: u64,
    home_aux: u32,
    value: &mut impl Sink,
) -> Option<bool> {
    if families::may_be_displaced(geometry, key, home_aux)
        || !is_its_segment(memory, geometry, key, entry, home_aux)
        || !is_unmoved(control, key, begun)
    {
        return None;
    }
    value.put_none();
    Some(false)
}

/// Whether nobody has begun to move a key with this home since the counter was loaded.
#[inline(always)]
fn is_unmoved(control: impl Words, key: Hashed<'_>, begun: u64) -> bool {
    // R4, as in `Shm::proof`.
    fence(Ordering::Acquire);
    Proof::by_counter(begun, control.line(move_counter_line(key.home())).load(0)) == Proof::NoMove
}

/// Whether the key is in these eight slots, and its value in `value`; `None` if that is not plain.
#[inline(always)]
fn glance_through(lines: impl Lines, key: &[u8], value: &mut impl Sink) -> Option<bool> {
    let mut shown = lines.lines_with(key);
    while shown != 0 {
        if glance_at(lines.line(compare::first_line(shown)), key, value)? {
            return Some(true);
        }
        shown &= shown - 1;
    }
    Some(false)
}

/// Like `glance_through`, for fewer slots.
#[inline(never)]
fn glance_through_few(lines: impl Lines, key: &[u8], value: &mut impl Sink) -> Option<bool> {
    glance_through(lines, key, value)
}

/// Whether the key is in this slot, and its value in `value`; `None` if that is not plain.
#[inline(always)]
fn glance_at(slot: impl Words, key: &[u8], value: &mut impl Sink) -> Option<bool> {
    let first = stamp(slot)?;
    match mapped::line_value(slot, key, value) {
        LineShows::Value => is_still(slot, first).then_some(true),
        LineShows::NotIt => Some(false),
        LineShows::Nonsense => None,
    }
}

/// Whether a miss in the entry's segment is one in the table (E8): where the entry names no other segment, it is.
#[inline(always)]
fn is_its_segment(
    memory: impl Loadable + Copy,
    geometry: &Geometry,
    key: Hashed<'_>,
    entry: u64,
    home_aux: u32,
) -> bool {
    !segment::is_paired(entry) || is_its_segment_still(memory, geometry, key.first(), entry, home_aux)
}

/// Whether the directory entry is the same, and its segment's home has not gone to the other one of the pair.
#[cold]
#[inline(never)]
fn is_its_segment_still(
    memory: impl Loadable + Copy,
    geometry: &Geometry,
    key: First,
    entry: u64,
    home_aux: u32,
) -> bool {
    // R4: the entry is loaded after the pass.
    fence(Ordering::Acquire);
    let is_same = || self::entry(memory, memory.control(), geometry, key) == Some(entry);
    kept(Rule::EntryAgain, is_same) && HomeState::is_as_deep(home_aux, segment::depth(entry))
}

/// What a window shows.
enum Seen {
    Key,
    /// At no instant of the look was the key in the slot that was looked at just then.
    NoKey,
    /// The key may be in a slot that is being written.
    Torn,
}

/// The look itself. (A function of its own: the way here costs the others no more than it must.)
#[inline(never)]
pub(crate) fn look(
    memory: impl Loadable + Copy,
    geometry: &Geometry,
    key: &[u8],
    first: First,
    value: &mut impl Sink,
    reads: &mut ReadCounts,
) -> Option<bool> {
    let hashed = geometry.hashed_to(key, first);
    let end = KeyEnd::of(hashed.key()).filter(|_| !geometry.is_long(key))?;
    let control = memory.control();
    let begun = begun(control, hashed.home());
    let (entry, first) = locate(memory, control, geometry, hashed)?;
    let before = first - geometry.home_word(hashed.home());
    let (shape, words) = (geometry.shape(), geometry.window_words());
    let window = memory.words_within(first, words)?;
    memory.expect(first);
    if segment::is_paired(entry) && look_across(memory, geometry, hashed, (entry, aux(window)), value, reads)
    {
        return Some(true);
    }
    let mut seen = look_through(shape, window, hashed.key(), end, value);
    let home_aux = aux(window);
    if matches!(seen, Seen::NoKey) && families::may_be_displaced(geometry, hashed, home_aux) {
        seen = further(memory, geometry, hashed, home_aux, before, value, reads);
    }
    if matches!(seen, Seen::NoKey)
        && !(is_its_segment(memory, geometry, hashed, entry, home_aux) && is_unmoved(control, hashed, begun))
    {
        seen = Seen::Torn;
    }
    match seen {
        Seen::Key => Some(true),
        Seen::NoKey => {
            value.put_none();
            Some(false)
        }
        Seen::Torn => {
            count(reads, words);
            None
        }
    }
}

/// Whether the key is in the other segment of a pair, to which its home has gone by its header (G9). That it is not there
/// says nothing.
#[cold]
#[inline(never)]
fn look_across(
    memory: impl Loadable + Copy,
    geometry: &Geometry,
    key: Hashed<'_>,
    (entry, home_aux): (u64, u32),
    value: &mut impl Sink,
    reads: &mut ReadCounts,
) -> bool {
    if !HomeState::of(home_aux).has_gone(segment::depth(entry), key.first().directory()) {
        return false;
    }
    let first = geometry.home_word_in(segment::other_memory(entry), key.home());
    let Some(end) = KeyEnd::of(key.key()) else { return false };
    let Some(window) = memory.words_within(first, geometry.window_words()) else { return false };
    memory.expect(first);
    let mut seen = look_through(geometry.shape(), window, key.key(), end, value);
    let home_aux = aux(window);
    if matches!(seen, Seen::NoKey) && families::may_be_displaced(geometry, key, home_aux) {
        let before = first - geometry.home_word(key.home());
        seen = further(memory, geometry, key, home_aux, before, value, reads);
    }
    if matches!(seen, Seen::Key) {
        return true;
    }
    // What the caller counts is one READ.
    count(reads, geometry.window_words());
    false
}

/// Whether a key is there, and not hidden (O2), where entries may have owners. `None`, too, where that takes more than two
/// looks. The first one is that which has begun.
#[inline(always)]
pub(crate) fn look_unhidden(
    memory: impl Loadable + Copy,
    geometry: &Geometry,
    key: &[u8],
    expected: &BegunLook,
    value: &mut impl Sink,
    reads: &mut ReadCounts,
) -> Option<bool> {
    let mut entry = LivedSink::new(&mut *value);
    let glanced = match geometry.shows_lines(key) {
        false => None,
        true if geometry.shows_eight_lines(key) => {
            glance_at_eight(memory, geometry, key, expected, &mut entry)
        }
        true => glance_elsewhere(memory, geometry, expected.hashed(geometry, key), &mut entry),
    };
    let key = expected.hashed(geometry, key);
    let is_there = match glanced {
        Some(is_there) => is_there,
        None => look(memory, geometry, key.key(), key.first(), &mut entry, reads)?,
    };
    let Some(life) = entry.life.filter(|life| is_there && life.owner != 0) else { return Some(is_there) };
    // Behind the look: R2's fence orders it after the words of the entry.
    let word = memory.word_within(geometry.owner_word(life.owner))?;
    *reads += ReadCounts { reads: 1, bytes: WORD as u64, doorbells: 1 };
    let is_hidden = word & owners::bit(life.owner) != 0;
    let is_proven = || kept(Rule::OwnerProof, || is_unmoved(memory.control(), key, expected.begun));
    if !is_hidden && is_proven() || broken(Rule::OwnerMask) {
        return Some(true);
    }
    look_again(memory, geometry, key, &life, is_hidden, value, reads)
}

/// Another look for an entry whose owner's bit alone decides nothing.
#[cold]
#[inline(never)]
fn look_again(
    memory: impl Loadable + Copy,
    geometry: &Geometry,
    key: Hashed<'_>,
    life: &Life,
    is_hidden: bool,
    value: &mut impl Sink,
    reads: &mut ReadCounts,
) -> Option<bool> {
    let mut again = LifeSink::default();
    count(reads, geometry.window_words());
    // The fence behind the look's first load orders it after the bit.
    let is_there = match look(memory, geometry, key.key(), key.first(), &mut again, reads)? {
        false => false,
        true if is_hidden && broken(Rule::OwnerAgain) => false,
        // Then it was there when its owner's bit was loaded.
        true if again.life().is_some_and(|now| now.number == life.number) => !is_hidden,
        true => {
            // What the caller counts is looks that have an answer.
            count(reads, geometry.window_words());
            return None;
        }
    };
    if !is_there {
        value.put_none();
    }
    Some(is_there)
}

/// Looks through the windows after the primary one.
#[cold]
fn further(
    memory: impl Loadable + Copy,
    geometry: &Geometry,
    key: Hashed<'_>,
    home_aux: u32,
    before: usize,
    value: &mut impl Sink,
    reads: &mut ReadCounts,
) -> Seen {
    let Some(end) = KeyEnd::of(key.key()) else { return Seen::Torn };
    let mut head_aux = home_aux;
    for read in 1..=CHAIN_MAX {
        let Some(next) = families::after(geometry, key, read, head_aux) else { return Seen::NoKey };
        // R5: the window's words are loaded after the header that led to it.
        fence(Ordering::Acquire);
        let words = next.slots as usize * geometry.shape().words();
        count(reads, words);
        let next = memory.words_within(geometry.slot_word(next.first) + before, words);
        let Some(window) = next else { return Seen::Torn };
        match look_through(geometry.shape(), window, key.key(), end, value) {
            Seen::NoKey => head_aux = aux(window),
            seen => return seen,
        }
    }
    // No sound chain is so long.
    Seen::Torn
}

#[cold]
fn count(reads: &mut ReadCounts, words: usize) {
    *reads += ReadCounts { reads: 1, bytes: (words * WORD) as u64, doorbells: 1 };
}

/// `aux` of a window's first slot. The word that has it was stored at once.
#[inline(always)]
fn aux(window: impl Words) -> u32 {
    Header::from_words([0, window.load(1)]).aux
}

/// Looks for the key in each slot of a window.
#[inline(always)]
fn look_through(
    shape: SlotShape,
    window: impl Words,
    key: &[u8],
    end: KeyEnd,
    value: &mut impl Sink,
) -> Seen {
    let mut rest = window;
    while let Some((slot, after)) = rest.split(shape.words()) {
        if end.is_in(slot) {
            match look_at(shape, slot, key, value) {
                Seen::NoKey => {}
                seen => return seen,
            }
        }
        rest = after;
    }
    Seen::NoKey
}

/// Looks at a slot that may have the key.
#[inline(never)]
fn look_at(shape: SlotShape, slot: impl Words, key: &[u8], value: &mut impl Sink) -> Seen {
    let read = at_rest(slot, || {
        let header = words::header(slot);
        let matches = usize::from(header.klen) == key.len() && compare::begins_with(shape, slot, key);
        matches.then(|| mapped::value_into(shape, slot, &header, value))
    });
    match read {
        Some(Some(Ok(()))) => Seen::Key,
        Some(None) => Seen::NoKey,
        Some(Some(Err(_))) | None => Seen::Torn,
    }
}

/// Reads a slot as a seqlock. `None` while the slot is being written, or if it was during the read.
#[inline(always)]
pub(super) fn at_rest<R>(slot: impl Words, read: impl FnOnce() -> R) -> Option<R> {
    let first = stamp(slot)?;
    let result = read();
    is_still(slot, first).then_some(result)
}

/// The beginning of a look at a slot: the word with its stamp. `None` while the slot is being written.
#[inline(always)]
fn stamp(slot: impl Words) -> Option<u64> {
    let first = slot.load(0);
    if first & 1 == 1 && !broken(Rule::StampCheck) {
        return None;
    }
    // R1: words are loaded after the stamp above. Pairs with the release fence before the writer's
    // even pass: if the stamp is that of write n, write n's words, or later ones, are seen.
    if !broken(Rule::StampFence) {
        fence(Ordering::Acquire);
    }
    Some(first)
}

/// The end of the look: whether nobody wrote the slot meanwhile.
#[inline(always)]
fn is_still(slot: impl Words, first: u64) -> bool {
    // R2: the stamp is loaded again after the words above. Pairs with the release fence after the
    // writer's odd pass: if any word above came from write n+1, its odd stamp is seen here.
    if !broken(Rule::ReaderFence) {
        fence(Ordering::Acquire);
    }
    slot.load(0) == first || broken(Rule::StampCheck)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::config::{Config, TableSize};
    use crate::layout::LINE;
    use crate::layout::geometry::SlotIx;
    use crate::layout::hash::Seeds;
    use crate::layout::slot::{Content, Identity, encode};
    use crate::region::Region;
    use std::cell::Cell;

    /// A key stands in its second window. While its slot is being written, or when its lengths are
    /// impossible, only the machine can tell. Then all READs are counted, else all but the first.
    #[test]
    fn slots_that_only_the_machine_can_tell() {
        for value_max in [8, 40, 90] {
            let layout = "bucketized:4".parse().unwrap();
            let (size, seeds) = (TableSize::Slots(64), Some(Seeds::from_number(1)));
            let config = Config { layout, size, key_max: 8, value_max, seeds, ..Config::default() };
            let geometry = config.geometry().unwrap();
            let region = Region::private(geometry.region_bytes());
            let key = geometry.hashed(b"mykeyis8");
            let (home, second) =
                (geometry.primary(key).first, families::after(&geometry, key, 1, 0).unwrap().first);
            assert_ne!(home, second);
            let put = |slot, content: Content<'_>| {
                let image = encode(geometry.shape(), geometry.identity(slot), 2, &content);
                (geometry.slot_word(slot)..).zip(image).for_each(|(word, bits)| region.store(word, bits));
            };
            put(home, Content { aux: families::filter_bit(&geometry, key), ..Content::default() });
            put(second, Content { key: key.key(), value: b"value".into(), ..Content::default() });
            let look = || {
                let mut reads = ReadCounts::default();
                (look(&region, &geometry, key.key(), key.first(), &mut Vec::new(), &mut reads), reads.reads)
            };
            assert_eq!(look(), (Some(true), 1));
            let word = geometry.slot_word(second);
            let header = [region.load(word), region.load(word + 1)];
            region.store(word, header[0] + 1);
            assert_eq!(look(), (None, 2), "{value_max}: it is being written");
            region.store(word, header[0]);
            region.store(word + 1, 8 | 0xffff << 16);
            assert_eq!(look(), (None, 2), "{value_max}: impossible lengths");
            region.store(word + 1, header[1]);
            assert_eq!(look(), (Some(true), 1));
        }
    }

    /// Keys that end in the same eight bytes, in one window: each is found, and one that is not there is
    /// absent, by a glance. Where a slot that shows the end is being written, or has impossible lengths, a glance
    /// says nothing, and leaves the value as it was.
    #[test]
    fn keys_that_end_alike() {
        for layout in ["windowed:8", "windowed:16", "bucketized:4"] {
            let (size, seeds) = (TableSize::Slots(64), Some(Seeds::from_number(1)));
            let layout = layout.parse().unwrap();
            let config = Config { layout, size, key_max: 16, value_max: 32, seeds, ..Config::default() };
            let geometry = config.geometry().unwrap();
            let region = Region::private(geometry.region_bytes());
            let mut keys: Vec<[u8; 16]> = (0..10_000u64)
                .map(|n| bytemuck::cast::<_, [u8; 16]>([n, u64::from_le_bytes(*b":profile")]))
                .filter(|key| geometry.primary(geometry.hashed(&key[..])).first == SlotIx(0))
                .take(5)
                .collect();
            let absent = keys.pop().unwrap();
            for (slot, key) in (0..).zip(&keys) {
                let content = Content { key, value: key[..8].into(), ..Content::default() };
                let image = encode(geometry.shape(), geometry.identity(SlotIx(slot)), 2, &content);
                (geometry.slot_word(SlotIx(slot))..).zip(image).for_each(|(at, bits)| region.store(at, bits));
            }
            let look = |key: &[u8]| {
                let mut value = vec![9];
                let mut glance = || glance(&region, &geometry, geometry.hashed(key), &mut value);
                (geometry.can_glance(key).then(&mut glance).flatten(), value)
            };
            for key in &keys {
                assert_eq!(look(key), (Some(true), key[..8].to_vec()));
            }
            assert_eq!(look(&absent), (Some(false), vec![]));
            assert_eq!(look(&keys[0][..15]), (Some(false), vec![]), "a key of another length");
            let word = geometry.slot_word(SlotIx(1));
            let header = [region.load(word), region.load(word + 1)];
            region.store(word, header[0] + 1);
            assert_eq!(look(&keys[0]).0, Some(true), "it comes before");
            for key in [&keys[1], &keys[2], &absent] {
                assert_eq!(look(key), (None, vec![9]), "it is being written");
            }
            region.store(word, header[0]);
            region.store(word + 1, header[1] | 0xff << 16);
            assert_eq!(look(&keys[1]), (None, vec![9]), "impossible lengths");
            assert_eq!(look(&keys[2]).0, Some(true), "those of another key");
            // A key that the filter may name is not absent.
            region.store(geometry.slot_word(SlotIx(0)) + 1, 16 | 8 << 16 | u64::from(u32::MAX) << 32);
            assert_eq!(look(&absent), (None, vec![9]), "it may be displaced");
            // Nor one that this table cannot have.
            assert_eq!(look(&[7; 17]), (None, vec![9]), "its length is none");
            assert_eq!(look(&[]), (None, vec![9]), "its length is none");
        }
    }

    /// A slot that is written while it is being looked at. Each load sees the stores made before it.
    #[derive(Clone, Copy)]
    struct Changing<'a> {
        before: &'a [u64],
        stores: &'a [(usize, u64)],
        /// How many stores come before the load with this number.
        made: &'a dyn Fn(usize) -> usize,
        loads: &'a Cell<usize>,
        first: usize,
        len: usize,
    }

    impl Words for Changing<'_> {
        fn len(self) -> usize {
            self.len
        }

        fn load(self, word: usize) -> u64 {
            assert!(word < self.len);
            let (word, load) = (self.first + word, self.loads.replace(self.loads.get() + 1));
            let last = self.stores[..(self.made)(load)].iter().rev().find(|(stored, _)| *stored == word);
            last.map_or(self.before[word], |(_, bits)| *bits)
        }

        fn split(self, words: usize) -> Option<(Self, Self)> {
            let rest = Changing { first: self.first + words, len: self.len.checked_sub(words)?, ..self };
            Some((Changing { len: words, ..self }, rest))
        }
    }

    impl Lines for Changing<'_> {}

    /// Another key is written into the slot during a look: up to a store before one load, the rest
    /// before another. The keys differ in one byte, wherever it is, and are never taken for each
    /// other.
    #[test]
    fn keys_that_replace_each_other() {
        let identity = Identity { generation: 3, index: 77 };
        let (mut found, mut glanced) = (0, 0);
        let lengths = [1, 2, 7, 8, 9, 15, 16, 17, 24, 31, 47, 48].map(|klen| (klen, 64));
        for (klen, bytes) in lengths.into_iter().chain([(9, 128), (17, 128), (48, 128)]) {
            let shape = SlotShape::from_bytes(bytes).unwrap();
            let room = (shape.payload_max() - klen).min(9);
            for at in 0..klen {
                let old: Vec<u8> = (0..klen as u8).map(|n| n + 1).collect();
                let mut new = old.clone();
                new[at] ^= 0x80;
                let there = [(&old, 2, &b"old value"[..room]), (&new, 4, &b"new value"[..room])];
                let [before, after] = there.map(|(key, stamp, value)| {
                    encode(shape, identity, stamp, &Content { key, value: value.into(), ghost: 0, aux: 0 })
                });
                let mut stores: Vec<_> = after.iter().copied().enumerate().skip(1).collect();
                stores.insert(0, (0, before[0] + 1));
                stores.push((0, after[0]));
                for (begun, ended, part) in (0..14)
                    .flat_map(|begun| (begun..14).map(move |ended| (begun, ended)))
                    .flat_map(|(begun, ended)| (1..=stores.len()).map(move |part| (begun, ended, part)))
                {
                    let made = |load| match load {
                        load if load < begun => 0,
                        load if load < ended => part,
                        _ => stores.len(),
                    };
                    for (key, _, mine) in there {
                        let (before, stores, made) = (&before[..], &stores[..], &made);
                        for glances in [false, bytes == LINE] {
                            let (loads, mut value) = (Cell::new(0), Vec::new());
                            let slot = Changing {
                                before,
                                stores,
                                made,
                                loads: &loads,
                                first: 0,
                                len: shape.words(),
                            };
                            let end = KeyEnd::of(key).unwrap();
                            let is_found = match glances {
                                true => glance_through(slot, key, &mut value) == Some(true),
                                false => matches!(look_through(shape, slot, key, end, &mut value), Seen::Key),
                            };
                            if is_found {
                                assert_eq!(
                                    value, mine,
                                    "{bytes}: {klen}, {at}: {part} from {begun}, all from {ended}"
                                );
                                found += 1;
                                glanced += u32::from(glances);
                            }
                        }
                    }
                }
            }
        }
        assert!(found > 1_000 && glanced > 1_000, "{found}, {glanced}");
    }
}
