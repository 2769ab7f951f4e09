//! The `oneread` command. (Scratch: to be replaced by the real command.)
#[path = "cli/measure.rs"]
mod measure;
use measure::*;
fn main() -> anyhow::Result<()> {
    for name in std::env::args().skip(2) {
        let layout = name.parse::<oneread::Layout>()?;
        let slots = 1u64 << std::env::args().nth(1).unwrap().parse::<u32>()?;
        let mut t = Table::new(layout, slots, 1)?;
        let s = t.counts().main_slots as f64;
        for load in [0.5, 0.75, 0.9, 0.95] {
            let t0 = std::time::Instant::now();
            while (t.live() as f64) < load * s {
                if let Err(e) = t.insert() {
                    println!("{e}");
                    break;
                }
            }
            let el = t0.elapsed();
            let c = t.counts();
            let r = t.row(Phase::Fresh, Keys::Uniform, Some(load), c.moves as f64 / c.inserts as f64)?;
            println!(
                "{name} fresh {load} hit {:.4} miss {:.4} mpi {:.3} disp {:.4} load {:.3} {el:?} waits {}",
                r.reads_hit, r.reads_miss, r.moves_per_insert, r.displaced, r.load_true, c.waits
            );
        }
        let t0 = std::time::Instant::now();
        while t.insert().is_ok() {}
        let c = t.counts();
        println!(
            "{name} max {:.4} mpi {:.3} {:?}",
            c.keys as f64 / s,
            c.moves as f64 / c.inserts as f64,
            t0.elapsed()
        );
        for load in [0.9] {
            let mut t = Table::new(layout, slots, 1)?;
            while (t.live() as f64) < load * s {
                if t.insert().is_err() {
                    break;
                }
            }
            let c0 = t.counts();
            let n = t.live();
            let t0 = std::time::Instant::now();
            for _ in 0..2 * n {
                if let Err(e) = t.churn() {
                    println!("{e}");
                    break;
                }
            }
            let el = t0.elapsed();
            let c = t.counts();
            let r = t.row(
                Phase::Steady,
                Keys::Uniform,
                Some(load),
                (c.moves - c0.moves) as f64 / (c.inserts - c0.inserts) as f64,
            )?;
            println!(
                "{name} steady {load} hit {:.4} miss {:.4} mpi {:.3} disp {:.4} homings {} {el:?}",
                r.reads_hit, r.reads_miss, r.moves_per_insert, r.displaced, c.homings
            );
        }
    }
    Ok(())
}
