//! Chunks that are named and compressed before their turn.
//!
//! A batch appends its chunks one after another. Names and blobs, which cost the most, need no
//! order: background tasks make them, a group of chunks each, so that one stream keeps several
//! cores busy. Whether a chunk is new, the batch decides when its turn has come. A task only spares
//! the blobs of chunks that look like duplicates.

use crate::compression::Compressor;
use crate::content::Inner;
use crate::index::Found;
use crate::name::{Name, NameSet};
use crate::pack::reader::Body;
use crate::pack::writer::{blob_room, encode_blob};
use crate::{Batch, Class, Error, Pointer, limits};
use bytes::Bytes;
use futures_util::future::{BoxFuture, FutureExt};
use parking_lot::Mutex;
use std::ops::Range;
use std::sync::Arc;

/// Chunks that follow one another.
struct Group {
    /// Names and places of blobs; without a place, there seemed to be no need for the blob.
    made: Vec<(Name, Option<Range<usize>>)>,
    blobs: Vec<u8>,
}

/// Names whose blobs a batch's tasks have begun to make.
pub(super) type Begun = Arc<Mutex<NameSet>>;

impl Batch {
    /// Adds chunks of data, in their order, as [`Batch::write`] does.
    pub async fn write_many(&mut self, chunks: Vec<Bytes>) -> Result<Vec<Pointer>, Error> {
        let groups = self.begin(&chunks);
        let mut pointers = Vec::with_capacity(chunks.len());
        let mut chunks = chunks.into_iter();
        for group in groups {
            let Group { made, blobs } = group.await;
            for ((name, at), bytes) in made.into_iter().zip(&mut chunks) {
                let blob = at.map(|at| &blobs[at]);
                let body = Body { bytes, children: 0 };
                pointers.push(self.write_named(Class::Data, name, body, blob).await?);
            }
        }
        Ok(pointers)
    }

    /// Starts tasks that name and compress chunks.
    fn begin(&self, mut rest: &[Bytes]) -> Vec<BoxFuture<'static, Group>> {
        let mut groups = Vec::new();
        while !rest.is_empty() {
            let mut bytes = 0;
            let few = rest.iter().take_while(|chunk| {
                let fits = bytes < limits::AHEAD_GROUP_BYTES;
                bytes += chunk.len();
                fits
            });
            let (group, behind) = rest.split_at(few.count());
            rest = behind;
            let (inner, group) = (self.inner.clone(), group.to_vec());
            let begun = (!self.is_anew).then(|| self.begun.clone());
            let make = async move { Group::make(&inner, &group, begun.as_ref()) };
            groups.push(match groups.is_empty() && rest.is_empty() {
                // The batch would only wait for the task.
                true => make.boxed(),
                false => self.inner.env.start("content-ahead", make).boxed(),
            });
        }
        groups
    }
}

impl Group {
    fn make(inner: &Inner, chunks: &[Bytes], begun: Option<&Begun>) -> Self {
        let kept = inner.compressors.lock().pop();
        let mut compressor = kept.unwrap_or_else(|| Compressor::new(inner.config.compression));
        let mut blobs = Vec::new();
        let made = chunks.iter().map(|chunk| {
            let name = inner.namer.name(Class::Data, 0, chunk);
            let is_new = begun.is_none_or(|begun| {
                matches!(inner.index.lookup(&name), Found::Nothing) && begun.lock().insert(name)
            });
            let blob = is_new.then(|| {
                let begin = blobs.len();
                blobs.resize(begin + blob_room(&compressor, chunk.len()), 0);
                let header = (Class::Data, name, 0);
                let length = encode_blob(header, chunk, &mut compressor, &mut blobs[begin..]);
                blobs.truncate(begin + length);
                begin..begin + length
            });
            (name, blob)
        });
        let made = made.collect();
        inner.compressors.lock().push(compressor);
        Self { made, blobs }
    }
}
