//! `plan`: which resource binds, for layouts and rival designs side by side.

use super::calibrate::Calibration;
use crate::arguments::{self, whole};
use crate::measure::on_all_cpus;
use crate::page::{Drawn, page};
use crate::plan::{
    Arrivals, COSTS, ClusterPlan, ClusterWorkload, Design, GrowthSample, Held, Measured, PUBLISHED,
    PlanError, Prediction, Profile, Run, SHIPPED, Sample, Side, System, Verdict, Workload, rivals,
};
use crate::plot;
use anyhow::{Context, Result, bail};
use clap::Args;
use comfy_table::{Attribute, Cell};
use oneread::internals::families::presets;
use oneread::layout::Layout;
use oneread_kit::progress::Progress;
use oneread_kit::show;
use oneread_kit::units::{ByteSize, Period, some_bytes, some_time};
use serde::Serialize;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Predict throughput, latency and what binds, before anything is built
#[derive(Debug, Args)]
#[command(after_help = "EXAMPLES
  oneread plan --keys 1e9 --key 16 --value 100 --get 0.95 --zipf 0.99 \\
      --nic cx6-200g --servers 4 --clients 64
  oneread plan --clients 1024 --design windowed:8 --design HERD
  oneread plan --nic mine.toml          your own hardware: --show-profile NAME
                                        prints a profile to change
  oneread plan --calibrate > mine.toml  this machine, shm, beside what it does
  oneread plan --published              the model against what papers report
  oneread plan --inserts 1 --growing    tables that grow by every PUT
  oneread plan --simulate 1e6           tails, by running it event by event
  oneread plan --nodes 10 --copies 2 --clients 100
                                        a cluster over etcd: memory, load, times
  oneread plan --plot plan.html         bottlenecks and curves
  oneread plan --json

