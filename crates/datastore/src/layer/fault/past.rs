//! The past contents of a store, for stale answers.

use crate::{Listed, Version};
use bytes::Bytes;
use std::collections::HashMap;

/// Most objects, and most pages, that are remembered; beyond that all of them are forgotten.
const REMEMBERED_MAX: usize = 4096;

type Object = Option<(Bytes, Version)>;

/// Each object before its last write, and each page of a listing at its last request.
#[derive(Default)]
pub(super) struct Past {
    objects: HashMap<String, Object>,
    pages: HashMap<(String, Option<String>), Vec<Listed>>,
}

impl Past {
    /// Remembers an object that is about to be written over; `None` when there was none.
    pub(super) fn object(&mut self, key: &str, before: Object) {
        if self.objects.len() >= REMEMBERED_MAX {
            self.objects.clear();
        }
        self.objects.insert(key.to_owned(), before);
    }

    /// Returns the object before its last write, if that is known.
    pub(super) fn of_object(&self, key: &str) -> Option<Object> {
        self.objects.get(key).cloned()
    }

    /// Keeps a page, and returns its previous content.
    pub(super) fn page(
        &mut self,
        prefix: &str,
        after: Option<&str>,
        now: &[Listed],
    ) -> Option<Vec<Listed>> {
        if self.pages.len() >= REMEMBERED_MAX {
            self.pages.clear();
        }
        self.pages.insert((prefix.to_owned(), after.map(str::to_owned)), now.to_vec())
    }
}
