//! GETs: READs at primaries under leases, of one key and of many.

use super::routes::{Route, Routes};
use super::{AGAIN, ClusterClient, ClusterError, Shared, check, lock};
use crate::clock;
use crate::core::state::{NodeId, ShardIx};
use oneread::Client;
use oneread::error::KeyError;
use oneread::internals::breaking;
use oneread::internals::tries::{Backoff, Failed, Repeatable, Tries};
use rustc_hash::FxHashSet;
use std::cell::Cell;
use std::fmt::Display;
use std::ops::ControlFlow;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// A key of a batch, with its index in the caller's list.
#[derive(Debug)]
struct BatchKey<'k> {
    at: usize,
    key: &'k [u8],
}

impl AsRef<[u8]> for BatchKey<'_> {
    #[inline]
    fn as_ref(&self) -> &[u8] {
        self.key
    }
}

/// Keys that are READ together at one node.
#[derive(Debug)]
struct Batch<'k> {
    route: &'k Route,
    keys: Vec<BatchKey<'k>>,
    /// Values that another thread has READ, each with its index in the caller's list.
    found: Vec<(usize, Option<Vec<u8>>)>,
    /// Indexes of keys that could not be READ, and why.
    failed: Vec<(usize, KeyError)>,
    /// Whether the lease lasted after all values had landed (CL4), or why nothing was READ.
    is_leased: Result<bool, Why>,
}

impl<'k> Batch<'k> {
    fn new(route: &'k Route, keys: usize) -> Batch<'k> {
        let (found, failed) = (Vec::new(), Vec::new());
        Batch { route, keys: Vec::with_capacity(keys), found, failed, is_leased: Ok(false) }
    }

    /// READs the keys. The values count only with the lease. Without one, all keys are READ and passed to `see` again.
    fn read(&mut self, client: &mut Client, mut see: impl FnMut(usize, Option<Vec<u8>>)) {
        let Batch { route: Route { node, lease, .. }, keys, failed, .. } = self;
        let read = look_at(client, *node, |client| {
            client.get_many_with(keys, |index, value| {
                let at = keys[index].at;
                match value {
                    Ok(value) => see(at, value.map(<[u8]>::to_vec)),
                    Err(error) => failed.push((at, error)),
                }
                ControlFlow::<()>::Continue(())
            })
        });
        self.is_leased = read.map(|_| lease.as_ref().is_some_and(|lease| lease.lasts(clock::now())));
    }

    fn read_beside(&mut self, client: &mut Client) {
        let mut found = Vec::with_capacity(self.keys.len());
        self.read(client, |at, value| found.push((at, value)));
        self.found = found;
    }
}

/// Why something could not be READ.
type Why = Box<str>;

#[cold]
fn why(error: impl Display) -> Why {
    error.to_string().into()
}

/// READs at a table, and checks that it is this node's: another node may have the address by now.
#[inline]
fn look_at<T, E: Display>(
    client: &mut Client,
    node: NodeId,
    read: impl FnOnce(&mut Client) -> Result<T, E>,
) -> Result<T, Why> {
    match read(client) {
        Ok(found) if client.geometry().generation() == node.0 => Ok(found),
        Ok(_) => Err(why(format_args!("node {node} is gone"))),
        Err(error) => Err(why(error)),
    }
}

/// A handle's clients of nodes' tables.
#[derive(Debug)]
pub(super) struct Tables {
    shared: Arc<Shared>,
    /// By place.
    clients: Vec<Option<Client>>,
}

impl Tables {
    pub(super) fn new(shared: Arc<Shared>) -> Tables {
        Tables { shared, clients: Vec::new() }
    }

    /// READs at a shard's primary. The value counts if a lease lasts after it has landed (CL4).
    #[inline]
    pub(super) fn read<T, E: Display>(
        &mut self,
        route: &Route,
        read: impl FnOnce(&mut Client) -> Result<T, E>,
    ) -> Result<T, Why> {
        let Some(lease) = &route.lease else { return Err(self.want_lease(route)) };
        let found = self.look(route.node, route.place, read)?;
        if lease.lasts(clock::now()) { Ok(found) } else { Err(self.want_lease(route)) }
    }

