//! What the facts mean: which fabrics will work, what is wrong, and the command that mends it.

use super::facts::{Device, Distribution, Facts, HugePages, Interface, Module, Port};
use oneread::internals::verbs::gid::{self, Choice, GidError, GidQuery, LinkLayer, Ranked};
use oneread_kit::show;
use serde::Serialize;
use std::io;
use std::net::IpAddr;

/// Bytes that a client should be able to lock, for its queues and for the data of its READs. This
/// is an estimate, not a strict bound. With 64 KiB, the limit of old systems, Soft-RoCE still
/// exchanges messages of 1 KiB, but real devices lock their queues, too. The limit of today's
/// systems, 8 MiB, is plenty.
const CLIENT_LOCKS: u64 = 1 << 20;

/// What the report depends on besides the machine.
#[derive(Clone, Copy, Debug)]
pub struct Question {
    /// The peer for which to rank GIDs.
    pub peer: Option<IpAddr>,
    /// Whether this build has the fabric verbs.
    pub verbs_built: bool,
    /// Bytes of the table that a server makes by default.
    pub table_bytes: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    Ok,
    /// Good to know.
    Note,
    Warning,
    Problem,
}

#[derive(Debug, Serialize)]
pub struct Finding {
    pub level: Level,
    /// What was examined.
    pub what: String,
    pub found: String,
    /// What to do, in words.
    pub advice: Option<String>,
    /// What to do, as a shell command.
    pub command: Option<String>,
    /// If this finding rules out the fabric verbs: the reason in a few words.
    #[serde(skip)]
    pub stops_verbs: Option<String>,
}

#[derive(Debug, Serialize)]
pub struct Verdict {
    pub works: bool,
    pub why: String,
}

/// A port's GIDs.
#[derive(Debug)]
pub struct PortGids<'a> {
    pub device: &'a Device,
    pub port: &'a Port,
    /// The GIDs, the best first.
    pub ranking: Vec<Ranked<'a>>,
    pub choice: Result<Choice, GidError>,
}

#[derive(Debug)]
pub struct Diagnosis<'a> {
    pub shm: Verdict,
    pub verbs: Verdict,
    pub tcp: Verdict,
    pub findings: Vec<Finding>,
    pub ports: Vec<PortGids<'a>>,
}

impl Finding {
    pub fn new(level: Level, what: impl Into<String>, found: impl Into<String>) -> Finding {
        Finding {
            level,
            what: what.into(),
            found: found.into(),
            advice: None,
            command: None,
            stops_verbs: None,
        }
    }

    pub fn advice(self, advice: impl Into<String>) -> Finding {
        Finding { advice: Some(advice.into()), ..self }
    }

    pub fn command(self, command: impl Into<String>) -> Finding {
        Finding { command: Some(command.into()), ..self }
    }

    fn stops_verbs(self, why: impl Into<String>) -> Finding {
        Finding { stops_verbs: Some(why.into()), ..self }
    }
}

