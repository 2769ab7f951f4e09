//! The facts about this machine that a fabric depends on. This module collects them and does not
//! judge them.
//!
//! Files are looked up under a root folder, so that a test can lay out a machine. Nothing here
//! fails: if a file is missing or makes no sense, its fact is missing.

use oneread::internals::verbs::gid::{Entry, GidKind, LinkLayer};
use serde::Serialize;
use std::ffi::OsString;
use std::fs::OpenOptions;
use std::io;
use std::net::IpAddr;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// Facts that only the running system can tell: they are in no file.
#[derive(Debug, Default)]
pub struct Live {
    pub addresses: Vec<InterfaceAddress>,
    /// The environment's LD_LIBRARY_PATH.
    pub library_path: Option<OsString>,
    /// Why memory without a file cannot be made and sealed.
    pub sealing_error: Option<String>,
}

/// An address of a network interface.
#[derive(Clone, Debug, Serialize)]
pub struct InterfaceAddress {
    pub interface: String,
    pub address: IpAddr,
    /// Length of the subnet's prefix in bits.
    pub prefix: u8,
}

#[derive(Debug, Serialize)]
pub struct Facts {
    pub kernel: Kernel,
    pub distribution: Distribution,
    pub user: User,
    pub memory: Memory,
    pub library: Library,
    /// Whether iproute2's `rdma` tool is installed.
    pub rdma_tool: bool,
    pub devices: Vec<Device>,
    pub interfaces: Vec<Interface>,
    /// The addresses of all interfaces, with the lengths of their subnets' prefixes in bits.
    #[serde(skip)]
    pub addresses: Vec<(IpAddr, u8)>,
    /// Kernel modules that would make an RDMA device of a network card in this machine.
    pub card_modules: Vec<(&'static str, Module)>,
    pub shm: Shm,
}

#[derive(Debug, Serialize)]
pub struct Kernel {
    pub release: String,
    /// Whether the kernel can load modules at all.
    pub loads_modules: bool,
    /// Whether modules for this kernel are installed.
    pub has_modules: bool,
    pub uverbs: Module,
    pub rxe: Module,
    /// Whether this looks like a container. Its kernel belongs to the host.
    pub container: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Module {
    Loaded,
    /// Installed, or built in and not in use.
    Available,
    Missing,
}

/// The distribution, by the command that installs packages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Distribution {
    Debian,
    Ubuntu,
    Fedora,
    Suse,
    Arch,
    Other,
}

#[derive(Debug, Serialize)]
pub struct User {
    pub uid: u32,
    /// Whether there is no limit on locked memory: the process has CAP_IPC_LOCK outside of any user
    /// namespace. Inside of one, the capability does not count.
    pub locks_without_limit: bool,
}

#[derive(Debug, Serialize)]
pub struct Memory {
    /// Bytes that this process may lock; `None` if there is no limit.
    pub memlock: Option<u64>,
    /// The limit to which the process may raise `memlock` by itself.
    pub memlock_hard: Option<u64>,
    pub huge_pages: Vec<HugePages>,
    /// When shared memory gets transparent huge pages: always, within_size, advise, never, deny or
    /// force; `None` if the kernel has none.
    pub transparent: Option<String>,
    /// Whether the kernel moves shared memory into huge pages when a server tells it to, whatever that says
    /// but "deny".
    pub moves: bool,
}

#[derive(Debug, Serialize)]
pub struct HugePages {
    /// Bytes of one page.
    pub bytes: u64,
    pub reserved: u64,
    pub free: u64,
}

#[derive(Debug, Serialize)]
pub struct Library {
    /// The path of libibverbs.so.1.
    pub path: Option<PathBuf>,
    /// The library's drivers for devices, as in "mlx5".
    pub providers: Vec<String>,
}

#[derive(Debug, Serialize)]
pub struct Device {
    pub name: String,
    /// As the kernel names it: "CA" (InfiniBand and RoCE), "RNIC" (iWARP), ...
    pub node_type: String,
    /// Whether it is a device in software, as Soft-RoCE is.
    pub software: bool,
    pub firmware: Option<String>,
    pub board: Option<String>,
    /// The kernel's driver.
    pub driver: Option<String>,
    pub uverbs: Option<Uverbs>,
    pub ports: Vec<Port>,
}

/// The device file through which programs use a device.
#[derive(Debug, Serialize)]
pub struct Uverbs {
    pub path: PathBuf,
    /// Major and minor number, as in "231:192".
    pub numbers: Option<String>,
    /// Why this user cannot open it for reading and writing.
    #[serde(serialize_with = "io_error")]
    pub error: Option<io::Error>,
}

#[derive(Debug, Serialize)]
pub struct Port {
    pub number: u32,
    /// As the kernel names it: "ACTIVE", "DOWN", "INIT", ...
    pub state: String,
    /// "LinkUp", "Polling", "Disabled", ...
    pub physical: String,
    #[serde(serialize_with = "shown")]
    pub link_layer: LinkLayer,
    pub rate: String,
    pub lid: u16,
    /// The subnet manager's LID.
    pub sm_lid: u16,
    pub netdev: Option<String>,
    /// Number of entries in its GID table, with the empty ones.
    pub gid_places: usize,
    /// The entries that are not empty.
    #[serde(skip)]
    pub gids: Vec<Entry>,
}

#[derive(Debug, Serialize)]
pub struct Interface {
    pub name: String,
    pub index: u32,
    /// The MTU in bytes.
    pub mtu: u32,
    /// Whether it is switched on, with or without a cable.
    pub up: bool,
    /// "up", "down", "unknown", ...
    pub state: String,
    pub ethernet: bool,
    pub addresses: Vec<InterfaceAddress>,
}

#[derive(Debug, Serialize)]
pub struct Shm {
    /// Free bytes in /dev/shm; `None` if there is no such folder.
    pub free: Option<u64>,
    /// Why memory without a file cannot be made and sealed.
    pub sealing_error: Option<String>,
}

/// Kernel drivers of network cards, and the modules that make RDMA devices of them.
const CARD_MODULES: [(&str, &str); 8] = [
    ("mlx5_core", "mlx5_ib"),
    ("mlx4_core", "mlx4_ib"),
    ("bnxt_en", "bnxt_re"),
    ("ice", "irdma"),
    ("qede", "qedr"),
    ("hns3", "hns_roce_hw_v2"),
    ("mana", "mana_ib"),
    ("ionic", "ionic_rdma"),
];

impl Facts {
    /// Collects the facts from the files under `root`: "/", or a folder that looks like it.
    pub fn collect(root: &Path, live: Live) -> Facts {
        let root = &Root(root.into());
        let interfaces = root.list("sys/class/net");
        let interfaces: Vec<_> =
            interfaces.into_iter().filter_map(|name| interface(root, name, &live.addresses)).collect();
        let kernel = kernel(root);
        Facts {
            devices: root.list("sys/class/infiniband").into_iter().map(|name| device(root, name)).collect(),
            card_modules: CARD_MODULES
                .iter()
                .filter(|(driver, _)| {
                    // The cards in the folder are links. Their names are their places on the bus.
                    root.list(&format!("sys/bus/pci/drivers/{driver}")).iter().any(|name| name.contains(':'))
                })
                .map(|&(_, name)| (name, module(root, &kernel.release, name)))
                .collect(),
            distribution: distribution(root),
            user: user(root),
            memory: memory(root),
            library: library(root, live.library_path),
            rdma_tool: ["usr/sbin", "usr/bin", "sbin", "bin"]
                .iter()
                .any(|folder| root.has(&format!("{folder}/rdma"))),
            shm: Shm { free: free(root), sealing_error: live.sealing_error },
            addresses: live.addresses.iter().map(|at| (at.address, at.prefix)).collect(),
            interfaces,
            kernel,
        }
    }

