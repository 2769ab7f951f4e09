//! What to do on the command line where a table cannot be served.

use crate::connect::is_not_there;
use oneread::internals::region::RegionError;
use oneread::{Address, Client, ClientOptions, ServeError, TableSize};
use std::time::Duration;

/// Adds what to do about it on the command line. The server was to be at this address.
pub fn advise(error: ServeError, at: &Address) -> anyhow::Error {
    let advice = match error {
        ServeError::Region(RegionError::InUse { .. }) => in_use(at),
        ServeError::NoRoom { fits: TableSize::Keys(n), .. } => format!("serve less, by --capacity {n}"),
        ServeError::NoRoom { fits: TableSize::Slots(n), .. } => format!("serve less, by --slots {n}"),
        ServeError::NoRoom { fits: TableSize::Growing { bytes_max, .. }, .. } => {
            format!("allow less, by --max-memory {bytes_max}")
        }
        error => return error.into(),
    };
    anyhow::Error::from(error).context(advice)
}

/// Who has the region file.
fn in_use(at: &Address) -> String {
    /// A server that answers does so in much less time.
    const DEADLINE: Duration = Duration::from_secs(1);
    match Client::connect_with(at, ClientOptions::new().deadline(DEADLINE)) {
        Err(error) if is_not_there(&error) => format!(
            "another server has the region file, and from here none is at {at}: it is at another address, or in another container or network namespace that has the same folder; name a file of this one's own with --region, else it takes over the other one's keys when that has stopped"
        ),
        Ok(_) | Err(_) => "a server is there already (oneread ping; oneread stop)".into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Where there is no room, the option that asks for less is named, with the size that fits.
    #[test]
    fn less_is_advised_where_there_is_no_room() {
        let at: Address = "shm:/nonexistent/socket".parse().unwrap();
        let told = |fits| {
            let source = RegionError::NoRoom { need: 9, left: 7, of: "/dev/shm".into() };
            oneread_kit::advice::told(&advise(ServeError::NoRoom { source, fits }, &at))
        };
        for (fits, advice) in [
            (TableSize::Keys(123), "by --capacity 123"),
            (TableSize::Slots(456), "by --slots 456"),
            (TableSize::up_to(7_890), "by --max-memory 7890"),
        ] {
            assert!(told(fits).contains(advice), "{}", told(fits));
        }
        let other = advise(ServeError::NotBuilt { address: "verbs://a:1".parse().unwrap() }, &at);
        assert!(!other.to_string().contains("by --"), "{other}");
    }

    /// `oneread ping` is advised where it finds the server that has the file, and not where that is elsewhere.
    #[test]
    fn a_server_elsewhere_is_not_said_to_be_there() {
        let dir = tempfile::tempdir().unwrap();
        let address = |name| Address::Shm(dir.path().join(name));
        let table = oneread::Config::new().size(TableSize::Keys(10));
        let _served = oneread::Server::start(oneread::ServerConfig::new(address("here"), table)).unwrap();
        let told = |name| {
            let error = ServeError::Region(RegionError::InUse { path: "/a".into() });
            advise(error, &address(name)).to_string()
        };
        assert!(told("here").contains("oneread ping"), "{}", told("here"));
        let elsewhere = told("elsewhere");
        assert!(
            !elsewhere.contains("oneread ping") && elsewhere.contains("another container"),
            "{elsewhere}"
        );
    }
}
