//! Talks to a daemon: HTTP over the Unix socket in its folder.

use crate::nearest::nearest;
use crate::running;
use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::upgrade::Upgraded;
use hyper::{HeaderMap, Method, Request, StatusCode};
use hyper_util::rt::TokioIo;
use rekindle_base::Kind;
use rekindle_env::Address;
use rekindle_env::real::folder::Folder;
use rekindle_front::conn::Pipe;
use rekindle_front::uri::escape;
use rekindle_supervise::endpoints;
use rekindle_supervise::signals::StopSignals;
use rekindle_supervise::sockets::HTTP_SOCKET;
use rekindle_terminal::failure::{Failure, Outcome};
use rekindle_terminal::output::{self, quoted};
use serde::de::DeserializeOwned;
use serde_json::Value;
use std::cell::{Cell, RefCell};
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::time::Duration;
use tokio::net::{TcpStream, UnixStream};

/// Time without an answer after which the user is told that the command waits.
const SLOW: Duration = Duration::from_secs(5);

/// Waits for an answer, and tells the user when that takes long.
#[expect(clippy::disallowed_methods, reason = "the command line has no Env")]
pub async fn told_if_slow<T>(exchange: impl Future<Output = T>) -> T {
    let mut exchange = pin!(exchange);
    tokio::select! {
        biased;
        answer = &mut exchange => return answer,
        () = tokio::time::sleep(SLOW) => {}
    }
    output::tell("rekindle: no answer yet: the daemon may wait for its store");
    exchange.await
}

/// A daemon, by its folder.
pub struct Client {
    dir: PathBuf,
    runtime: tokio::runtime::Runtime,
    /// Set by [`Client::interrupts`]; until then signals end the process.
    signals: RefCell<Option<StopSignals>>,
    interrupted: Cell<bool>,
}

