//! `plan --calibrate`: this machine's figures, and the model's GETs over shm beside real ones.

use crate::measure::{key, value};
use crate::plan::{COSTS, HostFigures, Profile, Sample, Surety, System, Workload};
use anyhow::{Context, Result};
use oneread::internals::layout::hash::{mix, reduce};
use oneread::{
    Backing, Config, PutMode, TableSize,
    embedded::{Clock, Index, Region},
};
use oneread_kit::threads::{at_once, cpu_time};
use rand::SeedableRng;
use rand::rngs::SmallRng;
use rand::seq::SliceRandom;
use serde::Serialize;
use std::hint::black_box;
use std::time::Instant;

/// Rounds of each measurement. The fastest counts: others had to share the machine.
const ROUNDS: usize = 15;
/// Lines of as much memory as the large table takes: 64 MiB.
const LINES: u64 = 1 << 20;
/// Keys of a table that no cache holds, and of one that every cache does.
const KEYS: u64 = 1_000_000;
const FEW_KEYS: u64 = 500;

/// The model's GETs a second beside those measured.
#[derive(Debug, Serialize)]
pub struct Beside {
    pub clients: u32,
    pub predicted_per_s: f64,
    pub measured_per_s: f64,
}

/// What was measured.
#[derive(Debug, Serialize)]
pub struct Calibration {
    pub profile: Profile,
    pub gets: Vec<Beside>,
}

