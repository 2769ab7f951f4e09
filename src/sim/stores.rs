//! Reads off a server's stores what it did: where each key came to stand, and when something
//! happened that a GET might get wrong.

use super::history::{History, Instant};
use super::keys::{KeyNumber, number_of};
use crate::layout::chain::{self, Block};
use crate::layout::geometry::{Geometry, SlotIx};
use crate::layout::slot::{Header, check};
use std::collections::{BTreeMap, HashMap};

/// A key that was moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Move {
    /// The key.
    pub key: KeyNumber,
    /// When the operation that moved the key began. With several server threads, when its copy was
    /// whole.
    pub began: Instant,
    /// The slot that the key left.
    pub from: SlotIx,
    /// The slot that the key came to.
    pub to: SlotIx,
}

/// A key got another value, or was removed.
#[derive(Debug)]
pub(super) struct StoreEvent {
    pub at: Instant,
    pub has: Option<Vec<u8>>,
}

/// What may happen in memory while a GET looks for a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum IncidentKind {
    /// The key is inserted.
    Insert,
    /// The key gets another value in its slot.
    Update,
    /// The key gets another value in an overflow block.
    ChainUpdate,
    /// The key is removed.
    Remove,
    /// The key has been removed, and a ghost of it is left.
    Haunts,
    /// The key gives way to another key.
    Kick,
    /// The key comes back into its primary window.
    Homing,
    /// The key moves from one block of its chain to another.
    Compaction,
    /// The key leaves a slot, comes back, and leaves it again.
    Return,
    /// Another key leaves the slot with this key's ghost.
    Overlaid,
    /// The key's ghost is taken away.
    GhostGone,
    /// The filter of the key's home changes. The key is displaced, or was lately.
    Filter,
    /// A link in the chain of the key's home changes.
    Link,
    /// A block of the home's chain is unlinked and reused.
    Reuse,
    /// A block of the home's chain is unlinked and reused, and the key comes into it.
    ComesBack,
    /// The server was killed shortly after something happened to the key: its slot was left half
    /// written, it was moved, or its home's filter or chain changed.
    Takeover,
}

/// Something that happens to a key, from before its first store to after its last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Incident {
    /// What happens.
    pub kind: IncidentKind,
    /// The key.
    pub key: KeyNumber,
    /// Before the first store.
    pub from: Instant,
    /// After the last store.
    pub to: Instant,
}

/// A slot's content at rest.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct AtRest {
    key: Option<KeyNumber>,
    value: Vec<u8>,
    ghost: u8,
    aux: u32,
}

/// What stores did to keys.
#[derive(Debug, Default)]
pub(super) struct Stores {
    pub events: BTreeMap<KeyNumber, Vec<StoreEvent>>,
    pub moves: Vec<Move>,
    /// A key that stood in two slots and got another value in one of them, and when.
    pub differ: Option<(KeyNumber, Instant)>,
    /// The slots that hold each key at the end.
    pub copies: BTreeMap<KeyNumber, Vec<SlotIx>>,
    /// Incidents, in the order in which they began.
    pub incidents: Vec<Incident>,
}

impl Stores {
    /// Looks at each slot at `from`, and again after each write of it. If a server was killed and
    /// its region taken over, the instants of both are given.
    pub fn read_off(
        history: &History,
        geometry: &Geometry,
        from: Instant,
        killed: Option<(Instant, Instant)>,
    ) -> Stores {
        let (shape, words) = (geometry.shape(), geometry.shape().words());
        let content = |slot: SlotIx, at: Instant| {
            let first = geometry.slot_word(slot);
            let image: Vec<u64> = (first..first + words).map(|word| history.word(word, at)).collect();
            let Ok(view) = check(shape, geometry.identity(slot), &image) else { return AtRest::default() };
            let header = view.header();
            let key = (!header.is_free()).then(|| number_of(&view.key()));
            AtRest { key, value: view.value().to_vec(), ghost: header.ghost, aux: header.aux }
        };
        let mut contents: Vec<_> = (0..geometry.slots()).map(|n| content(SlotIx(n), from)).collect();
        let mut reading = Reading::new(geometry);
        for (n, content) in contents.iter().enumerate() {
            if let Some(number) = content.key {
                reading.stores.copies.entry(number).or_default().push(SlotIx(n as u64));
                reading.values.insert(number, content.value.clone());
                reading.stands(number, SlotIx(n as u64));
            }
        }
        // For each slot whose write has not ended, the first store of that write.
        let mut begun: Vec<Option<Instant>> = vec![None; contents.len()];
        let first = geometry.slot_word(SlotIx(0));
        let all = first..first + geometry.slots() as usize * words;
        for (at, word, value) in history.stores(all, from, history.end()) {
            // A write stores a slot's first word last. Then that word has an even stamp.
            let (slot, nth) = (SlotIx(((word - first) / words) as u64), (word - first) % words);
            let since = *begun[slot.0 as usize].get_or_insert(Instant(at.0 - 1));
            if nth != 0 || !Header::from_words([value, 0]).stamp.is_multiple_of(2) {
                continue;
            }
            begun[slot.0 as usize] = None;
            let after = content(slot, at);
            let before = std::mem::replace(&mut contents[slot.0 as usize], after.clone());
            reading.written(slot, &before, &after, (since, at), killed.map(|(killed, _)| killed));
        }
        if let Some((killed, until)) = killed {
            reading.survive(killed, until);
        }
        reading.stores.incidents.sort_by_key(|incident| incident.from);
        reading.stores
    }
}

