//! The requests of routers, in the two forms that they have.
//!
//! | | Dynamo's indexer | Mooncake's document (RFC 1403) |
//! |---|---|---|
//! | a model is | `model_name` | `model`, at `/register` `modelname` |
//! | a tenant is | `routing_group`, before 1.6 `tenant_id` | `tenant_id` |
//! | an instance is | a number | a text |
//! | hashes of `/query_by_hash` | `block_hashes`, local ones | `seq_hashes` (or `block_hash`), rolling ones |
//! | an answer has | `scores`, `frequencies`, `tree_sizes`, `instances` | a map of tenants |
//! | registered | 201 | 200 |
//! | fields are missing | 422 | 400 |
//!
//! Which form a request has is told by how it names the model.

use crate::answer;
use crate::chain;
use crate::endpoint::{Endpoint, Reach};
use crate::http::{Answer, Body, Handler, Request};
use crate::listen::Stores;
use crate::lookup::find;
use crate::registry::{Listed, RegisterError, Registry, Which};
use crate::trust::{Rights, Trust};
use crate::worker::{INSTANCE_MAX, Partition, RANK_MAX, TEXT_MAX, Worker};
use serde::Deserialize;
use serde_json::{Map, Value, json};
use std::num::NonZeroU32;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

/// Where nobody says whose tenant it is.
const TENANT: &str = "default";
/// Most peers.
const PEERS_MAX: usize = 64;

/// Answers requests.
#[derive(Debug)]
pub struct Api {
    /// The workers.
    pub registry: Arc<Registry>,
    /// Handles for lookups.
    pub lookups: Arc<Stores>,
    /// Handles for changes that requests ask for.
    pub changes: Arc<Stores>,
    /// Who may do what.
    pub trust: Trust,
    /// Other indexers, which somebody has told of.
    pub peers: Mutex<Vec<String>>,
}

/// Which form a request has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Dialect {
    Dynamo,
    Mooncake,
}

/// A name, which some write as a number.
#[derive(Clone, Debug, Deserialize)]
#[serde(untagged)]
enum Name {
    Number(u64),
    Text(String),
}

impl Name {
    fn text(self) -> String {
        match self {
            Name::Number(number) => number.to_string(),
            Name::Text(text) => text,
        }
    }
}

/// The fields of all requests. Each takes some of them.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Fields {
    instance_id: Option<Name>,
    endpoint: Option<String>,
    replay_endpoint: Option<String>,
    model: Option<String>,
    modelname: Option<String>,
    model_name: Option<String>,
    tenant_id: Option<String>,
    routing_group: Option<String>,
    lora_name: Option<String>,
    lora_id: Option<u64>,
    #[serde(alias = "additionalsalt")]
    additional_salt: Option<String>,
    cache_salt: Option<String>,
    block_size: Option<u32>,
    dp_rank: Option<u32>,
    token_ids: Option<Vec<u32>>,
    block_hashes: Option<Vec<Hash>>,
    #[serde(alias = "block_hash")]
    seq_hashes: Option<Vec<Hash>>,
    url: Option<String>,
}

/// A hash of 64 bits, signed or not.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(untagged)]
enum Hash {
    Unsigned(u64),
    Signed(i64),
}

impl Hash {
    fn number(self) -> u64 {
        match self {
            Hash::Unsigned(number) => number,
            Hash::Signed(number) => number.cast_unsigned(),
        }
    }
}

/// An answer that says what is wrong.
type Refused = Box<Answer>;

fn refused<T>(status: u16, error: impl std::fmt::Display) -> Result<T, Refused> {
    Err(Box::new(Answer::error(status, &error)))
}

impl Fields {
    /// The fields of a request.
    fn of(request: &Request, rights: Rights) -> Result<Fields, Refused> {
        let kind = request.content_type.as_deref().unwrap_or_default();
        let is_json =
            kind.split(';').next().is_some_and(|kind| kind.trim().eq_ignore_ascii_case("application/json"));
        // A page in a browser cannot send this type to another host unasked.
        if !is_json && rights == Rights::Local {
            return refused(415, "send JSON, with the header Content-Type: application/json");
        }
        match serde_json::from_slice(&request.body) {
            Ok(fields) => Ok(fields),
            Err(error) => match error.classify() {
                serde_json::error::Category::Data => {
                    refused(422, format!("a field is of another type: {error}"))
                }
                _ => refused(400, format!("the body is no JSON: {error}")),
            },
        }
    }

