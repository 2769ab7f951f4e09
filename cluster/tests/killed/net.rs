//! Hosts of a network: namespaces, and a switch between them that delays packets, loses some, and can be cut.
//!
//! Each host has a VXLAN device whose only peer is the switch: a thread of the test, which gets each packet as a
//! datagram, and passes it on when it is due. So a link of any two hosts can be cut, in each direction by itself, and it
//! takes no `netem`, which many kernels lack.

use super::Random;
use rustix::fs::{Mode, OFlags};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::net::UdpSocket;
use std::os::fd::{AsFd, OwnedFd};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

const PREFIX: &str = "oneread-";
/// Of VXLAN.
const PORT: u16 = 4789;
/// Before the addresses of a packet.
const VXLAN_LEN: usize = 8;
const ETHERNET_LEN: usize = 14;
/// It leaves room for the headers around a packet.
const MTU: &str = "1400";
/// The switch's address. Hosts' own, outside and inside of VXLAN, end with their numbers and 1.
const SWITCH: &str = "10.98.0.254";

/// What a link does to packets in one direction.
#[derive(Clone, Copy, Debug)]
pub struct Quality {
    /// Least time on the way.
    pub delay: Duration,
    /// Up to so much is added, by chance.
    pub jitter: Duration,
    /// Packets lost of a million.
    pub loss: u32,
}

#[derive(Debug, Default)]
struct Link {
    /// By so many faults.
    cuts: AtomicU32,
    /// Packets lost of a million besides.
    more_loss: AtomicU32,
}

/// Packets on their way, with their receivers: by when they are due, and the order in which they came.
type OnTheWay = BTreeMap<(Instant, u64), (usize, Vec<u8>)>;

#[derive(Debug, Default)]
struct Switch {
    hosts: usize,
    /// By sender and receiver.
    links: Vec<Link>,
    due: Mutex<OnTheWay>,
    came: Condvar,
    ends: AtomicBool,
    carried: AtomicU64,
    lost: AtomicU64,
    cut: AtomicU64,
}

impl Switch {
    fn link(&self, from: usize, to: usize) -> &Link {
        &self.links[from * self.hosts + to]
    }

    fn due(&self) -> MutexGuard<'_, OnTheWay> {
        self.due.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes what hosts send. Packets of a link keep their order.
    fn receive(&self, socket: &UdpSocket, qualities: &[Quality], mut random: Random) {
        let mut bytes = vec![0; 1 << 16];
        let mut last = vec![Instant::now(); self.links.len()];
        for n in 0.. {
            let len = match socket.recv_from(&mut bytes) {
                Ok((len, _)) => len,
                Err(_) if self.ends.load(Ordering::Relaxed) => return,
                Err(_) => continue,
            };
            let packet = &mut bytes[..len];
            let Some((from, to)) = ends(packet, self.hosts) else { continue };
            let (at, link) = (from * self.hosts + to, self.link(from, to));
            let quality = qualities[at];
            if link.cuts.load(Ordering::Relaxed) > 0 {
                self.cut.fetch_add(1, Ordering::Relaxed);
                continue;
            }
            let loss = quality.loss + link.more_loss.load(Ordering::Relaxed);
            if random.below(1_000_000) < loss as usize {
                self.lost.fetch_add(1, Ordering::Relaxed);
                continue;
            }
            sum_up(packet);
            let jitter = random.below(quality.jitter.as_micros() as usize + 1) as u64;
            let is_due = Instant::now() + quality.delay + Duration::from_micros(jitter);
            last[at] = last[at].max(is_due);
            self.due().insert((last[at], n), (to, packet.to_vec()));
            self.came.notify_one();
        }
    }

