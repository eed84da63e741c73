//! The contract of every environment, checked on the real machine and on simulated ones.

use crate::sim::{Faults, World};
use crate::{Address, Aligned, Env, FileKind, Open, TaskHandle, real};
use futures_util::future::join_all;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

/// Checks all of the contract, in a folder of its own.
async fn contract(env: Env, folder: PathBuf) {
    env.disk().create_folder(&folder.join("a/b")).await.unwrap();
    files(&env, &folder).await;
    lengths(&env, &folder).await;
    direct_writes(&env, &folder).await;
    names(&env, &folder).await;
    memory(&env, &folder).await;
    sleeps(&env).await;
    tasks(&env).await;
    for address in [
        Address::Tcp("127.0.0.1:0".parse().unwrap()),
        Address::Unix(folder.join("socket")),
        "localhost:0".parse().unwrap(),
    ] {
        network(&env, address).await;
    }
}

async fn files(env: &Env, folder: &Path) {
    let path = folder.join("file");
    let disk = env.disk();
    let missing = disk.open(&path, Open::Write).await.err().unwrap();
    assert_eq!(missing.kind(), ErrorKind::NotFound);
    let file = disk.open(&path, Open::CreateNew).await.unwrap();
    let exists = disk.open(&path, Open::CreateNew).await.err().unwrap();
    assert_eq!(exists.kind(), ErrorKind::AlreadyExists);

    let data: Vec<u8> = (0..10_000u32).map(|index| (index % 251) as u8).collect();
    file.write_at(&data, 1000).await.unwrap();
    assert_eq!(file.length().await.unwrap(), 11_000);
    file.write_durable(&[7; 4096], 4096).await.unwrap();
    file.sync_data().await.unwrap();
    let mut found = vec![1; 11_000];
    file.read_at(&mut found, 0).await.unwrap();
    let mut expected = [vec![0; 1000], data].concat();
    expected[4096..8192].fill(7);
    assert_eq!(found, expected);

    let short = file.read_at(&mut [0; 2], 10_999).await.unwrap_err();
    assert_eq!(short.kind(), ErrorKind::UnexpectedEof);
    file.read_at(&mut [], 11_000).await.unwrap();
    file.write_at(&[], 50_000).await.unwrap();
    assert_eq!(file.length().await.unwrap(), 11_000);

    let reader = disk.open(&path, Open::Read).await.unwrap();
    assert!(reader.write_at(&[1], 0).await.is_err());
    reader.read_at(&mut [0; 4], 0).await.unwrap();

    let other = disk.open(&path, Open::Create).await.unwrap();
    assert!(file.try_lock().unwrap() && file.try_lock().unwrap());
    assert!(!other.try_lock().unwrap());
    drop(file);
    assert!(other.try_lock().unwrap());
}

async fn lengths(env: &Env, folder: &Path) {
    let file = env.disk().open(&folder.join("lengths"), Open::Create).await.unwrap();
    file.write_at(b"kept", 0).await.unwrap();
    file.preallocate(3_000_001).await.unwrap();
    file.preallocate(10).await.unwrap();
    assert_eq!(file.length().await.unwrap(), 3_000_001);
    let mut found = [1; 6];
    file.read_at(&mut found, 0).await.unwrap();
    assert_eq!(&found, b"kept\0\0");
    file.read_at(&mut found, 2_999_995).await.unwrap();
    assert_eq!(found, [0; 6]);

    file.write_at(b"tail", 100).await.unwrap();
    file.set_length(102).await.unwrap();
    file.set_length(5000).await.unwrap();
    file.read_at(&mut found, 100).await.unwrap();
    assert_eq!(&found, b"ta\0\0\0\0");
    let free = env.disk().free_bytes(&folder.join("not/yet/there")).await.unwrap();
    assert!(free > 1 << 20);
}

