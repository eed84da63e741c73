//! A store in an S3 bucket, through the `object_store` crate.
//!
//! The crate's own retries are off: our layer knows which calls may be repeated. Every call runs in
//! [`Env::run`], because the HTTP client's tasks live where it is called: a caller on any thread
//! just awaits. The version of an object is its ETag.

mod errors;
mod pace;
mod parts;
mod upload;

use crate::limits::{
    LIST_EMPTY_PAGES_MAX, LIST_OBJECTS_MAX, PREFIX_BYTES_MAX, READ_AT_ONCE_BYTES, REQUEST_TIME_MAX,
};
use crate::{Datastore, Error, Listed, Store, Tag, Version, key};
use bytes::Bytes;
use futures_util::StreamExt;
use object_store::aws::{AmazonS3, AmazonS3Builder, AmazonS3ConfigKey};
use object_store::list::{PaginatedListOptions, PaginatedListStore};
use object_store::multipart::MultipartStore;
use object_store::path::Path;
use object_store::{
    ClientOptions, GetOptions, ObjectStore, ObjectStoreExt, PutMode, PutOptions, RetryConfig,
    UpdateVersion,
};
use pace::Pace;
use parts::{Begun, Parts};
use rekindle_env::{BoxFuture, Env};
use std::future::Future;
use std::ops::Range;
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use upload::{Progress, Way};

/// The settings of an S3 store: its bucket, address and credentials. Absent fields are taken from
/// the environment (`AWS_*`).
#[derive(Clone, Default)]
pub struct S3Settings {
    /// The bucket; it must exist.
    pub bucket: String,
    /// All keys lie below this prefix; may be empty.
    pub prefix: String,
    /// `http://host:port` of a server that is not Amazon's.
    pub endpoint: Option<String>,
    /// The region.
    pub region: Option<String>,
    /// The access key and its secret.
    pub credentials: Option<(String, String)>,
    /// How long the server may take to answer, instead of [`REQUEST_TIME_MAX`].
    pub patience: Option<Duration>,
}

/// A bucket as a store.
pub struct S3 {
    env: Env,
    client: Arc<AmazonS3>,
    bucket: String,
    /// Empty, or ending in `/`.
    prefix: String,
    patience: Duration,
    pace: Pace,
    parts: Parts,
    way: Way,
    /// Whether the server wants the ETag in `If-Match` without its quotes; known since the first
    /// replacement.
    bare_tags: OnceLock<bool>,
}

impl S3 {
    /// Prepares the client; nothing is sent yet.
    pub fn open(env: &Env, place: &S3Settings) -> Result<Store, Error> {
        let prefix = match place.prefix.trim_matches('/') {
            "" => String::new(),
            prefix => {
                key::check(prefix)?;
                format!("{prefix}/")
            }
        };
        if prefix.len() > PREFIX_BYTES_MAX {
            return Err(Error::Invalid(format!(
                "the prefix of a store has at most {PREFIX_BYTES_MAX} bytes"
            )));
        }
        let way = Way::default();
        let client = client(place, way.clone()).map_err(|error| {
            Error::Refused(format!("the S3 settings are not usable: {error}; see AWS_ENDPOINT_URL, AWS_REGION, AWS_ACCESS_KEY_ID"))
        })?;
        Ok(Arc::new(Self {
            env: env.clone(),
            client: Arc::new(client),
            bucket: place.bucket.clone(),
            prefix,
            patience: place.patience.unwrap_or(REQUEST_TIME_MAX),
            pace: Pace::default(),
            parts: Parts::default(),
            way,
            bare_tags: OnceLock::new(),
        }))
    }

    fn path(&self, key: &str) -> Result<Path, Error> {
        key::check(key)?;
        Path::parse(format!("{}{key}", self.prefix))
            .map_err(|error| Error::Invalid(error.to_string()))
    }

    /// Runs one request on the background threads.
    async fn run<T, F>(&self, work: impl FnOnce(Arc<AmazonS3>) -> F) -> object_store::Result<T>
    where
        T: Send + 'static,
        F: Future<Output = object_store::Result<T>> + Send + 'static,
    {
        let (env, call, limit) = (self.env.clone(), work(self.client.clone()), self.patience);
        let answer = self.env.run("s3", async move { env.timeout(limit, call).await }).await;
        answer.unwrap_or_else(|_| Err(silent(limit)))
    }

