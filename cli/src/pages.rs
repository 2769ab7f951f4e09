//! In which pages a table is.

use oneread::internals::region::Region;
use oneread_kit::show;
use serde_json::json;

/// How much of a table on this host is in huge pages.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Pages {
    /// Memory that the table has.
    backed_bytes: u64,
    /// What this process has mapped in huge pages, when it has mapped all of it.
    client_bytes: u64,
    /// What the server has. `None` if this user may not look.
    server_bytes: Option<u64>,
}

impl Pages {
    /// Maps all of the table.
    pub fn of(region: &Region, server: u64) -> Pages {
        region.map_all();
        Pages {
            backed_bytes: region.backed_bytes(),
            client_bytes: region.huge_bytes(),
            server_bytes: u32::try_from(server).ok().and_then(|pid| region.huge_bytes_of(pid)),
        }
    }

    /// For a script.
    pub fn json(&self) -> serde_json::Value {
        json!({
            "backed_bytes": self.backed_bytes,
            "client_bytes": self.client_bytes,
            "server_bytes": self.server_bytes,
        })
    }

    /// As a client has it, and the server if that differs.
    pub fn told(&self) -> String {
        let Pages { backed_bytes, client_bytes, server_bytes } = *self;
        let of = format!("{} of {}", show::bytes(client_bytes), show::bytes(backed_bytes));
        match server_bytes.filter(|&bytes| bytes != client_bytes) {
            Some(bytes) => format!("{of} (the server: {})", show::bytes(bytes)),
            None => of,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Both views are told where they differ, each by its own name to a script.
    #[test]
    fn huge_pages_are_told() {
        let pages = Pages { backed_bytes: 8 << 20, client_bytes: 4 << 20, server_bytes: Some(4 << 20) };
        assert_eq!(pages.told(), "4 MiB of 8 MiB");
        assert_eq!(
            pages.json(),
            json!({"backed_bytes": 8 << 20, "client_bytes": 4 << 20, "server_bytes": 4 << 20})
        );
        let hidden = Pages { server_bytes: None, ..pages };
        assert_eq!((hidden.told(), &hidden.json()["server_bytes"]), (pages.told(), &json!(null)));
        let other = Pages { server_bytes: Some(0), ..pages };
        assert_eq!(other.told(), "4 MiB of 8 MiB (the server: 0 B)");
    }
}
