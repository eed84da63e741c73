//! Large objects whose upload broke off: they go up in parts, and what the store has of an object
//! is not sent again.
//!
//! An upload in one request is the cheapest, so it comes first. Where the connection breaks before
//! an object is through, the same request would break again, for ever. A part that has landed stays
//! with the store, so the next attempt goes on after it. This process alone knows of an upload in
//! parts: one that a kill leaves behind is for a rule of the bucket that aborts incomplete uploads.

use crate::limits::{PART_BYTES, PARTS_OBJECTS_MAX, PARTS_TIME};
use bytes::Bytes;
use object_store::MultipartId;
use object_store::multipart::PartId;
use parking_lot::Mutex;
use rekindle_base::checksum::crc32c;
use rekindle_env::Moment;
use std::collections::VecDeque;

/// The objects that go up in parts.
#[derive(Default)]
pub(super) struct Parts {
    objects: Mutex<VecDeque<(String, Begun)>>,
    /// Until then every large object goes up in parts from its first attempt on.
    fragile_until: Mutex<Option<Moment>>,
}

/// The part of an object that the store has.
#[derive(Debug, Clone, Default)]
pub(super) struct Begun {
    /// Length and checksum: another object of the same key begins anew.
    of: (usize, u32),
    /// The upload; `None` before its first request.
    pub(super) id: Option<MultipartId>,
    /// Parts that have landed, without gaps.
    pub(super) landed: Vec<PartId>,
}

impl Begun {
    fn of(data: &Bytes) -> Self {
        Self { of: (data.len(), crc32c(data)), ..Self::default() }
    }

    /// Returns the part that comes next; `None`: all have landed.
    pub(super) fn next(&self, data: &Bytes) -> Option<Bytes> {
        let from = self.landed.len() * PART_BYTES;
        (from < data.len()).then(|| data.slice(from..data.len().min(from + PART_BYTES)))
    }
}

impl Parts {
    /// Decides whether an object goes up in parts from now on, because it did not get through in
    /// one request. Parts help only if one of them would have gone through.
    pub(super) fn broken(&self, data: &Bytes, taken: u64, now: Moment) -> Option<Begun> {
        if data.len() <= PART_BYTES || taken < PART_BYTES as u64 {
            return None;
        }
        *self.fragile_until.lock() = Some(now + PARTS_TIME);
        Some(Begun::of(data))
    }

    /// Returns the beginning of an object that goes up in parts; `None`: it goes up in one request.
    pub(super) fn begun(&self, key: &str, data: &Bytes, now: Moment) -> Option<Begun> {
        if data.len() <= PART_BYTES {
            return None;
        }
        let known = self.objects.lock().iter().find(|(known, _)| known == key).cloned();
        if let Some((_, begun)) = known
            && begun.of == Begun::of(data).of
        {
            return Some(begun);
        }
        let is_fragile = self.fragile_until.lock().is_some_and(|until| now < until);
        is_fragile.then(|| Begun::of(data))
    }

    /// Keeps what the store has of an object. Returns an upload that has to make room.
    pub(super) fn keep(&self, key: &str, begun: Begun) -> Option<(String, Begun)> {
        let mut objects = self.objects.lock();
        objects.retain(|(known, _)| known != key);
        objects.push_back((key.to_owned(), begun));
        if objects.len() > PARTS_OBJECTS_MAX { objects.pop_front() } else { None }
    }

    /// Forgets an object: it is whole in the store, or its upload is gone.
    pub(super) fn forget(&self, key: &str) {
        self.objects.lock().retain(|(known, _)| known != key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_lost_a_part_or_more_goes_up_in_parts_and_each_part_once() {
        let (parts, small) = (Parts::default(), Bytes::from(vec![1; PART_BYTES]));
        let data = Bytes::from(vec![1; 2 * PART_BYTES + 1]);
        let (part, now) = (PART_BYTES as u64, Moment::default());
        assert!(parts.broken(&small, part, now).is_none());
        assert!(parts.broken(&data, part - 1, now).is_none());
        assert!(parts.begun("cut", &data, now).is_none());
        parts.keep("cut", parts.broken(&data, part, now).expect("parts help"));
        let later = now + PARTS_TIME;
        let mut begun = parts.begun("cut", &data, later).expect("it goes up in parts");
        let mut sent = 0;
        while let Some(part) = begun.next(&data) {
            sent += part.len();
            begun.landed.push(PartId { content_id: String::new() });
            assert!(parts.keep("cut", begun.clone()).is_none());
            begun = parts.begun("cut", &data, later).expect("it is known after each part");
        }
        assert_eq!((sent, begun.landed.len()), (data.len(), 3));
        let other = Bytes::from(vec![2; data.len()]);
        assert!(parts.begun("cut", &other, later).is_none(), "another object of this key");
        let soon = parts.begun("new", &data, now).expect("the connection may break again");
        assert!(soon.id.is_none() && soon.landed.is_empty());
        assert!(parts.begun("new", &small, now).is_none());
        assert!(parts.begun("new", &data, later).is_none(), "one request is cheaper");
    }

    #[test]
    fn the_oldest_makes_room() {
        let (parts, data) = (Parts::default(), Bytes::from(vec![0; PART_BYTES + 1]));
        let out = (0..=PARTS_OBJECTS_MAX)
            .filter_map(|number| parts.keep(&number.to_string(), Begun::of(&data)))
            .map(|(key, _)| key)
            .collect::<Vec<_>>();
        assert_eq!(out, ["0"]);
    }
}
