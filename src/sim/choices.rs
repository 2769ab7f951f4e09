//! Decides what hardware leaves open: by chance, in every way in turn, or as a fuzzer says.

use crate::layout::hash::{mix, reduce};
use smallvec::SmallVec;

/// Decides whatever hardware leaves open.
pub trait Adversary {
    /// A number below `n`, which is at least 1.
    fn pick(&mut self, n: usize) -> usize;

    /// Which of `n` instants a unit is sampled at. `is_whole` says whether no write of the unit is
    /// under way at an instant.
    fn pick_sample(&mut self, n: usize, is_whole: impl Fn(usize) -> bool) -> usize {
        let _ = is_whole;
        self.pick(n)
    }

    /// What a client does between two passes: 0 goes on at once, 1 lets the server store once, and
    /// each higher number sleeps until one of the `leaps`.
    fn pick_pause(&mut self, leaps: usize) -> usize {
        self.pick(2 + leaps)
    }
}

/// Decides by a pseudo-random sequence.
#[derive(Clone, Copy, Debug)]
pub struct Random(u64);

impl Random {
    /// The sequence of `seed`.
    pub fn new(seed: u64) -> Random {
        Random(mix(seed ^ 0x5eed))
    }
}

impl Adversary for Random {
    fn pick(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        reduce(mix(self.0), n as u64) as usize
    }

    /// In seven of eight cases picks an instant at which the unit is whole: the earliest, the
    /// latest, or any. A torn sample only makes a GET look again. Samples far apart contradict each
    /// other most.
    fn pick_sample(&mut self, n: usize, is_whole: impl Fn(usize) -> bool) -> usize {
        let how = self.pick(8);
        if n < 3 || how == 0 {
            return self.pick(n);
        }
        let mut whole = (0..n).filter(|&instant| is_whole(instant));
        let found = match how {
            1..3 => whole.next(),
            3..6 => whole.next_back(),
            _ => {
                let whole: SmallVec<[usize; 32]> = whole.collect();
                (!whole.is_empty()).then(|| whole[self.pick(whole.len())])
            }
        };
        found.unwrap_or_else(|| self.pick(n))
    }

    /// Sleeps in two of five cases.
    fn pick_pause(&mut self, leaps: usize) -> usize {
        match self.pick(5) {
            0 | 1 if leaps > 0 => 2 + self.pick(leaps),
            _ => self.pick(2),
        }
    }
}

/// Decides in every possible way, one schedule after the other.
///
/// ```
/// # use oneread::internals::sim::{Adversary, Every};
/// let mut every = Every::default();
/// let mut seen = Vec::new();
/// while every.next_schedule() {
///     seen.push((every.pick(2), every.pick(3)));
/// }
/// assert_eq!(seen, [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2)]);
/// ```
#[derive(Clone, Debug, Default)]
pub struct Every {
    /// Decisions of this schedule, each with its number of choices.
    decisions: Vec<(usize, usize)>,
    at: usize,
    schedules: u64,
}

impl Every {
    /// Starts the next schedule; `false` after the last.
    pub fn next_schedule(&mut self) -> bool {
        self.decisions.truncate(self.at);
        self.at = 0;
        if self.schedules > 0 {
            loop {
                match self.decisions.last_mut() {
                    None => return false,
                    Some((choice, n)) if *choice + 1 < *n => {
                        *choice += 1;
                        break;
                    }
                    Some(_) => {
                        self.decisions.pop();
                    }
                }
            }
        }
        self.schedules += 1;
        true
    }

    /// The number of schedules so far, the current one included.
    pub fn schedules(&self) -> u64 {
        self.schedules
    }
}

impl Adversary for Every {
    fn pick(&mut self, n: usize) -> usize {
        if self.at == self.decisions.len() {
            self.decisions.push((0, n));
        }
        let (choice, _) = self.decisions[self.at];
        self.at += 1;
        choice
    }
}

/// Decides by given bytes (a fuzzer's), and always 0 when they are used up.
#[derive(Clone, Debug)]
pub struct Bytes<'a>(pub &'a [u8]);

impl Adversary for Bytes<'_> {
    fn pick(&mut self, n: usize) -> usize {
        let mut number = 0usize;
        let mut left = n - 1;
        while left > 0 {
            let Some((&byte, rest)) = self.0.split_first() else { break };
            number = number << 8 | usize::from(byte);
            self.0 = rest;
            left >>= 8;
        }
        number % n
    }
}
