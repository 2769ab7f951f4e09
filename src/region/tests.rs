use super::error::{os, unmapped};
use super::file::{OwnFile, memfd};
use super::huge::huge_bytes;
use super::mapping::HarmlessAdvice;
use super::memory::Behind;
use super::*;
use crate::files::{self, FileError, LockFile};
use crate::layout::compare::Loadable;
use crate::layout::words::{EIGHT_LINES, LINE_WORDS, Words};
use crate::layout::{LINE, WORD};
use memmap2::MmapOptions;
use rustix::fs::{MemfdFlags, SealFlags};
use rustix::io::Errno;
use std::fs::{File, Permissions};
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::time::{Duration, Instant};

/// Eight lines end with the region, and no word is beyond it.
#[test]
fn nothing_beyond_the_region() {
    let region = Region::private(10 * LINE as u64);
    let lines = |first| region.eight_lines(first).len();
    assert_eq!(lines(2 * LINE_WORDS), EIGHT_LINES);
    assert!(std::panic::catch_unwind(|| lines(2 * LINE_WORDS + 1)).is_err());
    assert!(std::panic::catch_unwind(|| lines(usize::MAX)).is_err());
    assert_eq!(region.load(10 * LINE_WORDS - 1), 0);
    assert!(std::panic::catch_unwind(|| region.load(10 * LINE_WORDS)).is_err());
    let small = Region::private(LINE as u64);
    assert!(std::panic::catch_unwind(|| small.eight_lines(0).len()).is_err());
}

/// What clients are handed cannot be written: not through the descriptor, not through a mapping.
#[test]
fn shared_region_cannot_be_written() {
    let dir = tempfile::tempdir().unwrap();
    for backing in [Backing::Anonymous, Backing::File(dir.path().join("r"))] {
        let server = Region::create(&backing, 8192).unwrap();
        server.store(3, 42);
        let client = Region::map_shared(server.share().unwrap()).unwrap();
        assert_eq!((client.load(3), client.is_writable()), (42, false), "{backing:?}");
        let file = File::from(server.share().unwrap());
        assert!(MmapOptions::new().len(8192).map_raw(&file).is_err(), "{backing:?} mapped writable");
        assert!(std::os::unix::fs::FileExt::write_at(&file, b"x", 0).is_err(), "{backing:?} written");
        assert!(client.bytes() == 8192 && file.set_len(0).is_err(), "{backing:?} truncated");
    }
}

/// Bytes are appended as they were stored, wherever they begin and end among words and lines, and nothing
/// beside them.
#[test]
fn appended_bytes_are_those_stored() {
    let region = Region::private(4096);
    let stored: Vec<u8> = (0..4096u32).map(|n| ((n * 37) >> 2) as u8).collect();
    for (word, bytes) in stored.as_chunks().0.iter().enumerate() {
        region.store(word, u64::from_le_bytes(*bytes));
    }
    for begin in 0..80 {
        for len in (0..140).chain([255, 256, 257, 384, 2040, 2047, 2048, 2049, 3000]) {
            let mut out = vec![7; 3];
            region.append_bytes(begin, len, &mut out);
            let there = &stored[begin as usize..begin as usize + len];
            assert!(out[..3] == [7; 3] && out[3..] == *there, "{len} bytes from {begin}: {out:?}");
        }
    }
}

/// What server and client both write: each sees the other's stores, and neither can make it shorter.
#[test]
fn exchanged_memory_stays() {
    let (server, fd) = Region::exchange(8192).unwrap();
    let file = File::from(fd.try_clone().unwrap());
    let client = Region::map_exchange(fd).unwrap();
    server.store(3, 42);
    client.store(4, 43);
    assert_eq!((client.load(3), server.load(4), client.bytes()), (42, 43, 8192));
    assert!(file.set_len(0).is_err() && file.set_len(1 << 20).is_err());
    let pages = || file.metadata().unwrap().blocks();
    assert!(pages() > 0);
    server.discard();
    assert_eq!(
        (pages(), client.load(4)),
        (0, 0),
        "the client keeps a mapping, and no memory of the server's"
    );
    let unsealed = memfd(MemfdFlags::empty(), 8192).unwrap();
    assert!(Region::map_exchange(unsealed.into()).is_err());
}

