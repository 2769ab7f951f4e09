//! Tests of the doctor on machines that are laid out in folders.

use super::facts::{Facts, InterfaceAddress, Live, Module};
use super::judge::{Diagnosis, Finding, Level, Question};
use std::fs;
use std::io;
use std::os::unix::fs::symlink;
use tempfile::TempDir;

const TABLE: u64 = 100 << 20;

/// A machine in a folder.
struct Machine {
    root: TempDir,
    addresses: Vec<InterfaceAddress>,
    library_path: Option<std::ffi::OsString>,
}

impl Machine {
    /// A machine with nothing, not even the kernel's files.
    fn empty() -> Machine {
        Machine { root: tempfile::tempdir().unwrap(), addresses: Vec::new(), library_path: None }
    }

    /// A current Debian with a network, for an ordinary user.
    fn usual() -> Machine {
        let mut machine = Machine::empty();
        machine
            .write("proc/sys/kernel/osrelease", "6.12.1-amd64\n")
            .write("proc/modules", "")
            .write("proc/self/uid_map", "         0          0 4294967295\n")
            .write("etc/os-release", "PRETTY_NAME=\"Debian\"\nID=debian\nVERSION_ID=\"13\"\n")
            .write("usr/sbin/rdma", "")
            .write("dev/shm/.here", "")
            .write(
                "lib/modules/6.12.1-amd64/modules.dep",
                "kernel/drivers/infiniband/core/ib_uverbs.ko.xz: kernel/a.ko.xz\nkernel/drivers/infiniband/sw/rxe/rdma_rxe.ko.xz: kernel/drivers/infiniband/core/ib_uverbs.ko.xz\n",
            )
            .user(1000, 0)
            .memlock("unlimited", "unlimited")
            .huge_pages(0, 0)
            .interface("lo", 1, "0x9", "unknown", &[("127.0.0.1", 8)])
            .interface("eth0", 2, "0x1003", "up", &[("10.0.0.1", 24), ("fd00::1", 64)]);
        machine.write("sys/class/net/lo/type", "772\n");
        machine
    }

    fn write(&mut self, path: &str, text: &str) -> &mut Machine {
        let path = self.root.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
        self
    }

    fn remove(&mut self, path: &str) -> &mut Machine {
        let path = self.root.path().join(path);
        if path.is_dir() {
            fs::remove_dir_all(path).unwrap()
        } else {
            fs::remove_file(path).unwrap()
        }
        self
    }

    fn user(&mut self, uid: u32, capabilities: u64) -> &mut Machine {
        self.write(
            "proc/self/status",
            &format!("Name:\tx\nUid:\t{uid}\t{uid}\t{uid}\t{uid}\nCapEff:\t{capabilities:016x}\n"),
        )
    }

    fn memlock(&mut self, soft: &str, hard: &str) -> &mut Machine {
        self.write(
            "proc/self/limits",
            &format!("Limit                     Soft Limit           Hard Limit           Units\nMax open files            1024                 4096                 files\nMax locked memory         {soft:<20} {hard:<20} bytes\n"),
        )
    }

    fn huge_pages(&mut self, reserved: u64, free: u64) -> &mut Machine {
        let at = "sys/kernel/mm/hugepages/hugepages-2048kB";
        self.write(&format!("{at}/nr_hugepages"), &reserved.to_string())
            .write(&format!("{at}/free_hugepages"), &free.to_string())
            .shared_huge_pages("always within_size advise [never] deny force\n")
    }

    fn shared_huge_pages(&mut self, text: &str) -> &mut Machine {
        self.write("sys/kernel/mm/transparent_hugepage/shmem_enabled", text)
    }

    fn interface(
        &mut self,
        name: &str,
        index: u32,
        flags: &str,
        state: &str,
        addresses: &[(&str, u8)],
    ) -> &mut Machine {
        self.addresses.extend(addresses.iter().map(|&(address, prefix)| InterfaceAddress {
            interface: name.into(),
            address: address.parse().unwrap(),
            prefix,
        }));
        let at = format!("sys/class/net/{name}");
        self.write(&format!("{at}/ifindex"), &index.to_string())
            .write(&format!("{at}/mtu"), "1500\n")
            .write(&format!("{at}/flags"), flags)
            .write(&format!("{at}/operstate"), state)
            .write(&format!("{at}/type"), "1\n")
    }