    fn dialect(&self) -> Dialect {
        match (&self.model_name, self.model.as_ref().or(self.modelname.as_ref())) {
            (None, Some(_)) => Dialect::Mooncake,
            (Some(_), _) | (None, None) => Dialect::Dynamo,
        }
    }

    /// A field that the request has to have.
    fn wanted<T>(&self, field: Option<T>, name: &str) -> Result<T, Refused> {
        match (field, self.dialect()) {
            (Some(field), _) => Ok(field),
            (None, Dialect::Dynamo) => refused(422, format!("the field {name} is missing")),
            (None, Dialect::Mooncake) => refused(400, format!("the field {name} is missing")),
        }
    }

    fn model(&self) -> Result<String, Refused> {
        let model = self.model_name.as_ref().or(self.model.as_ref()).or(self.modelname.as_ref());
        checked(self.wanted(model.cloned(), "model_name")?, "model", 1, TEXT_MAX)
    }

    /// The tenant, if the request names one.
    fn named_tenant(&self) -> Option<&String> {
        self.routing_group.as_ref().or(self.tenant_id.as_ref())
    }

    fn tenant(&self) -> Result<String, Refused> {
        let tenant = self.named_tenant().cloned().unwrap_or_else(|| TENANT.into());
        checked(tenant, "tenant_id (or routing_group)", 1, TEXT_MAX)
    }

    fn lora(&self) -> String {
        let by_number = self.lora_id.filter(|number| *number != 0).map(|number| number.to_string());
        self.lora_name.clone().or(by_number).unwrap_or_default()
    }

    fn instance(&self) -> Result<String, Refused> {
        let instance = self.wanted(self.instance_id.clone(), "instance_id")?.text();
        checked(instance, "instance_id", 1, INSTANCE_MAX)
    }

    fn block_size(&self) -> Result<Option<NonZeroU32>, Refused> {
        match self.block_size.map(NonZeroU32::new) {
            None => Ok(None),
            Some(Some(size)) => Ok(Some(size)),
            Some(None) => refused(400, "block_size is 0; give the engine's"),
        }
    }
}

fn checked(text: String, name: &str, min: usize, max: usize) -> Result<String, Refused> {
    if (min..=max).contains(&text.len()) && !text.chars().any(char::is_control) {
        return Ok(text);
    }
    refused(400, format!("{name} has {min} to {max} bytes, and none of them a control character"))
}

impl Handler for Api {
    fn answer(&self, request: &Request) -> Answer {
        let counts = self.registry.counts();
        counts.requests.one();
        let answer = self.routed(request).unwrap_or_else(|refused| *refused);
        if answer.status >= 400 {
            counts.refusals.one();
        }
        answer
    }
}

impl Api {
    fn routed(&self, request: &Request) -> Result<Answer, Refused> {
        if request.path == "/health" && request.method == "GET" {
            return Ok(Answer::json(
                200,
                &json!({ "status": "ok", "takes_events": self.registry.is_active() }),
            ));
        }
        let rights = match self.trust.rights(request) {
            Ok(rights) => rights,
            Err((status, why)) => return refused(status, why),
        };
        let fields = || Fields::of(request, rights);
        match (request.method.as_str(), request.path.as_str()) {
            ("POST", "/query") => self.query(&fields()?, By::Tokens),
            ("POST", "/query_by_hash") => self.query(&fields()?, By::Hashes),
            ("POST", "/register") => self.register(&fields()?, rights),
            ("POST", "/unregister") => self.unregister(&fields()?),
            ("GET", "/workers") => Ok(self.workers(&request.query)),
            ("GET", "/metrics") => Ok(self.metrics()),
            ("GET", "/dump") => match rights {
                Rights::Token => Ok(self.dump()),
                Rights::Local => {
                    refused(403, "a dump is for who shows a token; start the indexer with --token-file")
                }
            },
            ("GET", "/peers") => Ok(Answer::json(200, &json!(*self.peers()))),
            ("POST", "/register_peer") => self.register_peer(&fields()?),
            ("POST", "/deregister_peer") => self.deregister_peer(&fields()?),
            (
                _,
                "/query" | "/query_by_hash" | "/register" | "/unregister" | "/register_peer"
                | "/deregister_peer",
            ) => refused(405, "this is asked for by POST"),
            (_, "/workers" | "/metrics" | "/dump" | "/peers" | "/health") => {
                refused(405, "this is asked for by GET")
            }
            _ => refused(404, "there is no such page; docs/KV-CACHE.md has all of them"),
        }
    }

