//! `bench followers`: what many who follow cost at rest, and when they hear of a change.

use super::runner::{more_descriptors, serve};
use crate::measure::{latencies, machine, quantile, told_ns};
use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use comfy_table::Table;
use oneread::{ChangeFeed, ClientOptions, FeedItem, FeedOptions};
use oneread_kit::child::{Fabric, ServerChild};
use oneread_kit::show;
use serde::Serialize;
use std::process::ExitCode;
use std::sync::mpsc;
use std::time::{Duration, Instant};

/// Let many follow a table: what they cost while nothing changes, and when each hears of a change
#[derive(Debug, Args)]
#[command(after_help = "EXAMPLES
  oneread bench followers
  oneread bench followers --tcp --followers 100 --json

A server in a process of its own, and followers with a thread each in this one.
  server at rest, followers at rest
      CPU time of either process while nothing changes, in thousandths of a core
  server memory   private memory of its process, beyond that without followers
  heard           from just before a put until a follower has the change: of all
                  followers and all changes")]
pub struct FollowersBench {
    /// Number of followers
    #[arg(long, value_name = "N", default_value_t = 1_000, value_parser = clap::value_parser!(u32).range(1..=3_000))]
    followers: u32,
    /// Seconds of rest
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..))]
    seconds: u32,
    /// Number of changes, one after the other
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..))]
    changes: u32,
    /// Over TCP
    #[arg(long)]
    tcp: bool,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Serialize)]
struct Followed {
    followers: u32,
    over_tcp: bool,
    server_millicores: f64,
    followers_millicores: f64,
    server_bytes: u64,
    heard_p50_ns: u64,
    heard_p99_ns: u64,
    heard_max_ns: u64,
}

impl FollowersBench {
    pub fn run(self) -> Result<ExitCode> {
        more_descriptors();
        let fabric = if self.tcp { Fabric::Tcp } else { Fabric::Shm };
        let server = serve(fabric, 1_000, 32, &["--clients-per-peer=4096".into()])?;
        let mut client = server.connect_with(ClientOptions::new().deadline(Duration::from_secs(30)))?;
        let before = private_bytes(&server)?;
        let mut feeds = Vec::new();
        for _ in 0..self.followers {
            feeds.push(client.changes(FeedOptions::new()).context("beginning to follow")?);
        }
        let (tell, told) = mpsc::channel();
        let mut heard = latencies()?;
        let mut followed = None;
        std::thread::scope(|scope| {
            for feed in feeds {
                let tell = tell.clone();
                scope.spawn(move || follow(feed, self.changes, &tell));
            }
            drop(tell);
            // Each has asked by then.
            std::thread::sleep(Duration::from_secs(2));
            let server_bytes = private_bytes(&server)?.saturating_sub(before);
            let rest = Duration::from_secs(self.seconds.into());
            let [of_server, own] = at_rest(&server, rest)?;
            for number in 0..self.changes {
                let begun = Instant::now();
                client.put(&number.to_le_bytes(), b"value").context("a change")?;
                for _ in 0..self.followers {
                    let at =
                        told.recv_timeout(Duration::from_secs(60)).context("a follower hears nothing")??;
                    heard.record(at.saturating_duration_since(begun).as_nanos() as u64)?;
                }
            }
            followed = Some((server_bytes, of_server, own));
            Ok::<_, anyhow::Error>(())
        })?;
        let (server_bytes, server_millicores, followers_millicores) =
            followed.context("the changes were made")?;
        let followed = Followed {
            followers: self.followers,
            over_tcp: self.tcp,
            server_millicores,
            followers_millicores,
            server_bytes,
            heard_p50_ns: quantile(&heard, 0.5).unwrap_or(0),
            heard_p99_ns: quantile(&heard, 0.99).unwrap_or(0),
            heard_max_ns: heard.max(),
        };
        show::outcome(self.json, &followed, || {
            show::lay_out(table(&followed))?;
            show::lay_out(show::machine(&machine()))
        })?;
        Ok(ExitCode::SUCCESS)
    }
}

/// Tells when each change was heard.
fn follow(mut feed: ChangeFeed, changes: u32, tell: &mpsc::Sender<Result<Instant>>) {
    for _ in 0..changes {
        let heard = match feed.next(Duration::from_secs(600)) {
            Ok(Some(FeedItem::Came { .. })) => Ok(Instant::now()),
            other => Err(anyhow::anyhow!("a follower hears {other:?}")),
        };
        let has_failed = heard.is_err();
        if tell.send(heard).is_err() || has_failed {
            return;
        }
    }
}

/// The CPU time of the server, and of this process, in thousandths of a core.
fn at_rest(server: &ServerChild, rest: Duration) -> Result<[f64; 2]> {
    let own = || oneread_kit::child::CpuTime::of(rustix::process::getpid());
    let (theirs, ours, begun) = (server.cpu_time()?, own()?, Instant::now());
    std::thread::sleep(rest);
    let took = begun.elapsed().as_secs_f64();
    Ok([server.cpu_time()?.ms_since(theirs) / took, own()?.ms_since(ours) / took])
}

/// Private memory of the server's process.
fn private_bytes(server: &ServerChild) -> Result<u64> {
    let path = format!("/proc/{}/status", server.pid().as_raw_nonzero());
    let status = std::fs::read_to_string(&path).with_context(|| format!("reading {path}"))?;
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:"));
    let Some(line) = line else { bail!("{path} does not tell private memory; it needs Linux 4.5") };
    let kib = line.trim().trim_end_matches("kB").trim().parse::<u64>();
    let kib = kib.with_context(|| format!("{line:?} in {path}"))?;
    ensure!(kib > 0, "the server has ended");
    Ok(kib << 10)
}

fn table(followed: &Followed) -> Table {
    let mut table = show::facts();
    let followers = show::count(followed.followers.into());
    table.add_row(show::fact("followers", followers));
    let cores = |millicores: f64| format!("{millicores:.2} thousandths of a core");
    table.add_row(show::fact("server at rest", cores(followed.server_millicores)));
    table.add_row(show::fact("followers at rest", cores(followed.followers_millicores)));
    table.add_row(show::fact("server memory", format!("{} KiB", followed.server_bytes >> 10)));
    let [p50, p99, max] = [followed.heard_p50_ns, followed.heard_p99_ns, followed.heard_max_ns];
    let [p50, p99, max] = [p50, p99, max].map(|ns| told_ns(Some(ns)));
    table.add_row(show::fact("heard", format!("{p50} in the median, {p99} at 99 %, {max} at most")));
    table
}
