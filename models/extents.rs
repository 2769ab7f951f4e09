//! A model of values of any size under one-sided readers, at random and in every small world. The
//! rules are checked here before the code has them.
//!
//! A value that is too long for its slot lies in an *extent*: memory of the region that is written
//! whole and then named by the slot. Readers hold nothing, as ever. T is the grace time, and
//! `A(n) = T + n / rate` the *allowance* of an extent of n bytes, at the slowest rate that the table
//! is meant for.
//!
//! # Rules
//!
//! * **X1** An extent has a number that no other ever had. A word of the control page goes up before a
//!   number is used, and a takeover begins there.
//! * **X2** An extent is written whole before a slot names it, and never again.
//! * **X3** Memory that a slot has named is used again no earlier than 2A(n) after the slot write by which
//!   the key stopped naming it. A put, a remove and X6 end a name. A slot that a key leaves does not: its
//!   copy names the same extent. Memory that no slot ever named is free at once.
//! * **X4** A GET looks the key up and fetches the extent that it finds, or a part of it. By the clock the
//!   bytes count if less than A(n) has passed since before the look, n being the whole length. If more
//!   has, and always on shm, they count if another look, begun after the last byte came, finds the same
//!   number. If it finds something else, the GET goes on with that.
//! * **X5** A takeover marks what slots name when they are restored and mended (U4, T2, T4). The rest is
//!   free, and used no earlier than 2A(longest) after the region was opened.
//! * **X6** An extent moves as a new one: memory and number of its own, bytes copied without a lock. Under
//!   the key's lock it is named if the slot still names the old number, and else dropped.
//! * **X7** A compare-and-swap of a long value compares in the client, and swaps if the slot still names the
//!   number that the client saw. If not, the client looks again: the extent may only have moved.
//! * **X8** A client may fetch an extent that it remembers (number, address, length) beside the look. The
//!   bytes count if the look finds the same number and both took less than A(n).
//! * **X9** On shm a reader fences (acquire) between the last byte and the second look; the server fences
//!   (release) between the slot write that ends a name and the first store into that memory. (Not modelled
//!   here: a matter of memory order.)
//!
//! [`Broken`] has what breaks each.
//!
//! No checksum is believed here, so the rules suffice without one. The slot's CRC of the extent is a
//! belt over a network, and what snapshots and X6 check copies with.
//!
//! # Why the bytes are right
//!
//! **Claim: a key that stopped naming a number never names it again.** Puts and X6 use new numbers
//! (X1). A move copies a slot that names it, under the key's lock. A takeover restores an image only
//! while the write that was to end the name had not ended (U4), and all the while no reader saw the
//! slot otherwise.
//!
//! Say that a valid slot named the extent at `t`, and that a byte was sampled at `u > t`.
//!
//! * *By the clock* the reader saw less than A(n) from before `t` to after `u`. So `u < t + 2A(n)` by
//!   the server's clock. The name ended after `t`, if it has ended. So by X3 and X5 the memory had
//!   the extent's bytes at `u`.
//! * *By another look*: a valid slot of the key named the number at `v > u`. By the claim it was named
//!   from `t` to `v`, so at `u` the memory was the extent's. Compare the address instead, and it may
//!   have been another's in between; keep the number when the extent moves, and it may have lain
//!   elsewhere.
//! * *Beside the look* (X8): if `u` came before the look's sample `v`, as by another look, with `t`
//!   when the client learned of it. If after, as by the clock, from `v` on.
//!
//! The GET takes effect when the slot was sampled.
//!
//! A(n) grows with n so that a GET at the stated rate never needs another look: it is two READs, and
//! a value replaced all the time can be read. A slower one needs the look, and ends in a typed error
//! if the value is replaced each time. On shm the second look is one load of the slot's stamp: as long
//! as that is the same, so is the number.
//!
//! # Bytes, as they are meant to be
//!
//! Format version 5. In the slot, `vlen` is 0x8000 + 24 if the value is a *reference*; all else is as ever,
//! so moves, ghosts, undo lines and the slot's CRC know nothing of it. A value that fits stays in its slot.
//!
//! | byte of the reference | what | a reader refuses it unless |
//! |---|---|---|
//! | 0 | number (X1), u64 | |
//! | 8 | byte of the region where the value begins, u64 | a multiple of 8, in the heap with all its bytes |
//! | 16 | length in bytes, u32 | 1 to `value_max` |
//! | 20 | CRC-32C of the value, u32 | over a network, the bytes that came have it |
//!
//! So slots of 32 bytes hold no reference, those of 64 with keys of up to 24 bytes, of 128 up to 86, of
//! 320 any.
//!
//! An extent is 24 bytes of header (number, first hash of the key, length), which only the server reads, to
//! find the key of an extent that is to move, and the value: all rounded up to granules of 32 bytes.
//! `models/heap.rs` has the heap: blocks, what leaves when, the bound. There are no other records of
//! it in the region. The superblock has the heap's offset and length, the length of its blocks, the rate in
//! bytes a microsecond (1,000), and `value_max` up to 64 MiB. The control page has the next number, and in a
//! table that grows the pieces that were ever segments.
//!
//! In a table that grows, segments come from the front of the reservation, blocks of the heap from its end.
//! Memory of the heap may become a segment when it has waited (X3). Memory that was a segment never becomes
//! heap: readers with an old entry look there for slots, and clients choose the bytes of values.
//!
//! The server rounds A(n) up, readers down.
//!
//! # The model
//!
//! Two keys, some slots, some words of memory. A server stores word by word. It sends clients' values
//! into memory while other things happen, names, removes and swaps them, moves keys between slots (of
//! one segment or of two: one key, two slots, one extent) and extents between places, and is killed at
//! any store, also in a takeover. Each cell is sampled at an arbitrary instant. What is proven of
//! looks at the index is taken for granted (G, E): a look that finds the key is a valid slot at an
//! instant of the look.
//!
//! * At random, readers run the steps of X4 and X8.
//! * Beside them, and in every small world, the history itself is asked whether *some* reader could be
//!   wrong: each instant of each look and each word is considered.
//! * At the end no value may be lost, and no memory.

mod history;

use history::History;
use oneread::internals::layout::hash::mix;
use std::collections::BTreeMap;

