//! Carries the requests of one client to the host of its volume's owner, and the replies back.

use super::ledger::{Meaning, given_up};
use super::{Facts, NoWay, Passage, Shared, Way};
use crate::nbd::limits;
use crate::nbd::target::ExportError;
use crate::nbd::wire::{self, Garbage, ReplyHead};
use rekindle_base::Kind;
use rekindle_env::{Env, Moment, Stream};
use std::io;
use std::sync::Arc;
use tokio::io::{AsyncReadExt, AsyncWriteExt, ReadHalf, WriteHalf};
use tokio::sync::oneshot;

/// The reason why a session has ended.
#[derive(Debug, thiserror::Error)]
enum End {
    #[error("the connection has ended: {0}")]
    Io(#[from] io::Error),
    #[error("its owner runs elsewhere now")]
    Moved,
    #[error("its owner's host stops")]
    Stopping,
    /// What the other end sends has no meaning.
    #[error(transparent)]
    Garbage(#[from] Garbage),
}

/// Carries until the device is dropped, or no host serves the volume for too long. `told` gets the
/// volume's facts, or the reason why there is no session. `known`: the facts that its client knows
/// already.
pub(super) async fn carry(
    env: Env,
    way: Arc<dyn Way>,
    shared: Arc<Shared>,
    (told, known): (oneshot::Sender<Result<Facts, ExportError>>, Option<Facts>),
) {
    let first = match known {
        None => first(&env, &*way).await,
        Some(facts) => {
            let found = again(&env, &*way, facts, env.now()).await;
            found.map_err(|message| ExportError { kind: Kind::Fenced, message })
        }
    };
    let first = match first {
        Ok(first) => first,
        // The client may have gone.
        Err(refused) => return drop(told.send(Err(refused))),
    };
    let facts = first.facts;
    if told.send(Ok(facts)).is_err() {
        return;
    }
    let gave_up = match carry_on(&env, &*way, &shared, first).await {
        Ok(never) => match never {},
        Err(reason) => reason,
    };
    tracing::warn!(reason = gave_up, "a forwarded NBD client is given up");
    way.note(Some(&gave_up));
    shared.ledger.lock().end(&given_up(&gave_up));
}

/// Opens the first session. What the owner's host says is final; while there is no such host, a
/// takeover may be under way.
async fn first(env: &Env, way: &dyn Way) -> Result<Passage, ExportError> {
    let began = env.now();
    loop {
        match way.open().await {
            Ok(passage) => return Ok(passage),
            Err(NoWay::Refused(refused)) => return Err(refused),
            Err(NoWay::Away(away)) if env.now().since(began) > limits::FORWARD_OPEN_TIME_MAX => {
                return Err(away);
            }
            Err(NoWay::Away(_)) => {}
        }
        pause(env, began).await;
    }
}

/// Pauses before another look for the owner's host: for a part of the time since trouble began, so
/// that a takeover is noticed soon after it, and a long absence costs few looks.
async fn pause(env: &Env, since: Moment) {
    let pause = env.now().since(since) / limits::FORWARD_PAUSE_PART;
    env.sleep(pause.clamp(limits::FORWARD_PAUSE, limits::FORWARD_PAUSE_MAX)).await;
}

/// Serves one session after the other. Returns why the client must be given up.
async fn carry_on(
    env: &Env,
    way: &dyn Way,
    shared: &Shared,
    first: Passage,
) -> Result<std::convert::Infallible, String> {
    let facts = first.facts;
    let mut passage = first;
    // The moment since which no reply has come.
    let mut trouble: Option<Moment> = None;
    loop {
        let (before, began) = (shared.ledger.lock().answers(), env.now());
        let end = session(env, way, shared, passage.stream).await;
        let answers = {
            let mut ledger = shared.ledger.lock();
            ledger.unsend();
            ledger.answers()
        };
        if answers > before || env.now().since(began) >= limits::FORWARD_LOOK {
            trouble = None;
        }
        tracing::info!(reason = %end, "the session of a forwarded NBD client has ended at its owner's host");
        if let End::Garbage(garbage) = end {
            return Err(format!("its owner's host does not speak NBD: {garbage}"));
        }
        let is_first = trouble.is_none();
        let since = *trouble.get_or_insert_with(|| env.now());
        if !is_first {
            pause(env, since).await;
        }
        way.note(Some(&end.to_string()));
        passage = again(env, way, facts, since).await?;
        way.note(None);
    }
}

/// Opens another session of the same volume.
async fn again(env: &Env, way: &dyn Way, facts: Facts, since: Moment) -> Result<Passage, String> {
    loop {
        let why = match way.open().await {
            Ok(passage) if passage.facts.volume != facts.volume => {
                return Err("another volume has its name now".to_owned());
            }
            Ok(passage) if passage.facts.size < facts.size => {
                return Err("it has become smaller".to_owned());
            }
            Ok(passage) => return Ok(passage),
            Err(NoWay::Refused(refused)) if is_lasting(refused.kind) => return Err(refused.message),
            Err(NoWay::Refused(why) | NoWay::Away(why)) => why.message,
        };
        if env.now().since(since) > limits::FORWARD_PATIENCE {
            return Err(why);
        }
        way.note(Some(&why));
        pause(env, since).await;
    }
}

/// Whether waiting does not help.
fn is_lasting(kind: Kind) -> bool {
    matches!(kind, Kind::NotFound | Kind::Invalid | Kind::Unsupported | Kind::Damaged)
}

/// Carries over one connection until it ends.
async fn session(env: &Env, way: &dyn Way, shared: &Shared, stream: Box<dyn Stream>) -> End {
    let (reader, writer) = tokio::io::split(stream);
    let end = tokio::select! {
        biased;
        received = receive(reader, shared) => received,
        sent = send(env, writer, shared) => sent,
        () = look(env, way, shared) => return End::Moved,
    };
    match end {
        Ok(never) => match never {},
        Err(end) => end,
    }
}

async fn send(
    env: &Env,
    mut writer: WriteHalf<Box<dyn Stream>>,
    shared: &Shared,
) -> Result<std::convert::Infallible, End> {
    let mut buffer = Vec::new();
    loop {
        let taken = shared.ledger.lock().take(env.now(), limits::FORWARD_BYTES_AT_ONCE);
        if taken.is_empty() {
            shared.news.notified().await;
            continue;
        }
        shared.sent.notify_one();
        buffer.clear();
        for (request, payload) in taken {
            buffer.extend_from_slice(&wire::request_head(&request));
            buffer.extend_from_slice(&payload);
        }
        writer.write_all(&buffer).await?;
        writer.flush().await?;
        buffer.shrink_to(limits::BUFFER_BYTES_KEPT);
    }
}

async fn receive(
    mut reader: ReadHalf<Box<dyn Stream>>,
    shared: &Shared,
) -> Result<std::convert::Infallible, End> {
    loop {
        let head = head(&mut reader).await?;
        let bytes = shared.ledger.lock().payload_bytes(&head)?;
        let mut payload = vec![0; bytes];
        reader.read_exact(&mut payload).await?;
        if shared.ledger.lock().reply(&head, payload)? == Meaning::Stopping {
            return Err(End::Stopping);
        }
        // A change of the same bytes may have waited for this one.
        shared.news.notify_one();
    }
}

async fn head(reader: &mut ReadHalf<Box<dyn Stream>>) -> Result<ReplyHead, End> {
    let mut bytes = [0; wire::CHUNK_BYTES];
    let mut length = wire::SIMPLE_REPLY_BYTES;
    reader.read_exact(&mut bytes[..length]).await?;
    loop {
        match wire::reply_head(&bytes[..length])? {
            Some(head) => return Ok(head),
            None => {
                reader.read_exact(&mut bytes[length..]).await?;
                length = wire::CHUNK_BYTES;
            }
        }
    }
}

/// Waits until the owner runs elsewhere while a request has no reply: a host that stands still, or
/// is cut off, ends no connection.
async fn look(env: &Env, way: &dyn Way, shared: &Shared) {
    loop {
        let waits = shared.ledger.lock().waits_since();
        let Some(since) = waits else {
            shared.sent.notified().await;
            continue;
        };
        let waited = env.now().since(since);
        if waited < limits::FORWARD_LOOK {
            env.sleep(limits::FORWARD_LOOK - waited).await;
        } else if way.has_moved().await {
            return;
        } else {
            pause(env, since).await;
        }
    }
}