#[test]
fn a_second_server_is_kept_away() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("r");
    let first = Region::create(&Backing::File(path.clone()), 8192).unwrap();
    assert!(matches!(Region::open(&path), Err(RegionError::InUse { .. })));
    first.store(1000, 1);
    first.keep();
    drop(first);
    assert_eq!(Region::open(&path).unwrap().bytes(), 8192);
}

/// Whoever was handed the region, or may read its file, can lock that, and keeps no server away.
#[test]
fn readers_lock_no_server_out() {
    use rustix::fs::{FlockOperation, flock};
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("r");
    let first = Region::create(&Backing::File(path.clone()), 8192).unwrap();
    first.keep();
    first.store(0, 1); // a file of zeros is one that was never finished
    let handed = first.share().unwrap();
    flock(&handed, FlockOperation::NonBlockingLockExclusive).unwrap();
    assert!(matches!(Region::open(&path), Err(RegionError::InUse { .. })), "the server keeps it");
    drop(first);
    drop(Region::open(&path).unwrap());
    drop(handed);
    flock(File::open(&path).unwrap(), FlockOperation::LockExclusive).unwrap();
    drop(Region::open(&path).unwrap());
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1, "no lock is left");
}

/// Two servers that serve one file by two names would not see each other's locks.
#[test]
fn a_file_has_one_name() {
    let dir = tempfile::tempdir().unwrap();
    let [path, other] = ["r", "r2"].map(|name| dir.path().join(name));
    let region = Region::create(&Backing::File(path.clone()), 1 << 16).unwrap();
    region.keep();
    std::fs::hard_link(&path, &other).unwrap();
    assert!(matches!(Region::open(&other), Err(RegionError::SeveralNames { .. })));
    std::fs::remove_file(&other).unwrap();
    drop(region);
    // A mount of the file itself, within its file system. Only root can make one.
    File::create(&other).unwrap();
    let mount = |program: &str, arguments: &[&std::ffi::OsStr]| {
        std::process::Command::new(program).args(arguments).status().is_ok_and(|status| status.success())
    };
    if mount("mount", &["--bind".as_ref(), path.as_ref(), other.as_ref()]) {
        let opened = Region::open(&other);
        assert!(mount("umount", &["-l".as_ref(), other.as_ref()]));
        assert!(matches!(opened, Err(RegionError::SeveralNames { .. })), "{opened:?}");
    } else {
        println!("no mount of a file: only root may make one");
    }
}

/// A region knows whether its file is still where it was opened, and its lock, too.
#[test]
fn what_was_removed_is_noticed() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("r");
    let region = Region::create(&Backing::File(path.clone()), 8192).unwrap();
    assert!(region.stands_at(&path) && region.lost_lock().is_none());
    let lock = dir.path().join("r.lock");
    std::fs::remove_file(&lock).unwrap();
    assert_eq!(region.lost_lock(), Some(&*lock));
    std::fs::rename(&path, dir.path().join("other")).unwrap();
    assert!(!region.stands_at(&path));
    std::fs::write(&path, [0; 8192]).unwrap();
    assert!(!region.stands_at(&path) && region.stands_at(&dir.path().join("other")));
    assert!(!Region::create(&Backing::Anonymous, 8192).unwrap().stands_at(&path));
}

fn about(error: RegionError) -> (&'static str, String, io::Error) {
    match error {
        RegionError::Os { doing, what, source } => (doing, what, source),
        other => panic!("{other}"),
    }
}

