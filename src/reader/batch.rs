//! Many GETs, with as many READs in flight as the fabric allows.

use super::Reader;
use super::answers::{Answers, Called, FoundValue, StoredAnswer};
use super::entries::KnownEntries;
use super::look::WrongSlots;
use super::order::in_order;
use super::patience::{Lag, Rest, RetryBudget, Round, SLEEP_NS};
use crate::fabric::{BegunLook, Fabric, ReadId};
use crate::get::{Get, HintedLook, Landed, Retry, Step};
use crate::hints::{Hinted, Hints};
use crate::layout::extent::Reference;
use crate::layout::geometry::{Geometry, Window};
use crate::layout::hash::Hashed;
use crate::layout::life::Life;
use crate::sink::{LivedSink, LivedValue, Sink};
use std::ops::ControlFlow;

/// A batch's keys by their numbers.
pub(super) type Keys<'k> = dyn Fn(usize) -> &'k [u8] + 'k;

/// Where a batch's answers go, with their keys' numbers, until it breaks off. By reference wherever time
/// goes to READs: the program of a batch is long, and else there would be one for each closure.
pub(super) type Each<'e, M> = dyn FnMut(usize, Option<FoundValue<'_, M>>) -> ControlFlow<()> + 'e;

/// Where answers go as they are handed out, with the lives of entries that have one.
pub(super) type EachLived<'e> = dyn FnMut(usize, StoredAnswer<'_>, Option<Life>) -> ControlFlow<()> + 'e;

/// A batch asks for the lines of this number of keys at once, before it looks at those of the keys before:
/// four lines of each. A core has 10 to 24 line-fill buffers (docs/BENCHMARKS.md has the time for 16 keys).
const AHEAD: usize = 8;

/// What the direct looks of a batch came to.
#[derive(Default)]
struct BatchLooks {
    /// Hits.
    found: u64,
    /// Looks that had no answer, and read a window.
    read: u64,
    /// The keys without an answer.
    left: Vec<usize>,
}

