//! The GET machine: it names a window to READ, takes what came back, and names the next step.
//!
//! One machine serves every layout and fabric. It has no clock, socket, thread or memory of the
//! region. The same calls with the same answers always lead to the same verdict, so a simulator can
//! drive it through every interleaving. [`Client`](crate::Client) drives it over a
//! [`Fabric`](crate::fabric::Fabric).
//!
//! # The algorithm
//!
//! ```text
//! pass:   READ the primary window.            key in a valid slot     -> Found
//!         any slot torn?                                              -> new pass
//!         home's filter names the key?        READ its next window, and so on
//!         nothing found:                      judge
//! judge:  shm: the counter of begun moves did not change              -> Absent
//!         network: the pass took less than the grace time,
//!           and every ghost of the key was already there last pass    -> Absent
//!         otherwise                                                   -> new pass
//! ```
//!
//! Where the client remembers slots ([`Hints`](crate::hints::Hints)), a GET begins with these:
//!
//! ```text
//! hint:   READ the one or two slots that hints name.   key in a valid slot  -> Found
//!         otherwise                                                         -> a pass, as above
//! ```
//!
//! So does one whose client has seen keys in the child of a split that is under way: it READs the window there first.
//!
//! A value that is not in its slot, but where this says, takes one READ more (X4, `reader/values.rs`).
//!
//! In a table that grows, a GET also finds its way through the directory (`route`):
//!
//! ```text
//! network:  a remembered entry, or READ it.   a pass where it says
//!           the home is split or merged?      READ the entry, a pass where it says, and then on to the
//!                                             pending child or parent
//! shm:      entry, a pass.   it names no pair?  judge
//!           on to the pending child or parent if the home says so; the entry again: the same?  judge
//! ```
//!
//! A hit needs no proof: the slot's sample is the instant at which the GET takes effect. A hit in a
//! slot of several lines needs the clock (G7).
//!
//! # Why a miss is right
//!
//! Say that a key was there all through a pass, first in slot `p`. `p` was sampled (G3).
//! Network: the sample shows the key (G1), or it has left `p` by a move, and the sample shows its
//! ghost, new since the previous pass (G2, G5). Ghost and filter bit stay for 2T, the pass took
//! less (G4). Shm: the counter goes up before a move overwrites a slot (M4). It did not change
//! (G6), so the key did not leave its slot. docs/PROTOCOL.md has the proof.
//!
//! `kept` is a switch of `src/faults.rs`: in a real build, the condition is always checked.

pub(crate) mod route;

use crate::faults::{Rule, breaking, broken, disobey, kept};
use crate::get::route::{EntrySays, Onward, Reads, SegmentRoute};
use crate::layout::chain::CHAIN_MAX;
use crate::layout::extent::Reference;
use crate::layout::geometry::{Geometry, SlotIx, Window};
use crate::layout::hash::{First, Hashed};
use crate::layout::long::SoughtKey;
use crate::layout::segment::{DirectoryEntry, HomeState, KnownEntry, Named};
use crate::layout::slot::Header;
use crate::placement::families;
use crate::sink::Sink;
use smallvec::SmallVec;
use std::time::Duration;

/// What a slot showed when a GET looked in it for a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Look {
    /// The slot holds the key. The value has been copied out.
    Match,
    /// The slot holds the key, and says where its value is.
    Reference(Reference),
    /// The slot holds another key, or none. The header is part of the same consistent sample.
    Other(Header),
    /// No consistent sample: the slot is being written, or was during the look.
    Torn,
}

impl Look {
    /// Where the slot says that the key's value is.
    pub(crate) fn reference(self) -> Option<Reference> {
        if let Look::Reference(reference) = self { Some(reference) } else { None }
    }
}

/// A window as a READ brought it. Its slots may be looked at in any order.
pub trait Landed {
    /// Looks for a key in `slot`. On [`Look::Match`] the value was put into `value`. On any other result,
    /// what was put there does not count. Of a key that does not fit its slot, [`Look::Reference`] says that the
    /// digest is the same, and that the extent is none of the others' (F1, F2).
    fn look(&mut self, slot: SlotIx, wanted: SoughtKey<'_>, value: &mut impl Sink) -> Look;

    /// The slot of `window` to look at first: one that seems to hold the key. The glance proves
    /// nothing. It saves a hit the validation of the other slots, where that costs more than the
    /// glance.
    #[inline]
    fn glance(&self, window: Window, wanted: SoughtKey<'_>) -> Option<SlotIx> {
        let _ = (window, wanted);
        None
    }

    /// The words of the directory entry in `slot`. `None` if the slot is being written, or has none.
    fn entry(&self, slot: SlotIx) -> Option<[u64; 2]> {
        let _ = slot;
        None
    }

    /// The first hash of the key that seems to be in `slot`. It proves nothing: it is for hints.
    fn occupant(&self, slot: SlotIx) -> Option<First> {
        let _ = slot;
        None
    }
}

/// What a fabric says, at the end of a pass, about moves that the pass may not have seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Proof {
    /// By the counter: no move of a key with this home was counted during the pass.
    NoMove,
    /// By the counter: one was.
    Moved,
    /// By the clock: the pass took less than the grace time.
    InGrace,
    /// By the clock: it took the grace time or longer.
    Late,
}