impl<'a> Diagnosis<'a> {
    pub fn of(facts: &'a Facts, question: &Question) -> Diagnosis<'a> {
        let ports: Vec<_> = facts
            .devices
            .iter()
            .flat_map(|device| device.ports.iter().map(move |port| (device, port)))
            .map(|(device, port)| PortGids::of(device, port, &facts.addresses, question.peer))
            .collect();
        let usable = ports.iter().find(|port| port.is_usable());
        let mut findings = vec![sealing(facts), dev_shm(facts, question), huge_pages(facts, question)];
        findings.push(kernel(facts));
        if facts.devices.is_empty() {
            findings.push(no_device(facts));
        }
        for each in &facts.devices {
            findings.extend([device(each), permission(facts, each)]);
            for port in ports.iter().filter(|port| std::ptr::eq(port.device, each)) {
                findings.push(port.state(facts));
                // The GID of a port that is down does not matter.
                findings.extend(port.is_active().then(|| port.gid()));
            }
        }
        findings.extend([library(facts), memlock(facts, question), build(question)]);

        // One good port is enough. Faults of other ports do not stop the fabric.
        if usable.is_some() {
            for finding in &mut findings {
                if finding.stops_verbs.as_deref().is_some_and(|why| why.starts_with(NO_PORT)) {
                    finding.level = Level::Warning;
                    finding.stops_verbs = None;
                }
            }
        }
        let tcp =
            Verdict { works: true, why: "where there is no RDMA: a GET is a request to the server".into() };
        Diagnosis { shm: shm(facts), verbs: verbs(&findings, usable), tcp, findings, ports }
    }
}

/// The first words of a reason that concerns one port among several.
const NO_PORT: &str = "no usable port";

fn shm(facts: &Facts) -> Verdict {
    match &facts.shm.sealing_error {
        None => Verdict { works: true, why: "between processes of this host".into() },
        Some(error) => Verdict { works: false, why: format!("because memory cannot be shared: {error}") },
    }
}

fn verbs(findings: &[Finding], usable: Option<&PortGids<'_>>) -> Verdict {
    let mut reasons: Vec<&str> = findings.iter().filter_map(|f| f.stops_verbs.as_deref()).collect();
    reasons.dedup();
    match (usable, reasons.as_slice()) {
        (Some(port), []) => Verdict { works: true, why: format!("on {}", port.name()) },
        (Some(port), [NOT_BUILT]) => Verdict {
            works: false,
            why: format!("because {NOT_BUILT}; the machine is ready, on {}", port.name()),
        },
        (_, reasons) => Verdict { works: false, why: format!("because {}", reasons.join(", ")) },
    }
}

const NOT_BUILT: &str = "this build lacks it";

fn build(question: &Question) -> Finding {
    if question.verbs_built {
        return Finding::new(Level::Ok, "this build", "has the fabric verbs");
    }
    Finding::new(Level::Problem, "this build", "lacks the fabric verbs")
        .command("cargo install --path cli --features verbs")
        .stops_verbs(NOT_BUILT)
}

fn sealing(facts: &Facts) -> Finding {
    match &facts.shm.sealing_error {
        None => Finding::new(Level::Ok, "shared memory", "made and sealed against writers"),
        Some(error) => {
            Finding::new(Level::Problem, "shared memory", format!("cannot be made and sealed: {error}"))
                .advice("allow memfd_create and F_ADD_SEALS in the sandbox or seccomp profile this runs in")
        }
    }
}

fn dev_shm(facts: &Facts, question: &Question) -> Finding {
    let need = show::bytes(question.table_bytes);
    match facts.shm.free {
        None => Finding::new(Level::Warning, "/dev/shm", "there is none, and tables are kept there")
            .advice("mount it, or name a file with --region, or serve --anonymous")
            .command(as_root(facts, &["mkdir -p /dev/shm", "mount -t tmpfs tmpfs /dev/shm"])),
        Some(free) if free < question.table_bytes => Finding::new(
            Level::Warning,
            "/dev/shm",
            format!("{} free, a table of a million keys takes {need}", show::bytes(free)),
        )
        .advice("make it larger (in a container: docker run --shm-size), or serve a smaller table")
        .command(as_root(
            facts,
            &[&format!("mount -o remount,size={}M /dev/shm", question.table_bytes >> 19)],
        )),
        Some(free) => Finding::new(
            Level::Ok,
            "/dev/shm",
            format!("{} free; a table of a million keys takes {need}", show::bytes(free)),
        ),
    }
}

/// Huge pages are optional, so this is never more than a note.
/// From Linux 6.1 on a server has its memory moved into them. Before, tables in files get transparent ones, those
/// without a file also reserved ones.
fn huge_pages(facts: &Facts, question: &Question) -> Finding {
    const HUGE: u64 = 2 << 20;
    let memory = &facts.memory;
    let mode = memory.transparent.as_deref();
    let is_transparent = matches!(mode, Some("always" | "within_size" | "advise" | "force"));
    let transparent = match mode {
        _ if memory.moves => "tables get them without being asked".into(),
        Some(_) if is_transparent => "region files get transparent ones".into(),
        Some(mode) => format!("region files get none ({mode})"),
        None => "region files get none: the kernel has no transparent ones".into(),
    };
    let finding = |level, found: String| Finding::new(level, "huge pages", found);
    let reserve = |pages: &HugePages, need| {
        format!("sysctl vm.nr_hugepages={}", pages.reserved - pages.free.min(pages.reserved) + need)
    };
    const ADVISE: &str = "sh -c 'echo advise > /sys/kernel/mm/transparent_hugepage/shmem_enabled'";
    let need = question.table_bytes.div_ceil(HUGE);
    let (is_reserved, reserved, command) = match memory.huge_pages.iter().find(|pages| pages.bytes == HUGE) {
        Some(pages) if pages.free >= need => {
            (true, format!("{} of 2 MiB free for tables without a file", show::count(pages.free)), None)
        }
        Some(pages) => {
            let free = if pages.free == 0 { "none".into() } else { show::count(pages.free) };
            let reserved = format!("{free} of 2 MiB free, a table without a file would take {need}");
            (false, reserved, Some(reserve(pages, need)))
        }
        None => (false, "the kernel reserves none of 2 MiB".into(), None),
    };
    let found = format!("{transparent}; {reserved}");
    if memory.moves || is_transparent || is_reserved {
        return finding(Level::Ok, found);
    }
    // What makes the pages of every table huge comes first.
    let command = mode.map(|_| ADVISE.to_owned()).or(command);
    match command {
        Some(command) => finding(Level::Note, found).command(as_root(facts, &[&command])),
        None => finding(Level::Note, found),
    }
}

fn kernel(facts: &Facts) -> Finding {
    let kernel = &facts.kernel;
    let finding =
        |level, text: &str| Finding::new(level, "kernel", format!("Linux {}{text}", kernel.release));
    match kernel.uverbs {
        Module::Loaded => finding(Level::Ok, ", ib_uverbs is loaded"),
        Module::Available if facts.devices.is_empty() => finding(Level::Ok, ", can load ib_uverbs"),
        Module::Available => finding(Level::Problem, ": ib_uverbs is not loaded, which hands devices to programs")
            .command(as_root(facts, &["modprobe ib_uverbs"]))
            .stops_verbs("ib_uverbs is not loaded"),
        Module::Missing if !kernel.loads_modules => {
            finding(Level::Problem, " is built without RDMA and loads no modules")
                .advice("boot a kernel with the modules ib_uverbs and rdma_rxe, as distributions have them, on this machine or in a virtual one")
                .stops_verbs("this kernel has no RDMA")
        }
        Module::Missing if kernel.container => {
            finding(Level::Problem, ": this looks like a container, and its host has not loaded ib_uverbs")
                .advice("on the host, not in here:")
                .command("sudo modprobe ib_uverbs")
                .stops_verbs("ib_uverbs is not loaded")
        }
        Module::Missing => install_modules(facts, finding(Level::Problem, ": its module ib_uverbs is not installed"))
            .stops_verbs("ib_uverbs is not installed"),
    }
}

fn no_device(facts: &Facts) -> Finding {
    let none = |found: &str| {
        Finding::new(Level::Problem, "RDMA device", found).stops_verbs("there is no RDMA device")
    };
    if let Some((module, state)) = facts.card_modules.iter().find(|(_, state)| *state != Module::Loaded) {
        let found = format!("none, but there is a card that the module {module} makes one of");
        return match state {
            Module::Available => none(&found).command(as_root(facts, &[&format!("modprobe {module}")])),
            _ => install_modules(facts, none(&format!("{found}, and it is not installed"))),
        };
    }
    let kernel = &facts.kernel;
    if kernel.rxe != Module::Missing {
        let finding = none("none; Soft-RoCE makes one of any Ethernet interface, in software");
        return if kernel.container && kernel.rxe != Module::Loaded {
            finding.advice("on the host, if this is a container:").command(soft_roce(facts))
        } else {
            finding.command(soft_roce(facts))
        };
    }
    let finding = none("none, and no card that could be one");
    match () {
        () if !kernel.loads_modules => {
            finding.advice("with such a kernel, Soft-RoCE (the module rdma_rxe) makes one in software")
        }
        () if kernel.container => finding
            .advice("on the host, not in here (the name of the interface may be another one there):")
            .command(soft_roce(facts)),
        () => {
            let found =
                "none, and the module of Soft-RoCE (rdma_rxe), which makes one in software, is not installed";
            install_modules(facts, none(found))
        }
    }
}

/// The commands that make a device in software on the most suitable interface.
fn soft_roce(facts: &Facts) -> String {
    let worth = |interface: &Interface| {
        let routed = interface.addresses.iter().any(|at| match at.address {
            IpAddr::V4(ip) => !ip.is_link_local(),
            IpAddr::V6(ip) => !ip.is_unicast_link_local(),
        });
        (routed, interface.state == "up")
    };
    let best = facts.interfaces.iter().filter(|interface| interface.ethernet && interface.up);
    let best = best.rev().max_by_key(|interface| worth(interface));
    let (made, name) = match best {
        Some(interface) => (vec![], interface.name.as_str()),
        None => (
            vec![
                "ip link add dummy0 type dummy",
                "ip addr add 192.168.77.1/24 dev dummy0",
                "ip link set dummy0 up",
            ],
            "dummy0",
        ),
    };
    let link = format!("rdma link add rxe0 type rxe netdev {name}");
    let tool = packages(facts.distribution, "iproute2").unwrap_or_default();
    let mut commands = made;
    if !facts.rdma_tool && !tool.is_empty() {
        commands.push(&tool);
    }
    if facts.kernel.rxe != Module::Loaded {
        commands.push("modprobe rdma_rxe");
    }
    commands.push(&link);
    as_root(facts, &commands)
}

fn device(device: &Device) -> Finding {
    let mut about = Vec::new();
    if device.software {
        about.push("made in software: correct, but slow".to_string());
    }
    about.extend(device.driver.clone());
    about.extend(device.firmware.as_ref().map(|version| format!("firmware {version}")));
    about.extend(device.board.as_ref().map(|board| format!("board {board}")));
    let what = format!("device {}", device.name);
    if device.is_fit() {
        return Finding::new(Level::Ok, what, about.join(", "));
    }
    about.push(format!("its kind is {}, not CA: it does neither InfiniBand nor RoCE", device.node_type));
    Finding::new(Level::Problem, what, about.join(", "))
        .advice("use an InfiniBand or RoCE device")
        .stops_verbs(format!("{NO_PORT} on {}", device.name))
}

impl Device {
    /// Whether it makes the connections that oneread needs.
    fn is_fit(&self) -> bool {
        self.node_type == "CA"
    }