/// A new file is the user's alone, and as long as was asked for; one that holds something is refused with both
/// lengths, and left as it is; one that is not there is not made by who opens it.
#[test]
fn files_of_regions() {
    use std::os::unix::fs::PermissionsExt;
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("r");
    match Region::open(&path) {
        Err(RegionError::Missing { path: which }) => assert_eq!(which, path),
        other => panic!("{other:?}"),
    }
    assert!(!path.exists(), "who opens makes nothing");
    let backing = Backing::File(path.clone());
    let region = Region::create(&backing, 8192).unwrap();
    let about_file = std::fs::metadata(&path).unwrap();
    assert_eq!((about_file.len(), about_file.permissions().mode() & 0o7777), (8192, 0o600));
    // An empty file that was there, and that others could read, becomes private.
    let empty = dir.path().join("empty");
    File::create(&empty).unwrap();
    std::fs::set_permissions(&empty, Permissions::from_mode(0o644)).unwrap();
    let made = Region::create(&Backing::File(empty.clone()), 8192).unwrap();
    assert_eq!(std::fs::metadata(&empty).unwrap().permissions().mode() & 0o7777, 0o600);
    drop(made);
    assert!(!empty.exists(), "nothing was kept in it");
    assert!(region.is_writable() && region.bytes() == 8192);
    region.store(1, 42);
    region.store(1000, 1);
    region.keep();
    // The lock goes with the region, not with another name of it.
    drop(region.alias());
    for opened in [Region::open(&path), Region::create(&backing, 8192)] {
        match opened {
            Err(RegionError::InUse { path: which }) => assert_eq!(which, path),
            other => panic!("{other:?}"),
        }
    }
    // Whoever keeps another name of it does not keep the lock.
    let alias = region.alias();
    drop(region);
    drop(Region::open(&path).unwrap());
    drop(alias);
    for need in [4096, 8192, 16384] {
        match Region::create(&backing, need) {
            Err(RegionError::Length { path: which, have: 8192, need: asked }) => {
                assert_eq!((which, asked), (path.clone(), need));
            }
            other => panic!("{other:?}"),
        }
    }
    let region = Region::open(&path).unwrap();
    assert_eq!((region.load(1), region.bytes(), region.is_writable()), (42, 8192, true));
    drop(region);
    // Its mode is its owner's business from then on.
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o640)).unwrap();
    drop(Region::open(&path).unwrap());
    assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o7777, 0o640);
    // Who makes one in a folder that is not there is told so, and does not hear that one is missing.
    let nowhere = Region::create(&Backing::File(dir.path().join("no/r")), 8192).unwrap_err();
    assert!(nowhere.to_string().ends_with("(does the folder exist?)"), "{nowhere}");
    // Whoever reads it checks who else may write to it.
    assert_eq!(Region::open_to_read(&path).unwrap().load(1), 42);
    std::fs::set_permissions(&path, Permissions::from_mode(0o660)).unwrap();
    let shared = Region::open_to_read(&path);
    assert!(matches!(shared, Err(RegionError::File(FileError::Writable { mode: 0o660, .. }))));
    std::fs::set_permissions(&path, Permissions::from_mode(0o640)).unwrap();
    // What is handed out is not the file that has taken its place.
    let other = dir.path().join("other");
    std::fs::write(&other, [0; 8192]).unwrap();
    let lock = LockFile::take(&other, Duration::ZERO).unwrap();
    let own = OwnFile::of(File::open(&path).unwrap(), lock);
    let (_, what, source) = about(Region::of_file(&other, own).unwrap_err());
    assert_eq!(what, other.to_str().unwrap());
    assert!(source.to_string().contains("another file took its place"), "{source}");
}

/// Anonymous memory is sealed against other lengths, and so is what is exchanged; neither is inherited by programs
/// that this one starts. What is handed out of the former is for reading, other users cannot open it for
/// writing, and its memory can be given back.
#[test]
fn seals() {
    let always = SealFlags::GROW | SealFlags::SHRINK | SealFlags::SEAL;
    let region = Region::create(&Backing::Anonymous, 8192).unwrap();
    let (exchanged, fd) = Region::exchange(8192).unwrap();
    let shared = File::from(region.share().unwrap());
    assert_eq!(shared.metadata().unwrap().permissions().mode() & 0o7777, 0o600);
    let map = MmapOptions::new().len(8192).map_raw(&shared);
    assert_eq!(map.unwrap_err().kind(), io::ErrorKind::PermissionDenied);
    region.store(600, 7);
    assert_eq!((region.give_back(4096..8192), region.load(600)), (Some(4096), 0));
    region.store(600, 7);
    // Less than a page, or pages of which too much would stay.
    assert_eq!([4096..8191, 2048..8192].map(|part| region.give_back(part)), [None; 2]);
    assert_eq!(region.load(600), 7);
    for fd in [shared.into(), fd] {
        assert_eq!(rustix::fs::fcntl_get_seals(&fd).unwrap(), always);
        assert_eq!(rustix::fs::fstat(&fd).unwrap().st_mode & 0o7777, 0o600);
        assert!(rustix::io::fcntl_getfd(&fd).unwrap().contains(rustix::io::FdFlags::CLOEXEC));
    }
    assert_eq!(exchanged.share().unwrap_err().kind(), io::ErrorKind::Unsupported);
    assert!(exchanged.is_writable() && exchanged.bytes() == 8192);
    // A file that is no such memory, and memory that could be made shorter, or only not be made longer.
    let unsealed = memfd(MemfdFlags::empty(), 8192).unwrap();
    let grown = memfd(MemfdFlags::empty(), 8192).unwrap();
    rustix::fs::fcntl_add_seals(&grown, SealFlags::GROW | SealFlags::SEAL).unwrap();
    let file = tempfile::tempfile().unwrap();
    for fd in [unsealed, grown, file] {
        let (doing, _, _) = about(Region::map_exchange(fd.into()).unwrap_err());
        assert_eq!(doing, "checking");
    }
}