/// Checks direct writes between others, with memory and offsets that suit them and that do not: the
/// file is the same, whatever the way.
async fn direct_writes(env: &Env, folder: &Path) {
    let path = folder.join("direct");
    let file = env.disk().open(&path, Open::Create).await.unwrap();
    file.preallocate(1 << 20).await.unwrap();
    let mut expected = vec![0; 1 << 20];
    let mut memory = vec![0; 80 << 10];
    let aligned = memory.as_ptr().align_offset(4096);
    for round in 0..200_u64 {
        let suits = round % 3 > 0;
        let unit = if suits { 512 } else { 7 };
        let start = aligned + if suits { 0 } else { 1 };
        let length = (1 + round % 100) * unit;
        let offset = round * 37 % 900 * unit;
        let place = offset as usize..(offset + length) as usize;
        let data = &mut memory[start..start + length as usize];
        data.fill(round as u8 + 1);
        if round % 5 == 0 {
            file.write_at(data, offset).await.unwrap();
        } else {
            file.write_direct(data, offset).await.unwrap();
        }
        expected[place.clone()].copy_from_slice(data);
        let mut found = vec![0; place.len()];
        file.read_at(&mut found, offset).await.unwrap();
        assert_eq!(found, expected[place.clone()]);
        let length = place.len();
        let mut found = Aligned::zeroed(length + unit as usize);
        let found = &mut found[if suits { 0..length } else { 1..length + 1 }];
        file.read_direct(found, offset).await.unwrap();
        assert_eq!(found, &expected[place]);
    }
    // The end of a file need not be a sector's.
    file.set_length((1 << 20) - 100).await.unwrap();
    let mut found = Aligned::zeroed(4096);
    let short = file.read_direct(&mut found, (1 << 20) - 4096).await.unwrap_err();
    assert_eq!(short.kind(), std::io::ErrorKind::UnexpectedEof);
    file.set_length(1 << 20).await.unwrap();
    expected[(1 << 20) - 100..].fill(0);
    file.read_ahead(0, 1 << 20).await.unwrap();
    let mut found = vec![1; 1 << 20];
    file.read_at(&mut found, 0).await.unwrap();
    assert!(found == expected);
    assert_eq!(file.length().await.unwrap(), 1 << 20);
}

async fn names(env: &Env, folder: &Path) {
    let disk = env.disk();
    let (a, b) = (folder.join("a"), folder.join("a/b"));
    for name in ["z", "y", "x"] {
        let file = disk.open(&a.join(name), Open::CreateNew).await.unwrap();
        file.write_at(name.as_bytes(), 0).await.unwrap();
    }
    disk.create_folder(&b).await.unwrap();
    disk.rename(&a.join("z"), &a.join("y")).await.unwrap();
    disk.rename(&a.join("x"), &b.join("w")).await.unwrap();
    disk.sync_folder(&a).await.unwrap();
    let listed = disk.list(&a).await.unwrap();
    assert_eq!(listed, [("b".to_owned(), FileKind::Folder), ("y".to_owned(), FileKind::File)]);
    assert_eq!(disk.list(&b).await.unwrap(), [("w".to_owned(), FileKind::File)]);

    let file = disk.open(&a.join("y"), Open::Write).await.unwrap();
    disk.remove(&a.join("y")).await.unwrap();
    let mut found = [0; 1];
    file.read_at(&mut found, 0).await.unwrap();
    assert_eq!(&found, b"z", "an open file outlives its name");
    for result in [
        disk.remove(&a.join("y")).await,
        disk.rename(&a.join("y"), &a.join("v")).await,
        disk.list(&a.join("c")).await.map(drop),
        disk.open(&a.join("c/d"), Open::Create).await.map(drop),
        disk.sync_folder(&a.join("c")).await,
    ] {
        assert_eq!(result.unwrap_err().kind(), ErrorKind::NotFound);
    }
}

async fn memory(env: &Env, folder: &Path) {
    let path = folder.join("mapped");
    let memory = env.memory();
    let region = memory.map(&path, 8192).unwrap();
    assert_eq!((region.length(), region.base() as usize % 4096), (8192, 0));
    // SAFETY: inside the mapping, and used by this thread only.
    unsafe {
        assert_eq!(region.base().add(8191).read(), 0);
        region.base().write(42);
    }
    drop(region);
    let region = memory.map(&path, 20_000).unwrap();
    // SAFETY: as above.
    unsafe {
        assert_eq!(region.base().read(), 42, "kept and extended");
        region.base().add(19_999).write(1);
    }
    drop(region);
    assert_eq!(memory.map(&path, 4096).unwrap().length(), 4096);
    assert!(memory.map(&path, 0).is_err());
    assert!(memory.map(&path, 1 << 50).is_err(), "no such memory is an error, not a fault");
    assert!(memory.free_bytes(&path).unwrap() > 0);
    memory.unmap(&path).unwrap();
    memory.unmap(&path).unwrap();
    let region = memory.map(&path, 4096).unwrap();
    // SAFETY: as above.
    assert_eq!(unsafe { region.base().read() }, 0);
    memory.unmap(&path).unwrap();
}

