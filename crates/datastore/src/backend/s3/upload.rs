//! The progress of an upload: the bytes that its connection has taken, and those that the kernel
//! still holds.
//!
//! `object_store` tells nothing between the begin of a request and its answer. So a client of our
//! own sends its requests; it is the same that `object_store` would make, but hands bodies out in
//! small pieces and counts them. Behind the client the kernel buffers some mebibytes, which take
//! long on a narrow connection. Their number is read from `/proc`.

use crate::limits::{CONNECT_TIME_MAX, UPLOAD_LOOKS, UPLOAD_PIECE_BYTES, UPLOAD_TAIL_MAX};
use bytes::Bytes;
use futures_util::StreamExt;
use http_body_util::BodyExt;
use object_store::ClientOptions;
use object_store::client::{
    ClientConfigKey, HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest,
    HttpRequestBody, HttpResponse, HttpResponseBody, HttpService,
};
use parking_lot::Mutex;
use rekindle_env::{BoxFuture, Env};
use std::collections::{BTreeSet, HashSet};
use std::future::Future;
use std::path::Path;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Most ports of servers that are remembered: of the store, of a proxy, of a service that gives
/// credentials.
const PORTS_MAX: usize = 8;

/// Bytes of one upload that its connection has taken.
#[derive(Debug, Clone, Default)]
pub(super) struct Progress(Arc<AtomicU64>);

