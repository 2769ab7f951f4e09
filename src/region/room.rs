//! How much memory a table may take. Memory is taken late, page by page: a table that does not fit is
//! otherwise noticed when the system ends processes, which may be others.

use super::backing::Backing;
use rustix::process::{Resource, getrlimit};
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

/// A bound on the memory of a table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Room {
    /// Bytes that are left.
    pub bytes: u64,
    /// Bytes that there are in all.
    pub whole: u64,
    /// Of what.
    pub of: String,
}

/// How much memory a table may take if nobody says how much ([`Backing::default_share`]).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct MemoryShare {
    /// So many bytes.
    pub bytes: u64,
    /// Which part, of what: "half of this machine's memory".
    pub part: String,
}

impl fmt::Display for MemoryShare {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes, {}", self.bytes, self.part)
    }
}

/// The bound on the length of a region.
pub(crate) fn of_length() -> Option<Room> {
    let limit = getrlimit(Resource::Fsize).current?;
    Some(Room { bytes: limit, whole: limit, of: "the limit on the length of files (RLIMIT_FSIZE)".into() })
}

/// Checks that this process may make a file so long. To try it would end the process (SIGXFSZ).
pub(crate) fn check_length(bytes: u64) -> std::io::Result<()> {
    match of_length() {
        Some(room) if bytes > room.bytes => Err(rustix::io::Errno::FBIG.into()),
        _ => Ok(()),
    }
}

/// The bounds on memory of this kind that is taken now.
pub(crate) fn left_to(backing: &Backing) -> Vec<Room> {
    let mut rooms = Vec::new();
    let is_memory = match backing {
        // The kernel reserves them when they are mapped, or fails.
        Backing::HugePages => false,
        Backing::Anonymous => true,
        Backing::File(path) => {
            let folder = folder_of(path);
            rooms.extend(of_file_system(folder));
            rustix::fs::statfs(folder).is_ok_and(|about| is_tmpfs(&about))
        }
    };
    if is_memory {
        rooms.extend(of_machine());
    }
    rooms
}

/// Whether files of this file system are in memory.
pub(crate) fn is_tmpfs(about: &rustix::fs::StatFs) -> bool {
    const TMPFS: u64 = 0x0102_1994;
    u64::try_from(about.f_type) == Ok(TMPFS)
}