impl Client {
    /// Makes a client of the daemon that serves from `dir`. Does not connect yet.
    pub fn new(dir: PathBuf) -> Outcome<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        Ok(Self { dir, runtime, signals: RefCell::default(), interrupted: Cell::default() })
    }

    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// `GET`.
    pub fn get<T: DeserializeOwned>(&self, path: &str) -> Outcome<T> {
        self.call(Method::GET, path, None)
    }

    /// `POST`.
    pub fn post<T: DeserializeOwned>(&self, path: &str, body: &Value) -> Outcome<T> {
        self.call(Method::POST, path, Some(body))
    }

    /// `DELETE`.
    pub fn delete<T: DeserializeOwned>(&self, path: &str) -> Outcome<T> {
        self.call(Method::DELETE, path, None)
    }

    /// Whether a process holds the daemon's socket or its folder. Files say nothing: a killed
    /// daemon leaves them behind.
    pub fn is_there(&self) -> bool {
        let connect = async { UnixStream::connect(self.dir.join(HTTP_SOCKET)).await.is_ok() };
        self.runtime.block_on(connect) || endpoints::is_held(&self.dir)
    }

    /// Catches Ctrl-C and SIGTERM from now on: they do not end the process, and the result tells of
    /// them.
    pub fn interrupts(&self) -> Outcome<Interrupts<'_>> {
        let _inside = self.runtime.enter();
        self.signals.replace(Some(StopSignals::new()?));
        Ok(Interrupts { client: self })
    }

    fn call<T: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        body: Option<&Value>,
    ) -> Outcome<T> {
        let given = body;
        let (status, bytes) = self.until_interrupted(self.exchange(method, path, body))?;
        let value: Value = if bytes.is_empty() {
            Value::Null
        } else {
            serde_json::from_slice(&bytes).map_err(|error| self.strange(&error.to_string()))?
        };
        if !status.is_success() {
            let failure = refused(status, &value);
            return Err(self.with_hint(failure, path, given));
        }
        serde_json::from_value(value).map_err(|error| self.strange(&error.to_string()))
    }

    /// Waits for an answer or a signal: a daemon that does not answer must not keep the user from
    /// ending the command, nor in the dark.
    fn until_interrupted<T>(&self, exchange: impl Future<Output = Outcome<T>>) -> Outcome<T> {
        let Some(mut signals) = self.signals.take() else {
            return self.runtime.block_on(exchange);
        };
        let answer = self.runtime.block_on(async {
            tokio::select! {
                biased;
                answer = told_if_slow(exchange) => answer,
                _ = signals.next() => {
                    self.interrupted.set(true);
                    Err(Failure::new("broken off before the daemon had answered")
                        .kind(Kind::Unavailable))
                }
            }
        });
        self.signals.replace(Some(signals));
        answer
    }

    /// Adds the nearest existing name to a failure about an unknown volume: the name may be a slip.
    fn with_hint(&self, failure: Failure, path: &str, body: Option<&Value>) -> Failure {
        if failure.kind != Kind::NotFound.to_string() || failure.next.is_some() {
            return failure;
        }
        let in_path = path
            .strip_prefix("/api/v1/volumes/")
            .map(|rest| unescape(rest.split(['/', '?']).next().unwrap_or(rest)));
        let in_body = || body?.get("volume")?.as_str().map(str::to_owned);
        let Some(name) = in_path.or_else(in_body) else { return failure };
        let names = self.volume_names();
        if names.contains(&name) {
            // The volume exists; something else was not found.
            return failure;
        }
        let known: Vec<&str> = names.iter().map(String::as_str).collect();
        match nearest(&name, &known) {
            Some(near) => failure.next(format!("did you mean '{near}'?")),
            None => failure.next("`rekindle volume ls` shows which there are"),
        }
    }

    /// Returns the names of the volumes; none when the daemon does not answer.
    pub fn volume_names(&self) -> Vec<String> {
        let asked = self.exchange(Method::GET, "/api/v1/volumes", None);
        let answer = self.runtime.block_on(asked).ok();
        let volumes: Vec<Value> =
            answer.and_then(|(_, bytes)| serde_json::from_slice(&bytes).ok()).unwrap_or_default();
        volumes.iter().filter_map(|volume| volume["name"].as_str()).map(str::to_owned).collect()
    }

    /// Whether the daemon has something at a path.
    pub async fn has(&self, path: &str) -> bool {
        let answer = self.exchange(Method::GET, path, None).await;
        answer.is_ok_and(|(status, _)| status.is_success())
    }

    async fn exchange(
        &self,
        method: Method,
        path: &str,
        body: Option<&Value>,
    ) -> Outcome<(StatusCode, Bytes)> {
        let body = body.map(Value::to_string).unwrap_or_default();
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header("host", "localhost")
            .header("content-type", "application/json")
            .body(Full::new(Bytes::from(body)))
            .map_err(|error| Failure::new("the request cannot be built").because(error))?;
        self.send(self.connect().await?, request).await
    }

    /// Asks the daemon to go on with another protocol, and returns the connection with the headers
    /// of the answer. Runs in the caller's runtime.
    pub async fn upgrade(
        &self,
        path: &str,
        protocol: &str,
        more: Option<(&str, &str)>,
    ) -> Outcome<(TokioIo<Upgraded>, HeaderMap)> {
        let request = Request::builder().uri(path).header("host", "localhost");
        let request =
            more.into_iter().fold(request, |request, (name, value)| request.header(name, value));
        let request = request
            .header("connection", "upgrade")
            .header("upgrade", protocol)
            .body(Full::new(Bytes::new()))
            .map_err(|error| Failure::new("the request cannot be built").because(error))?;
        let stream = TokioIo::new(self.connect().await?);
        let (mut sender, connection) =
            hyper::client::conn::http1::handshake(stream).await.map_err(broken)?;
        let exchange = async move {
            let response = sender.send_request(request).await?;
            let status = response.status();
            if status == StatusCode::SWITCHING_PROTOCOLS {
                let headers = response.headers().clone();
                return Ok(Ok((hyper::upgrade::on(response).await?, headers)));
            }
            Ok(Err((status, response.into_body().collect().await?.to_bytes())))
        };
        let (answer, _) = tokio::join!(exchange, connection.with_upgrades());
        match answer.map_err(broken)? {
            Ok((upgraded, headers)) => Ok((TokioIo::new(upgraded), headers)),
            Err((status, bytes)) => {
                Err(refused(status, &serde_json::from_slice(&bytes).unwrap_or_default()))
            }
        }
    }

    async fn connect(&self) -> Outcome<Box<dyn Pipe>> {
        let socket = self.dir.join(HTTP_SOCKET);
        let error = match UnixStream::connect(&socket).await {
            Ok(stream) => {
                self.check(&stream, &socket)?;
                return Ok(Box::new(stream));
            }
            Err(error) => error,
        };
        // A folder whose path is too long has no socket: the endpoints file says where the daemon
        // listens.
        let elsewhere = endpoints::read(&self.dir).map(|found| found.http_places());
        for place in elsewhere.unwrap_or_default() {
            match place {
                Address::Tcp(place) => {
                    if let Ok(stream) = TcpStream::connect(place).await {
                        return Ok(Box::new(stream));
                    }
                }
                Address::Unix(path) if path != socket => {
                    if let Ok(stream) = UnixStream::connect(path).await {
                        return Ok(Box::new(stream));
                    }
                }
                Address::Unix(_) => {}
            }
        }
        Err(self.unreachable(&error))
    }

    /// Refuses a listener other than the folder's owner, root or this user: another user may have
    /// put a socket there.
    fn check(&self, stream: &UnixStream, socket: &Path) -> Outcome {
        let listener = stream.peer_cred()?.uid();
        let owner = Folder::open(&self.dir)?.owner();
        let user = rustix::process::geteuid().as_raw();
        if [owner, user, 0].contains(&listener) {
            return Ok(());
        }
        Err(Failure::new(format!(
            "user {listener} listens at {}, in a folder of user {owner}",
            socket.display()
        ))
        .next("remove that socket, and start the daemon in a folder that no other user may write")
        .kind(Kind::Conflict))
    }

    async fn send(
        &self,
        stream: impl Pipe + 'static,
        request: Request<Full<Bytes>>,
    ) -> Outcome<(StatusCode, Bytes)> {
        let (mut sender, connection) =
            hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.map_err(broken)?;
        let exchange = async move {
            let response = sender.send_request(request).await?;
            let status = response.status();
            Ok((status, response.into_body().collect().await?.to_bytes()))
        };
        // The connection ends when the exchange lets go of its sender.
        let (answer, _) = tokio::join!(exchange, connection);
        answer.map_err(broken)
    }

    fn unreachable(&self, error: &std::io::Error) -> Failure {
        let dir = self.dir.display();
        if error.kind() == std::io::ErrorKind::PermissionDenied {
            return Failure::new(format!("the daemon in {dir} does not let you in"))
                .because(error)
                .next("run the command as the user who runs the daemon, or as root; `rekindle up --http-socket-group GROUP` lets a group in")
                .kind(Kind::Refused);
        }
        let others = running::folders();
        let next = if others.is_empty() {
            format!(
                "start it with `rekindle up --dir {}`, or name another folder with --dir",
                quoted(&self.dir)
            )
        } else {
            let others: Vec<_> =
                others.iter().map(|dir| format!("--dir {}", quoted(dir))).collect();
            format!(
                "these run: {}; or start it with `rekindle up --dir {}`",
                others.join(", "),
                quoted(&self.dir)
            )
        };
        Failure::new(format!("no daemon answers in {dir}"))
            .because(error)
            .next(next)
            .kind(Kind::Unavailable)
    }

    fn strange(&self, cause: &str) -> Failure {
        Failure::new(format!(
            "the daemon in {} gave an answer that is not understood",
            self.dir.display()
        ))
        .because(cause)
        .next("is the daemon of another version? Stop it and start this one")
        .kind(Kind::Unsupported)
    }
}