/// The grace time.
const T: i64 = 40;
/// Time that a word takes at the slowest stated rate.
const WORD_TIME: i64 = 20;
/// Words of the longest extent.
const LEN_MAX: usize = 3;
/// Looks at the key of one GET.
const ROUNDS_MAX: usize = 60;

/// How long a reader by the clock may take for an extent of so many words, by its own clock, without
/// another look at the key. The server waits twice as long (X3).
const fn allowance(len: usize) -> i64 {
    T + WORD_TIME * len as i64
}

/// A rule that is broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Broken {
    Nothing,
    /// X2: the slot names an extent before its bytes are written.
    NamedFirst,
    /// X3: the memory of an extent that is not named any more is used again at once.
    FreedAtOnce,
    /// X3: it is used again after 2T, however long the extent is.
    FreedWithoutLength,
    /// X3: it is used again after the time that a reader trusts, not twice that: clocks differ.
    FreedAfterHalf,
    /// X3: the time begins before the slot is rewritten.
    FreedBeforeRewrite,
    /// X4: a reader that took too long, and one by the counter, does not look at the key again.
    NoSecondLook,
    /// X4: the second look goes by the address, not by the number.
    AddressLooked,
    /// X4: the second look comes before the last byte.
    LookTooEarly,
    /// X4: the time of a reader by the clock begins with the READ of the extent.
    ClockTooLate,
    /// X1: a takeover numbers on from the largest number that a slot names.
    NumbersAgain,
    /// X1: the word in the region goes up after a number was used.
    NumberedLate,
    /// X5: a takeover uses memory that no slot names at once.
    TakeoverAtOnce,
    /// X5: a takeover uses it after 2T, however long extents may be.
    TakeoverWithoutLength,
    /// X5: a takeover marks what slots name before it restores slots from undo lines.
    ImageUnmarked,
    /// X3: a slot that a move of the key vacates gives the extent back.
    CopyFrees,
    /// X5: a takeover gives the extent of a second copy back.
    DoubleFrees,
    /// X6: the old place of a moved extent is used again at once.
    MovedFreedAtOnce,
    /// X6: a moved extent keeps its number.
    MovedKeepsNumber,
    /// X6: a moved extent is named without a look whether the slot still names the old one.
    MovedUnchecked,
    /// X3: an extent that was never named, because its client or its move gave up, is not given back.
    DroppedStays,
}

const ALL: [Broken; 20] = [
    Broken::NamedFirst,
    Broken::FreedAtOnce,
    Broken::FreedWithoutLength,
    Broken::FreedAfterHalf,
    Broken::FreedBeforeRewrite,
    Broken::NoSecondLook,
    Broken::AddressLooked,
    Broken::LookTooEarly,
    Broken::ClockTooLate,
    Broken::NumbersAgain,
    Broken::NumberedLate,
    Broken::TakeoverAtOnce,
    Broken::TakeoverWithoutLength,
    Broken::ImageUnmarked,
    Broken::CopyFrees,
    Broken::DoubleFrees,
    Broken::MovedFreedAtOnce,
    Broken::MovedKeepsNumber,
    Broken::MovedUnchecked,
    Broken::DroppedStays,
];

/// What decides what happens next.
enum Choices {
    /// Chance (SplitMix64).
    Random(u64),
    /// All ways, one after the other: the way taken, as (choice, of how many), and how far it is gone.
    Every { way: Vec<(usize, usize)>, at: usize },
}

impl Choices {
    fn below(&mut self, n: usize) -> usize {
        match self {
            Choices::Random(state) => {
                *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
                (mix(*state) % n as u64) as usize
            }
            Choices::Every { way, at } => {
                if *at == way.len() {
                    way.push((0, n));
                }
                let (choice, of) = way[*at];
                assert_eq!(of, n, "the same way again");
                *at += 1;
                choice
            }
        }
    }

    /// The next way of all. `false` after the last one.
    fn next_way(way: &mut Vec<(usize, usize)>) -> bool {
        while let Some((choice, of)) = way.pop() {
            if choice + 1 < of {
                way.push((choice + 1, of));
                return true;
            }
        }
        false
    }

    fn is_random(&self) -> bool {
        matches!(self, Choices::Random(_))
    }

    fn between(&mut self, from: i64, to: i64) -> i64 {
        from + self.below((to - from + 1) as usize) as i64
    }

    fn one<X: Copy>(&mut self, of: &[X]) -> X {
        of[self.below(of.len())]
    }

    fn in_ten(&mut self, n: usize) -> bool {
        self.below(10) < n
    }
}

impl<X: Copy> History<X> {
    /// Each value, from when and until when.
    fn periods(&self) -> impl Iterator<Item = (i64, i64, X)> {
        let ends = self.0.iter().skip(1).map(|store| store.0).chain([i64::MAX]);
        self.0.iter().zip(ends).map(|(&(from, value), to)| (from, to, value))
    }
}

/// The value that a slot gives its key.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Reference {
    /// Never used again.
    number: u64,
    place: usize,
    /// In words; 0: the value is in the slot.
    len: usize,
    /// Which value it is. Readers of an extent do not see it: they have its words.
    value: u32,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Slot {
    Free,
    /// Its stamp is odd.
    Torn,
    Holds(usize, Reference),
}

impl Slot {
    fn of(self, key: usize) -> Option<Reference> {
        match self {
            Slot::Holds(its, reference) if its == key => Some(reference),
            _ => None,
        }
    }
}

/// A word of the heap: of which value, and which of its words.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Word {
    value: u32,
    nth: usize,
}

/// The server was killed at a store.
#[derive(Debug)]
struct Killed;

/// What worlds must show often enough to say something.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    /// Memory was used again.
    UsedAgain,
    /// There was no memory for a value, or no slot.
    Refused,
    /// A move ended, or was given up because the key had another value by then.
    ExtentMoved,
    MoveGivenUp,
    /// A key's value was swapped by its number.
    Swapped,
    /// A takeover restored an image that names an extent, or found an extent named twice.
    Restored,
    Doubled,
    /// Every one.
    Takeover,
}

const EVENTS: [Event; 8] = [
    Event::UsedAgain,
    Event::Refused,
    Event::ExtentMoved,
    Event::MoveGivenUp,
    Event::Swapped,
    Event::Restored,
    Event::Doubled,
    Event::Takeover,
];

/// An extent that a client is sending. No slot names it yet.
#[derive(Clone, Copy)]
struct Sent {
    key: usize,
    extent: Reference,
    /// Words written.
    done: usize,
    /// The slot names it already: a broken rule.
    is_named: bool,
}