READs are counted on a sample table of each layout, after two deletes and two
inserts for each key; with hints, after six GETs of each. With --growing they
are counted while a table grows fourfold, at 200,000 inserts a second. The
rest is arithmetic: docs/MODEL.md does it by hand. Rivals are as their papers
describe them.")]
pub struct Plan {
    /// Keys in all servers together
    #[arg(long, value_name = "N", default_value = "1e8", value_parser = whole)]
    keys: u64,
    /// Bytes of a key
    #[arg(long, value_name = "BYTES", default_value = "16", value_parser = whole)]
    key: u64,
    /// Bytes of a value
    #[arg(long, value_name = "BYTES", default_value = "32", value_parser = whole)]
    value: u64,
    /// GETs, as a share of the operations; the others are PUTs
    #[arg(long, value_name = "SHARE", default_value_t = 0.95)]
    get: f64,
    /// GETs that find their key, as a share of the GETs
    #[arg(long, value_name = "SHARE", default_value_t = 1.0)]
    hits: f64,
    /// PUTs of new keys, as a share of the PUTs; as many keys are deleted, unless --growing
    #[arg(long, value_name = "SHARE", default_value_t = 0.0)]
    inserts: f64,
    /// No key is deleted: tables grow by splits, and are told of as they are at --keys
    #[arg(long, requires = "inserts", conflicts_with = "load")]
    growing: bool,
    /// How uneven the keys' popularity is: 0 for all alike, 0.99 as in YCSB
    #[arg(long, value_name = "EXPONENT", default_value_t = 0.99)]
    zipf: f64,
    /// The hardware: a profile's name, or a TOML file
    #[arg(long, value_name = "NAME|FILE", default_value = "cx6-200g", value_parser = arguments::profile())]
    nic: String,
    /// Server machines
    #[arg(long, value_name = "N", default_value_t = 1)]
    servers: u32,
    /// Cores that each server may spend [default: the profile's]
    #[arg(long, value_name = "N")]
    server_cores: Option<f64>,
    /// Client threads
    #[arg(long, value_name = "N", default_value_t = 64)]
    clients: u32,
    /// Client threads of one machine
    #[arg(long, value_name = "N", default_value_t = 16)]
    per_machine: u32,
    /// Operations that one client has in flight
    #[arg(long, value_name = "N", default_value_t = 8)]
    depth: u32,
    /// Memory that each client machine may spend on a copy of everything, or on hints, in GiB
    #[arg(long, value_name = "GIB", default_value_t = 1.0)]
    copy_gib: f64,
    /// Keys per main slot in percent [default: each layout's design load]
    #[arg(long, value_name = "PERCENT")]
    load: Option<f64>,
    /// Only this layout or rival (repeatable)
    #[arg(long, value_name = "NAME", value_parser = arguments::design(), hide_possible_values = true)]
    design: Vec<String>,
    /// Main slots of the sample tables
    #[arg(long, value_name = "N", default_value = "65536", value_parser = whole)]
    sample_slots: u64,
    /// Simulate so many operations of the best designs, and print rates and tails
    #[arg(long, value_name = "N", value_parser = whole)]
    simulate: Option<u64>,
    /// Seed of the simulation
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Draw bottlenecks, throughput against clients and latency against load into this HTML page
    #[arg(long, value_name = "FILE.html", value_parser = plot::html_file, value_hint = clap::ValueHint::FilePath)]
    plot: Option<PathBuf>,
    /// Plan a cluster of so many nodes instead, for --keys of --key and --value bytes; --clients are
    /// processes then, each of which watches etcd
    #[arg(long, value_name = "N", help_heading = CLUSTER, conflicts_with_all = [
        "get", "hits", "inserts", "growing", "zipf", "nic", "servers", "server_cores", "per_machine", "depth",
        "copy_gib", "load", "design", "sample_slots", "simulate", "seed", "plot", "published", "calibrate",
        "show_profile",
    ])]
    nodes: Option<u32>,
    /// Nodes that have a copy of a shard
    #[arg(long, value_name = "N", default_value_t = 2, requires = "nodes", help_heading = CLUSTER)]
    copies: u8,
    /// Parts that the keys are in
    #[arg(long, value_name = "N", default_value_t = 64, requires = "nodes", help_heading = CLUSTER)]
    shards: u16,
    /// How long a node may be silent until others take over; it beats eight times in that
    #[arg(long, value_name = "TIME", value_parser = some_time, default_value = "2s", requires = "nodes", help_heading = CLUSTER)]
    ttl: Period,
    /// Bytes a second at which nodes copy shards, as in 100MiB: tells how long that takes
    #[arg(long, value_name = "SIZE", value_parser = some_bytes, requires = "nodes", help_heading = CLUSTER)]
    copy_rate: Option<ByteSize>,
    /// Print everything as JSON
    #[arg(long)]
    json: bool,
    /// Print the predictions of published figures
    #[arg(long)]
    published: bool,
    /// Measure this machine, print it as a profile, and the model's GETs over shm beside real ones
    #[arg(long)]
    calibrate: bool,
    /// Print a shipped profile as TOML
    #[arg(long, value_name = "NAME", value_parser = arguments::profile(), hide_possible_values = true)]
    show_profile: Option<String>,
}

/// Above the options of clusters.
const CLUSTER: &str = "Options for a cluster";

/// The layouts that are counted unless --design names others: `list` and `slotwise` are for study.
const USUAL: [&str; 6] = ["windowed:8", "windowed:16", "bucketized:4", "bucketized:8", "cluster", "farm"];

/// Everything that was found, as JSON.
#[derive(Serialize)]
struct Planned<'a> {
    workload: &'a Workload,
    profile: &'a Profile,
    samples: &'a [CountedLayout],
    designs: &'a [Design],
    predictions: &'a [Prediction],
    choice: Option<&'a Verdict>,
    left_out: &'a [String],
    simulated: &'a [Simulated],
}

/// A cluster, as JSON.
#[derive(Serialize)]
struct PlannedCluster<'a> {
    workload: &'a ClusterWorkload,
    cluster: &'a ClusterPlan,
}

/// A design's run with the workload's clients.
#[derive(Serialize)]
struct Simulated {
    name: String,
    laws_ops_per_s: f64,
    #[serde(flatten)]
    measured: Measured,
}

/// What was counted of a layout: at rest, or while it grows.
#[derive(Serialize)]
#[serde(untagged)]
enum CountedLayout {
    AtRest(Sample),
    Growing(GrowthSample),
}