fn broken(error: hyper::Error) -> Failure {
    Failure::new("the daemon hung up in the middle of the request")
        .because(error)
        .next("try again: it is restarted at once when it dies")
        .kind(Kind::Unavailable)
}

/// Signals that ask a command to end.
pub struct Interrupts<'a> {
    client: &'a Client,
}

impl Interrupts<'_> {
    /// Whether a signal has come since the last call.
    #[expect(clippy::disallowed_methods, reason = "the command line has no Env")]
    pub fn interrupted(&mut self) -> bool {
        let once_around = async {
            // A pass of the runtime, so that a signal that has come is seen.
            tokio::time::sleep(std::time::Duration::from_millis(1)).await;
            Ok(())
        };
        let _ = self.client.until_interrupted(once_around);
        self.client.interrupted.take()
    }

    #[expect(clippy::disallowed_methods, reason = "the command line has no Env")]
    pub fn pause(&mut self, time: std::time::Duration) {
        std::thread::sleep(time);
    }
}

/// Converts the error object of the API: a kind, and a message that says what to do.
fn refused(status: StatusCode, value: &Value) -> Failure {
    let text = |name: &str| value.get(name).and_then(Value::as_str).map(str::to_owned);
    let message = text("message").unwrap_or_else(|| format!("the daemon answered {status}"));
    let mut failure = Failure::new(message);
    failure.kind = text("error").unwrap_or(failure.kind);
    match text("host") {
        Some(host) => {
            let words = std::env::args_os().map(|word| word.to_string_lossy().into_owned());
            failure.next(format!("at host {host}: {}", elsewhere(words)))
        }
        None => failure,
    }
}

