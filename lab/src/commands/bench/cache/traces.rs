//! What is asked of a cache: requests of a trace, or keys by Zipf's law with scans between them.

use anyhow::{Context, Result, ensure};
use rand::{RngExt, SeedableRng, rngs::SmallRng};
use rand_distr::{Distribution, Zipf};
use rustc_hash::FxHashSet;
use serde::Deserialize;
use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Command, Stdio};

/// Keys asked for, one after the other. What is not there is put.
#[derive(Debug)]
pub struct Trace {
    pub name: String,
    pub keys: Vec<u64>,
    /// How many different ones.
    pub distinct: usize,
}

impl Trace {
    fn of(name: String, keys: Vec<u64>) -> Trace {
        let distinct = keys.iter().collect::<FxHashSet<_>>().len();
        Trace { name, keys, distinct }
    }

    /// Requests of keys by Zipf's law, one of ten of which is part of a scan: of 1,000 keys that nobody else asks for.
    pub fn zipf(exponent: f64, keys: u64, requests: usize) -> Result<Trace> {
        const SCAN: u64 = 1_000;
        let (mut random, popular) = (SmallRng::seed_from_u64(1), Zipf::new(keys as f64, exponent)?);
        let (mut all, mut scanned) = (Vec::with_capacity(requests), keys);
        while all.len() < requests {
            if random.random_range(0..9 * SCAN) == 0 {
                all.extend(scanned..scanned + SCAN);
                scanned += SCAN;
            }
            all.push(popular.sample(&mut random) as u64);
        }
        all.truncate(requests);
        Ok(Trace::of(format!("zipf {exponent}, scans"), all))
    }

    /// The blocks that requests of a trace name: a line of JSON for each request, with `hash_ids`. `.gz`: by `gzip`.
    pub fn read(path: &Path) -> Result<Trace> {
        #[derive(Deserialize)]
        struct Asked {
            hash_ids: Vec<u64>,
        }
        let reading = || format!("reading the trace {}", path.display());
        let mut unpacked = None;
        let bytes: Box<dyn Read> = if path.extension().is_some_and(|extension| extension == "gz") {
            let mut gzip = Command::new("gzip")
                .arg("-dc")
                .arg(path)
                .stdout(Stdio::piped())
                .spawn()
                .context("starting gzip; unpack the trace, and give its plain file")?;
            let out = gzip.stdout.take().context("gzip's output")?;
            unpacked = Some(gzip);
            Box::new(out)
        } else {
            Box::new(File::open(path).with_context(reading)?)
        };
        let mut keys = Vec::new();
        for line in BufReader::new(bytes).lines() {
            let asked: Asked = serde_json::from_str(&line.with_context(reading)?).with_context(reading)?;
            keys.extend(asked.hash_ids);
        }
        if let Some(mut gzip) = unpacked {
            ensure!(gzip.wait()?.success(), "gzip could not unpack {}", path.display());
        }
        ensure!(!keys.is_empty(), "{} names no block; it should have lines with `hash_ids`", path.display());
        let name = path.file_name().map_or_else(Default::default, |name| name.to_string_lossy().into_owned());
        Ok(Trace::of(name, keys))
    }
}
