//! Calls of other hosts' clients, answered at the host at which the volume's owner runs.

use super::frame::{Ask, Frame, GREETING, Reply, decode};
use super::line::read_frame;
use crate::conn::{Budget, Pipe, Stop};
use crate::nfs::desk;
use crate::nfs::limits;
use crate::nfs::meters::Meters;
use crate::nfs::room::reply_bytes;
use crate::nfs::rpc;
use crate::nfs::server::Server;
use crate::nfs::target::Exports;
use crate::nfs::v4::answer::Asked;
use crate::nfs::v4::compound;
use parking_lot::Mutex;
use rekindle_base::VolumeId;
use rekindle_env::Moment;
use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::sync::{mpsc, oneshot};

/// The volume of a line, as its owner's host sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Visited {
    pub volume: VolumeId,
    /// Whether the client's host lets the caller change nothing.
    pub is_read_only: bool,
}

/// Serves a line until its other end hangs up, or the node stops.
pub async fn serve<E: Exports>(
    server: Arc<Server<E>>,
    volume: VolumeId,
    budget: Budget,
    pipe: impl Pipe,
    mut stop: Stop,
) {
    crate::nfs::serve::tend(&server);
    let (mut reader, writer) = tokio::io::split(pipe);
    let (replies, mut unsent) = mpsc::unbounded_channel();
    let meters = Arc::new(Meters::new());
    let mut line = Visit { server, volume, budget, meters, replies, cuts: Under::default() };
    let mut sending = std::pin::pin!(send(writer, &mut unsent));
    let is_over = tokio::select! {
        biased;
        _ = &mut sending => true,
        () = &mut stop => false,
        end = line.take(&mut reader) => {
            tracing::debug!(?end, "a line of NFS calls from another host is over");
            true
        }
    };
    if !is_over {
        // The calls that were begun get their replies.
        let cuts = line.end();
        let _ = sending.await;
        drop(cuts);
    }
}

/// The calls under way, by their numbers. Without its end here a call is cut off.
#[derive(Default)]
struct Under(Arc<Mutex<HashMap<u64, oneshot::Sender<()>>>>);

/// The calls of a line; what is under way is cut off when it is dropped.
struct Visit<E: Exports> {
    server: Arc<Server<E>>,
    volume: VolumeId,
    budget: Budget,
    meters: Arc<Meters>,
    replies: mpsc::UnboundedSender<Vec<u8>>,
    cuts: Under,
}

impl<E: Exports> Visit<E> {
    /// Takes no further calls. What is under way is cut off when the result is dropped.
    fn end(self) -> Under {
        self.cuts
    }

    async fn take(&mut self, reader: &mut (impl AsyncRead + Unpin)) -> io::Result<()> {
        let garbage = || io::Error::from(io::ErrorKind::InvalidData);
        let mut greeting = [0; GREETING.len()];
        reader.read_exact(&mut greeting).await?;
        if greeting != GREETING {
            tracing::warn!("a host forwards NFS calls in another format: upgrade the older one");
            return Err(garbage());
        }
        loop {
            let bytes = read_frame(reader, limits::FORWARDED_BYTES_MAX).await?;
            let (number, frame) = decode(&bytes).map_err(|_| garbage())?;
            match frame {
                Frame::Cut => drop(self.cuts.0.lock().remove(&number)),
                Frame::Heard { client, machine, ago } => {
                    let now = self.server.env.now();
                    // This host may have begun after that.
                    let heard = Moment(now.0.saturating_sub(Duration::from_millis(ago)));
                    self.server.clients.lock().heard_elsewhere(client, machine, heard, now);
                }
                Frame::Call(_, ask) => {
                    let room = room_of(&ask);
                    self.begin(number, bytes, room);
                }
            }
            if self.cuts.0.lock().len() > limits::UNDER_WAY_BYTES_MAX / limits::CALL_COUNTS {
                return Err(garbage());
            }
        }
    }

    fn begin(&self, number: u64, bytes: Vec<u8>, room: usize) {
        let (server, meters, volume) = (self.server.clone(), self.meters.clone(), self.volume);
        let (replies, budget) = (self.replies.clone(), self.budget.clone());
        let (cut, is_cut) = oneshot::channel::<()>();
        let under = Arc::downgrade(&self.cuts.0);
        self.cuts.0.lock().insert(number, cut);
        server.env.clone().spawn_foreground("nfs-visit", async move {
            let _lease = budget.lease(bytes.len() + room).await;
            let reply = tokio::select! {
                biased;
                _ = is_cut => return,
                reply = answer(&server, &meters, volume, &bytes) => reply,
            };
            if let Some(under) = under.upgrade() {
                under.lock().remove(&number);
            }
            // The line is over, otherwise.
            let _ = replies.send(reply.encode(number));
        });
    }
}

/// Returns the bytes of data that the reply to a call may have.
fn room_of(ask: &Ask<'_>) -> usize {
    match ask {
        Ask::Record(record) => rpc::call(record).map_or(0, |call| reply_bytes(&call)),
        Ask::Part(part) => part.room as usize,
    }
}

async fn answer<E: Exports>(
    server: &Arc<Server<E>>,
    meters: &Meters,
    volume: VolumeId,
    bytes: &[u8],
) -> Reply {
    meters.called();
    let Ok((_, Frame::Call(who, ask))) = decode(bytes) else { return Reply::Away };
    let visited = Visited { volume, is_read_only: who.is_read_only };
    // The host that forwards has looked later than this one.
    server.look_anew(volume);
    match ask {
        Ask::Record(record) => desk::answer_visitor(server, meters, &who, visited, record).await,
        Ask::Part(part) => {
            let (caller, visited) = (&who.caller, Some(visited));
            let asked = Asked { server, caller, meters, lines: None, host: &who.host, visited };
            compound::answer_part(&asked, &part).await
        }
    }
}

async fn send(
    mut writer: impl AsyncWrite + Unpin,
    unsent: &mut mpsc::UnboundedReceiver<Vec<u8>>,
) -> io::Result<()> {
    while let Some(frame) = unsent.recv().await {
        writer.write_all(&frame).await?;
        if unsent.is_empty() {
            writer.flush().await?;
        }
    }
    Ok(())
}