impl Proof {
    /// The proof over a network: the pass took `took_ns` by the client's clock, and `grace` is the
    /// table's grace time.
    #[inline]
    pub fn by_clock(took_ns: u64, grace: Duration) -> Proof {
        if u128::from(took_ns) < grace.as_nanos() { Proof::InGrace } else { Proof::Late }
    }

    /// The proof on shm: the counter of begun moves for the key's home, before and after the pass.
    /// It goes up in the middle of a move: the copy is live, the original not yet overwritten (M4).
    #[inline]
    pub fn by_counter(before: u64, after: u64) -> Proof {
        if kept(Rule::MoveCounter, || before == after) { Proof::NoMove } else { Proof::Moved }
    }
}

/// What the machine wants next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// READ this window and [`feed`](Get::feed) it; the pass goes on.
    Read(Window),
    /// The pass showed nothing, or a value that needs proof. Get a [`Proof`] for the pass and
    /// [`judge`](Get::judge) it.
    Judge,
    /// Start a new pass, for this reason: take a new mark, then READ this window.
    Again(Window, Retry),
    /// The key's value has been copied out, or the slot says where it is ([`Get::reference`]).
    Found,
    /// The key was absent at some instant of the pass.
    Absent,
}

/// Why a pass was not conclusive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Retry {
    /// A slot was being written.
    Torn,
    /// The key may have been moved during the pass.
    Moved,
    /// The pass took the grace time or longer.
    Late,
    /// The chain had more blocks than any sound chain has.
    Chain,
    /// The value was replaced, or moved, while it was read.
    Replaced,
    /// The extent was another key's, whose digest is the same (F2).
    OtherKey,
}

/// Ghosts of the key that a pass saw: slot, stamp, and use of the memory. There is rarely one, and never
/// more than the pass has slots.
type Ghosts = SmallVec<[(SlotIx, u32, u32); 2]>;

/// One GET in progress.
#[derive(Debug)]
pub struct Get<'a> {
    geometry: &'a Geometry,
    key: Hashed<'a>,
    /// Extents that are other keys' of the same digest.
    others: &'a [u64],
    ghost: u8,
    primary: Window,
    /// The window being read, and the number of windows that this pass has read before it.
    window: Window,
    read: u32,
    /// `aux` of the home slot, and of the first slot of the last window, in this pass.
    home_aux: u32,
    head_aux: u32,
    ghosts: Ghosts,
    /// Ghosts of the previous pass.
    before: Ghosts,
    found: bool,
    reference: Option<Reference>,
    /// The way through the directory, in a table that grows.
    route: Option<SegmentRoute>,
}

