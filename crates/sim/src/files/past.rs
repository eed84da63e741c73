//! What a client does with snapshots of its volume.

use super::{Life, NAME, is_passing};
use crate::heard;
use crate::model::{Model, Unread};
use rekindle_base::Kind;
use rekindle_base::random::Random;
use rekindle_file::{Error, Files, ROOT};
use rekindle_front::http::Api;
use rekindle_front::http::api::ApiError;
use rekindle_front::http::api::kept::{CloneVolume, Keep, Rollback, TakeSnapshot};

impl Life {
    /// Takes a snapshot, which makes all durable that was answered before.
    pub(super) async fn take_snapshot(&self, files: Files) -> Result<Files, String> {
        let (model, number) = {
            let known = self.run.known.lock();
            (known.model().clone(), known.number())
        };
        let name = self.run.frozen.lock().begin(model);
        let asked = TakeSnapshot { name: name.clone() };
        match self.served.service.take_snapshot(NAME, asked).await {
            Ok(_) => {
                heard::note("files: snapshots taken");
                self.run.frozen.lock().taken(&name);
                self.run.known.lock().synced(number)?;
                Ok(files)
            }
            Err(error) => self.refused("take a snapshot", error, files).await,
        }
    }

    pub(super) async fn remove_snapshot(&self, dice: &mut Random) -> Result<(), String> {
        let Some((name, _)) = self.run.frozen.lock().draw(dice) else { return Ok(()) };
        self.run.frozen.lock().begin_removal(&name);
        match self.served.service.remove_snapshot(NAME, &name).await {
            Ok(()) => self.run.frozen.lock().removed(&name),
            Err(error) => passes("remove a snapshot", &error)?,
        }
        Ok(())
    }

    /// Looks at each snapshot in its folder.
    pub(super) async fn look_back(&self, files: &Files) -> Result<(), String> {
        match self.look_at_all(files).await {
            Ok(looked) => looked,
            Err(error) if is_passing(&error) => Ok(()),
            Err(error) => Err(format!("snapshots: {error}")),
        }
    }

    async fn look_at_all(&self, files: &Files) -> Result<Result<(), String>, Error> {
        let folder = files.lookup(ROOT, b".snapshots").await?;
        let entries = files.list(folder.ino, 0, usize::MAX).await?;
        let name = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let listed: Vec<_> = entries.iter().map(|entry| name(&entry.name)).collect();
        if let Err(why) = self.run.frozen.lock().judge(&listed) {
            return Ok(Err(why));
        }
        for (entry, name) in entries.iter().zip(listed) {
            let shown = match Model::read_below(files, entry.ino).await {
                Ok(shown) => shown,
                Err(Unread::Failed(error)) => return Err(error),
                Err(Unread::Wrong(why)) => return Ok(Err(format!("snapshot {name}: {why}"))),
            };
            heard::note("files: snapshots compared");
            if shown != *self.run.frozen.lock().shows(&name) {
                return Ok(Err(format!("snapshot {name} shows what was not there then")));
            }
        }
        Ok(Ok(()))
    }

    /// Compares a clone of a snapshot, and removes it. A store that carries a creation out late
    /// would leave a name that leads nowhere: a known gap.
    pub(super) async fn clone_snapshot(&self, dice: &mut Random) -> Result<(), String> {
        if self.repeats_writes {
            return Ok(());
        }
        let Some((snapshot, model)) = self.run.frozen.lock().draw(dice) else { return Ok(()) };
        let service = &self.served.service;
        let name = self.run.frozen.lock().new_name("clone");
        let asked = CloneVolume { snapshot, name: name.clone() };
        if let Err(error) = service.clone_volume(NAME, asked).await {
            return passes("clone a snapshot", &error);
        }
        let found = match Files::attach(&self.served.volumes, &name).await {
            Ok(files) => {
                self.served.volumes.client_is_back(&name);
                Model::read(&files).await
            }
            Err(error) => Err(Unread::Failed(error.into())),
        };
        match found {
            Ok(found) if found == model => heard::note("files: clones compared"),
            Ok(_) => return Err("a clone shows what its snapshot does not".to_owned()),
            Err(Unread::Failed(error)) if is_passing(&error) => {}
            Err(Unread::Failed(error)) => return Err(format!("a clone: {error}")),
            Err(Unread::Wrong(why)) => return Err(format!("a clone: {why}")),
        }
        match service.remove_volume(&name, true, true).await {
            Err(error) => passes("remove a clone", &error),
            Ok(()) => Ok(()),
        }
    }

    /// Goes back to a snapshot.
    pub(super) async fn go_back(&self, files: Files, dice: &mut Random) -> Result<Files, String> {
        let Some((version, model)) = self.run.frozen.lock().draw(dice) else { return Ok(files) };
        drop(files);
        self.run.known.lock().begin_rollback(model);
        let asked = Rollback { version, discard: false };
        let told = self.served.service.rollback_volume(NAME, asked).await;
        let files = self.attach().await?;
        match told {
            Ok(_) => {
                heard::note("files: rolled back");
                self.run.known.lock().rolled_back();
                self.compare(&files).await?;
                Ok(files)
            }
            Err(error) => self.refused("go back", error, files).await,
        }
    }

    /// Goes on after a command's error, which does not tell its fate: the volume tells it.
    async fn refused(&self, what: &str, error: ApiError, files: Files) -> Result<Files, String> {
        passes(what, &error)?;
        drop(files);
        let files = self.attach().await?;
        self.judge(&files, (false, false)).await?;
        Ok(files)
    }
}

/// Whether a command's error is of a fault that passes.
fn passes(what: &str, error: &ApiError) -> Result<(), String> {
    match error.kind {
        kind if kind.is_retryable() || matches!(kind, Kind::Conflict | Kind::Fenced) => Ok(()),
        _ => Err(format!("{what}: {error}")),
    }
}