    fn device(&mut self, name: &str, number: u32) -> &mut Machine {
        let at = format!("sys/class/infiniband/{name}");
        let class = format!("sys/class/infiniband_verbs/uverbs{number}");
        self.write(&format!("{at}/node_type"), "1: CA\n")
            .write(&format!("{at}/fw_ver"), "\n")
            .write(&format!("{class}/ibdev"), &format!("{name}\n"))
            .write(&format!("{class}/dev"), &format!("231:{}\n", 192 + number))
            .write(&format!("dev/infiniband/uverbs{number}"), "")
    }

    fn port(&mut self, device: &str, number: u32, state: &str, physical: &str, layer: &str) -> &mut Machine {
        let at = format!("sys/class/infiniband/{device}/ports/{number}");
        self.write(&format!("{at}/state"), state)
            .write(&format!("{at}/phys_state"), physical)
            .write(&format!("{at}/link_layer"), layer)
            .write(&format!("{at}/rate"), "100 Gb/sec (4X EDR)\n")
            .write(&format!("{at}/lid"), "0x0\n")
            .write(&format!("{at}/sm_lid"), "0x0\n")
    }

    fn gid(&mut self, port: &str, index: u32, gid: &str, kind: &str, netdev: &str) -> &mut Machine {
        let at = format!("sys/class/infiniband/{port}");
        self.write(&format!("{at}/gids/{index}"), gid)
            .write(&format!("{at}/gid_attrs/types/{index}"), kind)
            .write(&format!("{at}/gid_attrs/ndevs/{index}"), netdev)
    }

    /// Adds the device that `rdma link add rxe0 type rxe netdev eth0` makes.
    fn soft_roce(&mut self) -> &mut Machine {
        let port = "rxe0/ports/1";
        self.device("rxe0", 0)
            .port("rxe0", 1, "4: ACTIVE\n", "5: LinkUp\n", "Ethernet\n")
            .gid(port, 0, "fe80:0000:0000:0000:4cc8:bdff:fe19:97cd\n", "RoCE v2\n", "eth0\n")
            .gid(port, 1, "0000:0000:0000:0000:0000:ffff:0a00:0001\n", "RoCE v2\n", "eth0\n")
            .write("sys/class/infiniband/rxe0/parent", "eth0\n")
            .write("sys/module/rdma_rxe/refcnt", "0\n");
        for index in 2..8 {
            // For empty entries, the kernel names neither kind nor interface.
            let gids = format!("sys/class/infiniband/{port}/gids/{index}");
            self.write(&gids, "0000:0000:0000:0000:0000:0000:0000:0000\n");
        }
        self
    }

    fn library(&mut self) -> &mut Machine {
        self.write("usr/lib64/libibverbs.so.1", "").write("usr/lib64/libibverbs/librxe-rdmav34.so", "")
    }

    fn facts(&self) -> Facts {
        Facts::collect(
            self.root.path(),
            Live {
                addresses: self.addresses.clone(),
                library_path: self.library_path.clone(),
                sealing_error: None,
            },
        )
    }
}

const QUESTION: Question = Question { peer: None, verbs_built: true, table_bytes: TABLE };

#[track_caller]
fn find<'a>(diagnosis: &'a Diagnosis<'_>, what: &str) -> &'a Finding {
    let found = diagnosis.findings.iter().find(|finding| finding.what == what);
    found.unwrap_or_else(|| panic!("{what} is missing in {diagnosis:#?}"))
}

#[track_caller]
fn expect(diagnosis: &Diagnosis<'_>, what: &str, level: Level, found: &str, command: &str) {
    let finding = find(diagnosis, what);
    assert_eq!(finding.level, level, "{finding:#?}");
    assert!(finding.found.contains(found), "{found:?} is missing in {finding:#?}");
    assert_eq!(finding.command.as_deref().unwrap_or(""), command, "{finding:#?}");
}

/// On an empty folder, nothing fails, and shm works.
#[test]
fn nothing_there() {
    let mut machine = Machine::empty();
    let facts = machine.facts();
    let diagnosis = Diagnosis::of(&facts, &QUESTION);
    assert!(diagnosis.shm.works && !diagnosis.verbs.works);
    assert_eq!(
        diagnosis.verbs.why,
        "because this kernel has no RDMA, there is no RDMA device, libibverbs.so.1 is not installed"
    );
    assert_eq!(find(&diagnosis, "libibverbs.so.1").advice.as_deref(), Some("install rdma-core"));
    expect(
        &diagnosis,
        "/dev/shm",
        Level::Warning,
        "there is none",
        "sudo mkdir -p /dev/shm && sudo mount -t tmpfs tmpfs /dev/shm",
    );

    // A file with senseless content counts as missing.
    machine
        .write("proc/self/limits", "Max locked memory\n")
        .write("proc/self/status", "CapEff: zzz\nUid:\n")
        .write("sys/class/infiniband/x/ports/one/state", "?")
        .write("sys/class/infiniband/x/ports/1/gids/0", "no gid")
        .write("sys/class/infiniband/x/ports/1/lid", "5")
        .write("sys/class/net/eth0/flags", "up");
    let facts = machine.facts();
    assert_eq!((facts.devices[0].ports.len(), facts.interfaces.len()), (1, 0), "{facts:#?}");
    assert!(!Diagnosis::of(&facts, &QUESTION).verbs.works);
}