/// An extent that is being copied to another place.
#[derive(Clone, Copy)]
struct Moved {
    key: usize,
    from: Reference,
    to: Reference,
    done: usize,
}

/// What only the server knows: a takeover begins without it.
#[derive(Default)]
struct Server {
    /// Numbers that it may use.
    numbers: std::ops::Range<u64>,
    /// Extents that have memory: place, length.
    has: Vec<(usize, usize)>,
    /// Memory to be used again from a time on: place, length, when.
    waiting: Vec<(usize, usize, i64)>,
    sent: Vec<Sent>,
    moved: Option<Moved>,
}

struct World {
    choices: Choices,
    broken: Broken,
    /// Slots of two segments. Keys move from any of them to any other.
    slots: Vec<History<Slot>>,
    heap: Vec<History<Word>>,
    /// The value that each key has.
    truth: Vec<History<Option<u32>>>,
    /// The undo line: a slot and its image.
    undo: Option<(usize, Slot)>,
    /// No number from this one on was ever used.
    number: u64,
    server: Server,
    time: i64,
    /// Stores until the server is killed.
    fuse: Option<usize>,
    is_dead: bool,
    values: u32,
    events: BTreeMap<Event, u64>,
    /// A swap by number changed another value than the one meant.
    is_swapped_wrongly: bool,
    /// The most words that a put has.
    len_max: usize,
}

impl World {
    fn new(choices: Choices, broken: Broken, [slots, words, keys, len_max]: [usize; 4]) -> World {
        World {
            choices,
            broken,
            slots: (0..slots).map(|_| History::new(Slot::Free)).collect(),
            heap: (0..words).map(|_| History::new(Word { value: 0, nth: 0 })).collect(),
            truth: (0..keys).map(|_| History::new(None)).collect(),
            undo: None,
            number: 0,
            server: Server::default(),
            time: 0,
            fuse: None,
            is_dead: false,
            values: 0,
            events: BTreeMap::new(),
            is_swapped_wrongly: false,
            len_max,
        }
    }

    fn count(&mut self, event: Event) {
        *self.events.entry(event).or_default() += 1;
    }

    // ---- stores -------------------------------------------------------------------------------------

    /// Before each store some time passes, and the server may be killed.
    fn store(&mut self) -> Result<i64, Killed> {
        if let Some(left) = &mut self.fuse {
            *left = left.checked_sub(1).ok_or(Killed)?;
        }
        self.time += match self.choices.is_random() {
            true => self.choices.one(&[1, 1, 1, 1, 1, 2, 2, 5, 15, 15, 3 * T]),
            false => 1,
        };
        Ok(self.time)
    }

    /// A thread of the server loses its processor, or not. (At random, it may before each store.)
    fn lose_processor(&mut self) {
        if !self.choices.is_random() {
            self.time += self.choices.one(&[0, T]);
        }
    }

    fn set_slot(&mut self, slot: usize, to: Slot) -> Result<(), Killed> {
        let at = self.store()?;
        self.slots[slot].0.push((at, to));
        Ok(())
    }

    /// One store gives a key its value, or takes it away.
    fn set_slot_and_truth(
        &mut self,
        slot: usize,
        to: Slot,
        key: usize,
        truth: Option<u32>,
    ) -> Result<(), Killed> {
        self.set_slot(slot, to)?;
        if self.truth[key].now() != truth {
            self.truth[key].0.push((self.time, truth));
        }
        Ok(())
    }

    fn set_word(&mut self, word: usize, to: Word) -> Result<(), Killed> {
        let at = self.store()?;
        self.heap[word].0.push((at, to));
        Ok(())
    }

    fn set_undo(&mut self, to: Option<(usize, Slot)>) -> Result<(), Killed> {
        self.store()?;
        self.undo = to;
        Ok(())
    }

    /// Writes a slot so that it holds a key (W1 to W3), with an undo line if it held one (U1, U2). A put
    /// gives the key its value thereby, a move changes nothing.
    fn write(&mut self, slot: usize, key: usize, reference: Reference, is_put: bool) -> Result<(), Killed> {
        let image = self.slots[slot].now();
        let keeps = image != Slot::Free;
        if keeps {
            self.set_undo(Some((slot, image)))?;
        }
        self.set_slot(slot, Slot::Torn)?;
        let truth = if is_put { Some(reference.value) } else { self.truth[key].now() };
        self.set_slot_and_truth(slot, Slot::Holds(key, reference), key, truth)?;
        if keeps {
            self.set_undo(None)?;
        }
        Ok(())
    }

    /// Erases a slot. If it is the key's last one, the key is gone from the first store on.
    fn erase(&mut self, slot: usize) -> Result<(), Killed> {
        match self.slots[slot].now() {
            Slot::Holds(key, _) if self.slots_of(key).len() == 1 => {
                self.set_slot_and_truth(slot, Slot::Torn, key, None)?;
            }
            _ => self.set_slot(slot, Slot::Torn)?,
        }
        self.set_slot(slot, Slot::Free)
    }

    /// One of these by chance, or the first.
    fn one_of(&mut self, of: &[usize]) -> usize {
        if self.choices.is_random() { self.choices.one(of) } else { of[0] }
    }

    fn slots_of(&self, key: usize) -> Vec<usize> {
        (0..self.slots.len()).filter(|&slot| self.slots[slot].now().of(key).is_some()).collect()
    }

    fn reference(&self, key: usize) -> Option<Reference> {
        self.slots.iter().find_map(|slot| slot.now().of(key))
    }

    // ---- memory -------------------------------------------------------------------------------------

    /// Gives back what is due.
    fn tidy(&mut self) {
        let now = self.time;
        self.server.waiting.retain(|&(.., due)| due > now);
    }

