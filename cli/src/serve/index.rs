//! `serve --index`: a table for an index of blocks.

use anyhow::Result;
use clap::{Args, ValueEnum};
use oneread::{Config, TableSize};
use oneread_prefix::{HOLDERS, IndexTable, PlacementTable};

/// Which index.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum Named {
    /// Who has each block
    Placement,
    /// Who has each block, eight neighbours of a prompt in one entry
    Grouped,
    /// Where each block is
    Location,
}

/// What is said of a table that is an index'.
#[derive(Debug, Args)]
pub struct IndexArgs {
    /// Make a table for an index of an LLM cache's blocks (docs/KV-CACHE.md)
    #[arg(long, value_name = "INDEX", conflicts_with_all = ["key_max", "key_inline", "value_max", "inline_max"])]
    index: Option<Named>,
    /// The most workers that an index may tell who have a block, up to 4096; for --index placement and grouped
    /// [default: 1024]
    #[arg(long, value_name = "N", requires = "index")]
    holders: Option<usize>,
}

impl IndexArgs {
    /// The table of the index, if one is asked for; of holders, with or without owners.
    pub fn table(&self, owners: bool) -> Result<Option<IndexTable>> {
        let holders = self.holders.unwrap_or(HOLDERS);
        let placement = |table: PlacementTable| Some(IndexTable::Placement(table.owners(owners)));
        Ok(match self.index {
            None => None,
            Some(Named::Placement) => placement(PlacementTable::single(holders)?),
            Some(Named::Grouped) => placement(PlacementTable::grouped(holders)?),
            Some(Named::Location) => {
                anyhow::ensure!(
                    self.holders.is_none(),
                    "an index of locations has no holders; leave --holders out"
                );
                Some(IndexTable::Location)
            }
        })
    }
}

/// `base` for a table of an index: what stands in its entries is as that needs it.
pub fn over(base: Config, size: TableSize, index: Option<IndexTable>) -> Config {
    let Some(index) = index else { return base };
    let made = index.config(size);
    base.key_max(made.key_max)
        .key_inline(made.key_inline)
        .value_max(made.value_max)
        .inline_max(made.inline_max)
        .heap_bytes(made.heap_bytes)
        .life(made.life)
        .owners(made.owners)
}