#[test]
fn no_device() {
    let mut machine = Machine::usual();
    machine.interface("eth1", 3, "0x1003", "up", &[("fe80::1", 64)]);
    let facts = machine.facts();
    let diagnosis = Diagnosis::of(&facts, &QUESTION);
    assert_eq!(diagnosis.verbs.why, "because there is no RDMA device, libibverbs.so.1 is not installed");
    // The command names the first interface that is up and has a routed address.
    let add = "sudo modprobe rdma_rxe && sudo rdma link add rxe0 type rxe netdev eth0";
    expect(&diagnosis, "RDMA device", Level::Problem, "Soft-RoCE makes one", add);
    expect(
        &diagnosis,
        "libibverbs.so.1",
        Level::Problem,
        "is not installed",
        "sudo apt-get install libibverbs1 ibverbs-providers",
    );

    let command = |machine: &Machine| {
        let facts = machine.facts();
        find(&Diagnosis::of(&facts, &QUESTION), "RDMA device").command.clone().unwrap_or_default()
    };
    machine.user(0, 0).write("sys/module/rdma_rxe/refcnt", "0").remove("usr/sbin/rdma");
    assert_eq!(command(&machine), "apt-get install iproute2 && rdma link add rxe0 type rxe netdev eth0");
    machine.write("sys/class/net/eth0/flags", "0x1002").write("sys/class/net/eth1/flags", "0x1002");
    assert!(command(&machine).starts_with("ip link add dummy0 type dummy && "), "{}", command(&machine));

    // A card is better than a device in software.
    machine.write("sys/bus/pci/drivers/mlx5_core/0000:01:00.0/vendor", "0x15b3");
    assert_eq!(command(&machine), "apt-get install linux-image-amd64", "mlx5_ib is not installed");
    machine.write("lib/modules/6.12.1-amd64/modules.dep", "kernel/x/mlx5_ib.ko: kernel/y.ko\n");
    assert_eq!(command(&machine), "modprobe mlx5_ib");
    machine.remove("sys/bus/pci").remove("sys/module");
    assert_eq!(command(&machine), "apt-get install linux-image-amd64");
    machine.write("etc/os-release", "ID=ubuntu\nID_LIKE=debian\n");
    assert_eq!(command(&machine), "apt-get install linux-modules-extra-6.12.1-amd64");
    // A module that only another module's line names is not installed.
    machine.write("lib/modules/6.12.1-amd64/modules.dep", "kernel/z.ko: kernel/x/rdma_rxe.ko\n");
    assert_eq!(machine.facts().kernel.rxe, Module::Missing);
    machine.remove("lib/modules");
    let facts = machine.facts();
    let gone = find(&Diagnosis::of(&facts, &QUESTION), "RDMA device").advice.clone().unwrap();
    assert_eq!(gone, "/lib/modules/6.12.1-amd64 is gone, as it is after an upgrade of the kernel: reboot");
    machine.remove("proc/modules");
    assert_eq!(command(&machine), "");
}