    /// Makes sure that a thread READs the node's page. An earlier thread may have given up while the node was away.
    /// Returns what is missing.
    #[cold]
    fn want_lease(&mut self, route: &Route) -> Why {
        self.shared.look_again();
        let is_kept = lock(&self.shared.tables).contains_key(&route.node);
        if let Some(client) = self.clients.get_mut(route.place).filter(|_| !is_kept) {
            *client = None;
        }
        match self.connect(route.node, route.place) {
            Ok(_) => {
                let reason = self.shared.why_no_lease(route.node);
                let reason = if reason.is_empty() { reason } else { format!(": {reason}") };
                why(format_args!("there is no lease on node {}{reason}", route.node))
            }
            Err(why) => why,
        }
    }

    /// READs batches, each at its node: over a network at all nodes at once, in shared memory one after the other.
    fn read_each(&mut self, batches: &mut [Batch<'_>], values: &mut [Option<Vec<u8>>]) {
        for batch in batches.iter_mut().filter(|batch| batch.route.lease.is_some()) {
            batch.is_leased = self.connect(batch.route.node, batch.route.place).map(|_| false);
        }
        let mut left: Vec<&mut Batch<'_>> =
            batches.iter_mut().filter(|batch| batch.route.lease.is_some()).collect();
        // While a shard moves, there may be two of one node, under different leases: one after the other.
        while !left.is_empty() {
            let mut places = FxHashSet::default();
            let (now, behind) = left.into_iter().partition(|batch| places.insert(batch.route.place));
            self.read_apart(now, values);
            left = behind;
        }
        for batch in batches.iter().filter(|batch| batch.is_leased.is_err()) {
            self.clients[batch.route.place] = None;
        }
    }

    /// READs batches of different nodes.
    fn read_apart(&mut self, batches: Vec<&mut Batch<'_>>, values: &mut [Option<Vec<u8>>]) {
        let mut clients: Vec<Option<&mut Client>> = self.clients.iter_mut().map(Option::as_mut).collect();
        let begun = batches.into_iter();
        let begun = begun.filter_map(|batch| clients[batch.route.place].take().map(|client| (batch, client)));
        let (mut over_wire, in_memory): (Vec<_>, Vec<_>) =
            begun.partition(|(_, client)| client.region().is_none());
        for (batch, client) in in_memory {
            batch.read(client, |at, value| values[at] = value);
        }
        let (threads, left) = (over_wire.len(), Mutex::new(over_wire.iter_mut()));
        let read_all = || {
            loop {
                let Some((batch, client)) = lock(&left).next() else { return };
                batch.read_beside(client);
            }
        };
        if threads > 0 {
            std::thread::scope(|scope| {
                // If no thread can be started, this one READs all.
                for _ in 1..threads {
                    if std::thread::Builder::new().spawn_scoped(scope, read_all).is_err() {
                        break;
                    }
                }
                read_all();
            });
        }
        for (batch, _) in over_wire {
            batch.found.drain(..).for_each(|(at, value)| values[at] = value);
        }
    }

    /// READs at a node, whatever its role for a shard.
    #[inline]
    fn look<T, E: Display>(
        &mut self,
        node: NodeId,
        place: usize,
        read: impl FnOnce(&mut Client) -> Result<T, E>,
    ) -> Result<T, Why> {
        let client = match self.clients.get_mut(place) {
            Some(Some(client)) => client,
            _ => self.connect(node, place)?,
        };
        let looked = look_at(client, node, read);
        if looked.is_err() {
            self.clients[place] = None;
        }
        looked
    }

    /// The client of a node's table. Connects if it is not connected.
    #[cold]
    fn connect(&mut self, node: NodeId, place: usize) -> Result<&mut Client, Why> {
        if self.clients.len() <= place {
            self.clients.resize_with(place + 1, || None);
        }
        let client = &mut self.clients[place];
        match client {
            Some(client) => Ok(client),
            None => Ok(client.insert(self.shared.table(node)?)),
        }
    }
}

impl ClusterClient {
    /// Returns a key's value, or `None`: linearizable. One READ at the primary. While no lease covers the shard, waits
    /// for one.
    ///
    /// # Errors
    /// [`ClusterError::Invalid`]; [`ClusterError::Unavailable`] after
    /// [`ClusterOptions::deadline`](super::ClusterOptions::deadline).
    pub fn get(&mut self, key: &[u8]) -> Result<Option<Vec<u8>>, ClusterError> {
        let mut value = Vec::new();
        let is_there = self.get_into(key, &mut value)?;
        Ok(is_there.then_some(value))
    }