impl<F: Fabric> Reader<'_, F> {
    /// Looks many keys up with as many READs in flight as the fabric allows: whenever some have completed, a
    /// doorbell for all that are ready to follow. Hands each answer to `each` with the key's number in `keys`,
    /// in no particular order.
    ///
    /// On a fabric whose READs are loads, the keys are looked for in order instead, in blocks of eight
    /// whose memory accesses overlap.
    ///
    /// A GET that has to look again rests by itself, while the others go on. While one looks again because it
    /// was late, answers are handed over only when no pass is under way: so a slow `each` makes no GET late twice.
    ///
    /// # Errors
    /// [`ReadError`](crate::error::ReadError), or the fabric's own, as soon as one GET ends in one, or the batch
    /// reaches its deadline; `each` has then not been called for every key.
    pub fn get_many<K: AsRef<[u8]>>(
        &mut self,
        keys: &[K],
        mut each: impl FnMut(usize, Option<&[u8]>),
    ) -> Result<(), F::Error> {
        self.check_keys(keys)?;
        let to_the_end = |number, answer: StoredAnswer<'_>| {
            // No other key is refused.
            answer.map_or(ControlFlow::Break(()), |value| {
                each(number, value);
                ControlFlow::Continue(())
            })
        };
        self.get_each(keys, to_the_end).map(|_| ())
    }

    /// Refuses the first key that the table cannot hold.
    #[inline]
    fn check_keys<K: AsRef<[u8]>>(&mut self, keys: &[K]) -> Result<(), F::Error> {
        // The longest, where none is longest of all. Quicker than to look at each by itself.
        let longest = keys.iter().fold(0, |longest, key| key.as_ref().len().wrapping_sub(1).max(longest));
        if longest < self.geometry.key_max() {
            return Ok(());
        }
        keys.iter().try_for_each(|key| self.check_key(key.as_ref()))
    }

    /// Like [`Reader::get_many`], but a key that the table cannot hold has an outcome of its own, after
    /// those of the others, and `each` may end the batch: it is then not called again. READs that are
    /// under way are waited for.
    ///
    /// # Errors
    /// As [`Reader::get_many`], but for the lengths of keys.
    pub fn get_each<K: AsRef<[u8]>>(
        &mut self,
        keys: &[K],
        each: impl FnMut(usize, StoredAnswer<'_>) -> ControlFlow<()>,
    ) -> Result<ControlFlow<()>, F::Error> {
        let mut called = Called::new(std::mem::take(&mut self.value), each);
        let flow = self.answer_each(keys, &mut called);
        self.value = called.into_memory();
        flow
    }

    /// GETs many keys, for whatever takes the answers.
    ///
    /// # Errors
    /// As [`Reader::get_each`].
    pub(crate) fn answer_each<K: AsRef<[u8]>, A: Answers>(
        &mut self,
        keys: &[K],
        answers: &mut A,
    ) -> Result<ControlFlow<()>, F::Error> {
        answers.of_table(self.geometry.generation());
        let left = if self.hints.is_some() || !self.fabric.is_direct() {
            (0..keys.len()).collect()
        } else {
            match self.look_for_each(keys, answers) {
                ControlFlow::Break(()) => return Ok(ControlFlow::Break(())),
                ControlFlow::Continue(left) if left.is_empty() => return Ok(ControlFlow::Continue(())),
                ControlFlow::Continue(left) => left,
            }
        };
        self.wants_bytes = A::Sink::WANTS_BYTES;
        let each = &mut |number, answer: StoredAnswer<'_>, life| {
            answers.put_life(life);
            answers.answer(number, answer)
        };
        self.answer_left(&|number| keys[number].as_ref(), left, each)
    }

    /// Like [`Reader::get_each`], but the answers come in the order of `keys`, those of keys that the table
    /// cannot hold, too. When `each` breaks off, no READ is posted any more. So the first keys of a batch can be
    /// asked for without paying for the others. Answers that come before their turn are held back, copied.
    ///
    /// # Errors
    /// As [`Reader::get_each`].
    pub fn get_in_order<K: AsRef<[u8]>>(
        &mut self,
        keys: &[K],
        each: impl FnMut(usize, StoredAnswer<'_>) -> ControlFlow<()>,
    ) -> Result<ControlFlow<()>, F::Error> {
        in_order(keys, each, |some, each| self.get_each(some, each).map(|_| ()))
    }

    /// Looks for the keys with these numbers, which no direct look has answered: those that fit come first.
    #[inline(never)]
    fn answer_left(
        &mut self,
        keys: &Keys<'_>,
        left: Vec<usize>,
        each: &mut EachLived<'_>,
    ) -> Result<ControlFlow<()>, F::Error> {
        let mut others = Vec::new();
        let mut fits = |&number: &usize| {
            let fits = self.geometry.may_hold_plainly(keys(number));
            others.extend((!fits).then_some(number));
            fits
        };
        let fitting = left.into_iter().filter(&mut fits).collect();
        let those = self.ask_for(keys, fitting, &mut |number, found| {
            let (value, life) = found.map(|found| (found.value, found.life)).unzip();
            each(number, Ok(value), life.flatten())
        })?;
        if those.is_break() || others.is_empty() {
            return Ok(those);
        }
        self.answer_others(keys, others, each)
    }

    /// The answers for keys that are not looked for plainly. Those that the table cannot hold come last.
    #[cold]
    fn answer_others(
        &mut self,
        keys: &Keys<'_>,
        mut numbers: Vec<usize>,
        each: &mut EachLived<'_>,
    ) -> Result<ControlFlow<()>, F::Error> {
        let mut wrong = Vec::new();
        numbers.retain(|&number| match self.length_of(keys(number)) {
            Ok(()) => true,
            Err(error) => {
                wrong.push((number, error));
                false
            }
        });
        if self.answer_unhidden(keys, numbers, each)?.is_break() {
            return Ok(ControlFlow::Break(()));
        }
        if !wrong.is_empty() {
            self.fabric.check()?;
        }
        Ok(wrong.into_iter().try_for_each(|(number, error)| each(number, Err(error), None)))
    }

    /// Looks for keys directly, while the lines of those that follow come in. Returns the numbers of those that
    /// have no answer yet.
    pub(crate) fn look_for_each<K: AsRef<[u8]>>(
        &mut self,
        keys: &[K],
        answers: &mut impl Answers,
    ) -> ControlFlow<(), Vec<usize>> {
        let mut looks = BatchLooks::default();
        let [now, next] = &mut [[BegunLook::NOTHING; AHEAD]; 2];
        let (mut now, mut next) = (now, next);
        self.expect_all(keys, now);
        let (mut ended, mut flow) = (0, ControlFlow::Continue(()));
        while ended < keys.len() && flow.is_continue() {
            let (some, others) = keys[ended..].split_at(AHEAD.min(keys.len() - ended));
            self.expect_all(others, next);
            match self.look_for_some(some, now, ended, answers, &mut looks) {
                ControlFlow::Continue(()) => ended += some.len(),
                ControlFlow::Break(at) => (ended, flow) = (at, ControlFlow::Break(())),
            }
            std::mem::swap(&mut now, &mut next);
        }
        let BatchLooks { found, read, left } = looks;
        let answered = (ended - left.len()) as u64;
        let looked = answered + read;
        self.direct.count_all(answered, found, self.geometry);
        self.direct.share_doorbells(looked - looked.div_ceil(AHEAD as u64));
        flow.map_continue(|()| left)
    }

    /// Looks for keys that were asked for. The first has this number. Breaks off with the number behind the last.
    /// (A function of its own: the fewer things are kept, the fewer go to the stack and back.)
    #[inline(never)]
    fn look_for_some<K: AsRef<[u8]>>(
        &mut self,
        keys: &[K],
        expected: &[BegunLook; AHEAD],
        first: usize,
        answers: &mut impl Answers,
        looks: &mut BatchLooks,
    ) -> ControlFlow<usize> {
        for (number, (key, expected)) in (first..).zip(keys.iter().zip(expected)) {
            let is_there = match self.fabric.glance_expected(key.as_ref(), expected, answers.sink()) {
                Some(is_there) => is_there,
                None => match self.look_whole(number, key.as_ref(), expected, answers.sink(), looks) {
                    Some(is_there) => is_there,
                    None => continue,
                },
            };
            looks.found += u64::from(is_there);
            if answers.landed(number, is_there).is_break() {
                return ControlFlow::Break(number + 1);
            }
        }
        ControlFlow::Continue(())
    }

    /// Asks for the lines of the first of these keys.
    #[inline(never)]
    fn expect_all<K: AsRef<[u8]>>(&self, keys: &[K], expected: &mut [BegunLook; AHEAD]) {
        for (key, expected) in keys.iter().zip(expected) {
            *expected = self.fabric.expect(key.as_ref());
        }
    }

    /// The whole direct look for a key of a batch.
    #[inline(never)]
    fn look_whole(
        &mut self,
        number: usize,
        key: &[u8],
        expected: &BegunLook,
        value: &mut impl Sink,
        looks: &mut BatchLooks,
    ) -> Option<bool> {
        let before = self.reads.reads;
        let found = self.look_directly(key, Some(expected), value);
        if found.is_none() {
            looks.left.push(number);
            looks.read += u64::from(self.reads.reads > before);
        }
        found
    }

    /// Looks for the keys with these numbers: where hints say, if there are any, and then
    /// everywhere.
    #[inline(never)]
    pub(super) fn ask_for(
        &mut self,
        keys: &Keys<'_>,
        numbers: Vec<usize>,
        each: &mut Each<'_, F::Mark>,
    ) -> Result<ControlFlow<()>, F::Error> {
        let left = match self.hints {
            None => ControlFlow::Continue(numbers),
            Some(hints) => self.get_many_hinted(hints, keys, numbers, each)?,
        };
        match left {
            ControlFlow::Break(()) => Ok(ControlFlow::Break(())),
            ControlFlow::Continue(left) => self.ask_machines(keys, left, each),
        }
    }

    /// The hinted look for many keys, with as many READs in flight as the fabric allows. Returns the
    /// numbers of the keys that it did not find.
    fn get_many_hinted(
        &mut self,
        hints: &Hints,
        keys: &Keys<'_>,
        numbers: Vec<usize>,
        each: &mut Each<'_, F::Mark>,
    ) -> Result<ControlFlow<(), Vec<usize>>, F::Error> {
        let geometry = self.geometry;
        let credits = self.fabric.credits();
        let (mut todo, mut left) = (numbers.into_iter(), Vec::new());
        let mut next_look = |entries: &KnownEntries| {
            todo.find_map(|number| {
                let key = geometry.hashed(keys(number));
                let windows = entries.hinted(hints, geometry, key);
                if windows.is_empty() || windows.len() > credits {
                    left.push(number);
                    return None;
                }
                Some(PendingHint::new(geometry, number, key, windows))
            })
        };
        // The next look, while there is no room for its READs.
        let mut next = next_look(&self.entries);
        let mut looks: Vec<PendingHint<'_, F::Mark>> = Vec::new();
        // Looks that have ended: their places, and the memory for their values, are used again.
        let mut idle: Vec<usize> = Vec::new();
        let mut ready: Vec<(ReadId, Window)> = Vec::new();
        let mut ended: Vec<(usize, Option<Step>)> = Vec::new();
        let mut missed = Vec::new();
        let mut named = Vec::new();
        let mut in_flight = 0;
        loop {
            while let Some(mut look) =
                next.take_if(|look| in_flight + ready.len() + look.windows.len() <= credits)
            {
                if geometry.has_heap() || geometry.has_owners() || !look.look.is_proof(F::EXACT) {
                    look.mark = Some(self.fabric.mark(look.key.home()));
                }
                let at = idle.pop().unwrap_or(looks.len());
                // Two READs of a look have numbers side by side.
                let reads = look.windows.iter().enumerate();
                ready.extend(reads.map(|(nth, &window)| ((2 * at + nth) as ReadId, window)));
                self.count_hinted(look.windows.len());
                match looks.get_mut(at) {
                    None => looks.push(look),
                    Some(old) => {
                        look.value = std::mem::take(&mut old.value);
                        *old = look;
                    }
                }
                next = next_look(&self.entries);
            }
            if !ready.is_empty() {
                self.fabric.post(&ready)?;
                self.reads.doorbells += 1;
                in_flight += ready.len();
                ready.clear();
            }
            if in_flight == 0 {
                break;
            }
            self.fabric.poll(|token, landed| {
                in_flight -= 1;
                let (at, nth) = (token as usize / 2, token as usize % 2);
                if looks[at].feed(nth, landed) {
                    ended.push((at, None));
                }
            })?;
            // All that landed is judged before anything else takes time.
            for (at, step) in &mut ended {
                let PendingHint { look, key, mark, .. } = &looks[*at];
                *step = look.judge(F::EXACT, || {
                    self.fabric.proof(key.home(), mark.expect("taken where a hit needs proof"))
                });
            }
            for (at, step) in ended.drain(..) {
                let PendingHint { number, key, wrong, value, .. } = &looks[at];
                hints.correct_all(wrong, *key, step == Some(Step::Found));
                idle.push(at);
                let Some(step) = step else {
                    missed.push(*number);
                    continue;
                };
                if let (Some(reference), Some(mark)) = (looks[at].look.reference(), looks[at].mark) {
                    self.hinted.hits += 1;
                    named.push(NamedValue { number: *number, reference, mark, life: value.life });
                    continue;
                }
                let is_found = step == Step::Found;
                self.stats.answered(is_found);
                self.hinted.hits += u64::from(is_found);
                let mark = looks[at].mark;
                let found = FoundValue { value: &value.sink, life: value.life, mark };
                if each(*number, is_found.then_some(found)).is_break() {
                    // They must not be taken for READs of the next batch.
                    while in_flight > 0 {
                        self.fabric.poll(|_, _| in_flight -= 1)?;
                    }
                    return Ok(ControlFlow::Break(()));
                }
            }
        }
        left.append(&mut missed);
        Ok(self.finish_each(keys, named, each)?.map_continue(|()| left))
    }

    /// Looks for the keys with these numbers, by a machine for each.
    fn ask_machines(
        &mut self,
        keys: &Keys<'_>,
        numbers: Vec<usize>,
        each: &mut Each<'_, F::Mark>,
    ) -> Result<ControlFlow<()>, F::Error> {
        let lanes_max = self.fabric.credits().min(numbers.len());
        let mut todo = numbers.into_iter().map(|number| (number, keys(number)));
        let first = todo.by_ref().take(lanes_max);
        let by_counter = self.fabric.is_by_counter();
        let machine = |key| self.entries.machine(self.geometry, key, by_counter);
        let mut lanes: Vec<_> = first.map(|(number, key)| PendingGet::new(machine(key), number)).collect();
        // READs for the next doorbell, lanes that rest until their time has come, lanes that have an answer.
        let mut ready: Vec<(ReadId, Window)> = (0..).zip(lanes.iter().map(|lane| lane.get.start())).collect();
        let mut resting: Vec<(u64, ReadId)> = Vec::new();
        let mut answered: Vec<ReadId> = Vec::with_capacity(lanes_max);
        let mut landed: Vec<(ReadId, Step)> = Vec::with_capacity(lanes_max);
        let mut in_flight = 0;
        // GETs that have looked again, and those of them that were late.
        let mut looking_again = 0;
        // Keys whose values are not in their slots.
        let mut named = Vec::new();
        let mut late = 0;
        let mut lag = Lag::default();
        while in_flight + ready.len() + resting.len() > 0 {
            if !resting.is_empty() {
                if in_flight + ready.len() == 0 {
                    lag.sleep_until(resting.iter().map(|(until_ns, _)| *until_ns).min(), &self.clock);
                }
                let now_ns = lag.now_ns(&self.clock);
                ready.extend(
                    resting
                        .extract_if(.., |(until_ns, _)| *until_ns <= now_ns)
                        .map(|(_, token)| (token, lanes[token as usize].get.start())),
                );
            }
            if !ready.is_empty() {
                // A mark is no older than its READ, whatever took time before.
                for &(token, _) in &ready {
                    let lane = &mut lanes[token as usize];
                    if lane.get.begins_pass() {
                        lane.mark = Some(self.fabric.mark(lane.get.home()));
                    }
                }
                self.fabric.post(&ready)?;
                self.reads.doorbells += 1;
                ready.iter().for_each(|&(_, window)| self.count_read(window));
                in_flight += ready.len();
                ready.clear();
            }
            // What has completed makes room for what comes next, while the rest is still under way.
            let hints = self.hints;
            self.fabric.poll(|token, window| {
                let lane = &mut lanes[token as usize];
                hints.inspect(|hints| hints.learn(lane.get.window(), window, lane.get.key()));
                landed.push((token, lane.get.feed(window, F::EXACT, &mut lane.value)));
            })?;
            in_flight -= landed.len();
            // All that landed is judged before anything else takes time.
            for (token, step) in &mut landed {
                let lane = &mut lanes[*token as usize];
                if *step == Step::Judge {
                    let mark = lane.mark.expect("taken before the pass's first READ");
                    *step = lane.get.judge(self.fabric.proof(lane.get.home(), mark));
                }
            }
            let mut round = Round::new(in_flight > 0);
            for (token, step) in landed.drain(..) {
                let lane = &mut lanes[token as usize];
                match step {
                    Step::Read(window) => {
                        ready.push((token, window));
                        round.goes_on(&lane.patience);
                    }
                    Step::Again(window, why) => {
                        self.stats.count(why);
                        looking_again += usize::from(!lane.patience.has_begun());
                        late -= usize::from(std::mem::replace(&mut lane.is_late, why == Retry::Late));
                        late += usize::from(lane.is_late);
                        let now_ns = lag.now_ns(&self.clock);
                        let rest = lane.patience.again(why, now_ns, &self.limits)?;
                        round.looks_again(now_ns, &lane.patience, why, rest);
                        match rest {
                            Rest::Sleep => resting.push((now_ns + SLEEP_NS, token)),
                            Rest::Spin | Rest::Yield => ready.push((token, window)),
                        }
                    }
                    Step::Found | Step::Absent | Step::Judge => {
                        lane.is_found = step == Step::Found;
                        answered.push(token);
                        round.answers();
                    }
                }
            }
            lag.add(&round, looking_again > 0, &self.clock, &self.limits)?;
            let no_pass_under_way =
                in_flight == 0 && ready.iter().all(|&(token, _)| lanes[token as usize].get.begins_pass());
            if late == 0 || no_pass_under_way {
                let flow = lag.pause(&self.clock, || {
                    for token in answered.drain(..) {
                        let lane = &mut lanes[token as usize];
                        looking_again -= usize::from(lane.patience.has_begun());
                        late -= usize::from(lane.is_late);
                        match (lane.get.reference().filter(|_| lane.is_found), lane.mark) {
                            (Some(reference), Some(mark)) => {
                                let (number, life) = (lane.number, lane.value.life);
                                named.push(NamedValue { number, reference, mark, life });
                            }
                            (_, mark) => {
                                self.stats.answered(lane.is_found);
                                let LivedSink { sink: value, life } = &lane.value;
                                let found = FoundValue { value, life: *life, mark };
                                each(lane.number, lane.is_found.then_some(found))?;
                            }
                        }
                        self.entries.learn(&lane.get, lane.is_found);
                        if let Some((number, key)) = todo.next() {
                            lane.restart(self.entries.machine(self.geometry, key, by_counter), number);
                            ready.push((token, lane.get.start()));
                        }
                    }
                    ControlFlow::Continue(())
                });
                if flow.is_break() {
                    // They must not be taken for READs of the next batch.
                    while in_flight > 0 {
                        self.fabric.poll(|_, _| in_flight -= 1)?;
                    }
                    return Ok(flow);
                }
            }
            round.take_rest(&self.clock);
        }
        self.finish_each(keys, named, each)
    }
}

