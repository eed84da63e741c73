//! The same over real sockets and files.

use super::*;
use crate::roster::Pin;
use crate::{Key, Tls};
use rekindle_env::Timestamp;

#[test]
fn a_log_is_copied_over_real_sockets_and_started_from_its_copies() {
    let folder = tempfile::tempdir().expect("a folder");
    let (env, _runtime) = rekindle_env::real::env().expect("this machine has threads");
    let place = folder.path();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.expect("a runtime").block_on(async {
        let holder = open_holder(&env, &place.join("held"), 1 << 30).await.expect("a holder");
        holder.measure().await;
        assert!(holder.offer().speed > 0, "the flash is measured");
        let listen = "tcp:127.0.0.1:0".parse().expect("an address");
        let acceptor = env.net().listen(&listen).await.expect("a port");
        let records = Records::new();
        let key = || Key::read(&Key::generate().expect("a key")).expect("its own");
        let (ours, theirs) = (key(), key());
        let until = Timestamp(env.wall_clock().0 + 60_000_000);
        let pin = |key: &Key| Pin { key: key.fingerprint(), until };
        let secured = |key: &Key| Channel::Tls(Tls::new(key).expect("TLS"));
        records.change(HOLDER, |entry| {
            let contact = entry.contact.as_mut().expect("it is in the cluster");
            (contact.address, contact.pins) = (acceptor.address(), vec![pin(&theirs)]);
        });
        records.change(OWNER, |entry| {
            entry.contact.as_mut().expect("it is in the cluster").pins = vec![pin(&ours)];
        });
        let here = calls(&env, life(OWNER, 1), records.clone());
        let there = calls(&env, life(HOLDER, 3), records.clone());
        let there = Calls { channel: secured(&theirs), ..there };
        let served = serve(acceptor, desk(there, Arc::clone(&holder)));
        let serving = env.spawn("serve", served);
        let ours_tls = Tls::new(&ours).expect("TLS");
        let here = Arc::new(Calls { channel: Channel::Tls(ours_tls.clone()), ..here });
        // A key that the record does not name, one whose time is over, and none.
        let told = async |calls: Calls| {
            let peer = Peer::new(&Arc::new(calls), life(OWNER, 1), HOLDER, HOME.to_vec());
            peer.begin().await.expect_err("it is refused")
        };
        let stranger = calls(&env, life(OWNER, 1), records.clone());
        let why = told(Calls { channel: secured(&key()), ..stranger }).await;
        assert!(why.contains("another key than the record of node 0909"), "{why}");
        let plain = calls(&env, life(OWNER, 1), records.clone());
        assert!(told(plain).await.contains("the connection has ended"));
        records.change(OWNER, |entry| {
            entry.contact.as_mut().expect("it is in the cluster").pins[0].until = Timestamp(1);
        });
        let old = calls(&env, life(OWNER, 1), records.clone());
        let why = told(Calls { channel: secured(&ours), ..old }).await;
        assert!(why.contains("has expired") && why.contains("cluster rotate"), "{why}");
        // The rotation of a key: both count for a while.
        let next = key();
        records.change(OWNER, |entry| {
            entry.contact.as_mut().expect("it is in the cluster").pins =
                vec![pin(&ours), pin(&next)];
        });
        here.greet(HOLDER, SHORT * 50).await.expect("the old key counts");
        ours_tls.rotate(&next).expect("another key");
        here.greet(HOLDER, SHORT * 50).await.expect("the new key counts");
        let peer = Arc::new(Peer::new(&here, life(OWNER, 1), HOLDER, HOME.to_vec()));
        let open = async |flash: &Path, memory: &str, life, replicas| {
            let memory = place.join(memory);
            let arena = Arena::open_sized(&env, &memory, OWNER, 4, SEGMENT).expect("memory");
            let config = Config {
                folder: flash.to_owned(),
                node: OWNER,
                // With sectors of 4 KiB a segment takes five of these appends, and 40 are kept.
                flash_bytes: 2 * SEGMENTS * u64::from(SEGMENT),
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
        holder.host(OWNER, Incarnation(2)).await.expect("the copies are lent");
        let position = append(&log, 81, 100).await;
        let refused = env.timeout(SHORT * 5, log.reach(COPIES, position)).await;
        assert!(refused.is_err(), "no copy counts any more");
        let why = log.replicas_behind()[0].1.clone().unwrap_or_default();
        assert!(why.contains("newer life"), "{why}");
        let taken = open(&copies, "memory2", 2, Vec::new()).await.expect("the copies are a log");
        assert!(recovered(&taken).await.ends_with(&(41..=80).collect::<Vec<_>>()));
        serving.abort();
    });
}