    /// Reads an object or a part of it, for as long as more bytes arrive. The bytes are gathered in
    /// a buffer of their length: the pieces of a connection lie in buffers that it shares among
    /// several answers.
    async fn fetch(
        &self,
        path: Path,
        options: GetOptions,
    ) -> object_store::Result<(Bytes, Option<String>)> {
        let (env, client, patience) = (self.env.clone(), self.client.clone(), self.patience);
        let fetch = async move {
            let slow = |_| silent(patience);
            let begin = client.get_opts(&path, options);
            let found = env.timeout(patience, begin).await.map_err(slow)??;
            let version = found.meta.e_tag.clone();
            // As the server says. What is longer than we ever ask for grows as its bytes arrive.
            let length = found.range.end.saturating_sub(found.range.start);
            let expected = usize::try_from(length).unwrap_or(usize::MAX).min(READ_AT_ONCE_BYTES);
            let mut stream = found.into_stream();
            let mut data = Vec::with_capacity(expected);
            while let Some(piece) = env.timeout(patience, stream.next()).await.map_err(slow)? {
                data.extend_from_slice(&piece?);
            }
            data.shrink_to_fit();
            Ok((Bytes::from(data), version))
        };
        self.env.run("s3", fetch).await
    }

    /// Writes an object in one request.
    async fn write(&self, key: &str, data: Bytes, mode: PutMode) -> Result<Version, Error> {
        let progress = Progress::default();
        self.write_counted(key, data, mode, &progress).await
    }

    async fn write_counted(
        &self,
        key: &str,
        data: Bytes,
        mode: PutMode,
        progress: &Progress,
    ) -> Result<Version, Error> {
        let path = self.path(key)?;
        let kind = match mode {
            PutMode::Create => errors::Call::Create,
            PutMode::Update(_) => errors::Call::Replace,
            PutMode::Overwrite => errors::Call::Other,
        };
        let mut options = PutOptions { mode, ..PutOptions::default() };
        options.extensions.insert(progress.clone());
        let (client, bytes) = (self.client.clone(), data.len());
        let put = async move { client.put_opts(&path, data.into(), options).await };
        let put = self.upload(bytes, progress, put).await;
        let result = put.map_err(|error| errors::translate(key, kind, &error))?;
        // Without an ETag the outcome is as open as after a lost reply; reading back will tell.
        result
            .e_tag
            .map(Version)
            .ok_or_else(|| Error::Unavailable(format!("no ETag came back for {key}")))
    }

