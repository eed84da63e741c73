//! The folder of a node that was taken over while its host was away. The host goes on as a new
//! node, and what is left of the old one is set aside: volumes that asked for no copies have
//! changes in its log that are nowhere else ([`super::remains`]).
//!
//! A start that is broken off amid this does it again: `node.json` is the last file to go.

use crate::Error;
use crate::node_file::NAME;
use rekindle_base::NodeId;
use rekindle_env::{Env, FileKind};
use std::io;
use std::path::{Path, PathBuf};

/// Name of the folder, in the node's own.
const FOLDER: &str = "left";

/// The folder with what is left of a node.
pub(crate) fn folder(dir: &Path, node: NodeId) -> PathBuf {
    dir.join(FOLDER).join(node.to_string())
}

/// Whether anything is left of an earlier node of this host.
pub(crate) async fn is_there(env: &Env, dir: &Path) -> bool {
    let found = env.disk().list(&dir.join(FOLDER)).await;
    found.is_ok_and(|found| !found.is_empty())
}

/// The nodes that this host had before.
pub(crate) async fn nodes(env: &Env, dir: &Path) -> Result<Vec<NodeId>, Error> {
    let folder = dir.join(FOLDER);
    match env.disk().list(&folder).await {
        Ok(found) => Ok(found.iter().filter_map(|(name, _)| name.parse().ok()).collect()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(error) => Err(Error::Folder { path: folder, reason: error.to_string() }),
    }
}

/// The names of the log's files in `flash`, but that of its lock; none if there is no such folder.
async fn files_of_log(env: &Env, flash: &Path) -> io::Result<Vec<String>> {
    let files = match env.disk().list(flash).await {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
        files => files?,
    };
    let is_of_log = |(name, kind): &(String, FileKind)| *kind == FileKind::File && name != "lock";
    Ok(files.into_iter().filter(is_of_log).map(|(name, _)| name).collect())
}

/// Whether the log of a node is left here. An error counts as a log.
pub(crate) async fn has_log(env: &Env, dir: &Path, node: NodeId) -> bool {
    let files = files_of_log(env, &folder(dir, node).join("flash")).await;
    files.map_or(true, |files| !files.is_empty())
}

/// Removes the log of a node, which nothing needs any more. Its folder and `node.json` stay: the
/// name says which node this host had.
pub(crate) async fn clear(env: &Env, dir: &Path, node: NodeId) -> io::Result<()> {
    let flash = folder(dir, node).join("flash");
    for name in files_of_log(env, &flash).await? {
        env.disk().remove(&flash.join(name)).await?;
    }
    Ok(())
}

/// Moves the log and `node.json` of a node out of the way of another node. Returns the folder.
pub(crate) async fn set_aside(env: &Env, dir: &Path, node: NodeId) -> Result<PathBuf, Error> {
    let left = folder(dir, node);
    let moved = async {
        let (from, to) = (dir.join("flash"), left.join("flash"));
        env.disk().create_folder(&to).await?;
        for name in files_of_log(env, &from).await? {
            env.disk().rename(&from.join(&name), &to.join(&name)).await?;
        }
        env.disk().sync_folder(&to).await?;
        for above in [&left, &dir.join(FOLDER), dir] {
            env.disk().sync_folder(above).await?;
        }
        env.disk().rename(&dir.join(NAME), &left.join(NAME)).await?;
        for changed in [&left, dir] {
            env.disk().sync_folder(changed).await?;
        }
        io::Result::Ok(())
    };
    let told = |error: io::Error| Error::Folder { path: left.clone(), reason: error.to_string() };
    moved.await.map_err(told)?;
    Ok(left)
}
