//! Many chunks at once: named before their turn, and compressed together.
//!
//! Names and compression cost the most, and background tasks share that, so that one stream keeps
//! several cores busy. In between the batch decides, chunk by chunk in their order, which are new;
//! only those are compressed.

use super::stretch::{Filling, Stretch};
use crate::cache::{Keep, Unasked};
use crate::content::Inner;
use crate::name::{Name, NameMap};
use crate::pack::blobs::Blobs;
use crate::pack::reader::Body;
use crate::{Batch, Class, Error, Pointer, limits};
use bytes::Bytes;
use futures_util::future::{BoxFuture, FutureExt};
use rekindle_env::give_way;
use std::borrow::Cow;
use std::ops::Range;
use std::sync::Arc;

/// A chunk that is to be written.
#[derive(Clone)]
struct Chunk {
    body: Slice,
    /// Whether it lies apart from the chunk before it.
    is_apart: bool,
}

/// Bytes of a stretch.
#[derive(Clone)]
struct Slice {
    stretch: Bytes,
    range: Range<usize>,
}

impl Slice {
    fn bytes(&self) -> &[u8] {
        &self.stretch[self.range.clone()]
    }

    /// A copy: the rest of the stretch would stay with the chunk.
    fn alone(&self) -> Body {
        Body { bytes: Bytes::copy_from_slice(self.bytes()), children: 0 }
    }

    /// Takes the bytes that follow in the same stretch. `false`: they are others.
    fn extend(&mut self, next: &Slice) -> bool {
        let follows =
            self.stretch.as_ptr() == next.stretch.as_ptr() && self.range.end == next.range.start;
        if follows {
            self.range.end = next.range.end;
        }
        follows
    }
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
    /// The bodies, those that lie side by side as one slice.
    bodies: Vec<Slice>,
}

impl Batch {
    /// Adds chunks of data, in their order. Returns the pointer to each.
    pub async fn write_many(&mut self, stretches: &[Stretch]) -> Result<Vec<Pointer>, Error> {
        let chunks = all(stretches)?;
        let (mut places, mut is_old) = (Vec::with_capacity(chunks.len()), Vec::new());
        let mut new = Bundles { is_cached: self.is_cached, ..Bundles::default() };
        let mut numbers = NameMap::default();
        let mut rest = chunks.iter();
        let mut is_apart = false;
        for names in self.name_ahead(&chunks) {
            for (name, chunk) in names.await.into_iter().zip(&mut rest) {
                self.counts(chunk.body.range.len());
                is_apart |= chunk.is_apart;
                let found = match self.find_any(&name).await {
                    Some(pointer) => Some(Place::Known(pointer)),
                    None => numbers.get(&name).map(|number| Place::New(*number)),
                };
                is_old.push(found.is_some());
                places.push(found.unwrap_or_else(|| {
                    let number = numbers.len();
                    numbers.insert(name, number);
                    new.add(&self.inner, name, &chunk.body, std::mem::take(&mut is_apart));
                    Place::New(number)
                }));
            }
        }
        let mut pointers = Vec::with_capacity(numbers.len());
        for blobs in new.end(&self.inner) {
            let blobs = blobs.await;
            give_way();
            self.append_all(Class::Data, &blobs, &mut pointers).await?;
            self.inner.used(blobs);
        }
        let of = |place| match place {
            Place::Known(pointer) => pointer,
            Place::New(number) => pointers[number],
        };
        let pointers: Vec<Pointer> = places.into_iter().map(of).collect();
        for ((pointer, chunk), _) in pointers.iter().zip(&chunks).zip(is_old).filter(|it| it.1) {
            give_way();
            self.counts_duplicate(chunk.body.range.len());
            self.cache(Class::Data, pointer.name, true, || chunk.body.alone());
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
                bytes += chunk.body.range.len();
                fits
            });
            let (group, behind) = rest.split_at(few.count());
            rest = behind;
            let (inner, group) = (self.inner.clone(), group.to_vec());
            let name = async move {
                let name = |chunk: &Chunk| {
                    give_way();
                    inner.namer.name(Class::Data, 0, chunk.body.bytes())
                };
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
            let body = Slice { stretch: stretch.bytes.clone(), range };
            chunks.push(Chunk { body, is_apart: std::mem::take(&mut is_apart) });
        }
    }
    Ok(chunks)
}

/// New chunks on their way into blobs, in their order.
#[derive(Default)]
struct Bundles {
    /// Whether the chunks go into the cache.
    is_cached: bool,
    filling: Filling,
    last: Bundle,
    made: Vec<BoxFuture<'static, Blobs>>,
}

impl Bundles {
    fn add(&mut self, inner: &Arc<Inner>, name: Name, body: &Slice, is_apart: bool) {
        if !self.filling.take(body.range.len(), is_apart) && !self.last.names.is_empty() {
            let make = std::mem::take(&mut self.last).make(inner, self.is_cached);
            self.made.push(inner.env.start("content-ahead", make).boxed());
        }
        self.last.names.push((name, body.range.len()));
        if !self.last.bodies.last_mut().is_some_and(|last| last.extend(body)) {
            self.last.bodies.push(body.clone());
        }
    }

    /// Returns the blobs that are being made, all of them.
    fn end(mut self, inner: &Arc<Inner>) -> Vec<BoxFuture<'static, Blobs>> {
        if !self.last.names.is_empty() {
            // The batch would only wait for a task.
            self.made.push(self.last.make(inner, self.is_cached).boxed());
        }
        self.made
    }
}

impl Bundle {
    /// Compresses the chunks, and puts them into the cache.
    fn make(
        self,
        inner: &Arc<Inner>,
        is_cached: bool,
    ) -> impl Future<Output = Blobs> + Send + use<> {
        let inner = inner.clone();
        async move {
            give_way();
            let (mut compressor, mut blobs) = (inner.compressor(), inner.room());
            let bodies = match &self.bodies[..] {
                [bodies] => Cow::Borrowed(bodies.bytes()),
                slices => Cow::Owned(slices.iter().map(Slice::bytes).collect::<Vec<_>>().concat()),
            };
            blobs.push_together(&self.names, &bodies, &mut compressor);
            inner.compressors.lock().push(compressor);
            let mut rest = &bodies[..];
            for (name, length) in self.names.iter().filter(|_| is_cached) {
                give_way();
                let (body, behind) = rest.split_at(*length);
                rest = behind;
                // A copy: a chunk in the cache does not keep its neighbours there.
                let body = Body { bytes: Bytes::copy_from_slice(body), children: 0 };
                inner.keep(*name, Class::Data, Keep::Unasked(Unasked::Written), body);
            }
            blobs
        }
    }
}