    /// A number and memory for an extent.
    fn allocate(&mut self, len: usize, value: u32) -> Result<Option<Reference>, Killed> {
        self.tidy();
        let Server { has, waiting, .. } = &self.server;
        let taken = |word: usize| {
            let is_in = |place: usize, len: usize| (place..place + len).contains(&word);
            has.iter().any(|&(place, len)| is_in(place, len))
                || waiting.iter().any(|&(place, len, _)| is_in(place, len))
        };
        let fits = |&place: &usize| (place..place + len).all(|word| !taken(word));
        let places: Vec<usize> = (0..=self.heap.len() - len).filter(fits).collect();
        if places.is_empty() {
            self.count(Event::Refused);
            return Ok(None);
        }
        let place = self.one_of(&places);
        if self.server.numbers.is_empty() {
            // X1: the word in the region goes up before a number is used.
            let more = if self.choices.is_random() { 3 } else { 1 };
            let end = self.server.numbers.end + more;
            if self.broken != Broken::NumberedLate {
                self.store()?;
                self.number = end;
            }
            self.server.numbers = end - more..end;
        }
        let number = self.server.numbers.next().expect("some are left");
        self.server.has.push((place, len));
        if self.heap[place].0.len() > 1 {
            self.count(Event::UsedAgain);
        }
        Ok(Some(Reference { number, place, len, value }))
    }

    /// Memory that no slot has ever named.
    fn drop_unnamed(&mut self, extent: Reference) {
        if self.broken != Broken::DroppedStays {
            self.server.has.retain(|&(place, _)| place != extent.place);
        }
    }

    /// X3: memory that a slot has named may be used again when its time is over.
    fn release_since(&mut self, extent: Reference, since: i64, at_once: bool) {
        let Reference { place, len, .. } = extent;
        if len == 0 {
            return;
        }
        let wait = match self.broken {
            Broken::FreedAtOnce => 0,
            _ if at_once => 0,
            Broken::FreedWithoutLength => 2 * T,
            Broken::FreedAfterHalf => allowance(len),
            _ => 2 * allowance(len),
        };
        self.server.has.retain(|&(its, _)| its != place);
        self.server.waiting.push((place, len, since + wait));
    }

    /// Names a new value of a key and releases the old one.
    fn rename(&mut self, slot: usize, key: usize, new: Reference, is_put: bool) -> Result<(), Killed> {
        let before = self.time;
        let old = self.slots[slot].now().of(key);
        self.lose_processor();
        self.write(slot, key, new, is_put)?;
        if let Some(old) = old {
            let at_once = !is_put && self.broken == Broken::MovedFreedAtOnce;
            let since = if self.broken == Broken::FreedBeforeRewrite { before } else { self.time };
            self.release_since(old, since, at_once);
        }
        Ok(())
    }

    // ---- what a server does -------------------------------------------------------------------------

    fn new_value(&mut self) -> u32 {
        self.values += 1;
        self.values
    }

    /// Names a value that is there. `false` when there is no slot for the key.
    fn name(&mut self, key: usize, new: Reference) -> Result<bool, Killed> {
        let slots = self.slots_of(key);
        let slot = match slots.first() {
            Some(&slot) => slot,
            None => {
                let free: Vec<usize> =
                    (0..self.slots.len()).filter(|&slot| self.slots[slot].now() == Slot::Free).collect();
                if free.is_empty() {
                    self.count(Event::Refused);
                    return Ok(false);
                }
                self.one_of(&free)
            }
        };
        self.rename(slot, key, new, true)?;
        if self.broken == Broken::NumberedLate && new.len > 0 {
            self.store()?;
            self.number = self.number.max(new.number + 1);
        }
        Ok(true)
    }

    fn put_short(&mut self, key: usize) -> Result<(), Killed> {
        let value = self.new_value();
        self.name(key, Reference { number: 0, place: 0, len: 0, value }).map(|_| ())
    }

    /// A client begins to send a long value.
    fn send_begin(&mut self, key: usize, len: usize) -> Result<(), Killed> {
        let value = self.new_value();
        let Some(extent) = self.allocate(len, value)? else { return Ok(()) };
        let mut sent = Sent { key, extent, done: 0, is_named: false };
        if self.broken == Broken::NamedFirst {
            sent.is_named = self.name(key, extent)?;
        }
        self.server.sent.push(sent);
        Ok(())
    }

    /// The next word comes, or all have come, and the value is named.
    fn send_on(&mut self, nth: usize) -> Result<(), Killed> {
        let Sent { key, extent, done, is_named } = self.server.sent[nth];
        if done < extent.len {
            self.set_word(extent.place + done, Word { value: extent.value, nth: done })?;
            self.server.sent[nth].done += 1;
            return Ok(());
        }
        self.server.sent.remove(nth);
        if !is_named && !self.name(key, extent)? {
            self.drop_unnamed(extent);
        }
        Ok(())
    }

    /// The client hangs up.
    fn send_never(&mut self, nth: usize) {
        let Sent { extent, is_named, .. } = self.server.sent.remove(nth);
        if !is_named {
            self.drop_unnamed(extent);
        }
    }

    fn remove(&mut self, key: usize) -> Result<(), Killed> {
        let Some(&slot) = self.slots_of(key).first() else { return Ok(()) };
        let (before, extent) = (self.time, self.slots[slot].now().of(key).expect("it is there"));
        self.lose_processor();
        self.erase(slot)?;
        let since = if self.broken == Broken::FreedBeforeRewrite { before } else { self.time };
        self.release_since(extent, since, false);
        Ok(())
    }

    /// Compares and swaps (X7): a client has seen the key's value at some time, and wants another one if
    /// the key has that value still. It says so by the number.
    fn swap(&mut self, key: usize) -> Result<(), Killed> {
        let seen = |slot: &History<Slot>| -> Vec<Reference> {
            slot.0.iter().filter_map(|store| store.1.of(key)).filter(|it| it.len > 0).collect()
        };
        let seen: Vec<Reference> = self.slots.iter().flat_map(seen).collect();
        if seen.is_empty() {
            return Ok(());
        }
        let meant = self.choices.one(&seen);
        if self.reference(key).is_some_and(|now| now.len > 0 && now.number == meant.number) {
            self.is_swapped_wrongly |= self.truth[key].now() != Some(meant.value);
            self.count(Event::Swapped);
            return self.put_short(key);
        }
        Ok(())
    }

    /// A key moves within its segment or to another one: two slots name one extent. A copy may be
    /// given up, too, where a home's other keys find no room.
    fn move_key(&mut self, key: usize, give_up: bool) -> Result<(), Killed> {
        let Some(&from) = self.slots_of(key).first() else { return Ok(()) };
        let free: Vec<usize> =
            (0..self.slots.len()).filter(|&slot| self.slots[slot].now() == Slot::Free).collect();
        if free.is_empty() {
            return Ok(());
        }
        let to = self.one_of(&free);
        let reference = self.slots[from].now().of(key).expect("it is there");
        self.write(to, key, reference, false)?;
        self.erase(if give_up { to } else { from })?;
        if self.broken == Broken::CopyFrees {
            self.release_since(reference, self.time, false);
        }
        Ok(())
    }

