//! Opening a store by its URL.

use crate::backend::dir::Dir;
use crate::backend::mem::Mem;
use crate::backend::s3::{S3, S3Settings};
use crate::{Error, Store};
use rekindle_env::Env;
use std::path::{Path, PathBuf};

/// The address of a store, parsed from a URL.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Url {
    /// `file:///path`, or a plain path.
    Folder(PathBuf),
    /// `s3://bucket/prefix`.
    Bucket {
        /// The bucket.
        bucket: String,
        /// The prefix of all keys; may be empty.
        prefix: String,
    },
    /// `mem:`.
    Memory,
}

impl std::str::FromStr for Url {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let wrong = |why: &str| {
            Err(Error::Invalid(format!(
                "'{text}' names no store: {why}. Write file:///path/to/folder, a path such as ./store, or s3://bucket/prefix"
            )))
        };
        if text.trim().is_empty() {
            return wrong("it is empty");
        }
        if text == "mem:" {
            return Ok(Url::Memory);
        }
        if let Some(rest) = text.strip_prefix("file:") {
            let path = rest.strip_prefix("//").unwrap_or(rest);
            if !path.starts_with('/') {
                return wrong("after file:// comes an absolute path, so there are three slashes");
            }
            return match decoded(path) {
                Some(path) => Ok(Url::Folder(PathBuf::from(path))),
                None => wrong("'%' stands before two hexadecimal digits, a '%' itself is %25"),
            };
        }
        if let Some(rest) = text.strip_prefix("s3://") {
            let (bucket, prefix) = rest.split_once('/').unwrap_or((rest, ""));
            let lawful = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_');
            if bucket.is_empty() || !bucket.chars().all(lawful) {
                return wrong(
                    "after s3:// comes the name of a bucket (credentials and endpoint come from AWS_* variables)",
                );
            }
            let prefix = prefix.trim_matches('/');
            if !prefix.is_empty()
                && (crate::key::check(prefix).is_err() || prefix.contains(['?', '#']))
            {
                return wrong("the prefix is not made of plain segments");
            }
            return Ok(Url::Bucket { bucket: bucket.to_owned(), prefix: prefix.to_owned() });
        }
        if let Some((scheme, _)) = text.split_once(':')
            && !scheme.contains(['/', '.'])
        {
            return wrong(&format!("'{scheme}:' is not known"));
        }
        Ok(Url::Folder(PathBuf::from(text)))
    }
}

/// Opens the store that `url` names, without layers. A folder is made when it is absent; a bucket
/// is not contacted.
pub async fn open(env: &Env, url: &str) -> Result<Store, Error> {
    match url.parse()? {
        Url::Folder(path) => Dir::open(env, Path::new(&path)).await,
        Url::Bucket { bucket, prefix } => {
            S3::open(env, &S3Settings { bucket, prefix, ..S3Settings::default() })
        }
        Url::Memory => Ok(Mem::store()),
    }
}

/// Opens a store that is known to be there: an absent folder is [`Error::Unavailable`], and is not
/// made.
pub async fn open_known(env: &Env, url: &str) -> Result<Store, Error> {
    match url.parse()? {
        Url::Folder(path) => Dir::open_known(env, &path).await,
        Url::Bucket { .. } | Url::Memory => open(env, url).await,
    }
}

/// Decodes the percent signs of a path; `None` when they are malformed.
fn decoded(path: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(path.len());
    let mut rest = path.bytes();
    while let Some(byte) = rest.next() {
        if byte == b'%' {
            let digits = [rest.next()?, rest.next()?];
            bytes.push(u8::from_str_radix(std::str::from_utf8(&digits).ok()?, 16).ok()?);
        } else {
            bytes.push(byte);
        }
    }
    String::from_utf8(bytes).ok().filter(|path| !path.contains('\0'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_are_read_as_people_write_them() {
        let folder = |path: &str| Url::Folder(PathBuf::from(path));
        let bucket = |bucket: &str, prefix: &str| Url::Bucket {
            bucket: bucket.into(),
            prefix: prefix.into(),
        };
        for (text, url) in [
            ("file:///srv/store", folder("/srv/store")),
            ("file:///a%20b", folder("/a b")),
            ("/srv/store", folder("/srv/store")),
            ("./store", folder("./store")),
            ("store", folder("store")),
            ("s3://bucket", bucket("bucket", "")),
            ("s3://bucket/a/b/", bucket("bucket", "a/b")),
            ("mem:", Url::Memory),
        ] {
            assert_eq!(text.parse::<Url>().unwrap(), url, "{text}");
        }
    }

    #[test]
    fn a_wrong_url_is_answered_with_the_right_forms() {
        let wrong = [
            "",
            " ",
            "file://srv/store",
            "file:srv",
            "file:///a%2",
            "s3://",
            "s3:///x",
            "s3:/bucket",
            "http://x",
            "s3://a:b@c/d",
            "s3://b/../x",
            "mem:x",
        ];
        for text in wrong {
            let error = text.parse::<Url>().unwrap_err().to_string();
            assert!(
                error.contains("file:///path/to/folder") && error.contains("s3://bucket/prefix"),
                "{text}: {error}"
            );
        }
    }
}