/// Returns the words of this command for another host, whose daemon's folder is not this one.
fn elsewhere(words: impl Iterator<Item = String>) -> String {
    let mut told = vec!["rekindle".to_owned()];
    let mut words = words.skip(1);
    while let Some(word) = words.next() {
        match word.as_str() {
            "--dir" => drop(words.next()),
            word if word.starts_with("--dir=") => {}
            word => told.push(quoted(word)),
        }
    }
    told.join(" ")
}

/// Returns the path of a volume in the API, or of a part of it.
pub fn volume_path(name: &str, rest: &str) -> String {
    format!("/api/v1/volumes/{}{rest}", escape(name))
}

/// Reverses [`escape`].
fn unescape(text: &str) -> String {
    let mut bytes = Vec::new();
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        let hex = |digit: Option<u8>| char::from(digit?).to_digit(16);
        if byte == b'%'
            && let (Some(high), Some(low)) = (hex(rest.next()), hex(rest.next()))
        {
            bytes.push(u8::try_from(high * 16 + low).unwrap_or(b'?'));
        } else {
            bytes.push(byte);
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_escaped_in_paths() {
        assert_eq!(escape("vm1"), "vm1");
        assert_eq!(escape("Mail store/ü"), "Mail%20store%2F%C3%BC");
        assert_eq!(unescape("Mail%20store%2F%C3%BC"), "Mail store/ü");
    }

    #[test]
    fn a_command_for_another_host_goes_without_the_folder_of_this_one() {
        let told = |words: &[&str]| elsewhere(words.iter().map(|word| (*word).to_owned()));
        let said = "rekindle volume move 'vm two' three";
        let words = ["/usr/bin/rekindle", "volume", "move", "vm two", "three"];
        assert_eq!(told(&words), said);
        assert_eq!(told(&[&words[..], &["--dir", "/srv/one"]].concat()), said);
        assert_eq!(told(&[&words[..1], &["--dir=/srv/one"], &words[1..]].concat()), said);
    }

    #[test]
    fn errors_of_the_api_keep_their_words() {
        let value = serde_json::json!({"error": "exists", "message": "there is one: rm it", "retryable": false});
        let failure = refused(StatusCode::CONFLICT, &value);
        assert_eq!(
            (failure.error.as_str(), failure.kind.as_str()),
            ("there is one: rm it", "exists")
        );
        let there =
            refused(StatusCode::CONFLICT, &serde_json::json!({"message": "no", "host": "two"}));
        assert!(there.next.expect("advice").starts_with("at host two: rekindle"));
        let bare = refused(StatusCode::BAD_GATEWAY, &Value::Null);
        assert!(bare.error.contains("502"));
    }
}
