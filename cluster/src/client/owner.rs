//! Owners of entries: handles whose entries go when they end (CL19).

use super::changes::{Asked, Change};
use super::{ClusterClient, ClusterError, random};
use crate::core::message::{Kind, OWNER_MAX, Outcome, Session, TTL_MAX, Wanted};
use crate::core::owners;
use crate::core::sending::Sending;
use crate::core::state::{ShardIx, Time};
use oneread::OwnerOptions;
use oneread::internals::tries::Backoff;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::RecvTimeoutError;
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

/// Time between two questions whether all entries of an owner have left.
const ASK_MIN: Duration = Duration::from_millis(5);
const ASK_MAX: Duration = Duration::from_millis(200);
/// A session reports this many times within the time that it may be away.
const STAYS: u32 = 4;

/// A session of an owner. It reports that it is there until its last handle is dropped.
#[derive(Debug)]
pub(super) struct Owning {
    session: Session,
    is_gone: Arc<AtomicBool>,
    /// When this is dropped, its thread ends.
    _is_there: mpsc::Sender<()>,
}

impl Owning {
    /// The life of an entry that this session puts.
    pub(super) fn wants(&self, asked: &Asked) -> Result<Wanted, ClusterError> {
        if !matches!(asked.kind, Kind::Put(_) | Kind::Insert(_) | Kind::Update(_)) {
            return Ok(asked.wanted);
        }
        if self.is_gone.load(Ordering::Relaxed) {
            return Err(ClusterError::OwnerGone { owner: self.session.owner });
        }
        Ok(Wanted::new(asked.wanted.ttl(), Some(self.session)))
    }

    /// Takes the outcomes of changes: when one shard says that the owner is gone, it is gone everywhere.
    pub(super) fn see(&self, ended: &[Result<Outcome, ClusterError>]) {
        if ended.iter().any(|ended| matches!(ended, Err(ClusterError::OwnerGone { .. }))) {
            self.is_gone.store(true, Ordering::Relaxed);
        }
    }
}

