//! What is asked of a cache: requests of a trace, or keys by Zipf's law with scans between them.

use crate::commands::bench::requests;
use anyhow::Result;
use rand::{RngExt, SeedableRng, rngs::SmallRng};
use rand_distr::{Distribution, Zipf};
use rustc_hash::FxHashSet;
use std::path::Path;

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

    /// The blocks that requests of a trace name.
    pub fn read(path: &Path) -> Result<Trace> {
        let keys = requests::read(path)?.into_iter().flat_map(|request| request.hash_ids).collect();
        let name = path.file_name().map_or_else(Default::default, |name| name.to_string_lossy().into_owned());
        Ok(Trace::of(name, keys))
    }
}
