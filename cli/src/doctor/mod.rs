//! `doctor`: which fabrics work on this machine, and the commands that mend the others.

mod facts;
mod far;
mod judge;
#[cfg(test)]
mod tests;

use crate::connect::At;
use crate::pages::Pages;
use anyhow::{Context, Result};
use clap::{Args, ValueEnum};
use comfy_table::{Attribute, Cell, Color, ColumnConstraint, Width};
pub use facts::locked_memory_max;
use facts::{Facts, InterfaceAddress, Live};
use judge::{Diagnosis, Finding, Level, PortGids, Question};
use oneread::internals::region::{Backing, Region};
use oneread::{Address, Client, ClientOptions, ClientTls, Config, ConnectError, Token};
use oneread_kit::{TlsArgs, TokenArgs, show};
use serde_json::json;
use std::io;
use std::iter::once;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

/// Say which fabrics work on this machine, and how to mend the others
#[derive(Debug, Args)]
#[command(after_help = "EXAMPLES
  oneread doctor                  what works, and what mends the rest
  oneread doctor --peer 10.0.0.7  which GID to use towards this machine, and why
  oneread doctor --at tcp://server:7471      whether that server lets you in
  oneread doctor --fabric verbs || exit 1    for scripts
  oneread doctor --json | jq .fabrics