    // ---- workers --------------------------------------------------------------------------------

    fn register(&self, fields: &Fields, rights: Rights) -> Result<Answer, Refused> {
        let instance = fields.instance()?;
        let model = fields.model()?;
        let block_size = fields.wanted(fields.block_size()?, "block_size")?;
        let rank = fields.dp_rank.unwrap_or_default();
        if rank > RANK_MAX {
            return refused(400, format!("dp_rank is {RANK_MAX} at most"));
        }
        let parsed = |text: &String| match text.parse::<Endpoint>() {
            Ok(endpoint) => Ok(endpoint),
            Err(error) => refused(400, error),
        };
        let endpoint = parsed(&fields.wanted(fields.endpoint.clone(), "endpoint")?)?;
        let replay =
            fields.replay_endpoint.as_ref().filter(|text| !text.is_empty()).map(parsed).transpose()?;
        let mut reach = Reach::Loopback;
        for one in [Some(&endpoint), replay.as_ref()].into_iter().flatten() {
            match self.trust.reach(one, rights) {
                Ok(Reach::Loopback) => {}
                Ok(Reach::Anywhere) => reach = Reach::Anywhere,
                Err((status, why)) => return refused(status, why),
            }
        }
        let salt = fields.additional_salt.clone().unwrap_or_default();
        let worker = Worker {
            instance: instance.clone(),
            rank,
            tenant: fields.tenant()?,
            block_size,
            lora: checked(fields.lora(), "lora_name", 0, TEXT_MAX)?,
            salt: checked(salt, "additionalsalt", 0, TEXT_MAX)?,
            model,
            endpoint,
            replay,
            reach,
            incarnation: 0,
            next: None,
        };
        match (self.registry.register(&self.changes, worker), fields.dialect()) {
            (Ok(_), Dialect::Dynamo) => Ok(Answer::json(201, &json!({ "status": "ok" }))),
            (Ok(_), Dialect::Mooncake) => Ok(Answer::json(
                200,
                &json!({ "status": "registered successfully", "instance_id": instance }),
            )),
            (Err(error), _) => failed(error),
        }
    }

    fn unregister(&self, fields: &Fields) -> Result<Answer, Refused> {
        let (instance, model) = (fields.instance()?, fields.model()?);
        let tenant = match fields.dialect() {
            Dialect::Dynamo => fields.named_tenant().cloned(),
            Dialect::Mooncake => Some(fields.tenant()?),
        };
        let which =
            Which { instance: &instance, model: &model, tenant: tenant.as_deref(), rank: fields.dp_rank };
        match (self.registry.unregister(&self.changes, &which), fields.dialect()) {
            (Ok(_), Dialect::Dynamo) => Ok(Answer::json(200, &json!({ "status": "ok" }))),
            (Ok(gone), Dialect::Mooncake) => {
                let name = |worker: &Arc<Worker>| {
                    let Worker { instance, tenant, rank, .. } = &**worker;
                    format!("{instance}|{tenant}|{rank}")
                };
                let gone: Vec<String> = gone.iter().map(name).collect();
                Ok(Answer::json(
                    200,
                    &json!({ "status": "unregistered successfully", "removed_instances": gone }),
                ))
            }
            (Err(error), _) => failed(error),
        }
    }

    fn workers(&self, query: &str) -> Answer {
        let wanted = |name: &str| {
            let mut pairs = query.split('&').filter_map(|pair| pair.split_once('='));
            pairs.find(|(key, _)| *key == name).map(|(_, value)| decoded(value))
        };
        let (model, tenant) = (wanted("model_name"), wanted("routing_group").or(wanted("tenant_id")));
        let mut all: Vec<Value> = Vec::new();
        let listed = self.registry.list();
        let is_wanted = |it: &&Listed| {
            model.as_ref().is_none_or(|model| it.worker.model.as_bytes() == model)
                && tenant.as_ref().is_none_or(|tenant| it.worker.tenant.as_bytes() == tenant)
        };
        let same = |a: &Listed, b: &Listed| {
            let key =
                |it: &Listed| (it.worker.model.clone(), it.worker.tenant.clone(), it.worker.instance.clone());
            key(a) == key(b)
        };
        let listed: Vec<Listed> = listed.iter().filter(is_wanted).cloned().collect();
        for ranks in listed.chunk_by(same) {
            let Some(first) = ranks.first() else { continue };
            let endpoints: Map<String, Value> = ranks
                .iter()
                .map(|it| (it.worker.rank.to_string(), json!(it.worker.endpoint.to_string())))
                .collect();
            let state: Map<String, Value> =
                ranks.iter().map(|it| (it.worker.rank.to_string(), state_of(it))).collect();
            all.push(json!({
                "instance_id": instance_of(&first.worker.instance),
                "endpoints": endpoints,
                "model_name": first.worker.model,
                "tenant_id": first.worker.tenant,
                "routing_group": first.worker.tenant,
                "block_size": first.worker.block_size,
                "state": state,
            }));
        }
        Answer::json(200, &Value::Array(all))
    }

