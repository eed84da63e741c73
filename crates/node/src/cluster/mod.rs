//! This host as a member of a cluster: its secret and keys, how other nodes reach it, the copies
//! that it keeps for them, and the copies that others keep of the nodes that run here.
//!
//! - [`member_file`]: the secret and the keys, in the node's folder.
//! - [`record`]: the store's word which secret is the right one.
//! - [`roster`]: the nodes of the cluster, by their records in the store.
//! - [`keep`]: a life's holders, and what its record, volumes and reads have to do with them.
//! - [`left`]: what is left of a node that was taken over while its host was away.
//!
//! `rekindle_cluster` does the work; `service/cluster.rs` and `service/guests.rs` join it to the
//! node that serves.

pub(crate) mod keep;
pub(crate) mod left;
pub(crate) mod member_file;
pub(crate) mod record;
pub(crate) mod roster;

use crate::config::Config;
use crate::limits::{KEY_LIFE, KEY_LIFE_LEFT_MIN};
use crate::record::{NodeRecord, PeerNote};
use crate::scale::Scale;
use crate::{Error, limits};
use member_file::{HostKey, MemberFile};
use parking_lot::Mutex;
use rekindle_base::{Life, NodeId};
use rekindle_cluster::machine::Pace;
use rekindle_cluster::machine::choice::Spread;
use rekindle_cluster::owner::Keeping;
use rekindle_cluster::roster::{Contact, Pin};
use rekindle_cluster::{Calls, Channel, Holder, Key, Secret, Tls};
use rekindle_datastore::identity::Identity as StoreIdentity;
use rekindle_datastore::record::Writer;
use rekindle_env::{Address, Env, Timestamp};
use roster::StoreRoster;
use std::path::PathBuf;
use std::sync::Arc;

/// Name of the folder, in the node's own, with the copies of other nodes' logs.
pub(crate) const COPIES: &str = "copies";

/// A host that may be a member of a cluster, before its store is open.
pub(crate) struct Candidate {
    file: Option<MemberFile>,
    address: Option<Address>,
    holder: Option<Arc<Holder>>,
}

/// A host that begins as a member of a cluster, before the life of its node is known.
pub(crate) struct Joined {
    file: MemberFile,
    secret: Secret,
    keys: Vec<Key>,
    contact: Contact,
    holder: Arc<Holder>,
    /// The home nodes that this host had before.
    pub(crate) former: Vec<NodeId>,
}

/// This host, a member of a cluster.
pub struct Member {
    pub(crate) calls: Arc<Calls>,
    pub(crate) holder: Arc<Holder>,
    pub(crate) roster: Arc<StoreRoster>,
    pub(crate) spread: Spread,
    pub(crate) pace: Pace,
    secret: Secret,
    tls: Option<Arc<Tls>>,
    dir: PathBuf,
    file: tokio::sync::Mutex<MemberFile>,
    contact: Mutex<Contact>,
}

/// A node that runs on a member of a cluster.
pub(crate) struct Membership {
    pub(crate) member: Arc<Member>,
    pub(crate) keeping: Keeping,
}

impl Membership {
    /// Count of the holders that could take the node over now.
    pub(crate) fn ready(&self) -> u64 {
        self.keeping.view().iter().filter(|view| view.stand.is_ready()).count() as u64
    }
}

impl Candidate {
    /// Reads what the folder and the settings say, and opens the copies of other nodes' logs.
    pub(crate) async fn find(env: &Env, config: &Config, scale: &Scale) -> Result<Self, Error> {
        let address = config.cluster.advertise.as_ref().map(|place| place.parse::<Address>());
        let address = address.transpose().map_err(|bad| Error::Usage(bad.to_string()))?;
        let file = MemberFile::read(env, &config.dir).await?;
        let is_member = file.is_some() || config.cluster.join.is_some();
        let holder = match &address {
            Some(_) if is_member => Some(open_holder(env, config, scale).await?),
            _ => None,
        };
        Ok(Self { file, address, holder })
    }

    /// Joins the cluster: with the secret that the folder has, or that a user has given.
    pub(crate) async fn join(
        self,
        writer: &Writer,
        config: &Config,
        identity: &StoreIdentity,
        scale: &Scale,
    ) -> Result<Option<Joined>, Error> {
        let url = config.store_url();
        let file = match &config.cluster.join {
            Some(token) => {
                let secret = Secret::parse(token.text())
                    .map_err(|bad| Error::Usage(format!("--join: {bad}")))?;
                joins(writer, &url, &secret).await?;
                Some(given(self.file, identity, &secret)?)
            }
            None => self.file,
        };
        let (Some(file), Some(address), Some(holder)) = (file, self.address, self.holder) else {
            return Ok(None);
        };
        if file.store != identity.store {
            return Err(Error::Usage(format!(
                "this folder is of a cluster over another store ({}), and {url} is the store {}: give another --dir, or the \
                 URL of that store",
                file.store, identity.store
            )));
        }
        let joined = Joined::new(&writer.env, config, file, (address, holder), scale).await?;
        Ok(Some(joined))
    }
}

