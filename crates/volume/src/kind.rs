//! Kinds of volumes: what the content of a volume means is known to its kind only.
//!
//! A kind is a crate of its own (`rekindle_block`, the smallest), which implements [`Kind`]. The
//! node registers it in its [`Kinds`]. Everything else, from the vault to the API, handles volumes
//! of any kind.

use crate::Error;
use rekindle_content::{Content, Pointer};
use rekindle_env::BoxFuture;
use rekindle_staging::{Staged, Vault, VaultBody, Written};
use std::future::ready;
use std::ops::Range;
use std::sync::Arc;

/// The home of a volume in service, as its kind makes it.
pub type OpenedHome = rekindle_staging::Home;

/// A kind of volume. It owns no state: all that it knows of a volume is the volume's vault.
pub trait Kind: Send + Sync + 'static {
    /// Returns the word of the kind in vaults and requests.
    fn name(&self) -> &'static str;
    /// Makes the body of a new volume's vault of the settings of a request. The error says which
    /// setting is not possible, and what is.
    fn create(&self, size: u64, settings: &VaultBody) -> Result<VaultBody, String>;
    /// Checks the body of a vault, and the volume's size. The error says what no volume of this
    /// kind has.
    fn check(&self, vault: &Vault) -> Result<(), String>;
    /// Makes the home of a volume. A vault that [`Kind::check`] refuses is refused here, too.
    fn open(&self, content: &Content, vault: &Vault) -> Result<OpenedHome, String>;
    /// Says which part of a volume's content is under these keys of its outermost tree: "16 KiB at
    /// byte 0". `None` if the vault does not tell.
    fn describe_damage(&self, vault: &Vault, keys: &[Range<u64>]) -> Option<String>;
    /// Says which part of a volume's content a chunk is of that cannot be read. `keys`: those of
    /// the trees that lead to it, the outermost first.
    fn describe_chunk<'a>(
        &'a self,
        content: &'a Content,
        vault: &'a Vault,
        keys: &'a [Range<u64>],
        chunk: Pointer,
    ) -> BoxFuture<'a, Option<String>> {
        let _ = (content, chunk);
        Box::pin(ready(self.describe_damage(vault, &keys[..keys.len().min(1)])))
    }
    /// Returns a number above all that a volume has given to its parts, as far as its content and
    /// its vault tell, for [`Vault::numbers_from`]. 0: the kind gives none that outlive a client.
    fn numbers<'a>(&'a self, content: &'a Content, vault: &'a Vault) -> BoxFuture<'a, u64>;
    /// Says whether the kind's volumes may come to another size. [`Kind::check`] judges each size.
    fn sizes(&self) -> Sizes;
}

/// The sizes that a volume may come to.
#[derive(Clone, Copy)]
pub enum Sizes {
    /// A volume keeps the size that it was made with.
    Fixed,
    /// The size only limits what a volume takes: it changes in service, both ways, and cuts
    /// nothing off.
    Limit,
    /// A volume grows, and shrinks once the change that `cut` submits has given up the end of its
    /// content: the stretch beyond the smaller size.
    Any { cut: Cut },
}

/// Submits the change that gives up a stretch at the end of a volume.
pub type Cut = fn(&Arc<Staged>, Range<u64>) -> Written;

/// The kinds of volumes that this binary knows.
#[derive(Clone)]
pub struct Kinds(Arc<[Box<dyn Kind>]>);

impl Kinds {
    /// Registers kinds. A request that names no kind means the first one.
    #[must_use]
    pub fn new(kinds: Vec<Box<dyn Kind>>) -> Self {
        Self(kinds.into())
    }

    /// Returns the kind of a request that names none.
    #[must_use]
    pub fn default_name(&self) -> &'static str {
        self.0.first().map_or("", |kind| kind.name())
    }

    fn find(&self, name: &str) -> Option<&dyn Kind> {
        self.0.iter().map(|kind| &**kind).find(|kind| kind.name() == name)
    }

    /// Returns the kind that a request for a new volume names.
    pub(crate) fn wanted(&self, name: &str) -> Result<&dyn Kind, Error> {
        self.find(name).ok_or_else(|| {
            let names: Vec<String> =
                self.0.iter().map(|kind| format!("'{}'", kind.name())).collect();
            Error::Invalid(format!(
                "'{}' is not a kind of volume: use {}",
                name.escape_debug(),
                names.join(" or ")
            ))
        })
    }

    /// Returns the kind of a volume, whether or not it can make sense of the volume's vault.
    pub(crate) fn known(&self, vault: &Vault) -> Result<&dyn Kind, Error> {
        self.find(&vault.kind).ok_or_else(|| Error::UnknownKind {
            name: vault.name.clone(),
            kind: vault.kind.clone(),
        })
    }

    /// Checks that this binary knows the kind of a volume, and that the kind can make sense of the
    /// vault. Comes before anything else is believed of the vault's body.
    pub fn check(&self, vault: &Vault) -> Result<(), Error> {
        self.known(vault)?.check(vault).map_err(|reason| damaged(vault, reason))
    }

    /// Checks that a volume may come to another size. Returns how.
    pub(crate) fn resizes(&self, vault: &Vault, size: u64) -> Result<Sizes, Error> {
        self.check(vault)?;
        let kind = self.known(vault)?;
        let sizes = kind.sizes();
        if matches!(sizes, Sizes::Fixed) {
            let (name, kind) = (&vault.name, kind.name());
            return Err(Error::Invalid(format!(
                "volume '{name}' keeps its size: volumes of kind '{kind}' cannot be resized"
            )));
        }
        kind.check(&Vault { size, ..vault.clone() }).map_err(Error::Invalid)?;
        Ok(sizes)
    }

    /// Makes the home of a volume.
    pub(crate) fn open(&self, content: &Content, vault: &Vault) -> Result<OpenedHome, Error> {
        self.known(vault)?.open(content, vault).map_err(|reason| damaged(vault, reason))
    }

    /// Returns the first number that a volume may give to a part once it goes on without changes
    /// that it has acknowledged.
    pub(crate) async fn numbers(&self, content: &Content, vault: &Vault) -> u64 {
        match self.find(&vault.kind) {
            Some(kind) => kind.numbers(content, vault).await,
            None => vault.numbers_from,
        }
    }

    /// Says which part of a volume's content is under these keys of its tree.
    #[must_use]
    pub fn describe_damage(&self, vault: &Vault, keys: &[Range<u64>]) -> String {
        let described = self.find(&vault.kind).and_then(|kind| kind.describe_damage(vault, keys));
        described.unwrap_or_else(|| "part of its content".to_owned())
    }

    /// Says which part of a volume's content a chunk is of ([`Kind::describe_chunk`]).
    pub async fn describe_chunk(
        &self,
        content: &Content,
        vault: &Vault,
        keys: &[Range<u64>],
        chunk: Pointer,
    ) -> String {
        let described = match self.find(&vault.kind) {
            Some(kind) => kind.describe_chunk(content, vault, keys, chunk).await,
            None => None,
        };
        described.unwrap_or_else(|| "part of its content".to_owned())
    }
}

/// Checks that a volume is of the kind that a caller serves.
pub fn is_of(vault: &Vault, wanted: &'static str) -> Result<(), Error> {
    if vault.kind == wanted {
        return Ok(());
    }
    Err(Error::OtherKind { name: vault.name.clone(), kind: vault.kind.clone(), wanted })
}

fn damaged(vault: &Vault, reason: String) -> Error {
    rekindle_datastore::Error::Damaged { key: Vault::key(vault.id), reason }.into()
}
