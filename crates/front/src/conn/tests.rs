//! The limit, the end, and the addresses.

use super::*;
use rekindle_env::sim::{Faults, World};
use std::io;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

/// Serves by sending nothing; ends when asked, or (`stubborn`) never.
fn silent(stubborn: bool) -> Serve {
    Arc::new(move |_stream, stop| {
        Box::pin(async move {
            stop.await;
            if stubborn {
                std::future::pending::<()>().await;
            }
        })
    })
}

/// Serves by sending back each byte.
fn echo() -> Serve {
    Arc::new(|mut stream, _stop| {
        Box::pin(async move {
            while let Ok(byte) = stream.read_u8().await {
                let _ = stream.write_u8(byte).await;
            }
        })
    })
}

/// Opens a second listener.
async fn listen(env: &Env, connections: &Connections, address: &str) -> Address {
    let address: Address = address.parse().unwrap();
    let acceptor = env.net().listen(&address).await.unwrap();
    let (task_env, connections) = (env.clone(), connections.clone());
    env.spawn("accept", async move {
        connections.accept(&task_env, acceptor, SessionThread::OwnThread, echo()).await;
    });
    address
}

async fn start(env: &Env, connections: &Connections, serve: Serve) -> Address {
    let address: Address = "tcp:127.0.0.1:7".parse().unwrap();
    let acceptor = env.net().listen(&address).await.unwrap();
    let (task_env, connections) = (env.clone(), connections.clone());
    env.spawn("accept", async move {
        connections.accept(&task_env, acceptor, SessionThread::OwnThread, serve).await;
    });
    address
}

async fn is_dropped(env: &Env, stream: &mut Box<dyn Stream>) -> bool {
    env.timeout(Duration::from_secs(60), stream.read(&mut [0])).await.is_ok()
}

#[test]
fn past_the_limit_clients_are_hung_up_on_until_one_goes() {
    let world = World::new(1, Faults::none());
    let env = world.env();
    world.block_on(async {
        let connections = Connections::new("test", 2);
        let serve: Serve = Arc::new(|mut stream, _stop| {
            Box::pin(async move {
                let _ = stream.read(&mut [0]).await;
            })
        });
        let address = start(&env, &connections, serve).await;
        let mut first = env.net().connect(&address).await.unwrap();
        let mut second = env.net().connect(&address).await.unwrap();
        assert!(!is_dropped(&env, &mut second).await);
        let mut third = env.net().connect(&address).await.unwrap();
        assert!(is_dropped(&env, &mut third).await);
        assert_eq!(connections.live(), 2);
        assert!(!is_dropped(&env, &mut first).await);
        drop(first);
        env.sleep(Duration::from_secs(1)).await;
        assert_eq!(connections.live(), 1);
        let mut fourth = env.net().connect(&address).await.unwrap();
        assert!(!is_dropped(&env, &mut fourth).await);
    });
}

#[test]
fn strangers_at_one_listener_do_not_lock_out_who_comes_to_another() {
    let world = World::new(1, Faults::none());
    let env = world.env();
    world.block_on(async {
        let connections = Connections::new("test", 2);
        let port = start(&env, &connections, echo()).await;
        let socket = listen(&env, &connections, "unix:/run/test").await;
        let mut strangers = Vec::new();
        for _ in 0..5 {
            strangers.push(env.net().connect(&port).await.unwrap());
        }
        assert!(is_dropped(&env, &mut strangers[4]).await);
        let mut operator = env.net().connect(&socket).await.unwrap();
        assert!(!is_dropped(&env, &mut operator).await);
        assert_eq!(connections.live(), 3);
    });
}

#[test]
fn clients_are_let_in_by_what_is_left_of_descriptors() {
    let descriptors = |limit, open| rekindle_env::Descriptors { limit, open };
    for (found, at_socket, at_port) in [
        (descriptors(u64::MAX, 100), true, true),
        (descriptors(1024, 20), true, true),
        (descriptors(1024, 700), true, false),
        (descriptors(1024, 900), false, false),
        (descriptors(64, 20), true, true),
        (descriptors(64, 60), false, false),
    ] {
        let world = World::new(1, Faults { descriptors: found, ..Faults::none() });
        let env = world.env();
        world.block_on(async {
            let connections = Connections::new("test", 100);
            let port = start(&env, &connections, echo()).await;
            let socket = listen(&env, &connections, "unix:/run/test").await;
            for (address, expected) in [(socket, at_socket), (port, at_port)] {
                let mut client = env.net().connect(&address).await.unwrap();
                assert_eq!(!is_dropped(&env, &mut client).await, expected, "{address} {found:?}");
            }
        });
    }
}

/// A listener that cannot accept for a while.
struct Short {
    inner: Box<dyn Acceptor>,
    failures: std::sync::atomic::AtomicUsize,
}

impl Acceptor for Short {
    fn accept(&self) -> BoxFuture<'_, io::Result<rekindle_env::Accepted>> {
        use std::sync::atomic::Ordering::Relaxed;
        let fails = self.failures.fetch_update(Relaxed, Relaxed, |left| left.checked_sub(1));
        match fails {
            Ok(_) => Box::pin(async { Err(io::Error::from_raw_os_error(24)) }),
            Err(_) => self.inner.accept(),
        }
    }

    fn address(&self) -> Address {
        self.inner.address()
    }
}

#[test]
fn an_accept_without_descriptors_waits_and_who_is_served_goes_on() {
    let world = World::new(1, Faults::none());
    let env = world.env();
    world.block_on(async {
        let connections = Connections::new("test", 100);
        let served = start(&env, &connections, echo()).await;
        let mut served = env.net().connect(&served).await.unwrap();
        let address: Address = "unix:/run/test".parse().unwrap();
        let inner = env.net().listen(&address).await.unwrap();
        let acceptor = Box::new(Short { inner, failures: 50.into() });
        let (task_env, all) = (env.clone(), connections.clone());
        env.spawn("accept", async move {
            all.accept(&task_env, acceptor, SessionThread::OwnThread, echo()).await;
        });
        let mut waiting = env.net().connect(&address).await.unwrap();
        waiting.write_u8(7).await.unwrap();
        let before = env.now();
        served.write_u8(5).await.unwrap();
        assert_eq!(served.read_u8().await.unwrap(), 5);
        assert!(env.now().since(before) < Duration::from_secs(1));
        assert_eq!(waiting.read_u8().await.unwrap(), 7);
        let waited = env.now().since(before);
        assert!(waited > Duration::from_secs(20), "it does not spin: {waited:?}");
        assert!(waited < Duration::from_secs(60), "nor sleep for ever: {waited:?}");
    });
}

#[test]
fn the_end_is_orderly_or_short() {
    for (stubborn, expected) in [(false, 0), (true, 2)] {
        let world = World::new(1, Faults::none());
        let env = world.env();
        world.block_on(async {
            let connections = Connections::new("test", 8);
            let address = start(&env, &connections, silent(stubborn)).await;
            let mut first = env.net().connect(&address).await.unwrap();
            let _second = env.net().connect(&address).await.unwrap();
            env.sleep(Duration::from_secs(1)).await;
            assert_eq!(connections.live(), 2);
            let before = env.now();
            assert_eq!(connections.stop(&env, Duration::from_secs(10)).await, expected);
            assert!(env.now().since(before) < Duration::from_secs(12));
            assert_eq!(connections.live(), 0);
            assert!(is_dropped(&env, &mut first).await);
        });
    }
}