impl CountedLayout {
    fn count(
        layout: Layout,
        slots: u64,
        load: Option<f64>,
        workload: &Workload,
    ) -> Result<CountedLayout, PlanError> {
        if !workload.grows {
            return Sample::count(layout, slots, load, workload.zipf).map(CountedLayout::AtRest);
        }
        // The clients of one machine share their hints.
        let inserts = (1.0 - workload.gets) * workload.inserts;
        let gets = workload.gets / inserts / f64::from(workload.machines());
        GrowthSample::count(layout, slots, workload.zipf, gets).map(CountedLayout::Growing)
    }

    fn layout(&self) -> &str {
        match self {
            CountedLayout::AtRest(sample) => &sample.layout,
            CountedLayout::Growing(sample) => &sample.layout,
        }
    }

    /// Without hints and, over a network, with them.
    fn designs(&self, system: &System) -> Result<Vec<Design>, PlanError> {
        let mut designs = match self {
            CountedLayout::AtRest(sample) => {
                let plain = sample.design(&system.workload)?;
                [Some(plain), sample.hinted_design(&system.workload)?].into_iter().flatten().collect()
            }
            CountedLayout::Growing(sample) => sample.designs(&system.workload)?,
        };
        if system.profile.nic.is_none() {
            designs.truncate(1);
        }
        Ok(designs)
    }
}

impl Plan {
    pub fn run(self) -> Result<ExitCode> {
        if let Some(name) = &self.show_profile {
            let shipped = SHIPPED.iter().find(|(known, _)| known == name);
            let (_, text) = shipped.ok_or_else(|| PlanError::UnknownProfile { given: name.clone() })?;
            show::say(text.trim_end())?;
            return Ok(ExitCode::SUCCESS);
        }
        if self.calibrate {
            let bar = Progress::of_unknown("calibrating", "steps");
            let calibration = Calibration::measure(|what| {
                bar.set_message(what);
                bar.inc(1);
            })?;
            bar.finish();
            show::pretty(self.json, &calibration, || show::say(calibration.toml().trim_end()))?;
            return Ok(ExitCode::SUCCESS);
        }
        if self.published {
            return self.say_published();
        }
        if let Some(nodes) = self.nodes {
            return self.say_cluster(nodes);
        }
        let workload = self.workload()?;
        let mut profile = profile(&self.nic)?;
        if let Some(cores) = self.server_cores {
            if !(0.001..=1e6).contains(&cores) {
                bail!(
                    "--server-cores {cores} is not within 0.001 to 1000000; give the cores that the server may use"
                );
            }
            profile.host.cores.value = cores;
            profile.host.cores.source = "--server-cores".into();
        }
        let system = System::new(workload, profile)?;
        let (layouts, rivals) = self.chosen(&system.workload)?;
        let samples = self.count(&layouts, &system.workload)?;
        let (mut designs, mut left_out) = (Vec::new(), Vec::new());
        for sample in &samples {
            match sample.designs(&system) {
                Ok(more) => designs.extend(more),
                Err(error) => left_out.push(format!("{}: {error}", sample.layout())),
            }
        }
        designs.extend(rivals);
        let predictions: Vec<Prediction> = designs.iter().map(|design| system.predict(design)).collect();
        let choice = Verdict::of(&system, &designs, &predictions);
        let shown = shown(&predictions, choice.as_ref());
        let mut simulated = Vec::new();
        if let Some(operations) = self.simulate {
            let bar = Progress::of(operations * shown.len() as u64, "simulating", "operations");
            for &i in &shown {
                let run = Run { operations, arrivals: Arrivals::Closed, seed: self.seed };
                let measured = system.simulate(&designs[i], run, |done| bar.inc(done))?;
                let name = designs[i].name.clone();
                simulated.push(Simulated { name, laws_ops_per_s: predictions[i].ops_per_s, measured });
            }
            bar.finish();
        }
        plot::write(self.plot.as_deref(), || {
            let drawn = self.draw(&system, &designs, &predictions, &shown)?;
            let reasons = choice.as_ref().map_or(&[][..], |choice| &choice.reasons[..]);
            let rows = designs.iter().zip(&predictions).map(|(design, p)| row(design, p)).collect();
            let chosen = choice.as_ref().map(|choice| choice.best);
            page(&system, rows, chosen, &drawn, reasons, &heads(&system))
        })?;
        let planned = Planned {
            workload: &system.workload,
            profile: &system.profile,
            samples: &samples,
            designs: &designs,
            predictions: &predictions,
            choice: choice.as_ref(),
            left_out: &left_out,
            simulated: &simulated,
        };
        show::pretty(self.json, &planned, || {
            say(&system, &predictions, choice.as_ref(), &left_out)?;
            if !simulated.is_empty() {
                show::say("")?;
                show::lay_out(simulations(&simulated))?;
            }
            Ok::<_, anyhow::Error>(())
        })?;
        Ok(ExitCode::SUCCESS)
    }

