//! `cluster/member.json` in a node's folder: the secret of its cluster, and the keys of this host.
//! Page: docs/format/cluster.md.
//!
//! Private: a reader of the file can be a node of the cluster. The process makes all its files
//! private.

use crate::error::Error;
use rekindle_base::StoreId;
use rekindle_cluster::Secret;
use rekindle_env::Env;
use serde::{Deserialize, Serialize};
use std::io;
use std::path::{Path, PathBuf};

/// Name of the folder, in the node's own.
const FOLDER: &str = "cluster";
const NAME: &str = "member.json";
/// Its name for upgrades.
pub(crate) const WHAT: &str = "member";
pub(crate) const FORMAT: u32 = 1;
/// Longest accepted file, bytes.
const BYTES_MAX: u64 = 64 * 1024;

/// The content of the file.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct MemberFile {
    /// Always "member".
    rekindle: String,
    format: u32,
    /// The store of the cluster.
    pub(crate) store: StoreId,
    /// The token that carries the secret.
    token: String,
    /// The keys of this host, the present one last.
    #[serde(default)]
    pub(crate) keys: Vec<HostKey>,
}

/// A key of this host.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct HostKey {
    /// PKCS #8, in hex digits.
    pub(crate) pkcs8: String,
    /// The end of its time, microseconds since 1970.
    pub(crate) until: u64,
}

impl MemberFile {
    pub(crate) fn new(store: StoreId, secret: &Secret) -> Self {
        let (rekindle, format) = (WHAT.to_owned(), FORMAT);
        Self { rekindle, format, store, token: secret.token(), keys: Vec::new() }
    }

    fn path(dir: &Path) -> PathBuf {
        dir.join(FOLDER).join(NAME)
    }

    /// The secret of the cluster.
    pub(crate) fn secret(&self) -> Result<Secret, String> {
        Secret::parse(&self.token).map_err(|bad| bad.to_string())
    }

    /// Reads the file; `None`: the node is in no cluster.
    pub(crate) async fn read(env: &Env, dir: &Path) -> Result<Option<Self>, Error> {
        let path = Self::path(dir);
        let bytes = match env.read_file(&path, BYTES_MAX).await {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            read => read
                .map_err(|error| Error::Folder { path: path.clone(), reason: error.to_string() })?,
        };
        Self::decode(&bytes).map(Some).map_err(|reason| Error::Folder { path, reason })
    }

    fn decode(bytes: &[u8]) -> Result<Self, String> {
        let file: Self = serde_json::from_slice(bytes).map_err(|error| error.to_string())?;
        if file.rekindle != WHAT {
            return Err(format!("it is a '{}', not a '{WHAT}'", file.rekindle));
        }
        if file.format > FORMAT {
            return Err(format!(
                "it has format version {}, this binary knows up to {FORMAT}: upgrade rekindle",
                file.format
            ));
        }
        file.secret()?;
        Ok(file)
    }

    /// Writes the file, atomically and durably.
    pub(crate) async fn write(&self, env: &Env, dir: &Path) -> Result<(), Error> {
        let (folder, path) = (dir.join(FOLDER), Self::path(dir));
        let write = async {
            let mut text = serde_json::to_vec_pretty(self)?;
            text.push(b'\n');
            env.disk().create_folder(&folder).await?;
            env.replace_file(&folder, NAME, &text).await?;
            env.disk().sync_folder(dir).await
        };
        let write: io::Result<()> = write.await;
        write.map_err(|error| Error::Folder { path, reason: error.to_string() })
    }
}

/// Reads the token of the cluster that the node in this folder belongs to; `None`: it is in none.
/// For a command of the user who owns the folder.
pub async fn token(env: &Env, dir: &Path) -> Result<Option<String>, Error> {
    Ok(MemberFile::read(env, dir).await?.map(|file| file.token))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rekindle_env::sim::{Faults, World};

    fn sample() -> MemberFile {
        let key = HostKey { pkcs8: "302e".to_owned(), until: 1_800_000_000_000_000 };
        let secret = Secret([7; 32]);
        MemberFile { keys: vec![key], ..MemberFile::new(StoreId([9; 16]), &secret) }
    }

    #[test]
    fn it_comes_back_and_what_is_wrong_with_it_is_told() {
        let world = World::new(1, Faults::none());
        let (env, dir) = (world.env(), Path::new("/node"));
        world.block_on(async {
            assert!(MemberFile::read(&env, dir).await.expect("absent is fine").is_none());
            env.disk().create_folder(dir).await.expect("a folder");
            sample().write(&env, dir).await.expect("written");
            let found = MemberFile::read(&env, dir).await.expect("readable");
            assert!(found.expect("it is there") == sample());
            let token = token(&env, dir).await.expect("readable").expect("it is there");
            assert_eq!(Secret::parse(&token), Ok(Secret([7; 32])));
        });
        let text = serde_json::to_string(&sample()).expect("plain data");
        for (from, to, why) in [
            ("\"format\":1", "\"format\":2", "upgrade"),
            ("rekindle\":\"member", "rekindle\":\"node", "not a 'member'"),
            ("rekindle1-07", "rekindle1-08", "mistyped"),
        ] {
            let bad = text.replace(from, to);
            let told = MemberFile::decode(bad.as_bytes()).err().expect("refused");
            assert!(told.contains(why), "{told}");
        }
    }

    #[test]
    fn the_golden_image_is_read_and_written() {
        let golden = include_bytes!("../../golden/member-1.json");
        assert!(MemberFile::decode(golden).expect("readable") == sample());
        let mut text = serde_json::to_vec_pretty(&sample()).expect("plain data");
        text.push(b'\n');
        assert_eq!(text, golden);
    }
}
