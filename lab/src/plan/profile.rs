//! Hardware as readable figures, each with its source.

use super::PlanError;
use serde::{Deserialize, Serialize};

/// How sure a figure is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Surety {
    /// Read in the source itself, or measured here.
    V,
    /// Computed from such figures.
    C,
    /// From memory of the source.
    M,
    /// Assumed.
    #[default]
    A,
}

/// One figure of a profile. A user's own file may give the bare number.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(from = "Written")]
pub struct Figure {
    /// The number, in the unit that its field names.
    pub value: f64,
    /// How sure it is.
    pub mark: Surety,
    /// Where it comes from.
    pub source: String,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Written {
    Bare(f64),
    Sourced {
        value: f64,
        #[serde(default)]
        mark: Surety,
        #[serde(default)]
        source: String,
    },
}

impl From<Written> for Figure {
    fn from(written: Written) -> Figure {
        match written {
            Written::Bare(value) => {
                Figure { value, mark: Surety::A, source: "given without a source".into() }
            }
            Written::Sourced { value, mark, source } => Figure { value, mark, source },
        }
    }
}

impl Figure {
    pub(crate) fn new(value: f64, mark: Surety, source: &str) -> Figure {
        Figure { value, mark, source: source.into() }
    }
}

/// The share of a NIC's rate that is left at some numbers of something it caches.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Share {
    /// Pairs of a number and the share left, numbers ascending, shares descending.
    pub points: Vec<(f64, f64)>,
    /// How sure they are.
    #[serde(default)]
    pub mark: Surety,
    /// Where they come from.
    #[serde(default)]
    pub source: String,
}

impl Share {
    /// The share left at `n`: by the logarithm of `n` between two points, and beyond the last as
    /// there.
    pub fn at(&self, n: f64) -> f64 {
        let after = self.points.iter().position(|point| point.0 >= n);
        match after {
            None => self.points.last().map_or(1.0, |point| point.1),
            Some(0) => self.points[0].1,
            Some(i) => {
                let ((n0, s0), (n1, s1)) = (self.points[i - 1], self.points[i]);
                s0 + (s1 - s0) * (n / n0).ln() / (n1 / n0).ln()
            }
        }
    }
}

/// What a NIC and the network around it can do.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NicFigures {
    /// Exchanges a second: a READ with its answer, or a message in and one out.
    pub reads_per_s: Figure,
    /// The port's rate, each way.
    pub wire_gbit_per_s: Figure,
    /// All bytes of a packet that are not payload.
    pub header_bytes: Figure,
    /// Payload of a packet, at most.
    pub mtu: Figure,
    /// From memory to the NIC.
    pub pcie_gbyte_per_s: Figure,
    /// One READ of 64 bytes when nothing else is under way.
    pub read_us: Figure,
    /// READs in flight on a queue pair, at most.
    pub outstanding: Figure,
    /// A client's time to post one READ and to take its completion.
    pub post_ns: Figure,
    /// A client's time for one doorbell.
    pub doorbell_ns: Figure,
    /// The share of `reads_per_s` left with so many queue pairs.
    pub pairs: Share,
    /// The share that a client's NIC has left with so many READs in flight.
    pub in_flight: Share,
}

/// What a machine can do.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HostFigures {
    /// Cores for this system.
    pub cores: Figure,
    /// Clock.
    pub clock_ghz: Figure,
    /// Instructions a cycle, in cache.
    pub per_cycle: Figure,
    /// One access out of cache whose address was not known before.
    pub memory_ns: Figure,
    /// Bandwidth.
    pub memory_gbyte_per_s: Figure,
    /// Memory for the table.
    pub memory_gib: Figure,
}

/// A named set of hardware. Without a NIC, clients and servers share one machine's memory.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Profile {
    /// What `--nic` calls it.
    pub name: String,
    /// In words.
    pub title: String,
    /// The network; `None` for shared memory.
    pub nic: Option<NicFigures>,
    /// The machines.
    #[serde(default = "usual_host")]
    pub host: HostFigures,
}

