//! Requests over one connection, several in flight.

use rekindle_nbd_client::NbdClient;
use rekindle_nbd_client::wire::command;
use std::collections::HashMap;
use std::io;

/// Requests in flight.
const DEPTH: usize = 8;

/// A request that was not answered yet.
struct Asked {
    command: u16,
    offset: u64,
    length: u32,
}

/// A connection with requests in flight.
pub struct Pipe {
    export: NbdClient,
    asked: HashMap<u64, Asked>,
    next: u64,
}

/// The answer to a read.
pub enum Read {
    /// The bytes of the stretch.
    Data { offset: u64, data: Vec<u8> },
    /// The stretch cannot be read.
    Failed { offset: u64, length: u32, error: io::Error },
}

impl Read {
    /// The first byte of the stretch.
    pub fn offset(&self) -> u64 {
        match self {
            Self::Data { offset, .. } | Self::Failed { offset, .. } => *offset,
        }
    }
}

impl Pipe {
    pub fn new(export: NbdClient) -> Self {
        Self { export, asked: HashMap::new(), next: 0 }
    }

    /// Sends a request; returns what an earlier read has brought, if one was waited for.
    pub fn ask(
        &mut self,
        command: u16,
        offset: u64,
        length: u32,
        data: &[u8],
    ) -> io::Result<Option<Read>> {
        let done = if self.is_full() { self.answer()? } else { None };
        self.next += 1;
        self.asked.insert(self.next, Asked { command, offset, length });
        self.export.request(command, 0, self.next, offset, length, data);
        self.export.send()?;
        Ok(done)
    }

    /// Whether the next request waits for an answer.
    pub fn is_full(&self) -> bool {
        self.asked.len() >= DEPTH
    }

    /// Waits for the next answer; gives what it read.
    fn answer(&mut self) -> io::Result<Option<Read>> {
        let reply = self.export.reply()?;
        let asked = self.asked.remove(&reply.cookie).ok_or_else(|| {
            io::Error::new(io::ErrorKind::InvalidData, "an answer to nothing that was asked")
        })?;
        let Asked { command, offset, length } = asked;
        if reply.error != 0 {
            let number = i32::try_from(reply.error).unwrap_or(libc::EIO);
            let error = io::Error::from_raw_os_error(number);
            // A failed read leaves the rest as good as it was; any other failed request does not.
            return match command {
                command::READ => Ok(Some(Read::Failed { offset, length, error })),
                _ => Err(error),
            };
        }
        if command != command::READ {
            return Ok(None);
        }
        let mut data = vec![0; usize::try_from(length).unwrap_or(0)];
        self.export.data(&mut data)?;
        Ok(Some(Read::Data { offset, data }))
    }

    /// Waits for all answers; gives what they read.
    pub fn drain(&mut self) -> io::Result<Vec<Read>> {
        let mut read = Vec::new();
        while !self.asked.is_empty() {
            read.extend(self.answer()?);
        }
        Ok(read)
    }

    /// Waits for all answers, and until everything written is durable.
    pub fn flush(&mut self) -> io::Result<()> {
        self.drain()?;
        self.ask(command::FLUSH, 0, 0, &[])?;
        self.drain().map(|_| ())
    }
}
