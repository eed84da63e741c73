//! The claim of the next life of a node: by which word it goes on, whether the warm memory is
//! believed, and the write that makes the life.

use super::attempt::Attempt;
use crate::Error;
use crate::config::Config;
use crate::incarnation::{self, Beginning, StartHost};
use crate::node_file::Keeper;
use crate::record::NodeRecord;
use rekindle_base::Incarnation;
use rekindle_datastore::record::{Held, Writer};
use rekindle_log::{Discovery, Log};
use rekindle_warm::Arena;

/// A claim of the next life.
pub(super) struct Claim<'a> {
    pub(super) attempt: &'a Attempt,
    pub(super) config: &'a Config,
    /// URL of the store, for messages.
    pub(super) url: &'a str,
    pub(super) host: StartHost<'a>,
    pub(super) keeper: &'a Keeper,
    pub(super) arena: &'a Arena,
    /// Whether this life has a record cache.
    pub(super) has_frames: bool,
}

/// A life that was claimed.
pub(super) struct Claimed {
    /// The node's record, which names the life.
    pub(super) record: Held<NodeRecord>,
    /// The life up to which the folder consists of copies; 0: it is the node's own.
    pub(super) copied_from: Incarnation,
    pub(super) log: Discovery,
}

impl Claim<'_> {
    /// Claims the life, and looks for the log meanwhile. `record`: the record that was found.
    /// `copied_from`: what `node.json` says.
    pub(super) async fn make(
        self,
        writer: &Writer,
        record: Option<Held<NodeRecord>>,
        copied_from: Incarnation,
        log: rekindle_log::Config,
    ) -> Result<Claimed, Error> {
        let found = record.as_ref().map(|held| &held.value);
        let is_own = copied_from == Incarnation(0) && self.host.takes.is_none();
        if is_own && self.attempt.permission.is_none() {
            incarnation::is_at_home(&self.attempt.before, self.attempt.node, found)?;
        }
        let copied_from = self.go_on_from(found, copied_from).await?;
        let trusted = self.trusts(found);
        let beginning = Beginning {
            url: self.url,
            starts: &self.attempt.before,
            nonce: self.attempt.nonce,
            permitted: self.attempt.permission.is_some(),
            copied_from,
            copied_log: Incarnation(0),
            older_copies: self.config.older_copies,
            arena: self.arena.salt(),
            copies: self.has_frames,
            trusted,
            lost: false,
            host: self.host,
        };
        let known_log = self.attempt.known_log;
        let find = Log::find(&writer.env, self.arena.clone(), log, trusted, known_log);
        let (held, log) = if trusted {
            // The log is searched while the store writes; only its new head needs this life's
            // number.
            futures_util::join!(incarnation::start(writer, &beginning, record), find)
        } else {
            // The record may name another memory only after the old content of that memory is
            // forgotten.
            let log = find.await;
            let lost = log.as_ref().is_ok_and(|log| !log.was_closed());
            let copied_log = log.as_ref().ok().and_then(Discovery::newest_life).unwrap_or_default();
            let beginning = Beginning { lost, copied_log, ..beginning };
            (incarnation::start(writer, &beginning, record).await, log)
        };
        let record = held?;
        self.arena.note_users(&[self.attempt.nonce]);
        Ok(Claimed { record, copied_from, log: log? })
    }

    /// Returns the life up to which the folder consists of copies. If it goes on with copies of an
    /// older life than the last one, that is the last one: the volumes that asked for no copies
    /// lack what the lives since have acknowledged.
    async fn go_on_from(
        &self,
        found: Option<&NodeRecord>,
        copied_from: Incarnation,
    ) -> Result<Incarnation, Error> {
        let goes_on_with_older = self.config.older_copies
            && self.attempt.permission.is_some()
            && incarnation::has_older_copies(
                &self.attempt.before,
                (copied_from, copied_from),
                found,
            );
        match found.map(|found| found.incarnation) {
            Some(last)
                if (goes_on_with_older || self.host.takes.is_some()) && copied_from != last =>
            {
                self.keeper.change(|file| file.copied_from = last).await?;
                Ok(last)
            }
            _ => Ok(copied_from),
        }
    }

    /// Whether the warm memory is believed. What a lost node had in memory, this host has not.
    fn trusts(&self, found: Option<&NodeRecord>) -> bool {
        let users = self.arena.users();
        let past = self.attempt.before.judge(found);
        let trusted = self.host.takes.is_none()
            && incarnation::is_trusted(found, past, self.arena.salt(), &users);
        if trusted {
            // Added to the earlier users: the record may go on naming one of them.
            self.arena.note_users(&[users, vec![self.attempt.nonce]].concat());
        } else if self.arena.was_kept() {
            tracing::warn!(
                "warm memory is not as the last start of this folder left it (the folder was put back from a backup or copied, or \
                 another memory was in use since): it is begun anew, and the log and the store say what there is"
            );
        }
        trusted
    }
}