#[test]
fn soft_roce() {
    let mut machine = Machine::usual();
    machine.soft_roce().library();
    let facts = machine.facts();
    let diagnosis = Diagnosis::of(&facts, &QUESTION);
    assert!(diagnosis.verbs.works, "{diagnosis:#?}");
    assert_eq!(diagnosis.verbs.why, "on rxe0 port 1");
    assert!(diagnosis.findings.iter().all(|finding| finding.level <= Level::Note), "{diagnosis:#?}");
    expect(&diagnosis, "device rxe0", Level::Ok, "made in software", "");
    expect(&diagnosis, "rxe0 port 1", Level::Ok, "eth0, MTU 1500, packets of 1,024 bytes", "");
    expect(&diagnosis, "GID of rxe0 port 1", Level::Ok, "chose index 1: RoCE v2, IPv4", "");
    expect(
        &diagnosis,
        "libibverbs.so.1",
        Level::Ok,
        "/usr/lib64/libibverbs.so.1, with the parts for rxe",
        "",
    );
    let order: Vec<_> = diagnosis.ports[0].ranking.iter().map(|ranked| ranked.entry.index).collect();
    assert_eq!(order, [1, 0]);
    assert_eq!(diagnosis.ports[0].ranking[0].entry.ifindex, 2);

    // A packet's headers need space, too.
    for (mtu, bytes) in
        [("9000", "4,096"), ("4200", "4,096"), ("4096", "2,048"), ("1500", "1,024"), ("300", "256")]
    {
        let facts = machine.write("sys/class/net/eth0/mtu", mtu).facts();
        let diagnosis = Diagnosis::of(&facts, &QUESTION);
        expect(&diagnosis, "rxe0 port 1", Level::Ok, &format!("MTU {mtu}, packets of {bytes} bytes"), "");
    }

    // The subnet's prefix is that of the interface.
    for (peer, said) in [("10.0.0.9", "same subnet as the peer"), ("10.0.1.9", "another subnet than")] {
        let question = Question { peer: Some(peer.parse().unwrap()), ..QUESTION };
        let diagnosis = Diagnosis::of(&facts, &question);
        expect(&diagnosis, "GID of rxe0 port 1", Level::Ok, said, "");
    }

    let diagnosis = Diagnosis::of(&facts, &Question { verbs_built: false, ..QUESTION });
    assert!(!diagnosis.verbs.works);
    assert_eq!(diagnosis.verbs.why, "because this build lacks it; the machine is ready, on rxe0 port 1");
    machine.remove("usr/lib64");
    let facts = machine.facts();
    assert_eq!(Diagnosis::of(&facts, &QUESTION).verbs.why, "because libibverbs.so.1 is not installed");
}

#[test]
fn port_down() {
    let mut machine = Machine::usual();
    let port = |machine: &Machine| {
        let facts = machine.facts();
        let diagnosis = Diagnosis::of(&facts, &QUESTION);
        assert!(!diagnosis.verbs.works);
        assert_eq!(diagnosis.verbs.why, "because no usable port on rxe0");
        let finding = find(&diagnosis, "rxe0 port 1");
        assert_eq!(finding.level, Level::Problem);
        (finding.found.clone(), finding.command.clone().unwrap_or_default())
    };
    machine.soft_roce().library().port("rxe0", 1, "1: DOWN\n", "3: Disabled\n", "Ethernet\n");
    let (found, command) = port(&machine);
    assert_eq!((found.as_str(), command.as_str()), ("DOWN: eth0 has no link", "sudo ethtool eth0"));
    machine.write("sys/class/net/eth0/flags", "0x1002\n");
    let (found, command) = port(&machine);
    assert_eq!(found, "DOWN, because its interface eth0 is switched off");
    assert_eq!(command, "sudo ip link set eth0 up");
    let facts = machine.facts();
    let told =
        Diagnosis::of(&facts, &QUESTION).findings.iter().any(|finding| finding.what.starts_with("GID of"));
    assert!(!told, "what a port that is down would choose is no news");
    // The port's interface is known even when the port has no GID.
    machine.remove("sys/class/infiniband/rxe0/ports/1/gids");
    assert_eq!(port(&machine), (found, command));
}

/// Indexes are not positions, and empty entries do not appear.
#[test]
fn sparse_gids() {
    let mut machine = Machine::usual();
    machine
        .device("mlx5_0", 0)
        .library()
        .port("mlx5_0", 1, "4: ACTIVE\n", "5: LinkUp\n", "Ethernet\n")
        .gid("mlx5_0/ports/1", 10, "fe80::1\n", "IB/RoCE v1\n", "eth0\n")
        .gid("mlx5_0/ports/1", 9, "fe80::1\n", "RoCE v2\n", "eth0\n")
        .gid("mlx5_0/ports/1", 200, "::ffff:10.0.0.1\n", "RoCE v2\n", "eth0\n")
        .gid("mlx5_0/ports/1", 3, "::\n", "", "")
        .gid("mlx5_0/ports/1", 37, "::ffff:10.0.0.1\n", "IB/RoCE v1\n", "eth0\n");
    let facts = machine.facts();
    let diagnosis = Diagnosis::of(&facts, &QUESTION);
    let order: Vec<_> = diagnosis.ports[0].ranking.iter().map(|ranked| ranked.entry.index).collect();
    assert_eq!(order, [200, 9, 37, 10]);
    assert_eq!((facts.devices[0].ports[0].gids.len(), facts.devices[0].ports[0].gid_places), (4, 5));
    assert!(diagnosis.verbs.works);

    for index in [9, 10, 37, 200] {
        machine.gid("mlx5_0/ports/1", index, "::\n", "", "");
    }
    let facts = machine.facts();
    let diagnosis = Diagnosis::of(&facts, &QUESTION);
    expect(&diagnosis, "GID of mlx5_0 port 1", Level::Problem, "all 5 GIDs of the port are zero", "");
    assert_eq!(diagnosis.verbs.why, "because no usable port on mlx5_0");

    machine.gid("mlx5_0/ports/1", 4, "fe80::1\n", "IB/RoCE v1\n", "eth0\n");
    let facts = machine.facts();
    let diagnosis = Diagnosis::of(&facts, &QUESTION);
    expect(&diagnosis, "GID of mlx5_0 port 1", Level::Warning, "RoCE v1 only", "");
    assert!(diagnosis.verbs.works);
}

