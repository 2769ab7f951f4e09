//! `kv-indexer`: hears LLM engines' KV events, and answers routers who has how long a prefix.

use crate::region_file::{is_of_region, look_into, region_file, remove};
use crate::serve::ending::{Asked, Ending, Hangup};
use crate::serve::systemd::{Said, notify};
use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use oneread::internals::files;
use oneread::{
    Address, Backing, Client, ClientOptions, Evict, ServeError, Server, ServerConfig, StartMode, TableSize,
    Token,
};
use oneread_indexer::endpoint::{Endpoint, Reach};
use oneread_indexer::trust::Allowed;
use oneread_indexer::worker::{INSTANCE_MAX, RANK_MAX, TEXT_MAX, Worker};
use oneread_indexer::{Indexer, IndexerConfig, chain};
use oneread_kit::units::{ByteSize, length, some_bytes};
use oneread_kit::{show, token_in};
use oneread_prefix::{HOLDERS, PlacementTable};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use serde_json::json;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::path::PathBuf;
use std::process::ExitCode;

/// Answer who has how long a prefix, from LLM engines' KV events
#[derive(Debug, Args)]
#[command(after_help = "EXAMPLES
  oneread kv-indexer --block-size 16 --workers '1=tcp://127.0.0.1:5557'
      hear one engine, and answer at http://127.0.0.1:8090
  oneread kv-indexer --workers '1=tcp://a:5557,2=tcp://b:5557' --block-size 16 \\
      --replay '1=tcp://a:5558,2=tcp://b:5558'
      engines elsewhere, which send again what was missed
  oneread kv-indexer --listen 0.0.0.0:8090 --token-file /etc/oneread/token
      for routers of other hosts, who show the token
  oneread kv-indexer --at shm:/run/oneread/kv.sock
      over a table that `oneread serve --index placement` serves
  curl -H 'Content-Type: application/json' 127.0.0.1:8090/query \\
      -d '{\"model_name\": \"default\", \"token_ids\": [1, 2, 3]}'

It takes the requests of Dynamo's indexer and of Mooncake's (RFC 1403), and the
events of vLLM, SGLang and Mooncake (docs/KV-CACHE.md). What it knows is in the
table, so it answers after a restart with what it knew before. Several over one
table all answer; one of them hears the events, and another one goes on when
that one ends.")]
pub struct KvIndexer {
    /// Answer requests here; beyond this host only with --token-file
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:8090")]
    listen: SocketAddr,
    /// Use the table that is served at this address [default: one of its own, served at --table]
    #[arg(long, value_name = "ADDRESS", conflicts_with_all = ["table", "region", "max_memory", "holders", "evict", "fresh"])]
    at: Option<Address>,
    /// The file that holds the token of that table's server (verbs and TCP)
    #[arg(long, value_name = "FILE", requires = "at")]
    at_token_file: Option<PathBuf>,
    /// Serve its own table at this address, for routers on this host that look by themselves [default:
    /// oneread-kv.sock beside this user's socket]
    #[arg(long, value_name = "ADDRESS")]
    table: Option<Address>,
    /// The file that holds its own table [default: in /dev/shm/oneread-UID, by the address]
    #[arg(long, value_name = "PATH")]
    region: Option<PathBuf>,
    /// The most memory that its own table may take, as in 8GiB [default: half of this machine's, or less]
    #[arg(long, value_name = "SIZE", value_parser = some_bytes)]
    max_memory: Option<ByteSize>,
    /// The most workers of its own table, each rank and tier of one, up to 4096 [default: 1024]
    #[arg(long, value_name = "N")]
    holders: Option<usize>,
    /// Where its own table is full, have blocks make room for others, by this policy: s3-fifo, sieve or clock;
    /// without it, new blocks are refused then, and counted
    #[arg(long, value_name = "POLICY")]
    evict: Option<Evict>,
    /// Forget the table that was there
    #[arg(long)]
    fresh: bool,
    /// Workers to hear, as in '1=tcp://host:5557,1:1=tcp://host:5558': INSTANCE[:RANK]=ENDPOINT
    #[arg(long, value_name = "LIST", value_parser = named_endpoints, requires = "block_size")]
    workers: Option<NamedEndpoints>,
    /// Where these send batches again, in the same form
    #[arg(long, value_name = "LIST", value_parser = named_endpoints, requires = "workers")]
    replay: Option<NamedEndpoints>,
    /// Tokens a block of these workers, as their engine has it
    #[arg(long, value_name = "TOKENS")]
    block_size: Option<NonZeroU32>,
    /// The model of these workers
    #[arg(long, value_name = "NAME", default_value = "default")]
    model_name: String,
    /// The tenant of these workers, which Dynamo calls a routing group
    #[arg(long, visible_alias = "routing-group", value_name = "NAME", default_value = "default")]
    tenant_id: String,
    /// The seed of hashes: another one only where publishers send hashes of their own with it (RFC 1527)
    #[arg(long, value_name = "N", default_value_t = chain::SEED)]
    hash_seed: u64,
    /// The file that holds the token of those who ask: its mode is 0600
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
    /// Let requests without a token register publishers there: a host, or an endpoint (repeatable)
    #[arg(long, value_name = "HOST")]
    allow_endpoint: Vec<Allowed>,
    /// The longest message of a publisher; one that sends a longer one is hung up on
    #[arg(long, value_name = "SIZE", default_value = "4MiB", value_parser = length)]
    batch_max: usize,
    /// Print the line that reports readiness as JSON
    #[arg(long)]
    json: bool,
    /// Die with the process that started this one
    #[arg(long, hide = true)]
    die_with_parent: bool,
}