    fn say_cluster(&self, nodes: u32) -> Result<ExitCode> {
        let workload = ClusterWorkload {
            entries: self.keys,
            key_bytes: self.key,
            value_bytes: self.value,
            nodes,
            copies: self.copies,
            shards: self.shards,
            clients: self.clients,
            ttl_s: self.ttl.0.as_secs_f64(),
            copy_bytes_per_s: self.copy_rate.map(|rate| rate.0),
        };
        let plan = workload.plan()?;
        show::pretty(self.json, &PlannedCluster { workload: &workload, cluster: &plan }, || {
            show::say(format_args!(
                "{} of {} bytes with values of {}; {} of {}\n{}, {}, TTL {}",
                show::counted(workload.entries, "key"),
                workload.key_bytes,
                workload.value_bytes,
                show::counted(workload.shards.into(), "shard"),
                if workload.copies == 1 { "1 copy".into() } else { format!("{} copies", workload.copies) },
                show::counted(nodes.into(), "node"),
                show::counted(workload.clients.into(), "client"),
                show::time(self.ttl.0),
            ))?;
            show::lay_out(cluster_table(&plan))?;
            show::say(show::paragraph("", CLUSTER_TABLE))?;
            if !plan.advice.is_empty() {
                show::say("")?;
            }
            plan.advice.iter().try_for_each(|advice| show::say(show::paragraph("", advice)))
        })?;
        Ok(ExitCode::SUCCESS)
    }

    fn workload(&self) -> Result<Workload> {
        if !(0.0..=1e6).contains(&self.copy_gib) {
            bail!(
                "--copy-gib {} is not within 0 to 1000000; give the GiB that a client machine has for a copy",
                self.copy_gib
            );
        }
        Ok(Workload {
            keys: self.keys,
            key_bytes: self.key,
            value_bytes: self.value,
            gets: self.get,
            hits: self.hits,
            inserts: self.inserts,
            grows: self.growing,
            zipf: self.zipf,
            servers: self.servers,
            clients: self.clients,
            clients_per_machine: self.per_machine,
            depth: self.depth,
            copy_bytes: (self.copy_gib * f64::from(1 << 30)) as u64,
        })
    }

    /// The layouts to count, and the rivals.
    fn chosen(&self, workload: &Workload) -> Result<(Vec<Layout>, Vec<Design>)> {
        let mut rivals = rivals(workload);
        if self.design.is_empty() {
            let usual = presets().filter(|preset| USUAL.contains(&preset.name));
            return Ok((usual.map(|preset| preset.layout).collect(), rivals));
        }
        let known: Vec<String> = rivals.iter().map(|rival| rival.name.clone()).collect();
        // "farm" is the layout of this crate; "FaRM" is the paper's.
        let (names, layouts): (Vec<&String>, Vec<&String>) =
            self.design.iter().partition(|name| known.contains(name));
        rivals.retain(|rival| names.contains(&&rival.name));
        let layouts = layouts.into_iter().map(|name| {
            name.parse().with_context(|| format!("no rival {name:?} either; there are: {}", known.join(", ")))
        });
        Ok((layouts.collect::<Result<_>>()?, rivals))
    }

    /// Counts the samples.
    fn count(&self, layouts: &[Layout], workload: &Workload) -> Result<Vec<CountedLayout>> {
        let bar = Progress::of(layouts.len() as u64, "counting READs", "layouts");
        let load = self.load.map(|percent| percent / 100.0);
        let counted = on_all_cpus(layouts, |&layout| {
            let counted = CountedLayout::count(layout, self.sample_slots, load, workload)?;
            bar.inc(1);
            Ok(counted)
        });
        bar.finish();
        counted
    }