impl Calibration {
    pub fn measure(mut step: impl FnMut(&'static str)) -> Result<Calibration> {
        let cpus = std::thread::available_parallelism().map_or(1, |n| n.get());
        let fastest = |of: &dyn Fn() -> f64| (0..ROUNDS).map(|_| of()).fold(f64::INFINITY, f64::min);
        let highest = |of: &dyn Fn() -> f64| (0..ROUNDS).map(|_| of()).fold(0.0, f64::max);
        step("clock");
        let clock_ghz = highest(&clock_ghz);
        step("memory");
        let lines = chain();
        let memory_ns = fastest(&|| chase_ns(&lines));
        let gbyte_per_s = highest(&|| random_gbyte_per_s(&lines, cpus));
        drop(lines);
        step("GETs in cache");
        let small = filled(FEW_KEYS)?;
        let cached_ns = fastest(&|| get_ns(&small, FEW_KEYS, 1));
        let hit = COSTS.first().context("no costs")?.instructions;
        let mut profile = Profile::shipped("shm")?;
        profile.name = "this-machine".into();
        profile.title = crate::measure::machine();
        let HostFigures {
            cores,
            clock_ghz: clock,
            per_cycle,
            memory_ns: memory,
            memory_gbyte_per_s,
            memory_gib,
            ..
        } = &mut profile.host;
        let figures = [
            (cores, cpus as f64, "CPUs of this process"),
            (clock, clock_ghz, "a chain of instructions of one cycle"),
            (per_cycle, hit / (cached_ns * clock_ghz), "GETs of 500 keys, in cache"),
            (memory, memory_ns, "64-byte reads of 64 MiB, each address from the last"),
            (memory_gbyte_per_s, gbyte_per_s, "the same by every CPU, addresses independent"),
            (memory_gib, installed_gib().unwrap_or(8.0), "installed"),
        ];
        for (figure, value, how) in figures {
            (figure.value, figure.mark) = (value, Surety::V);
            figure.source = format!("oneread plan --calibrate: {how}");
        }
        step("filling a table");
        let large = filled(KEYS)?;
        step("GETs out of cache");
        let sample = Sample::count("windowed:8".parse()?, 1 << 16, None, 0.0)?;
        let mut gets = Vec::new();
        for clients in 1..=cpus.min(2) as u32 {
            let depth = 1;
            let workload =
                Workload { keys: KEYS, gets: 1.0, zipf: 0.0, clients, depth, ..Workload::default() };
            let design = sample.design(&workload)?;
            let predicted_per_s = System::new(workload, profile.clone())?.predict(&design).ops_per_s;
            let ns = fastest(&|| get_ns(&large, KEYS, clients));
            gets.push(Beside { clients, predicted_per_s, measured_per_s: f64::from(clients) * 1e9 / ns });
        }
        Ok(Calibration { profile, gets })
    }

    /// The profile as TOML, with the GETs as comments.
    pub fn toml(&self) -> String {
        let mut text = String::from(
            "# GETs over shm, windowed:8, 16 + 32 bytes, a million keys, uniform, by CPU time:\n",
        );
        for Beside { clients, predicted_per_s, measured_per_s } in &self.gets {
            let off = 100.0 * (predicted_per_s / measured_per_s - 1.0);
            text += &format!(
                "#   {clients} client(s): {:.2} M/s predicted, {:.2} M/s measured ({off:+.0} %)\n",
                predicted_per_s / 1e6,
                measured_per_s / 1e6
            );
        }
        text += &format!("name = {:?}\ntitle = {:?}\n\n[host]\n", self.profile.name, self.profile.title);
        for (name, figure) in self.profile.figures() {
            let (value, source) = (figure.value, &figure.source);
            text += &format!(
                "{name} = {{ value = {value:.3}, mark = \"{:?}\", source = {source:?} }}\n",
                figure.mark
            );
        }
        text
    }
}

/// Each step needs the last one's result: an exclusive or and a rotation, of a cycle each.
fn clock_ghz() -> f64 {
    const STEPS: u64 = 4_000_000;
    let began = Instant::now();
    let mut x = black_box(1u64);
    for i in 0..STEPS {
        x = (x ^ i).rotate_left(1);
    }
    black_box(x);
    2.0 * STEPS as f64 / began.elapsed().as_nanos().max(1) as f64
}

/// Lines that each name the next one, in one circle.
fn chain() -> Vec<[u64; 8]> {
    let mut order: Vec<u64> = (0..LINES).collect();
    order.shuffle(&mut SmallRng::seed_from_u64(1));
    let mut lines = vec![[0; 8]; LINES as usize];
    for (i, &line) in order.iter().enumerate() {
        lines[line as usize][0] = order[(i + 1) % order.len()];
    }
    lines
}

fn chase_ns(lines: &[[u64; 8]]) -> f64 {
    const STEPS: u32 = 100_000;
    let began = Instant::now();
    let mut at = black_box(0);
    for _ in 0..STEPS {
        at = lines[at as usize][0];
    }
    black_box(at);
    began.elapsed().as_nanos() as f64 / f64::from(STEPS)
}

/// Runs `work` in so many threads at once. Returns the mean of their CPU times, in nanoseconds.
fn mean_cpu_ns(threads: u64, work: impl Fn(u64) + Sync) -> f64 {
    let timed = |thread| {
        let began = cpu_time();
        work(thread);
        Ok((cpu_time() - began).as_nanos() as f64)
    };
    at_once(0..threads, timed).map_or(f64::INFINITY, |all| all.iter().sum::<f64>() / threads as f64)
}

fn random_gbyte_per_s(lines: &[[u64; 8]], threads: usize) -> f64 {
    const READS: u64 = 200_000;
    let ns = mean_cpu_ns(threads as u64, |thread| {
        let at = |i: u64| reduce(mix(i ^ thread << 40), LINES) as usize;
        black_box((0..READS).fold(0u64, |sum, i| sum.wrapping_add(lines[at(i)][0])));
    });
    (READS * 64 * threads as u64) as f64 / ns.max(1.0)
}

/// A table of so many keys at its design load.
fn filled(keys: u64) -> Result<Index> {
    let config =
        Config::new().layout("windowed:8".parse()?).size(TableSize::Keys(keys)).key_max(16).value_max(32);
    let geometry = config.geometry()?;
    let region = Region::create(&Backing::Anonymous, geometry.region_bytes())?;
    let index = Index::create(region, geometry, Clock::System)?;
    for n in 0..keys {
        index.put(&key(n), &value(n), PutMode::Insert)?;
    }
    Ok(index)
}

/// The time of one GET of each of so many clients, in nanoseconds. Each key comes from the last value,
/// as each address of the memory's figure does from the last: otherwise a core would begin the next
/// GET before it has the last one's line.
fn get_ns(index: &Index, keys: u64, clients: u32) -> f64 {
    const GETS: u64 = 60_000;
    let ns = mean_cpu_ns(clients.into(), |client| {
        let mut reader = index.reader();
        let mut value = Vec::new();
        let mut last = client;
        for i in 0..GETS {
            let n = reduce(mix(i.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ last), keys);
            let _ = black_box(reader.get_into(&key(n), &mut value));
            last = value.first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes));
        }
    });
    ns / GETS as f64
}

fn installed_gib() -> Option<f64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let kib = text.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    let kib: f64 = kib.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib / f64::from(1 << 20))
}
