//! What `bench rpc` found: a line for each operation, path and number of connections.

use crate::measure::{KEY_BYTES, VALUE_BYTES, latencies, median, quantile, told, told_ns};
use anyhow::Result;
use comfy_table::Cell;
use hdrhistogram::Histogram;
use oneread_kit::show;
use serde::Serialize;

/// The operation that is timed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Operation {
    Get,
    Put,
    /// A batch of PUTs.
    PutMany,
}

impl Operation {
    pub fn name(self) -> &'static str {
        match self {
            Operation::Get => "GET",
            Operation::Put => "PUT",
            Operation::PutMany => "PUTs",
        }
    }
}

/// How an operation reaches the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Path {
    OneSided,
    Message,
    Mailbox,
    Herd,
}

impl Path {
    pub fn name(self) -> &'static str {
        match self {
            Path::OneSided => "one-sided",
            Path::Message => "message",
            Path::Mailbox => "mailbox",
            Path::Herd => "HERD",
        }
    }
}

/// One path at one number of connections. The names are those of the JSON output.
#[derive(Debug, Serialize)]
pub struct Line {
    pub operation: Operation,
    pub path: Path,
    pub connections: u32,
    /// Median over the rounds.
    pub ops_per_s: f64,
    /// The best round.
    pub best_ops_per_s: f64,
    /// The ratio to one-sided GETs in the same rounds.
    pub ratio: Option<f64>,
    /// The ratio to the same operation by message: the median of the ratios round by round.
    pub of_message: Option<f64>,
    /// Over all rounds; null if no operation ended. For batches, the latency of a batch.
    pub p50_ns: Option<u64>,
    pub p99_ns: Option<u64>,
    /// CPU time of the server's process per million operations; null if the server is not a child
    /// of this process.
    pub server_cpu_ms: Option<f64>,
    pub reads_per_op: Option<f64>,
    /// Requests that HERD's client wrote again, in all rounds together.
    pub repeats: u64,
}

#[derive(Debug, Serialize)]
pub struct Outcome {
    pub machine: String,
    pub fabric: &'static str,
    pub layout: String,
    pub keys: u64,
    pub rounds: u32,
    pub seconds: f64,
    pub block: bool,
    /// Queue pairs that the clients share.
    pub pairs: Option<u16>,
    pub batch: u32,
    pub workers: Option<usize>,
    pub lines: Vec<Line>,
}

impl Outcome {
    /// What was measured, in one line.
    pub fn about(&self) -> String {
        format!(
            "{} of {KEY_BYTES} bytes with values of {VALUE_BYTES}, {}{}{}; layout {}, median of {}",
            show::counted(self.keys, "key"),
            self.fabric,
            match (self.fabric, self.block) {
                ("shm", _) => "",
                (_, true) => ", clients that sleep",
                (_, false) => ", clients that poll",
            },
            match (self.fabric, self.pairs) {
                ("shm", _) | (_, None) => String::new(),
                (_, Some(1)) => ", one queue pair for all READs".into(),
                (_, Some(pairs)) => format!(", {pairs} queue pairs for all READs"),
            },
            self.layout,
            show::counted(self.rounds.into(), "round")
        )
    }
}

/// The results of one or several rounds.
pub struct Tally {
    pub operations: u64,
    /// The rate of each round.
    pub rates: Vec<f64>,
    pub latencies: Histogram<u64>,
    pub cpu_ms: Option<f64>,
    pub reads: u64,
    pub repeats: u64,
}

impl Tally {
    pub fn new() -> Result<Tally> {
        Ok(Tally {
            operations: 0,
            rates: Vec::new(),
            latencies: latencies()?,
            cpu_ms: None,
            reads: 0,
            repeats: 0,
        })
    }

    pub fn add(&mut self, other: &Tally) -> Result<()> {
        self.operations += other.operations;
        self.rates.extend(&other.rates);
        self.latencies.add(&other.latencies)?;
        self.cpu_ms = match (self.cpu_ms, other.cpu_ms) {
            (Some(a), Some(b)) => Some(a + b),
            (a, b) => a.or(b),
        };
        self.reads += other.reads;
        self.repeats += other.repeats;
        Ok(())
    }

    pub fn rate(&self) -> f64 {
        median(self.rates.clone())
    }

    pub fn line(
        &self,
        (operation, path): (Operation, Path),
        connections: u32,
        base: f64,
        message: Option<&Tally>,
    ) -> Line {
        let per = |n: f64| (self.operations > 0).then(|| n / self.operations as f64);
        Line {
            operation,
            path,
            connections,
            ops_per_s: self.rate(),
            best_ops_per_s: self.rates.iter().copied().fold(0.0, f64::max),
            ratio: (base > 0.0).then(|| self.rate() / base),
            of_message: message
                .filter(|m| m.rates.iter().all(|rate| *rate > 0.0))
                .map(|m| median(self.rates.iter().zip(&m.rates).map(|(a, b)| a / b).collect())),
            p50_ns: quantile(&self.latencies, 0.5),
            p99_ns: quantile(&self.latencies, 0.99),
            server_cpu_ms: self.cpu_ms.and_then(|ms| per(1e6 * ms)),
            reads_per_op: per(self.reads as f64),
            repeats: self.repeats,
        }
    }
}

