//! A connection: sends and receives whole frames, each in bounded time.

use crate::limits::{BUFFER_BYTES_KEPT, FRAME_TIME_MAX};
use crate::wire::{Garbage, HEADER_BYTES, Header, Message};
use rekindle_env::{Env, Stream};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

pub(crate) struct Connection {
    env: Env,
    stream: Box<dyn Stream>,
    /// Counts of whole frames.
    sent: u64,
    received: u64,
    buffer: Vec<u8>,
}

/// The reason why a connection cannot go on.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Broken {
    #[error("the connection has ended: {0}")]
    Ended(#[from] std::io::Error),
    #[error("the other end has been silent for too long")]
    Silent,
    #[error(transparent)]
    Garbage(#[from] Garbage),
}

/// The reason why a request was not carried out.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Unanswered {
    /// The other end does not want to.
    #[error("{0}")]
    Refused(String),
    #[error(transparent)]
    Broken(#[from] Broken),
}

impl Connection {
    pub(crate) fn new(env: &Env, stream: Box<dyn Stream>) -> Connection {
        Connection { env: env.clone(), stream, sent: 0, received: 0, buffer: Vec::new() }
    }

    /// The stream behind the frames so far: no byte after them has been read.
    pub(crate) fn into_stream(self) -> Box<dyn Stream> {
        self.stream
    }

    pub(crate) async fn send(&mut self, message: &Message<'_>) -> Result<(), Broken> {
        self.clear();
        message.encode(self.sent, &mut self.buffer);
        self.sent += 1;
        let (stream, buffer) = (&mut self.stream, &self.buffer);
        let written = async {
            stream.write_all(buffer).await?;
            stream.flush().await
        };
        self.env.timeout(FRAME_TIME_MAX, written).await.map_err(|_| Broken::Silent)??;
        Ok(())
    }

    /// Receives a message that begins within `patience` and has at most so many bytes.
    pub(crate) async fn receive(
        &mut self,
        patience: Duration,
        bytes_max: u32,
    ) -> Result<Message<'_>, Broken> {
        self.clear();
        let mut header = [0; HEADER_BYTES];
        let first = &mut header[..1];
        let begun = self.env.timeout(patience, self.stream.read_exact(first)).await;
        begun.map_err(|_| Broken::Silent)??;
        let (stream, buffer) = (&mut self.stream, &mut self.buffer);
        let expected = self.received;
        let read = async {
            stream.read_exact(&mut header[1..]).await?;
            let header = Header::decode(&header)?;
            if header.number != expected {
                return Err(Garbage::OutOfOrder.into());
            }
            if header.length > bytes_max {
                return Err(Garbage::TooLong.into());
            }
            buffer.resize(header.length as usize, 0);
            stream.read_exact(buffer).await?;
            Ok::<_, Broken>(header)
        };
        let header = self.env.timeout(FRAME_TIME_MAX, read).await.map_err(|_| Broken::Silent)??;
        self.received += 1;
        Ok(Message::decode(&header, &self.buffer)?)
    }

    /// Sends a request, and returns the reply.
    pub(crate) async fn ask(
        &mut self,
        request: &Message<'_>,
        patience: Duration,
    ) -> Result<Message<'_>, Unanswered> {
        // The reason for an end that the other one has sent lies before the end.
        let sent = self.send(request).await;
        match self.receive(patience, crate::limits::TEXT_BYTES_MAX).await {
            Ok(Message::Refused(text)) => Err(Unanswered::Refused(text)),
            Ok(reply) if sent.is_ok() => Ok(reply),
            Ok(_) => Err(Broken::from(Garbage::OutOfOrder).into()),
            Err(broken) => Err(sent.err().unwrap_or(broken).into()),
        }
    }

    /// Sends a request whose reply is "done", and returns what that says.
    pub(crate) async fn call(
        &mut self,
        request: &Message<'_>,
        patience: Duration,
    ) -> Result<u32, Unanswered> {
        match self.ask(request, patience).await? {
            Message::Done(has) => Ok(has),
            _ => Err(Broken::from(Garbage::OutOfOrder).into()),
        }
    }

    /// Sends bytes that may be no frame.
    #[cfg(test)]
    pub(crate) async fn send_raw(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).await.expect("the other end listens");
    }

    fn clear(&mut self) {
        self.buffer.clear();
        self.buffer.shrink_to(BUFFER_BYTES_KEPT);
    }
}