impl<'a> Get<'a> {
    /// A GET of `key`. Only keys of 1 to [`Geometry::key_max`] bytes can be found. Start with
    /// [`Get::start`].
    #[inline]
    pub fn new(geometry: &'a Geometry, key: &'a [u8]) -> Get<'a> {
        let key = geometry.hashed(key);
        let primary = geometry.primary(key);
        Get {
            geometry,
            key,
            others: &[],
            ghost: key.ghost(),
            primary,
            window: primary,
            read: 0,
            home_aux: 0,
            head_aux: 0,
            ghosts: Ghosts::new(),
            before: Ghosts::new(),
            found: false,
            reference: None,
            route: None,
        }
    }

    /// A GET in a table that grows. `known` is an entry of the key, as old as it may be, with which the
    /// first pass begins; without it, that begins with the READ of the entry. By the counter every pass
    /// does. Where keys have gone to the entry's pending child, the GET looks there first (G9).
    pub(crate) fn by_directory(
        geometry: &'a Geometry,
        key: &'a [u8],
        known: Option<KnownEntry>,
        bits: u32,
        by_counter: bool,
    ) -> Get<'a> {
        let mut get = Get::new(geometry, key);
        let known = known.filter(|_| !by_counter);
        let entry = known.map(|known| known.entry);
        let (mut route, first) = SegmentRoute::new(get.key.first().directory(), entry, bits, by_counter);
        let ahead = known.filter(|known| known.keys_have_gone).and_then(|_| route.look_ahead());
        get.route = Some(route);
        match entry {
            Some(entry) => get.go(entry.segment),
            None => get.window = first,
        }
        if let Some(child) = ahead {
            get.window = get.window_in(child);
        }
        get
    }

    /// This GET, which passes over these extents (F2).
    pub(crate) fn past(self, others: &'a [u64]) -> Get<'a> {
        Get { others, ..self }
    }

    /// The entry that this GET has READ and went by, for the client to remember.
    #[inline]
    pub(crate) fn learned(&self) -> Option<(u32, DirectoryEntry)> {
        self.route.as_ref().and_then(SegmentRoute::learned)
    }

    /// Of a GET that has found a key which goes to a pending child: the depth of its entry, and whether the child has the
    /// key by now. For the client to remember.
    #[inline]
    pub(crate) fn found_ahead(&self) -> Option<(u32, bool)> {
        let route = self.route.as_ref()?;
        let (child, depth) = route.goes_to()?;
        Some((depth, route.is_in(child) || self.window == self.window_in(child)))
    }

    /// Where the value is that was found, if it is not in the slot.
    #[inline]
    pub fn reference(&self) -> Option<Reference> {
        self.reference
    }

    /// The table's geometry.
    #[inline]
    pub(crate) fn geometry(&self) -> &'a Geometry {
        self.geometry
    }

    /// The window of the first READ, or of the first after [`Step::Again`].
    #[inline]
    pub fn start(&self) -> Window {
        self.window
    }

    /// The key's home. A fabric takes its mark for this home.
    #[inline]
    pub fn home(&self) -> u64 {
        self.key.home()
    }

    /// The key.
    #[inline]
    pub(crate) fn key(&self) -> Hashed<'a> {
        self.key
    }

    /// The window being READ.
    #[inline]
    pub(crate) fn window(&self) -> Window {
        self.window
    }

    /// Whether the next READ begins a pass. If so, take the mark right before it.
    #[inline]
    pub fn begins_pass(&self) -> bool {
        self.read == 0 && self.route.as_ref().is_none_or(|route| route.begins)
    }

    /// Takes in the window that was asked for. `exact` says that the fabric's samples prove a hit
    /// by themselves (shm). Without it, a hit in a slot of several lines is judged as well, because
    /// the short copies of its stamp wrap (G7).
    #[inline]
    pub fn feed<L: Landed>(&mut self, landed: &mut L, exact: bool, value: &mut impl Sink) -> Step {
        if let Some(route) = &mut self.route {
            route.begins = false;
            match route.reads() {
                Reads::Window => {}
                Reads::Ahead => return self.looked_ahead(landed, exact, value),
                Reads::Entry | Reads::EntryAgain => return self.told(landed.entry(self.window.first)),
            }
        }
        let mut torn = false;
        let wanted = SoughtKey { key: self.key, others: self.others };
        let likely = landed.glance(self.window, wanted);
        let others = self.window.iter().filter(|slot| Some(*slot) != likely);
        for slot in likely.into_iter().chain(others) {
            match landed.look(slot, wanted, value) {
                look @ (Look::Match | Look::Reference(_)) => {
                    self.reference = look.reference();
                    if exact || self.geometry.shape().lines() == 1 {
                        return Step::Found;
                    }
                    self.found = true;
                    return Step::Judge;
                }
                Look::Torn => torn = true,
                Look::Other(header) => self.note(slot, &header),
            }
        }
        if torn {
            return self.again(Retry::Torn);
        }
        self.read += 1;
        if self.read > CHAIN_MAX {
            return self.again(Retry::Chain);
        }
        match self.next_window() {
            Some(window) => {
                self.window = window;
                Step::Read(window)
            }
            None if self.route.as_ref().is_some_and(|route| route.by_counter) => self.at_the_end(),
            None => Step::Judge,
        }
    }

    /// Concludes a pass that showed nothing, or a hit that needs proof, by the fabric's proof.
    #[inline]
    pub fn judge(&mut self, proof: Proof) -> Step {
        if proof == Proof::Moved {
            return self.again(Retry::Moved);
        }
        let in_time = kept(Rule::ClientClock, || proof != Proof::Late);
        if self.found && in_time {
            return Step::Found;
        }
        if proof != Proof::NoMove
            && let Some(step) = self.on_the_way(in_time)
        {
            return step;
        }
        if !in_time {
            return self.again(Retry::Late);
        }
        if proof == Proof::NoMove || kept(Rule::ClientGhost, || self.no_new_ghost()) {
            return Step::Absent;
        }
        self.again(Retry::Moved)
    }

    /// The next window, if the home's filter says that the key may be there.
    #[inline]
    fn next_window(&self) -> Option<Window> {
        if !families::may_be_displaced(self.geometry, self.key, self.home_aux) {
            return None;
        }
        let next = families::after(self.geometry, self.key, self.read, self.head_aux)?;
        Some(match &self.route {
            None => next,
            Some(route) => route.place(self.geometry, next),
        })
    }

    #[inline]
    fn note(&mut self, slot: SlotIx, header: &Header) {
        if slot == self.window.first {
            self.head_aux = header.aux;
            if slot == self.primary.first {
                self.home_aux = header.aux;
            }
        }
        if header.ghost == self.ghost {
            self.ghosts.push((slot, header.stamp, self.window.incarnation));
        }
    }

    fn no_new_ghost(&self) -> bool {
        let is_old = |&(slot, stamp, used): &(SlotIx, u32, u32)| {
            let same = |&(old_slot, old_stamp, old_use): &(SlotIx, u32, u32)| {
                old_slot == slot && old_use == used && kept(Rule::GhostStamp, || old_stamp == stamp)
            };
            self.before.iter().any(same)
        };
        self.ghosts.iter().all(is_old)
    }

    fn again(&mut self, why: Retry) -> Step {
        self.before = std::mem::take(&mut self.ghosts);
        self.begin_window(self.primary);
        if self.route.as_ref().is_some_and(|route| why == Retry::Torn || route.was_asked()) {
            // What was seen may be another use of the memory. On shm each pass begins with the entry.
            return self.ask(why);
        }
        if let Some(route) = &mut self.route {
            route.begins = true;
        }
        Step::Again(self.window, why)
    }

    /// A new pass begins with the READ of the directory entry.
    fn ask(&mut self, why: Retry) -> Step {
        self.before.extend(std::mem::take(&mut self.ghosts));
        if let Some(route) = &mut self.route {
            route.begins = true;
            let window = route.ask();
            self.begin_window(window);
        }
        Step::Again(self.window, why)
    }

    fn begin_window(&mut self, window: Window) {
        self.found = false;
        self.read = 0;
        self.home_aux = 0;
        self.head_aux = 0;
        self.window = window;
    }
}