async fn sleeps(env: &Env) {
    let order = Arc::new(parking_lot::Mutex::new(Vec::new()));
    let start = env.now();
    // Far apart: a machine may be busy.
    let sleepers = [600u64, 10, 300].map(|milliseconds| {
        let (env, order) = (env.clone(), order.clone());
        async move {
            env.sleep(Duration::from_millis(milliseconds)).await;
            order.lock().push(milliseconds);
        }
    });
    join_all(sleepers).await;
    assert_eq!(*order.lock(), [10, 300, 600]);
    assert!(env.now().since(start) >= Duration::from_millis(600));

    // The session that began a sleep ends, and another task awaits the rest.
    let (start, mut sleep) = (env.now(), env.sleep(Duration::from_millis(200)));
    let (sender, receiver) = tokio::sync::oneshot::channel();
    env.spawn_session("session", async move {
        assert!(futures_util::poll!(sleep.as_mut()).is_pending());
        let _ = sender.send(sleep);
    });
    let sleep = receiver.await.unwrap();
    env.sleep(Duration::from_millis(50)).await;
    env.run("other", sleep).await;
    assert!(env.now().since(start) >= Duration::from_millis(200));

    let limit = Duration::from_millis(5);
    assert!(env.timeout(limit, std::future::pending::<()>()).await.is_err());
    assert_eq!(env.timeout(Duration::MAX, async { 5 }).await, Ok(5));
    assert!(env.wall_clock().0 > 1_700_000_000_000_000);
    assert_ne!(env.random::<16>(), env.random::<16>());
}

async fn tasks(env: &Env) {
    assert_eq!(env.blocking(|| 3).await, 3);
    let inner = env.clone();
    let result = env.run("outer", async move {
        inner.sleep(Duration::from_millis(1)).await;
        inner.blocking(|| 4).await
    });
    assert_eq!(result.await, 4);

    // A session can do all that the background can.
    let (sender, receiver) = tokio::sync::oneshot::channel();
    let inner = env.clone();
    env.spawn_session("session", async move {
        inner.sleep(Duration::from_millis(1)).await;
        let other = inner.run("other", async { 5 }).await;
        let _ = sender.send(other);
    });
    assert_eq!(receiver.await.unwrap(), 5);

    let ended = Arc::new(AtomicUsize::new(0));
    struct Ending(Arc<AtomicUsize>);
    impl Drop for Ending {
        fn drop(&mut self) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }
    let forever = |ended: &Arc<AtomicUsize>| {
        let ending = Ending(ended.clone());
        async move {
            std::future::pending::<()>().await;
            drop(ending);
        }
    };
    let handles =
        [env.spawn("forever", forever(&ended)), env.spawn_session("forever", forever(&ended))];
    env.sleep(Duration::from_millis(2)).await;
    assert_eq!(ended.load(Ordering::SeqCst), 0);
    handles.iter().for_each(TaskHandle::abort);
    for _ in 0..1000 {
        if ended.load(Ordering::SeqCst) == 2 {
            return;
        }
        env.sleep(Duration::from_millis(2)).await;
    }
    panic!("an aborted task goes on");
}

async fn network(env: &Env, address: Address) {
    let acceptor = env.net().listen(&address).await.unwrap();
    let address = acceptor.address();
    let in_use = env.net().listen(&address).await.err().unwrap();
    assert_eq!(in_use.kind(), ErrorKind::AddrInUse, "{in_use}");

    let server = env.clone();
    env.spawn("server", async move {
        // Two connections, each served by a session. Probing listeners may connect and hang up as
        // well.
        while let Ok(accepted) = acceptor.accept().await {
            server.spawn_session("echo", async move {
                let mut stream = accepted().unwrap();
                let mut buffer = vec![0; 5000];
                while let Ok(count @ 1..) = stream.read(&mut buffer).await {
                    if stream.write_all(&buffer[..count]).await.is_err() {
                        break;
                    }
                }
            });
        }
    });
    let clients = (0..2u8).map(|client| echo(env, &address, client));
    join_all(clients).await;
}

async fn echo(env: &Env, address: &Address, client: u8) {
    let stream = env.net().connect(address).await.unwrap();
    assert!(!stream.peer().is_empty());
    let (mut reader, mut writer) = tokio::io::split(stream);
    let sent: Vec<u8> = (0..600_000u32).map(|index| client ^ (index % 253) as u8).collect();
    let mut received = Vec::new();
    let write = async {
        writer.write_all(&sent).await.unwrap();
        writer.shutdown().await.unwrap();
    };
    let (_, read) = futures_util::future::join(write, reader.read_to_end(&mut received)).await;
    read.unwrap();
    assert!(received == sent, "the echo differs from what was sent");
}

#[test]
fn the_real_machine_keeps_the_contract() {
    let folder = tempfile::tempdir().unwrap();
    let (env, runtime) = real::env().unwrap();
    runtime.block_on(contract(env.clone(), folder.path().to_owned()));
    // The same, driven by a session's thread.
    let second = folder.path().join("second");
    let (sender, receiver) = tokio::sync::oneshot::channel();
    let inner = env.clone();
    env.spawn_session("contract", async move {
        contract(inner, second).await;
        let _ = sender.send(());
    });
    runtime.block_on(receiver).expect("the session's thread keeps the contract");
    runtime.shut_down(Duration::from_secs(1));
}