    /// An extent is to be moved to another place, under a number of its own (X6). No lock is held while
    /// it is copied.
    fn extent_move_begin(&mut self, key: usize) -> Result<(), Killed> {
        let Some(from) = self.reference(key).filter(|from| from.len > 0) else { return Ok(()) };
        if self.server.moved.is_some() {
            return Ok(());
        }
        let Some(mut to) = self.allocate(from.len, from.value)? else { return Ok(()) };
        if self.broken == Broken::MovedKeepsNumber {
            to.number = from.number;
        }
        self.server.moved = Some(Moved { key, from, to, done: 0 });
        Ok(())
    }

    fn extent_move_on(&mut self) -> Result<(), Killed> {
        let Some(Moved { key, from, to, done }) = self.server.moved else { return Ok(()) };
        if done < from.len {
            let word = self.heap[from.place + done].now();
            self.set_word(to.place + done, word)?;
            self.server.moved = Some(Moved { key, from, to, done: done + 1 });
            return Ok(());
        }
        self.server.moved = None;
        let slots = self.slots_of(key);
        let is_named = |slot: &&usize| {
            let now = self.slots[**slot].now().of(key);
            now.is_some_and(|now| now.len > 0 && now.number == from.number)
                || self.broken == Broken::MovedUnchecked
        };
        match slots.first().filter(is_named) {
            Some(&slot) => {
                self.count(Event::ExtentMoved);
                self.rename(slot, key, to, false)
            }
            None => {
                self.count(Event::MoveGivenUp);
                self.drop_unnamed(to);
                Ok(())
            }
        }
    }

    /// Another server takes over (T1 to T4, X5).
    fn takeover(&mut self) -> Result<(), Killed> {
        self.count(Event::Takeover);
        let opened = self.time;
        self.server = Server::default();
        if self.broken != Broken::TakeoverAtOnce {
            self.time += 2 * T;
        }
        let marked = |world: &World| -> Vec<(usize, usize)> {
            let named = world.slots.iter().filter_map(|slot| match slot.now() {
                Slot::Holds(_, Reference { place, len, .. }) if len > 0 => Some((place, len)),
                _ => None,
            });
            named.collect()
        };
        let too_early = marked(self);
        // U4
        if let Some((slot, image)) = self.undo {
            if self.slots[slot].now() == Slot::Torn {
                self.set_slot(slot, image)?;
                if matches!(image, Slot::Holds(_, Reference { len: 1.., .. })) {
                    self.count(Event::Restored);
                }
            }
            self.set_undo(None)?;
        }
        // T2, T4
        for slot in 0..self.slots.len() {
            if self.slots[slot].now() == Slot::Torn {
                self.set_slot(slot, Slot::Free)?;
            }
        }
        let mut doubled = None;
        for key in 0..self.truth.len() {
            if let &[first, second] = &self.slots_of(key)[..] {
                doubled = self.reference(key);
                if doubled.is_some_and(|it| it.len > 0) {
                    self.count(Event::Doubled);
                }
                let goes = self.choices.one(&[first, second]);
                self.erase(goes)?;
            }
        }
        let has = match self.broken {
            Broken::ImageUnmarked => too_early,
            _ => marked(self),
        };
        let wait = match self.broken {
            Broken::TakeoverAtOnce => 0,
            Broken::TakeoverWithoutLength => 2 * T,
            _ => 2 * allowance(LEN_MAX),
        };
        let is_named = |word: usize| has.iter().any(|&(place, len)| (place..place + len).contains(&word));
        let rest = (0..self.heap.len()).filter(|&word| !is_named(word));
        self.server.waiting = rest.map(|word| (word, 1, opened + wait)).collect();
        self.server.has = has;
        if self.broken == Broken::NumbersAgain {
            let named = self.slots.iter().filter_map(|slot| match slot.now() {
                Slot::Holds(_, reference) if reference.len > 0 => Some(reference.number + 1),
                _ => None,
            });
            self.number = named.max().unwrap_or(0);
        }
        self.server.numbers = self.number..self.number;
        if let Some(extent) = doubled.filter(|_| self.broken == Broken::DoubleFrees) {
            self.release_since(extent, self.time, false);
        }
        Ok(())
    }

    /// Does something as a server that may be killed in the middle.
    fn act(&mut self, act: impl FnOnce(&mut World) -> Result<(), Killed>) {
        if act(self).is_err() {
            self.fuse = None;
            self.is_dead = true;
        }
    }

    // ---- at random ----------------------------------------------------------------------------------

    fn run(&mut self, steps: usize) {
        let kills = self.choices.in_ten(4);
        for _ in 0..steps {
            if self.choices.in_ten(2) {
                self.time += self.choices.one(&[1, T / 2, T, 2 * T, 3 * T, 8 * T]);
            }
            if self.is_dead {
                if self.choices.in_ten(1) {
                    return;
                }
                if self.choices.in_ten(2) {
                    self.fuse = Some(self.choices.below(8));
                }
                self.is_dead = false;
                self.act(World::takeover);
                continue;
            }
            if kills && self.fuse.is_none() && self.choices.in_ten(1) {
                self.fuse = Some(self.choices.below(20));
            }
            let key = self.choices.below(self.truth.len());
            self.act(|world| world.step(key));
        }
    }

    fn step(&mut self, key: usize) -> Result<(), Killed> {
        let sent = self.server.sent.len();
        match self.choices.below(20) {
            0..3 if sent < 2 => {
                let len = 1 + self.choices.below(self.len_max);
                self.send_begin(key, len)
            }
            0..10 if sent > 0 => {
                let nth = self.choices.below(sent);
                self.send_on(nth)
            }
            10 if sent > 0 => {
                let nth = self.choices.below(sent);
                self.send_never(nth);
                Ok(())
            }
            11 => self.put_short(key),
            12 => self.remove(key),
            13 | 14 => {
                let give_up = self.choices.in_ten(3);
                self.move_key(key, give_up)
            }
            15 => self.extent_move_begin(key),
            16 => self.swap(key),
            17.. => self.extent_move_on(),
            // All of it at once.
            _ => {
                let (len, before) = (1 + self.choices.below(self.len_max), self.server.sent.len());
                self.send_begin(key, len)?;
                while self.server.sent.len() > before {
                    self.send_on(before)?;
                }
                Ok(())
            }
        }
    }