macro_rules! shipped {
    ($($name:literal),*) => { [$(($name, include_str!(concat!("profiles/", $name, ".toml")))),*] };
}

/// The profiles that come with the package, as TOML.
pub const SHIPPED: [(&str, &str); 10] = shipped![
    "cx6-200g",
    "cx7-400g",
    "cx5-100g",
    "cx4-100g",
    "cx3-56g",
    "cx3-40g",
    "cx2-20g",
    "efa-100g",
    "soft-roce",
    "shm"
];

fn usual_host() -> HostFigures {
    /// The file has no NIC, so it is no profile of a network.
    #[derive(Deserialize)]
    struct Only {
        host: HostFigures,
    }
    let text = include_str!("profiles/host.toml");
    toml::from_str::<Only>(text).expect("the shipped file is whole: a test parses it").host
}

impl Profile {
    /// A shipped profile.
    ///
    /// # Errors
    /// [`PlanError::UnknownProfile`].
    pub fn shipped(name: &str) -> Result<Profile, PlanError> {
        let (_, text) = SHIPPED
            .iter()
            .find(|(known, _)| *known == name)
            .ok_or_else(|| PlanError::UnknownProfile { given: name.into() })?;
        Profile::parse(name, text)
    }

    /// The profile in a TOML text. `from` names it in errors.
    ///
    /// # Errors
    /// [`PlanError::Profile`] or [`PlanError::Figure`].
    pub fn parse(from: &str, text: &str) -> Result<Profile, PlanError> {
        let profile: Profile = toml::from_str(text)
            .map_err(|source| PlanError::Profile { from: from.into(), source: Box::new(source) })?;
        profile.check(from)?;
        Ok(profile)
    }

    /// Each figure with the name of its field.
    pub fn figures(&self) -> Vec<(&'static str, &Figure)> {
        let HostFigures { cores, clock_ghz, per_cycle, memory_ns, memory_gbyte_per_s, memory_gib } =
            &self.host;
        let mut figures = vec![
            ("cores", cores),
            ("clock_ghz", clock_ghz),
            ("per_cycle", per_cycle),
            ("memory_ns", memory_ns),
            ("memory_gbyte_per_s", memory_gbyte_per_s),
            ("memory_gib", memory_gib),
        ];
        if let Some(nic) = &self.nic {
            figures.extend([
                ("reads_per_s", &nic.reads_per_s),
                ("wire_gbit_per_s", &nic.wire_gbit_per_s),
                ("header_bytes", &nic.header_bytes),
                ("mtu", &nic.mtu),
                ("pcie_gbyte_per_s", &nic.pcie_gbyte_per_s),
                ("read_us", &nic.read_us),
                ("outstanding", &nic.outstanding),
                ("post_ns", &nic.post_ns),
                ("doorbell_ns", &nic.doorbell_ns),
            ]);
        }
        figures
    }

    fn check(&self, from: &str) -> Result<(), PlanError> {
        let wrong = |field: &'static str, given: f64, allowed: &'static str| PlanError::Figure {
            from: from.into(),
            field,
            given,
            allowed,
        };
        for (field, figure) in self.figures() {
            // Beyond these bounds, a unit was mistaken.
            if !(1e-3..=1e12).contains(&figure.value) {
                return Err(wrong(field, figure.value, "0.001 to 1e12"));
            }
        }
        let Some(nic) = &self.nic else { return Ok(()) };
        for (field, share) in [("pairs", &nic.pairs), ("in_flight", &nic.in_flight)] {
            let steps = share.points.windows(2);
            if let Some(step) = { steps }.find(|step| step[1].0 <= step[0].0 || step[1].1 > step[0].1) {
                return Err(wrong(field, step[1].0, "numbers that ascend, shares that descend"));
            }
            if share.points.is_empty() {
                return Err(wrong(field, 0.0, "one point or more"));
            }
            for &(n, left) in &share.points {
                if !(1.0..=1e9).contains(&n) || !(0.001..=1.0).contains(&left) {
                    return Err(wrong(field, n, "numbers of 1 to 1e9, shares of 0.001 to 1"));
                }
            }
        }
        Ok(())
    }
}
