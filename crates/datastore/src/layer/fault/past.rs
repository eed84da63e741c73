//! What a store showed before, for answers out of old memory.

use crate::{Listed, Version};
use bytes::Bytes;
use std::collections::HashMap;

/// Objects and pages remembered at most; then it begins anew.
const REMEMBERED_MAX: usize = 4096;

type Object = Option<(Bytes, Version)>;

/// Of each object what it was before its last write, and of each page of a listing what it was when it was asked for last.
#[derive(Default)]
pub(super) struct Past {
    objects: HashMap<String, Object>,
    pages: HashMap<(String, Option<String>), Vec<Listed>>,
}

impl Past {
    /// An object is about to be written over; `None` when there was none.
    pub(super) fn object(&mut self, key: &str, before: Object) {
        if self.objects.len() >= REMEMBERED_MAX {
            self.objects.clear();
        }
        self.objects.insert(key.to_owned(), before);
    }

    /// What it was before its last write, if that is known.
    pub(super) fn of_object(&self, key: &str) -> Option<Object> {
        self.objects.get(key).cloned()
    }

    /// Keeps a page, and gives what it was before.
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