    /// Waits for an upload of so many bytes. A slow connection is not a dead one: an upload ends
    /// only when no bytes get through at all.
    async fn upload<T: Send + 'static>(
        &self,
        bytes: usize,
        progress: &Progress,
        put: impl Future<Output = object_store::Result<T>> + Send + 'static,
    ) -> object_store::Result<T> {
        let turn = self.pace.turn(bytes).await;
        let (env, way, progress, patience) =
            (self.env.clone(), self.way.clone(), progress.clone(), self.patience);
        let put = async move { way.while_it_moves(&env, patience, &progress, put).await };
        let put = self.env.run("s3", put).await.unwrap_or_else(|| Err(silent(patience)));
        match &put {
            Ok(_) => turn.went_well(),
            Err(error) if errors::may_pass(error) => turn.broke_off(),
            Err(_) => {}
        }
        put
    }

    /// Writes an object in parts, after those that have landed before.
    async fn write_parts(&self, key: &str, data: &Bytes, mut begun: Begun) -> Result<(), Error> {
        let path = self.path(key)?;
        let failed = |error: object_store::Error| {
            let error = errors::translate(key, errors::Call::Other, &error);
            if errors::no_such_upload(&error) {
                self.parts.forget(key);
                return Error::Unavailable(format!("the store forgot an upload in parts: {error}"));
            }
            error
        };
        let id = match begun.id.clone() {
            Some(id) => id,
            None => {
                let path = path.clone();
                let create = move |client: Arc<AmazonS3>| async move {
                    client.create_multipart(&path).await
                };
                let id = begun.id.insert(self.run(create).await.map_err(failed)?).clone();
                self.keep(key, begun.clone());
                id
            }
        };
        while let Some(part) = begun.next(data) {
            let (client, path, id) = (self.client.clone(), path.clone(), id.clone());
            let (bytes, number) = (part.len(), begun.landed.len());
            let put = async move { client.put_part(&path, &id, number, part.into()).await };
            begun.landed.push(self.upload(bytes, &self.way.others, put).await.map_err(failed)?);
            self.keep(key, begun.clone());
        }
        let landed = begun.landed;
        let complete = move |client: Arc<AmazonS3>| async move {
            client.complete_multipart(&path, &id, landed).await
        };
        self.run(complete).await.map_err(failed)?;
        self.parts.forget(key);
        Ok(())
    }

    /// Keeps what the store has of an object, and gives up an older upload if there are too many.
    fn keep(&self, key: &str, begun: Begun) {
        let Some((key, Begun { id: Some(id), .. })) = self.parts.keep(key, begun) else { return };
        let Ok(path) = self.path(&key) else { return };
        let client = self.client.clone();
        self.env.spawn("s3-abort", async move {
            if let Err(error) = client.abort_multipart(&path, &id).await {
                tracing::debug!(%key, "an upload in parts stays behind: {error}");
            }
        });
    }

    /// Writes an object that must still have this ETag, in the form that goes into `If-Match`.
    async fn write_over(&self, key: &str, data: Bytes, tag: &str) -> Result<Version, Error> {
        let expected = UpdateVersion { e_tag: Some(tag.to_owned()), version: None };
        self.write(key, data, PutMode::Update(expected)).await
    }

    async fn read(&self, key: &str) -> Result<(Bytes, Version), Error> {
        let path = self.path(key)?;
        let (data, version) = self
            .fetch(path, GetOptions::default())
            .await
            .map_err(|error| errors::translate(key, errors::Call::Other, &error))?;
        let version = version.ok_or_else(|| {
            Error::Refused("the store gives no ETags: it cannot be used".to_owned())
        })?;
        Ok((data, Version(version)))
    }

    async fn page(&self, prefix: &str, after: Option<&str>) -> Result<Vec<Listed>, Error> {
        key::check_prefix(prefix)?;
        let below = format!("{}{prefix}", self.prefix);
        let offset = after.map(|after| format!("{}{after}", self.prefix));
        let mut token: Option<String> = None;
        for _ in 0..LIST_EMPTY_PAGES_MAX {
            let (below, start, page_token) = (below.clone(), offset.clone(), token.clone());
            let list = move |client: Arc<AmazonS3>| async move {
                let options = PaginatedListOptions {
                    offset: start,
                    page_token,
                    max_keys: Some(LIST_OBJECTS_MAX),
                    ..Default::default()
                };
                client
                    .list_paginated(
                        Some(&below).filter(|below| !below.is_empty()).map(String::as_str),
                        options,
                    )
                    .await
            };
            let page = self
                .run(list)
                .await
                .map_err(|error| errors::translate(prefix, errors::Call::Other, &error))?;
            let mut objects = page.result.objects;
            objects.sort_by(|a, b| a.location.as_ref().cmp(b.location.as_ref()));
            let ours = |location: &str| {
                // The empty objects that consoles make for folders have no key of ours.
                let key = location.strip_prefix(&self.prefix)?;
                let asked = key.starts_with(prefix) && after.is_none_or(|after| key > after);
                (asked && !key::is_marker(key)).then(|| key.to_owned())
            };
            let listed: Vec<_> = objects
                .iter()
                .filter_map(|object| {
                    let tag = object.e_tag.as_ref().map(|tag| Tag::of(tag.as_bytes()));
                    Some(Listed { key: ours(object.location.as_ref())?, length: object.size, tag })
                })
                .collect();
            // A page without any key of ours is not the end, nor is an empty page: the end is a
            // page without a token.
            if !listed.is_empty() || page.page_token.is_none() {
                return Ok(listed);
            }
            if token == page.page_token {
                break;
            }
            token = page.page_token;
        }
        Err(Error::Unavailable(format!(
            "the listing of {prefix} leads on and on, and gives no keys"
        )))
    }
}

/// Makes the error of a server that does not answer, or stops in the middle of an answer.
fn silent(limit: Duration) -> object_store::Error {
    let text = format!("it has not answered, and no byte has moved, for {} s", limit.as_secs());
    object_store::Error::Generic { store: "S3", source: text.into() }
}

fn client(place: &S3Settings, way: Way) -> object_store::Result<AmazonS3> {
    let mut builder = AmazonS3Builder::from_env().with_bucket_name(&place.bucket);
    if let Some(endpoint) = &place.endpoint {
        builder = builder.with_endpoint(endpoint);
    }
    if let Some(region) = &place.region {
        builder = builder.with_region(region);
    }
    if let Some((access, secret)) = &place.credentials {
        builder = builder.with_access_key_id(access).with_secret_access_key(secret);
    }
    let endpoint = builder
        .get_config_value(&AmazonS3ConfigKey::S3Endpoint)
        .or_else(|| builder.get_config_value(&AmazonS3ConfigKey::Endpoint));
    let plain = endpoint.is_some_and(|endpoint| endpoint.starts_with("http://"));
    let options = ClientOptions::new().with_allow_http(plain);
    let retries = RetryConfig { max_retries: 0, ..RetryConfig::default() };
    builder.with_client_options(options).with_http_connector(way).with_retry(retries).build()
}