impl ClusterClient {
    /// Another handle of the same client, that puts as an owner. Entries that it and its clones put, insert or update
    /// are the owner's. Entries that others put in their place are not. A swap keeps an entry's owner.
    ///
    /// The handle and its clones are one session. An owner has one session at a time, and a thread of it reports to
    /// each shard that it is there, four times in [`OwnerOptions::absent_for`]. When a shard has not heard from it for
    /// that long, or when somebody calls [`ClusterClient::remove_owner`], it puts no more in that shard, and the
    /// owner's entries there leave: one after the other, as changes that followers see. Until a shard has removed the
    /// last one, GETs may find the rest, and the number is not given again. After the first refusal all puts of the
    /// session are refused ([`ClusterError::OwnerGone`]), and it stops reporting.
    ///
    /// When the last handle is dropped, the session stops reporting. Its entries leave when it was away for
    /// `absent_for`, or with [`ClusterClient::remove_owner`].
    ///
    /// A new primary, or one with a new life, counts the time from the beginning. A primary that stood still does not
    /// count that time.
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
        if let Err(error) = client.begin_as(session, absent_for) {
            // If the session has begun, it is ended. Otherwise the number would be blocked for as long as it may be
            // away.
            client.ask_owner(&client.all_shards(), number, &Kind::RemoveOwner(session));
            return Err(error);
        }
        let (is_there, ends) = mpsc::channel();
        let is_gone = Arc::new(AtomicBool::new(false));
        let owning = Owning { session, is_gone: is_gone.clone(), _is_there: is_there };
        let deadline = client.deadline.min(absent_for / (2 * STAYS));
        let stays = ClusterClient { deadline, ..client.clone() };
        let spawned = std::thread::Builder::new()
            .name("oneread-owner".into())
            .spawn(move || stay(stays, session, absent_for, &ends, &is_gone));
        if let Err(error) = spawned {
            client.ask_owner(&client.all_shards(), number, &Kind::RemoveOwner(session));
            return Err(ClusterError::Threads(error));
        }
        client.owner = Some(Arc::new(owning));
        Ok(client)
    }

    /// Begins a session at all shards.
    fn begin_as(&mut self, session: Session, absent_for: Duration) -> Result<(), ClusterError> {
        let (shards, owner) = (self.all_shards(), session.owner);
        let own = Kind::Own(session, absent_for.as_micros() as Time);
        for (shard, ended) in shards.iter().zip(self.ask_owner(&shards, owner, &own)) {
            if ended? != Outcome::Done {
                return Err(ClusterError::OwnerTaken { owner, shard: *shard });
            }
        }
        // Some shards may have taken long, and others heard nothing meanwhile.
        for ended in self.ask_owner(&shards, owner, &Kind::Stay(session)) {
            if ended? != Outcome::Done {
                return Err(ClusterError::OwnerGone { owner });
            }
        }
        Ok(())
    }

    fn all_shards(&self) -> Vec<ShardIx> {
        (0..self.shared.config.shards).collect()
    }

    /// Removes all entries of an owner, and waits until they are gone: no GET that begins after this has returned finds
    /// one of them, except an advisory one. The owner's session puts no more. Returns whether there was such an owner.
    /// It may be repeated.
    ///
    /// Costs one round trip to each node if there is no such owner. Otherwise it costs some more, at least two passes
    /// of each node over its table, and a replicated change for each entry. Under load a pass takes longer.
    ///
    /// # Errors
    /// [`ClusterError::OwnerNumber`]; [`ClusterError::OwnerLeaves`] if some entries are left when the time for a call
    /// is over; as [`ClusterClient::put`].
    pub fn remove_owner(&mut self, number: u16) -> Result<bool, ClusterError> {
        check(number)?;
        let (begun, shards) = (Instant::now(), self.all_shards());
        // By session: an owner that begins meanwhile has another one.
        let mut left = Vec::new();
        for (shard, ended) in shards.iter().zip(self.ask_owner(&shards, number, &Kind::Who)) {
            if let Outcome::Is(session) = ended? {
                left.push((*shard, Session { owner: number, number: session }));
            }
        }
        let (was_there, mut backoff) = (!left.is_empty(), Backoff::new(ASK_MIN, ASK_MAX));
        loop {
            let asked = left.iter().map(|(shard, session)| (*shard, number, Kind::RemoveOwner(*session)));
            let ended = self.ask_owners(asked.collect());
            let mut leaving = Vec::new();
            for (one, ended) in left.into_iter().zip(ended) {
                if ended? != Outcome::Absent {
                    leaving.push(one);
                }
            }
            left = leaving;
            if left.is_empty() {
                return Ok(was_there);
            }
            let Some(time) = self.left(begun) else {
                let (shards, waited) = (left.len(), begun.elapsed());
                return Err(ClusterError::OwnerLeaves { owner: number, shards, waited });
            };
            std::thread::sleep(backoff.take().min(time));
        }
    }

    /// Asks some shards about an owner, at once.
    fn ask_owner(
        &mut self,
        shards: &[ShardIx],
        number: u16,
        kind: &Kind,
    ) -> Vec<Result<Outcome, ClusterError>> {
        self.ask_owners(shards.iter().map(|shard| (*shard, number, kind.clone())).collect())
    }

    fn ask_owners(&mut self, asked: Vec<(ShardIx, u16, Kind)>) -> Vec<Result<Outcome, ClusterError>> {
        let change = |(shard, number, kind): (ShardIx, u16, Kind)| {
            // A second copy of a request that begins a session could come after its end, and begin it again.
            let may_repeat = !matches!(kind, Kind::Own(..));
            Ok(Change::new(shard, owners::key(shard, number), kind.into(), Sending::new(may_repeat)))
        };
        self.carry_out(asked.into_iter().map(change).collect())
    }
}

fn check(number: u16) -> Result<(), ClusterError> {
    if (1..=OWNER_MAX).contains(&number) { Ok(()) } else { Err(ClusterError::OwnerNumber { given: number }) }
}

/// Reports that a session is there, until it ends.
pub(super) fn stay(
    mut client: ClusterClient,
    session: Session,
    absent_for: Duration,
    ends: &mpsc::Receiver<()>,
    is_gone: &AtomicBool,
) {
    let (shards, every) = (client.all_shards(), absent_for / STAYS);
    let mut pause = every;
    while ends.recv_timeout(pause) == Err(RecvTimeoutError::Timeout) && !is_gone.load(Ordering::Relaxed) {
        let begun = Instant::now();
        let heard = client.ask_owner(&shards, session.owner, &Kind::Stay(session));
        if heard.iter().any(|ended| matches!(ended, Ok(Outcome::Absent))) {
            tracing::warn!(
                owner = session.owner,
                "an owner leaves: it puts no more, and its entries are removed"
            );
            return is_gone.store(true, Ordering::Relaxed);
        }
        pause = every.saturating_sub(begun.elapsed());
    }
}