    // ---- every way ----------------------------------------------------------------------------------

    /// So many things happen to key 0. The server may be killed at one store, and its successor at
    /// another. `None`: the kill came to nothing, so it is a world seen already.
    fn run_every(&mut self, steps: usize, kills: usize) -> Option<()> {
        let killed_in = self.choices.below(if kills > 0 { steps + 1 } else { 1 });
        for step in 1..=steps {
            if step == killed_in {
                self.fuse = Some(self.choices.below(10));
            }
            self.act(|world| world.step_every());
            if step == killed_in {
                self.fuse.take().map_or(Some(()), |_| None)?;
                if kills > 1 && self.choices.below(2) == 1 {
                    self.fuse = Some(self.choices.below(8));
                    self.act(World::takeover);
                    self.fuse.take().map_or(Some(()), |_| None)?;
                }
                self.is_dead = false;
                self.act(World::takeover);
            }
        }
        Some(())
    }

    fn step_every(&mut self) -> Result<(), Killed> {
        match self.choices.below(11) {
            0 => {
                self.send_begin(0, 2)?;
                self.send_all()
            }
            1 => self.remove(0),
            2 => self.put_short(0),
            3 => self.move_key(0, false),
            4 => self.move_key(0, true),
            // Another client's value, which takes memory for some time.
            5 => {
                let before = self.server.sent.len();
                self.send_begin(1, 2)?;
                if before < self.server.sent.len() {
                    self.send_on(before)?;
                    self.send_on(before)?;
                    self.send_never(before);
                }
                Ok(())
            }
            // Half a value, and the rest.
            6 => match self.server.sent.is_empty() {
                true => {
                    self.send_begin(0, 2)?;
                    if self.server.sent.is_empty() { Ok(()) } else { self.send_on(0) }
                }
                false => self.send_all(),
            },
            // Half a move of the extent, and the rest.
            7 => {
                let is_new = self.server.moved.is_none();
                self.extent_move_begin(0)?;
                self.extent_move_on()?;
                if is_new { Ok(()) } else { self.extent_move_all() }
            }
            8 => {
                self.extent_move_begin(0)?;
                self.extent_move_all()
            }
            // Until the first memory is due, or the last.
            9 => {
                let first = self.server.waiting.iter().map(|it| it.2).min();
                self.time = self.time.max(first.unwrap_or(0));
                Ok(())
            }
            _ => {
                let last = self.server.waiting.iter().map(|it| it.2).max();
                self.time = self.time.max(last.unwrap_or(0));
                Ok(())
            }
        }
    }

    fn send_all(&mut self) -> Result<(), Killed> {
        while !self.server.sent.is_empty() {
            self.send_on(0)?;
        }
        Ok(())
    }

    fn extent_move_all(&mut self) -> Result<(), Killed> {
        while self.server.moved.is_some() {
            self.extent_move_on()?;
        }
        Ok(())
    }

    // ---- what must hold, whoever reads --------------------------------------------------------------

    /// Whether a second look takes what it sees for what the first one saw.
    fn is_same(&self, first: Reference, second: Reference) -> bool {
        match self.broken {
            Broken::AddressLooked => (first.place, first.len) == (second.place, second.len),
            _ => first.number == second.number,
        }
    }

    /// What some reader could get wrong of this history: all instants at which it may sample are
    /// considered.
    fn wrong_for_some_reader(&self) -> Option<Verdict> {
        if self.is_swapped_wrongly {
            return Some(Verdict::Wrong);
        }
        for key in 0..self.truth.len() {
            for slot in &self.slots {
                for (from, to, content) in slot.periods() {
                    let Some(extent) = content.of(key) else { continue };
                    if self.truth[key]
                        .periods()
                        .any(|(begin, end, truth)| begin < to && end > from && truth != Some(extent.value))
                    {
                        return Some(Verdict::Wrong);
                    }
                    for nth in 0..extent.len {
                        let expected = Word { value: extent.value, nth };
                        let others = self.heap[extent.place + nth]
                            .periods()
                            .filter(|&(_, end, word)| end > from && word != expected);
                        for (begin, ..) in others {
                            // The first instant at which the word is wrong, and the last one before it
                            // at which the slot shows the extent.
                            let wrong = begin.max(from);
                            let seen = wrong.min(to - 1);
                            let in_time = wrong - seen < 2 * allowance(extent.len)
                                || self.broken == Broken::ClockTooLate;
                            let again = if self.broken == Broken::LookTooEarly { seen } else { wrong };
                            let looks_so = self.slots.iter().any(|slot| {
                                slot.periods().any(|(_, end, content)| {
                                    let same = |second| self.is_same(extent, second);
                                    end > again && content.of(key).is_some_and(|it| it.len > 0 && same(it))
                                })
                            });
                            if in_time || looks_so || self.broken == Broken::NoSecondLook {
                                return Some(Verdict::Wrong);
                            }
                        }
                    }
                }
            }
        }
        None
    }

    /// What is wrong at the end: values lost, memory that is nobody's.
    fn wrong_at_rest(&mut self) -> Option<Verdict> {
        self.fuse = None;
        if self.is_dead {
            self.takeover().expect("nobody kills it");
        }
        for (key, truth) in self.truth.iter().enumerate() {
            let reference = self.reference(key);
            if truth.now() != reference.map(|it| it.value) || self.slots_of(key).len() > 1 {
                return Some(Verdict::Lost);
            }
        }
        // Clients hang up, and moves end.
        while !self.server.sent.is_empty() {
            self.send_never(0);
        }
        while self.server.moved.is_some() {
            self.extent_move_on().expect("nobody kills it");
        }
        self.time += 2 * allowance(LEN_MAX);
        self.tidy();
        let named = (0..self.truth.len()).filter_map(|key| self.reference(key)).map(|it| it.len);
        let kept = self.server.has.iter().map(|it| it.1).sum::<usize>();
        assert!(self.server.waiting.is_empty(), "all is due");
        (kept > named.sum()).then_some(Verdict::Leak)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Verdict {
    /// The value, at some instant of the GET.
    Right,
    Absent,
    /// Bytes of another value, or of two.
    Wrong,
    /// Replaced faster than it was read; or the slot is torn, and no server mends it.
    GivenUp,
    /// A value is gone.
    Lost,
    /// Memory is gone.
    Leak,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum By {
    Clock,
    Counter,
    /// Not a reader: what must hold.
    All,
}

/// What made an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum How {
    Short,
    InTime,
    /// The extent was fetched beside the look, because it was remembered.
    Remembered,
    SecondLook,
    /// In time, after an extent that was replaced meanwhile.
    LaterRound,
    None,
}

/// What a look at the key showed.
enum Look {
    Value(Reference),
    Absent,
    Again,
}

/// What was fetched and does not count yet: words of an extent, from which one on, since when.
struct Held {
    extent: Reference,
    words: Vec<Word>,
    from: usize,
    fetched: i64,
}

struct Reader<'a> {
    world: &'a World,
    choices: &'a mut Choices,
    key: usize,
    begin: i64,
}

impl Reader<'_> {
    /// A cell, sampled between two instants.
    fn sample<X: Copy>(&mut self, cell: &History<X>, from: i64, to: i64) -> X {
        cell.at(self.choices.between(from, to))
    }

