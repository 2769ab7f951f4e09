//! A server whose table stays, and indexes over it.

use oneread::{Address, Backing, Client, Config, Evict, Server, ServerConfig, StartMode};
use oneread_prefix::PrefixError;

pub struct Scene<I> {
    pub dir: tempfile::TempDir,
    pub server: Option<Server>,
    open: fn(Client) -> Result<I, PrefixError>,
}

impl<I> Scene<I> {
    /// Serves this table. Indexes are opened by `open`.
    pub fn new(open: fn(Client) -> Result<I, PrefixError>, table: Config, evict: Option<Evict>) -> Scene<I> {
        let dir = tempfile::tempdir().unwrap();
        let mut scene = Scene { dir, server: None, open };
        scene.serve(table, evict);
        scene
    }

    pub fn serve(&mut self, table: Config, evict: Option<Evict>) {
        let backing = Backing::File(self.dir.path().join("region"));
        let config = ServerConfig::new(self.address(), table).backing(backing);
        self.server = Some(Server::start(config.start(StartMode::OpenOrCreate).evict(evict)).unwrap());
    }

    pub fn address(&self) -> Address {
        Address::Shm(self.dir.path().join("socket"))
    }

    pub fn index(&self) -> I {
        (self.open)(Client::connect(&self.address()).unwrap()).unwrap()
    }
}
