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

/// Two rates that are nearer than this are the same: the model is no better.
const SAME: f64 = 0.05;

fn millions(per_s: f64) -> String {
    match per_s {
        r if r >= 1e6 => format!("{:.1} M", r / 1e6),
        r if r >= 1e3 => format!("{:.1} k", r / 1e3),
        r => format!("{r:.1}"),
    }
}

/// The best of those that `fits`: of all rates that are nearly the highest the one that costs the
/// fewest server cores, then the least memory.
fn best(predictions: &[Prediction], fits: impl Fn(&Prediction) -> bool) -> Option<usize> {
    let possible =
        || (0..predictions.len()).filter(|&i| predictions[i].impossible.is_none() && fits(&predictions[i]));
    let highest = possible().map(|i| predictions[i].ops_per_s).max_by(f64::total_cmp)?;
    let cost = |i: usize| (predictions[i].server_cores * 10.0).round();
    possible().filter(|&i| predictions[i].ops_per_s >= (1.0 - SAME) * highest).min_by(|&a, &b| {
        cost(a).total_cmp(&cost(b)).then(predictions[a].server_bytes.total_cmp(&predictions[b].server_bytes))
    })
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