    /// An instant near a store, mostly.
    fn an_instant(world: &World, choices: &mut Choices) -> i64 {
        const NEAR: [i64; 14] = [-38, -30, -20, -15, -10, -8, -5, -3, -2, -1, 0, 1, 3, 8];
        if choices.in_ten(2) {
            return choices.between(0, world.time);
        }
        let slot = &world.slots[choices.below(world.slots.len())].0;
        (slot[choices.below(slot.len())].0 + choices.one(&NEAR)).max(0)
    }

    /// The client loses its processor, or not.
    fn pause(&mut self) -> i64 {
        self.choices.one(&[0, 0, 0, 1, 4, 4, 30, 3 * T, 7 * T])
    }

    /// The whole index is looked at: what is proven of it (G, E) is taken for granted. So a key that
    /// is found was in the slot that shows it, and one that is not was absent, or is looked for again.
    fn look(&mut self, from: i64, to: i64) -> Look {
        let first = self.choices.below(self.world.slots.len());
        for nth in 0..self.world.slots.len() {
            let slot = &self.world.slots[(first + nth) % self.world.slots.len()];
            if let Some(reference) = self.sample(slot, from, to).of(self.key) {
                return Look::Value(reference);
            }
        }
        let absent =
            |(begin, end, truth): (i64, i64, Option<u32>)| begin <= to && end > from && truth.is_none();
        if self.world.truth[self.key].periods().any(absent) { Look::Absent } else { Look::Again }
    }

    /// Whether these words are a value that the key had since the GET began.
    fn judge(&self, words: &[Word], first: usize, now: i64) -> Verdict {
        let value = words[0].value;
        let is_whole = words.iter().enumerate().all(|(nth, &word)| word == Word { value, nth: first + nth });
        self.judge_value(value, now, is_whole)
    }

    fn judge_value(&self, value: u32, now: i64, is_whole: bool) -> Verdict {
        let had = |(begin, end, truth): (i64, i64, Option<u32>)| {
            begin <= now && end > self.begin && truth == Some(value)
        };
        match is_whole && self.world.truth[self.key].periods().any(had) {
            true => Verdict::Right,
            false => Verdict::Wrong,
        }
    }

    /// X8: what the client saw of the key at any time before is fetched beside the look. `None`: the
    /// look shows something else, or it took too long.
    fn get_remembered(&mut self, rate: i64, now: &mut i64) -> Option<(Verdict, How)> {
        let posted = *now;
        let before = self.choices.between(0, posted);
        let Look::Value(first) = self.look(before, before) else { return None };
        if first.len == 0 {
            return None;
        }
        *now += self.choices.one(&[1, 3, 8, 20, T - 1, T + 5, 2 * T, 3 * T]);
        let words: Vec<Word> = (0..first.len)
            .map(|nth| self.sample(&self.world.heap[first.place + nth], posted, *now))
            .collect();
        let Look::Value(second) = self.look(posted, *now) else { return None };
        let is_same = second.len > 0 && self.world.is_same(first, second);
        let in_time =
            (*now - posted) / rate < allowance(first.len) || self.world.broken == Broken::NoSecondLook;
        (is_same && in_time).then(|| (self.judge(&words, 0, *now), How::Remembered))
    }

    /// A GET. X4: the first look names an extent; its words are fetched; in time they count. If not,
    /// and always by the counter, they count if another look names the same extent. What that look
    /// names otherwise is what is fetched next.
    fn get(&mut self, by: By) -> (Verdict, How) {
        let broken = self.world.broken;
        // A client's clock may run at half the server's rate.
        let rate = self.choices.one(&[1, 2, 2]);
        let mut now = self.begin;
        let mut held: Option<Held> = None;
        let mut is_later = false;
        if by == By::Clock && self.choices.in_ten(3) {
            match self.get_remembered(rate, &mut now) {
                Some(answer) => return answer,
                None => now += self.pause(),
            }
        }
        for _ in 0..ROUNDS_MAX {
            let mut posted = now;
            now += match by {
                By::Counter => self.choices.one(&[0, 0, 1, 5]),
                _ => self.choices.one(&[1, 3, 8, 20, T - 1]),
            };
            let look = match &held {
                Some(held) if broken == Broken::LookTooEarly => {
                    (posted, now) = (held.fetched, posted);
                    self.look(posted, posted)
                }
                _ => self.look(posted, now),
            };
            let extent = match look {
                Look::Again => {
                    now += self.pause();
                    continue;
                }
                Look::Absent => return (Verdict::Absent, How::None),
                Look::Value(reference) => reference,
            };
            if extent.len == 0 {
                return (self.judge_value(extent.value, now, true), How::Short);
            }
            if let Some(Held { extent: first, words, from, .. }) = held.take() {
                if self.world.is_same(first, extent) {
                    return (self.judge(&words, from, now), How::SecondLook);
                }
                is_later = true;
            }
            now += self.pause();
            // All of the value, or a part.
            let from = self.choices.below(extent.len);
            let len = 1 + self.choices.below(extent.len - from);
            let fetched = now;
            now += self.choices.one(&[0, 3, 20, T - 1, T + 5, 2 * T, 3 * T, 8 * T]);
            let words: Vec<Word> = (from..from + len)
                .map(|nth| self.sample(&self.world.heap[extent.place + nth], fetched, now))
                .collect();
            let since = if broken == Broken::ClockTooLate { fetched } else { posted };
            let in_time = by == By::Clock && (now - since) / rate < allowance(extent.len);
            if in_time || broken == Broken::NoSecondLook {
                let how = if is_later { How::LaterRound } else { How::InTime };
                return (self.judge(&words, from, now), how);
            }
            held = Some(Held { extent, words, from, fetched });
            now += self.pause();
        }
        (Verdict::GivenUp, How::None)
    }
}