    fn is_open(&self) -> bool {
        self.uverbs.as_ref().is_some_and(|file| file.error.is_none())
    }
}

fn permission(facts: &Facts, device: &Device) -> Finding {
    let Some(file) = &device.uverbs else {
        let what = format!("permission for {}", device.name);
        return Finding::new(Level::Problem, what, "the kernel offers the device to no program")
            .command(as_root(facts, &["modprobe ib_uverbs"]))
            .stops_verbs(format!("{NO_PORT} on {}", device.name));
    };
    let path = file.path.display();
    let what = format!("permission for {}", device.name);
    let Some(error) = &file.error else {
        return Finding::new(Level::Ok, what, format!("{path} opens for reading and writing"));
    };
    let finding = |found: String| {
        Finding::new(Level::Problem, &what, found).stops_verbs(format!("{NO_PORT} on {}", device.name))
    };
    let in_container = "start the container with --device=/dev/infiniband --cap-add=IPC_LOCK";
    match (error.kind(), error.raw_os_error()) {
        (io::ErrorKind::NotFound, _) if facts.kernel.container => {
            finding(format!("{path} is missing in this container")).advice(in_container)
        }
        (io::ErrorKind::NotFound, _) => {
            let numbers = file.numbers.as_deref().unwrap_or("231:192").replace(':', " ");
            finding(format!("{path} is missing, though the kernel has it")).command(as_root(
                facts,
                &["mkdir -p /dev/infiniband", &format!("mknod -m 666 {path} c {numbers}")],
            ))
        }
        (_, Some(code)) if code == rustix::io::Errno::PERM.raw_os_error() => {
            finding(format!("{path}: a container's rules forbid to open it")).advice(in_container)
        }
        (io::ErrorKind::PermissionDenied, _) => {
            finding(format!("user {} may not read and write {path}", facts.user.uid))
                .command(as_root(facts, &[&format!("chmod a+rw {path}")]))
        }
        _ => finding(format!("opening {path}: {error}"))
            .advice("the kernel's log may tell why: sudo dmesg | tail"),
    }
}

impl<'a> PortGids<'a> {
    fn of(
        device: &'a Device,
        port: &'a Port,
        addresses: &'a [(IpAddr, u8)],
        peer: Option<IpAddr>,
    ) -> PortGids<'a> {
        let request = GidQuery {
            entries: &port.gids,
            link_layer: port.link_layer,
            lid: port.lid,
            peer,
            peer_prefix: None,
            addresses,
            index: None,
        };
        let choice = match gid::choose(&request) {
            // The collected facts leave out empty entries.
            Err(GidError::NoGid) if port.gid_places > 0 => {
                Err(GidError::OnlyZero { places: port.gid_places })
            }
            choice => choice,
        };
        PortGids { device, port, ranking: gid::rank(&request), choice }
    }