    // ---- lookups --------------------------------------------------------------------------------

    fn query(&self, fields: &Fields, by: By) -> Result<Answer, Refused> {
        let (model, tenant) = (fields.model()?, fields.tenant()?);
        let partition = Partition::of(&model, &tenant);
        let Some(block_size) = self.registry.block_size(partition) else {
            return refused(404, format!("no worker of model {model:?} and tenant {tenant:?} is registered"));
        };
        if let Some(given) = fields.block_size()?.filter(|given| *given != block_size) {
            return refused(
                400,
                format!("blocks of model {model:?} have {block_size} tokens, and {given} were given"),
            );
        }
        let (base, lora) = (self.registry.base(), fields.lora());
        let seed = chain::seed_of(base, &lora, fields.cache_salt.as_deref().unwrap_or_default());
        let (rolling, partition) = match (by, fields.dialect()) {
            (By::Tokens, _) => {
                let tokens = fields.wanted(fields.token_ids.as_ref(), "token_ids")?;
                (chain::of_tokens(tokens, block_size, base, seed), partition)
            }
            (By::Hashes, Dialect::Dynamo) => {
                if fields.cache_salt.is_some() {
                    return refused(400, "block_hashes have the salt in them already; leave cache_salt out");
                }
                let hashes = fields.wanted(fields.block_hashes.as_ref(), "block_hashes")?;
                let locals: Vec<u64> = hashes.iter().map(|hash| hash.number()).collect();
                (chain::of_locals(&locals, base), partition)
            }
            (By::Hashes, Dialect::Mooncake) => {
                let hashes = fields.wanted(fields.seq_hashes.as_ref(), "seq_hashes")?;
                (hashes.iter().map(|hash| hash.number()).collect(), partition.of_rolling(seed, base))
            }
        };
        let keys: Vec<[u8; 16]> = rolling.iter().map(|rolling| partition.key(*rolling)).collect();
        let begun = Instant::now();
        let has_tiers = self.registry.has_tiers();
        let found = self.lookups.with(|store| find(store, &keys, has_tiers));
        let counts = self.registry.counts();
        counts.lookups.one();
        counts.lookup_nanoseconds.add(begun.elapsed().as_nanos() as u64);
        let found = match found {
            Ok(found) => found,
            Err(error) => {
                counts.table_errors.one();
                return refused(503, format!("the table does not answer: {error}"));
            }
        };
        Ok(match fields.dialect() {
            Dialect::Dynamo => Answer::json(200, &answer::dynamo(&found, block_size)),
            Dialect::Mooncake => {
                let only = fields.instance_id.clone().map(Name::text);
                let registered = self.registry.ranks(&model, &tenant, only.as_deref());
                Answer::json(200, &answer::mooncake(&found, &registered, &tenant, block_size))
            }
        })
    }

    // ---- all else -------------------------------------------------------------------------------

    fn metrics(&self) -> Answer {
        let listed = self.registry.list();
        let connected =
            listed.iter().filter(|it| it.status.as_ref().is_some_and(|status| status.is_connected)).count();
        let now = [
            ("oneread_kv_workers", "Workers that are registered.", listed.len() as u64),
            ("oneread_kv_workers_connected", "Workers whose events are heard here.", connected as u64),
            (
                "oneread_kv_takes_events",
                "Whether this indexer takes events in (1), or another one does (0).",
                self.registry.is_active().into(),
            ),
        ];
        Answer::text(self.registry.counts().text(&now))
    }