impl Progress {
    pub(super) fn taken(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// The connector to the store, which knows its ports. Clones share them.
#[derive(Debug, Clone, Default)]
pub(super) struct Way {
    /// Ports that requests went to.
    ports: Arc<Mutex<BTreeSet<u16>>>,
    /// The progress of all requests that bring none of their own.
    pub(super) others: Progress,
}

#[derive(Debug)]
struct Client {
    client: reqwest::Client,
    way: Way,
}

impl Way {
    /// Waits for an upload for as long as its bytes move; `None` when none has moved for
    /// `patience`.
    pub(super) async fn while_it_moves<T>(
        &self,
        env: &Env,
        patience: Duration,
        progress: &Progress,
        upload: impl Future<Output = T> + Send,
    ) -> Option<T> {
        let mut upload = pin!(upload);
        let (mut taken, mut queued) = (0, 0);
        let (mut own, mut any) = (env.now(), env.now());
        loop {
            if let Ok(done) = env.timeout(patience / UPLOAD_LOOKS, &mut upload).await {
                return Some(done);
            }
            let now = env.now();
            let (taken_now, queued_now) = (progress.taken(), self.queued());
            if taken_now != taken {
                own = now;
            }
            if (taken_now, queued_now) != (taken, queued) {
                any = now;
            }
            (taken, queued) = (taken_now, queued_now);
            if now.since(any) >= patience || now.since(own) >= UPLOAD_TAIL_MAX.max(patience) {
                return None;
            }
        }
    }

    fn note(&self, port: Option<u16>) {
        let mut ports = self.ports.lock();
        if ports.len() < PORTS_MAX {
            ports.extend(port);
        }
    }

    /// Returns the bytes of our connections that the kernel holds and the other ends have not
    /// confirmed.
    fn queued(&self) -> u64 {
        let ports = self.ports.lock().clone();
        let ours = own_sockets();
        let tables = ["/proc/self/net/tcp", "/proc/self/net/tcp6"];
        let tables = tables.iter().filter_map(|table| std::fs::read_to_string(table).ok());
        tables.map(|table| queued_in(&table, &ports, &ours)).sum()
    }
}

/// Returns the inode numbers of this process' sockets.
fn own_sockets() -> HashSet<u64> {
    let entries = std::fs::read_dir("/proc/self/fd").into_iter().flatten().flatten();
    let targets = entries.filter_map(|entry| std::fs::read_link(entry.path()).ok());
    targets.filter_map(|target| socket_of(&target)).collect()
}

fn socket_of(target: &Path) -> Option<u64> {
    target.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?.parse().ok()
}

/// Sums the queued bytes in a socket table of `/proc`. A line of it, with numbers in hexadecimal:
/// `sl local:port remote:port state tx:rx timer retransmits uid timeout inode ...`.
fn queued_in(table: &str, ports: &BTreeSet<u16>, ours: &HashSet<u64>) -> u64 {
    let queued = |line: &str| {
        let mut words = line.split_whitespace().skip(2);
        let port = u16::from_str_radix(words.next()?.rsplit_once(':')?.1, 16).ok()?;
        let bytes = u64::from_str_radix(words.nth(1)?.split_once(':')?.0, 16).ok()?;
        let socket = words.nth(4)?.parse().ok()?;
        (ports.contains(&port) && ours.contains(&socket)).then_some(bytes)
    };
    table.lines().skip(1).filter_map(queued).sum()
}

impl HttpConnector for Way {
    fn connect(&self, options: &ClientOptions) -> object_store::Result<HttpClient> {
        // The process may have a provider already: then that one serves.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let plain = options.get_config_value(&ClientConfigKey::AllowHttp);
        let builder = reqwest::Client::builder()
            .user_agent(concat!("rekindle/", env!("CARGO_PKG_VERSION")))
            .connect_timeout(CONNECT_TIME_MAX)
            // With a timeout the kernel hangs up on a server whose window stays closed for half a
            // minute.
            .tcp_user_timeout(None)
            .http1_only()
            .https_only(plain.as_deref() != Some("true"));
        let client = builder
            .build()
            .map_err(|error| object_store::Error::Generic { store: "S3", source: error.into() })?;
        Ok(HttpClient::new(Client { client, way: self.clone() }))
    }
}

impl HttpService for Client {
    fn call<'life, 'call>(
        &'life self,
        request: HttpRequest,
    ) -> BoxFuture<'call, Result<HttpResponse, HttpError>>
    where
        'life: 'call,
        Self: 'call,
    {
        Box::pin(self.send(request))
    }
}

impl Client {
    async fn send(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        let (parts, body) = request.into_parts();
        self.way.note(parts.uri.port_u16().or(match parts.uri.scheme_str() {
            Some("https") => Some(443),
            _ => Some(80),
        }));
        let url = parts.uri.to_string().parse::<reqwest::Url>();
        let url = url.map_err(|error| HttpError::new(HttpErrorKind::Unknown, error))?;
        let mut asked = reqwest::Request::new(parts.method, url);
        *asked.headers_mut() = parts.headers;
        *asked.body_mut() = Some(match (body.as_bytes(), parts.extensions.get::<Progress>()) {
            (Some(bytes), _) => bytes.clone().into(),
            (None, progress) => counted(body, progress.unwrap_or(&self.way.others).clone()),
        });
        let answer = self.client.execute(asked).await.map_err(failed)?;
        self.way.note(answer.remote_addr().map(|address| address.port()));
        let (parts, body) = http::Response::<reqwest::Body>::from(answer).into_parts();
        Ok(HttpResponse::from_parts(parts, HttpResponseBody::new(body.map_err(failed))))
    }
}

/// Cuts a body into pieces; each is counted when the connection takes it.
fn counted(body: HttpRequestBody, progress: Progress) -> reqwest::Body {
    let pieces = body.into_data_stream().flat_map(move |part| {
        let progress = progress.clone();
        let pieces: Vec<Result<Bytes, HttpError>> = match part {
            Ok(mut part) => {
                let count = part.len().div_ceil(UPLOAD_PIECE_BYTES);
                let pieces =
                    (0..count).map(|_| Ok(part.split_to(part.len().min(UPLOAD_PIECE_BYTES))));
                pieces.collect()
            }
            Err(error) => vec![Err(error)],
        };
        futures_util::stream::iter(pieces).inspect(move |piece| {
            let bytes = piece.as_ref().map_or(0, Bytes::len) as u64;
            progress.0.fetch_add(bytes, Ordering::Relaxed);
        })
    });
    reqwest::Body::wrap_stream(pieces)
}

/// Translates an error as `object_store` does. Nothing depends on the kind: only our layer retries.
fn failed(error: reqwest::Error) -> HttpError {
    let kind = match () {
        () if error.is_timeout() => HttpErrorKind::Timeout,
        () if error.is_connect() => HttpErrorKind::Connect,
        () => HttpErrorKind::Unknown,
    };
    HttpError::new(kind, error.without_url())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_waits_in_the_kernel_is_that_of_our_own_connections_to_the_store() {
        let table = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n\
            0: 0100007F:1B9E 00000000:0000 0A 00000000:00000000 00:00000000 00000000  0 0 10 1 0 100 0 0 10 0\n\
            1: 0100007F:D431 0100007F:1B9E 01 00010000:00000000 00:00000000 00000000  0 0 11 1 0 100 0 0 10 0\n\
            2: 0100007F:D432 0100007F:1B9E 01 00000800:00000000 00:00000000 00000000  0 0 12 1 0 100 0 0 10 0\n\
            3: 0100007F:D433 0100007F:01BB 01 00000001:00000000 00:00000000 00000000  0 0 13 1 0 100 0 0 10 0\n";
        let queued = |ports: &[u16], ours: &[u64]| {
            queued_in(table, &ports.iter().copied().collect(), &ours.iter().copied().collect())
        };
        assert_eq!(queued(&[7070], &[10, 11, 12, 13]), 65536 + 2048);
        assert_eq!(queued(&[7070], &[11]), 65536, "12 is another process");
        assert_eq!(queued(&[443, 7070], &[12, 13]), 2049);
        assert_eq!(queued(&[], &[11]), 0);
        assert_eq!(socket_of(Path::new("socket:[4711]")), Some(4711));
        assert_eq!(socket_of(Path::new("/dev/null")), None);
    }
}