impl Datastore for S3 {
    fn put<'a>(&'a self, key: &'a str, data: Bytes) -> BoxFuture<'a, Result<(), Error>> {
        Box::pin(async move {
            if let Some(begun) = self.parts.begun(key, &data, self.env.now()) {
                return self.write_parts(key, &data, begun).await;
            }
            let progress = Progress::default();
            let put = self.write_counted(key, data.clone(), PutMode::Overwrite, &progress).await;
            if let Err(Error::Unavailable(_)) = &put
                && let Some(begun) = self.parts.broken(&data, progress.taken(), self.env.now())
            {
                self.keep(key, begun);
            }
            put.map(drop)
        })
    }

    fn create<'a>(&'a self, key: &'a str, data: Bytes) -> BoxFuture<'a, Result<Version, Error>> {
        Box::pin(self.write(key, data, PutMode::Create))
    }

    fn replace<'a>(
        &'a self,
        key: &'a str,
        data: Bytes,
        version: &'a Version,
    ) -> BoxFuture<'a, Result<Version, Error>> {
        Box::pin(async move {
            if self.bare_tags.get() != Some(&true) {
                let wrote = self.write_over(key, data.clone(), &version.0).await;
                if wrote.is_ok() {
                    let _ = self.bare_tags.set(false);
                }
                // Ceph compares what the header says with the ETag, quotes and all, and so refuses
                // a condition that holds. A server that takes quotes never gets an ETag without
                // them: it might ignore the header.
                let open = self.bare_tags.get().is_none();
                let refused = open && matches!(wrote, Err(Error::Conflict(_)));
                if !refused || !self.read(key).await.is_ok_and(|(_, now)| now == *version) {
                    return wrote;
                }
            }
            let wrote = self.write_over(key, data, version.0.trim_matches('"')).await;
            if wrote.is_ok() {
                let _ = self.bare_tags.set(true);
            }
            wrote
        })
    }

    fn get<'a>(&'a self, key: &'a str) -> BoxFuture<'a, Result<(Bytes, Version), Error>> {
        Box::pin(self.read(key))
    }

    fn get_range<'a>(
        &'a self,
        key: &'a str,
        range: Range<u64>,
    ) -> BoxFuture<'a, Result<Bytes, Error>> {
        Box::pin(async move {
            if !key::check_range(&range)? {
                return Ok(Bytes::new());
            }
            let path = self.path(key)?;
            let (from, to) = (range.start, range.end);
            let options = GetOptions { range: Some((from..to).into()), ..GetOptions::default() };
            match self.fetch(path, options).await.map(|(data, _)| data) {
                Err(error) if errors::beyond_the_end(&error) => Ok(Bytes::new()),
                Err(error) if errors::gave_the_whole(&error) => {
                    let (data, _) = self.read(key).await?;
                    let clip = |at: u64| usize::try_from(at).unwrap_or(usize::MAX).min(data.len());
                    // A copy: the object may be much larger than the range.
                    Ok(Bytes::copy_from_slice(&data[clip(from)..clip(to)]))
                }
                read => read.map_err(|error| errors::translate(key, errors::Call::Other, &error)),
            }
        })
    }

    fn list<'a>(
        &'a self,
        prefix: &'a str,
        after: Option<&'a str>,
    ) -> BoxFuture<'a, Result<Vec<Listed>, Error>> {
        Box::pin(self.page(prefix, after))
    }

    fn delete<'a>(&'a self, key: &'a str) -> BoxFuture<'a, Result<(), Error>> {
        Box::pin(async move {
            let path = self.path(key)?;
            match self.run(move |client| async move { client.delete(&path).await }).await {
                Ok(()) => Ok(()),
                Err(error) => match errors::translate(key, errors::Call::Other, &error) {
                    Error::NotFound(_) => Ok(()),
                    other => Err(other),
                },
            }
        })
    }

    fn may_be_covered(&self) -> bool {
        false
    }

    fn describe(&self) -> String {
        format!("s3://{}/{}", self.bucket, self.prefix.trim_end_matches('/'))
    }
}