    /// Passes on what is due.
    fn send(&self, socket: &UdpSocket) {
        let mut due = self.due();
        while !self.ends.load(Ordering::Relaxed) {
            let now = Instant::now();
            let wait = match due.first_entry() {
                Some(first) if first.key().0 <= now => {
                    let (to, packet) = first.remove();
                    drop(due);
                    // What the switch may not send is lost, as in any.
                    let _ = socket.send_to(&packet, (outer(to), PORT));
                    self.carried.fetch_add(1, Ordering::Relaxed);
                    due = self.due();
                    continue;
                }
                Some(first) => first.key().0 - now,
                None => Duration::from_millis(100),
            };
            due = self.came.wait_timeout(due, wait).unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

/// From which host to which other one a packet of IPv4 goes.
fn ends(packet: &[u8], hosts: usize) -> Option<(usize, usize)> {
    let ethernet = packet.get(VXLAN_LEN..VXLAN_LEN + ETHERNET_LEN)?;
    let host = |address: &[u8]| usize::from(address[5]).checked_sub(1).filter(|host| *host < hosts);
    let is_ip = ethernet[12..] == [8, 0] && ethernet[..5] == [2, 0, 0, 0, 0];
    is_ip.then(|| Some((host(&ethernet[6..12])?, host(&ethernet[..6])?)))?
}

/// Gives a TCP segment its checksum. Its sender has left that to a device that does not know what is within VXLAN.
fn sum_up(packet: &mut [u8]) {
    let Some(ip) = packet.get_mut(VXLAN_LEN + ETHERNET_LEN..) else { return };
    if ip.len() < 40 || ip[9] != 6 {
        return;
    }
    let (header, total) = (usize::from(ip[0] & 15) * 4, usize::from(u16::from_be_bytes([ip[2], ip[3]])));
    if total < header + 20 || total > ip.len() {
        return;
    }
    ip[header + 16..header + 18].fill(0);
    let words = |bytes: &[u8]| -> u64 {
        let pair = |pair: &[u8]| u64::from(pair[0]) << 8 | u64::from(pair.get(1).copied().unwrap_or(0));
        bytes.chunks(2).map(pair).sum()
    };
    let mut sum = words(&ip[12..20]) + 6 + (total - header) as u64 + words(&ip[header..total]);
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    ip[header + 16..header + 18].copy_from_slice(&(!(sum as u16)).to_be_bytes());
}

fn outer(host: usize) -> String {
    format!("10.98.0.{}", host + 1)
}

/// A host's address.
pub fn address(host: usize) -> String {
    format!("10.99.0.{}", host + 1)
}

/// Runs `ip`. Says why it failed.
fn ip(words: &str) -> Result<String, String> {
    let done =
        Command::new("ip").args(words.split_whitespace()).output().map_err(|error| error.to_string())?;
    let told = String::from_utf8_lossy(if done.status.success() { &done.stdout } else { &done.stderr });
    if done.status.success() { Ok(told.into_owned()) } else { Err(format!("ip {words}: {}", told.trim())) }
}

/// Runs such lines at a namespace: a program for each would take its time on a busy machine.
fn at(namespace: &str, lines: &str) -> Result<(), String> {
    let mut program = Command::new("ip");
    program.args(["-n", namespace, "-batch", "-"]).stdin(Stdio::piped()).stderr(Stdio::piped());
    let mut child = program.spawn().map_err(|error| error.to_string())?;
    let written = child.stdin.take().map(|mut lines_in| lines_in.write_all(lines.as_bytes()));
    let done = child.wait_with_output().map_err(|error| error.to_string())?;
    let told = String::from_utf8_lossy(&done.stderr);
    let is_good = done.status.success() && matches!(written, Some(Ok(())));
    if is_good { Ok(()) } else { Err(format!("ip in {namespace}: {}", told.trim())) }
}

/// Why there can be no such network here.
pub fn missing() -> Option<String> {
    if !rustix::process::geteuid().is_root() {
        return Some("only root makes network namespaces".into());
    }
    let name = format!("{PREFIX}{}-try", std::process::id());
    let tried = ip(&format!("netns add {name}"))
        .and_then(|_| ip(&format!("-n {name} link add vx type vxlan id 1 dstport {PORT} remote {SWITCH}")))
        .and_then(|_| ip(&format!("-n {name} link add b0 type bridge")));
    let _ = ip(&format!("netns del {name}"));
    tried.err()
}

/// Removes a namespace, and ends what runs in it.
fn remove(name: &str) {
    for pid in ip(&format!("netns pids {name}")).unwrap_or_default().split_whitespace() {
        let pid = pid.parse().ok().and_then(rustix::process::Pid::from_raw);
        if let Some(pid) = pid.filter(|pid| pid.as_raw_nonzero().get() as u32 != std::process::id()) {
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
        }
    }
    let _ = ip(&format!("netns del {name}"));
}

/// Removes what a test has left that was killed.
fn clean() {
    for name in ip("netns list").unwrap_or_default().lines().filter_map(|line| line.split(' ').next()) {
        let pid = name.strip_prefix(PREFIX).and_then(|rest| rest.split_once('-')).map(|(pid, _)| pid);
        if pid.is_some_and(|pid| {
            pid.parse::<u32>().is_ok() && !fs::exists(format!("/proc/{pid}")).unwrap_or(true)
        }) {
            remove(name);
        }
    }
}

fn namespace(path: &str) -> OwnedFd {
    rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).unwrap()
}

fn enter(namespace: &OwnedFd) {
    move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network)).unwrap();
}

/// A network. It is removed when this is dropped, by the thread that made it.
pub struct Net {
    switch: Arc<Switch>,
    threads: Vec<thread::JoinHandle<()>>,
    /// Where this thread was before.
    home: OwnedFd,
}

