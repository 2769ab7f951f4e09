//! Values that are a struct of plain numbers: `cargo run --example typed`.
//!
//! Such a struct is its own bytes. A put copies nothing on its way to the request. A GET reads into a
//! buffer that is used again, or shows its bytes where they are (`get_many_with`).

use bytemuck::{Pod, Zeroable};
use oneread::{Address, Client, Config, GetError, Server, ServerConfig, TableSize};
use std::error::Error;
use std::ops::ControlFlow;

/// `Pod`: of a fixed layout, without padding, and any bytes are one. The numbers are as the machine
/// has them: x86-64 and aarch64 have the same order of bytes.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Pod, Zeroable)]
struct Quote {
    bid: f64,
    ask: f64,
    volume: u64,
}

/// The quotes in a table. A value of another length is none.
struct Quotes {
    client: Client,
    bytes: Vec<u8>,
}

impl Quotes {
    fn put(&mut self, name: &str, quote: &Quote) -> Result<(), Box<dyn Error>> {
        self.client.put(name.as_bytes(), bytemuck::bytes_of(quote))?;
        Ok(())
    }

    fn get(&mut self, name: &str) -> Result<Option<Quote>, Box<dyn Error>> {
        if !self.client.get_into(name.as_bytes(), &mut self.bytes)? {
            return Ok(None);
        }
        let quote = bytemuck::try_pod_read_unaligned(&self.bytes).map_err(|error| error.to_string())?;
        Ok(Some(quote))
    }

    /// The sum of the volumes of those that are there: no value is copied, but the 8 bytes that are asked
    /// for.
    fn volume(&mut self, names: &[&str]) -> Result<u64, GetError> {
        let mut sum = 0;
        let _ = self.client.get_many_with(names, |_, answer| {
            if let Ok(Some(bytes)) = answer {
                sum += bytemuck::try_pod_read_unaligned::<Quote>(bytes).map_or(0, |quote| quote.volume);
            }
            ControlFlow::<()>::Continue(())
        })?;
        Ok(sum)
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let dir = tempfile::tempdir()?;
    let address = Address::Shm(dir.path().join("socket"));
    // As long as the values: a slot has 64 bytes.
    let table = Config::new().size(TableSize::Keys(1_000)).key_max(8).value_max(size_of::<Quote>());
    let _server = Server::start(ServerConfig::new(address.clone(), table))?;

    let mut quotes = Quotes { client: Client::connect(&address)?, bytes: Vec::new() };
    let acme = Quote { bid: 101.2, ask: 101.3, volume: 7_000 };
    quotes.put("ACME", &acme)?;
    quotes.put("INIT", &Quote { bid: 5.0, ask: 5.5, volume: 300 })?;
    assert_eq!(quotes.get("ACME")?, Some(acme));
    assert_eq!(quotes.get("NONE")?, None);
    assert_eq!(quotes.volume(&["ACME", "INIT", "NONE"])?, 7_300);

    // Something else has put a value that is no quote.
    quotes.client.put(b"OTHER", b"text")?;
    let error = quotes.get("OTHER").expect_err("4 bytes");
    println!("OTHER is no quote: {error}");
    println!("{acme:?}");
    Ok(())
}

#[test]
fn it_runs() {
    main().unwrap();
}