/// Endpoints, by instance and rank.
type NamedEndpoints = BTreeMap<(String, u32), Endpoint>;

/// What --workers and --replay name.
fn named_endpoints(given: &str) -> Result<NamedEndpoints, String> {
    let mut all = NamedEndpoints::new();
    for one in given.split(',').map(str::trim).filter(|one| !one.is_empty()) {
        let (name, endpoint) =
            one.split_once('=').ok_or(format!("{one:?} is not of the form INSTANCE[:RANK]=ENDPOINT"))?;
        let (instance, rank) = match name.rsplit_once(':') {
            Some((instance, rank)) => {
                let rank: Option<u32> = rank.parse().ok().filter(|rank| *rank <= RANK_MAX);
                (instance, rank.ok_or(format!("{rank:?} is no rank: a number up to {RANK_MAX}"))?)
            }
            None => (name, 0),
        };
        if instance.is_empty() || instance.len() > INSTANCE_MAX {
            return Err(format!("{instance:?} is no instance: a name of 1 to {INSTANCE_MAX} bytes"));
        }
        let endpoint =
            endpoint.parse().map_err(|error: oneread_indexer::endpoint::EndpointError| error.to_string())?;
        if all.insert((instance.to_owned(), rank), endpoint).is_some() {
            return Err(format!("{name} is there twice"));
        }
    }
    Ok(all)
}

