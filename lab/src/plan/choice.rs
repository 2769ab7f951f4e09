//! Which design to take, and why, in three short paragraphs.

use super::{Design, Prediction, Side, System, WhatIf, what_ifs};
use serde::Serialize;

/// The best of some designs.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Verdict {
    /// Its number among the predictions.
    pub best: usize,
    /// The number of the best of another kind: one-sided beside RPC, RPC beside all others.
    pub other: Option<usize>,
    /// What to take; what the best of another kind would do; what to change next.
    pub reasons: [String; 3],
    /// What changes by a factor of two would bring.
    pub what_ifs: Vec<WhatIf>,
}

/// Two rates, or two costs, that are nearer than this are the same: the model is no better.
const SAME: f64 = 0.05;
/// So are two numbers of cores that are nearer than this.
const SAME_CORES: f64 = 0.1;

fn millions(per_s: f64) -> String {
    match per_s {
        r if r >= 1e6 => format!("{:.1} M", r / 1e6),
        r if r >= 1e3 => format!("{:.1} k", r / 1e3),
        r => format!("{r:.1}"),
    }
}

/// The best of those that `fits`: of all rates that are nearly the highest those that cost the fewest
/// server cores for each operation, of these those that cost the least memory, and of these the first.
fn best(predictions: &[Prediction], fits: impl Fn(&Prediction) -> bool) -> Option<usize> {
    let fits = |i: &usize| predictions[*i].impossible.is_none() && fits(&predictions[*i]);
    let mut left: Vec<usize> = (0..predictions.len()).filter(fits).collect();
    let rate = |i: usize| predictions[i].ops_per_s;
    let highest = left.iter().map(|&i| rate(i)).max_by(f64::total_cmp)?;
    left.retain(|&i| rate(i) >= (1.0 - SAME) * highest);
    // A faster design is not dearer because its server does more.
    let cores = |i: usize| predictions[i].server_cores * highest / rate(i).max(1e-9);
    for (cost, same) in
        [(&cores as &dyn Fn(usize) -> f64, SAME_CORES), (&|i| predictions[i].server_bytes, 0.0)]
    {
        let least = left.iter().map(|&i| cost(i)).min_by(f64::total_cmp)?;
        left.retain(|&i| cost(i) <= (1.0 + SAME) * least + same);
    }
    left.first().copied()
}

impl Verdict {
    /// The best of the designs, whose predictions are given in the same order. `None` if none is
    /// possible.
    pub fn of(system: &System, designs: &[Design], predictions: &[Prediction]) -> Option<Verdict> {
        let number = best(predictions, |_| true)?;
        let taken = &predictions[number];
        let what_ifs = what_ifs(system, &designs[number]);
        let other = match taken.side {
            Side::TwoSided => best(predictions, |p| matches!(p.side, Side::Layout | Side::OneSided)),
            _ => best(predictions, |p| p.side == Side::TwoSided),
        };
        Some(Verdict {
            best: number,
            other,
            reasons: [
                take(taken),
                beside(taken, other.map(|i| &predictions[i])),
                change(system, taken, &what_ifs),
            ],
            what_ifs,
        })
    }
}

fn take(taken: &Prediction) -> String {
    let what = match taken.side {
        Side::TwoSided => format!("Use RPC ({})", taken.name),
        Side::Copy => "Use a local map at each client machine".into(),
        Side::Layout | Side::OneSided => format!("Take {}", taken.name),
    };
    let next = match taken.next() {
        Some(next) => format!("; the {} would at {}", next.resource.name(), millions(next.ops_per_s)),
        None => String::new(),
    };
    let (rate, binding) = (millions(taken.ops_per_s), taken.binding().name());
    format!("{what}: {rate} operations a second in all. The {binding} binds{next}.")
}

fn beside(taken: &Prediction, other: Option<&Prediction>) -> String {
    let is_rpc = taken.side == Side::TwoSided;
    let price = if taken.side == Side::Copy {
        "A GET may then miss the PUTs that are on their way to its machine; "
    } else {
        ""
    };
    let Some(other) = other else {
        return format!("{price}Nothing of another kind is possible here.");
    };
    let share = other.ops_per_s / taken.ops_per_s.max(1e-9);
    let than = if share >= 1.0 - SAME { "as much".into() } else { format!("{:.0} % of that", 100.0 * share) };
    let of =
        |p: &Prediction| format!("{:.1} server cores and {:.0} bytes a GET", p.server_cores, p.fetched_bytes);
    format!(
        "{price}{}, the best {}, gives {than} ({} binds). It costs {}, {} {}.",
        other.name,
        if is_rpc { "one-sided design" } else { "RPC" },
        other.binding().name(),
        of(other),
        taken.name,
        of(taken),
    )
}

fn change(system: &System, taken: &Prediction, what_ifs: &[WhatIf]) -> String {
    let clients = f64::from(system.workload.clients);
    let load = match taken.clients_to_saturate.map(|need| need.ceil().max(1.0)) {
        Some(need) if need > clients => {
            format!("{clients} clients are too few to saturate the servers ({need:.0} would)")
        }
        Some(need) => format!("{need:.0} of the {clients} clients saturate the servers"),
        None => "Nothing at the servers binds".into(),
    };
    match what_ifs
        .iter()
        .filter(|w| w.gain > 0.01)
        .take(3)
        .map(|w| format!("{} {:+.0} %", w.change, 100.0 * w.gain))
        .collect::<Vec<_>>()
    {
        gains if gains.is_empty() => {
            format!("{load}, and no single change by a factor of two brings more than 1 %.")
        }
        gains => format!("{load}. What would bring more: {}.", gains.join(", ")),
    }
}
