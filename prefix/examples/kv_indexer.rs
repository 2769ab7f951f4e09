//! SGLang's indexer of blocks over this index: its trait `KvIndexerBackend`, after the signature in
//! `sgl-kv-indexer`'s `src/service.rs` (2026; hashes are numbers of 64 bits), without its gRPC.
//!
//! `cargo run -p oneread-prefix --example kv_indexer`. The trait and its messages stand here as that crate has them,
//! so nothing of it is needed to build this. There, `Status` is tonic's, and the trait has `#[tonic::async_trait]`.
//!
//! A worker has blocks in several tiers, so a holder is a worker's tier. Answers need no request to the server, and
//! none of the calls waits for a task: each future is ready at once.

#![allow(missing_docs, reason = "messages as they are published")]

use oneread::{Address, Client, ClientPool, Server, ServerConfig, TableSize};
use oneread_prefix::{Digests, Holder, PlacementIndex, PlacementTable, PrefixError};
use std::collections::BTreeMap;
use std::error::Error;
use std::future::Future;
use std::pin::pin;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

// ---- as published ---------------------------------------------------------------------------------

const MAX_HASHES_PER_REQUEST: usize = 16_384;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExternalKvActionType {
    Report,
    Revoke,
    ClearAllAtTier,
}

#[derive(Clone, Debug)]
pub struct ExternalKvAction {
    pub r#type: ExternalKvActionType,
    pub tier: i32,
    pub hashes: Vec<i64>,
}