/// A region that a server hands over cannot be made shorter, or is a file of a trusted user. Memory
/// without the seal is refused, and so is what is no memory.
#[test]
fn what_is_handed_over_is_checked() {
    let anonymous = Region::create(&Backing::Anonymous, 8192).unwrap();
    Region::map_handed(anonymous.share().unwrap(), &[]).unwrap();
    let unsealed = memfd(MemfdFlags::empty(), 8192).unwrap();
    let grown = memfd(MemfdFlags::empty(), 8192).unwrap();
    rustix::fs::fcntl_add_seals(&grown, SealFlags::GROW).unwrap();
    let (pipe, _) = rustix::pipe::pipe().unwrap();
    for fd in [unsealed.into(), grown.into(), pipe] {
        assert!(matches!(Region::map_handed(fd, &[]), Err(RegionError::Unsealed)));
    }
    for folder in ["/tmp", "/dev/shm"] {
        let Ok(file) = tempfile::tempfile_in(folder) else { continue };
        file.set_len(8192).unwrap();
        Region::map_handed(file.try_clone().unwrap().into(), &[]).unwrap();
        if files::own_uid() == 0 {
            rustix::fs::fchown(&file, Some(rustix::fs::Uid::from_raw(7)), None).unwrap();
            assert!(matches!(
                Region::map_handed(file.try_clone().unwrap().into(), &[]),
                Err(RegionError::Unsealed)
            ));
            Region::map_handed(file.into(), &[7]).unwrap();
        }
    }
}

/// Nothing is stored into what is mapped for reading, and nothing is touched beyond a region's last word.
#[test]
fn what_a_region_does_not_do() {
    let server = Region::create(&Backing::Anonymous, 4096).unwrap();
    let client = Region::map_shared(server.share().unwrap()).unwrap();
    let panics = |what: &dyn Fn()| std::panic::catch_unwind(std::panic::AssertUnwindSafe(what)).is_err();
    assert!(panics(&|| client.store(3, 1)) && panics(&|| client.add(3)));
    server.add(3);
    server.add(3);
    assert_eq!((server.load(3), client.load(3)), (2, 2));
    assert_eq!(server.words(511, 1).len() + server.words(512, 0).len() + server.words(0, 512).len(), 513);
    assert_eq!(server.words(504, 8).len(), 8);
    for (first, len) in
        [(512, 1), (511, 2), (513, 0), (0, 513), (1, usize::MAX), (usize::MAX, 1), (505, 8), (usize::MAX, 8)]
    {
        assert!(panics(&|| _ = server.words(first, len)), "{first}+{len}");
    }
}