    pub fn interface(&self, name: &str) -> Option<&Interface> {
        self.interfaces.iter().find(|interface| interface.name == name)
    }
}

/// The folder that stands for "/".
struct Root(PathBuf);

impl Root {
    fn path(&self, path: impl AsRef<Path>) -> PathBuf {
        let path = path.as_ref();
        self.0.join(path.strip_prefix("/").unwrap_or(path))
    }

    fn has(&self, path: &str) -> bool {
        self.path(path).exists()
    }

    /// A file's text without white space around it; `None` if it is empty, too.
    fn text(&self, path: &str) -> Option<String> {
        let bytes = std::fs::read(self.path(path)).ok()?;
        let text = String::from_utf8_lossy(&bytes);
        Some(text.trim().to_string()).filter(|text| !text.is_empty())
    }

    fn number<N: std::str::FromStr>(&self, path: &str) -> Option<N> {
        self.text(path)?.parse().ok()
    }

    /// "4: ACTIVE" as "ACTIVE".
    fn named(&self, path: &str) -> String {
        let text = self.text(path).unwrap_or_else(|| "unknown".into());
        text.split_once(": ").map(|(_, name)| name.to_string()).unwrap_or(text)
    }

    fn hex(&self, path: &str) -> Option<u16> {
        u16::from_str_radix(self.text(path)?.strip_prefix("0x")?, 16).ok()
    }

