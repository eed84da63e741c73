//! Remote procedure calls (RFC 5531): the head of a call, and the head of its reply.

use super::limits;
use super::permission::Credentials;
use super::xdr::{Args, Garbage};
use nfs3_types::rpc::reply_stat;
use nfs3_types::rpc::{RPC_VERSION_2, accept_stat, auth_flavor, auth_stat, msg_type, reject_stat};
use nfs3_types::xdr_codec::Pack;

/// The mark of the last fragment of a record, in the word before each fragment.
pub const LAST_FRAGMENT: u32 = 1 << 31;

/// A call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Call<'a> {
    pub xid: u32,
    pub program: u32,
    pub version: u32,
    pub procedure: u32,
    /// What the caller says it is; `None`: it says nothing.
    pub credentials: Option<Credentials>,
    /// Name of the caller's machine, as it says.
    pub machine: &'a [u8],
    pub args: &'a [u8],
}

/// Why bytes are no call that can be answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Unheard {
    /// The client does not speak RPC.
    Garbage,
    /// The client is told.
    Refused(Vec<u8>),
}

impl From<Garbage> for Unheard {
    fn from(_: Garbage) -> Self {
        Self::Garbage
    }
}

/// The outcome of a call that RPC knows of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// The results follow.
    Success,
    NoProgram,
    /// The versions that are served.
    NoVersion(u32, u32),
    NoProcedure,
    GarbageArgs,
    SystemError,
}

/// Takes a record apart.
pub fn call(record: &[u8]) -> Result<Call<'_>, Unheard> {
    let mut args = Args(record);
    let (xid, kind) = (args.u32()?, args.u32()?);
    if kind != msg_type::CALL as u32 {
        return Err(Unheard::Garbage);
    }
    if args.u32()? != RPC_VERSION_2 {
        let versions = [RPC_VERSION_2, RPC_VERSION_2];
        return Err(Unheard::Refused(rejected(xid, reject_stat::RPC_MISMATCH, &versions)));
    }
    let (program, version, procedure) = (args.u32()?, args.u32()?, args.u32()?);
    let (flavor, body) = (args.u32()?, args.opaque(limits::AUTH_BYTES_MAX)?);
    let _verifier = (args.u32()?, args.opaque(limits::AUTH_BYTES_MAX)?);
    let none = (None, &b""[..]);
    let (credentials, machine) = match flavor {
        flavor if flavor == auth_flavor::AUTH_NULL as u32 => none,
        flavor if flavor == auth_flavor::AUTH_UNIX as u32 => match sys(Args(body)) {
            Ok((credentials, machine)) => (Some(credentials), machine),
            Err(Garbage) => return Err(Unheard::Refused(denied(xid, auth_stat::AUTH_BADCRED))),
        },
        _ => return Err(Unheard::Refused(denied(xid, auth_stat::AUTH_BADCRED))),
    };
    Ok(Call { xid, program, version, procedure, credentials, machine, args: args.0 })
}

/// Reads the credentials of AUTH_SYS.
fn sys(mut args: Args<'_>) -> Result<(Credentials, &[u8]), Garbage> {
    let _stamp = args.u32()?;
    let machine = args.opaque(limits::MACHINE_BYTES_MAX)?;
    let (uid, gid, count) = (args.u32()?, args.u32()?, args.u32()?);
    if count > limits::GROUPS_MAX {
        return Err(Garbage);
    }
    let groups = (0..count).map(|_| args.u32()).collect::<Result<_, _>>()?;
    Ok((Credentials { uid, gid, groups }, machine))
}

fn words(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_be_bytes()).collect()
}

fn rejected(xid: u32, why: reject_stat, more: &[u32]) -> Vec<u8> {
    let denied = reply_stat::MSG_DENIED as u32;
    let mut reply = words(&[xid, msg_type::REPLY as u32, denied, why as u32]);
    reply.extend(words(more));
    reply
}

/// The reply that a caller is not let in.
#[must_use]
pub fn denied(xid: u32, why: auth_stat) -> Vec<u8> {
    rejected(xid, reject_stat::AUTH_ERROR, &[why as u32])
}

/// Begins a reply; the results follow after a success.
#[must_use]
pub fn head(xid: u32, outcome: Outcome) -> Vec<u8> {
    let (no_auth, accepted) = (auth_flavor::AUTH_NULL as u32, reply_stat::MSG_ACCEPTED as u32);
    let begin = [xid, msg_type::REPLY as u32, accepted, no_auth, 0];
    let (stat, versions) = match outcome {
        Outcome::Success => (accept_stat::SUCCESS, None),
        Outcome::NoProgram => (accept_stat::PROG_UNAVAIL, None),
        Outcome::NoVersion(low, high) => (accept_stat::PROG_MISMATCH, Some([low, high])),
        Outcome::NoProcedure => (accept_stat::PROC_UNAVAIL, None),
        Outcome::GarbageArgs => (accept_stat::GARBAGE_ARGS, None),
        Outcome::SystemError => (accept_stat::SYSTEM_ERR, None),
    };
    let mut reply = words(&begin);
    reply.extend(words(&[stat as u32]));
    reply.extend(versions.iter().flat_map(|versions| words(versions)));
    reply
}

/// Encodes a part of a reply.
#[must_use]
pub fn pack(results: &impl Pack) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(results.packed_size());
    results
        .pack(&mut bytes)
        .expect("memory takes all that is written to it, and sizes are bounded");
    bytes
}
