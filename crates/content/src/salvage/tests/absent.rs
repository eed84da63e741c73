//! Absent is not lost, and a root that cannot be had is not an empty one.

use super::*;
use crate::Missing;

fn hurt(findings: &Findings, missing: Missing) -> usize {
    findings.damages().iter().filter(|damage| damage.missing == missing).count()
}

#[test]
fn what_is_absent_is_not_given_up_and_is_there_when_the_store_is() {
    run(async |env| {
        let store = Arc::new(Broken::new());
        let (content, root, changes) = planted(&env, &store).await;
        let bad = changes[123].1.unwrap();
        store.flip(&pack::key(bad.pack), u64::from(bad.offset) + 100);
        for prefix in ["packs/data/", "packs/"] {
            let cold = Content::open(env.clone(), store.clone(), config());
            store.hide(Some(prefix));
            let findings = examine(&cold, &root, &mut |_| ()).await.unwrap();
            assert_eq!(hurt(&findings, Missing::Damaged), 0, "nobody can know");
            assert_eq!(findings.absent(), if prefix == "packs/" { 1 } else { 1000 });
            let (repaired, _) = salvage_with(&cold, &root, MayDrop::Damaged).await.unwrap();
            assert_eq!((repaired.root, repaired.lost.len()), (root, 0), "{prefix}");
            assert!(!repaired.kept_absent.is_empty() && repaired.kept_damaged.is_empty());
            store.hide(None);
        }
        // A chunk that is there and wrong is another matter.
        let (repaired, _) = salvage_with(&content, &root, MayDrop::Damaged).await.unwrap();
        assert_eq!((repaired.lost, repaired.kept_absent.len()), (one(1230..1231), 0));
        assert_eq!(range(&content, &repaired.root, 0..u64::MAX).await.unwrap().len(), 999);
    });
}

#[test]
fn what_is_back_before_the_repair_stays_whatever_may_be_dropped() {
    run(async |env| {
        let store = Arc::new(Broken::new());
        let (content, root, _) = planted(&env, &store).await;
        for prefix in ["packs/data/", "packs/"] {
            store.hide(Some(prefix));
            let findings = examine(&content, &root, &mut |_| ()).await.unwrap();
            assert!(!findings.are_chunks_sound());
            store.hide(None);
            let mut batch = content.batch();
            let repaired = repair(&content, &mut batch, &root, &findings, MayDrop::Everything);
            let repaired = repaired.await.unwrap();
            assert_eq!((repaired.root, repaired.lost.len()), (root, 0));
            assert!(repaired.lines[0].ends_with("it is there again"), "{:?}", repaired.lines);
        }
    });
}

#[test]
fn without_leave_nothing_is_dropped_and_what_would_be_is_shown() {
    run(async |env| {
        let store = Arc::new(Broken::new());
        let (content, root, changes) = planted(&env, &store).await;
        let (_, leaves) =
            content.read_with_children(&root.unwrap(), Class::Metadata).await.unwrap();
        let content = Content::open(env.clone(), store.clone(), config());
        let first = leaves[0];
        let last = changes[999].1.unwrap();
        for bad in [first, last] {
            damage(&store, bad.pack, &[u64::from(bad.offset) + 60]).await;
        }
        let (shown, _) = salvage_with(&content, &root, MayDrop::Nothing).await.unwrap();
        assert_eq!((shown.root, shown.lost.len(), shown.kept_absent.len()), (root, 0, 0));
        let (done, _) = salvage_with(&content, &root, MayDrop::Damaged).await.unwrap();
        assert_eq!(done.lost, shown.kept_damaged);
        assert_eq!(done.lost.len(), 2, "{:?}", done.lost);
    });
}

