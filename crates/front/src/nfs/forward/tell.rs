//! Owners hear of the clients of version 4 that come to this host, which may be idle.

use crate::nfs::limits;
use crate::nfs::replies::Failed;
use crate::nfs::server::Server;
use crate::nfs::target::Exports;
use futures_util::future::join_all;
use std::collections::BTreeSet;

impl<E: Exports> Server<E> {
    /// Tells the owners of volumes of which clients were heard here: their leases go on there. What
    /// an earlier process of this host knew of them counts, too.
    pub async fn tell_owners(&self) {
        self.keep_haunts().await;
        let now = self.env.now();
        let heard = |client| self.clients.lock().heard(client, now);
        let living = self.haunts.lock().living(&|client| heard(client).is_some(), now);
        let of = |client| Some((client, heard(client)?, self.haunts.lock().of(client)?));
        let clients: Vec<_> = living.into_iter().filter_map(of).collect();
        let volumes: BTreeSet<_> = clients.iter().flat_map(|(.., (_, all))| all).collect();
        let looks = volumes.iter().map(|volume| self.is_elsewhere(volume));
        let elsewhere = join_all(looks).await;
        let elsewhere = volumes.iter().zip(elsewhere).filter(|(_, is_so)| *is_so);
        let elsewhere: BTreeSet<_> = elsewhere.map(|(volume, _)| (*volume).clone()).collect();
        for (client, heard, (machine, volumes)) in clients {
            for volume in volumes.iter().filter(|volume| elsewhere.contains(*volume)) {
                let lines = self.lines_of(&machine);
                self.line(&lines, &machine, volume).tell(client, heard);
            }
        }
    }

    /// Keeps which clients are in which volumes, beside what an earlier process has kept.
    pub async fn keep_haunts(&self) {
        if self.recalled.get_or_try_init(|| self.recall()).await.is_err() {
            return;
        }
        let new = self.haunts.lock().take_new();
        if let Some(bytes) = new {
            self.exports.remember(bytes).await;
        }
    }

    /// Whether another host serves a volume. One that is here stays in service for as long as
    /// clients that live are in it.
    async fn is_elsewhere(&self, volume: &str) -> bool {
        // One that cannot be had now must not keep the others waiting.
        match self.env.timeout(limits::TELL_TIME_MAX, self.named(volume)).await {
            Ok(Err(Failed::Elsewhere(_))) => true,
            Ok(Err(Failed::Status(_))) => {
                // There is no such volume any more.
                self.haunts.lock().forget(volume);
                false
            }
            Ok(Ok(_) | Err(_)) | Err(_) => false,
        }
    }

    async fn recall(&self) -> Result<(), ()> {
        let bytes = self.exports.remembered().await.map_err(|error| {
            tracing::debug!(error, "which clients were in which volumes is not known yet");
        })?;
        if let Some(bytes) = bytes
            && let Err(reason) = self.haunts.lock().add_kept(&bytes, self.env.now())
        {
            tracing::warn!(reason, "which NFS clients were in which volumes is not known");
        }
        Ok(())
    }

    /// Notes that a client is in a volume.
    pub fn note_haunt(&self, client: u64, machine: &str, volume: &str) {
        if self.haunts.lock().note(client, machine, volume, self.env.now()) {
            self.haunts_noted.notify_one();
        }
    }
}
