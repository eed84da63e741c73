//! Files without a name that only clients hold that have gone: they would stay for ever.

use super::answer::Keeping;
use crate::held::{Held, Holder, Party};
use crate::nfs::server::{Server, Used};
use crate::nfs::target::Exports;
use crate::target::Target;
use rekindle_file::{Caller, Ino};

/// A client that wants nothing of its own.
const NO_CLIENT: Holder = Holder { client: 0, machine: 0 };

/// Drops what clients hold that have gone, where a file has no name any more. Elsewhere they keep
/// it until another client wants it.
pub async fn drop_forsaken<E: Exports>(server: &Server<E>) {
    for used in server.all_in_use() {
        let mut from = 0;
        while let Ok(found) = used.export.files.kept_without_name(from).await {
            let Some(last) = found.last() else { break };
            from = last + 1;
            for ino in found {
                forsake(server, &used, ino).await;
            }
        }
    }
}

async fn forsake<E: Exports>(server: &Server<E>, used: &Used<E::Files>, ino: Ino) {
    let act = |held: &mut Held| {
        let now = server.env.now();
        let gone = |who: Party<'_>| match who {
            Party::Client(holder) => {
                server.clients.lock().has_gone(holder, &NO_CLIENT, used.since, now)
            }
            Party::Mount(mount) => server.has_mount_gone(&used.export, mount),
        };
        held.forsake(&gone);
        Ok((0, 0))
    };
    let keeping = Keeping::new(used.export.id, &act);
    let caller = Caller { keeper: Some(&keeping), ..Caller::default() };
    if let Err(error) = used.export.files.keep(caller, ino).await {
        tracing::debug!(ino, %error, "a file without a name stays for now");
    }
}