#[test]
fn no_permission() {
    let mut machine = Machine::usual();
    machine.soft_roce().library();
    let mut facts = machine.facts();
    // Root opens anything; cli/tests/cli/doctor.rs tests the refusal itself.
    for (errno, container, found, command) in [
        (
            13,
            false,
            "user 1000 may not read and write /dev/infiniband/uverbs0",
            "sudo chmod a+rw /dev/infiniband/uverbs0",
        ),
        (1, true, "a container's rules forbid to open it", ""),
        (2, true, "is missing in this container", ""),
        (
            2,
            false,
            "is missing, though the kernel has it",
            "sudo mkdir -p /dev/infiniband && sudo mknod -m 666 /dev/infiniband/uverbs0 c 231 192",
        ),
        (5, false, "Input/output error", ""),
    ] {
        facts.kernel.container = container;
        facts.devices[0].uverbs.as_mut().unwrap().error = Some(io::Error::from_raw_os_error(errno));
        let diagnosis = Diagnosis::of(&facts, &QUESTION);
        expect(&diagnosis, "permission for rxe0", Level::Problem, found, command);
        assert_eq!(diagnosis.verbs.why, "because no usable port on rxe0");
    }

    machine.remove("dev/infiniband");
    let facts = machine.facts();
    let error = facts.devices[0].uverbs.as_ref().unwrap().error.as_ref().unwrap();
    assert_eq!(error.kind(), io::ErrorKind::NotFound);
    machine.remove("sys/class/infiniband_verbs");
    let facts = machine.facts();
    let diagnosis = Diagnosis::of(&facts, &QUESTION);
    expect(&diagnosis, "permission for rxe0", Level::Problem, "to no program", "sudo modprobe ib_uverbs");
}

#[test]
fn memlock() {
    let mut machine = Machine::usual();
    machine.soft_roce().library();
    let limits_d = "echo '* - memlock unlimited' | sudo tee /etc/security/limits.d/90-oneread.conf";
    for (soft, hard, level, found, command) in [
        ("unlimited", "unlimited", Level::Ok, "no limit", ""),
        ("104857600", "104857600", Level::Ok, "up to 100 MiB", ""),
        ("8388608", "8388608", Level::Warning, "a server must lock its table, by default 100 MiB", limits_d),
        ("65536", "65536", Level::Problem, "up to 64 KiB: a client's queues may not fit", limits_d),
        (
            "65536",
            "unlimited",
            Level::Problem,
            "up to 64 KiB: a client's queues may not fit",
            "ulimit -l unlimited",
        ),
    ] {
        let facts = machine.memlock(soft, hard).facts();
        let diagnosis = Diagnosis::of(&facts, &QUESTION);
        expect(&diagnosis, "locked memory", level, found, command);
        assert_eq!(diagnosis.verbs.works, level < Level::Problem, "{soft} {hard}");
    }
    assert_eq!(Diagnosis::of(&machine.facts(), &QUESTION).verbs.why, "because only 64 KiB may be locked");
    // CAP_IPC_LOCK lifts the limit, but not inside a user namespace.
    let facts = machine.user(0, 1 << 14).facts();
    expect(&Diagnosis::of(&facts, &QUESTION), "locked memory", Level::Ok, "CAP_IPC_LOCK", "");
    let facts = machine.write("proc/self/uid_map", "0 1000 1\n").facts();
    assert!(!Diagnosis::of(&facts, &QUESTION).verbs.works);
}