    /// Computes and simulates what is drawn.
    fn draw<'a>(
        &self,
        system: &System,
        designs: &'a [Design],
        predictions: &'a [Prediction],
        shown: &[usize],
    ) -> Result<Vec<Drawn<'a>>> {
        const LOADS: [f64; 8] = [0.05, 0.2, 0.4, 0.6, 0.7, 0.8, 0.9, 0.95];
        let most = system.workload.clients.clamp(1000, 100_000);
        let steps = (0..=24).map(|i| (f64::from(most).powf(f64::from(i) / 24.0)).round() as u32);
        let clients: BTreeSet<u32> = steps.collect();
        let runs = clients.iter().step_by(3).count() + LOADS.len();
        let bar = Progress::of((shown.len() * runs) as u64, "simulating", "runs");
        let mut drawn = Vec::new();
        for &i in shown {
            let mut by_clients = Vec::new();
            for (step, &clients) in clients.iter().enumerate() {
                let workload = Workload { clients, ..system.workload.clone() };
                let depth = u64::from(workload.depth);
                let system = System::new(workload, system.profile.clone())?;
                // Enough for queues to be as long as they get; more clients than a simulation takes
                // are left to the laws.
                let operations = 40_000.max(16 * depth * u64::from(clients));
                let run = Run { operations, arrivals: Arrivals::Closed, seed: self.seed };
                let is_run = step % 3 == 0 && operations <= 2_000_000 && clients <= 10_000;
                let law = system.predict(&designs[i]).ops_per_s;
                let measured =
                    if is_run { Some(system.simulate(&designs[i], run, |_| {})?.ops_per_s) } else { None };
                bar.inc(u64::from(step % 3 == 0));
                by_clients.push((clients, law, measured));
            }
            let mut by_load = Vec::new();
            let small = Workload { clients: system.workload.clients.min(10_000), ..system.workload.clone() };
            let small = System::new(small, system.profile.clone())?;
            for load in LOADS {
                let per_s = load * small.predict(&designs[i]).ops_saturated_per_s;
                let run = Run { operations: 100_000, arrivals: Arrivals::Open(per_s), seed: self.seed };
                by_load.push((per_s, small.simulate(&designs[i], run, |_| {})?));
                bar.inc(1);
            }
            drawn.push(Drawn { design: &designs[i], prediction: &predictions[i], by_clients, by_load });
        }
        bar.finish();
        Ok(drawn)
    }

    fn say_published(&self) -> Result<ExitCode> {
        let held = PUBLISHED.iter().map(|report| report.hold()).collect::<Result<Vec<Held>, _>>()?;
        show::pretty(self.json, &held, || {
            let mut table = show::table(["what", "reported", "predicted", "error", "binds"]);
            for held in &held {
                table.add_row(vec![
                    Cell::new(held.what),
                    show::number(format_args!("{} {}", held.reported, held.unit)),
                    show::number(format_args!("{:.1} {}", held.predicted, held.unit)),
                    show::number(format_args!("{:+.0} %", 100.0 * held.error)),
                    Cell::new(held.binding.name()),
                ]);
            }
            show::lay_out(table)?;
            for held in &held {
                show::say("")?;
                show::say(show::paragraph(&format!("{}:", held.what), held.conditions))?;
                if !held.remark.is_empty() {
                    show::say(show::paragraph("  ", held.remark))?;
                }
            }
            show::say("\nCounted instructions:")?;
            COSTS.iter().try_for_each(|cost| {
                show::say(format_args!("  {:>6}  {} ({})", cost.instructions, cost.what.trim(), cost.source))
            })
        })?;
        Ok(ExitCode::SUCCESS)
    }
}

/// What was asked, in three lines.
fn heads(system: &System) -> String {
    let w = &system.workload;
    format!(
        "{} of {} bytes with values of {}; {} % GETs, Zipf exponent {}{}\n{}\n{}; {} on {}, {} in flight each",
        show::counted(w.keys, "key"),
        w.key_bytes,
        w.value_bytes,
        100.0 * w.gets,
        w.zipf,
        if w.grows {
            format!("\ngrowing by {} % of the PUTs; rivals pay nothing for that", 100.0 * w.inserts)
        } else {
            String::new()
        },
        system.profile.title,
        show::counted(w.servers.into(), "server"),
        show::counted(w.clients.into(), "client"),
        show::counted(w.machines().into(), "machine"),
        show::counted(w.depth.into(), "operation"),
    )
}

