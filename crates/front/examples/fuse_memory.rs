//! A file system in plain memory behind our FUSE server, for `rekindle mount`. It shows the cost of
//! the front alone, and whether the kernel accepts it.
//!
//! `cargo run --release -p rekindle-front --example fuse_memory -- /tmp/memory`
//! `rekindle mount any /mnt --dir /tmp/memory`

#[path = "../src/target/testing.rs"]
mod testing;

/// The server, at the place where the file system in memory looks for it.
mod target {
    pub use rekindle_front::target::Target;
}

use rekindle_base::VolumeId;
use rekindle_env::{Address, BoxFuture, Stream};
use rekindle_front::conn::{CONNECTIONS_DEFAULT, Connections, SessionThread, Stop};
use rekindle_front::fuse::{Clients, HasGone, Mount, serve};
use std::sync::Arc;
use testing::Memory;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

/// Reads the head of a request, and answers it: with the volume, or by leaving HTTP. Whether it has
/// left.
async fn answer(stream: &mut Box<dyn Stream>) -> std::io::Result<bool> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await?);
    }
    let is_mount = head.windows(13).any(|word| word == b"rekindle-fuse");
    let volume = r#"{"name":"memory","kind":"file"}"#;
    let answer = if is_mount {
        "HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: rekindle-fuse\r\n\r\n"
            .to_owned()
    } else {
        format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{volume}", volume.len())
    };
    stream.write_all(answer.as_bytes()).await?;
    Ok(is_mount)
}

fn main() {
    let folder = std::env::args().nth(1).unwrap_or_else(|| "/tmp/memory".to_owned());
    let address = Address::Unix(format!("{folder}/rekindle.sock").into());
    let (env, runtime) = rekindle_env::real::env().expect("an environment");
    runtime.block_on(async {
        let connections = Connections::new("fuse", CONNECTIONS_DEFAULT);
        let acceptor = env.net().listen(&address).await.expect("the address is free");
        let (clients, target) = (Clients::default(), Memory::new());
        let (budget, serve_env) = (connections.budget().clone(), env.clone());
        let session = Arc::new(move |mut stream: Box<dyn Stream>, stop: Stop| {
            let (env, volume) = (serve_env.clone(), "memory".to_owned());
            let (target, clients, budget) = (target.clone(), clients.clone(), budget.clone());
            let session: BoxFuture<'static, ()> = Box::pin(async move {
                let id = VolumeId([1; 16]);
                let durably = false;
                let has_gone: Arc<HasGone> = Arc::new(|_, _| false);
                let memory = rekindle_front::fuse::wire::Memory { node: [0; 16], since: 0 };
                let mount =
                    Mount { volume, id, target, clients, budget, durably, memory, has_gone };
                if let Ok(true) = answer(&mut stream).await {
                    serve(&env, stream, mount, stop).await;
                }
            });
            session
        });
        connections.accept(&env, acceptor, SessionThread::Shared, session).await;
    });
}