    /// The port's name, as in "rxe0 port 1".
    pub fn name(&self) -> String {
        format!("{} port {}", self.device.name, self.port.number)
    }

    fn is_active(&self) -> bool {
        self.port.state == "ACTIVE"
    }

    fn is_usable(&self) -> bool {
        self.is_active() && self.choice.is_ok() && self.device.is_fit() && self.device.is_open()
    }

    fn state(&self, facts: &Facts) -> Finding {
        let port = self.port;
        let interface = port.netdev.as_deref().and_then(|name| facts.interface(name));
        let mut about = vec![port.state.clone(), port.link_layer.to_string(), port.rate.clone()];
        if port.link_layer == LinkLayer::InfiniBand {
            about.push(format!("LID {}, subnet manager at LID {}", port.lid, port.sm_lid));
        }
        if let Some(interface) = interface {
            about.push(format!("{}, MTU {}", interface.name, interface.mtu));
            about.push(format!("packets of {} bytes", show::count(packet(interface.mtu).into())));
        }
        if self.is_active() {
            return Finding::new(Level::Ok, self.name(), about.join(", "));
        }
        let finding = |found: String| {
            Finding::new(Level::Problem, self.name(), found)
                .stops_verbs(format!("{NO_PORT} on {}", self.device.name))
        };
        match (port.link_layer, interface) {
            (LinkLayer::Ethernet, Some(interface)) if !interface.up => {
                finding(format!("{}, because its interface {} is switched off", port.state, interface.name))
                    .command(as_root(facts, &[&format!("ip link set {} up", interface.name)]))
            }
            (LinkLayer::Ethernet, Some(interface)) => {
                finding(format!("{}: {} has no link", port.state, interface.name))
                    .advice("plug in the cable, or look at the switch's port; this shows what the card sees:")
                    .command(as_root(facts, &[&format!("ethtool {}", interface.name)]))
            }
            (LinkLayer::InfiniBand, _) if port.physical == "LinkUp" => {
                let install = packages(facts.distribution, "opensm");
                let commands: Vec<_> =
                    install.as_deref().into_iter().chain(["systemctl enable --now opensm"]).collect();
                finding(format!("{}: no subnet manager has configured it", port.state))
                    .advice("start one on any machine of the fabric, or in the switch:")
                    .command(as_root(facts, &commands))
            }
            _ => finding(format!("{}, {}: no link", port.state, port.physical))
                .advice("plug in the cable, or look at the switch's port"),
        }
    }

