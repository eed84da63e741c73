//! The handshake: options and replies, until the client has chosen an export or left.

use super::buffers::{Input, Output};
use super::limits;
use super::meters::VolumeMeters;
use super::replies::Modes;
use super::target::{ExportError, Exports, Target};
use super::wire::{self, Garbage, info, option, reply, transmission};
use rekindle_base::Kind;
use rekindle_env::{Env, Stream};
use std::future::{Future, poll_fn};
use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;

/// A client's stream with its buffers; the handshake hands it on to the session.
pub(super) struct Link {
    pub(super) stream: Box<dyn Stream>,
    pub(super) input: Input,
    pub(super) output: Output,
}

/// The reason for hanging up on an old client.
const BAD_NAME: &str = "the export's name is too long, or not UTF-8";

/// The result of a handshake after which the client stays.
pub(super) struct Agreed<D> {
    pub(super) name: String,
    pub(super) device: D,
    pub(super) modes: Modes,
    pub(super) meters: Arc<VolumeMeters>,
}

/// The reason why a handshake failed.
#[derive(Debug, thiserror::Error)]
pub(super) enum Failure {
    #[error(transparent)]
    Garbage(#[from] Garbage),
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error("no option within {} s", limits::HANDSHAKE_TIME_MAX.as_secs())]
    TooSlow,
    #[error("more than {} options", limits::OPTIONS_MAX)]
    TooMany,
    /// An old client, which takes no explanation.
    #[error("{0}")]
    Refused(String),
}

impl Failure {
    /// Whether the failure is worth a warning in the log.
    pub(super) fn is_notable(&self) -> bool {
        !matches!(self, Failure::Io(_))
    }
}

impl Link {
    pub(super) fn new(stream: Box<dyn Stream>) -> Self {
        Self { stream, input: Input::new(), output: Output::new() }
    }

    /// Waits until `decode` returns a value of the unread bytes; it needs at most `bytes` of them.
    async fn receive<T>(
        &mut self,
        env: &Env,
        bytes: usize,
        decode: impl Fn(&[u8]) -> Result<Option<T>, Garbage>,
    ) -> Result<T, Failure> {
        let waiting = async {
            loop {
                if let Some(value) = decode(self.input.unread())? {
                    return Ok(value);
                }
                self.input.want(bytes);
                if poll_fn(|context| self.input.poll_fill(context, &mut *self.stream)).await? == 0 {
                    return Err(Failure::Io(io::ErrorKind::UnexpectedEof.into()));
                }
            }
        };
        env.timeout(limits::HANDSHAKE_TIME_MAX, waiting).await.unwrap_or(Err(Failure::TooSlow))
    }

    /// Does `work` for a client, unless the client hangs up meanwhile. A client that has sent more
    /// than was answered may have closed only its own side, and is served.
    async fn meanwhile<T>(&mut self, work: impl Future<Output = T>) -> Result<T, Failure> {
        let mut work = pin!(work);
        let mut is_closed = false;
        poll_fn(|context| {
            if let Poll::Ready(value) = work.as_mut().poll(context) {
                return Poll::Ready(Ok(value));
            }
            while !is_closed && !self.input.is_full() {
                match self.input.poll_fill(context, &mut *self.stream) {
                    Poll::Pending => break,
                    Poll::Ready(Ok(0)) if self.input.unread().is_empty() => {
                        return Poll::Ready(Err(
                            io::Error::from(io::ErrorKind::UnexpectedEof).into()
                        ));
                    }
                    Poll::Ready(Ok(0)) => is_closed = true,
                    Poll::Ready(Ok(_)) => {}
                    Poll::Ready(Err(error)) => return Poll::Ready(Err(error.into())),
                }
            }
            Poll::Pending
        })
        .await
    }

    /// Sends all replies.
    async fn send(&mut self, env: &Env) -> Result<(), Failure> {
        let sending = poll_fn(|context| match self.output.poll_send(context, &mut *self.stream) {
            Err(error) => std::task::Poll::Ready(Err(Failure::Io(error))),
            Ok(_) if self.output.is_empty() => std::task::Poll::Ready(Ok(())),
            Ok(_) => std::task::Poll::Pending,
        });
        env.timeout(limits::HANDSHAKE_TIME_MAX, sending).await.unwrap_or(Err(Failure::TooSlow))
    }

