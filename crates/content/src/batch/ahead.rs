//! Many chunks at once: named before their turn, and compressed together.
//!
//! Names and compression cost the most, and background tasks share that, so that one stream keeps
//! several cores busy. In between the batch decides, chunk by chunk in their order, which are new;
//! only those are compressed.

use super::stretch::{Filling, Stretch};
use crate::content::Inner;
use crate::name::{Name, NameMap};
use crate::pack::blobs::Blobs;
use crate::pack::reader::Body;
use crate::{Batch, Class, Error, Pointer, limits};
use bytes::Bytes;
use futures_util::future::{BoxFuture, FutureExt};
use std::sync::Arc;

/// A chunk that is to be written.
#[derive(Clone)]
struct Chunk {
    bytes: Bytes,
    /// Whether it lies apart from the chunk before it.
    is_apart: bool,
}

/// The place of a chunk.
enum Place {
    Known(Pointer),
    /// That of the new chunk with this number.
    New(usize),
}

/// New chunks that are compressed together.
#[derive(Default)]
struct Bundle {
    names: Vec<(Name, usize)>,
    bodies: Vec<Bytes>,
}

impl Batch {
    /// Adds chunks of data, in their order. Returns the pointer to each.
    pub async fn write_many(&mut self, stretches: &[Stretch]) -> Result<Vec<Pointer>, Error> {
        let chunks = all(stretches)?;
        let (mut places, mut is_old) = (Vec::with_capacity(chunks.len()), Vec::new());
        let (mut new, mut numbers) = (Bundles::default(), NameMap::default());
        let mut rest = chunks.iter();
        let mut is_apart = false;
        for names in self.name_ahead(&chunks) {
            for (name, chunk) in names.await.into_iter().zip(&mut rest) {
                self.counts(chunk.bytes.len());
                is_apart |= chunk.is_apart;
                let found = match self.find_any(&name).await {
                    Some(pointer) => Some(Place::Known(pointer)),
                    None => numbers.get(&name).map(|number| Place::New(*number)),
                };
                is_old.push(found.is_some());
                places.push(found.unwrap_or_else(|| {
                    let number = numbers.len();
                    numbers.insert(name, number);
                    new.add(&self.inner, name, &chunk.bytes, std::mem::take(&mut is_apart));
                    Place::New(number)
                }));
            }
        }
        let mut pointers = Vec::with_capacity(numbers.len());
        for blobs in new.end(&self.inner) {
            self.append_all(Class::Data, &blobs.await, &mut pointers).await?;
        }
        let of = |place| match place {
            Place::Known(pointer) => pointer,
            Place::New(number) => pointers[number],
        };
        let pointers: Vec<Pointer> = places.into_iter().map(of).collect();
        for ((pointer, chunk), is_old) in pointers.iter().zip(&chunks).zip(is_old) {
            if is_old {
                self.counts_duplicate(chunk.bytes.len());
            }
            // A copy: the rest of the stretch would stay with the chunk.
            let body = || Body { bytes: Bytes::copy_from_slice(&chunk.bytes), children: 0 };
            self.cache(Class::Data, pointer.name, is_old, body);
        }
        Ok(pointers)
    }

    /// Starts tasks that name chunks.
    fn name_ahead(&self, mut rest: &[Chunk]) -> Vec<BoxFuture<'static, Vec<Name>>> {
        let mut groups = Vec::new();
        while !rest.is_empty() {
            let mut bytes = 0;
            let few = rest.iter().take_while(|chunk| {
                let fits = bytes < limits::AHEAD_GROUP_BYTES;
                bytes += chunk.bytes.len();
                fits
            });
            let (group, behind) = rest.split_at(few.count());
            rest = behind;
            let (inner, group) = (self.inner.clone(), group.to_vec());
            let name = async move {
                let name = |chunk: &Chunk| inner.namer.name(Class::Data, 0, &chunk.bytes);
                group.iter().map(name).collect()
            };
            groups.push(match groups.is_empty() && rest.is_empty() {
                // The batch would only wait for the task.
                true => name.boxed(),
                false => self.inner.env.start("content-ahead", name).boxed(),
            });
        }
        groups
    }
}

/// All chunks, in their order.
fn all(stretches: &[Stretch]) -> Result<Vec<Chunk>, Error> {
    let mut chunks = Vec::new();
    for stretch in stretches {
        let mut is_apart = stretch.is_apart;
        for range in stretch.chunks() {
            super::check_length(range.len())?;
            let bytes = stretch.bytes.slice(range);
            chunks.push(Chunk { bytes, is_apart: std::mem::take(&mut is_apart) });
        }
    }
    Ok(chunks)
}

/// New chunks on their way into blobs, in their order.
#[derive(Default)]
struct Bundles {
    filling: Filling,
    last: Bundle,
    made: Vec<BoxFuture<'static, Blobs>>,
}

impl Bundles {
    fn add(&mut self, inner: &Arc<Inner>, name: Name, body: &Bytes, is_apart: bool) {
        if !self.filling.take(body.len(), is_apart) && !self.last.names.is_empty() {
            let make = std::mem::take(&mut self.last).make(inner);
            self.made.push(inner.env.start("content-ahead", make).boxed());
        }
        self.last.names.push((name, body.len()));
        self.last.bodies.push(body.clone());
    }

    /// Returns the blobs that are being made, all of them.
    fn end(mut self, inner: &Arc<Inner>) -> Vec<BoxFuture<'static, Blobs>> {
        if !self.last.names.is_empty() {
            // The batch would only wait for a task.
            self.made.push(self.last.make(inner).boxed());
        }
        self.made
    }
}

impl Bundle {
    fn make(self, inner: &Arc<Inner>) -> impl Future<Output = Blobs> + Send + use<> {
        let inner = inner.clone();
        async move {
            let (mut compressor, mut blobs) = (inner.compressor(), Blobs::default());
            match &self.bodies[..] {
                [body] => blobs.push_together(&self.names, body, &mut compressor),
                bodies => blobs.push_together(&self.names, &bodies.concat(), &mut compressor),
            }
            inner.compressors.lock().push(compressor);
            blobs
        }
    }
}