    fn gid(&self) -> Finding {
        let what = format!("GID of {}", self.name());
        match &self.choice {
            Ok(choice) => {
                let level = if choice.doubtful { Level::Warning } else { Level::Ok };
                Finding::new(level, what, &choice.why)
            }
            Err(error) => Finding::new(Level::Problem, what, error.to_string())
                .stops_verbs(format!("{NO_PORT} on {}", self.device.name)),
        }
    }
}

/// The payload of a RoCE packet, in bytes, on an interface of this MTU.
fn packet(mtu: u32) -> u32 {
    /// The most bytes that headers take.
    const HEADERS: u32 = 96;
    [4096, 2048, 1024, 512].into_iter().find(|size| size + HEADERS <= mtu).unwrap_or(256)
}

fn library(facts: &Facts) -> Finding {
    let install = |finding: Finding| match packages(facts.distribution, "verbs") {
        Some(command) => finding.command(as_root(facts, &[&command])),
        None => finding.advice("install rdma-core"),
    };
    let library = &facts.library;
    match &library.path {
        None => install(Finding::new(Level::Problem, "libibverbs.so.1", "is not installed"))
            .stops_verbs("libibverbs.so.1 is not installed"),
        Some(path) if library.providers.is_empty() => install(Finding::new(
            Level::Warning,
            "libibverbs.so.1",
            format!("{}, but no device's part of it beside it", path.display()),
        )),
        Some(path) => Finding::new(
            Level::Ok,
            "libibverbs.so.1",
            format!("{}, with the parts for {}", path.display(), kinds(&library.providers)),
        ),
    }
}

fn kinds(providers: &[String]) -> String {
    match providers.len() {
        0..=4 => providers.join(", "),
        many => format!("{many} kinds of devices"),
    }
}