#[test]
fn a_root_that_cannot_be_had_is_said_to_be_that_and_never_empty() {
    run(async |env| {
        let store = Arc::new(Broken::new());
        let (_, root, _) = planted(&env, &store).await;
        let good = root.unwrap();
        let changed = |change: fn(&mut Pointer)| {
            let mut root = good;
            change(&mut root);
            root
        };
        let roots = [
            changed(|root| root.name[0] ^= 1),
            changed(|root| root.pack.0[3] ^= 1),
            // The other class.
            changed(|root| root.pack.0[15] ^= 1),
            changed(|root| root.offset += 1),
            changed(|root| root.stored += 1),
            changed(|root| root.stored = 0),
            changed(|root| root.length += 1),
        ];
        let mut found = 0;
        for wrong in roots {
            let content = Content::open(env.clone(), store.clone(), config());
            let findings = examine(&content, &Some(wrong), &mut |_| ()).await.unwrap();
            assert_eq!(findings.root().map(|damage| damage.pointer), Some(wrong));
            let (repaired, _) =
                salvage_with(&content, &Some(wrong), MayDrop::Damaged).await.unwrap();
            assert_eq!(repaired.lost.len(), 0);
            if repaired.root != Some(wrong) {
                // The place was wrong and the name was right: the chunk was found by its name.
                assert!(wrong.name == good.name && repaired.from_copies == 1, "{wrong}");
                let keys = range(&content, &repaired.root, 0..u64::MAX).await.unwrap();
                assert_eq!(keys.len(), 1000);
                found += 1;
                continue;
            }
            assert_eq!(repaired.kept_absent.len() + repaired.kept_damaged.len(), 1);
            assert!(repaired.lines[0].contains("it is the root"), "{:?}", repaired.lines);
            // With leave to drop everything the root is lost, which is not empty.
            let (repaired, _) =
                salvage_with(&content, &Some(wrong), MayDrop::Everything).await.unwrap();
            assert_eq!((repaired.root, repaired.lost), (None, one(0..u64::MAX)));
        }
        assert!((1..7).contains(&found), "{found}");
    });
}

#[test]
fn what_is_read_differently_each_time_is_not_damaged() {
    run(async |env| {
        let store = Arc::new(Broken::new());
        let (content, root, changes) = planted(&env, &store).await;
        let bad = changes[123].1.unwrap();
        let (key, at) = (pack::key(bad.pack), u64::from(bad.offset) + 100);
        // Once: the second read is right.
        store.misread(&key, at, 1);
        assert!(examine(&content, &root, &mut |_| ()).await.unwrap().is_sound());
        store.misread(&key, at, 200);
        let error = content.read_uncached(&bad, Class::Data).await.unwrap_err();
        assert!(matches!(error, Error::Unsteady { .. }), "{error}");
        let findings = examine(&content, &root, &mut |_| ()).await.unwrap();
        assert_eq!((hurt(&findings, Missing::Damaged), findings.absent()), (0, 1));
        let (repaired, _) = salvage_with(&content, &root, MayDrop::Damaged).await.unwrap();
        assert_eq!((repaired.root, repaired.kept_absent), (root, one(1230..1231)));
    });
}

#[test]
fn a_misread_pack_is_not_written_back() {
    run(async |env| {
        for parity in [None, Some("4+1".parse().unwrap())] {
            let store = Arc::new(Broken::new());
            let config = Config { parity, ..config() };
            let (content, root, changes) = planted_with(config, &env, &store).await;
            let bad = changes[123].1.unwrap();
            let (key, at) = (pack::key(bad.pack), u64::from(bad.offset) + 100);
            let before = store.get(&key).await.unwrap().0;
            store.flip(&key, at);
            let findings = examine(&content, &root, &mut |_| ()).await.unwrap();
            assert!(!findings.is_sound());
            // The fault was in the way to the store, and now one more read is wrong.
            store.unflip();
            store.misread(&key, at, 1);
            let (mended, lines) = mend_packs(&content, &findings).await;
            assert!(mended == 0 && lines[0].contains("two reads of it differ"), "{lines:?}");
            assert!(store.get(&key).await.unwrap().0 == before);
        }
    });
}
