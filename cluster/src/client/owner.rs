//! Owners of entries: handles whose entries go with them (CL19).

use super::{Asked, Change, ClusterClient, ClusterError, random};
use crate::core::message::{Kind, OWNER_MAX, Outcome, RequestId, Session, TTL_MAX, Wanted};
use crate::core::owners;
use crate::core::sending::Sending;
use crate::core::state::{ShardIx, Time};
use oneread::OwnerOptions;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::RecvTimeoutError;
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

/// Between two questions whether all entries of an owner have left.
const ASK_MIN: Duration = Duration::from_millis(5);
const ASK_MAX: Duration = Duration::from_millis(200);
/// A session says that it is there so many times in the time for which it may not be heard.
const STAYS: u32 = 4;

/// A session of an owner. It says that it is there until the last handle that has it is dropped.
#[derive(Debug)]
pub(super) struct Owning {
    session: Session,
    is_gone: Arc<AtomicBool>,
    /// Dropped with it: then its thread ends.
    _is_there: mpsc::Sender<()>,
}

impl Owning {
    /// What life an entry is to have that is put so.
    pub(super) fn wants(&self, asked: &Asked) -> Result<Wanted, ClusterError> {
        if !matches!(asked.kind, Kind::Put(_) | Kind::Insert(_) | Kind::Update(_)) {
            return Ok(asked.wanted);
        }
        if self.is_gone.load(Ordering::Relaxed) {
            return Err(ClusterError::OwnerGone { owner: self.session.owner });
        }
        Ok(Wanted::new(asked.wanted.ttl(), Some(self.session)))
    }

    /// What became of changes: where one shard says that it is gone, it is everywhere.
    pub(super) fn see(&self, ended: &[Result<Outcome, ClusterError>]) {
        if ended.iter().any(|ended| matches!(ended, Err(ClusterError::OwnerGone { .. }))) {
            self.is_gone.store(true, Ordering::Relaxed);
        }
    }
}

impl ClusterClient {
    /// Another handle of the same client, that puts as an owner: entries that it and its clones put, insert or update are the
    /// owner's. What others put in their place is not, and a swap leaves an entry whose it is.
    ///
    /// The handle and its clones are one session: an owner has one at a time, and a thread of it tells each shard that it
    /// is there, four times in [`OwnerOptions::absent_for`]. When a shard has not heard it for that long, or somebody calls
    /// [`ClusterClient::remove_owner`], it puts no more in that shard, and the owner's entries there leave: one after
    /// the other, as changes that followers are told of. Until a shard has removed the last one, GETs may find those that
    /// are left, and the number is not given again. With the first refusal all puts of the session are refused
    /// ([`ClusterError::OwnerGone`]), and it is there no more.
    ///
    /// A primary that is new, or stood still, begins to count the time anew.
    ///
    /// # Errors
    /// [`ClusterError::OwnerNumber`]; [`ClusterError::AbsentFor`]; [`ClusterError::OwnerTaken`];
    /// [`ClusterError::NoOwners`]; as [`ClusterClient::put`].
    pub fn owner(&self, owner: OwnerOptions) -> Result<ClusterClient, ClusterError> {
        let OwnerOptions { number, absent_for, .. } = owner;
        let least = Duration::from_micros(self.shared.config.timing.ttl);
        let most = Duration::from_micros(TTL_MAX);
        check(number)?;
        if absent_for < least || absent_for > most {
            return Err(ClusterError::AbsentFor { given: absent_for, least });
        }
        let mut client = ClusterClient { owner: None, ..self.clone() };
        let session = Session { owner: number, number: random() };
        let shards: Vec<ShardIx> = (0..self.shared.config.shards).collect();
        // Each is done once: a copy that comes late would begin, or end, what others have ended or begun.
        let id = |number| Some(RequestId { lane: session.number, number });
        let own = Kind::Own(session, absent_for.as_micros() as Time);
        let begun = client.ask_owner(&shards, number, own, id(1));
        let failed = shards.iter().zip(begun).find_map(|(shard, ended)| match ended {
            Ok(Outcome::Done) => None,
            Ok(_) => Some(ClusterError::OwnerTaken { owner: number, shard: *shard }),
            Err(error) => Some(error),
        });
        if let Some(error) = failed {
            // Where it has begun, it ends: else the number would not be given for as long as it may be away.
            client.ask_owner(&shards, number, Kind::RemoveOwner(Some(session)), id(2));
            return Err(error);
        }
        let (is_there, ends) = mpsc::channel();
        let is_gone = Arc::new(AtomicBool::new(false));
        let owning = Owning { session, is_gone: is_gone.clone(), _is_there: is_there };
        let stays = ClusterClient { deadline: absent_for / STAYS, ..client.clone() };
        std::thread::Builder::new()
            .name("oneread-owner".into())
            .spawn(move || stay(stays, session, absent_for, &ends, &is_gone))
            .map_err(ClusterError::Threads)?;
        client.owner = Some(Arc::new(owning));
        Ok(client)
    }