/// A server must lock its whole table; a client needs to lock little.
fn memlock(facts: &Facts, question: &Question) -> Finding {
    const WHAT: &str = "locked memory";
    let memory = &facts.memory;
    if facts.user.locks_without_limit {
        return Finding::new(Level::Ok, WHAT, "no limit for this user (CAP_IPC_LOCK)");
    }
    let Some(limit) = memory.memlock else {
        return Finding::new(Level::Ok, WHAT, "no limit");
    };
    if limit >= question.table_bytes {
        return Finding::new(Level::Ok, WHAT, format!("up to {}", show::bytes(limit)));
    }
    let need = show::bytes(question.table_bytes);
    let limit_text = show::bytes(limit);
    let finding = if limit < CLIENT_LOCKS {
        Finding::new(
            Level::Problem,
            WHAT,
            format!("up to {limit_text}: a client's queues may not fit; a server must lock its table, by default {need}"),
        )
        .stops_verbs(format!("only {limit_text} may be locked"))
    } else {
        Finding::new(
            Level::Warning,
            WHAT,
            format!(
                "up to {limit_text}: enough for a client; a server must lock its table, by default {need}"
            ),
        )
    };
    match memory.memlock_hard {
        None => finding.command("ulimit -l unlimited"),
        Some(_) => {
            let line = "'* - memlock unlimited'";
            let file = "/etc/security/limits.d/90-oneread.conf";
            let tee = if is_root(facts) { "tee" } else { "sudo tee" };
            finding
                .advice("log in again after this; instead, a systemd unit takes LimitMEMLOCK=infinity, a container --ulimit memlock=-1:")
                .command(format!("echo {line} | {tee} {file}"))
        }
    }
}

fn is_root(facts: &Facts) -> bool {
    facts.user.uid == 0
}

/// The commands, one after the other, with root's rights.
fn as_root(facts: &Facts, commands: &[&str]) -> String {
    let sudo = if is_root(facts) { "" } else { "sudo " };
    commands.iter().map(|command| format!("{sudo}{command}")).collect::<Vec<_>>().join(" && ")
}

/// The command that installs something, if this distribution's command is known.
fn packages(distribution: Distribution, what: &str) -> Option<String> {
    let (install, names) = match distribution {
        Distribution::Debian | Distribution::Ubuntu => {
            ("apt-get install", [("verbs", "libibverbs1 ibverbs-providers"), ("iproute2", "iproute2")])
        }
        Distribution::Fedora => {
            ("dnf install", [("verbs", "libibverbs rdma-core"), ("iproute2", "iproute iproute-tc")])
        }
        Distribution::Suse => {
            ("zypper install", [("verbs", "libibverbs1 rdma-core"), ("iproute2", "iproute2")])
        }
        Distribution::Arch => ("pacman -S", [("verbs", "rdma-core"), ("iproute2", "iproute2")]),
        Distribution::Other => return None,
    };
    let name = names.iter().find(|(key, _)| *key == what).map_or(what, |(_, name)| name);
    Some(format!("{install} {name}"))
}

/// Adds how to get the kernel modules that small kernels lack.
fn install_modules(facts: &Facts, finding: Finding) -> Finding {
    let release = &facts.kernel.release;
    if !facts.kernel.has_modules {
        let gone = format!("/lib/modules/{release} is gone, as it is after an upgrade of the kernel: reboot");
        return finding.advice(gone);
    }
    let debian = if cfg!(target_arch = "aarch64") { "linux-image-arm64" } else { "linux-image-amd64" };
    let command = match facts.distribution {
        Distribution::Ubuntu => format!("apt-get install linux-modules-extra-{release}"),
        // Installs the full kernel: the one for clouds has no RDMA.
        Distribution::Debian => format!("apt-get install {debian}"),
        Distribution::Fedora => format!("dnf install kernel-modules-extra-{release}"),
        Distribution::Suse => "zypper install kernel-default".into(),
        Distribution::Arch | Distribution::Other => {
            return finding.advice(format!("install the RDMA modules of the kernel {release}"));
        }
    };
    let finding = finding.command(as_root(facts, &[&command]));
    match facts.distribution {
        Distribution::Debian | Distribution::Suse => {
            finding.advice("then boot the kernel that this installs:")
        }
        _ => finding,
    }
}