/// A key whose value is not in its slot, but where that says.
pub(super) struct NamedValue<M> {
    pub number: usize,
    pub reference: Reference,
    /// Of the pass that has found it.
    pub mark: M,
    pub life: Option<Life>,
}

/// One of several hinted looks in flight.
struct PendingHint<'a, M> {
    look: HintedLook<'a>,
    number: usize,
    key: Hashed<'a>,
    windows: Hinted,
    /// How many of them have landed.
    landed: usize,
    wrong: WrongSlots,
    mark: Option<M>,
    value: LivedValue,
}

impl<'a, M> PendingHint<'a, M> {
    fn new(geometry: &'a Geometry, number: usize, key: Hashed<'a>, windows: Hinted) -> Self {
        let look = HintedLook::new(geometry, key);
        let (landed, wrong, mark, value) = (0, WrongSlots::new(), None, LivedValue::default());
        PendingHint { look, number, key, windows, landed, wrong, mark, value }
    }

    /// Takes in one of the slots. Returns whether it is the last.
    fn feed<L: Landed>(&mut self, nth: usize, landed: &mut L) -> bool {
        let slot = self.windows[nth].first;
        if !self.look.feed(slot, landed, &mut self.value) {
            self.wrong.push((slot, landed.occupant(slot)));
        }
        self.landed += 1;
        self.landed == self.windows.len()
    }
}

/// One of several GETs in flight.
struct PendingGet<'a, M> {
    get: Get<'a>,
    number: usize,
    /// Of the pass under way.
    mark: Option<M>,
    value: LivedValue,
    patience: RetryBudget,
    is_found: bool,
    /// Has it looked again because it was late?
    is_late: bool,
}

impl<'a, M> PendingGet<'a, M> {
    fn new(get: Get<'a>, number: usize) -> Self {
        let patience = RetryBudget::default();
        let value = LivedValue::default();
        PendingGet { get, number, mark: None, value, patience, is_found: false, is_late: false }
    }

    fn restart(&mut self, get: Get<'a>, number: usize) {
        let value = std::mem::take(&mut self.value);
        *self = PendingGet { value, ..PendingGet::new(get, number) };
    }
}
