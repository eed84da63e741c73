//! How long a call waits for the owner of its volume.

use crate::nfs::limits;
use crate::nfs::server::Server;
use crate::nfs::target::Exports;
use rekindle_env::Moment;

/// How long a call waits: until then, from its first wait on.
///
/// A client that is told to ask again later makes a new call of it. So it is never told so of a
/// change that may have been carried out: that would be carried out twice. Such a call waits for
/// its volume, or has no reply, and is known again when its client sends it over another
/// connection.
pub struct Patience {
    end: Option<Moment>,
    /// Whether the call must not be carried out twice.
    changes: bool,
    may_be_done: bool,
}

/// What becomes of a call without an owner.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Next {
    /// It is tried again.
    Again,
    /// Its client is told to ask again later.
    Later,
    /// It has no reply.
    Silence,
}

impl Patience {
    #[must_use]
    pub fn new(changes: bool) -> Self {
        Self { end: None, changes, may_be_done: false }
    }

    /// Notes that the call may have been carried out.
    pub fn may_be_done(&mut self) {
        self.may_be_done = self.changes;
    }

    /// Whether a call goes on that was broken off. It may have been carried out.
    pub fn goes_on_broken(&mut self, is_last_try: bool) -> bool {
        self.may_be_done();
        self.may_be_done || !is_last_try
    }

    /// Waits before the next try, if there is one.
    pub async fn next<E: Exports>(&mut self, server: &Server<E>) -> Next {
        let now = server.env.now();
        let end = *self.end.get_or_insert(now + limits::FORWARD_WAIT_MAX);
        let is_stopping = server.exports.is_stopping();
        match self.may_be_done {
            true if is_stopping => return Next::Silence,
            false if is_stopping || now >= end => return Next::Later,
            _ => {}
        }
        server.env.sleep(limits::FORWARD_PAUSE).await;
        Next::Again
    }
}
