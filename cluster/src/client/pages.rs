//! READs of nodes' pages, for leases (CL2): one thread for each node that a client READs.

use super::{Shared, lock};
use crate::clock;
use crate::core::state::{NodeId, Page};
use crate::table::{PAGE_KEY, decode};
use oneread::Client;
use rustc_hash::{FxHashMap, FxHashSet};
use std::sync::{Arc, Condvar, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};

/// Time between two READs of a page on which a shard is to be open soon. It doubles until it is the usual time.
const SOON: Duration = Duration::from_millis(1);

/// The time before a node that could not be reached is connected to again for the sake of a lease.
const SOUGHT_AGAIN: Duration = Duration::from_millis(500);

/// Nodes whose pages are to be READ at once.
#[derive(Debug, Default)]
pub struct Hurried {
    nodes: Mutex<FxHashSet<NodeId>>,
    changed: Condvar,
    /// Nodes that are being connected to, or when that ended.
    sought: Mutex<FxHashMap<NodeId, Option<Instant>>>,
}

impl Hurried {
    /// This one's is.
    pub fn hurry(&self, node: NodeId) {
        lock(&self.nodes).insert(node);
        self.changed.notify_all();
    }

    /// Whether to connect to a node now: one that cannot be reached takes a thread, and is not sought all the time.
    pub fn may_seek(&self, node: NodeId) -> bool {
        let mut sought = lock(&self.sought);
        let may = match sought.get(&node) {
            None => true,
            Some(ended) => ended.is_some_and(|at| at.elapsed() >= SOUGHT_AGAIN),
        };
        if may {
            sought.insert(node, None);
        }
        may
    }

    /// The connection is there, or cannot be had.
    pub fn has_sought(&self, node: NodeId) {
        lock(&self.sought).insert(node, Some(Instant::now()));
    }

    /// Waits until this one's is, but not for longer than this.
    fn rest(&self, node: NodeId, longest: Duration) {
        let wait =
            self.changed.wait_timeout_while(lock(&self.nodes), longest, |nodes| !nodes.contains(&node));
        wait.unwrap_or_else(PoisonError::into_inner).0.remove(&node);
    }
}

/// READs a node's page several times a beat, as long as there is a handle and the node is known.
pub fn keep(shared: &Arc<Shared>, node: NodeId, client: Client) -> std::io::Result<()> {
    let (hurried, shared) = (shared.hurried.clone(), Arc::downgrade(shared));
    std::thread::Builder::new()
        .name("oneread-pages".into())
        .spawn(move || run(&shared, &hurried, node, client))
        .map(drop)
}

fn run(shared: &Weak<Shared>, hurried: &Hurried, node: NodeId, mut client: Client) {
    let (mut page, mut fails, mut soon) = (Vec::new(), 0u32, SOON);
    loop {
        let issued = clock::now();
        page.clear();
        let found = client.get_into(PAGE_KEY, &mut page);
        let now = clock::now();
        let Some(shared) = shared.upgrade() else { return };
        // A table at the same address may be another node's.
        let is_it = client.geometry().generation() == node.0;
        let landed = match found {
            Ok(true) if is_it => decode::<Page>(&page).ok(),
            _ => None,
        };
        let beat = Duration::from_micros(shared.config.timing.beat);
        let rest = match landed {
            Some(page) => {
                fails = 0;
                shared.learn(|known| known.page_landed(node, issued, now, &page));
                let lacks = lock(&shared.known).lacks_on(node);
                let rest = if lacks { soon.min(beat / 3) } else { beat / 3 };
                soon = if lacks { 2 * rest } else { SOON };
                rest
            }
            None => {
                fails = (fails + 1).min(5);
                shared.read_failed(node);
                (beat / 8) * (1 << fails)
            }
        };
        if !is_it || fails > 2 || !shared.knows(node) {
            // The next READ connects again, perhaps to another address of the node.
            shared.lose_table(node);
            return;
        }
        drop(shared);
        hurried.rest(node, rest);
    }
}