/// Two ports on InfiniBand, one with and one without a subnet manager.
#[test]
fn infiniband() {
    let mut machine = Machine::usual();
    let device = "sys/class/infiniband/mlx5_0";
    machine
        .library()
        .device("mlx5_0", 0)
        .write(&format!("{device}/fw_ver"), "16.35.2000\n")
        .write(&format!("{device}/board_id"), "MT_0000000008\n")
        .write(&format!("{device}/device/vendor"), "0x15b3\n")
        .port("mlx5_0", 1, "4: ACTIVE\n", "5: LinkUp\n", "InfiniBand\n")
        .port("mlx5_0", 2, "2: INIT\n", "5: LinkUp\n", "InfiniBand\n")
        .write(&format!("{device}/ports/1/lid"), "0x1f\n")
        .write(&format!("{device}/ports/1/sm_lid"), "0x1\n")
        .write(&format!("{device}/ports/1/gids/0"), "fe80:0000:0000:0000:0002:c903:0000:0001\n")
        .write(&format!("{device}/ports/1/gid_attrs/types/0"), "IB/RoCE v1\n")
        .write(&format!("{device}/ports/2/gids/0"), "fe80:0000:0000:0000:0002:c903:0000:0002\n");
    symlink("../../../bus/pci/drivers/mlx5_core", machine.root.path().join(device).join("device/driver"))
        .unwrap();
    let facts = machine.facts();
    let diagnosis = Diagnosis::of(&facts, &QUESTION);
    assert!(diagnosis.verbs.works, "{diagnosis:#?}");
    assert_eq!(diagnosis.verbs.why, "on mlx5_0 port 1");
    expect(&diagnosis, "device mlx5_0", Level::Ok, "mlx5_core, firmware 16.35.2000, board MT_0000000008", "");
    expect(
        &diagnosis,
        "mlx5_0 port 1",
        Level::Ok,
        "InfiniBand, 100 Gb/sec (4X EDR), LID 31, subnet manager at LID 1",
        "",
    );
    expect(&diagnosis, "GID of mlx5_0 port 1", Level::Ok, "no GID needed: InfiniBand by LID 31", "");
    // The other port does not matter.
    let opensm = "sudo apt-get install opensm && sudo systemctl enable --now opensm";
    expect(&diagnosis, "mlx5_0 port 2", Level::Warning, "INIT: no subnet manager has configured it", opensm);

    machine
        .write(&format!("{device}/ports/1/state"), "1: DOWN\n")
        .write(&format!("{device}/ports/1/phys_state"), "2: Polling\n");
    let facts = machine.facts();
    let diagnosis = Diagnosis::of(&facts, &QUESTION);
    assert_eq!(diagnosis.verbs.why, "because no usable port on mlx5_0");
    expect(&diagnosis, "mlx5_0 port 1", Level::Problem, "DOWN, Polling: no link", "");
    expect(&diagnosis, "mlx5_0 port 2", Level::Problem, "no subnet manager", opensm);
}

/// iWARP is RDMA, but oneread cannot use it.
#[test]
fn iwarp() {
    let mut machine = Machine::usual();
    machine.soft_roce().library().write("sys/class/infiniband/rxe0/node_type", "4: RNIC\n");
    let facts = machine.facts();
    let diagnosis = Diagnosis::of(&facts, &QUESTION);
    assert!(!diagnosis.verbs.works);
    expect(&diagnosis, "device rxe0", Level::Problem, "its kind is RNIC", "");
}

/// The loader's order: LD_LIBRARY_PATH, its cache, the standard folders.
#[test]
fn library() {
    let mut machine = Machine::usual();
    let path = |machine: &Machine| machine.facts().library.path.map(|path| path.display().to_string());
    // The cache names a file that no longer exists.
    machine.write("etc/ld.so.cache", "glibc-ld.so.cache1.1\0libibverbs.so.1\0/opt/a/libibverbs.so.1\0");
    assert_eq!(path(&machine), None);
    machine.library();
    assert_eq!(path(&machine).as_deref(), Some("/usr/lib64/libibverbs.so.1"));
    machine.write("opt/a/libibverbs.so.1", "");
    assert_eq!(path(&machine).as_deref(), Some("/opt/a/libibverbs.so.1"));
    let facts = machine.facts();
    let finding = Diagnosis::of(&facts, &QUESTION);
    expect(
        &finding,
        "libibverbs.so.1",
        Level::Warning,
        "no device's part",
        "sudo apt-get install libibverbs1 ibverbs-providers",
    );
    machine.write("opt/b/libibverbs.so.1", "").library_path = Some("/opt/none:/opt/b".into());
    assert_eq!(path(&machine).as_deref(), Some("/opt/b/libibverbs.so.1"));
}

