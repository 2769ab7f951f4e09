//! Where a client READs each shard, and until when it believes the values: leases, for its handles.
//!
//! A handle holds one set of routes, and looks whether there is a newer one by one load. A lease that is prolonged
//! with the same shards open is prolonged in place. If a shard was opened or closed, or has another epoch, there
//! is another [`NodeLease`], and the old one ends when it did (CL3).
//!
//! A shard that moves is READ where it was for as long as the old lease lasts, or until there is one on its new primary: no
//! change is made before that lease is over (CL9), so nobody can tell.

use crate::core::etcd::EtcdAnswer;
use crate::core::state::{ClusterConfig, NodeAbout, NodeId, Page, ShardIx, Time};
use crate::core::view::View;
use crate::wire::ClusterMap;
use rustc_hash::FxHashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// A lease on a node, for the shards that were open in both of its READs.
#[derive(Debug, Default)]
pub struct NodeLease(AtomicU64);

impl NodeLease {
    /// Whether the lease lasts. `now` is the time after a value has landed (CL4).
    #[inline]
    pub fn lasts(&self, now: Time) -> bool {
        // Only the time is communicated: the thread that stores it has seen both pages.
        now < self.0.load(Ordering::Relaxed)
    }
}

/// Where a shard is.
#[derive(Clone, Debug)]
pub struct Route {
    /// Its primary.
    pub node: NodeId,
    /// That node's epoch for it.
    pub epoch: u64,
    /// That node's place among the client's tables.
    pub place: usize,
    /// READs with the same site are at one node, and count by the same lease, or by none. Below [`Routes::sites`].
    pub site: u16,
    /// `None`: a READ of the shard would not be believed.
    pub lease: Option<Arc<NodeLease>>,
}

/// The routes of all shards.
#[derive(Debug, Default)]
pub struct Routes {
    /// `None`: no node serves the shard.
    by_shard: Box<[Option<Route>]>,
    /// The sites by shard, or [`NO_SITE`]. They lie close together, so that a batch can look at many.
    site_of: Box<[u16]>,
    sites: usize,
}

/// There are at most as many sites as shards.
const NO_SITE: u16 = u16::MAX;

impl Routes {
    /// The route of a shard.
    #[inline]
    pub fn of(&self, shard: ShardIx) -> Option<&Route> {
        self.by_shard.get(usize::from(shard))?.as_ref()
    }

    /// The route of all of these shards, if they have one site.
    #[inline]
    pub fn of_all(&self, shards: &[ShardIx]) -> Option<&Route> {
        let (first, others) = shards.split_first()?;
        let route = self.of(*first)?;
        let is_there = |shard: &ShardIx| self.site_of.get(usize::from(*shard)) == Some(&route.site);
        others.iter().all(is_there).then_some(route)
    }

    /// The number of sites.
    pub fn sites(&self) -> usize {
        self.sites
    }
}

/// A client's knowledge, and the routes that follow from it.
#[derive(Debug)]
pub struct Known {
    view: View,
    shards: ShardIx,
    /// The handles' leases, with the epochs of the open shards.
    leases: FxHashMap<NodeId, (Vec<Option<u64>>, Arc<NodeLease>)>,
    /// Each node's place. No place is used again.
    places: FxHashMap<NodeId, usize>,
    /// The last lease on each shard: on whom, in which epoch.
    leased: Vec<Option<(NodeId, u64, Arc<NodeLease>)>>,
}

impl Known {
    /// Knows only the configuration.
    pub fn new(config: &ClusterConfig) -> Known {
        let view = View::new(config.shards, config.timing);
        let (leases, places) = (FxHashMap::default(), FxHashMap::default());
        let leased = vec![None; config.shards.into()];
        Known { view, shards: config.shards, leases, places, leased }
    }

    /// Takes an answer of etcd. Returns whether it is believed.
    pub fn learn(&mut self, answer: &EtcdAnswer) -> bool {
        self.view.learn(answer)
    }

    /// Takes the map of a node that believes the same etcd. The map says where to READ; only pages give leases. Returns
    /// whether it was taken.
    pub fn learn_map(&mut self, map: &ClusterMap) -> bool {
        if map.adoption != self.view.adoption() {
            return false;
        }
        for (shard, state) in (0..self.shards).zip(&map.shards) {
            self.view.learn_shard(shard, state);
        }
        true
    }