/// Memory is put behind what is asked for, and the file is never made longer for it.
#[test]
fn memory_behind_a_region() {
    let region = Region::create(&Backing::Anonymous, 16384).unwrap();
    let file = File::from(region.share().unwrap());
    let blocks = || file.metadata().unwrap().blocks();
    assert_eq!(blocks(), 0);
    region.back(4096..8192).unwrap();
    assert!((8..=32).contains(&blocks()), "{}", blocks());
    assert_eq!(region.backed_bytes(), 512 * blocks());
    region.back(0..u64::MAX).unwrap();
    assert_eq!(blocks(), 32);
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("r");
    let region = Region::create(&Backing::File(path.clone()), 16384).unwrap();
    region.back(8192..1 << 20).unwrap();
    assert_eq!(std::fs::metadata(&path).unwrap().len(), 16384);
    // Behind it there is as much as is asked for, to the word: within it, or apart.
    for (bytes, is_within) in [(8192, true), (8200, false)] {
        let behind = region.behind(8192, bytes).unwrap();
        assert_eq!(matches!(behind, Behind::Within(..)), is_within, "{bytes}");
        behind.store(bytes / 8 - 1, bytes);
        let mut word = [0; 8];
        let file = File::open(&path).unwrap();
        std::os::unix::fs::FileExt::read_exact_at(&file, &mut word, 8192 + bytes - 8).unwrap();
        assert_eq!(u64::from_ne_bytes(word), bytes);
        drop(behind);
        // The lock goes with the region, not with what is behind it.
        assert!(matches!(Region::open(&path), Err(RegionError::InUse { .. })), "{bytes}");
    }
    // What is exchanged has all of it from the beginning.
    let (_region, fd) = Region::exchange(16384).unwrap();
    assert_eq!(File::from(fd).metadata().unwrap().blocks(), 32);
    // There is nothing to be done for a region that somebody else made.
    let shared = Region::map_shared(region.share().unwrap()).unwrap();
    shared.back(0..16384).unwrap();
    // No memory is that large: an error, and no region. A file that was not there is not made.
    let none = dir.path().join("none");
    for backing in [Backing::Anonymous, Backing::File(none.clone())] {
        match Region::create(&backing, 1 << 62) {
            Err(RegionError::NoRoom { need, left, .. }) => assert!(need == 1 << 62 && left < need),
            other => panic!("{other:?}"),
        }
    }
    assert!(!none.exists());
    let (doing, what, _) = about(memfd(MemfdFlags::empty(), 1 << 63).unwrap_err());
    assert_eq!((doing, what), ("making", format!("{} bytes of shared memory", 1u64 << 63)));
}

/// Memory behind a region is there before anything is stored into it. (On tmpfs, which says so to the page.)
#[test]
fn memory_behind_a_region_is_reserved() {
    let Ok(dir) = tempfile::tempdir_in("/dev/shm") else { return };
    let path = dir.path().join("r");
    let region = Region::create(&Backing::File(path.clone()), 8192).unwrap();
    let pages = || std::fs::metadata(&path).unwrap().blocks() / 8;
    assert_eq!(pages(), 0);
    let behind = region.behind(8192, 8200).unwrap();
    assert!(matches!(behind, Behind::Apart(_)) && pages() == 3, "{}", pages());
}

/// What a device has pinned is not given back, whichever name of the region is asked.
#[cfg(feature = "verbs")]
#[test]
fn pinned_memory_is_not_given_back() {
    for touches in [false, true] {
        let region = Region::create(&Backing::Anonymous, 16384).unwrap();
        let alias = region.alias();
        (0..2048).for_each(|word| region.store(word, 7));
        if touches {
            region.touch(0..8192, |_| {});
        }
        let given = [alias.give_back(0..4096), region.give_back(8192..12288)];
        assert_eq!(given, if touches { [None; 2] } else { [Some(4096); 2] });
        let is_there = u64::from(touches) * 7;
        assert_eq!((alias.load(0), region.load(1024), region.load(2047)), (is_there, is_there, 7));
    }
}

/// Huge pages are huge, and where there are none, that is an error that says so; memory of another kind is not
/// taken instead.
#[test]
fn huge_pages() {
    match Region::create(&Backing::HugePages, 4 << 10 | 4 << 20) {
        Ok(region) => {
            assert_eq!(region.bytes(), 6 << 20);
            assert_eq!(File::from(region.share().unwrap()).metadata().unwrap().blksize(), 2 << 20);
        }
        Err(error) => {
            assert!(error.to_string().contains("reserve more (sysctl vm.nr_hugepages=3)"), "{error}");
            assert!(matches!(error, RegionError::HugePages { bytes, .. } if bytes == 6 << 20), "{error}");
        }
    }
}

