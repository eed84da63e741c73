//! A COMPOUND: its operations one after the other, up to the first that fails, and its place in a
//! session.

use super::answer::{Asked, Work};
use super::attributes as words;
use super::codec::{Read, Write};
use super::ops::Op;
use super::slots::Begun;
use super::status::{Fault, Status};
use super::{MINOR_VERSION, limits};
use crate::nfs::forward::{Away, Next, Part, Patience, Reply, Told};
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

/// Carries a COMPOUND out. `None`: it has no reply, and is known again when it comes again.
pub async fn answer<E: Exports>(
    asked: &Asked<'_, E>,
    mut args: Args<'_>,
) -> Result<Option<Vec<u8>>, Failed> {
    let (length, Asks { bytes, changes }) = (args.0.len(), Asks::read(args));
    let room = bytes.max(limits::ROOM_BYTES);
    let (tag, minor, count) = (args.opaque(limits::TAG_BYTES_MAX)?, args.u32()?, args.u32()?);
    if minor != MINOR_VERSION {
        return Ok(Some(reply(Status::MINOR_VERS_MISMATCH, tag, 0, &[])));
    }
    if count > limits::OPS_MAX {
        return Ok(Some(reply(Status::TOO_MANY_OPS, tag, 0, &[])));
    }
    let mut work = Work::new(asked, asked.server.seal().await?, room);
    work.size = (length, count);
    let mut course = Course { changes, ..Course::default() };
    match course.run(asked, &mut work, args, (0, count)).await {
        Ended::Before(reply) => return Ok(Some(reply)),
        Ended::Silent => return Ok(None),
        // The client asks again.
        Ended::Done | Ended::Away => {}
    }
    let reply = reply(course.status, tag, course.done, &course.results);
    work.end(&reply);
    Ok(Some(reply))
}

/// Carries a part of a COMPOUND out, for a client that has come to another host.
pub async fn answer_part<E: Exports>(asked: &Asked<'_, E>, part: &Part<'_>) -> Reply {
    let (Ok(seal), Some(visited)) = (asked.server.seal().await, asked.visited) else {
        return Reply::Away;
    };
    let mut work = Work::new(asked, seal, part.room as usize);
    let mut course = Course::default();
    match work.go_on_for(part, visited).await {
        Ok(()) => {
            let range = (part.at, part.count);
            if let Ended::Away = course.run(asked, &mut work, Args(part.ops), range).await {
                return Reply::Away;
            }
        }
        Err(Fault::Gone | Fault::Broken | Fault::Elsewhere(..)) => return Reply::Away,
        Err(Fault::Status(status) | Fault::With(status, _)) => {
            let op = Args(part.ops).u32().map_or(Op::ILLEGAL, |number| Op(number).known());
            course.fails_with(op, status);
        }
    }
    let (Course { results, status, done, .. }, has_changed) = (course, work.has_changed());
    Reply::Part(Told { status: status.0, done, has_changed, results })
}

/// How far a COMPOUND has come.
struct Course {
    results: Vec<u8>,
    status: Status,
    /// Operations with results.
    done: u32,
    /// Whether it must not be carried out twice.
    changes: bool,
}

impl Default for Course {
    fn default() -> Self {
        Self { results: Vec::new(), status: Status::OK, done: 0, changes: false }
    }
}

/// How a course ends.
enum Ended {
    Done,
    /// The request was carried out before, with this reply.
    Before(Vec<u8>),
    /// The volume is not served here any more; the last operation is answered DELAY.
    Away,
    /// The last operation may have been carried out, and has no answer.
    Silent,
}

impl Course {
    /// Adds the result of an operation that is not done.
    fn fails_with(&mut self, op: Op, status: Status) {
        self.results.put_u32(op.0);
        self.results.put_u32(status.0);
        (self.status, self.done) = (status, self.done + 1);
    }

    /// Carries operations out, from `at` on.
    async fn run<E: Exports>(
        &mut self,
        asked: &Asked<'_, E>,
        work: &mut Work<'_, E>,
        mut args: Args<'_>,
        (first, count): (u32, u32),
    ) -> Ended {
        for at in first..count {
            let before = args;
            let Ok(number) = args.u32() else {
                // There is not even the number of an operation.
                self.status = Status::BADXDR;
                break;
            };
            let op = Op(number).known();
            let begin = self.results.len();
            self.results.put_u32(op.0);
            self.results.put_u32(Status::OK.0);
            let results = &mut self.results;
            let outcome = match op.check_place(at, count, work.is_in_session()) {
                Err(status) => Err(Fault::from(status)),
                Ok(()) if op == Op::SEQUENCE => match work.begin(&mut args, results) {
                    Ok(Begun::Before(reply)) => return Ended::Before(reply.to_vec()),
                    Ok(Begun::New) => Ok(Step::Done),
                    Err(fault) => Err(fault),
                },
                Ok(()) => {
                    let place = (at, count, op);
                    let mut patience = Patience::new(self.changes);
                    operation(asked, work, place, &mut args, results, (before, &mut patience)).await
                }
            };
            let status = match outcome {
                Ok(Step::Done) => Status::OK,
                Ok(Step::Silent) => return Ended::Silent,
                Ok(Step::Forwarded(is_at_root, told)) => {
                    // An operation that has come to the volume's root is done here.
                    self.results.truncate(if is_at_root { begin + 8 } else { begin });
                    self.results.extend(told.results);
                    self.done += told.done + u32::from(is_at_root);
                    self.status = Status(told.status);
                    return Ended::Done;
                }
                Err(fault) => {
                    self.results.truncate(begin);
                    asked.meters.failed();
                    match fault {
                        Fault::Status(status) => self.fails_with(op, status),
                        Fault::With(status, with) => {
                            self.fails_with(op, status);
                            self.results.extend(with);
                        }
                        Fault::Gone | Fault::Broken | Fault::Elsewhere(..) => {
                            self.fails_with(op, Status::DELAY);
                            return Ended::Away;
                        }
                    }
                    return Ended::Done;
                }
            };
            (self.status, self.done) = (status, self.done + 1);
        }
        Ended::Done
    }
}