/// Whether the node in a folder is to be in a cluster.
pub(crate) async fn is_member(env: &Env, config: &Config) -> Result<bool, Error> {
    let has_secret = MemberFile::read(env, &config.dir).await?.is_some();
    Ok(config.cluster.advertise.is_some() && (has_secret || config.cluster.join.is_some()))
}

/// Opens the copies of other nodes' logs.
pub(crate) async fn open_holder(
    env: &Env,
    config: &Config,
    scale: &Scale,
) -> Result<Arc<Holder>, Error> {
    let folder = config.dir.join(COPIES);
    let pace = scale.pace;
    let patience = if config.restarted { pace.suspect } else { pace.cold };
    let opened = Holder::open(env, &folder, config.cluster.hold_bytes, (pace, patience)).await;
    opened.map_err(|reason| Error::Folder { path: folder, reason })
}

/// Checks a secret against the one of the store's cluster.
async fn joins(writer: &Writer, url: &str, secret: &Secret) -> Result<(), Error> {
    let failed = |source| Error::Store { url: url.to_owned(), source };
    match record::is_secret(writer, secret).await.map_err(failed)? {
        Some(true) => Ok(()),
        Some(false) => Err(Error::Usage(format!(
            "--join: the token is of another cluster than that of {url}: `rekindle cluster token` on one of its nodes prints \
             the right one"
        ))),
        None => Err(Error::Usage(format!(
            "--join: {url} has no cluster yet: `rekindle cluster init` on one of its nodes makes one"
        ))),
    }
}

/// The file of a host that was given this secret.
fn given(
    file: Option<MemberFile>,
    identity: &StoreIdentity,
    secret: &Secret,
) -> Result<MemberFile, Error> {
    let known = file.as_ref().and_then(|file| file.secret().ok());
    match (file, known) {
        (Some(file), Some(known)) if known == *secret => Ok(file),
        (Some(file), Some(_)) if file.store == identity.store => Err(Error::Usage(
            "--join: this folder has the secret of another cluster over the same store: remove its folder 'cluster' first"
                .to_owned(),
        )),
        _ => Ok(MemberFile::new(identity.store, secret)),
    }
}

impl Joined {
    /// A host with this secret. Makes a key if there is none, or its time is nearly over.
    pub(crate) async fn new(
        env: &Env,
        config: &Config,
        mut file: MemberFile,
        (address, holder): (Address, Arc<Holder>),
        scale: &Scale,
    ) -> Result<Self, Error> {
        let secret = file.secret().map_err(Error::Usage)?;
        let before = file.clone();
        let keys = match scale.plain_peers {
            true => Vec::new(),
            false => refresh_keys(env, &mut file, false)?,
        };
        let is_new = MemberFile::read(env, &config.dir).await?.is_none();
        if is_new || file != before {
            file.write(env, &config.dir).await?;
        }
        let cluster = &config.cluster;
        let contact = Contact {
            address,
            domain: cluster.domain.clone(),
            name: cluster.name.clone(),
            pins: pins(&keys, &file.keys),
        };
        let former = left::nodes(env, &config.dir).await?;
        Ok(Self { file, secret, keys, contact, holder, former })
    }

    /// The way to this host, as the records of its nodes name it.
    pub(crate) fn note(&self, home: NodeId) -> PeerNote {
        roster::note(&self.contact, home, &self.secret)
    }

    /// The member, once the life of its home node is known.
    pub(crate) fn member(
        self,
        writer: &Writer,
        config: &Config,
        (identity, scale): (&StoreIdentity, &Scale),
        home: Life,
    ) -> Result<Arc<Member>, Error> {
        let tls = self.keys.last().map(Tls::new).transpose().map_err(Error::Usage)?;
        let roster = Arc::new(StoreRoster::new(writer.clone(), self.secret));
        let calls = Calls {
            env: writer.env.clone(),
            secret: self.secret,
            store: identity.store,
            channel: tls.clone().map_or(Channel::Plain, Channel::Tls),
            roster: roster.clone(),
            home,
            former: self.former,
        };
        Ok(Arc::new(Member {
            calls: Arc::new(calls),
            holder: self.holder,
            roster,
            spread: config.cluster.spread.into(),
            pace: scale.pace,
            secret: self.secret,
            tls,
            dir: config.dir.clone(),
            file: tokio::sync::Mutex::new(self.file),
            contact: Mutex::new(self.contact),
        }))
    }
}

