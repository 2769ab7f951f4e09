//! What lies between a client and a server over TCP.

use super::judge::{Finding, Level};
use anyhow::{Context, Result};
use oneread::Client;
use oneread_kit::show;
use rustix::net::sockopt;
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

/// Requests whose times are taken.
const TRIPS: usize = 32;
/// What every Ethernet carries. Less is a tunnel, or a link that was set so.
const MTU_USUAL: u32 = 1_500;
/// Round trips within a data centre take less.
const TRIP_NEAR: Duration = Duration::from_millis(1);

/// A connection over TCP, as the system and the clock tell of it.
#[derive(Clone, Copy, Debug)]
pub struct FarLink {
    /// Longest packet on the way, as far as the system knows.
    mtu: u32,
    is_nagle_off: bool,
    is_this_host: bool,
    /// The median and the longest time of a request.
    trips: [Duration; 2],
}

/// Asks the system about a client's socket.
pub fn look(socket: BorrowedFd<'_>) -> Result<FarLink> {
    let peer = rustix::net::getpeername(socket).context("asking whom it leads to")?;
    let peer = peer.context("it leads to nobody")?;
    let peer = SocketAddr::try_from(peer).context("it leads to no address of IP")?;
    let mtu = if peer.is_ipv4() { sockopt::ip_mtu(socket) } else { sockopt::ipv6_mtu(socket) };
    Ok(FarLink {
        mtu: mtu.context("asking for the MTU of its path")?,
        is_nagle_off: sockopt::tcp_nodelay(socket).context("asking whether Nagle's algorithm is off")?,
        is_this_host: peer.ip().to_canonical().is_loopback(),
        trips: [Duration::ZERO; 2],
    })
}

impl FarLink {
    /// Takes the time of some requests.
    pub fn timed(self, client: &mut Client) -> Result<FarLink> {
        let mut trips = Vec::with_capacity(TRIPS);
        for _ in 0..TRIPS {
            let begun = Instant::now();
            client.server_stats().context("a request")?;
            trips.push(begun.elapsed());
        }
        trips.sort();
        Ok(FarLink { trips: [trips[TRIPS / 2], trips[TRIPS - 1]], ..self })
    }

    /// What is good and bad about it.
    pub fn findings(&self) -> Vec<Finding> {
        let [median, longest] = self.trips;
        let told =
            format!("{} in the median of {TRIPS}, {} at most", show::time(median), show::time(longest));
        let trip = |level| Finding::new(level, "round trip", told);
        let trip = match median > TRIP_NEAR {
            false => trip(Level::Ok),
            true if self.is_this_host => trip(Level::Warning).advice(
                "within a host it takes some 20 microseconds: see whether the server has a CPU to run on (`top`)",
            ),
            true => trip(Level::Note).advice(
                "each GET takes as long: ask for many keys at once (`get_many`), or bring client and server nearer",
            ),
        };
        let mtu = |level| Finding::new(level, "MTU of the path", format!("{} bytes", self.mtu));
        let mtu = match self.mtu < MTU_USUAL {
            false => mtu(Level::Ok),
            true => mtu(Level::Note).advice(format!(
                "a tunnel or a link takes less than Ethernet's {MTU_USUAL}, so long values cost more packets; raise it where it is set (`ip link`), if the way allows"
            )),
        };
        let nagle = |level, found| Finding::new(level, "Nagle's algorithm", found);
        let nagle = match self.is_nagle_off {
            true => nagle(Level::Ok, "off (TCP_NODELAY): no request waits for the one before"),
            false => nagle(Level::Problem, "on: requests wait for acknowledgements, up to 40 ms each")
                .advice(
                    "the system did not take TCP_NODELAY; see what stands between (LD_PRELOAD, a sandbox)",
                ),
        };
        vec![trip, mtu, nagle]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is good is told without advice; what is bad has some.
    #[test]
    fn what_is_bad_has_advice() {
        let near = Duration::from_micros(30);
        let good = FarLink { mtu: 1_500, is_nagle_off: true, is_this_host: true, trips: [near; 2] };
        let levels = |link: FarLink| link.findings().iter().map(|found| found.level).collect::<Vec<_>>();
        assert_eq!(levels(good), [Level::Ok; 3]);
        let slow = [Duration::from_millis(30); 2];
        let far = FarLink { mtu: 1_280, is_nagle_off: false, is_this_host: false, trips: slow };
        assert_eq!(levels(far), [Level::Note, Level::Note, Level::Problem]);
        assert!(far.findings().iter().all(|found| found.advice.is_some()));
        assert_eq!(levels(FarLink { trips: slow, ..good })[0], Level::Warning);
        assert!(good.findings().iter().all(|found| found.advice.is_none()));
        assert!(good.findings()[1].found.contains("1500 bytes"));
    }
}