/// What became of an operation.
enum Step {
    Done,
    /// Another host has carried it out, and all that follow. Or, `true`: all that follow.
    Forwarded(bool, Told),
    /// It may have been carried out, and the node stops.
    Silent,
}

/// Carries one operation out. A volume that is not served any more is looked for once more; one
/// that another host serves is a matter of that host.
async fn operation<E: Exports>(
    asked: &Asked<'_, E>,
    work: &mut Work<'_, E>,
    (at, count, op): (u32, u32, Op),
    args: &mut Args<'_>,
    results: &mut Vec<u8>,
    (from_here, patience): (Args<'_>, &mut Patience),
) -> Result<Step, Fault> {
    let (before, length) = (*args, results.len());
    let mut looks = 0;
    work.at = at;
    loop {
        let fault = match work.run(op, args, results).await {
            Ok(()) => {
                work.check_reply(op, results.len())?;
                return Ok(Step::Done);
            }
            Err(fault @ (Fault::Gone | Fault::Broken)) if looks == 0 => {
                if fault == Fault::Broken {
                    patience.may_be_done();
                }
                looks += 1;
                work.look_again().await.err()
            }
            Err(fault) => Some(fault),
        };
        let may_be_done = match fault {
            None => None,
            Some(Fault::Elsewhere(volume, is_at_root)) => {
                if asked.lines.is_none() {
                    return Err(Fault::Elsewhere(volume, is_at_root));
                }
                let (at, ops) = if is_at_root { (at + 1, *args) } else { (at, from_here) };
                if at == count {
                    let none = Told { status: 0, done: 0, has_changed: false, results: Vec::new() };
                    return Ok(Step::Forwarded(is_at_root, none));
                }
                let part = work.part((at, count), is_at_root, ops.0);
                let part = part.ok_or(Status::OP_NOT_IN_SESSION)?;
                let Away { may_be_done } = match work.ask_there(&volume, part).await {
                    Ok(told) => {
                        if told.has_changed {
                            work.note_change();
                        }
                        return Ok(Step::Forwarded(is_at_root, told));
                    }
                    Err(away) => away,
                };
                asked.server.forget_elsewhere(&volume);
                Some(may_be_done)
            }
            // It is on its way to another owner, or comes back into service.
            Some(fault @ (Fault::Gone | Fault::Broken)) if asked.lines.is_some() => {
                Some(fault == Fault::Broken)
            }
            Some(fault) => return Err(fault),
        };
        if let Some(may_be_done) = may_be_done {
            if may_be_done {
                patience.may_be_done();
            }
            match patience.next(asked.server).await {
                Next::Again => looks = 0,
                Next::Later => return Err(Fault::Gone),
                Next::Silence => return Ok(Step::Silent),
            }
        }
        *args = before;
        results.truncate(length);
    }
}

/// What a COMPOUND asks for, as far as its operations are of the usual kind.
struct Asks {
    /// Bytes of data that the reply may have. More is refused when it comes to that.
    bytes: usize,
    /// Whether it must not be carried out twice.
    changes: bool,
}

impl Asks {
    fn read(args: Args<'_>) -> Self {
        let mut bytes = 0;
        // What cannot be read asks for nothing.
        let is_all = look(args, &mut bytes).unwrap_or(false);
        Self { bytes: bytes.min(limits::ROOM_BYTES_MAX), changes: !is_all }
    }
}

/// Returns the bytes of data that the reply to a COMPOUND may have.
pub fn data_bytes(args: Args<'_>) -> usize {
    Asks::read(args).bytes
}

/// Says whether all of the operations were looked at.
fn look(mut args: Args<'_>, bytes: &mut usize) -> Result<bool, Garbage> {
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
            Op::GETATTR => {
                if words::asks_for_lists(&args.bitmap()?) {
                    *bytes += limits::ACL_BYTES_MAX;
                }
            }
            Op::ACCESS => drop(args.u32()?),
            Op::PUTROOTFH | Op::SAVEFH | Op::RESTOREFH | Op::GETFH | Op::LOOKUPP => {}
            Op::READ => {
                args.stateid()?;
                args.u64()?;
                *bytes += args.u32()?.min(common::DATA_BYTES_MAX) as usize;
            }
            Op::COMMIT => drop((args.u64()?, args.u32()?)),
            Op::WRITE => {
                args.stateid()?;
                args.u64()?;
                args.u32()?;
                args.opaque(common::DATA_BYTES_MAX)?;
            }
            Op::READDIR => {
                args.sixteen()?;
                args.u32()?;
                *bytes += args.u32()?.min(common::LIST_BYTES_MAX) as usize;
                args.bitmap()?;
            }
            _ => return Ok(false),
        }
    }
    Ok(true)
}
