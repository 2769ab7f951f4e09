//! Makes changes that were decided before, and have waited (L13): without their first try, on whatever thread.

use super::change::{Made, What};
use super::decide::NewLife;
use super::seams::{Between, Changed, DecidedChange, DecidedEnd, Deferred, LaterValue, MadeLater, Turn};
use super::segment::{Segment, Which};
use super::slots::HeldRoom;
use super::waits::ChangeWaits;
use super::whole::Table;
use crate::layout::hash::Hashed;
use crate::layout::life::Life;
use crate::layout::slot::Stored;
use crate::outcome::PutMode;
use std::sync::Arc;

/// Ends the turn of a change that was tried, unless it is to be made later: then that has the turn, and this returns how it
/// ends.
pub(super) fn end_turn(turn: Turn, table: &Arc<Table>) -> Option<Arc<DecidedEnd>> {
    let (awaited, turn, deferred) = turn.end()?;
    let (table, end) = (Arc::clone(table), Arc::new(DecidedEnd::default()));
    let later = LaterChange { table, turn, deferred, end: Arc::clone(&end) };
    awaited.then(DecidedChange::new(Box::new(later)));
    Some(end)
}

#[derive(Debug)]
struct LaterChange {
    table: Arc<Table>,
    turn: Turn,
    deferred: Deferred,
    end: Arc<DecidedEnd>,
}

impl MadeLater for LaterChange {
    fn make(self: Box<Self>, tells: bool) {
        let LaterChange { table, turn, deferred: Deferred { key, value, room }, end } = *self;
        let waits = ChangeWaits::default();
        let made = match &value {
            LaterValue::New(value) => {
                table.change(&key, PutDecided(room), value.stored(), &turn, &waits).map(drop)
            }
            LaterValue::Kept(life) => table.change(&key, *life, Stored::default(), &turn, &waits).map(drop),
            LaterValue::None => table.change(&key, Which::Any, Stored::default(), &turn, &waits).map(drop),
        };
        if let Err(error) = made {
            debug_assert!(false, "L10, L11: {error}");
            tracing::error!(%error, "a change that was decided could not be made");
        }
        end.say_made(turn);
        if tells {
            table.news().tell();
        }
    }

    fn withdraw(self: Box<Self>) {
        let LaterChange { table, turn, deferred, end } = *self;
        deferred.room.iter().for_each(|room| table.let_go(room));
        end.say_withdrawn(turn);
        table.news().tell();
    }
}

/// Puts the value that was decided: into the room that is held for it, or over the value that is there.
#[derive(Clone, Copy, Debug)]
struct PutDecided(Option<HeldRoom>);

impl What for PutDecided {
    type Outcome = Option<Changed>;

    fn make<B: Between>(self, at: &Segment, key: &Hashed<'_>, new: &Stored<'_>, seams: B) -> Made<Self> {
        match self.0 {
            Some(room) => at.put_into_held(&room, key, new, seams).map(|()| Some(Changed::Came)),
            None => at.put(key, new, PutMode::Upsert, seams).map(|_| None),
        }
    }

    fn changed(outcome: &Option<Changed>) -> Option<Changed> {
        *outcome
    }
}

/// Gives an entry this life. It keeps its value.
impl What for Life {
    type Outcome = Option<Changed>;

    fn make<B: Between>(self, at: &Segment, key: &Hashed<'_>, _: &Stored<'_>, seams: B) -> Made<Self> {
        at.change(key, &mut NewLife::new(self), seams)
    }

    fn changed(outcome: &Option<Changed>) -> Option<Changed> {
        *outcome
    }
}
