//! The processes that read for `bench grow`, and the CPUs that they and the servers run on.

use super::reader::{NO_STEP, Page, Told};
use super::seen::StepReport;
use crate::measure::cpus;
use anyhow::{Context, Result, ensure};
use oneread::Server;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

/// Processes that read.
pub const READERS: usize = 2;

/// A reader answers within this time when a step ends.
pub const ANSWER_MAX: Duration = Duration::from_secs(60);

/// The processes that read. They end with their guard, or with this process.
pub struct Readers {
    pub children: Vec<Child>,
    pub reports: mpsc::Receiver<Result<StepReport>>,
}

impl Readers {
    /// Returns when all have connected.
    pub fn start(page: &Page, tables: &[Server; 2], cpus: &Cpus) -> Result<Readers> {
        let program = std::env::current_exe().context("finding this program's own file")?;
        let (sender, reports) = mpsc::channel();
        let mut readers = Readers { children: Vec::new(), reports };
        for number in 0..READERS {
            let mut command = Command::new(&program);
            command.args(["bench", "grow-reader"]);
            command.arg(format!("--growing={}", tables[0].address()));
            command.arg(format!("--fixed={}", tables[1].address()));
            command.arg(format!("--number={number}"));
            if let Some(cpus) = cpus.readers.get(number) {
                command.arg(format!("--cpus={cpus}"));
            }
            let command = command.stdin(page.to_hand_over()?).stdout(Stdio::piped());
            let mut child = command.spawn().context("starting a reader")?;
            let lines = BufReader::new(child.stdout.take().context("a reader's output")?).lines();
            readers.children.push(child);
            let sender = sender.clone();
            std::thread::spawn(move || {
                for line in lines {
                    let report = line.map_err(anyhow::Error::from);
                    let report = report.and_then(|line| Ok(serde_json::from_str(&line)?));
                    if sender.send(report).is_err() {
                        return;
                    }
                }
                let _ = sender.send(Err(anyhow::anyhow!("a reader has ended; it says why above")));
            });
        }
        for _ in 0..READERS {
            readers.report()?;
        }
        Ok(readers)
    }

    pub fn report(&self) -> Result<StepReport> {
        self.reports.recv_timeout(ANSWER_MAX).context("waiting for a reader")?
    }

    pub fn end(mut self, page: &Page) -> Result<()> {
        page.tell(Told::Step, NO_STEP);
        for child in &mut self.children {
            let status = child.wait().context("waiting for a reader")?;
            ensure!(
                status.success(),
                "a reading process ended by {status}; run the bench again, with more memory if the system killed it"
            );
        }
        Ok(())
    }
}

impl Drop for Readers {
    fn drop(&mut self) {
        for child in &mut self.children {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// On which CPUs servers and readers run.
pub struct Cpus {
    pub server: Option<Vec<usize>>,
    /// Those of each reader.
    pub readers: Vec<usize>,
}

impl Cpus {
    /// Each reader has one of its own, if there are enough; of two, the readers share one.
    pub fn chosen() -> Result<Cpus> {
        Ok(Cpus::of(&cpus()?))
    }

    pub fn of(all: &[usize]) -> Cpus {
        match *all {
            [] | [_] => Cpus { server: None, readers: Vec::new() },
            [one, other] => Cpus { server: Some(vec![one]), readers: vec![other; READERS] },
            _ => {
                let (server, readers) = all.split_at(all.len() - READERS);
                Cpus { server: Some(server.to_vec()), readers: readers.to_vec() }
            }
        }
    }
}

impl std::fmt::Display for Cpus {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match (&self.server, &self.readers[..]) {
            (Some(server), [one, other]) if one == other => {
                write!(f, "servers on CPU {}, both readers on CPU {one}: there are two", server[0])
            }
            (Some(server), [one, other]) => {
                let server: Vec<_> = server.iter().map(usize::to_string).collect();
                write!(f, "servers on CPU {}, readers on CPUs {one} and {other}", server.join(", "))
            }
            _ => write!(f, "servers and readers share the one CPU: latencies mean little"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Servers and readers disturb each other as little as there are CPUs, and that is told.
    #[test]
    fn cpus_are_shared_out() {
        let told = |all: &[usize]| {
            let cpus = Cpus::of(all);
            (cpus.server.clone(), cpus.readers.clone(), cpus.to_string())
        };
        let few = "servers and readers share the one CPU: latencies mean little";
        assert_eq!(told(&[5]), (None, vec![], few.into()));
        let two = "servers on CPU 3, both readers on CPU 5: there are two";
        assert_eq!(told(&[3, 5]), (Some(vec![3]), vec![5, 5], two.into()));
        let many = "servers on CPU 1, 3, 5, readers on CPUs 7 and 9";
        assert_eq!(told(&[1, 3, 5, 7, 9]), (Some(vec![1, 3, 5]), vec![7, 9], many.into()));
    }
}
