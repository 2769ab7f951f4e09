//! `cluster roll`: one node after the other is started again, by a command of the operator's.
//!
//! Between two of them all must be well, twice in a row: each node good, each shard with its copies, and its primary says so
//! itself. At the first doubt it stops, and leaves the rest as it is.

use super::ClusterArgs;
use super::status::{Seen, called_so, look};
use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use oneread_cluster::core::state::NodeId;
use oneread_cluster::etcd::ClusterName;
use oneread_kit::show;
use oneread_kit::units::Period;
use std::process::ExitStatus;
use std::time::{Duration, Instant};

/// Between two looks, and between two lines of what is waited for.
const LOOK: Duration = Duration::from_millis(500);
const TELL: Duration = Duration::from_secs(5);
/// Looks in a row that must find all well.
const LOOKS: usize = 2;

#[derive(Debug, Args)]
#[command(after_help = "EXAMPLES
  oneread cluster roll demo --exec 'ssh {} systemctl restart oneread'
  oneread cluster roll demo n2 n3 --exec './upgrade {}'
      only these, in this order

The command is run by sh, on this host; {} is the node's name (`serve
--node-name`, by default its host's). It is to return when it has started the
node again. Before each node, and after the last one, this waits until each
node is good, each shard has all its copies in sync, and each primary says so.
It stops with status 1, and starts no other node, if the command fails, a node
does not come back in time, comes back as another one (its memory was lost), or
another node fails meanwhile. When that is mended, name the nodes that are left.")]
pub struct Roll {
    /// The cluster
    name: ClusterName,
    /// Only these nodes, in this order, by name or number [default: all, by name]
    nodes: Vec<String>,
    /// What starts a node again
    #[arg(long, value_name = "COMMAND")]
    exec: String,
    /// Longest time to wait for a node, and for all copies
    #[arg(long, value_name = "TIME", default_value = "10m")]
    within: Period,
}

/// A node that is to be started again.
struct Turn {
    id: NodeId,
    name: String,
    /// The life that must have ended.
    life: u64,
}

impl Roll {
    pub async fn run(self, reach: &ClusterArgs) -> Result<()> {
        ensure!(
            self.exec.contains("{}"),
            "the command does not say which node: write {{}} where its name is to stand"
        );
        let mut seen = self.until_well(reach, &[], None, "before the first node").await?;
        // Whoever was there has to be there after each turn, too: one that fails is deposed, and would not be missed.
        let all: Vec<NodeId> = seen.living().map(|(id, _)| id).collect();
        let turns = self.turns(&seen)?;
        let count = turns.len();
        for (done, id) in turns.into_iter().enumerate() {
            let (name, life) = key_of(&seen, id)?;
            let turn = Turn { id, name, life };
            show::say(format_args!("{}: starts again ({} of {count})", turn.name, done + 1))?;
            let begun = Instant::now();
            let ended = self.start_again(&turn.name).await?;
            ensure!(
                ended.success(),
                "the command for {} ended with {ended}; no other node is started again: see to this one, then name those that are left",
                turn.name
            );
            seen = self.until_well(reach, &all, Some(&turn), &format!("after {}", turn.name)).await?;
            show::say(format_args!(
                "{}: is back, with all copies, after {}",
                turn.name,
                show::time(begun.elapsed())
            ))?;
        }
        show::say(format_args!(
            "cluster {}: {} started again",
            self.name,
            show::counted(count as u64, "node")
        ))?;
        Ok(())
    }

    /// Which nodes, in order. Names stand for one node each.
    fn turns(&self, seen: &Seen) -> Result<Vec<NodeId>> {
        let mut all: Vec<(String, NodeId)> =
            seen.living().map(|(id, key)| (key.about.name.clone(), id)).collect();
        all.sort();
        for pair in all.windows(2) {
            ensure!(
                pair[0].0 != pair[1].0,
                "two nodes are called {:?}: the command could not tell them apart; start them with names of their own (`serve --node-name`)",
                pair[0].0
            );
        }
        if self.nodes.is_empty() {
            return Ok(all.into_iter().map(|(_, id)| id).collect());
        }
        let of = ("running node", &self.name);
        self.nodes.iter().map(|called| called_so(seen.living(), called, true, of)).collect()
    }

    async fn start_again(&self, name: &str) -> Result<ExitStatus> {
        // What stands for the name is one word, whatever is in it.
        let word = format!("'{}'", name.replace('\'', r"'\''"));
        let mut command = std::process::Command::new("sh");
        command.arg("-c").arg(self.exec.replace("{}", &word));
        // No runtime waits for it: nothing else is done meanwhile.
        command.status().context("starting sh")
    }

    /// Waits until all is well, all of these nodes are good, and this one is in another life. An error: it is not in time,
    /// or never will be.
    async fn until_well(
        &self,
        reach: &ClusterArgs,
        all: &[NodeId],
        turn: Option<&Turn>,
        when: &str,
    ) -> Result<Seen> {
        let begun = Instant::now();
        let (mut well, mut told) = (0, None::<Instant>);
        loop {
            let seen = look(reach, &self.name).await;
            let lacks = match &seen {
                Ok(seen) => {
                    if let Some(turn) = turn {
                        turn.check(seen)?;
                    }
                    let gone = || all.iter().find(|id| !seen.is_good(**id));
                    let gone = || gone().map(|id| format!("{} does not run", seen.called(*id)));
                    seen.lacks().or_else(gone).or_else(|| turn.and_then(|turn| turn.lacks(seen)))
                }
                Err(error) => Some(format!("{error:#}")),
            };
            match (lacks, seen) {
                (None, Ok(seen)) => {
                    well += 1;
                    if well == LOOKS {
                        return Ok(seen);
                    }
                }
                (lacks, _) => {
                    let lacks = lacks.unwrap_or_default();
                    well = 0;
                    ensure!(
                        begun.elapsed() < self.within.0,
                        "{when} not all is well after {}: {lacks}; no other node is started again",
                        show::time(self.within.0)
                    );
                    if told.is_none_or(|told| told.elapsed() >= TELL) {
                        told = Some(Instant::now());
                        show::complain(format_args!("oneread: {when}: waiting: {lacks}"));
                    }
                }
            }
            tokio::time::sleep(LOOK).await;
        }
    }
}

fn key_of(seen: &Seen, id: NodeId) -> Result<(String, u64)> {
    let key = seen.living().find(|(other, _)| *other == id).map(|(_, key)| key);
    let key = key.with_context(|| format!("node {id} is gone"))?;
    Ok((key.about.name.clone(), key.life))
}

impl Turn {
    /// Whether it can come back as it was.
    fn check(&self, seen: &Seen) -> Result<()> {
        let other = seen.living().find(|(id, key)| *id != self.id && key.about.name == self.name);
        if let Some((id, _)) = other {
            bail!(
                "{} came back as another node ({id}): its memory was lost. No other node is started again: see whether its region \
                 file outlives a start, have the old one forgotten (`oneread cluster forget`), then name the nodes that are left",
                self.name
            );
        }
        Ok(())
    }

    /// What is missing until it is back.
    fn lacks(&self, seen: &Seen) -> Option<String> {
        let is_back = seen.living().any(|(id, key)| id == self.id && key.life > self.life);
        (!is_back).then(|| format!("{} has not begun again", self.name))
    }
}