impl Net {
    /// A network of so many hosts. Links are of any quality between this one and ten times as good. The calling thread, and those that it
    /// starts from then on, are at the last host.
    pub fn new(hosts: usize, worst: Quality, mut random: Random) -> Net {
        clean();
        let switch = Switch {
            hosts,
            links: (0..hosts * hosts).map(|_| Link::default()).collect(),
            ..Switch::default()
        };
        let mut net = Net {
            switch: Arc::new(switch),
            threads: Vec::new(),
            home: namespace("/proc/thread-self/ns/net"),
        };
        net.build().unwrap_or_else(|why| panic!("{why}"));
        let mut part = |of: u128| (of / 10) as u64 + random.below((of - of / 10) as usize + 1) as u64;
        let mut some = |_| Quality {
            delay: Duration::from_micros(part(worst.delay.as_micros())),
            jitter: Duration::from_micros(part(worst.jitter.as_micros())),
            loss: part(worst.loss.into()) as u32,
        };
        let qualities: Vec<Quality> = (0..hosts * hosts).map(&mut some).collect();
        enter(&namespace(&format!("/run/netns/{}", name_of("switch"))));
        let socket = UdpSocket::bind((SWITCH, PORT)).unwrap();
        socket.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
        let (switch, sends) = (net.switch.clone(), socket.try_clone().unwrap());
        net.threads.push(thread::spawn(move || switch.receive(&socket, &qualities, random)));
        let switch = net.switch.clone();
        net.threads.push(thread::spawn(move || switch.send(&sends)));
        enter(&namespace(&format!("/run/netns/{}", name_of(hosts - 1))));
        net
    }

    fn build(&self) -> Result<(), String> {
        let (switch, hosts) = (name_of("switch"), self.switch.hosts);
        (0..hosts)
            .map(name_of)
            .chain([switch.clone()])
            .try_for_each(|name| ip(&format!("netns add {name}")).map(drop))?;
        let mut words = format!("link add b0 type bridge\naddr add {SWITCH}/24 dev b0\nlink set b0 up\n");
        for host in 0..hosts {
            let name = name_of(host);
            words += &format!(
                "link add h{host} type veth peer name u0 netns {name}\nlink set h{host} master b0 up\n"
            );
        }
        at(&switch, &words)?;
        for host in 0..hosts {
            let mac = |host: usize| format!("02:00:00:00:00:{:02x}", host + 1);
            let mut words = format!(
                "link set lo up\naddr add {}/24 dev u0\nlink set u0 up\n\
                 link add n0 address {} mtu {MTU} gso_max_segs 1 type vxlan id 1 dstport {PORT} remote {SWITCH} nolearning\n\
                 addr add {}/24 dev n0\nlink set n0 up\n",
                outer(host),
                mac(host),
                address(host)
            );
            for other in (0..hosts).filter(|other| *other != host) {
                let (other, mac) = (address(other), mac(other));
                words += &format!("neigh replace {other} lladdr {mac} dev n0 nud permanent\n");
            }
            at(&name_of(host), &words)?;
        }
        Ok(())
    }

    /// How a program is called that runs at a host.
    pub fn program(&self, host: usize, program: &str) -> Vec<String> {
        ["ip", "netns", "exec", &name_of(host), program].map(str::to_owned).into()
    }

    /// Whether all that processes of a host have sent before they ended has arrived: its system goes on to send it.
    pub fn has_sent(&self, host: usize) -> bool {
        let program = self.program(host, "cat");
        let told = Command::new(&program[0]).args(&program[1..]).arg("/proc/net/tcp").output();
        let told = told.ok().filter(|told| told.status.success());
        let table = told.map(|told| String::from_utf8_lossy(&told.stdout).into_owned());
        // Established, closed by this side, by that one first, or by both: there may be more to be sent.
        let may_send = |line: &str| {
            let state = line.split_whitespace().nth(3);
            state.is_some_and(|state| ["01", "04", "08", "09", "0B"].contains(&state))
        };
        table.is_some_and(|table| !table.lines().skip(1).any(may_send))
    }

    /// From now on nothing goes from one host to another. Or that fault is over.
    pub fn cut(&self, from: usize, to: usize, is_cut: bool) {
        let cuts = &self.switch.link(from, to).cuts;
        if is_cut {
            cuts.fetch_add(1, Ordering::Relaxed);
        } else {
            cuts.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// From now on so many packets of a million are lost besides, on all links of a host.
    pub fn lose(&self, host: usize, loss: u32) {
        for other in 0..self.switch.hosts {
            self.switch.link(host, other).more_loss.store(loss, Ordering::Relaxed);
            self.switch.link(other, host).more_loss.store(loss, Ordering::Relaxed);
        }
    }

    /// Packets that were carried, lost, and sent over links that were cut.
    pub fn packets(&self) -> [u64; 3] {
        [&self.switch.carried, &self.switch.lost, &self.switch.cut].map(|n| n.load(Ordering::Relaxed))
    }
}

fn name_of(host: impl ToString) -> String {
    format!("{PREFIX}{}-{}", std::process::id(), host.to_string())
}

impl Drop for Net {
    fn drop(&mut self) {
        enter(&self.home);
        self.switch.ends.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
        (0..self.switch.hosts).map(name_of).chain([name_of("switch")]).for_each(|name| remove(&name));
    }
}
