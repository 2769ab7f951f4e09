//! READs of nodes' pages, for leases (CL2): one thread for each node that a client READs.

use super::Shared;
use crate::clock;
use crate::core::state::{NodeId, Page};
use crate::table::{PAGE_KEY, decode};
use oneread::Client;
use std::sync::{Arc, Weak};
use std::time::Duration;

/// READs a node's page several times a beat, as long as there is a handle and the node is known.
pub fn keep(shared: &Arc<Shared>, node: NodeId, client: Client) -> std::io::Result<()> {
    let shared = Arc::downgrade(shared);
    std::thread::Builder::new()
        .name("oneread-pages".into())
        .spawn(move || run(&shared, node, client))
        .map(drop)
}

fn run(shared: &Weak<Shared>, node: NodeId, mut client: Client) {
    let (mut page, mut fails) = (Vec::new(), 0u32);
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
        let beat = shared.config.timing.beat;
        let rest = match landed {
            Some(page) => {
                fails = 0;
                shared.learn(|known| known.page_landed(node, issued, now, &page));
                beat / 3
            }
            None => {
                fails = (fails + 1).min(5);
                shared.read_failed(node);
                (beat / 8) << fails
            }
        };
        if !is_it || fails > 2 || !shared.knows(node) {
            // The next READ connects again, perhaps to another address of the node.
            shared.lose_table(node);
            return;
        }
        drop(shared);
        std::thread::sleep(Duration::from_micros(rest));
    }
}