/// Anonymous memory is huge where pages are reserved, and ordinary where not. What is mapped in huge pages is
/// counted as it is touched.
#[test]
fn huge_if_there_are_any() {
    let is_huge = Region::create(&Backing::HugePages, 16 << 20).is_ok();
    let region = Region::create(&Backing::Anonymous, 16 << 20 | 4096).unwrap();
    assert!(region.bytes() == 16 << 20 | 4096 || region.bytes() == 18 << 20, "{}", region.bytes());
    // Another process may take the pages, or give some back, between the two.
    if is_huge && region.bytes() == 18 << 20 {
        assert_eq!(region.huge_bytes(), 0);
        region.store(0, 1);
        region.store((4 << 20) / WORD, 1);
        assert_eq!(region.huge_bytes(), 4 << 20);
    }
    let small = Region::create(&Backing::Anonymous, 1 << 20).unwrap();
    assert_eq!((small.bytes(), small.huge_bytes()), (1 << 20, 0));
    assert_eq!(Region::private(4096).huge_bytes(), 0);
}

const HUGE: u64 = 2 << 20;

/// Whether the kernel moves shared memory into huge pages when it is told to: Linux 6.1 and later, with huge pages
/// of 2 MiB, unless that is forbidden.
fn kernel_moves_memory() -> bool {
    let text = |name: &str| std::fs::read_to_string(name).unwrap_or_default();
    let version = text("/proc/sys/kernel/osrelease");
    let mut numbers = version.split('.').map(|part| part.parse().unwrap_or(0));
    let is_new = (numbers.next(), numbers.next()) >= (Some(6), Some(1));
    let folder = "/sys/kernel/mm/transparent_hugepage";
    let is_long = text(&format!("{folder}/hpage_pmd_size")).trim() == HUGE.to_string();
    is_new && is_long && !text(&format!("{folder}/shmem_enabled")).contains("[deny]")
}

