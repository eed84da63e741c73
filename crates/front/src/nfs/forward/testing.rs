//! Lines to another host, and the troubles that they may have.

use super::{Way, serve};
use crate::conn::{Connections, Stop};
use crate::nfs::server::Server;
use crate::nfs::target::Exports;
use parking_lot::Mutex;
use rekindle_base::VolumeId;
use rekindle_env::{BoxFuture, Stream};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, DuplexStream, ReadBuf};
use tokio::sync::Notify;

/// What lines are like that are opened from now on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(in crate::nfs) enum Trouble {
    #[default]
    None,
    /// There are none.
    Shut,
    /// Calls get through, and the line breaks where a reply would come back.
    LosesReplies,
}

/// All lines to the other host.
#[derive(Default)]
pub(in crate::nfs) struct Cable {
    pub(in crate::nfs) trouble: Mutex<Trouble>,
    /// How many were opened.
    pub(in crate::nfs) opened: AtomicU64,
    /// Rung to end all of them.
    pub(in crate::nfs) breaks: Notify,
}

/// A way to the other host.
pub(in crate::nfs) struct Aside<E: Exports> {
    pub(in crate::nfs) volume: VolumeId,
    pub(in crate::nfs) other: Option<Arc<Server<E>>>,
    pub(in crate::nfs) cable: Arc<Cable>,
}

impl<E: Exports> Way for Aside<E> {
    fn open(&self) -> BoxFuture<'_, Result<Box<dyn Stream>, String>> {
        Box::pin(async {
            let server = self.other.clone().ok_or("it is here")?;
            let trouble = *self.cable.trouble.lock();
            if trouble == Trouble::Shut {
                return Err("there is no way".to_owned());
            }
            self.cable.opened.fetch_add(1, Ordering::Relaxed);
            let (ours, theirs) = tokio::io::duplex(1 << 20);
            let theirs = match trouble {
                Trouble::LosesReplies => {
                    let (between, theirs_then) = tokio::io::duplex(1 << 20);
                    server.env.spawn("loses", lose_replies(theirs, between));
                    theirs_then
                }
                Trouble::None | Trouble::Shut => theirs,
            };
            let (budget, env) = (Connections::new("nfs", 4).budget().clone(), server.env.clone());
            let (volume, cable) = (self.volume, self.cable.clone());
            env.spawn("visit", async move {
                let (_stop, stopped) = Stop::pair();
                tokio::select! {
                    () = serve(server, volume, budget, theirs, stopped) => {}
                    () = cable.breaks.notified() => {}
                }
            });
            Ok(Box::new(Piped(ours)) as Box<dyn Stream>)
        })
    }

    fn has_moved(&self) -> BoxFuture<'_, bool> {
        Box::pin(async { false })
    }
}

/// Passes calls on, and ends where a reply comes back.
async fn lose_replies(mut from: DuplexStream, to: DuplexStream) {
    let (mut replies, mut calls) = tokio::io::split(to);
    let mut bytes = vec![0; 1 << 16];
    let mut reply = [0];
    loop {
        tokio::select! {
            _ = replies.read(&mut reply) => return,
            read = from.read(&mut bytes) => match read {
                Ok(0) | Err(_) => return,
                Ok(count) => calls.write_all(&bytes[..count]).await.unwrap_or(()),
            },
        }
    }
}

/// A stream of this process.
pub(in crate::nfs) struct Piped(pub(in crate::nfs) DuplexStream);

impl Stream for Piped {
    fn peer(&self) -> String {
        "the other host".to_owned()
    }

    fn is_closed(&self) -> bool {
        false
    }
}

impl AsyncRead for Piped {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.0).poll_read(context, buffer)
    }
}

impl AsyncWrite for Piped {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        data: &[u8],
    ) -> Poll<std::io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(context, data)
    }

    fn poll_flush(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(context)
    }

    fn poll_shutdown(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(context)
    }
}
