//! Who takes events in, of several indexers over one table.
//!
//! ```text
//! lease  '#' 'l'  ->  form (u8), owner (u64), renewals (u32), its process: host (u32), number (u32), start (u64)
//! ```
//!
//! One has the lease, and renews it each second by a swap. The others look at it. Where it is gone, because its owner was
//! stopped, or its owner's process is dead for sure, another one takes it at once. Where it was not renewed for
//! [`TERM`], another one takes it over, although the owner may only be slow.
//!
//! *A laggard harms nobody.* Who takes over a lease gives each worker another incarnation before it takes events in: a random
//! number, which the worker's entry has as its *next* before anything is copied (`Store::copy`), and as its own afterwards. So
//! each worker has other holders, other own links, another row of numbers, with the blocks of the last one. What the laggard
//! still changes is of the incarnation before, whose holders are hidden, and are not registered again (`Store::check`). Its
//! number was read before its blocks were copied, so each batch that it may have half done is taken in again, in its
//! order, behind the copy. What it hides has no worker in the table: no entry has its incarnation, now or as its next, and none
//! will (`Store::hide_others`). What takes long renews the lease, and ends if it is another one's. Common links it
//! changes as everybody does (`crate::links`).

use crate::store::{Store, StoreError};
use oneread::SwapOutcome;
use std::time::{Duration, Instant};
use xxhash_rust::xxh3::xxh3_64;

const LEASE: &[u8] = b"#l";
/// A lease that was not renewed for so long may be taken over.
pub const TERM: Duration = Duration::from_secs(5);
/// How often a lease is renewed, and looked at, at the least.
pub const RENEWAL: Duration = Duration::from_secs(1);

/// A process on a host, as the host knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Process {
    host: u32,
    number: u32,
    start: u64,
}

/// What a lease says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Held {
    owner: u64,
    renewals: u32,
    process: Process,
}

impl Held {
    const FORM: u8 = 1;

    fn to_bytes(self) -> [u8; 29] {
        let Process { host, number, start } = self.process;
        let mut bytes = [Held::FORM; 29];
        bytes[1..9].copy_from_slice(&self.owner.to_le_bytes());
        bytes[9..13].copy_from_slice(&self.renewals.to_le_bytes());
        bytes[13..17].copy_from_slice(&host.to_le_bytes());
        bytes[17..21].copy_from_slice(&number.to_le_bytes());
        bytes[21..].copy_from_slice(&start.to_le_bytes());
        bytes
    }

    fn from_bytes(bytes: &[u8]) -> Option<Held> {
        let bytes: &[u8; 29] = bytes.try_into().ok()?;
        let long = |at: usize| bytes[at..].first_chunk().map(|bytes| u64::from_le_bytes(*bytes));
        let short = |at: usize| bytes[at..].first_chunk().map(|bytes| u32::from_le_bytes(*bytes));
        let process = Process { host: short(13)?, number: short(17)?, start: long(21)? };
        let held = Held { owner: long(1)?, renewals: short(9)?, process };
        (bytes[0] == Held::FORM).then_some(held)
    }
}

impl Process {
    /// This one.
    fn own() -> Process {
        let number = std::process::id();
        Process { host: host(), number, start: start_of(number).unwrap_or_default() }
    }

    /// Whether it is dead for sure: of this host, and not there any more.
    fn is_dead(self) -> bool {
        self.host == host() && start_of(self.number) != Some(self.start)
    }
}

/// This start of this host, and what numbers of processes mean here.
fn host() -> u32 {
    let boot = std::fs::read("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let space = std::fs::read_link("/proc/self/ns/pid").unwrap_or_default();
    xxh3_64(&[&boot, space.as_os_str().as_encoded_bytes()].concat()) as u32
}

/// When a process was started, in the kernel's ticks. A zombie is none.
fn start_of(number: u32) -> Option<u64> {
    let stat = std::fs::read_to_string(format!("/proc/{number}/stat")).ok()?;
    // The name stands in parentheses, and may have any characters.
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace();
    let state = fields.next()?;
    let start = fields.nth(18)?.parse().ok()?;
    (!["Z", "X"].contains(&state)).then_some(start)
}

/// What this indexer is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// It takes events in, as before.
    Active,
    /// It has just begun to: nobody else does, for sure.
    Adopted,
    /// It has just begun to: the one before may be slow only.
    TookOver,
    /// Another one does.
    Standby,
}

/// The lease, as this indexer knows it.
#[derive(Debug)]
pub struct Lease {
    owner: u64,
    process: Process,
    term: Duration,
    /// It is this one's.
    held: Option<Held>,
    /// What was seen last, and since when.
    seen: Option<(Vec<u8>, Instant)>,
}

