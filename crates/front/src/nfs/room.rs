//! The room that the reply to a call may take.

use super::answer::lists;
use super::xdr::{Args, Garbage};
use super::{handle, limits, rpc, v4};
use nfs3_types::nfs3::{self, NFS_PROGRAM};

/// Returns the bytes of data that the reply to a call may have.
pub fn reply_bytes(call: &rpc::Call<'_>) -> usize {
    if call.program == lists::PROGRAM && call.procedure == lists::GET {
        return lists::LISTS_BYTES_MAX;
    }
    if call.program != nfs3::PROGRAM {
        return 0;
    }
    let mut args = Args(call.args);
    if call.version == v4::VERSION {
        return v4::compound::data_bytes(args);
    }
    let asked = match NFS_PROGRAM::try_from(call.procedure) {
        Ok(NFS_PROGRAM::NFSPROC3_READ) => {
            let count = handle::read(&mut args).and_then(|_| Ok((args.u64()?, args.u32()?)));
            count.map_or(0, |(_, count)| count.min(limits::DATA_BYTES_MAX))
        }
        Ok(procedure @ (NFS_PROGRAM::NFSPROC3_READDIR | NFS_PROGRAM::NFSPROC3_READDIRPLUS)) => {
            let is_plus = procedure == NFS_PROGRAM::NFSPROC3_READDIRPLUS;
            let mut most = || {
                handle::read(&mut args)?;
                args.u64()?;
                args.eight()?;
                // The bytes of names are bounded apart from those of all.
                let words = (args.u32()?, if is_plus { args.u32()? } else { 0 });
                Ok::<_, Garbage>(if is_plus { words.1 } else { words.0 })
            };
            most().map_or(0, |most| most.min(limits::LIST_BYTES_MAX))
        }
        _ => 0,
    };
    asked as usize
}
