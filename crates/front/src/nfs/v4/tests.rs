//! Version 4.1 over a session: what a client may rely on, over restarts, too.

use super::attributes as words;
use super::codec::{Bitmap, Stateid, Write};
use super::limits;
use super::ops::Op;
use super::status::Status;
use super::testing::*;
use crate::held::{BOTH, Holder, READ, WRITE};
use crate::nfs::settings::Settings;
use crate::nfs::testing::{Site, with_site};
use std::time::Duration;

mod bounds;
mod forwarded;
mod hostile;
mod lists;
mod names;
mod state;

fn served(story: impl AsyncFnOnce(&mut Site)) {
    with_site(Settings::default(), story);
}

const RW: (u32, u32) = (BOTH as u32, 0);
const NONE: Stateid = Stateid { seqid: 0, other: [0; 12] };

/// Makes a file `f` of `one`, and opens it. Returns its handle and the stateid.
async fn made(caller: &mut Caller) -> (Vec<u8>, Stateid) {
    let told = caller.done(ops().root("one").make("a", RW, 0, "f").handle()).await;
    (told.handle(), told.stateid(Op::OPEN))
}
