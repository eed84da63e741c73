//! Witnesses are asked in the turn of a change, and calls are known again.

use super::*;
use parking_lot::Mutex;

/// A witness that looks a name up, and lets the change pass if it is absent and new.
struct Watch {
    name: &'static [u8],
    call: Option<Call>,
    mode: u16,
    told: Mutex<Vec<Attr>>,
    judged: Mutex<u32>,
}

impl Watch {
    fn new(name: &'static [u8], call: Option<Call>) -> Self {
        Self { name, call, mode: 0o7777, told: Mutex::default(), judged: Mutex::default() }
    }

    fn caller(&self) -> Caller<'_> {
        Caller { call: self.call, witness: Some(self), ..CALLER }
    }
}

impl Witness for Watch {
    fn judge(&self, sight: &dyn Sight) -> Result<(), Halt> {
        *self.judged.lock() += 1;
        self.told.lock().clear();
        if self.call.is_some_and(|call| sight.was_called(&call)) {
            return Err(Errno::ALREADY.into());
        }
        sight.attr(ROOT)?;
        match sight.lookup(ROOT, self.name)? {
            Some(_) => Err(Errno::ACCESS.into()),
            None => Ok(()),
        }
    }

    fn settle_mode(&self, mode: u16) -> u16 {
        mode & self.mode
    }

    fn changed(&self, attr: &Attr) {
        self.told.lock().push(*attr);
    }
}

fn call(key: u64) -> Call {
    Call { client: 5, at: 1000, key }
}

fn plain(kind: FileType) -> NewNode<'static> {
    NewNode { kind, mode: 0o4755, device: 0, target: b"", stamps: None, umask: 0 }
}

#[test]
fn a_witness_refuses_a_change_and_sees_what_it_lets_pass() {
    with_files(async |_, files| {
        let watch = Watch { mode: 0o755, ..Watch::new(b"wall", None) };
        let made = files.create(watch.caller(), ROOT, b"a", &plain(FileType::Regular)).await;
        let made = made.unwrap();
        assert_eq!(made.mode, 0o755, "settled");
        let told = |ino| watch.told.lock().iter().find(|attr| attr.ino == ino).copied();
        assert_eq!(told(ROOT).map(|attr| attr.size), Some(1));
        assert_eq!(told(ROOT), Some(files.attr(ROOT).await.unwrap()));
        let sticky = SetAttr { mode: Some(0o4777), ..SetAttr::default() };
        files.set_attr(CALLER, made.ino, &sticky).await.unwrap();
        files.write(watch.caller(), made.ino, 0, b"bytes").await.unwrap();
        let after = files.attr(made.ino).await.unwrap();
        assert_eq!((after.mode, after.size), (0o755, 5), "a write settles the mode, too");
        assert_eq!(told(made.ino), Some(after));
        make(files, ROOT, "wall", FileType::Regular).await;
        let root = files.attr(ROOT).await.unwrap();
        for refused in [
            errno(files.unlink(watch.caller(), ROOT, b"a").await),
            errno(files.rename(watch.caller(), (ROOT, b"a"), (ROOT, b"b"), Rename::Replace).await),
            errno(files.link(watch.caller(), made.ino, ROOT, b"b").await),
            errno(files.create(watch.caller(), ROOT, b"b", &plain(FileType::Fifo)).await),
            errno(files.set_attr(watch.caller(), made.ino, &sticky).await),
            errno(files.write(watch.caller(), made.ino, 0, b"more").await),
            errno(files.remove_dir(watch.caller(), ROOT, b"wall").await),
        ] {
            assert_eq!(refused, Some(Errno::ACCESS));
        }
        assert_eq!(files.attr(ROOT).await.unwrap(), root);
        assert_eq!(files.attr(made.ino).await.unwrap(), after);
    });
}

#[test]
fn stamps_are_the_times_of_what_is_made() {
    with_files(async |_, files| {
        let at = |seconds| Time { seconds, nanoseconds: 7 };
        let node = NewNode { stamps: Some([at(1), at(2)]), ..plain(FileType::Regular) };
        let made = files.create(CALLER, ROOT, b"a", &node).await.unwrap();
        assert_eq!((made.accessed, made.modified), (at(1), at(2)));
        assert_ne!(made.changed, at(2));
        assert_eq!(files.attr(made.ino).await.unwrap(), made);
    });
}

#[test]
fn calls_that_were_carried_out_are_known_after_a_commit_a_kill_and_a_power_cut() {
    let (world, store) = (World::new(1, Faults::none()), Mem::store());
    let mut life = 0;
    for ending in ["commit", "kill", "power"] {
        life += 1;
        let env = world.env();
        world.block_on(async {
            let bed = Bed::start(&env, &store, life).await;
            let files = bed.files(Ack::Flash).await;
            for earlier in 1..life {
                // What the witness looks up is in the store only: it is asked again.
                let watch = Watch::new(b"absent", Some(call(earlier)));
                let made = files.create(watch.caller(), ROOT, b"x", &plain(FileType::Fifo)).await;
                assert_eq!(errno(made), Some(Errno::ALREADY), "{ending} {earlier}");
                assert!(files.was_called(&call(earlier)));
            }
            let watch = Watch::new(b"absent", Some(call(life)));
            let name = [b'a' + life as u8];
            files.create(watch.caller(), ROOT, &name, &plain(FileType::Regular)).await.unwrap();
            let refused = Watch::new(b"absent", Some(call(100)));
            assert_eq!(errno(files.unlink(refused.caller(), ROOT, b"x").await), Some(Errno::NOENT));
            assert!(!files.was_called(&call(100)), "it failed");
            assert!(!files.was_called(&Call { client: 6, ..call(life) }));
            match ending {
                "commit" => drop(files.handle().staged().drain().await.unwrap()),
                "power" => files.sync().await.unwrap(),
                _ => {}
            }
        });
        if ending == "power" {
            world.cut_power();
        } else {
            world.crash_process();
        }
    }
    let env = world.env();
    world.block_on(async {
        let files = Bed::start(&env, &store, life + 1).await.files(Ack::Flash).await;
        for earlier in 1..=life {
            assert!(files.was_called(&call(earlier)), "{earlier}");
        }
    });
}