    /// The names in a folder, sorted.
    fn list(&self, path: &str) -> Vec<String> {
        let mut names: Vec<_> = std::fs::read_dir(self.path(path))
            .into_iter()
            .flatten()
            .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
            .collect();
        names.sort();
        names
    }

    /// The last part of a link's target.
    fn link(&self, path: &str) -> Option<String> {
        let target = std::fs::read_link(self.path(path)).ok()?;
        Some(target.file_name()?.to_str()?.to_string())
    }

    /// The text after a name at the start of a line, as in /proc/self/status.
    fn field(&self, path: &str, name: &str) -> Option<String> {
        let text = self.text(path)?;
        text.lines().find_map(|line| Some(line.strip_prefix(name)?.trim().to_string()))
    }
}

fn kernel(root: &Root) -> Kernel {
    let release = root.text("proc/sys/kernel/osrelease").unwrap_or_else(|| "unknown".into());
    let in_use = root.has("sys/class/infiniband_verbs");
    Kernel {
        loads_modules: root.has("proc/modules")
            && root.text("proc/sys/kernel/modules_disabled").is_none_or(|disabled| disabled == "0"),
        has_modules: module_folders(&release).iter().any(|folder| root.has(folder)),
        uverbs: if in_use { Module::Loaded } else { module(root, &release, "ib_uverbs") },
        rxe: module(root, &release, "rdma_rxe"),
        container: root.has(".dockerenv") || root.has("run/.containerenv"),
        release,
    }
}

fn module_folders(release: &str) -> [String; 2] {
    ["lib", "usr/lib"].map(|lib| format!("{lib}/modules/{release}"))
}

fn module(root: &Root, release: &str, name: &str) -> Module {
    if root.has(&format!("sys/module/{name}")) {
        return Module::Loaded;
    }
    // A line looks like "kernel/drivers/infiniband/sw/rxe/rdma_rxe.ko.xz: kernel/..."
    let file = format!("/{name}.ko");
    let listed = |list: String| {
        let text = root.text(&list).unwrap_or_default();
        text.lines().any(|line| line.split(':').next().is_some_and(|path| path.contains(&file)))
    };
    let folders = module_folders(release);
    let found = folders
        .iter()
        .any(|folder| listed(format!("{folder}/modules.dep")) || listed(format!("{folder}/modules.builtin")));
    if found { Module::Available } else { Module::Missing }
}

fn distribution(root: &Root) -> Distribution {
    let name = |key| root.field("etc/os-release", key).unwrap_or_default().replace('"', "");
    let names = format!("{} {}", name("ID="), name("ID_LIKE="));
    let is = |these: &[&str]| names.split_whitespace().any(|name| these.contains(&name));
    match () {
        () if is(&["ubuntu"]) => Distribution::Ubuntu,
        () if is(&["debian"]) => Distribution::Debian,
        () if is(&["fedora", "rhel", "centos"]) => Distribution::Fedora,
        () if is(&["suse", "opensuse", "sles"]) => Distribution::Suse,
        () if is(&["arch"]) => Distribution::Arch,
        () => Distribution::Other,
    }
}

fn user(root: &Root) -> User {
    const CAP_IPC_LOCK: u64 = 1 << 14;
    let status = |name| root.field("proc/self/status", name);
    let capabilities = status("CapEff:").and_then(|hex| u64::from_str_radix(&hex, 16).ok()).unwrap_or(0);
    let map = root.text("proc/self/uid_map").unwrap_or_default();
    let outermost = map.split_whitespace().eq(["0", "0", "4294967295"]);
    User {
        // The order is: real, effective, saved, file system.
        uid: status("Uid:").and_then(|ids| ids.split_whitespace().nth(1)?.parse().ok()).unwrap_or(u32::MAX),
        locks_without_limit: capabilities & CAP_IPC_LOCK != 0 && outermost,
    }
}

/// How many bytes this process may lock in memory. `None`: without a limit.
pub fn locked_memory_max() -> Option<u64> {
    let root = Root("/".into());
    memory(&root).memlock.filter(|_| !user(&root).locks_without_limit)
}

fn memory(root: &Root) -> Memory {
    let limits = root.field("proc/self/limits", "Max locked memory").unwrap_or_default();
    let mut limits = limits.split_whitespace().map(|limit| limit.parse().ok());
    let huge = root.list("sys/kernel/mm/hugepages");
    let transparent = root.text("sys/kernel/mm/transparent_hugepage/shmem_enabled");
    let release = root.text("proc/sys/kernel/osrelease").unwrap_or_default();
    let mut version = release.split('.').map(|part| part.parse::<u32>().unwrap_or(0));
    let is_new = (version.next(), version.next()) >= (Some(6), Some(1));
    let length: Option<u64> = root.number("sys/kernel/mm/transparent_hugepage/hpage_pmd_size");
    let transparent = transparent
        // The file looks like "always within_size advise [never] deny force".
        .and_then(|text| Some(text.split_once('[')?.1.split_once(']')?.0.to_string()));
    Memory {
        moves: is_new && length == Some(2 << 20) && transparent.as_deref().is_some_and(|mode| mode != "deny"),
        memlock: limits.next().flatten(),
        memlock_hard: limits.next().flatten(),
        huge_pages: huge.iter().filter_map(|name| huge_pages(root, name)).collect(),
        transparent,
    }
}

fn huge_pages(root: &Root, name: &str) -> Option<HugePages> {
    let kib: u64 = name.strip_prefix("hugepages-")?.strip_suffix("kB")?.parse().ok()?;
    let number = |file| root.number(&format!("sys/kernel/mm/hugepages/{name}/{file}"));
    Some(HugePages { bytes: kib << 10, reserved: number("nr_hugepages")?, free: number("free_hugepages")? })
}

/// Looks for the library as the loader does: LD_LIBRARY_PATH, the loader's cache, the standard
/// folders.
fn library(root: &Root, library_path: Option<OsString>) -> Library {
    const NAME: &str = "libibverbs.so.1";
    let named = std::env::split_paths(&library_path.unwrap_or_default())
        .filter(|folder| folder.is_absolute())
        .map(|folder| folder.join(NAME))
        .collect::<Vec<_>>();
    let cache = std::fs::read(root.path("etc/ld.so.cache")).unwrap_or_default();
    let cached = cache
        .split(|&byte| byte == 0)
        .filter_map(|item| std::str::from_utf8(item).ok())
        .filter(|item| item.starts_with('/') && item.ends_with(&format!("/{NAME}")))
        .map(PathBuf::from);
    let multiarch = format!("/usr/lib/{}-linux-gnu", std::env::consts::ARCH);
    let standard = ["/lib64", "/usr/lib64", &multiarch, "/lib", "/usr/lib", "/usr/local/lib"]
        .map(|folder| Path::new(folder).join(NAME));
    let path = named.into_iter().chain(cached).chain(standard).find(|path| root.path(path).exists());
    // The drivers are files such as libibverbs/libmlx5-rdmav34.so beside the library.
    let folder = path.as_ref().and_then(|path| path.parent()).map(|folder| folder.join("libibverbs"));
    let mut providers: Vec<String> = folder
        .and_then(|folder| Some(root.list(folder.to_str()?)))
        .unwrap_or_default()
        .iter()
        .filter_map(|file| Some(file.strip_prefix("lib")?.split_once("-rdmav")?.0.to_string()))
        .collect();
    providers.dedup();
    Library { path, providers }
}

fn device(root: &Root, name: String) -> Device {
    let at = format!("sys/class/infiniband/{name}");
    let ports = root.list(&format!("{at}/ports"));
    let mut ports: Vec<_> = ports.iter().filter_map(|number| port(root, &at, number)).collect();
    ports.sort_by_key(|port| port.number);
    Device {
        node_type: root.named(&format!("{at}/node_type")),
        software: !root.has(&format!("{at}/device")),
        firmware: root.text(&format!("{at}/fw_ver")),
        board: root.text(&format!("{at}/board_id")),
        driver: root.link(&format!("{at}/device/driver")),
        uverbs: uverbs(root, &name),
        ports,
        name,
    }
}

fn uverbs(root: &Root, device: &str) -> Option<Uverbs> {
    const CLASS: &str = "sys/class/infiniband_verbs";
    let name = root
        .list(CLASS)
        .into_iter()
        .find(|name| root.text(&format!("{CLASS}/{name}/ibdev")).is_some_and(|ibdev| ibdev == device))?;
    let path = PathBuf::from(format!("/dev/infiniband/{name}"));
    let nonblock = rustix::fs::OFlags::NONBLOCK.bits() as i32;
    let opened = OpenOptions::new().read(true).write(true).custom_flags(nonblock).open(root.path(&path));
    Some(Uverbs { numbers: root.text(&format!("{CLASS}/{name}/dev")), path, error: opened.err() })
}

fn port(root: &Root, device: &str, number: &str) -> Option<Port> {
    let at = format!("{device}/ports/{number}");
    let link_layer = match root.text(&format!("{at}/link_layer")).as_deref() {
        Some("Ethernet") => LinkLayer::Ethernet,
        _ => LinkLayer::InfiniBand,
    };
    let places: Vec<u32> =
        root.list(&format!("{at}/gids")).iter().filter_map(|index| index.parse().ok()).collect();
    let gids: Vec<_> = places.iter().filter_map(|&index| entry(root, &at, index, link_layer)).collect();
    // The device knows its interface even if it has no GID.
    let netdev = gids.iter().find_map(|entry| entry.netdev.clone());
    let netdev = netdev.or_else(|| root.text(&format!("{device}/parent")));
    let netdev = netdev.or_else(|| root.list(&format!("{device}/device/net")).into_iter().next());
    Some(Port {
        number: number.parse().ok()?,
        state: root.named(&format!("{at}/state")),
        physical: root.named(&format!("{at}/phys_state")),
        rate: root.text(&format!("{at}/rate")).unwrap_or_else(|| "unknown".into()),
        lid: root.hex(&format!("{at}/lid")).unwrap_or(0),
        sm_lid: root.hex(&format!("{at}/sm_lid")).unwrap_or(0),
        netdev: netdev.filter(|_| link_layer == LinkLayer::Ethernet),
        gid_places: places.len(),
        gids,
        link_layer,
    })
}

/// An entry of the GID table, if it is not empty.
fn entry(root: &Root, port: &str, index: u32, link_layer: LinkLayer) -> Option<Entry> {
    let gid: std::net::Ipv6Addr = root.number(&format!("{port}/gids/{index}"))?;
    if gid.is_unspecified() {
        return None;
    }
    let netdev = root.text(&format!("{port}/gid_attrs/ndevs/{index}"));
    let kind = match root.text(&format!("{port}/gid_attrs/types/{index}")).as_deref() {
        Some("RoCE v2") => GidKind::RoceV2,
        _ if link_layer == LinkLayer::Ethernet => GidKind::RoceV1,
        _ => GidKind::Ib,
    };
    let ifindex = netdev.as_ref().and_then(|name| root.number(&format!("sys/class/net/{name}/ifindex")));
    Some(Entry { index, gid: gid.octets(), kind, ifindex: ifindex.unwrap_or(0), netdev })
}

fn interface(root: &Root, name: String, addresses: &[InterfaceAddress]) -> Option<Interface> {
    const UP: u32 = 1;
    let at = format!("sys/class/net/{name}");
    let flags = root.text(&format!("{at}/flags"))?;
    let flags = u32::from_str_radix(flags.strip_prefix("0x")?, 16).ok()?;
    Some(Interface {
        index: root.number(&format!("{at}/ifindex"))?,
        mtu: root.number(&format!("{at}/mtu"))?,
        up: flags & UP != 0,
        state: root.text(&format!("{at}/operstate")).unwrap_or_else(|| "unknown".into()),
        ethernet: root.text(&format!("{at}/type")).as_deref() == Some("1"),
        addresses: addresses.iter().filter(|address| address.interface == name).cloned().collect(),
        name,
    })
}

fn free(root: &Root) -> Option<u64> {
    let about = rustix::fs::statvfs(root.path("dev/shm")).ok()?;
    Some(about.f_bavail.saturating_mul(about.f_frsize))
}

fn io_error<S: serde::Serializer>(error: &Option<io::Error>, to: S) -> Result<S::Ok, S::Error> {
    error.as_ref().map(io::Error::to_string).serialize(to)
}

fn shown<S: serde::Serializer>(what: &impl std::fmt::Display, to: S) -> Result<S::Ok, S::Error> {
    to.collect_str(what)
}