    /// All blocks, model by model, read as it is written.
    fn dump(&self) -> Answer {
        let mut models: Vec<(String, String, NonZeroU32)> = Vec::new();
        for it in self.registry.list() {
            let one = (it.worker.model.clone(), it.worker.tenant.clone(), it.worker.block_size);
            if !models.contains(&one) {
                models.push(one);
            }
        }
        let lookups = self.lookups.clone();
        let parts = Box::new(move |part: &mut dyn FnMut(&[u8]) -> std::io::Result<()>| {
            part(b"{")?;
            for (number, (model, tenant, size)) in models.iter().enumerate() {
                let comma = if number > 0 { "," } else { "" };
                let name = json!(format!("{model}:{tenant}"));
                part(format!("{comma}{name}:{{\"block_size\":{size},\"blocks\":[").as_bytes())?;
                let (mut cursor, mut is_first) = (None, true);
                loop {
                    let some = lookups.with(|store| store.dump(&mut cursor, Partition::of(model, tenant)));
                    let Some(blocks) = some.map_err(std::io::Error::other)? else { break };
                    let mut text = String::new();
                    for block in blocks {
                        if !std::mem::take(&mut is_first) {
                            text.push(',');
                        }
                        text.push_str(&block.to_string());
                    }
                    part(text.as_bytes())?;
                }
                part(b"]}")?;
            }
            part(b"}")
        });
        Answer { status: 200, content_type: "application/json", body: Body::Parts(parts) }
    }

    fn peers(&self) -> std::sync::MutexGuard<'_, Vec<String>> {
        self.peers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn register_peer(&self, fields: &Fields) -> Result<Answer, Refused> {
        let url = checked(fields.wanted(fields.url.clone(), "url")?, "url", 1, 256)?;
        let mut peers = self.peers();
        if !peers.contains(&url) {
            if peers.len() == PEERS_MAX {
                return refused(
                    503,
                    format!("{PEERS_MAX} peers are registered, which is the most; deregister some"),
                );
            }
            peers.push(url);
        }
        Ok(Answer::json(201, &json!({ "status": "ok" })))
    }

    fn deregister_peer(&self, fields: &Fields) -> Result<Answer, Refused> {
        let url = fields.wanted(fields.url.clone(), "url")?;
        let mut peers = self.peers();
        let before = peers.len();
        peers.retain(|peer| *peer != url);
        if peers.len() == before {
            return refused(404, "no such peer is registered");
        }
        Ok(Answer::json(200, &json!({ "status": "ok" })))
    }
}

/// What a query names blocks by.
#[derive(Clone, Copy, Debug)]
enum By {
    Tokens,
    Hashes,
}

fn failed(error: RegisterError) -> Result<Answer, Refused> {
    let status = match &error {
        RegisterError::Taken { .. } | RegisterError::BlockSize { .. } => 409,
        RegisterError::Unknown => 404,
        RegisterError::Many { .. } | RegisterError::Raced => 503,
        RegisterError::Store(crate::store::StoreError::Long { .. }) => 400,
        RegisterError::Store(_) => 503,
    };
    refused(status, error)
}

/// A value behind `?`, without `%` and `+`.
fn decoded(value: &str) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(value.len());
    let mut rest = value.as_bytes();
    while let [first, behind @ ..] = rest {
        let digit = |at: usize| behind.get(at).and_then(|digit| char::from(*digit).to_digit(16));
        let (byte, used) = match (first, digit(0), digit(1)) {
            (b'%', Some(high), Some(low)) => ((high << 4 | low) as u8, 3),
            (b'+', _, _) => (b' ', 1),
            (other, _, _) => (*other, 1),
        };
        bytes.push(byte);
        rest = &rest[used..];
    }
    bytes
}

/// How an instance is written: one that was a number is one again.
fn instance_of(instance: &str) -> Value {
    match instance.parse::<u64>() {
        Ok(number) if number.to_string() == instance => json!(number),
        _ => json!(instance),
    }
}

fn state_of(listed: &Listed) -> Value {
    match &listed.status {
        None => json!({ "heard": "elsewhere" }),
        Some(status) => json!({
            "heard": if status.is_connected { "here" } else { "not connected" },
            "last_batch": status.last,
            "blocks": status.blocks,
            "error": status.error,
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Names in an address are told as they are; what is no escape stays.
    #[test]
    fn values_behind_a_question_mark_are_decoded() {
        for (value, expected) in [
            ("a", "a"),
            ("", ""),
            ("Qwen%2FQwen3%2b", "Qwen/Qwen3+"),
            ("two+words%20more", "two words more"),
            ("50%", "50%"),
            ("%4", "%4"),
            ("%zz%41", "%zzA"),
            ("%c3%bc", "\u{fc}"),
        ] {
            assert_eq!(decoded(value), expected.as_bytes(), "{value}");
        }
    }
}
