//! The bytes of a folder store that volumes reach: what the store would take without any waste.

use anyhow::{Context as _, Result};
use rekindle_content::tree::{Visitor, walk};
use rekindle_content::{Compression, Config, Content, Error, Pointer};
use serde_json::Value;
use std::collections::HashSet;
use std::path::Path;

/// Stored bytes of the chunks and nodes that volumes reach, each counted once.
#[derive(Debug, Clone, Copy, Default)]
pub struct Live {
    /// By the present contents.
    pub present: u64,
    /// By the present contents and by the earlier ones that are kept.
    pub kept: u64,
}

/// Counts the live bytes of a store. Its daemon may run, but must not write meanwhile.
pub fn count(store: &Path) -> Result<Live> {
    let (env, runtime) = rekindle_env::real::env()?;
    let identity: Value =
        serde_json::from_str(&std::fs::read_to_string(store.join("rekindle.json"))?)?;
    let secret = identity["body"]["secret"].as_str().context("a store has a secret")?;
    let config = Config {
        secret: *blake3::Hash::from_hex(secret)?.as_bytes(),
        compression: Compression::None,
        parity: None,
        pack_bytes: 16 << 20,
        cache_bytes: 64 << 20,
        index_bytes: 1 << 20,
        uploads: 1,
    };
    let (mut present, mut earlier) = (Vec::new(), Vec::new());
    for entry in std::fs::read_dir(store.join("volumes"))? {
        let entry = entry?;
        if entry.file_name().as_encoded_bytes().starts_with(b".") {
            continue;
        }
        let vault: Value = serde_json::from_str(&std::fs::read_to_string(entry.path())?)?;
        present.extend(root(&vault["body"])?);
        for version in vault["body"]["versions"].as_array().into_iter().flatten() {
            earlier.extend(root(version)?);
        }
    }
    runtime.block_on(async {
        let url = format!("file://{}", store.display());
        let content =
            Content::open(env.clone(), rekindle_datastore::open_known(&env, &url).await?, config);
        let mut count = Count::default();
        walk(&content, &present, &mut count).await?;
        let found = count.bytes;
        walk(&content, &earlier, &mut count).await?;
        Ok(Live { present: found, kept: count.bytes })
    })
}

/// Returns the root that a vault or a version names; an empty volume has none.
fn root(holder: &Value) -> Result<Option<Pointer>> {
    Ok(serde_json::from_value(holder["root"].clone())?)
}

#[derive(Default)]
struct Count {
    names: HashSet<[u8; 32]>,
    bytes: u64,
}

impl Visitor for Count {
    fn meet(&mut self, pointer: &Pointer) -> bool {
        let is_new = self.names.insert(pointer.name);
        self.bytes += u64::from(pointer.share()) * u64::from(is_new);
        is_new
    }

    fn failed(&mut self, _: &Pointer, error: Error) -> Result<(), Error> {
        Err(error)
    }
}