impl KvIndexer {
    pub fn run(self) -> Result<ExitCode> {
        if self.die_with_parent {
            rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL))?;
        }
        let ending = Ending::begin(Hangup::Ends)?;
        let config = self.config()?;
        // A publisher and a request have a file descriptor each. Where this user may not, those that come first are heard.
        let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
        let _ = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum });
        let (own, client) = match &self.at {
            Some(address) => (None, self.connect(address)?),
            None => {
                let server = match self.serve(&ending) {
                    Err(error) if matches!(error.downcast_ref(), Some(ServeError::Cancelled)) => {
                        show::complain("oneread: stopped before the table was ready");
                        return Ok(ExitCode::SUCCESS);
                    }
                    served => served?,
                };
                let client = Client::connect(server.address())?;
                (Some(server), client)
            }
        };
        let table = client.address().clone();
        let indexer = Indexer::start(client, config)?;
        let url = format!("http://{}", indexer.address());
        if self.json {
            show::say(json!({ "url": url, "table": table.to_string() }))?;
        } else {
            show::say(format_args!("answering at {url}, over the table at {table}"))?;
        }
        ending.serves();
        notify(Said::Ready);
        while ending.next() == Asked::ReadAgain {}
        notify(Said::Stopping);
        drop(indexer);
        if let Some(server) = own {
            server.stop();
        }
        Ok(ExitCode::SUCCESS)
    }

    fn config(&self) -> Result<IndexerConfig> {
        let token = match &self.token_file {
            Some(path) => {
                // Checked as all tokens are; what is shown is compared with its bytes.
                token_in(path)?;
                Some(files::read_secret(path)?.trim_ascii().to_vec())
            }
            None => None,
        };
        let replay = self.replay.clone().unwrap_or_default();
        let workers = self.workers.clone().unwrap_or_default();
        if let Some((instance, rank)) = replay.keys().find(|name| !workers.contains_key(*name)) {
            bail!("--replay names {instance}:{rank}, and --workers does not; name it there, too");
        }
        for (name, text) in [("--model-name", &self.model_name), ("--tenant-id", &self.tenant_id)] {
            ensure!(
                (1..=TEXT_MAX).contains(&text.len()) && !text.chars().any(char::is_control),
                "{name} has 1 to {TEXT_MAX} bytes, and none of them a control character"
            );
        }
        let worker = |((instance, rank), endpoint): ((String, u32), Endpoint)| -> Result<Worker> {
            Ok(Worker {
                replay: replay.get(&(instance.clone(), rank)).cloned(),
                instance,
                rank,
                model: self.model_name.clone(),
                tenant: self.tenant_id.clone(),
                block_size: self.block_size.context("--block-size")?,
                lora: String::new(),
                salt: String::new(),
                endpoint,
                // Whoever starts the command says where it may connect to.
                reach: Reach::Anywhere,
                incarnation: 0,
                next: None,
            })
        };
        let workers = workers.into_iter().map(worker).collect::<Result<_>>()?;
        let mut config = IndexerConfig::new(self.listen);
        (config.token, config.allowed, config.workers) = (token, self.allow_endpoint.clone(), workers);
        (config.base, config.message_max) = (self.hash_seed, self.batch_max);
        Ok(config)
    }

    fn connect(&self, address: &Address) -> Result<Client> {
        let token = match &self.at_token_file {
            Some(path) => token_in(path)?,
            None => Token::default(),
        };
        Ok(Client::connect_with(address, ClientOptions::new().token(token))?)
    }

    /// Serves a table of its own, the one that was there if there was one.
    fn serve(&self, ending: &Ending) -> Result<Server> {
        let address = self
            .table
            .clone()
            .unwrap_or_else(|| Address::Shm(files::socket().with_file_name("oneread-kv.sock")));
        let Address::Shm(_) = address else {
            bail!(
                "--table is an address on this host, as in shm:/run/oneread/kv.sock; for others run `oneread serve --index placement`, and name it by --at"
            );
        };
        let path = self.region.clone().unwrap_or_else(|| region_file(&address));
        files::prepare(&path)?;
        if self.fresh && look_into(&path).as_ref().map_or_else(is_of_region, Option::is_some) {
            ensure!(remove(&path)?, "{} is in use by another indexer; stop that one first", path.display());
        }
        let backing = Backing::File(path);
        let bytes = match self.max_memory {
            Some(bytes) => bytes.0,
            None => {
                let share = backing.default_share();
                share
                    .context("the system does not say how much memory there is; give --max-memory SIZE")?
                    .bytes
            }
        };
        let table = PlacementTable::single(self.holders.unwrap_or(HOLDERS))?;
        let how = ServerConfig::new(address, table.config(TableSize::up_to(bytes)))
            .backing(backing)
            .start(StartMode::OpenOrCreate)
            .evict(self.evict)
            .cancel(ending.cancel());
        let server = Server::start(how).context(
            "its own table cannot be served; where another indexer serves it, name that table by --at, or another one by --table",
        )?;
        table.mark(&server)?;
        Ok(server)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Workers are named as Dynamo's indexer has it, and what is none says why.
    #[test]
    fn workers_are_named() {
        let all = named_endpoints("1=tcp://host:5557, 1:1=tcp://host:5558,node-a=ipc:///run/a").unwrap();
        let names: Vec<(&str, u32)> = all.keys().map(|(name, rank)| (name.as_str(), *rank)).collect();
        assert_eq!(names, [("1", 0), ("1", 1), ("node-a", 0)]);
        assert_eq!(all[&("1".to_owned(), 1)].to_string(), "tcp://host:5558");
        for (wrong, why) in [
            ("tcp://host:5557", "INSTANCE[:RANK]=ENDPOINT"),
            ("1:x=tcp://host:1", "is no rank"),
            ("1:99999999=tcp://host:1", "is no rank"),
            ("=tcp://host:1", "is no instance"),
            ("1=host:1", "tcp://HOST:PORT"),
            ("1=tcp://a:1,1:0=tcp://b:1", "is there twice"),
        ] {
            let told = named_endpoints(wrong).unwrap_err();
            assert!(told.contains(why), "{wrong}: {told}");
        }
    }
}