/// The way through the directory (E8, E9).
impl Get<'_> {
    /// The next window is the key's primary one in this segment.
    fn go(&mut self, segment: Named) {
        self.primary = self.window_in(segment);
        self.begin_window(self.primary);
    }

    /// The key's primary window in this segment.
    fn window_in(&self, segment: Named) -> Window {
        let window = self.geometry.primary(self.key);
        window.of_segment(self.geometry.segment_first(segment.memory), segment.incarnation)
    }

    /// The key's window in the pending child was READ before the first pass. A key there counts as any other hit does; that
    /// it is not there says nothing (G9).
    #[cold]
    fn looked_ahead<L: Landed>(&mut self, landed: &mut L, exact: bool, value: &mut impl Sink) -> Step {
        if let Some(route) = &mut self.route {
            route.has_looked_ahead();
        }
        let wanted = SoughtKey { key: self.key, others: self.others };
        for slot in self.window.iter() {
            let look = breaking(Rule::HintHit, &[Rule::StampCheck, Rule::CrcCheck], || {
                landed.look(slot, wanted, value)
            });
            match look {
                Look::Match | Look::Reference(_) => {
                    self.reference = look.reference();
                    if exact || self.geometry.shape().lines() == 1 {
                        return Step::Found;
                    }
                    self.found = true;
                    return Step::Judge;
                }
                Look::Other(_) | Look::Torn => {}
            }
        }
        if broken(Rule::HintMiss) {
            return Step::Absent;
        }
        self.begin_window(self.primary);
        Step::Read(self.window)
    }

    /// Takes in the entry that was asked for.
    #[cold]
    fn told(&mut self, words: Option<[u64; 2]>) -> Step {
        let Some(route) = &mut self.route else { return Step::Judge };
        let entry = words.and_then(|words| DirectoryEntry::from_words(self.geometry, words));
        // A new pass, also at the end of one: the entry may be the same again by then.
        let Some(entry) = entry else { return self.ask(Retry::Torn) };
        match route.take(entry) {
            EntrySays::Deeper(window) => {
                self.window = window;
                Step::Read(window)
            }
            EntrySays::Same => Step::Judge,
            EntrySays::Changed => self.again(Retry::Moved),
            EntrySays::Go(segment) => {
                let child = route.child_at_once();
                self.go(segment);
                if let Some(child) = child {
                    self.go(child);
                }
                if child.is_some() || broken(Rule::EntryBound) {
                    self.route.as_mut().expect("it was told").begins = true;
                    return Step::Again(self.window, Retry::Moved);
                }
                Step::Read(self.window)
            }
        }
    }

    /// A pass on shm is at the end of its windows: where the entry names a pair, it goes on to the pending segment
    /// if the home says so, and then looks at the entry again (E8).
    #[cold]
    fn at_the_end(&mut self) -> Step {
        let home = HomeState::of(self.home_aux);
        let Some(route) = &mut self.route else { return Step::Judge };
        match route.other_side(home) {
            Some(segment) => self.go(segment),
            None if route.is_alone() => return Step::Judge,
            None => self.window = route.ask_again(),
        }
        Step::Read(self.window)
    }

    /// A pass by the clock showed nothing. Returns where to look next if the home is split or merged (E9).
    #[inline]
    fn on_the_way(&mut self, in_time: bool) -> Option<Step> {
        self.route.as_ref()?;
        self.on_its_way(in_time)
    }

    #[cold]
    fn on_its_way(&mut self, in_time: bool) -> Option<Step> {
        let (home, route) = (HomeState::of(self.home_aux), self.route.as_mut()?);
        match route.next(home, in_time) {
            Onward::Ask => {
                self.before.clear();
                Some(self.ask(Retry::Moved))
            }
            Onward::Parent(segment) => {
                // E9: the ghosts of the child's window count as well.
                disobey(Rule::BothWindows, || self.before.append(&mut self.ghosts));
                self.go(segment);
                Some(Step::Read(self.window))
            }
            Onward::Child(segment) => {
                route.begins = true;
                self.before = std::mem::take(&mut self.ghosts);
                self.go(segment);
                Some(Step::Again(self.window, Retry::Moved))
            }
            Onward::Judge => None,
        }
    }
}

/// The first step of a GET whose client remembers where the key may be: it looks in single slots.
#[derive(Debug)]
pub struct HintedLook<'a> {
    geometry: &'a Geometry,
    key: Hashed<'a>,
    found: Option<SlotIx>,
    reference: Option<Reference>,
}