    fn reply(&mut self, option: u32, kind: u32, parts: &[&[u8]]) {
        let length: usize = parts.iter().map(|part| part.len()).sum();
        self.output.put(&wire::option_reply(
            option,
            kind,
            u32::try_from(length).unwrap_or(u32::MAX),
        ));
        parts.iter().for_each(|part| self.output.put(part));
    }

    fn refuse(&mut self, option: u32, kind: u32, message: &str) {
        self.reply(option, kind, &[wire::clip(message, limits::MESSAGE_BYTES_MAX).as_bytes()]);
    }
}

/// Negotiates; `None` when the client ends the handshake.
pub(super) async fn negotiate<E: Exports>(
    env: &Env,
    link: &mut Link,
    exports: &E,
) -> Result<Option<Agreed<E::Device>>, Failure> {
    link.output.put(&wire::GREETING_MAGIC.to_be_bytes());
    link.output.put(&wire::OPTION_MAGIC.to_be_bytes());
    link.output.put(&wire::HANDSHAKE_FLAGS.to_be_bytes());
    link.send(env).await?;
    let flags = link.receive(env, wire::CLIENT_FLAGS_BYTES, wire::client_flags).await?;
    link.input.consume(wire::CLIENT_FLAGS_BYTES);

    let no_zeroes = flags & wire::CLIENT_NO_ZEROES != 0;
    let mut talk =
        Talk { env, link, exports, no_zeroes, structured: false, selected: None, held: None };
    for _ in 0..limits::OPTIONS_MAX {
        let header = talk.link.receive(env, wire::OPTION_BYTES, wire::option_header).await?;
        if header.length > limits::OPTION_BYTES_MAX {
            match header.option {
                // These options have no answer that says no.
                option::EXPORT_NAME => return Err(Failure::Refused(BAD_NAME.to_owned())),
                option::ABORT => return Ok(None),
                _ => {}
            }
            talk.link.input.consume(wire::OPTION_BYTES);
            talk.link.input.skip(u64::from(header.length));
            talk.link.refuse(header.option, reply::ERR_TOO_BIG, "too much data for an option");
            talk.link.send(env).await?;
            continue;
        }
        let total = wire::OPTION_BYTES + header.length as usize;
        let take = |bytes: &[u8]| Ok(bytes.get(wire::OPTION_BYTES..total).map(<[u8]>::to_vec));
        let data = talk.link.receive(env, total, take).await?;
        talk.link.input.consume(total);
        let next = talk.answer(header.option, &data).await?;
        talk.link.send(env).await?;
        match next {
            Next::Option => {}
            Next::Goodbye => return Ok(None),
            Next::Serve(agreed) => return Ok(Some(agreed)),
        }
    }
    Err(Failure::TooMany)
}

/// The next step after an option.
enum Next<D> {
    Option,
    Goodbye,
    Serve(Agreed<D>),
}

/// The state of a handshake.
struct Talk<'a, E: Exports> {
    env: &'a Env,
    link: &'a mut Link,
    exports: &'a E,
    no_zeroes: bool,
    structured: bool,
    /// The real name of the export for which `base:allocation` was last selected.
    selected: Option<String>,
    /// The export that was last attached: clients ask for one several times before they use it.
    held: Option<(String, E::Device)>,
}