impl Member {
    /// The way to this host.
    pub(crate) fn contact(&self) -> Contact {
        self.contact.lock().clone()
    }

    /// The way to this host, for the record of a node that runs here. A guest keeps its name.
    pub(crate) fn note_for(&self, record: Option<&NodeRecord>) -> PeerNote {
        let named = record.and_then(|record| record.peer.as_ref()).map(|peer| peer.name.clone());
        let mut contact = self.contact();
        contact.name = named.unwrap_or(contact.name);
        roster::note(&contact, self.calls.home.node, &self.secret)
    }

    /// Makes another key, which is used once [`Member::use_new_key`] is called. Until then, the
    /// records of the nodes that run here should name both.
    pub(crate) async fn make_key(&self) -> Result<(), Error> {
        let mut file = self.file.lock().await;
        let mut next = file.clone();
        let keys = refresh_keys(&self.calls.env, &mut next, true)?;
        next.write(&self.calls.env, &self.dir).await?;
        self.contact.lock().pins = pins(&keys, &next.keys);
        *file = next;
        Ok(())
    }

    /// Uses the newest key for connections from now on.
    pub(crate) async fn use_new_key(&self) -> Result<(), Error> {
        let file = self.file.lock().await;
        let (Some(tls), Some(newest)) = (&self.tls, file.keys.last()) else { return Ok(()) };
        tls.rotate(&key(newest)?).map_err(Error::Usage)
    }

    /// Forgets all keys but the newest one.
    pub(crate) async fn forget_old_keys(&self) -> Result<(), Error> {
        let mut file = self.file.lock().await;
        let mut next = file.clone();
        next.keys.drain(..next.keys.len().saturating_sub(1));
        let keys = next.keys.iter().map(key).collect::<Result<Vec<_>, _>>()?;
        next.write(&self.calls.env, &self.dir).await?;
        self.contact.lock().pins = pins(&keys, &next.keys);
        *file = next;
        Ok(())
    }

    /// Whether the time of the key in use is nearly over.
    pub(crate) async fn needs_key(&self) -> bool {
        let now = self.calls.env.wall_clock();
        let file = self.file.lock().await;
        self.tls.is_some() && file.keys.last().is_none_or(|key| is_nearly_over(key, now))
    }
}

fn is_nearly_over(key: &HostKey, now: Timestamp) -> bool {
    let left = u64::try_from(KEY_LIFE_LEFT_MIN.as_micros()).unwrap_or(u64::MAX);
    key.until < now.0.saturating_add(left)
}

/// Makes another key if there is none, if the time of the newest is nearly over, or if that is
/// `wanted`. Keeps two at most. Returns the keys, the present one last.
fn refresh_keys(env: &Env, file: &mut MemberFile, wanted: bool) -> Result<Vec<Key>, Error> {
    let now = env.wall_clock();
    if wanted || file.keys.last().is_none_or(|key| is_nearly_over(key, now)) {
        let pkcs8 = Key::generate().map_err(Error::Usage)?;
        let life = u64::try_from(KEY_LIFE.as_micros()).unwrap_or(u64::MAX);
        let until = now.0.saturating_add(life);
        let pkcs8 = pkcs8.iter().map(|byte| format!("{byte:02x}")).collect();
        file.keys.push(HostKey { pkcs8, until });
    }
    let excess = file.keys.len().saturating_sub(limits::KEYS_MAX);
    file.keys.drain(..excess);
    file.keys.iter().map(key).collect()
}

fn key(of: &HostKey) -> Result<Key, Error> {
    let damaged = || {
        Error::Usage("the key of this host is damaged: remove 'keys' from cluster/member.json, and another one is made".to_owned())
    };
    let digits = of.pkcs8.as_bytes();
    let bytes: Option<Vec<u8>> = digits
        .chunks(2)
        .map(|pair| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok())
        .collect();
    Key::read(&bytes.ok_or_else(damaged)?).map_err(|_| damaged())
}

fn pins(keys: &[Key], of: &[HostKey]) -> Vec<Pin> {
    let pin =
        |(key, of): (&Key, &HostKey)| Pin { key: key.fingerprint(), until: Timestamp(of.until) };
    keys.iter().zip(of).map(pin).collect()
}