/// Repeats what needs huge pages until it got them: a kernel that moves memory may have none free for a moment. After a
/// minute that is a failure, unless a region of this test's own is refused one, too.
pub(crate) fn until_huge(mut attempt: impl FnMut() -> Option<()>) {
    if !kernel_moves_memory() {
        let _ = attempt();
        eprintln!("skipped: this kernel does not move shared memory into huge pages");
        return;
    }
    let until = Instant::now() + Duration::from_secs(60);
    while attempt().is_none() {
        if Instant::now() > until {
            let region = Region::create(&Backing::Anonymous, HUGE).unwrap();
            let given = region.map().unwrap().take_huge(&(0..HUGE));
            assert!(
                matches!(given, Err(Errno::NOMEM | Errno::AGAIN | Errno::BUSY)),
                "a page was free: {given:?}"
            );
            eprintln!("skipped: this system has had no huge page free for a minute");
            return;
        }
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// A region that is as long as a huge page begins where one may begin, in every process, and what was reserved to get
/// there is free again.
#[test]
fn regions_begin_where_huge_pages_may() {
    let dir = tempfile::tempdir().unwrap();
    for bytes in [4096, HUGE - 4096, HUGE, HUGE + 4096, 3 * HUGE, (7 * HUGE) | 8] {
        let path = dir.path().join(bytes.to_string());
        let regions = [
            Region::private(bytes),
            Region::create(&Backing::Anonymous, bytes).unwrap(),
            Region::create(&Backing::File(path), bytes).unwrap(),
        ];
        let clients = [1, 2].map(|n: usize| Region::map_shared(regions[n].share().unwrap()).unwrap());
        let last = bytes as usize / WORD - 1;
        regions.iter().for_each(|region| region.store(last, bytes));
        for region in regions.iter().chain(&clients) {
            assert!(bytes < HUGE || region.address().is_multiple_of(HUGE), "{bytes}: {:x}", region.address());
            assert_eq!((region.bytes(), region.load(last)), (bytes, bytes));
        }
        let [client, _] = &clients;
        let range = client.address()..client.address() + bytes.next_multiple_of(4096);
        for line in std::fs::read_to_string("/proc/self/maps").unwrap().lines() {
            let (addresses, rest) = line.split_once(' ').unwrap();
            let (from, to) = addresses.split_once('-').unwrap();
            let [from, to] = [from, to].map(|text| u64::from_str_radix(text, 16).unwrap());
            let is_beside = to == range.start || from == range.end;
            // (A page alone may guard the stack of another test's thread.)
            let is_left = rest.starts_with("---p") && (4097..HUGE).contains(&(to - from));
            assert!(!(is_beside && is_left), "left beside it: {line}");
        }
    }
}

/// Empty memory is moved into huge pages: what is asked for and what shares a block with it, within bounds; for the
/// server and for every client. Memory in use stays where it is.
#[test]
fn empty_memory_is_made_huge() {
    until_huge(|| {
        let dir = tempfile::tempdir_in("/dev/shm").unwrap();
        let backings = [Backing::Anonymous, Backing::File(dir.path().join("r"))];
        backings.iter().try_for_each(empty_memory_of_a_kind)
    });
}

/// `None` if the kernel has refused a huge page.
fn empty_memory_of_a_kind(backing: &Backing) -> Option<()> {
    let region = Region::create(backing, 8 * HUGE - 4096).unwrap();
    if region.bytes() == 8 * HUGE {
        eprintln!("skipped: pages are reserved here");
        return Some(());
    }
    let client = Region::map_handed(region.share().unwrap(), &[]).unwrap();
    let blocks = || region.backed_bytes() / HUGE;
    // Block 1 is in use.
    region.store(HUGE as usize / WORD + 600, 7);
    let all = 0..u64::MAX;
    // Not all of it is within; a block, once; a block of two.
    let asked = [
        (4096..4097, 4096..u64::MAX),
        (4096..HUGE + 1, all.clone()),
        (0..2 * HUGE, all.clone()),
        (3 * HUGE - 1..3 * HUGE + 1, 0..3 * HUGE),
    ];
    let made = asked.map(|(bytes, within)| (region.make_huge(bytes, within), blocks()));
    // What is to have memory gets it in huge pages as far as these go, and no more of it than is asked for.
    region.back(4 * HUGE - 4096..6 * HUGE + 4096).unwrap();
    if !region.map().unwrap().may_be_huge() {
        return None;
    }
    assert_eq!(made, [(0, 0), (HUGE, 1), (0, 1), (HUGE, 2)]);
    assert_eq!(region.backed_bytes(), 4 * HUGE + 3 * 4096);
    assert_eq!(region.huge_bytes(), 4 * HUGE);
    // The last block is not whole.
    assert_eq!(region.make_huge(7 * HUGE..8 * HUGE, all), 0);
    assert_eq!(client.huge_bytes(), 0);
    for block in [0, 1, 2, 4, 5] {
        let word = (block * HUGE + 8) as usize / WORD;
        region.store(word, block);
        assert_eq!((client.load(word), client.load(word + 1)), (block, 0));
    }
    assert_eq!((region.load(HUGE as usize / WORD + 600), client.huge_bytes()), (7, 4 * HUGE));
    // Half a page goes back, and the rest of it stays what it was.
    region.store((4 * HUGE + HUGE / 2) as usize / WORD, 9);
    assert_eq!(region.give_back(4 * HUGE..4 * HUGE + HUGE / 2), Some(HUGE / 2));
    let of_half = |words: usize| client.load((4 * HUGE) as usize / WORD + words);
    assert_eq!((of_half(1), of_half(HUGE as usize / 2 / WORD)), (0, 9));
    assert_eq!(client.make_huge(0..8 * HUGE, 0..8 * HUGE), 0, "it is not the client's");
    // Another client has it so at once. It takes no memory by that.
    let other = Region::map_handed(region.share().unwrap(), &[]).unwrap();
    let before = region.backed_bytes();
    other.map_all();
    assert_eq!((other.huge_bytes(), other.backed_bytes(), region.backed_bytes()), (3 * HUGE, before, before));
    assert_eq!(other.huge_bytes_of(std::process::id()), Some(9 * HUGE), "in three mappings");
    assert_eq!(other.huge_bytes_of(u32::MAX), None);
    Some(())
}

/// Where the kernel gives no huge page, or memory is of a kind that has none, memory is in small ones, and there is no
/// error. The kernel is not asked again at once.
#[test]
fn where_no_page_is_huge() {
    let refused = Region::create(&Backing::Anonymous, 4 * HUGE).unwrap();
    let map = refused.map().unwrap();
    map.advise(0..4 * HUGE, HarmlessAdvice::SmallPages).unwrap();
    assert_eq!(refused.make_huge(HUGE..2 * HUGE, 0..4 * HUGE), 0);
    assert!(!map.may_be_huge() && refused.backed_bytes() <= 4096);
    refused.back(0..4 * HUGE).unwrap();
    assert_eq!((refused.backed_bytes(), refused.huge_bytes()), (4 * HUGE, 0));
    map.advise(0..4 * HUGE, HarmlessAdvice::HugePages).unwrap();
    assert_eq!(refused.make_huge(0..4 * HUGE, 0..4 * HUGE), 0);

    let left = Region::create(&Backing::Anonymous, 4 * HUGE).unwrap();
    left.leave_small();
    left.back(0..4 * HUGE).unwrap();
    assert_eq!((left.make_huge(0..4 * HUGE, 0..4 * HUGE), left.backed_bytes()), (0, 4 * HUGE));

    let dir = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
    let on_disk = Region::create(&Backing::File(dir.path().join("r")), 4 * HUGE).unwrap();
    for region in
        [on_disk, Region::private(4 * HUGE), Region::create(&Backing::Anonymous, HUGE - 4096).unwrap()]
    {
        assert_eq!(region.make_huge(0..4 * HUGE, 0..4 * HUGE), 0, "{region:?}");
        region.back(0..region.bytes()).unwrap();
    }
}

/// Of all mappings, those that are meant count, with every kind of huge page.
#[test]
fn smaps() {
    let text = "1000-3000 rw-s 00000000 00:01 7   /memfd:oneread (deleted)\n\
        Size:                  8 kB\nShmemPmdMapped:     2048 kB\nVmFlags: rd wr\n\
        3000-5000 r--s 00000000 00:1a 8   /a b: c\nShared_Hugetlb:     4096 kB\nPrivate_Hugetlb:  2048 kB\n\
        FilePmdMapped: 2048 kB\nAnonHugePages: 2048 kB\n5000-6000 r--p 0 00:00 0\nShmemPmdMapped: 2048 kB\n";
    let at = |address| huge_bytes(text, |mapping| mapping.addresses.contains(&address)) >> 20;
    assert_eq!((at(0x1000), at(0x3000), at(0x4fff), at(0x6000)), (2, 8, 8, 0));
    let of = |minor, inode| {
        let file = (rustix::fs::makedev(0, minor), inode);
        huge_bytes(text, |mapping| mapping.file == file) >> 20
    };
    assert_eq!((of(1, 7), of(0x1a, 8), of(1, 8), of(0, 0)), (2, 8, 0, 2));
    let bad =
        "garbage\n: \n-\n1-2 r 0\n1-2 r 0 00:0 x\n1-2 r 0 0 1\nShmemPmdMapped: x kB\nShmemPmdMapped: 7 kB";
    assert_eq!(huge_bytes("", |_| true) + huge_bytes(bad, |_| true), 0);
}

/// An error says what would help, where anybody knows.
#[test]
fn hints() {
    use rustix::io::Errno;
    for (errno, hint) in [
        (Errno::NOMEM, "not enough memory"),
        (Errno::NOSPC, "the file system is full"),
        (Errno::ACCESS, "check who owns it"),
        (Errno::PERM, "check who owns it"),
        (Errno::NOENT, "does the folder exist?"),
    ] {
        let error = os("doing", "it")(errno.into()).to_string();
        assert!(error.starts_with(&format!("doing it ({hint}")) && error.ends_with(')'), "{error}");
    }
    assert_eq!(os("doing", "it")(Errno::IO.into()).to_string(), "doing it");
    // Memory that is there, and finds no addresses, needs another help.
    let error = unmapped("it", 7)(Errno::NOMEM.into());
    assert!(matches!(error, RegionError::AddressSpace { bytes: 7, .. }), "{error}");
    assert_eq!(unmapped("it", 7)(Errno::IO.into()).to_string(), "mapping it");
}

/// All of a region is touched, and what is done is told piece by piece.
#[cfg(feature = "verbs")]
#[test]
fn touched() {
    let region = Region::create(&Backing::Anonymous, (64 << 20) + 8192).unwrap();
    // More if it is in huge pages.
    let bytes = region.bytes();
    let mut told = Vec::new();
    region.touch(0..region.bytes(), |done| told.push(done));
    assert_eq!(told, [64 << 20, bytes]);
    let blocks = File::from(region.share().unwrap()).metadata().unwrap().blocks();
    assert!(blocks == bytes / 512 || blocks == 0, "{blocks}");
}