    /// As [`ClusterClient::get`], into `value`, which is cleared first. Returns whether the key is there.
    ///
    /// # Errors
    /// As [`ClusterClient::get`].
    pub fn get_into(&mut self, key: &[u8], value: &mut Vec<u8>) -> Result<bool, ClusterError> {
        let shard = self.check(key, 0)?;
        value.clear();
        // The usual case stands apart, without the state of further tries.
        if let Some(route) = self.routes.load().of(shard)
            && let Ok(is_there) = self.tables.read(route, |client| client.get_into(key, value))
        {
            return Ok(is_there);
        }
        self.get_again(shard, key, value)
    }

    #[cold]
    fn get_again(&mut self, shard: ShardIx, key: &[u8], value: &mut Vec<u8>) -> Result<bool, ClusterError> {
        let mut tries = self.tries().begun();
        self.until_found(shard, &mut tries, |tables, _, route| {
            tables.read(route, |client| client.get_into(key, value))
        })
    }

    /// Returns the values of many keys: one READ each, many at once at each node. Over a network all nodes are READ at
    /// once, each by a thread of its own for the duration of the call. Tables in shared memory are READ one after the
    /// other.
    ///
    /// # Errors
    /// As [`ClusterClient::get`], for any of the keys.
    pub fn get_many<K: AsRef<[u8]>>(&mut self, keys: &[K]) -> Result<Vec<Option<Vec<u8>>>, ClusterError> {
        let (config, mut shards) = (&self.shared.config, std::mem::take(&mut self.shards));
        shards.clear();
        shards.resize(keys.len(), 0);
        for (shard, key) in shards.iter_mut().zip(keys) {
            *shard = check(config, key.as_ref(), 0)?;
        }
        let mut values = vec![None; keys.len()];
        let mut tries = self.tries();
        // All keys are at one node: its table takes them as they are.
        if let Some(route) = self.routes.load().of_all(&shards) {
            let read = self.tables.read(route, |client| {
                client.get_many_with(keys, |at, value| match value {
                    Ok(value) => {
                        values[at] = value.map(<[u8]>::to_vec);
                        ControlFlow::Continue(())
                    }
                    Err(_) => ControlFlow::Break(()),
                })
            });
            if read.is_ok_and(|read| read.is_continue()) {
                self.shards = shards;
                return Ok(values);
            }
            tries = tries.begun();
        }
        self.get_apart(keys, &shards, &mut values, &mut tries)?;
        self.shards = shards;
        Ok(values)
    }