impl Lease {
    /// Of an indexer that does not have it yet. `owner` is a random number.
    pub fn new(owner: u64, term: Duration) -> Lease {
        Lease { owner, process: Process::own(), term, held: None, seen: None }
    }

    /// How often it is to be renewed, and looked at.
    pub fn period(&self) -> Duration {
        RENEWAL.min((self.term / 4).max(Duration::from_millis(10)))
    }

    /// Renews the lease, or takes it where it may.
    ///
    /// # Errors
    /// The table's. It may be repeated.
    pub fn step(&mut self, store: &mut Store) -> Result<Role, StoreError> {
        let found = store.client.get(LEASE)?;
        if let Some(held) = self.held {
            let next = Held { renewals: held.renewals.wrapping_add(1), ..held };
            // A swap that was not answered may have been made.
            for before in [held, next] {
                if found.as_deref() == Some(&before.to_bytes()[..])
                    && self.swap(store, Some(&before.to_bytes()), next)?
                {
                    return Ok(Role::Active);
                }
            }
            self.held = None;
            return Ok(Role::Standby);
        }
        let first = Held { owner: self.owner, renewals: 0, process: self.process };
        let Some(value) = found else {
            return Ok(if self.swap(store, None, first)? { Role::Adopted } else { Role::Standby });
        };
        let held = Held::from_bytes(&value);
        if held.is_some_and(|held| held.owner == self.owner || held.process.is_dead()) {
            return Ok(if self.swap(store, Some(&value), first)? { Role::Adopted } else { Role::Standby });
        }
        match &self.seen {
            Some((seen, since)) if *seen == value => {
                if since.elapsed() >= self.term && self.swap(store, Some(&value), first)? {
                    return Ok(Role::TookOver);
                }
            }
            Some(_) | None => self.seen = Some((value, Instant::now())),
        }
        Ok(Role::Standby)
    }

    fn swap(&mut self, store: &mut Store, before: Option<&[u8]>, after: Held) -> Result<bool, StoreError> {
        let swapped = store.client.compare_exchange(LEASE, before, Some(&after.to_bytes()))?;
        if swapped == SwapOutcome::Swapped {
            self.held = Some(after);
            self.seen = None;
            return Ok(true);
        }
        Ok(false)
    }

    /// Gives it back: nobody takes events in from now on, until another one has it.
    ///
    /// # Errors
    /// The table's.
    pub fn release(&mut self, store: &mut Store) -> Result<(), StoreError> {
        if let Some(held) = self.held.take() {
            store.client.remove_if(LEASE, &held.to_bytes())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::Table;

    /// One has the lease. It goes to another one when it is given back, at once; and when it was not renewed.
    #[test]
    fn one_has_it() {
        let table = Table::new();
        let mut store = table.store();
        let lease = |owner, term| Lease::new(owner, Duration::from_secs(term));
        let (mut first, mut second) = (lease(1, 3600), lease(2, 3600));
        assert_eq!(first.step(&mut store).unwrap(), Role::Adopted);
        for _ in 0..3 {
            assert_eq!(second.step(&mut store).unwrap(), Role::Standby);
            assert_eq!(first.step(&mut store).unwrap(), Role::Active);
        }
        first.release(&mut store).unwrap();
        assert_eq!(second.step(&mut store).unwrap(), Role::Adopted);
        assert_eq!(first.step(&mut store).unwrap(), Role::Standby);
        // Its time is over as soon as it is seen twice.
        let mut third = lease(3, 0);
        assert_eq!(third.step(&mut store).unwrap(), Role::Standby);
        assert_eq!(third.step(&mut store).unwrap(), Role::TookOver);
        assert_eq!(second.step(&mut store).unwrap(), Role::Standby, "it is told so at its next renewal");
        assert_eq!(third.step(&mut store).unwrap(), Role::Active);
    }

    /// The lease of a process that is dead for sure is taken at once; of one elsewhere it is not known.
    #[test]
    fn a_dead_one_is_adopted() {
        let table = Table::new();
        let mut store = table.store();
        let own = Process::own();
        assert!(!own.is_dead());
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let gone = Process { number: child.id(), start: 1, ..own };
        child.wait().unwrap();
        let elsewhere = Process { host: own.host.wrapping_add(1), ..gone };
        for (process, expected) in [(gone, Role::Adopted), (elsewhere, Role::Standby), (own, Role::Standby)] {
            let held = Held { owner: 9, renewals: 0, process };
            assert_eq!(Held::from_bytes(&held.to_bytes()), Some(held));
            store.client.put(LEASE, &held.to_bytes()).unwrap();
            assert_eq!(Lease::new(1, Duration::from_secs(3600)).step(&mut store).unwrap(), expected);
        }
    }
}
