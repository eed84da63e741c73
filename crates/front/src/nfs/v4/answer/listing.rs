//! READDIR. A cookie is the position of a name, which stays as long as the name does, so its
//! verifier is always the same.

use super::{Done, Spot, Work, directory};
use crate::nfs::limits as common;
use crate::nfs::server::Place;
use crate::nfs::target::Exports;
use crate::nfs::v4::attributes::{self as words, Subject};
use crate::nfs::v4::codec::{Bitmap, Read, Write};
use crate::nfs::v4::status::{Fault, Status};
use crate::nfs::xdr::Args;
use crate::target::Target;
use futures_util::future::join_all;
use rekindle_file::{Attr, Entry};

/// Bytes of a reply around its entries.
const AROUND_BYTES: usize = 8 + 8;
/// Bytes of an entry besides its name and its attributes.
const ENTRY_BYTES: usize = 16;
/// The first cookie of the list of exports: lower ones mean something in other servers.
const FIRST_EXPORT: u64 = 16;

/// What is asked for.
struct Wanted {
    after: u64,
    /// Most bytes of names, and of the reply.
    names: usize,
    all: usize,
    attributes: Bitmap,
}

/// A listing as far as it fits.
struct Listing<'a> {
    out: &'a mut Vec<u8>,
    begin: usize,
    names: usize,
    wanted: &'a Wanted,
    count: usize,
}

impl Listing<'_> {
    /// Adds an entry, if it fits.
    fn push(&mut self, cookie: u64, name: &[u8], attributes: &[u8]) -> bool {
        let length = self.out.len();
        self.out.put_flag(true);
        self.out.put_u64(cookie);
        self.out.put_opaque(name);
        self.out.extend_from_slice(attributes);
        self.names += ENTRY_BYTES + name.len();
        let fits = self.out.len() - self.begin + AROUND_BYTES <= self.wanted.all
            && (self.names <= self.wanted.names || self.count == 0);
        if fits {
            self.count += 1
        } else {
            self.out.truncate(length)
        }
        fits
    }

    fn end(self, is_whole: bool) -> Done {
        if self.count == 0 && !is_whole {
            return Err(Status::TOOSMALL.into());
        }
        self.out.put_flag(false);
        self.out.put_flag(is_whole);
        Ok(())
    }
}

impl<E: Exports> Work<'_, E> {
    pub(super) async fn list(&mut self, args: &mut Args<'_>, out: &mut Vec<u8>) -> Done {
        let (after, verifier) = (args.u64()?, args.eight()?);
        let (names, all, attributes) = (args.u32()?, args.u32()?, args.bitmap()?);
        let spot = self.spot()?.clone();
        let all = all.min(common::LIST_BYTES_MAX) as usize;
        self.room = self.room.checked_sub(all).ok_or(Status::REP_TOO_BIG)?;
        // A client that says no bound of names means that of all.
        let names = if names == 0 { all } else { names.min(common::LIST_BYTES_MAX) as usize };
        let is_ours = verifier == [0; 8] && i64::try_from(after).is_ok();
        if !is_ours || matches!(after, 1 | 2) {
            return Err(Status::BAD_COOKIE.into());
        }
        let wanted = Wanted { after, names, all, attributes };
        out.put_plain(&[0; 8]);
        let begin = out.len();
        let listing = Listing { out, begin, names: 0, wanted: &wanted, count: 0 };
        match spot {
            Spot::Exports => self.list_exports(listing).await,
            Spot::At(place) => self.list_place(listing, &place).await,
        }
    }

    /// Lists the exports. None of them comes into service, so little is said of each.
    async fn list_exports(&self, mut listing: Listing<'_>) -> Done {
        let names = self.server.exports.names().await.map_err(|error| {
            tracing::warn!(%error, "the list of exports cannot be had");
            Fault::from(Status::IO)
        })?;
        let attributes = listing.wanted.attributes.and(&words::OF_EXPORT);
        let after = listing.wanted.after;
        let mut is_whole = true;
        for (at, name) in names.iter().take(common::EXPORTS_MAX).enumerate() {
            let cookie = FIRST_EXPORT + at as u64;
            if cookie <= after {
                continue;
            }
            let attr = Attr { ino: self.export_number(name), ..self.exports_attr() };
            let mut bytes = Vec::new();
            let of = Subject::of_exports(&attr, b"");
            words::encode(&mut bytes, &attributes, &of);
            if !listing.push(cookie, name.as_bytes(), &bytes) {
                is_whole = false;
                break;
            }
        }
        listing.end(is_whole)
    }

    async fn list_place(&self, mut listing: Listing<'_>, place: &Place<E::Files>) -> Done {
        let files = &place.export.files;
        let dir = files.rights(place.ino).await?;
        directory(&dir)?;
        self.caller.list(&dir)?;
        // A caller that may not look names up learns nothing of what they lead to.
        let finds = self.caller.look_up(&dir).is_ok();
        let wanted = listing.wanted;
        let mut after = wanted.after;
        let at_once = (wanted.names / (ENTRY_BYTES + 8)).clamp(1, 1024);
        loop {
            let found = files.list(place.ino, after, at_once).await?;
            for some in found.chunks(common::LOOKUPS_AT_ONCE) {
                let told =
                    join_all(some.iter().map(|entry| self.entry(place, wanted, finds, entry)));
                for (entry, told) in some.iter().zip(told.await) {
                    if !listing.push(entry.position, &entry.name, &told) {
                        return listing.end(false);
                    }
                }
            }
            match found.last() {
                Some(last) if found.len() >= at_once => after = last.position,
                _ => return listing.end(true),
            }
        }
    }

    /// Returns the attributes of an entry, as bytes.
    async fn entry(
        &self,
        place: &Place<E::Files>,
        wanted: &Wanted,
        finds: bool,
        entry: &Entry,
    ) -> Vec<u8> {
        let mut bytes = Vec::new();
        let attr = match finds {
            true => place.export.files.attr(entry.ino).await.ok(),
            false => None,
        };
        let told = match &attr {
            Some(attr) => self.put_attributes_of(&mut bytes, &wanted.attributes, place, attr).await,
            None => Err(Status::NOENT.into()),
        };
        let error = match told {
            Ok(()) => return bytes,
            Err(_) if !finds => Status::ACCESS,
            Err(Fault::Status(status)) => status,
            // It is gone since.
            Err(_) => Status::NOENT,
        };
        let which = wanted.attributes.and(&Bitmap::of(&[words::RDATTR_ERROR]));
        bytes.clear();
        bytes.put_bitmap(&which);
        let mut values = Vec::new();
        if !which.is_empty() {
            values.put_u32(error.0);
        }
        bytes.put_opaque(&values);
        bytes
    }
}
