//! A round of the bench: so many engines, from their first event to the last answer.

use super::asking::{Asked, Query, told};
use super::child::{IndexerChild, memory_of};
use super::engines::{BLOCK_TOKENS, Dice, Engine, Held, Lengths, Marker, Names, Prompts, lengths};
use super::outcome::{BESIDE, IndexerRow, OWN};
use crate::measure::{latencies, quantile};
use anyhow::{Context, Result, bail, ensure};
use hdrhistogram::Histogram;
use oneread_indexer::source::Source;
use oneread_kit::progress::Progress;
use oneread_kit::threads::at_once_beside;
use rustix::process::Pid;
use serde_json::json;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Batches that a publisher keeps to send again.
const KEPT: usize = 1 << 20;
/// The most memory of the table: no bench comes near it.
const BYTES_OF_BLOCK: u64 = 1_024;
/// What an indexer has not heard by then, it does not hear.
const PATIENCE: Duration = Duration::from_secs(600);
/// Between looks at whether something is so.
const PAUSE: Duration = Duration::from_millis(2);
/// Prompts that are asked for after a kill, of those that stay and of those that have changed.
const SAMPLE: usize = 32;
/// Prompts that are asked for at the end.
const LAST: u64 = 200;

/// What a round is to do.
#[derive(Clone, Copy, Debug)]
pub struct Aim<'a> {
    pub blocks: u64,
    pub prompts: u64,
    pub longest: u32,
    pub rate: u64,
    pub seconds: f64,
    pub own_hashes: bool,
    pub beside: Option<&'a str>,
    pub beside_pid: Option<i32>,
}

/// One of the two that are asked.
struct Contestant {
    name: &'static str,
    asked: Asked,
    pid: Option<Pid>,
    /// Before the first event.
    memory: Option<u64>,
    row: IndexerRow,
    quiet: Histogram<u64>,
    loaded: Histogram<u64>,
}

/// What is going on while prompts are asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Meanwhile {
    Nothing,
    Load,
}

impl Contestant {
    fn new(name: &'static str, asked: Asked, pid: Option<Pid>, workers: u16) -> Result<Contestant> {
        let row = IndexerRow {
            workers,
            indexer: name,
            blocks: 0,
            events_per_second: 0.0,
            blocks_per_second: 0.0,
            query_p50_ns: 0,
            query_p99_ns: 0,
            loaded_p50_ns: None,
            loaded_p99_ns: None,
            loaded_blocks_per_second: 0.0,
            behind_ms: 0.0,
            memory_bytes: None,
            bytes_per_block: None,
            checked: 0,
            wrong: 0,
            differing: None,
            answers_after_ms: None,
            right_after_ms: None,
        };
        Ok(Contestant { name, asked, pid, memory: None, row, quiet: latencies()?, loaded: latencies()? })
    }

    /// What it tells of a prompt. Its time is recorded.
    fn ask(&mut self, query: &Query, meanwhile: Meanwhile) -> Result<Lengths> {
        let begun = Instant::now();
        let answer = self.asked.query(query)?;
        let took = begun.elapsed().as_nanos() as u64;
        match meanwhile {
            Meanwhile::Nothing => self.quiet.saturating_record(took),
            Meanwhile::Load => self.loaded.saturating_record(took),
        }
        told(&answer)
    }

    fn check(&mut self, told: &Lengths, expected: &Lengths) {
        self.row.checked += 1;
        self.row.wrong += u64::from(told != expected);
    }
}

/// What both tell of a prompt.
fn ask_all(
    contestants: &mut [Contestant],
    query: &Query,
    turn: u64,
    meanwhile: Meanwhile,
) -> Result<Vec<Lengths>> {
    let mut all: Vec<(usize, Lengths)> = Vec::new();
    let count = contestants.len();
    for nth in 0..count {
        // None is always the first one.
        let nth = (nth + turn as usize) % count;
        all.push((nth, contestants[nth].ask(query, meanwhile)?));
    }
    all.sort_by_key(|(nth, _)| *nth);
    Ok(all.into_iter().map(|(_, told)| told).collect())
}

/// Engines, and the indexers that hear them.
pub struct Round<'a> {
    aim: Aim<'a>,
    model: String,
    prompts: Prompts,
    engines: Vec<Engine>,
    sources: Vec<Source>,
    own: IndexerChild,
    contestants: Vec<Contestant>,
    markers: u32,
    dice: Dice,
}

