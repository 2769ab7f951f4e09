//! A thing that threads take turns at, and wait with for long.
//!
//! A thread takes it out for that time, so that no lock is held meanwhile. Who only looks at it, or closes it, does not
//! wait. In the midst of a wait, handlers of signals run: one that wants the thing finds out that its own thread has it.

use crate::error::error_of;
use pyo3::prelude::{PyResult, Python};
use std::ops::{Deref, DerefMut};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError, TryLockError};
use std::thread::{self, ThreadId};
use std::time::Duration;

/// After so long it is looked whether the program is to be interrupted.
const SLICE: Duration = Duration::from_millis(50);

pub(crate) struct Turn<T> {
    /// Locked for moments only, in which nothing of Python runs.
    place: Mutex<Place<T>>,
    /// Told when the thing is back, or closed, if somebody waits for that.
    changed: Condvar,
}

/// Where the thing is while nobody has it.
pub(crate) struct Place<T> {
    thing: T,
    taken_by: Option<ThreadId>,
    /// So many threads wait for it.
    waiting: usize,
    is_closed: bool,
}

impl<T> Place<T> {
    /// `None`: a thread has it, or it is closed.
    #[inline]
    pub fn thing(&mut self) -> Option<&mut T> {
        (self.taken_by.is_none() && !self.is_closed).then_some(&mut self.thing)
    }
}

/// Why a thread does not get it.
pub(crate) enum Refused {
    Closed,
    /// It has it already.
    IsOwn,
    /// Another has it, or waits for it.
    IsTaken,
}

impl<T: Default> Turn<T> {
    pub fn new(thing: T) -> Turn<T> {
        let place = Place { thing, taken_by: None, waiting: 0, is_closed: false };
        Turn { place: Mutex::new(place), changed: Condvar::new() }
    }

    fn lock(&self) -> MutexGuard<'_, Place<T>> {
        self.place.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Its place, for work that neither waits nor runs anything of Python. `None`: another thread is there. Does not wait.
    #[inline]
    pub fn now(&self) -> Option<MutexGuard<'_, Place<T>>> {
        match self.place.try_lock() {
            Ok(place) => Some(place),
            Err(TryLockError::Poisoned(place)) => Some(place.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// Takes it out. Does not wait.
    pub fn try_take(&self) -> Result<Taken<'_, T>, Refused> {
        match self.now() {
            // Who waits comes before who has just had it.
            Some(place) if place.waiting > 0 && place.taken_by.is_none() => Err(Refused::IsTaken),
            Some(place) => self.take_from(place),
            None => Err(Refused::IsTaken),
        }
    }

    fn take_from(&self, mut place: MutexGuard<'_, Place<T>>) -> Result<Taken<'_, T>, Refused> {
        let this = thread::current().id();
        match place.taken_by {
            _ if place.is_closed => Err(Refused::Closed),
            Some(thread) if thread == this => Err(Refused::IsOwn),
            Some(_) => Err(Refused::IsTaken),
            None => {
                place.taken_by = Some(this);
                Ok(Taken { turn: self, thing: std::mem::take(&mut place.thing) })
            }
        }
    }

    /// Like `take_from`, and waits for a slice of time at most.
    fn take_within_a_slice(&self) -> Result<Taken<'_, T>, Refused> {
        let mut place = self.lock();
        if !place.is_closed && (place.taken_by.is_some() || place.waiting > 0) {
            place.waiting += 1;
            place = self.changed.wait_timeout(place, SLICE).unwrap_or_else(PoisonError::into_inner).0;
            place.waiting -= 1;
        }
        self.take_from(place)
    }

    /// Takes it out. Waits for other threads, without the interpreter's lock. `None`: it is closed.
    ///
    /// # Errors
    /// What a handler of a signal has raised. `Busy` if this thread has it.
    pub fn take(&self, py: Python<'_>) -> PyResult<Option<Taken<'_, T>>>
    where
        T: Send,
    {
        self.take_asking(py, || {})
    }

    /// Takes the turn as [`take`](Turn::take) does. Asks for it after each slice of time, so that a thread that waits with it gives it back.
    pub fn take_asking(&self, py: Python<'_>, ask: impl Fn()) -> PyResult<Option<Taken<'_, T>>>
    where
        T: Send,
    {
        let mut taken = self.try_take();
        loop {
            match taken {
                Ok(taken) => return Ok(Some(taken)),
                Err(Refused::Closed) => return Ok(None),
                Err(Refused::IsOwn) => {
                    let text = "this thread waits in such a call, and this is a handler within it; call it afterwards";
                    return Err(error_of(py, "Busy", text.into()));
                }
                Err(Refused::IsTaken) => {
                    py.check_signals()?;
                    taken = py.detach(|| self.take_within_a_slice());
                    if matches!(taken, Err(Refused::IsTaken)) {
                        ask();
                    }
                }
            }
        }
    }

    /// Looks at it. `None`: a thread has it, or it is closed.
    pub fn look<R>(&self, look: impl FnOnce(&T) -> R) -> Option<R> {
        self.lock().thing().map(|thing| look(thing))
    }

    /// Nobody gets it any more. Returns it. If a thread has it, that drops it afterwards. Does not wait.
    pub fn close(&self) -> T {
        let mut place = self.lock();
        place.is_closed = true;
        let thing = std::mem::take(&mut place.thing);
        drop(place);
        self.changed.notify_all();
        thing
    }
}

/// A thing that this thread has until this is dropped.
pub(crate) struct Taken<'a, T: Default> {
    turn: &'a Turn<T>,
    thing: T,
}

impl<T: Default> Deref for Taken<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.thing
    }
}

impl<T: Default> DerefMut for Taken<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.thing
    }
}

impl<T: Default> Drop for Taken<'_, T> {
    fn drop(&mut self) {
        let mut place = self.turn.lock();
        place.taken_by = None;
        if !place.is_closed {
            std::mem::swap(&mut place.thing, &mut self.thing);
        }
        let is_awaited = place.waiting > 0;
        // What is closed is dropped without the lock.
        drop(place);
        if is_awaited {
            self.turn.changed.notify_all();
        }
    }
}