    /// Takes a page. Returns whether there is a new lease, and not just the old one prolonged.
    pub fn page_landed(&mut self, node: NodeId, issued: Time, now: Time, page: &Page) -> bool {
        self.view.page_landed(node, issued, now, page);
        let Some((until, open)) = self.view.leases().of(node) else { return false };
        if let Some((published, lease)) = self.leases.get(&node)
            && published == open
        {
            lease.0.store(until, Ordering::Relaxed);
            return false;
        }
        let lease = Arc::new(NodeLease(AtomicU64::new(until)));
        self.leases.insert(node, (open.to_vec(), lease));
        true
    }

    /// Notes that a READ of a page has failed.
    pub fn read_failed(&mut self, node: NodeId) {
        self.view.read_failed(node);
    }

    /// What others need to know of a node.
    pub fn about(&self, node: NodeId) -> Option<&NodeAbout> {
        self.view.nodes().get(&node)
    }

    /// All nodes that are known.
    pub fn nodes(&self) -> impl Iterator<Item = (NodeId, &NodeAbout)> {
        self.view.nodes().iter().map(|(id, about)| (*id, about))
    }

    /// The primary of a shard.
    pub fn primary(&self, shard: ShardIx) -> Option<NodeId> {
        self.view.shard(shard).primary
    }

    /// The primary of a shard, and its epoch.
    pub fn served_by(&self, shard: ShardIx) -> Option<(NodeId, u64)> {
        let state = self.view.shard(shard);
        state.primary.map(|node| (node, state.epoch))
    }

    /// Nodes with a complete copy of a shard, the primary first.
    pub fn copies(&self, shard: ShardIx) -> Vec<NodeId> {
        let state = self.view.shard(shard);
        let standbys = state.in_sync.iter().filter(|node| Some(*node) != state.primary);
        state.primary.into_iter().chain(standbys).collect()
    }

    /// A node's place among the client's tables.
    pub fn place(&mut self, node: NodeId) -> usize {
        let next = self.places.len();
        *self.places.entry(node).or_insert(next)
    }

    /// Primaries of shards that were READ under a lease, and on which there is none yet for them.
    pub fn lacking(&self) -> Vec<NodeId> {
        let mut lacking: Vec<NodeId> = (0..self.shards).filter_map(|shard| self.lacks(shard)).collect();
        lacking.sort_unstable();
        lacking.dedup();
        lacking
    }

    /// Whether this node is one of these.
    pub fn lacks_on(&self, node: NodeId) -> bool {
        (0..self.shards).any(|shard| self.lacks(shard) == Some(node))
    }

    fn lacks(&self, shard: ShardIx) -> Option<NodeId> {
        let (node, epoch) = self.served_by(shard)?;
        let was_leased = self.leased[usize::from(shard)].is_some();
        (was_leased && self.lease(shard, node, epoch).is_none()).then_some(node)
    }

    fn lease(&self, shard: ShardIx, node: NodeId, epoch: u64) -> Option<&Arc<NodeLease>> {
        let (open, lease) = self.leases.get(&node)?;
        (open.get(usize::from(shard)) == Some(&Some(epoch))).then_some(lease)
    }

    /// The last lease on a shard is over.
    #[cfg(test)]
    pub fn forget_lease(&mut self, shard: ShardIx) {
        self.leased[usize::from(shard)] = None;
    }

    /// The routes, as it is known now.
    pub fn routes(&mut self, now: Time) -> Routes {
        let (mut sites, mut by_shard) = (FxHashMap::default(), Vec::with_capacity(self.shards.into()));
        for shard in 0..self.shards {
            let newest = self.served_by(shard).map(|(node, epoch)| {
                let lease = self.lease(shard, node, epoch).cloned();
                (node, epoch, lease)
            });
            let leased = &mut self.leased[usize::from(shard)];
            if let Some((node, epoch, Some(lease))) = &newest {
                *leased = Some((*node, *epoch, lease.clone()));
            }
            let lasting = leased.clone().filter(|(.., lease)| lease.lasts(now));
            let is = lasting.map(|(node, epoch, lease)| (node, epoch, Some(lease))).or(newest);
            by_shard.push(is.map(|(node, epoch, lease)| {
                let next = sites.len() as u16;
                let site = *sites.entry((node, lease.as_ref().map(Arc::as_ptr))).or_insert(next);
                Route { node, epoch, place: self.place(node), site, lease }
            }));
        }
        let site_of =
            by_shard.iter().map(|route| route.as_ref().map_or(NO_SITE, |route| route.site)).collect();
        Routes { by_shard: by_shard.into(), site_of, sites: sites.len() }
    }