#[derive(Clone, Debug, Default)]
pub struct ApplyExternalKvBatchRequest {
    pub worker_id: String,
    pub worker_address: String,
    pub seq: u64,
    pub actions: Vec<ExternalKvAction>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ApplyExternalKvBatchResponse {
    pub last_applied_seq: u64,
}

#[derive(Clone, Debug, Default)]
pub struct MatchExternalKvRequest {
    pub hashes: Vec<i64>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TierHashes {
    pub tier: i32,
    pub hashes: Vec<i64>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeMatch {
    pub worker_id: String,
    pub hashes_by_tier: Vec<TierHashes>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MatchExternalKvResponse {
    pub matches: Vec<NodeMatch>,
}

#[derive(Clone, Debug, Default)]
pub struct MatchExternalKvPrefixRequest {
    pub hashes: Vec<i64>,
    pub max_blocks: u32,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ExternalKvPrefixMatch {
    pub worker_id: String,
    pub matched_prefix_blocks: u32,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MatchExternalKvPrefixResponse {
    pub matches: Vec<ExternalKvPrefixMatch>,
    pub best_prefix_blocks: u32,
}

/// What tonic calls a status.
#[derive(Debug)]
pub struct Status(pub String);

pub trait KvIndexerBackend: Send + Sync + 'static {
    fn apply_external_kv_batch(
        &self,
        request: ApplyExternalKvBatchRequest,
    ) -> impl Future<Output = Result<ApplyExternalKvBatchResponse, Status>> + Send;

    fn match_external_kv(
        &self,
        request: MatchExternalKvRequest,
    ) -> impl Future<Output = Result<MatchExternalKvResponse, Status>> + Send;

    fn match_external_kv_prefix(
        &self,
        request: MatchExternalKvPrefixRequest,
    ) -> impl Future<Output = Result<MatchExternalKvPrefixResponse, Status>> + Send;
}

// ---- over the index -------------------------------------------------------------------------------

/// One handle for all callers here; a server has a handle for each of its threads.
pub struct OnereadBackend(Mutex<PlacementIndex>);

fn status(error: PrefixError) -> Status {
    Status(error.to_string())
}

/// A tier of a worker.
fn holder_name(worker: &str, tier: i32) -> String {
    format!("{tier}@{worker}")
}

fn of_holder(holder: &Holder) -> Option<(String, i32)> {
    let (tier, worker) = holder.name().split_once('@')?;
    Some((worker.to_owned(), tier.parse().ok()?))
}

fn bytes_of(hashes: &[i64]) -> Result<Vec<u8>, Status> {
    if hashes.len() > MAX_HASHES_PER_REQUEST {
        return Err(Status(format!(
            "request contains {} hashes; maximum is {MAX_HASHES_PER_REQUEST}",
            hashes.len()
        )));
    }
    Ok(hashes.iter().flat_map(|hash| hash.to_le_bytes()).collect())
}

impl OnereadBackend {
    pub fn new(client: Client) -> Result<OnereadBackend, PrefixError> {
        Ok(OnereadBackend(Mutex::new(PlacementIndex::new(client)?)))
    }

    fn index(&self) -> MutexGuard<'_, PlacementIndex> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Who has each block: by worker and tier, the numbers of the blocks.
    fn held(&self, hashes: &[i64]) -> Result<BTreeMap<String, BTreeMap<i32, Vec<usize>>>, Status> {
        let bytes = bytes_of(hashes)?;
        let digests = Digests::packed(&bytes, 8).map_err(|error| status(error.into()))?;
        let mut index = self.index();
        let mut held: BTreeMap<String, BTreeMap<i32, Vec<usize>>> = BTreeMap::new();
        let each = |block, holder: &Holder| {
            if let Some((worker, tier)) = of_holder(holder) {
                held.entry(worker).or_default().entry(tier).or_default().push(block);
            }
        };
        index.holders_of(&digests, each).map_err(status)?;
        Ok(held)
    }
}

impl KvIndexerBackend for OnereadBackend {
    /// Applies are unconditional, as the trait says: a batch that comes again is applied again.
    async fn apply_external_kv_batch(
        &self,
        request: ApplyExternalKvBatchRequest,
    ) -> Result<ApplyExternalKvBatchResponse, Status> {
        let mut index = self.index();
        for action in &request.actions {
            let bytes = bytes_of(&action.hashes)?;
            let digests = Digests::packed(&bytes, 8).map_err(|error| status(error.into()))?;
            let holder = index.holder(&holder_name(&request.worker_id, action.tier)).map_err(status)?;
            match action.r#type {
                ExternalKvActionType::Report => drop(index.add(&holder, &digests, 0).map_err(status)?),
                ExternalKvActionType::Revoke => drop(index.remove(&holder, &digests, 0).map_err(status)?),
                // All of it is gone with this; its entries are cleaned later.
                ExternalKvActionType::ClearAllAtTier => {
                    index.drop_holder(holder.name()).map_err(status)?;
                }
            }
        }
        index.clean(1_000).map_err(status)?;
        Ok(ApplyExternalKvBatchResponse { last_applied_seq: request.seq })
    }

    async fn match_external_kv(
        &self,
        request: MatchExternalKvRequest,
    ) -> Result<MatchExternalKvResponse, Status> {
        let of_tier = |(tier, blocks): (i32, Vec<usize>)| TierHashes {
            tier,
            hashes: blocks.into_iter().map(|block| request.hashes[block]).collect(),
        };
        let of_worker = |(worker_id, tiers): (String, BTreeMap<i32, Vec<usize>>)| NodeMatch {
            worker_id,
            hashes_by_tier: tiers.into_iter().map(of_tier).collect(),
        };
        Ok(MatchExternalKvResponse {
            matches: self.held(&request.hashes)?.into_iter().map(of_worker).collect(),
        })
    }

    /// A worker's prefix ends at the first block that none of its tiers has.
    async fn match_external_kv_prefix(
        &self,
        request: MatchExternalKvPrefixRequest,
    ) -> Result<MatchExternalKvPrefixResponse, Status> {
        let limit = if request.max_blocks == 0 { usize::MAX } else { request.max_blocks as usize };
        let hashes = &request.hashes[..request.hashes.len().min(limit)];
        let mut matches = Vec::new();
        for (worker_id, tiers) in self.held(hashes)? {
            let mut has = vec![false; hashes.len()];
            tiers.into_values().flatten().for_each(|block| has[block] = true);
            let matched_prefix_blocks = has.iter().take_while(|has| **has).count() as u32;
            if matched_prefix_blocks > 0 {
                matches.push(ExternalKvPrefixMatch { worker_id, matched_prefix_blocks });
            }
        }
        matches.sort_by_key(|of| std::cmp::Reverse(of.matched_prefix_blocks));
        let best_prefix_blocks = matches.first().map_or(0, |of| of.matched_prefix_blocks);
        Ok(MatchExternalKvPrefixResponse { matches, best_prefix_blocks })
    }
}

/// The outcome of a future that waits for nothing.
fn ready<T>(future: impl Future<Output = T>) -> Option<T> {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(outcome) => Some(outcome),
        Poll::Pending => None,
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let folder = tempfile::tempdir()?;
    let address = Address::Shm(folder.path().join("indexer.sock"));
    let table = PlacementTable::default();
    let server = ServerConfig::new(address.clone(), table.config(TableSize::Keys(10_000)));
    let server = Server::start(server)?;
    table.mark(&server)?;
    let pool = ClientPool::connect(&address)?;
    let backend = OnereadBackend::new(Client::clone(&pool.get()))?;
    let apply = |worker: &str, actions: &[(ExternalKvActionType, i32, &[i64])]| {
        let action = |&(r#type, tier, hashes): &(ExternalKvActionType, i32, &[i64])| ExternalKvAction {
            r#type,
            tier,
            hashes: hashes.to_vec(),
        };
        let actions = actions.iter().map(action).collect();
        let request = ApplyExternalKvBatchRequest {
            worker_id: worker.into(),
            actions,
            ..ApplyExternalKvBatchRequest::default()
        };
        ready(backend.apply_external_kv_batch(request)).transpose().map_err(|status| status.0)
    };
    let prefixes = |hashes: &[i64]| -> Result<Vec<(String, u32)>, String> {
        let request = MatchExternalKvPrefixRequest { hashes: hashes.to_vec(), max_blocks: 0 };
        let response = ready(backend.match_external_kv_prefix(request)).ok_or("it waits")?;
        let matches = response.map_err(|status| status.0)?.matches;
        Ok(matches.into_iter().map(|of| (of.worker_id, of.matched_prefix_blocks)).collect())
    };
    use ExternalKvActionType::{ClearAllAtTier, Report, Revoke};
    let prompt = [11, -22, 33, -44, 55];
    apply("a", &[(Report, 1, &prompt[..3]), (Report, 2, &prompt[3..4])])?;
    apply("b", &[(Report, 1, &prompt), (Revoke, 1, &prompt[2..3])])?;
    assert_eq!(prefixes(&prompt)?, [("a".into(), 4), ("b".into(), 2)]);
    apply("a", &[(ClearAllAtTier, 2, &[]), (Revoke, 1, &[99])])?;
    assert_eq!(prefixes(&prompt)?, [("a".into(), 3), ("b".into(), 2)]);
    apply("a", &[(ClearAllAtTier, 1, &[]), (Report, 1, &prompt[..1])])?;
    assert_eq!(prefixes(&prompt)?, [("b".into(), 2), ("a".into(), 1)]);
    let request = MatchExternalKvRequest { hashes: prompt.to_vec() };
    let all = ready(backend.match_external_kv(request)).ok_or("it waits")?.map_err(|status| status.0)?;
    assert_eq!(all.matches[1].hashes_by_tier, [TierHashes { tier: 1, hashes: vec![11, -22, -44, 55] }]);
    for of in all.matches {
        println!("{of:?}");
    }
    Ok(())
}

/// The example is right.
#[test]
fn backend_answers() {
    main().unwrap();
}
