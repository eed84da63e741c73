//! A disk in plain memory behind our NBD server. It shows the cost of the front alone, and whether
//! foreign clients accept it.
//!
//! `cargo run --release -p rekindle-front --example nbd_memory -- unix:/tmp/nbd.sock 256M`
//!
//! A third argument, `staged`, makes writes need a sync; `done` is the default.

use parking_lot::RwLock;
use rekindle_block::Gathered;
use rekindle_env::BoxFuture;
use rekindle_front::conn::{CONNECTIONS_DEFAULT, Connections};
use rekindle_front::nbd::{ExportError, Exports, Target, serve};
use rekindle_staging::{Extent, Quantum, Ticket, Written};
use rekindle_volume::Error;
use std::sync::Arc;

#[derive(Clone)]
struct Memory {
    bytes: Arc<RwLock<Vec<u8>>>,
    staged: bool,
}

impl Memory {
    fn written(&self) -> Written {
        if self.staged { Written::NeedsSync(Ticket::default()) } else { Written::Acked }
    }
}

impl Target for Memory {
    fn size(&self) -> u64 {
        self.bytes.read().len() as u64
    }
    fn block_size(&self) -> u64 {
        4096
    }
    fn read_now(&self, offset: u64, out: &mut [u8]) -> Result<bool, Error> {
        let start = offset as usize;
        out.copy_from_slice(&self.bytes.read()[start..start + out.len()]);
        Ok(true)
    }
    async fn read(&self, offset: u64, out: &mut [u8]) -> Result<(), Error> {
        self.read_now(offset, out).map(|_| ())
    }
    fn admits(&self, _under_way: u64, _bytes: u64) -> bool {
        true
    }
    async fn quantum(&self) -> Quantum {
        Quantum::free()
    }
    fn write(&self, offset: u64, data: &[u8], _durable: bool) -> Result<Written, Error> {
        let start = offset as usize;
        self.bytes.write()[start..start + data.len()].copy_from_slice(data);
        Ok(self.written())
    }
    fn all(&self, _gathered: Gathered) -> Written {
        self.written()
    }
    fn clear(
        &self,
        offset: u64,
        length: u64,
        _trim: bool,
        _durable: bool,
    ) -> Result<Written, Error> {
        let start = offset as usize;
        self.bytes.write()[start..start + length as usize].fill(0);
        Ok(self.written())
    }
    async fn sync(&self, _ticket: Ticket) -> Result<(), Error> {
        Ok(())
    }
    async fn flush(&self) -> Result<(), Error> {
        Ok(())
    }
    async fn extents(&self, offset: u64, length: u64) -> Result<Vec<Extent>, Error> {
        let bytes = self.bytes.read();
        let pages = (offset / 4096)..(offset + length).div_ceil(4096);
        let extents = pages.map(|page| {
            let from = (page * 4096).max(offset);
            let to = ((page + 1) * 4096).min(offset + length);
            let data = bytes[from as usize..to as usize].iter().any(|&byte| byte != 0);
            Extent { position: from, span: to - from, data }
        });
        Ok(extents.collect())
    }
}

struct One(Memory);

impl Exports for One {
    type Device = Memory;
    fn names(&self) -> BoxFuture<'_, Result<Arc<[String]>, ExportError>> {
        Box::pin(async { Ok(["memory".to_owned()].into()) })
    }
    fn attach<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Result<Memory, ExportError>> {
        Box::pin(async move {
            if name == "memory" {
                return Ok(self.0.clone());
            }
            let message = format!("no volume is called '{name}'");
            Err(ExportError { kind: rekindle_base::Kind::NotFound, message })
        })
    }
}

fn main() {
    let mut arguments = std::env::args().skip(1);
    let address = arguments.next().expect("an address: unix:PATH or tcp:HOST:PORT");
    let address = address.parse().expect("unix:PATH or tcp:HOST:PORT");
    let size =
        arguments.next().map_or(Ok(256 << 20), |text| rekindle_base::units::parse_size(&text));
    let size = size.expect("a size, such as 256M");
    let staged = arguments.next().is_some_and(|how| how == "staged");
    let bytes = Arc::new(RwLock::new(vec![0; usize::try_from(size).expect("a size that fits")]));
    let (env, runtime) = rekindle_env::real::env().expect("an environment");
    runtime.block_on(async {
        let acceptor = env.net().listen(&address).await.expect("a listening socket");
        let connections = Connections::new("nbd", CONNECTIONS_DEFAULT);
        serve(env.clone(), acceptor, Arc::new(One(Memory { bytes, staged })), connections).await;
    });
}