    /// Whether some of these routes lead to a primary of before, under a lease that is over.
    pub fn are_over(&self, routes: &Routes, now: Time) -> bool {
        let lasts = |route: &Route| route.lease.as_ref().is_some_and(|lease| lease.lasts(now));
        (0..self.shards).any(|shard| {
            let is_over =
                |route: &Route| self.served_by(shard) != Some((route.node, route.epoch)) && !lasts(route);
            routes.of(shard).is_some_and(is_over)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::etcd::{Entry, EtcdKey, EtcdValue};
    use crate::core::hash::ShardHash;
    use crate::core::state::{Adoption, Lived, NodeIds, NodeKey, ShardState, Timing, Word};

    const A: NodeId = NodeId(1);
    const B: NodeId = NodeId(2);
    const SHARDS: ShardIx = 3;

    fn timing() -> Timing {
        Timing::default()
    }

    /// A client that knows two nodes, and a clock that goes on with each page.
    struct Told {
        known: Known,
        now: Time,
        revision: u64,
    }

    impl Told {
        fn new() -> Told {
            let config = ClusterConfig {
                shards: SHARDS,
                replicas: 2,
                hash: ShardHash::new(1),
                key_max: 64,
                value_max: 64,
                timing: timing(),
            };
            let mut told = Told { known: Known::new(&config), now: 1_000_000, revision: 0 };
            for node in [A, B] {
                let about = NodeAbout { name: node.to_string(), ..NodeAbout::default() };
                let key = NodeKey { life: 1, number: 1, alive: true, about };
                assert!(told.learn(EtcdKey::Node(node), Some(EtcdValue::Node(key))));
            }
            for shard in 0..SHARDS {
                told.shard(shard, 1, Some(A));
            }
            told
        }

        fn learn(&mut self, key: EtcdKey, value: Option<EtcdValue>) -> bool {
            let adoption = Entry {
                key: EtcdKey::Adoption,
                value: Some(EtcdValue::Adoption(Adoption { number: 1, etcd: 9 })),
                at: 1,
            };
            let entries = vec![adoption, Entry { key, value, at: 2 }];
            self.known.learn(&EtcdAnswer {
                call: 1,
                is_watched: true,
                etcd: 9,
                revision: 1,
                is_done: true,
                entries,
            })
        }

        fn shard(&mut self, shard: ShardIx, epoch: u64, primary: Option<NodeId>) {
            self.revision += 1;
            let in_sync = [A, B].into_iter().collect::<NodeIds>();
            let state = ShardState { revision: self.revision, epoch, primary, in_sync, waits: false };
            assert!(self.learn(EtcdKey::Shard(shard), Some(EtcdValue::Shard(state))));
        }

        /// A page lands of this life and beat, with these words. Returns whether routes are others now.
        fn page(&mut self, node: NodeId, life: u64, beat: u64, words: [(u64, bool); 3]) -> bool {
            let issued = self.now;
            self.now += 100_000;
            let lived = |number| Lived { life, number };
            let words = words.map(|(epoch, is_open)| Word { epoch, is_open }).to_vec();
            self.known.page_landed(
                node,
                issued,
                issued + 10,
                &Page { asked: lived(beat), held: lived(beat), words },
            )
        }

        fn lease(&mut self, shard: ShardIx) -> Option<Arc<NodeLease>> {
            self.known.routes(self.now).of(shard).unwrap().lease.clone()
        }

        fn all(&mut self) -> [Option<Arc<NodeLease>>; 3] {
            [0, 1, 2].map(|shard| self.lease(shard))
        }
    }

    fn until(lease: &NodeLease) -> Time {
        lease.0.load(Ordering::Relaxed)
    }

    const OPEN: [(u64, bool); 3] = [(1, true); 3];

    /// CL2: two READs. The lease lasts from when the first one was issued.
    #[test]
    fn two_pages_are_a_lease() {
        let mut told = Told::new();
        let issued = told.now;
        assert!(!told.page(A, 1, 1, OPEN));
        assert!(told.all().iter().all(Option::is_none));
        // A page with an equal beat proves nothing.
        assert!(!told.page(A, 1, 1, OPEN));
        assert!(told.all().iter().all(Option::is_none));
        assert!(told.page(A, 1, 2, OPEN));
        let [one, two, three] = told.all().map(Option::unwrap);
        assert!(Arc::ptr_eq(&one, &two) && Arc::ptr_eq(&two, &three));
        // From the newest mark that is proven.
        assert_eq!(until(&one), issued + 100_000 + timing().lease());
        assert!(one.lasts(until(&one) - 1) && !one.lasts(until(&one)));
    }

    #[test]
    fn a_lease_is_prolonged_in_place() {
        let mut told = Told::new();
        told.page(A, 1, 1, OPEN);
        assert!(told.page(A, 1, 2, OPEN));
        let lease = told.lease(0).unwrap();
        for beat in 3..50 {
            let before = until(&lease);
            assert!(!told.page(A, 1, beat, OPEN), "routes are the same");
            assert_eq!(until(&lease), before + 100_000);
            assert!(told.all().iter().flatten().all(|now| Arc::ptr_eq(now, &lease)));
        }
        // Pages without a new beat leave it as it is.
        let before = until(&lease);
        (0..10).for_each(|_| assert!(!told.page(A, 1, 49, OPEN)));
        assert_eq!(until(&lease), before);
    }

    /// CL3: a shard closes, and opens again in the same epoch. What was a lease on it before is prolonged never again.
    #[test]
    fn a_shard_that_closes_ends_the_lease() {
        let mut told = Told::new();
        told.page(A, 1, 1, OPEN);
        told.page(A, 1, 2, OPEN);
        let before = told.lease(1).unwrap();
        let ends = until(&before);
        let closed = [(1, true), (1, false), (1, true)];
        assert!(told.page(A, 1, 3, closed), "there are other routes");
        let [zero, one, two] = told.all().map(Option::unwrap);
        assert!(Arc::ptr_eq(&one, &before), "shard 1 is closed, and the lease of before lasts");
        assert!(Arc::ptr_eq(&zero, &two) && !Arc::ptr_eq(&zero, &before));
        assert!(until(&zero) > ends);
        assert!(!told.page(A, 1, 4, closed));
        let is = told.now;
        told.now = ends;
        assert!(told.lease(1).is_none());
        told.now = is;
        // It opens again, and the newest proof counts for it at once.
        assert!(told.page(A, 1, 5, OPEN));
        let again = told.lease(1).unwrap();
        assert!(!Arc::ptr_eq(&again, &before) && !Arc::ptr_eq(&again, &zero));
        let zero_ends = until(&zero);
        (6..20).for_each(|beat| assert!(!told.page(A, 1, beat, OPEN)));
        assert_eq!((until(&before), until(&zero)), (ends, zero_ends));
        assert!(until(&again) > zero_ends);
    }

    /// CL2: a node that was born again holds none of the leases on its last life.
    #[test]
    fn another_life_prolongs_nothing() {
        let mut told = Told::new();
        told.page(A, 1, 1, OPEN);
        told.page(A, 1, 2, OPEN);
        let before = told.lease(0).unwrap();
        let ends = until(&before);
        assert!(told.page(A, 5, 5, OPEN));
        assert!(Arc::ptr_eq(&told.lease(0).unwrap(), &before));
        assert_eq!(until(&before), ends);
        // In the new one it takes two READs again.
        told.page(A, 5, 6, OPEN);
        assert!(until(&told.lease(0).unwrap()) > ends);
    }

    #[test]
    fn a_read_that_fails_leaves_the_lease_to_its_end() {
        let mut told = Told::new();
        told.page(A, 1, 1, OPEN);
        told.page(A, 1, 2, OPEN);
        let lease = told.lease(0).unwrap();
        let ends = until(&lease);
        told.known.read_failed(A);
        assert!(lease.lasts(ends - 1));
        // The next one alone proves nothing.
        assert!(!told.page(A, 1, 3, OPEN));
        assert_eq!(until(&lease), ends);
        told.page(A, 1, 4, OPEN);
        assert!(until(&lease) > ends);
    }

    /// A lease is for one epoch: of a new one etcd tells, and the page.
    #[test]
    fn routes_follow_epochs() {
        let mut told = Told::new();
        told.page(A, 1, 1, OPEN);
        told.page(A, 1, 2, OPEN);
        let before = told.lease(0).unwrap();
        // The node has a new epoch of shard 0. Nothing is believed of it until its pages say so.
        told.shard(0, 2, Some(A));
        assert!(told.all().iter().flatten().all(|lease| Arc::ptr_eq(lease, &before)));
        assert_eq!(told.known.lacking(), [A]);
        let next = [(2, true), (1, true), (1, true)];
        told.page(A, 1, 3, next);
        assert_eq!(told.known.lacking(), []);
        let [zero, one, _] = told.all().map(Option::unwrap);
        assert!(Arc::ptr_eq(&zero, &one) && !Arc::ptr_eq(&zero, &before));

        // Another node has it: it is READ at the old one until there is a lease on the new one, or none on the old one.
        told.shard(0, 3, Some(B));
        assert_eq!(told.known.lacking(), [B]);
        let closed = [(2, false), (1, true), (1, true)];
        told.page(A, 1, 5, closed);
        let (ends, is) = (until(&zero), told.now);
        let routes = told.known.routes(is);
        let (here, there) = (routes.of(1).unwrap(), routes.of(0).unwrap());
        assert_eq!((here.node, there.node), (A, A));
        assert!(here.site != there.site && here.site == routes.of(2).unwrap().site);
        told.page(A, 1, 6, closed);
        assert_eq!(until(&zero), ends, "that lease is not prolonged");
        assert!(!told.known.are_over(&routes, is) && told.known.are_over(&routes, ends));
        let over = told.known.routes(ends);
        let (here, there) = (over.of(1).unwrap(), over.of(0).unwrap());
        assert_eq!((here.node, there.node), (A, B));
        assert!(here.place != there.place && here.lease.is_some() && there.lease.is_none());
        assert!(here.site != there.site && !told.known.are_over(&over, ends));
        assert_eq!(over.sites(), 2);
        assert_eq!(over.of_all(&[1, 2, 1]).map(|route| route.node), Some(A));
        assert_eq!(over.of_all(&[0]).map(|route| route.node), Some(B));
        assert!([&[1, 2, 0][..], &[1, SHARDS], &[]].iter().all(|shards| over.of_all(shards).is_none()));
        let words = [(3, true), (0, false), (0, false)];
        told.page(B, 7, 1, words);
        assert_eq!(told.known.routes(told.now).of(0).unwrap().node, A);
        told.page(B, 7, 2, words);
        let routes = told.known.routes(told.now);
        assert_eq!(routes.of(0).unwrap().node, B);
        assert!(
            routes.of(0).unwrap().lease.is_some() && routes.of(0).unwrap().site != routes.of(1).unwrap().site
        );
        assert_eq!((routes.of(0).unwrap().place, routes.of(1).unwrap().place), (there.place, here.place));

        // An older state comes late: nothing goes back. Nobody serves shard 1; there is no shard 3.
        let late = ShardState { revision: 1, epoch: 1, primary: Some(A), ..ShardState::default() };
        told.learn(EtcdKey::Shard(0), Some(EtcdValue::Shard(late.clone())));
        let adoption = Adoption { number: 1, etcd: 9 };
        told.known.learn_map(&ClusterMap { adoption, shards: vec![late], ..ClusterMap::default() });
        told.shard(1, 4, None);
        told.known.forget_lease(1);
        let routes = told.known.routes(told.now);
        assert_eq!(routes.of(0).unwrap().node, B);
        assert!(routes.of(1).is_none() && routes.of(SHARDS).is_none());
        assert!(routes.of_all(&[2, 1]).is_none() && routes.of_all(&[1, 1]).is_none());
        assert_eq!(told.known.copies(0), [B, A]);
    }

    /// What an etcd says that was not adopted changes nothing (CL17), nor does a map that is longer than the cluster.
    #[test]
    fn not_all_that_is_told_is_believed() {
        let mut told = Told::new();
        let state = ShardState { revision: 100, epoch: 9, primary: Some(B), ..ShardState::default() };
        let entries =
            vec![Entry { key: EtcdKey::Shard(0), value: Some(EtcdValue::Shard(state.clone())), at: 2 }];
        let foreign = EtcdAnswer { call: 1, is_watched: true, etcd: 8, revision: 1, is_done: true, entries };
        assert!(!told.known.learn(&foreign));
        assert_eq!(told.known.primary(0), Some(A));
        let mut map = ClusterMap { shards: vec![state; 10], ..ClusterMap::default() };
        told.known.learn_map(&map);
        assert_eq!(told.known.primary(0), Some(A), "its node believes another etcd");
        map.adoption = Adoption { number: 1, etcd: 9 };
        told.known.learn_map(&map);
        assert_eq!((told.known.primary(0), told.known.primary(2)), (Some(B), Some(B)));
    }
}