Changes nothing on the machine. Exit status 0: shm or verbs works; with
--fabric: that one works.")]
pub struct Doctor {
    /// Exit with status 1 unless this fabric works
    #[arg(long, value_name = "NAME")]
    fabric: Option<Fabric>,
    /// Rank GIDs for a connection with the machine at this IP address
    #[arg(long, value_name = "ADDRESS")]
    peer: Option<IpAddr>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    at: At,
    #[command(flatten)]
    token: TokenArgs,
    #[command(flatten)]
    tls: TlsArgs,
    /// Look at this cluster, too: its nodes, its etcd, and whether that is compacted
    #[cfg(feature = "cluster")]
    #[arg(long, value_name = "NAME")]
    cluster: Option<oneread_cluster::etcd::ClusterName>,
    #[cfg(feature = "cluster")]
    #[command(flatten)]
    reach: crate::cluster::ClusterArgs,
    /// Look at files under this folder instead of /
    #[arg(long, value_name = "DIR", default_value = "/", hide = true)]
    root: PathBuf,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Fabric {
    /// Processes of one host
    Shm,
    /// RDMA
    Verbs,
    /// Requests to the server, over any network
    Tcp,
}

impl Doctor {
    pub fn run(self) -> Result<ExitCode> {
        let question = Question {
            peer: self.peer,
            verbs_built: cfg!(feature = "verbs"),
            table_bytes: Config::default().geometry()?.region_bytes(),
        };
        let facts = Facts::collect(&self.root, live(&self.root)?);
        let mut diagnosis = Diagnosis::of(&facts, &question);
        diagnosis.findings.splice(0..0, server(&self.at.address(), self.token.token()?, self.tls.tls()?));
        #[cfg(feature = "cluster")]
        if let Some(name) = &self.cluster {
            diagnosis.findings.splice(0..0, cluster(&self.reach, name)?);
        }
        if self.json {
            show::say(report_json(&facts, &diagnosis))?;
        } else {
            let wants_verbs = self.peer.is_some() || matches!(self.fabric, Some(Fabric::Verbs));
            report(&diagnosis, self.peer, wants_verbs)?;
        }
        let (shm, verbs) = (diagnosis.shm.works, diagnosis.verbs.works);
        Ok(oneread_kit::status(match self.fabric {
            Some(Fabric::Shm) => shm,
            Some(Fabric::Verbs) => verbs,
            Some(Fabric::Tcp) => diagnosis.tcp.works,
            None => shm || verbs,
        }))
    }
}

/// What is good and bad about a cluster.
#[cfg(feature = "cluster")]
fn cluster(
    reach: &crate::cluster::ClusterArgs,
    name: &oneread_cluster::etcd::ClusterName,
) -> Result<Vec<Finding>> {
    let what = format!("cluster {name}");
    let problems = crate::cluster::problems(reach, name)?;
    if problems.is_empty() {
        return Ok(vec![Finding::new(
            Level::Ok,
            what,
            "all nodes are good, and all shards have their copies",
        )]);
    }
    let found = problems.into_iter();
    Ok(found.map(|problem| Finding::new(Level::Problem, what.clone(), problem)).collect())
}

fn live(root: &Path) -> Result<Live> {
    // Another root stands for another machine. Its addresses are not known here.
    let addresses = if root == Path::new("/") { addresses()? } else { Vec::new() };
    Ok(Live {
        addresses,
        library_path: std::env::var_os("LD_LIBRARY_PATH"),
        // A server does the same.
        sealing_error: Region::create(&Backing::Anonymous, 4096).err().map(|error| error.to_string()),
    })
}

fn addresses() -> Result<Vec<InterfaceAddress>> {
    let found = if_addrs::get_if_addrs().context("asking for the addresses of network interfaces")?;
    let addresses = found.into_iter().map(|interface| {
        let (address, prefix) = match &interface.addr {
            if_addrs::IfAddr::V4(at) => (at.ip.into(), at.prefixlen),
            if_addrs::IfAddr::V6(at) => (at.ip.into(), at.prefixlen),
        };
        InterfaceAddress { interface: interface.name, address, prefix }
    });
    Ok(addresses.collect())
}

/// Finds out whether a server is there, and in which pages its table is.
fn server(address: &Address, token: Token, tls: Option<ClientTls>) -> Vec<Finding> {
    let options = ClientOptions::new().deadline(Duration::from_secs(1)).token(token).tls(tls);
    let finding = |level, found: String| Finding::new(level, "server", found);
    let elsewhere =
        format!("oneread serve --at shm:/tmp/oneread-{}.sock &", rustix::process::getuid().as_raw());
    let found = match Client::connect_with(address, options) {
        Ok(mut client) => {
            let pid = client.server_stats().map_or(0, |stats| stats.pid);
            let pages = client.region().map(|region| Pages::of(region, pid));
            let pages = pages.map(|pages| {
                Finding::new(Level::Ok, "its memory", format!("{} in huge pages", pages.told()))
            });
            let far = client.tcp_socket().map(|socket| far::look(socket));
            let far =
                far.map_or_else(Vec::new, |looked| match looked.and_then(|link| link.timed(&mut client)) {
                    Ok(link) => link.findings(),
                    Err(error) => vec![finding(Level::Warning, format!("its connection: {error:#}"))],
                });
            let there = once(finding(Level::Ok, format!("one answers at {address}")));
            return there.chain(pages).chain(far).collect();
        }
        Err(ConnectError::NotThere { source, .. }) if matches!(address, Address::Tcp(_)) => {
            finding(Level::Warning, format!("none at {address}: {source}"))
                .advice(format!("on that host: oneread serve --listen {address}"))
        }
        Err(ConnectError::NotThere { source, .. })
            if matches!(source.kind(), io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused) =>
        {
            let folder = address.socket().and_then(Path::parent).unwrap_or(Path::new("."));
            // A server makes the folder of a default address.
            let is_made = *address == Address::default_of_user() && !folder.exists();
            let folder = folder.parent().filter(|_| is_made).unwrap_or(folder);
            match rustix::fs::access(folder, rustix::fs::Access::WRITE_OK) {
                Ok(()) => finding(Level::Note, format!("none at {address}"))
                    .command(format!("oneread serve --at {address} &")),
                Err(error) => finding(
                    Level::Warning,
                    format!("none at {address}, and this user cannot start one there: {error}"),
                )
                .command(elsewhere),
            }
        }
        // Its address says where it is to be mended.
        Err(error) if matches!(address, Address::Tcp(_)) => {
            finding(Level::Warning, format!("{:#}", anyhow::Error::from(error)))
        }
        Err(error) => finding(Level::Warning, format!("{:#}", anyhow::Error::from(error))).command(elsewhere),
    };
    vec![found]
}

fn report(diagnosis: &Diagnosis<'_>, peer: Option<IpAddr>, wants_verbs: bool) -> Result<()> {
    // What works on every machine comes first.
    let verdicts = [("shm", &diagnosis.shm), ("tcp", &diagnosis.tcp), ("verbs", &diagnosis.verbs)];
    for (fabric, verdict) in verdicts {
        let answer = if verdict.works { "yes" } else { "no" };
        show::say(show::paragraph(&format!("{fabric}: {answer},"), &verdict.why))?;
    }
    let mut table = show::facts();
    for finding in &diagnosis.findings {
        let (mark, color) = look(finding.level);
        table.add_row(vec![
            Cell::new(mark).fg(color).add_attribute(Attribute::Bold),
            Cell::new(&finding.what),
            Cell::new(show::name(&finding.found)),
        ]);
    }
    keep_whole(&mut table, &[0, 1]);
    show::lay_out(table)?;
    for port in diagnosis.ports.iter().filter(|port| !port.ranking.is_empty()) {
        let towards = peer.map(|peer| format!(" towards {peer}")).unwrap_or_default();
        show::lay_out(format_args!("\nGIDs of {}{towards}, the best first:", show::bold(&port.name())))?;
        show::lay_out(gid_table(port))?;
    }
    let mut mends: Vec<_> =
        diagnosis.findings.iter().filter(|f| f.advice.is_some() || f.command.is_some()).collect();
    // Most machines have no RDMA, and most tables need none.
    let for_verbs = |finding: &&Finding| !wants_verbs && finding.stops_verbs.is_some();
    mends.sort_by_key(|finding| (for_verbs(finding), std::cmp::Reverse(finding.level)));
    for (at, finding) in mends.iter().enumerate() {
        if for_verbs(finding) && (at == 0 || !for_verbs(&mends[at - 1])) {
            show::lay_out(format_args!("\n{}", show::bold("For RDMA, if you want it:")))?;
        } else if at == 0 {
            show::lay_out(format_args!("\n{}", show::bold("What to do, the most pressing first:")))?;
        }
        let advice = finding.advice.as_deref().map(|advice| format!(": {advice}")).unwrap_or_default();
        let what = format!("{} ({}){advice}", finding.what, look(finding.level).0);
        show::say(show::paragraph(&format!("{:>2}.", at + 1), &what))?;
        if let Some(command) = &finding.command {
            show::say(format_args!("      {command}"))?;
        }
    }
    Ok(())
}

fn look(level: Level) -> (&'static str, Color) {
    match level {
        Level::Ok => ("ok", Color::Green),
        Level::Note => ("note", Color::Cyan),
        Level::Warning => ("warning", Color::Yellow),
        Level::Problem => ("problem", Color::Red),
    }
}

/// These columns are not wrapped; the others are.
fn keep_whole(table: &mut comfy_table::Table, columns: &[usize]) {
    for &column in columns {
        let width = table.column_max_content_widths()[column] + 2;
        if let Some(column) = table.column_mut(column) {
            column.set_constraint(ColumnConstraint::LowerBoundary(Width::Fixed(width)));
        }
    }
}

fn gid_table(port: &PortGids<'_>) -> comfy_table::Table {
    let mut table = show::table(["index", "GID", "interface", "why"]);
    let chosen = port.choice.as_ref().ok().and_then(|choice| choice.index);
    for ranked in &port.ranking {
        let entry = ranked.entry;
        let mut row = vec![
            show::number(entry.index),
            Cell::new(std::net::Ipv6Addr::from(entry.gid)),
            Cell::new(entry.netdev.as_deref().unwrap_or("")),
            Cell::new(&ranked.why),
        ];
        if chosen == Some(entry.index) {
            row = row.into_iter().map(|c| c.fg(Color::Green).add_attribute(Attribute::Bold)).collect();
        }
        table.add_row(row);
    }
    keep_whole(&mut table, &[0, 2]);
    table
}

fn report_json(facts: &Facts, diagnosis: &Diagnosis<'_>) -> serde_json::Value {
    let ports: Vec<_> = diagnosis
        .ports
        .iter()
        .map(|port| {
            let ranking: Vec<_> = port
                .ranking
                .iter()
                .map(|ranked| {
                    json!({
                        "index": ranked.entry.index,
                        "gid": std::net::Ipv6Addr::from(ranked.entry.gid),
                        "kind": ranked.entry.kind.to_string(),
                        "interface": ranked.entry.netdev,
                        "why": ranked.why,
                    })
                })
                .collect();
            let (index, why) = match &port.choice {
                Ok(choice) => (choice.index, choice.why.clone()),
                Err(error) => (None, error.to_string()),
            };
            json!({
                "device": port.device.name,
                "port": port.port.number,
                "gids": ranking,
                "found": port.choice.is_ok(),
                "index": index,
                "why": why,
            })
        })
        .collect();
    json!({
        "fabrics": { "shm": diagnosis.shm, "verbs": diagnosis.verbs, "tcp": diagnosis.tcp },
        "findings": diagnosis.findings,
        "ports": ports,
        "facts": facts,
    })
}