#[test]
fn memory() {
    let mut machine = Machine::usual();
    let facts = machine.facts();
    assert_eq!(facts.memory.transparent.as_deref(), Some("never"));
    let advise = "sudo sh -c 'echo advise > /sys/kernel/mm/transparent_hugepage/shmem_enabled'";
    let found = "region files get none (never); none of 2 MiB free, a table without a file would take 50";
    expect(&Diagnosis::of(&facts, &QUESTION), "huge pages", Level::Note, found, advise);
    let facts = machine.huge_pages(60, 50).facts();
    expect(&Diagnosis::of(&facts, &QUESTION), "huge pages", Level::Ok, "50 of 2 MiB free for tables", "");
    let advised = "always within_size [advise] never deny force\n";
    let facts = machine.huge_pages(0, 0).shared_huge_pages(advised).facts();
    expect(&Diagnosis::of(&facts, &QUESTION), "huge pages", Level::Ok, "region files get transparent", "");
    // A kernel without transparent ones can reserve some. Pages that others use are added.
    let facts = machine.huge_pages(30, 10).remove("sys/kernel/mm/transparent_hugepage").facts();
    let more = "sudo sysctl vm.nr_hugepages=70";
    expect(&Diagnosis::of(&facts, &QUESTION), "huge pages", Level::Note, "none: the kernel has no", more);
    let facts = machine.remove("sys/kernel/mm/hugepages").facts();
    expect(&Diagnosis::of(&facts, &QUESTION), "huge pages", Level::Note, "reserves none of 2 MiB", "");

    // A kernel that moves memory when it is told to, unless the administrator forbids that.
    let length = "sys/kernel/mm/transparent_hugepage/hpage_pmd_size";
    let facts = machine.huge_pages(0, 0).write(length, "2097152\n").facts();
    let found = "tables get them without being asked; none of 2 MiB free";
    expect(&Diagnosis::of(&facts, &QUESTION), "huge pages", Level::Ok, found, "");
    let denied = machine.shared_huge_pages("always within_size advise never [deny] force\n").facts();
    expect(&Diagnosis::of(&denied, &QUESTION), "huge pages", Level::Note, "none (deny)", advise);
    let older = machine.huge_pages(0, 0).write("proc/sys/kernel/osrelease", "6.0.19\n").facts();
    expect(&Diagnosis::of(&older, &QUESTION), "huge pages", Level::Note, "none (never)", advise);
    let longer = machine.write("proc/sys/kernel/osrelease", "6.12.1\n").write(length, "33554432\n").facts();
    expect(&Diagnosis::of(&longer, &QUESTION), "huge pages", Level::Note, "none (never)", advise);
    let facts = machine.remove("sys/kernel/mm/transparent_hugepage").facts();

    let greedy = Question { table_bytes: 1 << 60, ..QUESTION };
    let finding = find(&Diagnosis::of(&facts, &greedy), "/dev/shm").found.clone();
    assert!(finding.contains("a table of a million keys takes 1048576 TiB"), "{finding}");
    let sealing_error = Some("Operation not permitted".into());
    let facts = Facts::collect(machine.root.path(), Live { sealing_error, ..Live::default() });
    let diagnosis = Diagnosis::of(&facts, &QUESTION);
    assert!(!diagnosis.shm.works);
    assert_eq!(diagnosis.shm.why, "because memory cannot be shared: Operation not permitted");
}

/// Tools and modules are installed as the distribution does it, in a command that is right for the user.
#[test]
fn distributions() {
    let mut machine = Machine::usual();
    machine.soft_roce();
    let verbs = |machine: &Machine| {
        let facts = machine.facts();
        find(&Diagnosis::of(&facts, &QUESTION), "libibverbs.so.1").command.clone().unwrap_or_default()
    };
    let mut bare = Machine::usual();
    bare.write("lib/modules/6.12.1-amd64/modules.dep", "kernel/drivers/infiniband/core/ib_uverbs.ko.xz:\n");
    let module = |bare: &Machine| {
        let facts = bare.facts();
        let diagnosis = Diagnosis::of(&facts, &QUESTION);
        let finding = find(&diagnosis, "RDMA device");
        (finding.command.clone().unwrap_or_default(), finding.advice.clone().unwrap_or_default())
    };
    let boot = "then boot the kernel that this installs:";
    for (release, library, kernel, advice) in [
        (
            "ID=debian\n",
            "apt-get install libibverbs1 ibverbs-providers",
            "apt-get install linux-image-amd64",
            boot,
        ),
        (
            "ID=\"centos\"\nID_LIKE=\"rhel fedora\"\n",
            "dnf install libibverbs rdma-core",
            "dnf install kernel-modules-extra-6.12.1-amd64",
            "",
        ),
        (
            "ID=\"opensuse-leap\"\nID_LIKE=\"suse opensuse\"\n",
            "zypper install libibverbs1 rdma-core",
            "zypper install kernel-default",
            boot,
        ),
        ("ID=arch\n", "pacman -S rdma-core", "", "install the RDMA modules of the kernel 6.12.1-amd64"),
        ("ID=other\n", "", "", "install the RDMA modules of the kernel 6.12.1-amd64"),
    ] {
        let as_root =
            |command: &str| if command.is_empty() { String::new() } else { format!("sudo {command}") };
        machine.write("etc/os-release", release);
        bare.write("etc/os-release", release);
        assert_eq!(verbs(&machine), as_root(library), "{release}");
        assert_eq!(module(&bare), (as_root(kernel), advice.into()), "{release}");
    }
}