#[test]
fn simulated_machines_keep_the_contract() {
    for seed in 0..200 {
        let world = World::new(seed, Faults::none());
        world.block_on(contract(world.env(), PathBuf::from("/folder")));
    }
}

#[test]
fn a_stale_unix_socket_is_replaced_and_other_files_are_not() {
    let folder = tempfile::tempdir().unwrap();
    let (env, runtime) = real::env().unwrap();
    runtime.block_on(async {
        let path = folder.path().join("socket");
        // The socket file that a killed server leaves behind.
        drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
        let address = Address::Unix(path.clone());
        let acceptor = env.net().listen(&address).await.unwrap();
        let error = env.net().listen(&address).await.err().unwrap();
        assert!(error.to_string().contains("already listens"), "{error}");
        drop(acceptor);
        assert!(!path.exists(), "cleared away when its listener goes");

        let plain = folder.path().join("plain");
        env.disk().open(&plain, Open::Create).await.unwrap();
        let error = env.net().listen(&Address::Unix(plain.clone())).await.err().unwrap();
        assert_eq!(error.kind(), ErrorKind::AlreadyExists, "{error}");
        assert!(plain.exists());
    });
}

#[test]
fn an_inherited_socket_listens() {
    let folder = tempfile::tempdir().unwrap();
    let (env, runtime) = real::env().unwrap();
    runtime.block_on(async {
        let path = folder.path().join("socket");
        let listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
        let acceptor = real::net::from_listener(listener.into()).unwrap();
        assert_eq!(acceptor.address(), Address::Unix(path.clone()));
        let address = acceptor.address();
        let (connected, accepted) =
            futures_util::future::join(env.net().connect(&address), acceptor.accept()).await;
        let mut server = accepted.unwrap()().unwrap();
        connected.unwrap().write_all(b"x").await.unwrap();
        assert_eq!(server.read_u8().await.unwrap(), b'x');
        drop(acceptor);
        assert!(path.exists(), "it is for whoever made the socket to remove it");

        let (one, _other) = std::os::unix::net::UnixStream::pair().unwrap();
        assert!(real::net::from_listener(one.into()).is_err());
    });
}

#[test]
#[expect(clippy::disallowed_methods, reason = "a look at what the environment has made")]
fn what_is_made_on_disk_is_closed_to_others() {
    use std::os::unix::fs::PermissionsExt;
    let (env, runtime) = real::env().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    let [above, below] = ["a", "a/b"].map(|name| folder.path().join(name));
    let [made, old, read] = ["made", "old", "read"].map(|name| below.join(name));
    runtime.block_on(async {
        env.disk().create_folder(&below).await.unwrap();
        env.disk().open(&made, Open::CreateNew).await.unwrap();
        for path in [&old, &read] {
            std::fs::write(path, b"of an older version").unwrap();
            std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o644)).unwrap();
        }
        env.disk().open(&old, Open::Write).await.unwrap();
        env.disk().open(&read, Open::Read).await.unwrap();
        env.net().listen(&Address::Unix(below.join("socket"))).await.map(drop).unwrap();
    });
    assert_eq!((mode(&above), mode(&below)), (0o700, 0o700));
    assert_eq!((mode(&made), mode(&old), mode(&read)), (0o600, 0o600, 0o644));
}

/// The threads end while tasks wait for work, and for one another. A panic would end a process that
/// has stopped in order as if it had died.
#[test]
fn work_that_is_dropped_at_the_end_is_no_panic() {
    struct Ending(Arc<AtomicUsize>);
    impl Drop for Ending {
        fn drop(&mut self) {
            self.0.fetch_add(usize::from(std::thread::panicking()), Ordering::SeqCst);
        }
    }
    let panics = Arc::new(AtomicUsize::new(0));
    for _ in 0..30 {
        let (env, runtime) = real::env().expect("an environment");
        for task in 0..16 {
            let (env, ending) = (env.clone(), Ending(panics.clone()));
            env.clone().spawn("busy", async move {
                let _ending = ending;
                loop {
                    match task % 2 {
                        0 => env.blocking(std::thread::yield_now).await,
                        _ => env.run("inner", tokio::task::yield_now()).await,
                    }
                }
            });
        }
        runtime.block_on(env.sleep(Duration::from_millis(5)));
        runtime.shut_down(Duration::from_millis(20));
    }
    assert_eq!(panics.load(Ordering::SeqCst), 0);
}

#[test]
#[should_panic(expected = "blocking work panicked")]
fn a_panic_of_work_is_one_of_its_waiter() {
    let (env, runtime) = real::env().expect("an environment");
    runtime.block_on(env.blocking(|| panic!("a bug")));
}
