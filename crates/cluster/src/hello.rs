//! The beginning of a connection: both ends prove that they know the cluster's secret, before
//! either believes anything else.
//!
//! ```text
//! owner   hello                         proof
//! holder          hello, proof                  done, or why not
//! ```
//! A proof is the BLAKE3 hash, keyed with the secret, of the role of its sender and both hellos.
//! The nonces make it good for one connection, the role for one direction. What follows is not
//! encrypted.

use crate::connection::{Broken, Connection};
use crate::limits::{HELLO_TIME_MAX, STRANGER_BYTES_MAX};
use crate::wire::{Hello, Message};
use rekindle_base::{Life, NodeId, StoreId};
use rekindle_env::Env;

/// The secret of a cluster.
#[derive(Clone, Copy)]
pub struct Secret(pub [u8; 32]);

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Secret")
    }
}

/// The node at this end, and its cluster.
#[derive(Debug, Clone, Copy)]
pub struct Identity {
    pub secret: Secret,
    pub store: StoreId,
    pub life: Life,
}

const OWNER: &[u8] = b"rekindle peer: owner";
const HOLDER: &[u8] = b"rekindle peer: holder";
const NO_SECRET: &str = "the other end does not know this cluster's secret";
const NO_HELLO: &str = "the other end does not say hello as peers do";
const OTHER_STORE: &str = "the other end belongs to another store";

impl Identity {
    fn hello(&self, env: &Env) -> Hello {
        Hello { store: self.store, life: self.life, nonce: env.random() }
    }

    /// The proof by the end in this role. Hashes are compared in constant time.
    pub(crate) fn proof(&self, role: &[u8], owner: &Hello, holder: &Hello) -> blake3::Hash {
        let mut hasher = blake3::Hasher::new_keyed(&self.secret.0);
        hasher.update(&(role.len() as u64).to_le_bytes()).update(role);
        hasher.update(&owner.encode()).update(&holder.encode()).finalize()
    }

    fn is_proof(&self, role: &[u8], owner: &Hello, holder: &Hello, proof: [u8; 32]) -> bool {
        self.proof(role, owner, holder) == blake3::Hash::from_bytes(proof)
    }
}

/// Says hello as the owner of copies, and proves who it is and asks the same of the holder. `meet`
/// may refuse the node that holds, before the holder ends an earlier connection for this one.
pub(crate) async fn ask(
    env: &Env,
    connection: &mut Connection,
    identity: &Identity,
    meet: impl FnOnce(NodeId) -> Result<(), String>,
) -> Result<(), String> {
    let work = async {
        let owner = identity.hello(env);
        connection.send(&Message::Hello(owner)).await.map_err(text)?;
        let holder = hello_of(connection).await?;
        if holder.store != identity.store {
            return refuse(connection, OTHER_STORE).await;
        }
        let proof = proof_of(connection).await?;
        if !identity.is_proof(HOLDER, &owner, &holder, proof) {
            return refuse(connection, NO_SECRET).await;
        }
        let proof = *identity.proof(OWNER, &owner, &holder).as_bytes();
        if let Err(why) = meet(holder.life.node) {
            return refuse(connection, &why).await;
        }
        connection.call(&Message::Proof(proof), HELLO_TIME_MAX).await.map(|_| ())
    };
    env.timeout(HELLO_TIME_MAX, work).await.map_err(|_| text(Broken::Silent))?
}

/// Answers a hello as the holder of copies, and returns the life that has proved itself. The caller
/// says "done".
pub(crate) async fn answer(
    env: &Env,
    connection: &mut Connection,
    identity: &Identity,
) -> Result<Life, String> {
    let work = async {
        let owner = hello_of(connection).await?;
        if owner.store != identity.store {
            return refuse(connection, OTHER_STORE).await;
        }
        let holder = identity.hello(env);
        let proof = *identity.proof(HOLDER, &owner, &holder).as_bytes();
        connection.send(&Message::Hello(holder)).await.map_err(text)?;
        connection.send(&Message::Proof(proof)).await.map_err(text)?;
        let proof = proof_of(connection).await?;
        if !identity.is_proof(OWNER, &owner, &holder, proof) {
            return refuse(connection, NO_SECRET).await;
        }
        Ok(owner.life)
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