impl<'a> Round<'a> {
    /// Starts the indexer, and has all publishers registered and heard.
    pub fn begin(aim: Aim<'a>, workers: u16) -> Result<Round<'a>> {
        let own = IndexerChild::spawn((256 << 20) + aim.blocks * BYTES_OF_BLOCK)?;
        let mut contestants = vec![Contestant::new(OWN, Asked::at(own.url())?, Some(own.pid()), workers)?];
        if let Some(url) = aim.beside {
            let pid = aim.beside_pid.and_then(Pid::from_raw);
            contestants.push(Contestant::new(BESIDE, Asked::at(url)?, pid, workers)?);
        }
        let prompts = Prompts::new(aim.longest, aim.blocks.div_ceil(workers.into()));
        // Another one each time: the one beside may know those of the last.
        let model = format!("bench {:016x}", rand::random::<u64>());
        let (mut engines, mut sources) = (Vec::new(), Vec::new());
        for number in 1..=u64::from(workers) {
            let source = Source::new(KEPT).context("opening a publisher's sockets")?;
            let worker = json!({
                "instance_id": number,
                "endpoint": source.endpoint(),
                "replay_endpoint": source.replay_endpoint(),
                "model_name": model,
                "block_size": BLOCK_TOKENS,
            });
            for one in &mut contestants {
                one.asked.register(&worker)?;
            }
            let names = if aim.own_hashes { Names::of(number) } else { Names::COMMON };
            engines.push(Engine::new(number, names, &prompts));
            sources.push(source);
        }
        for source in &sources {
            let is_heard = source.is_heard_by(contestants.len());
            ensure!(
                is_heard,
                "within a minute not all indexers heard the publisher at {}",
                source.endpoint()
            );
        }
        for one in &mut contestants {
            one.memory = one.pid.map(memory_of).transpose()?;
        }
        let dice = Dice::new(aim.blocks);
        Ok(Round { aim, model, prompts, engines, sources, own, contestants, markers: 0, dice })
    }

    /// All of it.
    pub fn run(mut self) -> Result<Vec<IndexerRow>> {
        self.fill()?;
        self.ask_quietly()?;
        self.ask_under_load()?;
        self.kill()?;
        self.ask_last()?;
        for one in &mut self.contestants {
            if one.name == OWN {
                continue;
            }
            // It goes on after this.
            for engine in &self.engines {
                one.asked.unregister(engine.number, &self.model)?;
            }
        }
        Ok(self.contestants.into_iter().map(|one| one.row).collect())
    }

    fn blocks(&self) -> u64 {
        self.engines.iter().map(|engine| engine.blocks).sum()
    }

    /// Engines store blocks as fast as they can, until they have as many as they should.
    fn fill(&mut self) -> Result<()> {
        let all = 0..self.prompts.count();
        let bar = Progress::of(self.aim.blocks, "storing", "blocks");
        let (begun, mut events) = (Instant::now(), 0);
        while self.blocks() < self.aim.blocks {
            for (engine, source) in self.engines.iter_mut().zip(&self.sources) {
                if let Some(event) = engine.grow(&self.prompts, &all) {
                    source.publish(vec![event]);
                    events += 1;
                }
            }
            bar.set_position(self.blocks());
        }
        let heard = self.hear()?;
        bar.finish();
        let blocks = self.blocks();
        for (one, heard) in self.contestants.iter_mut().zip(heard) {
            let seconds = heard.duration_since(begun).as_secs_f64();
            one.row.blocks = blocks;
            one.row.events_per_second = f64::from(events) / seconds;
            one.row.blocks_per_second = blocks as f64 / seconds;
            if let Some((pid, before)) = one.pid.zip(one.memory) {
                let memory = memory_of(pid)?;
                one.row.memory_bytes = Some(memory);
                one.row.bytes_per_block = Some(memory.saturating_sub(before) as f64 / blocks as f64);
            }
        }
        Ok(())
    }

    /// When each indexer has found all that was told until now.
    fn hear(&mut self) -> Result<Vec<Instant>> {
        let marker = Marker(self.markers);
        self.markers += 1;
        for (engine, source) in self.engines.iter().zip(&self.sources) {
            source.publish(marker.events(engine.names));
        }
        let query = Query::new(&self.model, &marker.tokens());
        let mut heard = vec![None; self.contestants.len()];
        let begun = Instant::now();
        loop {
            for (one, heard) in self.contestants.iter_mut().zip(&mut heard) {
                if heard.is_none() && told(&one.asked.query(&query)?)?.len() == self.engines.len() {
                    *heard = Some(Instant::now());
                }
            }
            if let Some(all) = heard.iter().copied().collect() {
                return Ok(all);
            }
            if begun.elapsed() > PATIENCE {
                let late = self.contestants.iter().zip(&heard).find(|(_, heard)| heard.is_none());
                let name = late.map_or(OWN, |(one, _)| one.name);
                bail!("within {PATIENCE:?} the indexer {name} has not found all that engines told");
            }
            std::thread::sleep(PAUSE);
        }
    }

    /// A prompt, and how much of it is asked for.
    fn pick(&mut self) -> (usize, u32) {
        let prompt = self.dice.roll(self.prompts.count());
        (prompt, 1 + self.dice.roll(self.prompts.length(prompt) as usize) as u32)
    }

    fn expected(&self, prompt: usize, blocks: u32) -> Lengths {
        let held = self.engines.iter().map(|engine| (engine.number, &engine.held));
        lengths(held, &self.prompts, prompt, blocks)
    }

    /// Asks both for prompts. Returns for how many they tell other lengths.
    fn compare(&mut self, prompts: u64) -> Result<u64> {
        let bar = Progress::of(prompts, "asking", "prompts");
        let mut differing = 0;
        for turn in 0..prompts {
            let (prompt, blocks) = self.pick();
            let expected = self.expected(prompt, blocks);
            let query = Query::new(&self.model, &self.prompts.tokens(prompt, blocks));
            let told = ask_all(&mut self.contestants, &query, turn, Meanwhile::Nothing)?;
            for (one, told) in self.contestants.iter_mut().zip(&told) {
                one.check(told, &expected);
            }
            differing += u64::from(told.windows(2).any(|two| two[0] != two[1]));
            bar.inc(1);
        }
        bar.finish();
        Ok(differing)
    }

    fn add_differing(&mut self, more: u64) {
        if self.contestants.len() > 1 {
            for one in &mut self.contestants {
                *one.row.differing.get_or_insert(0) += more;
            }
        }
    }

    fn ask_quietly(&mut self) -> Result<()> {
        let differing = self.compare(self.aim.prompts)?;
        self.add_differing(differing);
        for one in &mut self.contestants {
            one.row.query_p50_ns = quantile(&one.quiet, 0.5).unwrap_or(0);
            one.row.query_p99_ns = quantile(&one.quiet, 0.99).unwrap_or(0);
        }
        Ok(())
    }

    /// Asks for prompts while blocks come and go. Answers about those that stay are checked.
    fn ask_under_load(&mut self) -> Result<()> {
        let (prompts, aim, sources) = (&self.prompts, self.aim, &self.sources);
        let room = aim.blocks / self.engines.len() as u64;
        let held: Vec<(u64, Held)> =
            self.engines.iter().map(|engine| (engine.number, engine.held.clone())).collect();
        let is_over = AtomicBool::new(false);
        let (contestants, dice, model) = (&mut self.contestants, &mut self.dice, &self.model);
        let mut asking = || -> Result<()> {
            let (begun, mut turn) = (Instant::now(), 0);
            let bar = Progress::of_unknown("asking under load", "prompts");
            while begun.elapsed().as_secs_f64() < aim.seconds {
                let prompt = dice.roll(prompts.count());
                let blocks = 1 + dice.roll(prompts.length(prompt) as usize) as u32;
                let query = Query::new(model, &prompts.tokens(prompt, blocks));
                let told = ask_all(contestants, &query, turn, Meanwhile::Load)?;
                if prompts.staying().contains(&prompt) {
                    let held = held.iter().map(|(number, held)| (*number, held));
                    let expected = lengths(held, prompts, prompt, blocks);
                    contestants.iter_mut().zip(&told).for_each(|(one, told)| one.check(told, &expected));
                }
                turn += 1;
                bar.inc(1);
            }
            bar.finish();
            Ok(())
        };
        let publishing = |engines: &mut Vec<Engine>| {
            let begun = Instant::now();
            let blocks = publish(engines, sources, prompts, room, aim.rate, &is_over);
            Ok((blocks, begun.elapsed()))
        };
        let beside = || {
            let asked = asking();
            is_over.store(true, Ordering::Relaxed);
            asked
        };
        let (asked, published) = at_once_beside([&mut self.engines], publishing, beside)?;
        asked?;
        let last = Instant::now();
        let heard = self.hear()?;
        for (one, heard) in self.contestants.iter_mut().zip(heard) {
            one.row.loaded_p50_ns = quantile(&one.loaded, 0.5);
            one.row.loaded_p99_ns = quantile(&one.loaded, 0.99);
            one.row.behind_ms = heard.duration_since(last).as_secs_f64() * 1e3;
            for (blocks, took) in &published {
                one.row.loaded_blocks_per_second = *blocks as f64 / took.as_secs_f64();
            }
        }
        Ok(())
    }

    /// Kills the indexer of oneread, while engines go on.
    fn kill(&mut self) -> Result<()> {
        let begun = Instant::now();
        self.own.kill()?;
        let changing = self.prompts.changing();
        for (engine, source) in self.engines.iter_mut().zip(&self.sources) {
            let event = engine.grow(&self.prompts, &changing);
            let event = event.or_else(|| engine.shrink(&self.prompts, &changing));
            source.publish(event.into_iter().collect());
        }
        self.own.restart()?;
        let staying = self.sample(self.prompts.staying());
        let changed = self.sample(changing);
        let Some(own) = self.contestants.first_mut() else { return Ok(()) };
        (own.asked, own.pid) = (Asked::at(self.own.url())?, Some(self.own.pid()));
        for (query, expected) in staying {
            let told = told(&own.asked.query(&query)?)?;
            own.row.answers_after_ms.get_or_insert(begun.elapsed().as_secs_f64() * 1e3);
            // It knew these before, so it knows them at once.
            own.check(&told, &expected);
        }
        for (query, expected) in changed {
            while told(&own.asked.query(&query)?)? != expected {
                ensure!(
                    begun.elapsed() < PATIENCE,
                    "within {PATIENCE:?} after it was killed the indexer has not found what engines told meanwhile"
                );
                std::thread::sleep(PAUSE);
            }
        }
        own.row.right_after_ms = Some(begun.elapsed().as_secs_f64() * 1e3);
        Ok(())
    }

    /// Some prompts, whole, with what is to be told of them.
    fn sample(&self, of: Range<usize>) -> Vec<(Query, Lengths)> {
        let all = of.step_by(self.prompts.count().div_ceil(SAMPLE));
        let one = |prompt: usize| {
            let blocks = self.prompts.length(prompt);
            let query = Query::new(&self.model, &self.prompts.tokens(prompt, blocks));
            (query, self.expected(prompt, blocks))
        };
        all.map(one).collect()
    }

    /// Compares once more, after all that happened.
    fn ask_last(&mut self) -> Result<()> {
        self.hear()?;
        let differing = self.compare(self.aim.prompts.min(LAST))?;
        self.add_differing(differing);
        Ok(())
    }
}

/// Has engines store blocks at a rate, and drop as many, until it is over. Returns how many they stored.
fn publish(
    engines: &mut [Engine],
    sources: &[Source],
    prompts: &Prompts,
    room: u64,
    rate: u64,
    is_over: &AtomicBool,
) -> u64 {
    let (begun, changing) = (Instant::now(), prompts.changing());
    let mut stored = 0;
    while !is_over.load(Ordering::Relaxed) {
        for (engine, source) in engines.iter_mut().zip(sources) {
            if stored as f64 >= begun.elapsed().as_secs_f64() * rate as f64 {
                std::thread::sleep(PAUSE);
                if is_over.load(Ordering::Relaxed) {
                    break;
                }
                continue;
            }
            let mut events = Vec::new();
            if engine.blocks >= room {
                events.extend(engine.shrink(prompts, &changing));
            }
            let before = engine.blocks;
            match engine.grow(prompts, &changing) {
                Some(event) => events.push(event),
                None => events.extend(engine.shrink(prompts, &changing)),
            }
            stored += engine.blocks.saturating_sub(before);
            source.publish(events);
        }
    }
    stored
}