impl<'a> HintedLook<'a> {
    /// A look for a key of 1 to [`Geometry::key_max`] bytes.
    #[inline]
    pub fn new(geometry: &'a Geometry, key: Hashed<'a>) -> HintedLook<'a> {
        HintedLook { geometry, key, found: None, reference: None }
    }

    /// Takes in one slot. Returns whether the key is in it.
    #[inline]
    pub fn feed<L: Landed>(&mut self, slot: SlotIx, landed: &mut L, value: &mut impl Sink) -> bool {
        if self.found.is_none() {
            // G9: as valid as any other hit.
            let look = breaking(Rule::HintHit, &[Rule::StampCheck, Rule::CrcCheck], || {
                landed.look(slot, SoughtKey { key: self.key, others: &[] }, value)
            });
            self.reference = look.reference();
            self.found = matches!(look, Look::Match | Look::Reference(_)).then_some(slot);
        }
        self.found == Some(slot)
    }

    /// Concludes the look. `exact` is that of [`Get::feed`]; the proof is asked for only where a
    /// hit needs one. `None`: the hint says nothing, and a [`Get`] begins.
    #[inline]
    pub fn judge(&self, exact: bool, proof: impl FnOnce() -> Proof) -> Option<Step> {
        if self.found.is_some()
            && (self.is_proof(exact) || kept(Rule::ClientClock, || proof() != Proof::Late))
        {
            return Some(Step::Found);
        }
        // G9: a hint's miss says nothing.
        broken(Rule::HintMiss).then_some(Step::Absent)
    }

    /// Where the value is that was found, if it is not in the slot.
    pub fn reference(&self) -> Option<Reference> {
        self.reference
    }

    /// Whether a valid slot proves a hit by itself. If not, take a mark before the READs (G7).
    #[inline]
    pub fn is_proof(&self, exact: bool) -> bool {
        exact || self.geometry.shape().lines() == 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Config, TableSize};
    use crate::layout::chain::{Block, with_link};
    use crate::layout::hash::Seeds;
    use crate::layout::segment::Pending;

    /// Slots that show what the function says.
    struct Showing<F>(F);

    impl<F: FnMut(SlotIx) -> Look> Landed for Showing<F> {
        fn look(&mut self, slot: SlotIx, _: SoughtKey<'_>, _value: &mut impl Sink) -> Look {
            (self.0)(slot)
        }
    }

    fn geometry(layout: &str, slots: u64, value_max: usize) -> Geometry {
        let layout = layout.parse().unwrap();
        let seeds = Some(Seeds::from_number(1));
        let size = TableSize::Slots(slots);
        Config { layout, size, key_max: 8, value_max, seeds, ..Config::default() }.geometry().unwrap()
    }

    /// A hit in a slot of several lines needs the clock, because the short copies of its stamp
    /// wrap. A hit in a slot of one line needs none, nor does one whose fabric gives exact samples.
    #[test]
    fn hits_in_several_lines_need_the_clock() {
        for (value_max, exact, at_once) in
            [(8, false, true), (40, false, true), (100, false, false), (8, true, true), (100, true, true)]
        {
            let geometry = geometry("cluster", 8, value_max);
            let mut get = Get::new(&geometry, b"key");
            let mut hit = || get.feed(&mut Showing(|_| Look::Match), exact, &mut Vec::new());
            let expected = if at_once { Step::Found } else { Step::Judge };
            assert_eq!(hit(), expected, "{value_max} bytes, exact: {exact}");
            if !at_once {
                assert_eq!(get.judge(Proof::Late), Step::Again(get.start(), Retry::Late));
                assert_eq!(get.feed(&mut Showing(|_| Look::Match), exact, &mut Vec::new()), Step::Judge);
                assert_eq!(get.judge(Proof::InGrace), Step::Found);
            }
        }
    }

    /// A pass is trusted if it took less than the grace time. With a grace time of zero no pass is.
    #[test]
    fn passes_are_trusted_below_the_grace_time() {
        let ns = Duration::from_nanos;
        for (took_ns, grace, proof) in [
            (0, ns(400), Proof::InGrace),
            (399, ns(400), Proof::InGrace),
            (400, ns(400), Proof::Late),
            (u64::MAX, ns(400), Proof::Late),
            (0, ns(0), Proof::Late),
        ] {
            assert_eq!(Proof::by_clock(took_ns, grace), proof, "{took_ns} of {grace:?}");
        }
        assert_eq!(Proof::by_counter(7, 7), Proof::NoMove);
        assert_eq!(Proof::by_counter(7, 8), Proof::Moved);
    }

    /// A hit that came too late is forgotten. If the key is gone at the next look, it is absent.
    #[test]
    fn a_late_hit_is_forgotten() {
        let geometry = geometry("cluster", 8, 100);
        let mut get = Get::new(&geometry, b"key");
        let free = Header { stamp: 2, crc: 0, klen: 0, ghost: 0, vlen: 0, aux: 0 };
        let feed = |get: &mut Get<'_>, look| get.feed(&mut Showing(|_| look), false, &mut Vec::new());
        assert_eq!(feed(&mut get, Look::Match), Step::Judge);
        assert_eq!(get.judge(Proof::Late), Step::Again(get.start(), Retry::Late));
        assert_eq!(feed(&mut get, Look::Torn), Step::Again(get.start(), Retry::Torn));
        assert_eq!(feed(&mut get, Look::Other(free)), Step::Judge);
        assert_eq!(get.judge(Proof::InGrace), Step::Absent);
    }

    /// Ghosts of the key by slot and stamp, pass after pass, with the fabric's proof for each. A
    /// ghost is old if the previous pass saw it in the same slot under the same stamp, however that
    /// pass ended. One new ghost among old ones is enough for another pass. With a proof by
    /// the counter ghosts do not matter.
    #[test]
    fn ghosts_are_remembered_for_one_pass() {
        let geometry = geometry("cluster", 8, 8);
        let tag = geometry.hashed(b"key").ghost();
        let first = Get::new(&geometry, b"key").start().first.0;
        let (absent, moved) = (Step::Absent, Step::Again(Get::new(&geometry, b"key").start(), Retry::Moved));
        // The ghosts that the slots show, whether a slot is torn, and the proof.
        type Looked<'a> = (&'a [(u64, u32)], bool, Proof);
        let cases: &[(&[Looked<'_>], Step)] = &[
            (&[(&[], false, Proof::InGrace)], absent),
            (&[(&[(0, 4)], false, Proof::InGrace)], moved),
            (&[(&[(3, 4)], false, Proof::NoMove)], absent),
            (&[(&[], false, Proof::Moved)], moved),
            (&[(&[(3, 4)], false, Proof::Moved), (&[(3, 4)], false, Proof::Moved)], moved),
            (&[(&[], false, Proof::Moved), (&[(3, 4)], false, Proof::NoMove)], absent),
            (&[(&[(3, 4)], false, Proof::InGrace), (&[(3, 4)], false, Proof::InGrace)], absent),
            (&[(&[(3, 4)], false, Proof::InGrace), (&[], false, Proof::InGrace)], absent),
            (&[(&[(3, 4)], false, Proof::InGrace), (&[(3, 6)], false, Proof::InGrace)], moved),
            (&[(&[(3, 4)], false, Proof::InGrace), (&[(2, 4)], false, Proof::InGrace)], moved),
            (&[(&[(3, 4)], false, Proof::Late), (&[(3, 4)], false, Proof::InGrace)], absent),
            (&[(&[(3, 4)], true, Proof::Late), (&[(3, 4)], false, Proof::InGrace)], absent),
            (
                &[(&[(3, 4)], false, Proof::Late), (&[(3, 4)], false, Proof::Late)],
                Step::Again(geometry.window(0), Retry::Late),
            ),
            (
                &[(&[(1, 4), (3, 8)], false, Proof::InGrace), (&[(1, 4), (3, 8)], false, Proof::InGrace)],
                absent,
            ),
            (&[(&[(1, 4)], false, Proof::InGrace), (&[(1, 4), (3, 8)], false, Proof::InGrace)], moved),
            (&[(&[(3, 8)], false, Proof::InGrace), (&[(1, 4), (3, 8)], false, Proof::InGrace)], moved),
            (
                &[
                    (&[(1, 4), (3, 8)], false, Proof::Late),
                    (&[(1, 4), (3, 8), (5, 8)], false, Proof::InGrace),
                ],
                moved,
            ),
        ];
        for (passes, expected) in cases {
            let mut get = Get::new(&geometry, b"key");
            let mut verdict = None;
            for (ghosts, torn, proof) in *passes {
                let show = |slot: SlotIx| {
                    let seen = ghosts.iter().find(|(at, _)| first + at == slot.0);
                    let (stamp, ghost) = seen.map_or((2, tag % 255 + 1), |(_, stamp)| (*stamp, tag));
                    // The last slot is torn, after all that is seen.
                    match *torn && slot.0 == first + 7 {
                        true => Look::Torn,
                        false => Look::Other(Header { stamp, crc: 0, klen: 3, ghost, vlen: 0, aux: 0 }),
                    }
                };
                let fed = get.feed(&mut Showing(show), false, &mut Vec::new());
                verdict = Some(if *torn { fed } else { get.judge(*proof) });
            }
            assert_eq!(verdict.as_ref(), Some(expected), "{passes:?}");
        }
    }

    /// What a late pass said of where the value is does not count: it may be in its slot by now.
    #[test]
    fn a_late_reference_is_forgotten() {
        let geometry = geometry("cluster", 8, 100);
        let mut get = Get::new(&geometry, b"key");
        let place = Reference { number: 1, offset: 4096, len: 200, crc: 0 };
        let mut there = Showing(|_| Look::Reference(place));
        assert_eq!(get.feed(&mut there, false, &mut Vec::new()), Step::Judge);
        assert!(matches!(get.judge(Proof::Late), Step::Again(_, Retry::Late)));
        assert_eq!(get.feed(&mut Showing(|_| Look::Match), false, &mut Vec::new()), Step::Judge);
        assert_eq!((get.judge(Proof::InGrace), get.reference()), (Step::Found, None));
    }

    /// Of two slots that hints name, the first that has the key counts, and says where its value is. What the
    /// second shows changes nothing.
    #[test]
    fn the_first_hinted_slot_with_the_key_counts() {
        let geometry = geometry("cluster", 8, 8);
        let place = |number| Look::Reference(Reference { number, offset: 4096, len: 200, crc: 0 });
        let free = || Look::Other(Header { stamp: 4, crc: 0, klen: 0, ghost: 0, vlen: 0, aux: 0 });
        for (looks, found, number) in [
            ([place(1), free()], [true, false], Some(1)),
            ([place(1), place(2)], [true, false], Some(1)),
            ([place(1), Look::Match], [true, false], Some(1)),
            ([Look::Match, place(2)], [true, false], None),
            ([Look::Torn, place(2)], [false, true], Some(2)),
            ([free(), Look::Match], [false, true], None),
        ] {
            let mut look = HintedLook::new(&geometry, geometry.hashed(b"key"));
            for (slot, (shows, found)) in (0..).map(SlotIx).zip(looks.iter().zip(found)) {
                let mut landed = Showing(|_| *shows);
                assert_eq!(look.feed(slot, &mut landed, &mut Vec::new()), found, "{looks:?}");
            }
            assert_eq!(look.reference().map(|place| place.number), number, "{looks:?}");
            assert_eq!(look.judge(false, || Proof::InGrace), Some(Step::Found), "{looks:?}");
        }
    }

    /// A ghost of another use of the memory is a new one, though slot and stamp are the same.
    #[test]
    fn ghosts_are_of_one_use_of_the_memory() {
        /// Ghosts in the first slot; the last one may be torn. As an entry, the segment is of this use.
        struct InUse {
            first: SlotIx,
            tag: u8,
            torn: Option<SlotIx>,
            entry: DirectoryEntry,
        }

        impl Landed for InUse {
            fn look(&mut self, slot: SlotIx, _: SoughtKey<'_>, _value: &mut impl Sink) -> Look {
                let ghost = if slot == self.first { self.tag } else { 0 };
                let header = Header { stamp: 4, crc: 0, klen: 0, ghost, vlen: 0, aux: 0 };
                if self.torn == Some(slot) { Look::Torn } else { Look::Other(header) }
            }

            fn entry(&self, _slot: SlotIx) -> Option<[u64; 2]> {
                Some(self.entry.to_words())
            }
        }

        let size = TableSize::Growing { bytes_max: 1 << 20, segment_slots: Some(64) };
        let geometry = Config { size, ..Config::short() }.geometry().unwrap();
        let tag = geometry.hashed(b"key").ghost();
        let entry = |incarnation| {
            let segment = Named { memory: 0, incarnation };
            DirectoryEntry { segment, depth: 0, pending: Pending::Nothing }
        };
        for (used, is_absent) in [(5, true), (6, false)] {
            let mut get = Get::by_directory(&geometry, b"key", Some(entry(5).into()), 0, false);
            let window = get.start();
            let mut landed =
                InUse { first: window.first, tag, torn: window.iter().next_back(), entry: entry(used) };
            let feed = |get: &mut Get<'_>, landed: &mut InUse| get.feed(landed, false, &mut Vec::new());
            assert!(matches!(feed(&mut get, &mut landed), Step::Again(_, Retry::Torn)));
            landed.torn = None;
            assert!(matches!(feed(&mut get, &mut landed), Step::Read(window) if window.incarnation == used));
            assert_eq!(feed(&mut get, &mut landed), Step::Judge);
            let ended = get.judge(Proof::InGrace);
            assert_eq!(ended == Step::Absent, is_absent, "{used}: {ended:?}");
        }
    }

    /// A client has found keys in the child of a split. A GET of a key that goes there READs the child's window first: a key
    /// there is found. If it is not there, or in a slot that is being written, the GET begins as any other, with a pass of its own.
    /// A key that stays, or of a pair whose keys were not seen in the child, begins so at once.
    #[test]
    fn a_look_ahead_that_misses_says_nothing() {
        let size = TableSize::Growing { bytes_max: 1 << 20, segment_slots: Some(64) };
        let geometry = Config { size, ..Config::short() }.geometry().unwrap();
        let [parent, child] = [1, 2].map(|memory| Named { memory, incarnation: 5 });
        let entry = DirectoryEntry { segment: parent, depth: 0, pending: Pending::Child(child) };
        let goes = |key: &[u8]| geometry.hashed(key).first().directory() & 1 == 1;
        let keys = (0..20u64).map(u64::to_le_bytes);
        let (going, staying): (Vec<_>, Vec<_>) = keys.partition(|key| goes(key));
        assert!(!going.is_empty() && !staying.is_empty());
        let begin = |key, keys_have_gone| {
            Get::by_directory(&geometry, key, Some(KnownEntry { entry, keys_have_gone }), 0, false)
        };
        let is_of = |window: Window, named: Named| {
            let first = geometry.segment_first(named.memory).0;
            window.incarnation == 5 && (first..first + geometry.slots()).contains(&window.first.0)
        };
        for key in &going {
            for there in [Look::Match, Look::Torn, Look::Other(Header::from_words([0, 0]))] {
                let mut get = begin(key, true);
                assert!(is_of(get.start(), child) && get.begins_pass());
                let step = get.feed(&mut Showing(|_| there), false, &mut Vec::new());
                if there == Look::Match {
                    assert!(matches!(step, Step::Found | Step::Judge));
                    assert_eq!(get.found_ahead(), Some((0, true)));
                    continue;
                }
                assert!(matches!(step, Step::Read(window) if is_of(window, parent)), "{there:?}: {step:?}");
                assert!(get.begins_pass());
                let step = get.feed(&mut Showing(|_| Look::Match), false, &mut Vec::new());
                assert!(matches!(step, Step::Found | Step::Judge));
                assert_eq!(get.found_ahead(), Some((0, false)));
            }
            assert!(is_of(begin(key, false).start(), parent));
        }
        for key in &staying {
            let get = begin(key, true);
            assert!(is_of(get.start(), parent) && get.found_ahead().is_none());
        }
    }

    /// A torn slot before or after the key's own slot does not make the hit doubtful.
    #[test]
    fn a_torn_neighbour_does_not_spoil_a_hit() {
        for (value_max, expected) in [(8, Step::Found), (100, Step::Judge)] {
            let geometry = geometry("cluster", 8, value_max);
            for at in [0, 3, 7] {
                let mut get = Get::new(&geometry, b"key");
                let hit = get.start().first.0 + at;
                let show = |slot: SlotIx| if slot.0 == hit { Look::Match } else { Look::Torn };
                assert_eq!(get.feed(&mut Showing(show), false, &mut Vec::new()), expected, "slot {at}");
            }
        }
    }

    /// A torn slot in a further window starts the pass again, with the primary window.
    #[test]
    fn a_torn_further_window_restarts_the_pass() {
        let geometry = geometry("list", 1000, 8);
        let mut get = Get::new(&geometry, b"key");
        let show = |slot: SlotIx| {
            let aux = with_link(&geometry, 0xff, Some(Block(0)));
            let home = Look::Other(Header { stamp: 2, crc: 0, klen: 0, ghost: 0, vlen: 0, aux });
            if slot.0 < geometry.main_slots() { home } else { Look::Torn }
        };
        let primary = get.start();
        for _ in 0..3 {
            assert!(get.begins_pass());
            let block = Window { first: SlotIx(geometry.main_slots()), slots: 1, incarnation: 0 };
            assert_eq!(get.feed(&mut Showing(show), false, &mut Vec::new()), Step::Read(block));
            assert!(!get.begins_pass());
            let again = Step::Again(primary, Retry::Torn);
            assert_eq!(get.feed(&mut Showing(show), false, &mut Vec::new()), again);
        }
    }

    /// Only the first slot of a window says where the chain goes on, and whether the key may be
    /// displaced. The others are homes of their own.
    #[test]
    fn only_the_first_slot_names_the_chain() {
        let geometry = geometry("farm", 1000, 8);
        let follow = |named_at: u64| {
            let mut get = Get::new(&geometry, b"key");
            let first = get.start().first.0;
            let show = |slot: SlotIx| {
                let aux =
                    if slot.0 == first + named_at { with_link(&geometry, 0xff, Some(Block(5))) } else { 0 };
                Look::Other(Header { stamp: 2, crc: 0, klen: 0, ghost: 0, vlen: 0, aux })
            };
            get.feed(&mut Showing(show), false, &mut Vec::new())
        };
        let block = Window { first: SlotIx(geometry.main_slots() + 5 * 4), slots: 4, incarnation: 0 };
        assert_eq!(follow(0), Step::Read(block));
        assert_eq!((follow(1), follow(4), follow(7)), (Step::Judge, Step::Judge, Step::Judge));
    }

    /// The longest chain that the server links is followed to its end. A longer one is given up.
    #[test]
    fn chains_are_followed_to_the_bound() {
        let geometry = geometry("list", 1000, 8);
        let follow = |windows: u32| {
            let mut get = Get::new(&geometry, b"key");
            let mut head = |slot: SlotIx| {
                let nth = slot.0.checked_sub(geometry.main_slots()).map_or(0, |block| block as u32 + 1);
                let link = (nth + 1 < windows).then_some(Block(nth));
                let aux = with_link(&geometry, 0xff, link);
                Look::Other(Header { stamp: 2, crc: 0, klen: 0, ghost: 0, vlen: 0, aux })
            };
            loop {
                match get.feed(&mut Showing(&mut head), false, &mut Vec::new()) {
                    Step::Read(_) => {}
                    end => return end,
                }
            }
        };
        assert_eq!(follow(CHAIN_MAX), Step::Judge);
        assert!(matches!(follow(CHAIN_MAX + 1), Step::Again(_, Retry::Chain)));
        assert!(matches!(follow(CHAIN_MAX + 2), Step::Again(_, Retry::Chain)));
        assert!(matches!(follow(u32::MAX), Step::Again(_, Retry::Chain)));
    }

    /// Slots that show nothing. One of them seems to hold the key.
    struct Glancing {
        likely: Option<SlotIx>,
        looked_at: Vec<u64>,
    }

    impl Landed for Glancing {
        fn look(&mut self, slot: SlotIx, _: SoughtKey<'_>, _value: &mut impl Sink) -> Look {
            self.looked_at.push(slot.0);
            Look::Other(Header { stamp: 2, crc: 0, klen: 0, ghost: 0, vlen: 0, aux: 0 })
        }

        fn glance(&self, _window: Window, _: SoughtKey<'_>) -> Option<SlotIx> {
            self.likely
        }
    }

    /// The slot that seems to hold the key is looked at first. A wrong guess leaves no slot out.
    #[test]
    fn each_slot_is_looked_at_once() {
        let geometry = geometry("cluster", 8, 8);
        let mut get = Get::new(&geometry, b"key");
        let all: Vec<u64> = get.start().iter().map(|slot| slot.0).collect();
        assert!(all.len() > 2, "{all:?}");
        let likely = all[2];
        let first = [likely].into_iter().chain(all.iter().copied().filter(|slot| *slot != likely)).collect();
        for (likely, order) in [(None, all), (Some(SlotIx(likely)), first)] {
            let mut slots = Glancing { likely, looked_at: Vec::new() };
            get.feed(&mut slots, false, &mut Vec::new());
            assert_eq!(slots.looked_at, order);
            get = Get::new(&geometry, b"key");
        }
    }
}