/// Answers, counted.
type Answers = BTreeMap<(By, Verdict, How), u64>;

/// One world, some readers. What happened in it.
fn answers(broken: Broken, seed: u64, all: &mut Answers) -> BTreeMap<Event, u64> {
    let mut choices = Choices::Random(mix(seed));
    let steps = 3 + choices.below(80);
    let len_max = 1 + choices.below(LEN_MAX);
    let mut world = World::new(choices, broken, [5, 4 + seed as usize % 5, 2, len_max]);
    world.run(steps);
    let mut choices = Choices::Random(mix(!seed));
    for _ in 0..8 {
        for by in [By::Clock, By::Counter] {
            let key = choices.below(world.truth.len());
            let begin = Reader::an_instant(&world, &mut choices);
            let mut reader = Reader { world: &world, choices: &mut choices, key, begin };
            let (verdict, how) = reader.get(by);
            *all.entry((by, verdict, how)).or_default() += 1;
        }
    }
    let some = world.wrong_for_some_reader();
    for verdict in some.into_iter().chain(world.wrong_at_rest()) {
        *all.entry((By::All, verdict, How::None)).or_default() += 1;
    }
    world.events
}

fn is_wrong(verdict: Verdict) -> bool {
    matches!(verdict, Verdict::Wrong | Verdict::Lost | Verdict::Leak)
}

/// Whether a broken rule shows in what is left at the end, not in what readers get.
fn shows_at_rest(broken: Broken) -> bool {
    broken == Broken::DroppedStays
}

/// The first seed that shows the broken rule to a reader, or at the end.
fn first_wrong(broken: Broken, seeds: std::ops::Range<u64>) -> Option<(u64, Answers)> {
    seeds.into_iter().find_map(|seed| {
        let mut found = Answers::new();
        answers(broken, seed, &mut found);
        found.retain(|&(_, verdict, _), _| is_wrong(verdict));
        let is_by_all = found.keys().any(|&(by, verdict, _)| by == By::All && verdict == Verdict::Wrong);
        found.retain(|&(by, ..), _| by != By::All || shows_at_rest(broken));
        assert!(
            found.is_empty() || is_by_all || shows_at_rest(broken),
            "seed {seed}: a reader that is none of all"
        );
        (!found.is_empty()).then_some((seed, found))
    })
}

/// Every world of so many steps, with so many kills, and every reader of it: how many there were, and
/// the first that is wrong as the broken rule would have it.
fn every(broken: Broken, steps: usize, kills: usize) -> (u64, Option<(Verdict, Vec<usize>)>) {
    let (mut way, mut worlds) = (Vec::new(), 0);
    loop {
        let choices = Choices::Every { way, at: 0 };
        let mut world = World::new(choices, broken, [2, 4, 2, 2]);
        let is_new = world.run_every(steps, kills).is_some();
        worlds += u64::from(is_new);
        let mut wrong = None;
        if is_new {
            wrong = world.wrong_for_some_reader();
            if wrong.is_none() && (shows_at_rest(broken) || broken == Broken::Nothing) {
                wrong = world.wrong_at_rest();
            }
        }
        let Choices::Every { way: taken, .. } = world.choices else { unreachable!() };
        way = taken;
        if let Some(verdict) = wrong {
            return (worlds, Some((verdict, way.iter().map(|it| it.0).collect())));
        }
        if !Choices::next_way(&mut way) {
            return (worlds, None);
        }
    }
}

fn is_long() -> bool {
    std::env::var_os("ONEREAD_LONG").is_some()
}

/// Nothing is wrong at random, and every kind of answer and event came often enough to say something.
#[test]
fn nothing_is_wrong() {
    use Verdict::{GivenUp, Right};
    let seeds = if is_long() { 20_000_000 } else { 200_000 };
    let (mut all, mut events) = (Answers::new(), BTreeMap::new());
    for seed in 0..seeds {
        for (event, times) in answers(Broken::Nothing, seed, &mut all) {
            *events.entry(event).or_insert(0) += times;
        }
        let wrong = all.keys().find(|&&(_, verdict, _)| is_wrong(verdict));
        assert_eq!(wrong, None, "seed {seed}");
    }
    println!("{all:#?}\n{events:#?}");
    let often = |times: Option<&u64>| times.is_some_and(|&times| times > seeds / 1_000);
    for (by, how) in [
        (By::Clock, How::Short),
        (By::Clock, How::InTime),
        (By::Clock, How::Remembered),
        (By::Clock, How::SecondLook),
        (By::Clock, How::LaterRound),
        (By::Counter, How::Short),
        (By::Counter, How::SecondLook),
    ] {
        assert!(often(all.get(&(by, Right, how))), "{by:?}, {how:?}");
    }
    assert!(often(all.get(&(By::Counter, GivenUp, How::None))));
    for event in EVENTS {
        assert!(often(events.get(&event)), "{event:?}");
    }
}

#[test]
fn every_broken_rule_is_found() {
    for broken in ALL {
        let found = first_wrong(broken, 0..20_000_000);
        println!("{broken:?}: {found:?}");
        assert!(found.is_some(), "{broken:?}");
    }
}

#[test]
fn nothing_is_wrong_in_any_small_world() {
    for (steps, kills) in if is_long() { [(7, 0), (5, 1), (5, 2)] } else { [(5, 0), (4, 1), (3, 2)] } {
        let (worlds, wrong) = every(Broken::Nothing, steps, kills);
        println!("{steps} steps, {kills} kills: {worlds} worlds");
        assert_eq!(wrong, None);
    }
}

#[test]
fn every_broken_rule_is_found_in_a_small_world() {
    for broken in ALL {
        let found = every(broken, 4, 1);
        println!("{broken:?}: {found:?}");
        assert!(found.1.is_some(), "{broken:?}");
    }
}
