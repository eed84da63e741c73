//! The same over real sockets and files.

use super::*;

#[test]
fn a_log_is_copied_over_real_sockets_and_started_from_its_copies() {
    let folder = tempfile::tempdir().expect("a folder");
    let (env, _runtime) = rekindle_env::real::env().expect("this machine has threads");
    let place = folder.path();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.expect("a runtime").block_on(async {
        let holder = Holder::open(&env, &place.join("held"), 1 << 30).await.expect("a holder");
        let listen = "tcp:127.0.0.1:0".parse().expect("an address");
        let acceptor = env.net().listen(&listen).await.expect("a port");
        let address = acceptor.address();
        let serving =
            env.spawn("serve", serve(env.clone(), acceptor, Arc::clone(&holder), identity()));
        let peer = Arc::new(Peer::new(&env, Settings { address, ..settings(1) }));
        let open = async |flash: &Path, memory: &str, life, replicas| {
            let memory = place.join(memory);
            let arena = Arena::open_sized(&env, &memory, OWNER, 4, SEGMENT).expect("memory");
            let config = Config {
                folder: flash.to_owned(),
                node: OWNER,
                flash_bytes: SEGMENTS * u64::from(SEGMENT),
                flush_interval: SHORT / 5,
            };
            let found = Log::find(&env, arena, config, true, None).await?.with_replicas(replicas);
            Ok::<_, rekindle_log::Error>(found.open(Incarnation(life)).await?.0)
        };
        let log = open(&place.join("flash"), "memory", 1, vec![peer as Arc<dyn Replica>]).await;
        let log = log.expect("a log");
        for serial in 1..=40 {
            let position = append(&log, serial, 3000).await;
            log.reach(COPIES, position).await.expect("the log is well");
        }
        let copies = place.join("held").join(OWNER.to_string()).join("flash");
        // As the message about a damaged record says to do.
        std::fs::remove_dir_all(copies.parent().expect("a folder")).expect("it is there");
        for serial in 41..=80 {
            let position = append(&log, serial, 3000).await;
            log.reach(COPIES, position).await.expect("the log is well");
            log.release(VOLUME, Serial(serial - 40));
        }
        let early = open(&copies, "memory2", 2, Vec::new()).await.map(|_| ());
        assert!(early.is_err_and(|error| error.to_string().contains("another rekindle")));
        holder.release(OWNER).await.expect("the copies are released");
        let position = append(&log, 81, 100).await;
        let refused = env.timeout(SHORT * 5, log.reach(COPIES, position)).await;
        assert!(refused.is_err(), "no copy counts any more");
        let why = log.replicas_behind()[0].1.clone().unwrap_or_default();
        assert!(why.contains("taken over"), "{why}");
        let taken = open(&copies, "memory2", 2, Vec::new()).await.expect("the copies are a log");
        assert!(recovered(&taken).await.ends_with(&(41..=80).collect::<Vec<_>>()));
        serving.abort();
    });
}
