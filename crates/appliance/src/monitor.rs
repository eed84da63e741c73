//! QEMU's control connection (QMP): lines of JSON in both directions.

use serde_json::{Value, json};
use std::io;
use std::os::unix::net::UnixStream as Socket;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};

/// An event that QEMU reports.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    /// The guest starts again, by itself (`by_guest`) or from outside.
    Reset { by_guest: bool },
    /// QEMU is about to end, because the guest switched itself off.
    PoweredOff,
}

/// A connection to QEMU.
pub struct Monitor {
    lines: Lines<BufReader<OwnedReadHalf>>,
    write: OwnedWriteHalf,
}

impl Monitor {
    /// Begins the conversation. Commands may follow at once: QEMU reads them in order.
    pub async fn new(socket: Socket) -> io::Result<Self> {
        socket.set_nonblocking(true)?;
        let (read, write) = UnixStream::from_std(socket)?.into_split();
        let mut monitor = Self { lines: BufReader::new(read).lines(), write };
        monitor.execute("qmp_capabilities").await?;
        Ok(monitor)
    }

    /// Sends a command without arguments. Its answer is ignored: an event tells of its effect.
    pub async fn execute(&mut self, command: &str) -> io::Result<()> {
        self.write.write_all(format!("{}\n", json!({ "execute": command })).as_bytes()).await
    }

    /// Waits for the next event that matters here; for ever, once QEMU is gone.
    pub async fn next(&mut self) -> Event {
        loop {
            match self.lines.next_line().await {
                Ok(Some(line)) => {
                    if let Some(event) = event(&line) {
                        return event;
                    }
                }
                _ => return std::future::pending().await,
            }
        }
    }
}

fn event(line: &str) -> Option<Event> {
    let value: Value = serde_json::from_str(line).ok()?;
    let by_guest = value["data"]["guest"].as_bool().unwrap_or(false);
    match value["event"].as_str()? {
        "RESET" => Some(Event::Reset { by_guest }),
        "SHUTDOWN" if by_guest => Some(Event::PoweredOff),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_matters_is_heard() {
        for (line, heard) in [
            (r#"{"QMP": {"version": {}}}"#, None),
            (r#"{"return": {}}"#, None),
            (
                r#"{"timestamp": {}, "event": "RESET", "data": {"guest": true, "reason": "guest-reset"}}"#,
                Some(Event::Reset { by_guest: true }),
            ),
            (
                r#"{"event": "RESET", "data": {"guest": false}}"#,
                Some(Event::Reset { by_guest: false }),
            ),
            (r#"{"event": "SHUTDOWN", "data": {"guest": true}}"#, Some(Event::PoweredOff)),
            (r#"{"event": "SHUTDOWN", "data": {"guest": false}}"#, None),
            ("garbage", None),
        ] {
            assert_eq!(event(line), heard, "{line}");
        }
    }
}
