//! How large a new table may be. Memory is taken late, page by page: a table that does not fit is
//! otherwise noticed when the system ends processes, which may be others.

use crate::region::Backing;
use rustix::process::{Resource, getrlimit};
use std::fs;
use std::path::{Path, PathBuf};

/// A bound on the memory of a new table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Room {
    /// Bytes that are left.
    pub bytes: u64,
    /// Of what.
    pub of: String,
}

/// The closest bound on a region in this memory. `None` where none is known.
pub(crate) fn left(backing: &Backing) -> Option<Room> {
    let mut rooms = vec![
        getrlimit(Resource::Fsize)
            .current
            .map(|bytes| Room { bytes, of: "the limit on the length of files (RLIMIT_FSIZE)".into() }),
    ];
    let in_memory = match backing {
        // The kernel reserves them when they are mapped, or fails.
        Backing::HugePages => false,
        Backing::Anonymous => true,
        Backing::File(path) => {
            let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
            let folder = folder.unwrap_or(Path::new("."));
            let about = rustix::fs::statvfs(folder).ok();
            rooms.push(about.map(|about| Room {
                bytes: about.f_bavail.saturating_mul(about.f_frsize),
                of: format!("the file system of {}", folder.display()),
            }));
            const TMPFS: u64 = 0x0102_1994;
            rustix::fs::statfs(folder).is_ok_and(|about| u64::try_from(about.f_type) == Ok(TMPFS))
        }
    };
    if in_memory {
        rooms.push(memory(&fs::read_to_string("/proc/meminfo").unwrap_or_default()));
        let groups = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
        rooms.extend(control_groups(&groups, Path::new("/sys/fs/cgroup")));
    }
    rooms.into_iter().flatten().min_by_key(|room| room.bytes)
}

/// The memory that the system can give without ending processes.
fn memory(meminfo: &str) -> Option<Room> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kib: u64 = line.trim().strip_suffix(" kB")?.trim().parse().ok()?;
    Some(Room { bytes: kib << 10, of: "this machine's free memory".into() })
}

/// What the limits of this process's control groups leave, up the tree. `groups` is the text of
/// `/proc/self/cgroup`.
fn control_groups(groups: &str, root: &Path) -> Vec<Option<Room>> {
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
            rooms.push(number(files.limit).zip(number(files.used)).map(|(limit, used)| {
                // Pages of files that nobody uses are given back when memory is short.
                let stat = fs::read_to_string(group.join("memory.stat")).unwrap_or_default();
                let cache = stat.lines().find_map(|line| line.strip_prefix(files.cache)?.parse().ok());
                let bytes = limit.saturating_sub(used.saturating_sub(cache.unwrap_or(0)));
                Room { bytes, of: format!("the memory limit of the control group {}", group.display()) }
            }));
            if !group.pop() {
                break;
            }
        }
    }
    rooms
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn free_memory_is_read() {
        let text = "MemTotal:       100 kB\nMemFree:   1 kB\nMemAvailable:      42 kB\n";
        assert_eq!(memory(text).unwrap().bytes, 42 << 10);
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
            rooms.into_iter().flatten().map(|room| room.bytes).min()
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
        assert!(left(&Backing::Anonymous).is_some());
        assert!(left(&Backing::File("region".into())).is_some());
        let nowhere = Backing::File("/none/region".into());
        assert!(left(&nowhere).is_none_or(|room| room.of.contains("RLIMIT_FSIZE")));
    }
}
