//! The limit, the end, and the addresses.

use super::*;
use env::sim::{Faults, World};
use tokio::io::AsyncReadExt;

/// A protocol that sends nothing and ends when asked, or (stubborn) never.
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

async fn start(env: &Env, connections: &Connections, serve: Serve) -> Address {
    let address: Address = "tcp:127.0.0.1:7".parse().unwrap();
    let acceptor = env.net().listen(&address).await.unwrap();
    let (task_env, connections) = (env.clone(), connections.clone());
    env.spawn("accept", async move {
        connections.accept(&task_env, acceptor, Place::OwnThread, serve).await;
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

#[test]
fn strangers_are_let_in_only_by_wish() {
    for (address, is_local) in [
        ("tcp:127.0.0.1:10809", true),
        ("tcp:[::1]:10809", true),
        ("unix:/run/nbd", true),
        ("tcp:0.0.0.0:10809", false),
        ("tcp:192.168.1.1:10809", false),
    ] {
        let address: Address = address.parse().unwrap();
        assert_eq!(check_address(&address, false).is_ok(), is_local, "{address}");
        assert!(check_address(&address, true).is_ok());
    }
}
