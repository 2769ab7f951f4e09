//! A node's life in etcd: births, beats, and the etcd that it believes (CL1, CL10, CL17).

use crate::core::context::{Context, Pending, Standing};
use crate::core::etcd::{At, CallId, EtcdAnswer, EtcdCall, EtcdKey, EtcdValue};
use crate::core::ids::Time;
use crate::core::state::{Lived, NodeAbout, NodeKey};
use crate::core::table::Table;
use crate::faults::{Rule, broken};

/// The most beats under way that are remembered.
const BEATS_MAX: usize = 64;

/// The node's own key in etcd, as it knows it.
#[derive(Debug)]
pub(super) struct Beating {
    pub about: NodeAbout,
    /// Number of the last beat, and the life.
    number: u64,
    life: u64,
    /// The revision of the last change of its own key, as far as it knows.
    at: At,
    revision: i64,
    /// Calls up to this one were made before the last adoption.
    asked_before: CallId,
    /// The time of its last beat, and of its last reading of etcd.
    beaten: Option<Time>,
    looked: Option<Time>,
    birth: Option<Pending>,
    /// Its key is of a process before this one up to this number; lives that etcd may have written for this process since.
    past: u64,
    lives: Vec<u64>,
    /// Beats under way: the call, the life and the number.
    beats: Vec<(CallId, Lived)>,
    /// The words of its page still have to be closed before it asks for a life.
    to_close: bool,
}

impl Beating {
    /// A node that starts, or starts again. `asked` is the last beat that it may have sent.
    pub fn new(about: NodeAbout, asked: u64) -> Beating {
        Beating {
            about,
            number: asked,
            life: 0,
            at: 0,
            revision: 0,
            asked_before: 0,
            beaten: None,
            looked: None,
            birth: None,
            past: asked,
            lives: Vec::new(),
            beats: Vec::new(),
            to_close: !broken(Rule::OpenAtStart),
        }
    }

    /// Whether answers to a call may be used: it was made after the last adoption (CL17).
    pub fn is_current(&self, call: CallId) -> bool {
        call > self.asked_before
    }

    /// Asks etcd for a life, beats, or reads etcd, when that is due.
    pub fn tick<T: Table>(&mut self, cx: &mut Context<T>) {
        let call = cx.timing.call;
        match cx.standing {
            // Asks which etcd it is.
            Standing::Unborn if cx.memory.notes.adoption.number == 0 => self.look_after(cx, call),
            Standing::Unborn => {
                if cx.is_due(self.birth.map(|birth| birth.since), call) {
                    self.ask_for_life(cx);
                }
            }
            Standing::Looking(_) | Standing::Foreign => self.look_after(cx, call),
            // Watches deliver changes, but they may have stopped.
            Standing::Good => self.look_after(cx, 4 * call),
            Standing::Failed | Standing::Outdated => drop(cx.memory.close_words()),
        }
        let beats = matches!(cx.standing, Standing::Good | Standing::Looking(_));
        if beats && cx.is_due(self.beaten, cx.timing.beat) {
            self.beat(cx);
        }
    }

    /// Beats: tells etcd that it lives (CL1).
    fn beat<T: Table>(&mut self, cx: &mut Context<T>) {
        let beat = Lived { life: self.life, number: self.number + 1 };
        if !broken(Rule::AskedAfterwards) && !store_asked(cx, beat) {
            return;
        }
        (self.number, self.beaten) = (beat.number, Some(cx.now));
        let call = self.write_key(cx, beat);
        // While etcd is away, no beat is answered.
        if self.beats.len() == BEATS_MAX {
            self.beats.remove(0);
        }
        self.beats.push((call, beat));
    }

    fn write_key<T>(&mut self, cx: &mut Context<T>, beat: Lived) -> CallId {
        let (life, number) = (beat.life, beat.number);
        let key = NodeKey { life, number, alive: true, about: self.about.clone() };
        let name = EtcdKey::Node(cx.me);
        cx.transact(vec![(name, self.at)], vec![(name, EtcdValue::Node(key))])
    }

    /// CL10: closes the words before it asks for a new life.
    fn ask_for_life<T: Table>(&mut self, cx: &mut Context<T>) {
        cx.standing = Standing::Unborn;
        self.beats.clear();
        self.birth = None;
        if self.to_close && !cx.memory.close_words() {
            return;
        }
        self.to_close = false;
        let birth = Lived { life: self.number + 1, number: self.number + 1 };
        if !store_asked(cx, birth) {
            return;
        }
        (self.number, self.life) = (birth.number, birth.life);
        self.lives.push(birth.life);
        let call = self.write_key(cx, birth);
        self.birth = Some(Pending { call, since: cx.now });
    }

    /// Closes its words, and asks for another life.
    fn begin_life<T: Table>(&mut self, cx: &mut Context<T>, closes: bool) {
        self.to_close |= closes;
        self.ask_for_life(cx);
    }

    fn look_after<T>(&mut self, cx: &mut Context<T>, time: Time) {
        if cx.is_due(self.looked, time) {
            self.look(cx);
        }
    }

    /// Reads all keys of etcd.
    fn look<T>(&mut self, cx: &mut Context<T>) {
        self.looked = Some(cx.now);
        let call = cx.outbox.call(EtcdCall::Read);
        if let Standing::Looking(_) = cx.standing {
            cx.standing = Standing::Looking(call);
        }
    }