    /// READs keys at several nodes, and repeats that until all values are known.
    #[inline(never)]
    fn get_apart<K: AsRef<[u8]>>(
        &mut self,
        keys: &[K],
        shards: &[ShardIx],
        values: &mut [Option<Vec<u8>>],
        tries: &mut Tries,
    ) -> Result<(), ClusterError> {
        // In order.
        let mut left: Vec<usize> = (0..keys.len()).collect();
        while let Some(&first) = left.first() {
            self.until_found(shards[first], tries, |tables, routes, _| {
                let mut missing = Vec::new();
                let (mut batches, mut of_site) = (Vec::<Batch<'_>>::new(), vec![usize::MAX; routes.sites()]);
                for &at in &left {
                    let Some(route) = routes.of(shards[at]) else {
                        missing.push(at);
                        continue;
                    };
                    let index = &mut of_site[usize::from(route.site)];
                    if *index == usize::MAX {
                        *index = batches.len();
                        batches.push(Batch::new(route, left.len()));
                    }
                    batches[*index].keys.push(BatchKey { at, key: keys[at].as_ref() });
                }
                tables.read_each(&mut batches, values);
                let mut first_misses = Why::default();
                for Batch { route, keys, failed, is_leased, .. } in batches {
                    let is_of_first = keys.first().is_some_and(|key| key.at == first);
                    let lacks = match is_leased {
                        Ok(true) => {
                            for (at, error) in failed {
                                missing.push(at);
                                if at == first {
                                    first_misses = why(error);
                                }
                            }
                            continue;
                        }
                        Ok(false) => tables.want_lease(route),
                        Err(lacks) => lacks,
                    };
                    missing.extend(keys.iter().map(|key| key.at));
                    if is_of_first {
                        first_misses = lacks;
                    }
                }
                missing.sort_unstable();
                left = missing;
                if left.first() == Some(&first) { Err(first_misses) } else { Ok(()) }
            })?;
        }
        Ok(())
    }

    /// Returns a key's value from any complete copy of its shard, the primary's first. It is never torn, but may be
    /// old: this asks neither for a lease nor for etcd. A copy that was once complete may have been left out since.
    /// `None` may be as old.
    ///
    /// # Errors
    /// [`ClusterError::Invalid`]; [`ClusterError::Unavailable`] at once, if no copy can be READ.
    pub fn get_advisory(&mut self, key: &[u8]) -> Result<Option<Vec<u8>>, ClusterError> {
        let shard = self.check(key, 0)?;
        let begun = Instant::now();
        let copies = lock(&self.shared.known).copies(shard);
        let mut why = Why::from("nobody was ever known to have a copy");
        for node in copies {
            let place = lock(&self.shared.known).place(node);
            match self.tables.look(node, place, |client| client.get(key)) {
                Ok(value) => return Ok(value),
                Err(error) => why = error,
            }
        }
        Err(ClusterError::Unavailable { shard, waited: begun.elapsed(), why: why.into() })
    }

    /// The tries of READs. The second one is made at once, and each further one when something was learned.
    pub(super) fn tries(&self) -> Tries {
        Tries::within(self.deadline, Backoff::new(AGAIN, AGAIN))
    }

    /// Repeats a READ until it counts, or the time is over. Before the first try has failed the clock is not read.
    pub(super) fn until_found<T>(
        &mut self,
        shard: ShardIx,
        tries: &mut Tries,
        mut try_at: impl FnMut(&mut Tables, &Routes, &Route) -> Result<T, Why>,
    ) -> Result<T, ClusterError> {
        let shared = Arc::clone(&self.shared);
        let version = Cell::new(None);
        let rest = |_: &Why, pause: Duration, left: Duration| {
            let goes_on = breaking::is_wanted();
            if let Some(version) = version.get().filter(|_| goes_on) {
                shared.wait(version, pause.min(left));
            }
            goes_on
        };
        let found = tries.run_by(rest, |tries| {
            version.set(tries.has_begun().then(|| shared.version()));
            let routes = self.routes.load();
            let tried = match routes.of(shard) {
                Some(route) => try_at(&mut self.tables, routes, route),
                None => Err(why("nobody serves it, as far as etcd says")),
            };
            tried.map_err(|why| Failed::ForNow(why, Repeatable::READ))
        });
        found.map_err(|failed| {
            let why = failed.or(|why| why).into();
            ClusterError::Unavailable { shard, waited: tries.waited(), why }
        })
    }
}