impl<E: Exports> Talk<'_, E> {
    async fn answer(&mut self, number: u32, data: &[u8]) -> Result<Next<E::Device>, Failure> {
        match number {
            option::EXPORT_NAME => return self.export_name(data).await,
            option::INFO | option::GO => return self.info(number, data).await,
            option::LIST_META_CONTEXT | option::SET_META_CONTEXT => {
                self.meta_context(number, data).await?;
            }
            option::ABORT => {
                self.link.reply(number, reply::ACK, &[]);
                return Ok(Next::Goodbye);
            }
            option::LIST | option::STRUCTURED_REPLY | option::STARTTLS if !data.is_empty() => {
                self.link.refuse(number, reply::ERR_INVALID, "this option takes no data");
            }
            option::LIST => self.list(number).await?,
            option::STRUCTURED_REPLY => {
                self.structured = true;
                self.link.reply(number, reply::ACK, &[]);
            }
            option::STARTTLS => {
                let message = "no TLS here: connect through a Unix socket, loopback or a tunnel";
                self.link.refuse(number, reply::ERR_UNSUP, message);
            }
            _ => self.link.refuse(number, reply::ERR_UNSUP, "unknown option"),
        }
        Ok(Next::Option)
    }

    /// Answers the option of old clients, which can be refused only by hanging up.
    async fn export_name(&mut self, data: &[u8]) -> Result<Next<E::Device>, Failure> {
        let name = wire::export_name(data).ok_or_else(|| Failure::Refused(BAD_NAME.to_owned()))?;
        let (name, device) =
            self.attach(name).await?.map_err(|error| Failure::Refused(error.message))?;
        self.link.output.put(&device.size().to_be_bytes());
        self.link.output.put(&self.flags(&device).to_be_bytes());
        if !self.no_zeroes {
            self.link.output.put(&[0; 124]);
        }
        Ok(self.serve(name, device))
    }

    async fn info(&mut self, number: u32, data: &[u8]) -> Result<Next<E::Device>, Failure> {
        let Some(query) = wire::export_query(data) else {
            self.link.refuse(
                number,
                reply::ERR_INVALID,
                "malformed data, or a name that is too long or not UTF-8",
            );
            return Ok(Next::Option);
        };
        let (name, device) = match self.attach(query.name).await? {
            Ok(found) => found,
            Err(error) => {
                self.link.refuse(number, refusal(error.kind), &error.message);
                return Ok(Next::Option);
            }
        };
        let (size, flags) = (device.size().to_be_bytes(), self.flags(&device).to_be_bytes());
        self.link.reply(number, reply::INFO, &[&info::EXPORT.to_be_bytes(), &size, &flags]);
        if query.wants(info::NAME) {
            self.link.reply(number, reply::INFO, &[&info::NAME.to_be_bytes(), name.as_bytes()]);
        }
        if query.wants(info::DESCRIPTION) {
            let description = format!(
                "Rekindle block volume, {}",
                rekindle_base::units::format_size(device.size())
            );
            self.link.reply(
                number,
                reply::INFO,
                &[&info::DESCRIPTION.to_be_bytes(), description.as_bytes()],
            );
        }
        if query.wants(info::BLOCK_SIZE) {
            let preferred = device.block_size().max(limits::BLOCK_BYTES_PREFERRED_MIN);
            let preferred = u32::try_from(preferred).unwrap_or(limits::PAYLOAD_BYTES_MAX);
            let sizes = [limits::BLOCK_BYTES_MIN, preferred, limits::PAYLOAD_BYTES_MAX]
                .map(u32::to_be_bytes);
            self.link.reply(
                number,
                reply::INFO,
                &[&info::BLOCK_SIZE.to_be_bytes(), sizes.as_flattened()],
            );
        }
        self.link.reply(number, reply::ACK, &[]);
        Ok(if number == option::GO { self.serve(name, device) } else { Next::Option })
    }

    async fn meta_context(&mut self, number: u32, data: &[u8]) -> Result<(), Failure> {
        let set = number == option::SET_META_CONTEXT;
        if set {
            // Even a request that fails replaces the earlier selection.
            self.selected = None;
        }
        let Some(query) = wire::meta_query(data) else {
            let message = "malformed data, or too many queries";
            self.link.refuse(number, reply::ERR_INVALID, message);
            return Ok(());
        };
        if !self.structured {
            self.link.refuse(number, reply::ERR_INVALID, "negotiate structured replies first");
            return Ok(());
        }
        let name = match self.attach(query.name).await? {
            Ok((name, _)) => name,
            Err(error) => {
                self.link.refuse(number, refusal(error.kind), &error.message);
                return Ok(());
            }
        };
        // "base:" means all of the namespace, but only in a list.
        let found =
            query.iter().any(|text| text == wire::BASE_ALLOCATION || (!set && text == "base:"));
        if found || (!set && query.queries == 0) {
            let id = if set { wire::BASE_ALLOCATION_ID } else { 0 };
            let parts: [&[u8]; 2] = [&id.to_be_bytes(), wire::BASE_ALLOCATION.as_bytes()];
            self.link.reply(number, reply::META_CONTEXT, &parts);
            if set {
                self.selected = Some(name);
            }
        }
        self.link.reply(number, reply::ACK, &[]);
        Ok(())
    }

    async fn list(&mut self, number: u32) -> Result<(), Failure> {
        match self.link.meanwhile(self.exports.names()).await? {
            Ok(names) => {
                for name in names.iter().filter(|name| name.len() <= limits::STRING_BYTES_MAX) {
                    let name_bytes = u32::try_from(name.len()).unwrap_or(0).to_be_bytes();
                    self.link.reply(number, reply::SERVER, &[&name_bytes, name.as_bytes()]);
                    // A client that does not read holds no more than this of a long list.
                    if self.link.output.len() >= limits::LIST_BYTES_AT_ONCE {
                        self.link.send(self.env).await?;
                    }
                }
                self.link.reply(number, reply::ACK, &[]);
            }
            Err(error) => self.link.refuse(number, refusal(error.kind), &error.message),
        }
        Ok(())
    }

    /// Attaches the export that a client names; returns its real name, too.
    async fn attach(
        &mut self,
        name: &str,
    ) -> Result<Result<(String, E::Device), ExportError>, Failure> {
        let (exports, held) = (self.exports, &mut self.held);
        let attaching = async {
            let name = if name.is_empty() { only_export(exports).await? } else { name.to_owned() };
            if let Some((last, device)) = held
                && *last == name
            {
                return Ok((name, device.clone()));
            }
            let device = exports.attach(&name).await?;
            *held = Some((name.clone(), device.clone()));
            Ok((name, device))
        };
        self.link.meanwhile(attaching).await
    }

    fn flags(&self, device: &E::Device) -> u16 {
        let all = if self.structured { transmission::STRUCTURED } else { transmission::SIMPLE };
        if device.is_read_only() { all | transmission::READ_ONLY } else { all }
    }

    fn serve(&mut self, name: String, device: E::Device) -> Next<E::Device> {
        let block_status = self.structured && self.selected.as_ref() == Some(&name);
        let modes = Modes { structured: self.structured, block_status };
        let meters = self.exports.meters(&device);
        Next::Serve(Agreed { name, device, modes, meters })
    }
}

/// Returns the meaning of an empty name: the only export of the node.
async fn only_export(exports: &impl Exports) -> Result<String, ExportError> {
    let names = exports.names().await?;
    let message = match &*names {
        [] => "there is no volume yet: make one with `rekindle volume create`".to_owned(),
        [name] => return Ok(name.clone()),
        names => {
            let count = names.len();
            let names = names[..count.min(limits::NAMES_LISTED_MAX)].join(", ");
            let more = if count > limits::NAMES_LISTED_MAX { ", ..." } else { "" };
            format!("which volume? There are {count}: {names}{more}")
        }
    };
    Err(ExportError { kind: Kind::NotFound, message })
}

/// Returns the kind of refusal that fits an error.
fn refusal(kind: Kind) -> u32 {
    match kind {
        Kind::NotFound | Kind::Invalid | Kind::Exists => reply::ERR_UNKNOWN,
        Kind::Conflict | Kind::Fenced | Kind::Unsupported => reply::ERR_POLICY,
        Kind::Unavailable => reply::ERR_SHUTDOWN,
        Kind::Full | Kind::Damaged | Kind::Refused | Kind::Io => reply::ERR_PLATFORM,
    }
}

#[cfg(test)]
mod tests;