/// In a container, what mends the kernel is for its host.
#[test]
fn container() {
    let mut machine = Machine::usual();
    machine.write(".dockerenv", "");
    let facts = machine.facts();
    let diagnosis = Diagnosis::of(&facts, &QUESTION);
    assert_eq!(
        find(&diagnosis, "RDMA device").advice.as_deref(),
        Some("on the host, if this is a container:")
    );
    // Without files of modules, only what is loaded is known.
    machine.remove("lib/modules");
    let facts = machine.facts();
    let diagnosis = Diagnosis::of(&facts, &QUESTION);
    let kernel = find(&diagnosis, "kernel");
    assert_eq!(kernel.level, Level::Problem);
    assert!(
        kernel.found.ends_with("looks like a container, and its host has not loaded ib_uverbs"),
        "{kernel:?}"
    );
    assert_eq!(kernel.advice.as_deref(), Some("on the host, not in here:"));
    assert_eq!(kernel.command.as_deref(), Some("sudo modprobe ib_uverbs"));
    let device = find(&diagnosis, "RDMA device");
    assert!(device.advice.as_deref().unwrap().starts_with("on the host, not in here"), "{device:?}");
    let add = "modprobe rdma_rxe && sudo rdma link add rxe0 type rxe netdev eth0";
    assert!(device.command.as_deref().unwrap().ends_with(add), "{device:?}");
}

/// The table of GIDs and the JSON tell the same order, and which one was chosen, and why.
#[test]
fn gids_are_told() {
    let mut machine = Machine::usual();
    machine.soft_roce().library();
    let facts = machine.facts();
    let diagnosis = Diagnosis::of(&facts, &QUESTION);
    let port = &diagnosis.ports[0];
    let shown = super::gid_table(port);
    let cells = oneread_kit::show::cells(&shown);
    assert_eq!(cells.len(), 2);
    assert_eq!(cells[0], ["1", "::ffff:10.0.0.1", "eth0", "RoCE v2, IPv4"]);
    assert_eq!(cells[1][..3], ["0", "fe80::4cc8:bdff:fe19:97cd", "eth0"]);
    let told = super::report_json(&facts, &diagnosis);
    let found = &told["ports"][0];
    assert_eq!((&found["device"], &found["port"]), (&"rxe0".into(), &1.into()));
    assert_eq!((&found["found"], &found["index"]), (&true.into(), &1.into()));
    assert!(found["why"].as_str().unwrap().contains("RoCE v2, IPv4"), "{found}");
    for (gid, row) in found["gids"].as_array().unwrap().iter().zip(&cells) {
        let names = ["index", "gid", "interface", "why"].map(|name| match &gid[name] {
            serde_json::Value::String(text) => text.clone(),
            other => other.to_string(),
        });
        assert_eq!((&names[..], &gid["kind"]), (&row[..], &"RoCE v2".into()));
    }
    assert_eq!(told["fabrics"]["verbs"]["works"], true);
    assert_eq!(told["facts"]["devices"][0]["ports"][0]["link_layer"], "Ethernet");
    // Without a GID to choose, the reason stands in the place of the choice.
    let gids = "sys/class/infiniband/rxe0/ports/1/gids";
    for index in 0..2 {
        machine.write(&format!("{gids}/{index}"), "0000:0000:0000:0000:0000:0000:0000:0000\n");
    }
    let facts = machine.facts();
    let found = &super::report_json(&facts, &Diagnosis::of(&facts, &QUESTION))["ports"][0];
    assert_eq!((&found["found"], found["index"].is_null()), (&false.into(), true), "{found}");
    assert!(found["why"].as_str().is_some_and(|why| !why.is_empty()), "{found}");
}

/// Each level has a word of its own.
#[test]
fn levels_have_words() {
    let words = [Level::Ok, Level::Note, Level::Warning, Level::Problem].map(|level| super::look(level).0);
    assert_eq!(words, ["ok", "note", "warning", "problem"]);
}