/// What the stores read so far have shown.
struct Reading<'a> {
    geometry: &'a Geometry,
    stores: Stores,
    values: HashMap<KeyNumber, Vec<u8>>,
    /// Keys that stand in two slots, and since when.
    doubled: HashMap<KeyNumber, Instant>,
    /// The keys that moved out of each slot, the latest last, and when.
    left: HashMap<SlotIx, Vec<(KeyNumber, Instant)>>,
    /// The key whose ghost each slot has.
    ghosts: HashMap<SlotIx, KeyNumber>,
    /// Keys of each home that were displaced, the latest last.
    displaced: HashMap<u64, Vec<KeyNumber>>,
    /// The home that used each block last, and when the block was unlinked.
    owners: HashMap<Block, u64>,
    unlinked: HashMap<Block, Instant>,
}

/// The most keys of one home that are remembered as displaced.
const DISPLACED_MAX: usize = 4;

impl<'a> Reading<'a> {
    fn new(geometry: &'a Geometry) -> Reading<'a> {
        let (stores, values, doubled, left, ghosts) = Default::default();
        let (displaced, owners, unlinked) = Default::default();
        Reading { geometry, stores, values, doubled, left, ghosts, displaced, owners, unlinked }
    }

    fn home(&self, number: KeyNumber) -> u64 {
        self.geometry.hashed(&super::keys::key(number)).home()
    }

    fn is_primary(&self, number: KeyNumber, slot: SlotIx) -> bool {
        self.geometry.window(self.home(number)).contains(slot)
    }

    fn note(&mut self, kind: IncidentKind, key: KeyNumber, from: Instant, to: Instant) {
        self.stores.incidents.push(Incident { kind, key, from, to });
    }

    /// Notes the same for each key of a home that is displaced, or was lately.
    fn note_displaced(&mut self, kind: IncidentKind, home: u64, from: Instant, to: Instant) {
        for number in self.displaced.get(&home).cloned().unwrap_or_default() {
            self.note(kind, number, from, to);
        }
    }

    /// Notes that a key stands in a slot.
    fn stands(&mut self, number: KeyNumber, slot: SlotIx) {
        let home = self.home(number);
        if let Some(block) = chain::block_of(self.geometry, slot) {
            self.owners.insert(block, home);
        }
        if !self.is_primary(number, slot) {
            let displaced = self.displaced.entry(home).or_default();
            displaced.retain(|&other| other != number);
            displaced.push(number);
            if displaced.len() > DISPLACED_MAX {
                displaced.remove(0);
            }
        }
    }

    /// Notes again, for the time of the takeover, what happened shortly before the server was
    /// killed.
    fn survive(&mut self, killed: Instant, until: Instant) {
        /// In stores.
        const SHORTLY: usize = 150;
        let concerns = |incident: &&Incident| {
            let kinds = [
                IncidentKind::Kick,
                IncidentKind::Homing,
                IncidentKind::Compaction,
                IncidentKind::Filter,
                IncidentKind::Link,
            ];
            kinds.contains(&incident.kind) && incident.from < killed && killed.0 < incident.to.0 + SHORTLY
        };
        let concerned: Vec<_> = self.stores.incidents.iter().filter(concerns).copied().collect();
        for Incident { key, from, .. } in concerned {
            self.note(IncidentKind::Takeover, key, from, until);
        }
    }

    /// Notes that a slot was written.
    fn written(
        &mut self,
        slot: SlotIx,
        before: &AtRest,
        after: &AtRest,
        (from, to): (Instant, Instant),
        killed: Option<Instant>,
    ) {
        let block = chain::block_of(self.geometry, slot);
        if let Some(number) = after.key {
            self.comes(number, slot, before, after, from, to);
        }
        if let Some(number) = before.key.filter(|_| before.key != after.key) {
            self.goes(number, slot, from, to);
        }
        if let (Some(number), Some(killed)) = (before.key, killed)
            && (from..to).contains(&killed)
        {
            self.note(IncidentKind::Takeover, number, killed, to);
        }
        if before.ghost != 0
            && after.ghost == 0
            && let Some(number) = self.ghosts.remove(&slot)
        {
            self.note(IncidentKind::GhostGone, number, from, to);
        }
        if before.aux != after.aux {
            let home = match block {
                None => Some(self.geometry.home_of_slot(slot)),
                Some(block) => self.owners.get(&block).copied(),
            };
            let [old, new] = [before.aux, after.aux].map(|aux| chain::link(self.geometry, aux));
            let has_chains = self.geometry.overflow_blocks() > 0;
            let kind = if has_chains && old != new { IncidentKind::Link } else { IncidentKind::Filter };
            if let Some(home) = home {
                self.note_displaced(kind, home, from, to);
            }
            if let Some(unlinked) = old.filter(|_| kind == IncidentKind::Link) {
                self.unlinked.insert(unlinked, from);
            }
        }
    }

    fn comes(
        &mut self,
        number: KeyNumber,
        slot: SlotIx,
        before: &AtRest,
        after: &AtRest,
        from: Instant,
        to: Instant,
    ) {
        let copies = self.stores.copies.entry(number).or_default();
        let is_new = copies.is_empty() || self.values.get(&number) != Some(&after.value);
        let stood = copies.contains(&slot);
        if is_new {
            let event = StoreEvent { at: to, has: Some(after.value.clone()) };
            self.stores.events.entry(number).or_default().push(event);
            self.values.insert(number, after.value.clone());
        }
        if !stood {
            if let (&[was], false) = (&copies[..], is_new) {
                self.stores.moves.push(Move { key: number, began: to, from: was, to: slot });
            }
            copies.push(slot);
        }
        let doubled = copies.len() > 1;
        if is_new && doubled {
            self.stores.differ.get_or_insert((number, to));
        }
        if doubled && !stood {
            self.doubled.insert(number, from);
        }
        let block = chain::block_of(self.geometry, slot);
        match (stood, block) {
            (true, Some(_)) if before.value != after.value => {
                self.note(IncidentKind::ChainUpdate, number, from, to)
            }
            (true, None) if before.value != after.value => self.note(IncidentKind::Update, number, from, to),
            (false, _) if !doubled => self.note(IncidentKind::Insert, number, from, to),
            _ => {}
        }
        if let (false, Some(block)) = (stood, block) {
            let old = self.owners.get(&block).copied();
            if let (Some(old), Some(since)) = (old, self.unlinked.remove(&block)) {
                self.note_displaced(IncidentKind::Reuse, old, since, to);
                if old == self.home(number) {
                    self.note(IncidentKind::ComesBack, number, since, to);
                }
            }
        }
        self.stands(number, slot);
    }

    fn goes(&mut self, number: KeyNumber, slot: SlotIx, from: Instant, to: Instant) {
        let copies = self.stores.copies.entry(number).or_default();
        copies.retain(|&copy| copy != slot);
        let Some(&stays) = copies.first() else {
            // From its first store on, nobody finds the key; from its second, a direct look may see
            // that it is gone.
            let at = Instant(from.0 + 1);
            self.stores.events.entry(number).or_default().push(StoreEvent { at, has: None });
            self.values.remove(&number);
            self.note(IncidentKind::Remove, number, from, to);
            if self.ghosts.values().any(|&other| other == number) {
                self.note(IncidentKind::Haunts, number, to, Instant(to.0 + 1));
            }
            return;
        };
        let since = self.doubled.remove(&number).unwrap_or(from);
        let in_block = |slot| chain::block_of(self.geometry, slot).is_some();
        let kind = if in_block(slot) && in_block(stays) {
            IncidentKind::Compaction
        } else if !self.is_primary(number, slot) && self.is_primary(number, stays) {
            IncidentKind::Homing
        } else {
            IncidentKind::Kick
        };
        self.note(kind, number, since, to);
        let left = self.left.entry(slot).or_default();
        if let Some(other) = self.ghosts.insert(slot, number)
            && let Some(&(_, since)) = left.iter().find(|(left, _)| *left == other)
        {
            self.stores.incidents.push(Incident {
                kind: IncidentKind::Overlaid,
                key: other,
                from: since,
                to,
            });
        }
        let before = left.iter().position(|(other, _)| *other == number).map(|n| left.remove(n));
        left.push((number, since));
        if let Some((_, since)) = before {
            self.note(IncidentKind::Return, number, since, to);
        }
    }
}