pub fn table(lines: &[Line]) -> comfy_table::Table {
    // Heads of some lines, so that it fits into 80 columns.
    let heads = [
        "conn.",
        "opera-\ntion",
        "by",
        "opera-\ntions",
        "to GET\nby READ",
        "to\nmsg.",
        "latency\np50",
        "latency\np99",
        "server\nCPU\nper op.",
        "READs\nper\nop.",
    ];
    let mut last = 0;
    let mut table = show::rows(heads, lines, |line| {
        let is_same = std::mem::replace(&mut last, line.connections) == line.connections;
        [
            show::number(if is_same { String::new() } else { line.connections.to_string() }),
            Cell::new(line.operation.name()),
            show::head(line.path.name()),
            show::number(show::rate(line.ops_per_s)),
            show::number(told(line.ratio, |ratio| format!("{ratio:.2}"))),
            show::number(told(line.of_message, |ratio| format!("{ratio:.2}"))),
            show::number(told_ns(line.p50_ns)),
            show::number(told_ns(line.p99_ns)),
            // Milliseconds per million are nanoseconds each.
            show::number(told(line.server_cpu_ms, show::nanos)),
            show::number(told(line.reads_per_op, |reads| format!("{reads:.3}"))),
        ]
    });
    table.column_iter_mut().for_each(|column| {
        column.set_padding((0, 1));
    });
    table
}

/// What the heads of the table mean.
pub const HEADS: &str = "conn.: connections, each of which asks for one thing after the other. to GET by READ, to msg.: \
the rate, as a multiple of that of one-sided GETs, and of the same operation by message. PUTs: batches; their \
latency is that of a batch. -: not measured.";

#[cfg(test)]
pub mod tests {
    use super::*;

    pub fn line(operation: Operation, path: Path, connections: u32) -> Line {
        let mut tally = Tally::new().unwrap();
        tally.add(&round(2_000.0, Some(3.0))).unwrap();
        tally.line((operation, path), connections, 1_000.0, None)
    }

    pub fn outcome(lines: Vec<Line>) -> Outcome {
        Outcome {
            machine: "a machine".into(),
            fabric: "verbs",
            layout: "cuckoo:pilaf".into(),
            keys: 5_000,
            rounds: 3,
            seconds: 1.0,
            block: false,
            pairs: None,
            batch: 8,
            workers: None,
            lines,
        }
    }

    /// A round of 10 operations, five of 1 us and five of 2 ms.
    fn round(rate: f64, cpu_ms: Option<f64>) -> Tally {
        let mut tally = Tally::new().unwrap();
        (tally.operations, tally.rates, tally.cpu_ms) = (10, vec![rate], cpu_ms);
        (tally.reads, tally.repeats) = (11, 2);
        tally.latencies.record_n(1_000, 5).unwrap();
        tally.latencies.record_n(2_000_000, 5).unwrap();
        tally
    }

    /// Counts of rounds add up. Rates are those of the median and of the best round, and ratios are those
    /// of the median round, or the median of the rounds' own.
    #[test]
    fn rounds_add_up() {
        let [mut tally, mut message] = [(); 2].map(|()| Tally::new().unwrap());
        for (rate, of_message, cpu) in
            [(200.0, 100.0, None), (800.0, 100.0, Some(0.5)), (600.0, 50.0, Some(1.0))]
        {
            tally.add(&round(rate, cpu)).unwrap();
            message.add(&round(of_message, None)).unwrap();
        }
        let line = tally.line((Operation::Get, Path::Herd), 4, 300.0, Some(&message));
        assert_eq!((line.ops_per_s, line.best_ops_per_s, line.ratio), (600.0, 800.0, Some(2.0)));
        assert_eq!((line.of_message, line.server_cpu_ms), (Some(8.0), Some(50_000.0)));
        assert_eq!((line.reads_per_op, line.repeats), (Some(1.1), 6));
        assert_eq!((line.p50_ns, line.p99_ns.map(|ns| ns / 10_000)), (Some(1_000), Some(200)));
        let shown =
            show::cells(&table(&[line, message.line((Operation::PutMany, Path::Message), 4, 100.0, None)]));
        let head = ["4", "GET", "HERD", "600 /s", "2.00", "8.00", "1 µs", "2.00 ms", "50 µs", "1.100"];
        assert_eq!(shown[0], head);
        assert_eq!(shown[1], ["", "PUTs", "message", "100 /s", "1.00", "-", "1 µs", "2.00 ms", "-", "1.100"]);
    }

    /// Where no operation ended, nothing is told of latencies.
    #[test]
    fn rounds_without_an_operation_have_no_figures() {
        let mut tally = Tally::new().unwrap();
        (tally.rates, tally.cpu_ms) = (vec![0.0], Some(3.0));
        let line = tally.line((Operation::Put, Path::Message), 1, 0.0, Some(&tally));
        let shown = show::cells(&table(&[line]));
        assert_eq!(shown[0][4..], ["-"; 6]);
    }

    /// The line above the results names what makes a difference, and nothing that makes none.
    #[test]
    fn what_was_measured_is_told() {
        let mut found = outcome(Vec::new());
        let mut told = |fabric, block, pairs| {
            (found.fabric, found.block, found.pairs) = (fabric, block, pairs);
            found.about()
        };
        let sizes = format!("5,000 keys of {KEY_BYTES} bytes with values of {VALUE_BYTES}, ");
        for (fabric, block, pairs, middle) in [
            ("shm", true, Some(2), "shm"),
            ("verbs", false, None, "verbs, clients that poll"),
            ("verbs", true, Some(1), "verbs, clients that sleep, one queue pair for all READs"),
            ("verbs", true, Some(2), "verbs, clients that sleep, 2 queue pairs for all READs"),
        ] {
            let all = format!("{sizes}{middle}; layout cuckoo:pilaf, median of 3 rounds");
            assert_eq!(told(fabric, block, pairs), all);
        }
    }
}