fn folder_of(path: &Path) -> &Path {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

fn of_file_system(folder: &Path) -> Option<Room> {
    // hugetlbfs without a limit says 0.
    let about = rustix::fs::statvfs(folder).ok().filter(|about| about.f_blocks > 0)?;
    Some(Room {
        bytes: about.f_bavail.saturating_mul(about.f_frsize),
        whole: about.f_blocks.saturating_mul(about.f_frsize),
        of: format!("the file system of {}", folder.display()),
    })
}

/// What the system can give without ending processes: of its memory, and of each control group's.
pub(crate) fn of_machine() -> Vec<Room> {
    let mut rooms: Vec<Room> =
        memory(&fs::read_to_string("/proc/meminfo").unwrap_or_default()).into_iter().collect();
    let groups = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    rooms.extend(control_groups(&groups, Path::new("/sys/fs/cgroup")));
    #[cfg(test)]
    rooms.extend(tests::PRETENDED.take().inspect(|room| tests::PRETENDED.set(Some(room.clone()))));
    rooms
}

/// The memory that the system can give without ending processes.
fn memory(meminfo: &str) -> Option<Room> {
    let of = |name: &str| -> Option<u64> {
        let line = meminfo.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
        line.trim().strip_suffix(" kB")?.trim().parse().ok()
    };
    let bytes = of("MemAvailable")? << 10;
    let whole = of("MemTotal").map_or(bytes, |kib| kib << 10);
    Some(Room { bytes, whole, of: "this machine's free memory".into() })
}

/// The free huge pages of 2 MiB that nobody has reserved.
fn huge_pages(folder: &Path) -> Option<Room> {
    let number = |name: &str| fs::read_to_string(folder.join(name)).ok()?.trim().parse::<u64>().ok();
    let left = number("free_hugepages")?.saturating_sub(number("resv_hugepages")?);
    let whole = number("nr_hugepages")?;
    Some(Room { bytes: left << 21, whole: whole << 21, of: "the huge pages of 2 MiB".into() })
}

impl Backing {
    /// How much memory a table of this kind may take if nobody says how much. It is the least of:
    ///
    /// * half of the machine's memory, and half of the limit of each control group of this process;
    /// * nine tenths of what is free of these, and of the file system of a region file;
    /// * half of the free huge pages, for a table in [`Backing::HugePages`], and nothing of the above;
    /// * half of the limit on the length of files, and a quarter of that on addresses (RLIMIT_FSIZE,
    ///   RLIMIT_AS).
    ///
    /// The last two are halves because slots and long values share the bound, and each have addresses for all
    /// of it.
    ///
    /// `None` where the system says nothing about its memory.
    pub fn default_share(&self) -> Option<MemoryShare> {
        let limits = [
            of_length().map(|room| (room.bytes / 2, format!("half of {}", room.of))),
            getrlimit(Resource::As)
                .current
                .map(|limit| (limit / 4, "a quarter of the limit on addresses (RLIMIT_AS)".into())),
        ];
        let limits = limits.into_iter().flatten();
        let all: Vec<(u64, String)> = if *self == Backing::HugePages {
            let pages = huge_pages(Path::new("/sys/kernel/mm/hugepages/hugepages-2048kB"));
            pages
                .map(|room| (room.bytes / 2, format!("half of {}", room.of)))
                .into_iter()
                .chain(limits)
                .collect()
        } else {
            let of_files =
                if let Backing::File(path) = self { of_file_system(folder_of(path)) } else { None };
            shares(&of_machine(), of_files.as_ref()).chain(limits).collect()
        };
        let least = all.into_iter().min_by_key(|(bytes, _)| *bytes);
        least.map(|(bytes, part)| MemoryShare { bytes, part })
    }
}

/// Half of each of the machine's limits, and nine tenths of what is free of these and of a file system.
fn shares<'a>(machine: &'a [Room], of_files: Option<&'a Room>) -> impl Iterator<Item = (u64, String)> + 'a {
    let halves = machine.iter().map(|room| {
        let of = room.of.replace("free memory", "memory");
        (room.whole / 2, format!("half of {of}"))
    });
    let tenths = machine.iter().chain(of_files).map(|room| {
        let of = &room.of;
        (room.bytes / 10 * 9, format!("nine tenths of what {of} leaves"))
    });
    halves.chain(tenths)
}

/// What the limits of this process's control groups leave, up the tree. `groups` is the text of
/// `/proc/self/cgroup`.
fn control_groups(groups: &str, root: &Path) -> Vec<Room> {
    struct Files {
        limit: &'static str,
        used: &'static str,
        cache: &'static str,
    }
    const V1: Files = Files {
        limit: "memory.limit_in_bytes",
        used: "memory.usage_in_bytes",
        cache: "total_inactive_file ",
    };
    const V2: Files = Files { limit: "memory.max", used: "memory.current", cache: "inactive_file " };
    let mut rooms = Vec::new();
    for line in groups.lines() {
        let mut parts = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(path)) = (parts.next(), parts.next()) else { continue };
        let (root, files) = match controllers {
            "" => (root.to_path_buf(), V2),
            those if those.split(',').any(|one| one == "memory") => (root.join("memory"), V1),
            _ => continue,
        };
        let mut group: PathBuf = root.join(path.trim_start_matches('/'));
        // In a container, the path may be of the host's tree. The container's own root is there.
        while group.starts_with(&root) {
            let number = |name: &str| -> Option<u64> {
                fs::read_to_string(group.join(name)).ok()?.trim().parse().ok()
            };
            rooms.extend(number(files.limit).zip(number(files.used)).map(|(whole, used)| {
                // Pages of files that nobody uses are given back when memory is short.
                let stat = fs::read_to_string(group.join("memory.stat")).unwrap_or_default();
                let cache = stat.lines().find_map(|line| line.strip_prefix(files.cache)?.parse().ok());
                let bytes = whole.saturating_sub(used.saturating_sub(cache.unwrap_or(0)));
                let of = format!("the memory limit of the control group {}", group.display());
                Room { bytes, whole, of }
            }));
            if !group.pop() {
                break;
            }
        }
    }
    rooms
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    thread_local! {
        /// One more limit of this machine's, for what this thread does.
        pub(crate) static PRETENDED: std::cell::Cell<Option<Room>> = const { std::cell::Cell::new(None) };
    }

    /// Pretends to this thread that the machine has `bytes` left.
    #[cfg(not(loom))]
    pub(crate) fn pretend(bytes: u64) {
        PRETENDED.set(Some(Room { bytes, whole: bytes, of: "a small machine".into() }));
    }

    #[test]
    fn free_memory_is_read() {
        let text = "MemTotal:       100 kB\nMemFree:   1 kB\nMemAvailable:      42 kB\n";
        let room = memory(text).unwrap();
        assert_eq!((room.bytes, room.whole), (42 << 10, 100 << 10));
        for bad in ["", "MemFree: 1 kB", "MemAvailable: x kB", "MemAvailable: 7"] {
            assert_eq!(memory(bad), None, "{bad:?}");
        }
    }

    /// The limit of each group up the tree counts, in both versions of control groups. Unused pages
    /// of files count as free. Groups without a limit, and without files, are no bound.
    #[test]
    fn limits_of_control_groups() {
        let root = tempfile::tempdir().unwrap();
        let group = |path: &str, files: &[(&str, &str)]| {
            let path = root.path().join(path);
            fs::create_dir_all(&path).unwrap();
            files.iter().for_each(|(name, text)| fs::write(path.join(name), text).unwrap());
        };
        let left = |groups: &str| {
            let rooms = control_groups(groups, root.path());
            rooms.into_iter().map(|room| room.bytes).min()
        };
        let v2 = |max, current| [("memory.max", max), ("memory.current", current)];
        group("a/b", &v2("1000\n", "300\n"));
        group("a/free", &v2("max\n", "300\n"));
        assert_eq!((left("0::/a/b\n"), left("0::/a/free\n"), left("")), (Some(700), None, None));
        group("a", &v2("900\n", "800\n"));
        assert_eq!((left("0::/a/b\n"), left("0::/a/free\n")), (Some(100), Some(100)));
        group("a", &[("memory.stat", "anon 5\ninactive_file 250\n")]);
        assert_eq!(left("0::/a/b\n"), Some(350));
        group("a", &v2("900\n", "1000\n"));
        assert_eq!(left("0::/a/none\n"), Some(150), "a group that is not there has parents");
        group("memory/c", &[("memory.limit_in_bytes", "500\n"), ("memory.usage_in_bytes", "400\n")]);
        group("memory/c", &[("memory.stat", "inactive_file 1\ntotal_inactive_file 20\n")]);
        assert_eq!(left("5:cpu:/a\n4:hugetlb,memory:/c\n"), Some(120));
        assert_eq!(left("4:memory:/c\n0::/a/b\n"), Some(120));
    }

    /// Every kind of memory has a bound here, but for huge pages.
    #[test]
    fn there_is_a_bound() {
        assert!(!left_to(&Backing::Anonymous).is_empty());
        assert!(!left_to(&Backing::File("region".into())).is_empty());
        assert!(left_to(&Backing::File("/none/region".into())).is_empty());
        assert!(left_to(&Backing::HugePages).is_empty());
    }

    /// Reserved pages that another process has not touched yet are not free.
    #[test]
    fn huge_pages_are_counted() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(huge_pages(folder.path()), None);
        for (name, number) in [("nr_hugepages", "9"), ("free_hugepages", "7\n"), ("resv_hugepages", "2")] {
            fs::write(folder.path().join(name), number).unwrap();
        }
        let room = huge_pages(folder.path()).unwrap();
        assert_eq!((room.bytes, room.whole), (10 << 20, 18 << 20));
    }

    #[test]
    fn shares_of_limits() {
        let room = |bytes, whole, of: &str| Room { bytes, whole, of: of.into() };
        let machine = [room(800, 1_000, "the machine's free memory"), room(100, 600, "a group's limit")];
        let told: Vec<_> = shares(&machine, Some(&room(50, 5_000, "a disk"))).collect();
        let told: Vec<(u64, &str)> = told.iter().map(|(bytes, part)| (*bytes, part.as_str())).collect();
        let expected = [
            (500, "half of the machine's memory"),
            (300, "half of a group's limit"),
            (720, "nine tenths of what the machine's free memory leaves"),
            (90, "nine tenths of what a group's limit leaves"),
            (45, "nine tenths of what a disk leaves"),
        ];
        assert_eq!(told, expected);
    }

    /// A share is no more than half of the machine's memory, nor more than what is free.
    #[test]
    fn a_share_is_a_part() {
        let machine = memory(&fs::read_to_string("/proc/meminfo").unwrap()).unwrap();
        let folder = tempfile::tempdir().unwrap();
        for backing in [Backing::Anonymous, Backing::File(folder.path().join("region"))] {
            let share = backing.default_share().unwrap();
            assert!(share.bytes > 0 && share.bytes <= machine.whole / 2, "{share}");
            let part = ["half of ", "nine tenths of ", "the limit on "];
            assert!(part.iter().any(|part| share.part.starts_with(part)), "{share}");
        }
        if let Some(share) = Backing::HugePages.default_share() {
            assert!(share.bytes <= machine.whole, "{share}");
        }
    }
}
