//! `oneread kv-indexer` in a process of its own, which is killed.

use anyhow::{Context, Result, ensure};
use oneread_kit::folder::Folder;
use rustix::process::Pid;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

/// An indexer in a child process. Killed when dropped.
pub struct IndexerChild {
    child: Child,
    url: String,
    arguments: Vec<String>,
    folder: Folder,
}

impl IndexerChild {
    /// Starts one with a table of its own, which takes so many bytes at most.
    pub fn spawn(bytes: u64) -> Result<IndexerChild> {
        let folder = Folder::in_memory()?;
        let arguments = vec![
            "--listen=127.0.0.1:0".into(),
            format!("--table=shm:{}", folder.join("sock").display()),
            format!("--region={}", folder.join("region").display()),
            format!("--max-memory={}MiB", bytes.div_ceil(1 << 20)),
        ];
        let child = start(&arguments)?;
        folder.began(&child);
        let mut indexer = IndexerChild { child, url: String::new(), arguments, folder };
        indexer.is_ready()?;
        Ok(indexer)
    }

    fn is_ready(&mut self) -> Result<()> {
        let stdout = self.child.stdout.take().context("the indexer's output")?;
        let mut line = String::new();
        BufReader::new(stdout).read_line(&mut line).context("waiting for the indexer")?;
        ensure!(!line.is_empty(), "the indexer's process did not start; it says why above");
        let ready: serde_json::Value = serde_json::from_str(&line).context("the indexer's first line")?;
        self.url = ready["url"].as_str().context("the indexer's first line names no URL")?.to_owned();
        Ok(())
    }

    /// Kills the process. Returns when it is gone.
    pub fn kill(&mut self) -> Result<()> {
        self.child.kill().context("killing the indexer's process")?;
        self.child.wait().context("waiting for the indexer's process")?;
        self.folder.ended(&self.child);
        Ok(())
    }

    /// Starts another one over the table of one that was killed. Returns when it answers.
    pub fn restart(&mut self) -> Result<()> {
        self.child = start(&self.arguments)?;
        self.folder.began(&self.child);
        self.is_ready()
    }

    /// Where it answers.
    pub fn url(&self) -> &str {
        &self.url
    }

    pub fn pid(&self) -> Pid {
        Pid::from_child(&self.child)
    }
}

fn start(arguments: &[String]) -> Result<Child> {
    let program = std::env::current_exe().context("finding this program's own file")?;
    Command::new(program)
        .args(["kv-indexer", "--die-with-parent", "--json"])
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .context("starting an indexer's process")
}

impl Drop for IndexerChild {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Memory of a process that is its alone, and of the system's shared memory: what a table in `/dev/shm` takes.
pub fn memory_of(pid: Pid) -> Result<u64> {
    let path = format!("/proc/{}/status", pid.as_raw_nonzero());
    let status = std::fs::read_to_string(&path).with_context(|| format!("reading {path}"))?;
    let mut kib = 0;
    for name in ["RssAnon:", "RssShmem:"] {
        let line = status.lines().find_map(|line| line.strip_prefix(name));
        let line = line.with_context(|| format!("{path} does not tell {name} it needs Linux 4.5"))?;
        kib +=
            line.trim().trim_end_matches("kB").trim().parse::<u64>().with_context(|| format!("{line:?}"))?;
    }
    Ok(kib << 10)
}
