//! The beginning of a connection: both ends prove that they know the cluster's secret, before
//! either believes anything else.
//!
//! ```text
//! caller    hello                         proof
//! answerer         hello, proof                  done, or why not
//! ```
//! A proof is the BLAKE3 hash, keyed with the secret, of the role of its sender, both hellos, and
//! the binding of the TLS connection. The nonces make it good for one connection, the role for one
//! direction, and the binding for the two ends of one handshake.

use crate::connection::{Broken, Connection};
use crate::limits::{HELLO_TIME_MAX, STRANGER_BYTES_MAX};
use crate::secret::Secret;
use crate::wire::{Hello, Message};
use rekindle_base::{Life, NodeId, StoreId};
use rekindle_env::Env;

/// The node at this end, and its cluster.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Identity {
    pub(crate) secret: Secret,
    pub(crate) store: StoreId,
    pub(crate) life: Life,
    /// The secret of the two ends of this connection.
    pub(crate) binding: [u8; 32],
}

const CALLER: &[u8] = b"rekindle peer: caller";
const ANSWERER: &[u8] = b"rekindle peer: answerer";
const NO_SECRET: &str = "the other end does not know this cluster's secret";
const NO_HELLO: &str = "the other end does not say hello as peers do";
const OTHER_STORE: &str = "the other end belongs to another store";
const OTHER_NODE: &str = "another node answers there";

impl Identity {
    fn hello(&self, env: &Env) -> Hello {
        Hello { store: self.store, life: self.life, nonce: env.random() }
    }

    /// The proof by the end in this role. Hashes are compared in constant time.
    pub(crate) fn proof(&self, role: &[u8], caller: &Hello, answerer: &Hello) -> blake3::Hash {
        let mut hasher = blake3::Hasher::new_keyed(&self.secret.0);
        hasher.update(&(role.len() as u64).to_le_bytes()).update(role);
        hasher.update(&caller.encode()).update(&answerer.encode());
        hasher.update(&self.binding).finalize()
    }

    fn is_proof(&self, role: &[u8], caller: &Hello, answerer: &Hello, proof: [u8; 32]) -> bool {
        self.proof(role, caller, answerer) == blake3::Hash::from_bytes(proof)
    }
}

/// The caller's half: says hello, proves its life, and asks the node `wanted` for the same.
pub(crate) async fn ask(
    env: &Env,
    connection: &mut Connection,
    identity: &Identity,
    wanted: NodeId,
) -> Result<(), String> {
    let work = async {
        let caller = identity.hello(env);
        connection.send(&Message::Hello(caller)).await.map_err(text)?;
        let answerer = hello_of(connection).await?;
        if answerer.store != identity.store {
            return refuse(connection, OTHER_STORE).await;
        }
        let proof = proof_of(connection).await?;
        if !identity.is_proof(ANSWERER, &caller, &answerer, proof) {
            return refuse(connection, NO_SECRET).await;
        }
        if answerer.life.node != wanted {
            return refuse(connection, OTHER_NODE).await;
        }
        let proof = *identity.proof(CALLER, &caller, &answerer).as_bytes();
        let done = connection.call(&Message::Proof(proof), HELLO_TIME_MAX).await;
        done.map(|_| ()).map_err(|unanswered| unanswered.to_string())
    };
    env.timeout(HELLO_TIME_MAX, work).await.map_err(|_| text(Broken::Silent))?
}

/// Answers a hello, and returns the life that has proved itself. The caller says "done".
pub(crate) async fn answer(
    env: &Env,
    connection: &mut Connection,
    identity: &Identity,
) -> Result<Life, String> {
    let work = async {
        let caller = hello_of(connection).await?;
        if caller.store != identity.store {
            return refuse(connection, OTHER_STORE).await;
        }
        let answerer = identity.hello(env);
        let proof = *identity.proof(ANSWERER, &caller, &answerer).as_bytes();
        connection.send(&Message::Hello(answerer)).await.map_err(text)?;
        connection.send(&Message::Proof(proof)).await.map_err(text)?;
        let proof = proof_of(connection).await?;
        if !identity.is_proof(CALLER, &caller, &answerer, proof) {
            return refuse(connection, NO_SECRET).await;
        }
        Ok(caller.life)
    };
    env.timeout(HELLO_TIME_MAX, work).await.map_err(|_| text(Broken::Silent))?
}

async fn hello_of(connection: &mut Connection) -> Result<Hello, String> {
    let why = match connection.receive(HELLO_TIME_MAX, STRANGER_BYTES_MAX).await {
        Ok(Message::Hello(hello)) => return Ok(hello),
        Ok(Message::Refused(text)) => return Err(text),
        Ok(_) => NO_HELLO.to_owned(),
        Err(broken) => text(broken),
    };
    refuse(connection, &why).await
}

async fn proof_of(connection: &mut Connection) -> Result<[u8; 32], String> {
    let why = match connection.receive(HELLO_TIME_MAX, STRANGER_BYTES_MAX).await {
        Ok(Message::Proof(proof)) => return Ok(proof),
        Ok(Message::Refused(text)) => return Err(text),
        Ok(_) => NO_HELLO.to_owned(),
        Err(broken) => text(broken),
    };
    refuse(connection, &why).await
}

/// Tells the other end why the connection ends, as far as it listens.
pub(crate) async fn refuse<T>(connection: &mut Connection, why: &str) -> Result<T, String> {
    let _ = connection.send(&Message::Refused(why.to_owned())).await;
    Err(why.to_owned())
}

fn text(broken: Broken) -> String {
    broken.to_string()
}
