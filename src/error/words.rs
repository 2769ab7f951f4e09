//! What each door calls what the texts of this repository name.
//!
//! Errors and events name a setting or a call as the library has it, in backticks. Each other door says its own name for it,
//! by this table. `tests/words.rs` holds every text against it.

/// Whose user reads a text, beside the library's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Door {
    /// The command `oneread`: its errors, and its servers' log.
    Command,
    /// The Python package: its exceptions, and what it logs.
    Python,
}

/// One name: as the library has it, and each other door.
#[derive(Clone, Copy, Debug)]
pub struct Name {
    /// In the texts.
    pub library: &'static str,
    /// As the command has it.
    pub command: &'static str,
    /// As Python has it.
    pub python: &'static str,
}

impl Name {
    /// As this door has it.
    pub const fn at(&self, door: Door) -> &'static str {
        match door {
            Door::Command => self.command,
            Door::Python => self.python,
        }
    }
}

const fn name(library: &'static str, command: &'static str, python: &'static str) -> Name {
    Name { library, command, python }
}

/// All names.
pub const NAMES: [Name; 47] = [
    name("`Backing::File`", "--region", "`region=`"),
    name("`Client::add`", "`oneread add`", "`Client.add`"),
    name("`Client::get`", "`oneread get`", "`Client.get`"),
    name("`Client::owner`", "--owner", "`Client.owner`"),
    name("`ClientOptions::server_uids`", "--server-user", "`server_uids=`"),
    name("`ClientOptions::tls`", "--tls-ca", "`tls_ca=`"),
    name("`ClientTls::new`", "--tls-cert, --tls-key", "`tls_cert=`, `tls_key=`"),
    name("`ClientTls::server_name`", "--tls-name", "`tls_name=`"),
    name("`ClientOptions::token`", "--token-file", "`token=`"),
    name("`Config::grace`", "--grace", "`grace=`"),
    name("`Config::heap_bytes`", "--heap", "`heap_bytes=`"),
    name("`Config::inline_max`", "--inline-max", "`inline_max=`"),
    name("`Config::key_inline`", "--key-inline", "`oneread serve --key-inline`"),
    name("`Config::key_max`", "`serve --key-max`", "`key_max=`"),
    name("`Config::life`", "`serve --life`", "`life=True`"),
    name("`Config::owners`", "`serve --owners`", "`owners=True`"),
    name("`Config::value_max`", "`serve --value-max`", "`value_max=`"),
    name("`Digests::texts`", "texts", "texts (`str`)"),
    name("`LocationIndex::config`", "`oneread serve --index location`", "`LocationIndex.table()`"),
    name("`LogConfig::truncate_at`", "--log-truncate-at", "`log_truncate_at=`"),
    name("`NodeConfig::advertise`", "--node-advertise", "`oneread serve --node-advertise`"),
    name("`NodeConfig::advertise_table`", "--table-advertise", "`oneread serve --table-advertise`"),
    name("`NodeConfig::secret`", "--secret-file", "`oneread serve --secret-file`"),
    name("`PlacementIndex::drop_holder`", "another program of the index", "`PlacementIndex.drop_holder`"),
    name("`PlacementIndex::holder`", "another program of the index", "`PlacementIndex.holder`"),
    name("`PlacementTable::config`", "`oneread serve --index placement`", "`PlacementIndex.table()`"),
    name(
        "`PlacementTable::owners`",
        "`oneread serve --index placement --owners`",
        "`PlacementIndex.table(owners=True)`",
    ),
    name(
        "`PlacementTable::single`",
        "`oneread serve --index placement`",
        "`PlacementIndex.table(grouped=False)`",
    ),
    name("`RequestPath::Auto`", "messages", "`requests=\"auto\"`"),
    name("`ServerConfig::allow_uids`", "--allow-uid", "`allow_uids=`"),
    name("`ServerConfig::client_bytes_max`", "`serve --client-memory-max`", "`client_bytes_max=`"),
    name("`ServerConfig::clients_max`", "--clients-max", "`clients_max=`"),
    name("`ServerConfig::clients_per_peer`", "--clients-per-peer", "`clients_per_peer=`"),
    name("`ServerConfig::evict`", "--evict", "`evict=`"),
    name("`ServerConfig::feed_bytes`", "`serve --feed-max`", "`feed_bytes=`"),
    name("`ServerConfig::herd`", "--herd", "`oneread serve --herd`"),
    name("`ServerConfig::mailbox_bytes_max`", "`serve --mailbox-max`", "`mailbox_bytes_max=`"),
    name("`ServerConfig::restore`", "--restore", "`restore=`"),
    name("`ServerConfig::tcp`", "--listen", "`tcp=`"),
    name("`ServerConfig::tls`", "--tls-cert", "`tls_cert=`"),
    name("`ServerConfig::token`", "--token-file", "`token=`"),
    name("`ServerConfig::ttl`", "`serve --ttl`", "`ttl=`"),
    name("`ServerConfig::workers`", "--workers", "`workers=`"),
    name("`StartLimits::percent`", "`serve --starts-max`", "`starts_percent=`"),
    name("`StartLimits::within_max`", "`serve --start-time-max`", "`start_within_max=`"),
    name("`StartMode::OpenOrCreate`", "`oneread serve`", "`start=\"open_or_create\"`"),
    name("`TableSize::up_to`", "`serve --max-memory`", "`bytes_max=`"),
];

/// A text of the library in this door's words.
pub fn said(door: Door, text: &str) -> String {
    // Most texts name nothing.
    if !text.contains("::") {
        return text.to_owned();
    }
    NAMES.iter().fold(text.to_owned(), |text, name| text.replace(name.library, name.at(door)))
}