/// The designs that are simulated and drawn: the best, the best of each other kind, and the
/// crate's default.
fn shown(predictions: &[Prediction], choice: Option<&Verdict>) -> Vec<usize> {
    let mut shown: Vec<usize> = choice.map(|choice| choice.best).into_iter().collect();
    shown.extend(choice.and_then(|choice| choice.other));
    let best = |sides: &[Side]| {
        let of = (0..predictions.len())
            .filter(|&i| sides.contains(&predictions[i].side) && predictions[i].impossible.is_none());
        of.max_by(|&a, &b| predictions[a].ops_per_s.total_cmp(&predictions[b].ops_per_s))
    };
    let default = predictions.iter().position(|p| p.name == "windowed:8" && p.impossible.is_none());
    for i in [best(&[Side::TwoSided]), best(&[Side::Layout]), best(&[Side::OneSided]), default]
        .into_iter()
        .flatten()
    {
        if !shown.contains(&i) && shown.len() < 4 {
            shown.push(i);
        }
    }
    shown
}

fn simulations(simulated: &[Simulated]) -> comfy_table::Table {
    let heads = ["simulated", "by law", "run", "p50", "p99", "p99.9", "busiest"];
    show::rows(heads, simulated, |Simulated { name, laws_ops_per_s, measured }| {
        [
            Cell::new(name),
            show::number(short(*laws_ops_per_s)),
            show::number(short(measured.ops_per_s)),
            show::number(show::nanos(1e9 * measured.p50_s)),
            show::number(show::nanos(1e9 * measured.p99_s)),
            show::number(show::nanos(1e9 * measured.p999_s)),
            Cell::new(format!("{} {:.0} %", measured.busiest.0.name(), 100.0 * measured.busiest.1)),
        ]
    })
}

fn say(
    system: &System,
    predictions: &[Prediction],
    choice: Option<&Verdict>,
    left_out: &[String],
) -> Result<()> {
    show::say(heads(system))?;
    show::say("")?;
    show::lay_out(table(predictions, choice.map(|choice| choice.best)))?;
    show::say(show::paragraph("", TABLE))?;
    match choice {
        Some(choice) => {
            show::say("")?;
            for reason in &choice.reasons {
                show::say(show::paragraph("", reason))?;
            }
        }
        None => show::say("\nNone of these is possible here: more servers, or fewer or smaller keys.")?,
    }
    let impossible =
        predictions.iter().filter_map(|p| Some(format!("{}: {}", p.name, p.impossible.as_ref()?)));
    for note in impossible.chain(left_out.iter().cloned()) {
        show::say(show::paragraph("not possible:", &note))?;
    }
    Ok(())
}

/// The profile of a name, or in a file.
fn profile(given: &str) -> Result<Profile> {
    if Path::new(given).extension().is_none_or(|extension| extension != "toml") {
        return Ok(Profile::shipped(given)?);
    }
    let text = std::fs::read_to_string(given).with_context(|| format!("reading the profile {given}"))?;
    Ok(Profile::parse(given, &text)?)
}

/// Three significant digits and a unit, in seven characters.
fn short(per_s: f64) -> String {
    let (n, unit) = match per_s {
        r if r >= 1e9 => (r / 1e9, "G"),
        r if r >= 1e6 => (r / 1e6, "M"),
        r if r >= 1e3 => (r / 1e3, "k"),
        r => (r, ""),
    };
    let digits = if n >= 100.0 {
        0
    } else if n >= 10.0 {
        1
    } else {
        2
    };
    format!("{n:.digits$} {unit}").trim_end().into()
}

/// What the columns are.
const TABLE: &str = "READs (or requests) and bytes are those of one GET. binds: the resource that is the \
     first to be always busy. GET/s server: of one server, in this mix. p50 idle: the time of one GET alone.";

/// What the rows of a cluster's table do not say.
const CLUSTER_TABLE: &str = "Memory is that of a table (--max-memory of each node). Nodes' numbers are random, and so \
     is who has which shard: the fullest of 20 such clusters is told. etcd's CPU was measured with etcd 3.4: 44 µs a \
     message.";