    /// CL17: whether an answer of etcd may be used.
    pub fn trusts<T: Table>(&mut self, cx: &mut Context<T>, answer: &EtcdAnswer) -> bool {
        // The call was made before another etcd was adopted.
        if !self.is_current(answer.call) {
            return false;
        }
        let notes = &mut cx.memory.notes;
        let known = notes.adoption;
        if known.number > 0 && broken(Rule::AnyEtcd) {
            return true;
        }
        if known.number > 0 && broken(Rule::RevisionOnly) {
            if answer.etcd != known.etcd && answer.revision >= self.revision {
                notes.adoption.etcd = answer.etcd;
            }
            let is_so = answer.etcd == notes.adoption.etcd;
            if is_so {
                self.revision = self.revision.max(answer.revision);
            }
            return is_so;
        }
        if answer.etcd == known.etcd && cx.standing != Standing::Foreign {
            return true;
        }
        if notes.past.contains(&answer.etcd) || answer.etcd == known.etcd {
            return false;
        }
        let new = answer.adoption().filter(|new| new.etcd == answer.etcd && new.number > known.number);
        if let Some(new) = new {
            notes.past.extend((known.number > 0).then_some(known.etcd));
            notes.adoption = new;
            cx.memory.notes_due = true;
            cx.seen.clear();
            self.asked_before = cx.outbox.last_call();
            (self.past, self.lives) = (self.number, Vec::new());
            self.at = answer.node(cx.me).map_or(0, |(_, at)| at);
            self.begin_life(cx, true);
        } else if known.number > 0 {
            self.to_close = !cx.memory.close_words();
            cx.standing = Standing::Foreign;
            self.birth = None;
            self.beats.clear();
        }
        false
    }

    /// Takes an answer about its birth, or its beats.
    pub fn answered<T: Table>(&mut self, cx: &mut Context<T>, answer: &EtcdAnswer) {
        if self.birth.is_some_and(|birth| answer.is_of(birth.call)) {
            self.birth_answered(cx, answer);
        }
        if let Some(index) = self.beats.iter().position(|(call, _)| answer.is_of(*call)) {
            let (_, beat) = self.beats.remove(index);
            self.beat_answered(cx, beat, answer);
        }
    }

    fn birth_answered<T: Table>(&mut self, cx: &mut Context<T>, answer: &EtcdAnswer) {
        if let Some((_, at)) = answer.node(cx.me) {
            self.at = at;
        }
        if !answer.is_done {
            self.lives.retain(|life| *life != self.life);
            return if self.is_outdated(cx, answer) { self.ends(cx) } else { self.ask_for_life(cx) };
        }
        (self.birth, self.lives) = (None, vec![self.life]);
        if store_held(cx, Lived { life: self.life, number: self.life }) {
            cx.standing = Standing::Looking(0);
            self.look(cx);
        }
    }

    /// CL22: etcd has heard more of this node than its memory has asked for, and not from this process. What etcd writes
    /// was stored before as asked for: so the memory is an older copy, or another process goes on with it.
    fn is_outdated<T>(&self, cx: &Context<T>, answer: &EtcdAnswer) -> bool {
        let own = answer.node(cx.me).and_then(|(key, _)| key);
        let is_anothers = |key: &NodeKey| key.number > self.past && !self.lives.contains(&key.life);
        own.is_some_and(is_anothers) && !broken(Rule::OldCopyBelieved)
    }

    fn ends<T: Table>(&mut self, cx: &mut Context<T>) {
        tracing::error!(
            "etcd has heard more of this node than its table knows: the table is an old copy, or another process uses it; put \
             the newest one back, or start with an empty region file (`oneread serve --fresh`)"
        );
        (cx.standing, self.birth) = (Standing::Outdated, None);
        self.beats.clear();
        cx.memory.close_words();
    }

    fn beat_answered<T: Table>(&mut self, cx: &mut Context<T>, beat: Lived, answer: &EtcdAnswer) {
        // The beat is of an earlier life.
        if beat.life != self.life || cx.standing == Standing::Unborn {
            return;
        }
        let own = answer.node(cx.me);
        if let Some((_, at)) = own {
            self.at = at;
        }
        // The answer to an earlier beat was lost.
        let lives = own.and_then(|(key, _)| key).is_some_and(|key| key.alive && key.life == self.life);
        if answer.is_done {
            if beat.number > cx.memory.page.held.number {
                store_held(cx, beat);
            }
        } else if broken(Rule::BeatAfterDeposed) {
            store_held(cx, beat);
        } else if self.is_outdated(cx, answer) {
            self.ends(cx);
        } else if !lives {
            // CL10, for a node that was stopped for too long.
            self.begin_life(cx, !broken(Rule::OpenWhenRefused));
        }
    }
}

/// CL1: stores the beat's number before the beat is sent.
fn store_asked<T: Table>(cx: &mut Context<T>, beat: Lived) -> bool {
    cx.memory.change_page(|page| page.asked = beat)
}

fn store_held<T: Table>(cx: &mut Context<T>, beat: Lived) -> bool {
    cx.memory.change_page(|page| {
        page.held = beat;
        if broken(Rule::AskedAfterwards) && page.asked.number < beat.number {
            page.asked = beat;
        }
    })
}
