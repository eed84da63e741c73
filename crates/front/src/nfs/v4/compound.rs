//! A COMPOUND: its operations one after the other, up to the first that fails, and its place in a
//! session.

use super::answer::{Asked, Work};
use super::codec::{Read, Write};
use super::ops::Op;
use super::slots::Begun;
use super::status::{Fault, Status};
use super::{MINOR_VERSION, limits};
use crate::nfs::handle;
use crate::nfs::limits as common;
use crate::nfs::replies::Failed;
use crate::nfs::target::Exports;
use crate::nfs::xdr::{Args, Garbage};

/// Begins a reply.
fn reply(status: Status, tag: &[u8], count: u32, results: &[u8]) -> Vec<u8> {
    let mut reply = Vec::with_capacity(results.len() + tag.len() + 16);
    reply.put_u32(status.0);
    reply.put_opaque(tag);
    reply.put_u32(count);
    reply.extend_from_slice(results);
    reply
}

/// Carries a COMPOUND out.
pub async fn answer<E: Exports>(
    asked: &Asked<'_, E>,
    mut args: Args<'_>,
) -> Result<Vec<u8>, Failed> {
    let room = data_bytes(args).max(limits::ROOM_BYTES);
    let (tag, minor, count) = (args.opaque(limits::TAG_BYTES_MAX)?, args.u32()?, args.u32()?);
    if minor != MINOR_VERSION {
        return Ok(reply(Status::MINOR_VERS_MISMATCH, tag, 0, &[]));
    }
    if count > limits::OPS_MAX {
        return Ok(reply(Status::TOO_MANY_OPS, tag, 0, &[]));
    }
    let mut work = Work::new(asked, asked.server.seal().await?, room);
    let (mut results, mut status, mut done) = (Vec::new(), Status::OK, 0);
    for at in 0..count {
        let Ok(number) = args.u32() else {
            // There is not even the number of an operation.
            status = Status::BADXDR;
            break;
        };
        let op = Op(number).known();
        let begin = results.len();
        results.put_u32(op.0);
        results.put_u32(Status::OK.0);
        let outcome = match op.check_place(at, count, work.is_in_session()) {
            Err(status) => Err(status.into()),
            Ok(()) if op == Op::SEQUENCE => match work.begin(&mut args, &mut results) {
                Ok(Begun::Before(reply)) => return Ok(reply.to_vec()),
                Ok(Begun::New) => Ok(()),
                Err(fault) => Err(fault),
            },
            Ok(()) => operation(&mut work, (at, op), &mut args, &mut results).await,
        };
        done += 1;
        status = match outcome {
            Ok(()) => Status::OK,
            Err(fault) => {
                results.truncate(begin + 8);
                match fault {
                    Fault::Status(status) => status,
                    Fault::With(status, with) => {
                        results.extend(with);
                        status
                    }
                    Fault::Gone => Status::DELAY,
                }
            }
        };
        results[begin + 4..begin + 8].copy_from_slice(&status.0.to_be_bytes());
        if status != Status::OK {
            asked.meters.failed();
            break;
        }
    }
    let reply = reply(status, tag, done, &results);
    work.end(&reply);
    Ok(reply)
}

/// Carries one operation out. A volume that is not served any more is looked for once more.
async fn operation<E: Exports>(
    work: &mut Work<'_, E>,
    (at, op): (u32, Op),
    args: &mut Args<'_>,
    results: &mut Vec<u8>,
) -> Result<(), Fault> {
    let (before, length) = (*args, results.len());
    work.at = at;
    match work.run(op, args, results).await {
        Err(Fault::Gone) => {
            *args = before;
            results.truncate(length);
            work.look_again().await?;
            work.run(op, args, results).await
        }
        done => done,
    }
}

/// Returns the bytes of data that the reply to a COMPOUND may have, as far as its operations are of
/// the usual kind. More is refused when it comes to that.
pub fn data_bytes(args: Args<'_>) -> usize {
    let mut bytes = 0;
    // What cannot be read asks for nothing.
    let _ = count_data(args, &mut bytes);
    bytes.min(limits::ROOM_BYTES_MAX)
}

fn count_data(mut args: Args<'_>, bytes: &mut usize) -> Result<(), Garbage> {
    args.opaque(limits::TAG_BYTES_MAX)?;
    args.u32()?;
    for _ in 0..args.u32()?.min(limits::OPS_MAX) {
        match Op(args.u32()?) {
            Op::SEQUENCE => {
                args.sixteen()?;
                args.sixteen()?;
            }
            Op::PUTFH => drop(handle::read(&mut args)?),
            Op::LOOKUP => drop(args.opaque(limits::OWNER_BYTES_MAX)?),
            Op::GETATTR => drop(args.bitmap()?),
            Op::ACCESS => drop(args.u32()?),
            Op::PUTROOTFH | Op::SAVEFH | Op::RESTOREFH | Op::GETFH | Op::LOOKUPP => {}
            Op::READ => {
                args.stateid()?;
                args.u64()?;
                *bytes += args.u32()?.min(common::DATA_BYTES_MAX) as usize;
            }
            Op::READDIR => {
                args.sixteen()?;
                args.u32()?;
                *bytes += args.u32()?.min(common::LIST_BYTES_MAX) as usize;
                args.bitmap()?;
            }
            _ => return Ok(()),
        }
    }
    Ok(())
}