fn cluster_table(plan: &ClusterPlan) -> comfy_table::Table {
    let mut table = show::facts();
    let count = |n: f64| show::count(n.round() as u64);
    let seconds = |s: f64| format!("{s:.1} s");
    let mut row = |what: &str, value: String, more: &str| {
        table.add_row([Cell::new(what), show::number(value).add_attribute(Attribute::Bold), Cell::new(more)]);
    };
    row("memory of each node", show::bytes(plan.node_bytes_one_lost), "enough with one node lost");
    row("the same, none lost", show::bytes(plan.node_bytes), "");
    row("set aside for an entry", show::bytes(plan.entry_bytes), "at each of its nodes");
    row("entries of a shard", count(plan.entries_per_shard), "");
    let told =
        format!("{} at the fullest; {} with one lost", plan.node_copies_max, plan.node_copies_max_one_lost);
    row("copies at a node, mean", format!("{:.1}", plan.node_copies_mean), &told);
    row("beats that etcd writes", format!("{} /s", count(plan.etcd_writes_per_s)), "");
    row(
        "messages that etcd sends",
        format!("{} /s", count(plan.etcd_messages_per_s)),
        &format!("to nodes and clients; {:.1} cores", plan.etcd_cores),
    );
    let told = format!("{:.0} bytes each", plan.etcd_message_bytes);
    row("", format!("{}/s", show::bytes(plan.etcd_bytes_per_s as u64)), &told);
    row("connections of a client", show::count(plan.client_connections), "two to each node, one to etcd");
    row("connections of a node", show::count(plan.node_connections), "");
    row("READs of a node's page", format!("{} /s", count(plan.page_reads_per_s)), "for clients' leases");
    row("a failover, at most", seconds(plan.failover_s_max), "puts of its shards wait so long");
    row("a shard's entries", show::bytes(plan.shard_bytes as u64), "as they are sent");
    if let (Some(shard), Some(node)) = (plan.shard_copy_s, plan.node_copy_s) {
        row("to copy a shard", seconds(shard), "");
        row("to copy all of a node's", seconds(node), "to one that comes empty");
    }
    table
}

/// A row of the page's table: as in the terminal, and where the design's costs come from.
fn row(design: &Design, p: &Prediction) -> [String; 6] {
    let rate = if p.impossible.is_some() { "not possible".into() } else { short(p.gets_per_server_per_s) };
    let (reads, bytes) = (format!("{:.2}", p.exchanges), format!("{:.0}", p.fetched_bytes));
    [design.name.clone(), reads, bytes, p.binding().name().into(), rate, design.source.clone()]
}

fn table(predictions: &[Prediction], best: Option<usize>) -> comfy_table::Table {
    let mut table =
        show::table(["design", "memory", "READs", "bytes", "binds", "GET/s\nserver", "p50\nidle"]);
    for (i, p) in predictions.iter().enumerate() {
        // A layout's name stands above that of the same with hints.
        let above = i.checked_sub(1).and_then(|above| predictions.get(above));
        let is_hinted = above.is_some_and(|above| p.name == crate::plan::hinted_name(&above.name));
        let name = if is_hinted { "… with hints" } else { &p.name };
        let name = match best {
            Some(best) if best == i => Cell::new(format!("► {name}")).add_attribute(Attribute::Bold),
            _ => Cell::new(format!("  {name}")),
        };
        let rate = if p.impossible.is_some() { "-".into() } else { short(p.gets_per_server_per_s) };
        table.add_row(vec![
            name,
            show::number(show::bytes(p.server_bytes as u64)),
            show::number(format_args!("{:.2}", p.exchanges)),
            show::number(format_args!("{:.0}", p.fetched_bytes)),
            Cell::new(p.binding().name()),
            show::number(rate),
            show::number(show::nanos(1e9 * p.get_light_s)),
        ]);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_short() {
        let told: Vec<String> = [0.0, 12.34, 999.0, 12_345.0, 1.5e6, 2e8, 3e10].map(short).into();
        assert_eq!(told, ["0.00", "12.3", "999", "12.3 k", "1.50 M", "200 M", "30.0 G"]);
    }
}