    /// Removes all entries of an owner, and waits until they are gone: no GET that begins after this has returned finds one
    /// of them, but an advisory one. The owner's session puts nothing any more. Returns whether there was such an owner.
    /// It may be repeated.
    ///
    /// One round trip a node if there is no such owner; else two passes of each node over its table, some million
    /// entries a second, and a replicated change an entry.
    ///
    /// # Errors
    /// [`ClusterError::OwnerNumber`]; [`ClusterError::OwnerLeaves`] if some are left when the time for a call is over; as
    /// [`ClusterClient::put`].
    pub fn remove_owner(&mut self, number: u16) -> Result<bool, ClusterError> {
        check(number)?;
        let begun = Instant::now();
        let mut left: Vec<ShardIx> = (0..self.shared.config.shards).collect();
        let (mut was_there, mut pause) = (false, ASK_MIN);
        let mut asked = (Kind::RemoveOwner(None), Some(RequestId { lane: random(), number: 1 }));
        loop {
            let mut leaving = Vec::new();
            for (shard, ended) in left.iter().zip(self.ask_owner(&left, number, asked.0, asked.1)) {
                if ended? != Outcome::Absent {
                    leaving.push(*shard);
                }
            }
            was_there |= !leaving.is_empty();
            if leaving.is_empty() {
                return Ok(was_there);
            }
            (left, asked) = (leaving, (Kind::Leaves, None));
            let Some(time) = self.left(begun) else {
                let (shards, waited) = (left.len(), begun.elapsed());
                return Err(ClusterError::OwnerLeaves { owner: number, shards, waited });
            };
            std::thread::sleep(pause.min(time));
            pause = (pause * 2).min(ASK_MAX);
        }
    }

    /// Asks some shards of an owner, at once.
    fn ask_owner(
        &mut self,
        shards: &[ShardIx],
        number: u16,
        kind: Kind,
        id: Option<RequestId>,
    ) -> Vec<Result<Outcome, ClusterError>> {
        // Who only asks may do so twice.
        let may_repeat = id.is_some() || kind == Kind::Leaves;
        let change = |shard: ShardIx| {
            let (key, asked) = (owners::key(shard, number), Asked::from(kind.clone()));
            Ok(Change { id, ..Change::new(shard, key, asked, Sending::new(may_repeat)) })
        };
        self.carry_out(shards.iter().map(|shard| change(*shard)).collect())
    }
}

fn check(number: u16) -> Result<(), ClusterError> {
    if (1..=OWNER_MAX).contains(&number) { Ok(()) } else { Err(ClusterError::OwnerNumber { given: number }) }
}

/// Says that a session is there, until it is not.
fn stay(
    mut client: ClusterClient,
    session: Session,
    absent_for: Duration,
    ends: &mpsc::Receiver<()>,
    is_gone: &AtomicBool,
) {
    let shards: Vec<ShardIx> = (0..client.shared.config.shards).collect();
    while ends.recv_timeout(absent_for / STAYS) == Err(RecvTimeoutError::Timeout)
        && !is_gone.load(Ordering::Relaxed)
    {
        let heard = client.ask_owner(&shards, session.owner, Kind::Stay(session), None);
        if heard.iter().any(|ended| matches!(ended, Ok(Outcome::Absent))) {
            tracing::warn!(owner = session.owner, "an owner is gone: it puts no more, and its entries leave");
            return is_gone.store(true, Ordering::Relaxed);
        }
    }
}
