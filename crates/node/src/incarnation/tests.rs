//! Tests of the parent module.

use super::*;
use crate::record::tests::sample;
use crate::starts::Landed;
use rekindle_base::{Kind, NodeId};
use rekindle_datastore::backend::mem::Mem;
use rekindle_env::sim::{Faults, World};

const NODE: NodeId = NodeId([7; 16]);

fn with_writer(test: impl AsyncFnOnce(Writer)) {
    let world = World::new(1, Faults::none());
    let env = world.env();
    world.block_on(test(Writer::new(env, Mem::store(), NODE)));
}

fn beginning(starts: &Starts, nonce: u64) -> Beginning<'_> {
    Beginning {
        url: "mem:",
        starts,
        nonce,
        permitted: false,
        copied_from: Incarnation(0),
        copied_log: Incarnation(0),
        older_copies: false,
        arena: 5,
        copies: true,
        trusted: true,
        lost: false,
        host: StartHost { host: NODE, former: &[], peer: None, takes: None },
    }
}

async fn begin(writer: &Writer, starts: &Starts, nonce: u64) -> Result<Held<NodeRecord>, Error> {
    let found = read(writer).await.expect("readable");
    start(writer, &beginning(starts, nonce), found).await
}

#[test]
fn of_two_copies_of_a_folder_the_second_one_is_refused_until_a_person_says_so() {
    with_writer(async |writer| {
        let first = begin(&writer, &Starts::default(), 1).await.expect("free");
        assert_eq!((first.value.incarnation, first.value.nonce), (Incarnation(1), Some(1)));
        let folder = Starts::default().landed(Landed { incarnation: Incarnation(1), nonce: 1 });
        let copy = folder.clone();
        begin(&writer, &copy, 2).await.expect("the first to come");
        let error = begin(&writer, &folder, 3).await.expect_err("the second");
        assert!(error.kind() == Kind::Fenced, "{error}");
        let text = error.to_string();
        assert!(text.contains("another copy of this folder was started"), "{text}");
        assert!(text.contains("--take-identity"), "{text}");
        let found = read(&writer).await.expect("readable");
        let permitted = Beginning { permitted: true, ..beginning(&folder, 3) };
        let taken = start(&writer, &permitted, found).await.expect("permitted").value;
        assert_eq!((taken.incarnation, taken.taken), (Incarnation(3), Incarnation(3)));
        assert_ne!(taken.copies, first.value.copies, "copies of vaults are of another time");
        // The permission covers this start only. The next start is an ordinary one, and remembers
        // the take-over.
        let folder = folder.landed(Landed { incarnation: Incarnation(3), nonce: 3 });
        let next = begin(&writer, &folder, 4).await.expect("ours").value;
        assert_eq!((next.incarnation, next.taken), (Incarnation(4), Incarnation(3)));
        assert!(begin(&writer, &copy, 5).await.is_err());
    });
}

#[test]
fn an_attempt_of_a_killed_start_that_lands_late_is_no_other_copy() {
    with_writer(async |writer| {
        let first = begin(&writer, &Starts::default(), 1).await.expect("free");
        let landed = Landed { incarnation: Incarnation(1), nonce: 1 };
        let killed = Starts::default().landed(landed);
        let again = killed.attempting(2, None);
        // The attempt of the killed start lands after this start has read the record.
        begin(&writer, &killed, 2).await.expect("late");
        let held = start(&writer, &beginning(&again, 3), Some(first)).await.expect("ours");
        assert_eq!(held.value.incarnation, Incarnation(3));
        assert_eq!(held.mark().edition, 3);
    });
}

#[test]
fn a_store_that_was_set_back_is_called_so() {
    with_writer(async |writer| {
        begin(&writer, &Starts::default(), 1).await.expect("free");
        let folder = Starts::default().landed(Landed { incarnation: Incarnation(9), nonce: 90 });
        let text = begin(&writer, &folder, 2).await.expect_err("refused").to_string();
        assert!(text.contains("was set back"), "{text}");
    });
}

#[test]
fn only_the_memory_that_was_used_last_is_believed() {
    let record = |arena| NodeRecord { arena, ..sample() };
    let trusted = |found: Option<NodeRecord>, arena, users: &[u64]| {
        is_trusted(found.as_ref(), Past::Ours, arena, users)
    };
    assert!(trusted(None, 5, &[]));
    assert!(trusted(Some(record(None)), 5, &[]), "by a binary that did not say");
    assert!(trusted(Some(record(Some(5))), 5, &[]));
    assert!(!trusted(Some(record(Some(6))), 5, &[]));
    assert!(!trusted(Some(record(Some(0))), 5, &[]), "memory that did not outlive its process");
    assert!(!trusted(Some(record(Some(0))), 0, &[]));
    let last = sample().nonce.expect("it has one");
    assert!(trusted(Some(record(Some(5))), 5, &[last]));
    assert!(trusted(Some(record(Some(5))), 5, &[last, 8, 9]), "attempts that did not land");
    assert!(!trusted(Some(record(Some(5))), 5, &[8]), "the folder and its store were put back");
    assert!(trusted(Some(NodeRecord { nonce: None, ..record(Some(5)) }), 5, &[8]));
    let copied = is_trusted(Some(&record(Some(5))), Past::Copied, 5, &[last]);
    assert!(!copied, "it is the memory of the other copy");
}

#[test]
fn the_last_start_that_found_memory_lost_stays_written_down() {
    with_writer(async |writer| {
        let mut folder = Starts::default();
        let mut said = Vec::new();
        for (nonce, lost) in [(1, false), (2, true), (3, false), (4, true)] {
            let found = read(&writer).await.unwrap();
            let beginning = Beginning { lost, ..beginning(&folder, nonce) };
            let held = start(&writer, &beginning, found).await.unwrap();
            folder = folder.landed(Landed { incarnation: held.value.incarnation, nonce });
            said.push(held.value.copied_since.map(|start| start.0));
        }
        assert_eq!(said, [None, Some(2), Some(2), Some(4)]);
    });
}

#[test]
fn a_folder_of_copies_goes_on_with_permission_and_an_older_one_only_when_that_is_said() {
    with_writer(async |writer| {
        begin(&writer, &Starts::default(), 1).await.expect("free");
        let of_copies = |life| {
            let landed = Landed { incarnation: Incarnation(life), nonce: 0 };
            Starts { landed: Some(landed), ..Starts::default() }
        };
        let (first, second) = (of_copies(1), of_copies(2));
        let from = |starts, life, permitted, older_copies| {
            let copied_from = Incarnation(life);
            let copied_log = copied_from;
            Beginning { copied_from, copied_log, permitted, older_copies, ..beginning(starts, 9) }
        };
        let found = read(&writer).await.expect("readable");
        let refused = start(&writer, &from(&first, 1, false, false), found).await;
        assert!(refused.expect_err("no permission").to_string().contains("--take-identity"));
        // The node is started again, and sends its copies elsewhere.
        let folder = Starts::default().landed(Landed { incarnation: Incarnation(1), nonce: 1 });
        begin(&writer, &folder, 2).await.expect("ours");
        let found = async || read(&writer).await.expect("readable");
        let refused = start(&writer, &from(&first, 1, true, false), found().await).await;
        let text = refused.expect_err("older copies").to_string();
        assert!(text.contains("--older-copies") && text.contains("start 2"), "{text}");
        // The newest start has sent its `node.json`, and not its log.
        for (log, says) in [(0, "no copy"), (1, "up to its start 1")] {
            let sent = from(&second, 2, true, false);
            let sent = Beginning { copied_log: Incarnation(log), ..sent };
            let refused = start(&writer, &sent, found().await).await;
            let text = refused.expect_err("the log is older than its node.json").to_string();
            assert!(text.contains("--older-copies") && text.contains(says), "{text}");
        }
        let newest = start(&writer, &from(&second, 2, true, false), found().await).await;
        let newest = newest.expect("the newest copies").value;
        assert_eq!((newest.incarnation, newest.taken), (Incarnation(3), Incarnation(3)));
        let older = start(&writer, &from(&first, 1, true, true), found().await).await;
        assert_eq!(older.expect("it was said").value.incarnation, Incarnation(4));
    });
}

#[test]
fn a_holder_takes_over_only_by_a_record_that_still_means_it() {
    use crate::record::{HolderNote, HoldersNote};
    use rekindle_cluster::Secret;
    const HOLDER: NodeId = NodeId([8; 16]);
    const FORMER: NodeId = NodeId([9; 16]);
    let attempt = Starts::default().attempting(7, None);
    let unknown = Starts::default();
    type Change<'a> = &'a dyn Fn(&mut NodeRecord);
    type Case<'a> = (&'a str, Change<'a>, Change<'a>, (&'a Starts, u64), bool);
    let cases: [Case<'_>; 10] = [
        ("it is named", &|_| {}, &|_| {}, (&unknown, 1), true),
        ("another life has begun", &|_| {}, &|now| now.incarnation.0 += 1, (&unknown, 1), false),
        ("its holders have changed", &|_| {}, &|now| now.holders.epoch += 1, (&unknown, 1), false),
        (
            "another host has it",
            &|_| {},
            &|now| now.host = Some(NodeId([5; 16])),
            (&unknown, 1),
            false,
        ),
        ("it was removed", &|_| {}, &|now| now.removed = true, (&unknown, 1), false),
        ("it is named no more", &|seen| seen.holders.nodes.clear(), &|_| {}, (&unknown, 1), false),
        (
            "its copies are older",
            &|seen| seen.holders.nodes[0].since = Incarnation(2),
            &|_| {},
            (&unknown, 1),
            false,
        ),
        (
            "it is the host",
            &|seen| (seen.host, seen.holders.nodes) = (Some(HOLDER), vec![]),
            &|_| {},
            (&unknown, 1),
            true,
        ),
        (
            "it was, under another name",
            &|seen| (seen.host, seen.holders.nodes) = (Some(FORMER), vec![]),
            &|_| {},
            (&attempt, 1),
            true,
        ),
        (
            "that name may be another's",
            &|seen| (seen.host, seen.holders.nodes) = (Some(FORMER), vec![]),
            &|_| {},
            (&unknown, 1),
            false,
        ),
    ];
    for (name, before, meanwhile, (starts, copied_log), is_taken) in cases {
        with_writer(async |writer| {
            let mut record = NodeRecord {
                incarnation: Incarnation(4),
                taken: Incarnation(0),
                nonce: Some(7),
                host: None,
                peer: None,
                holders: HoldersNote {
                    epoch: 3,
                    nodes: vec![HolderNote { node: HOLDER, since: Incarnation(1) }],
                },
                resting: false,
                draining: false,
                removed: false,
                ..sample()
            };
            before(&mut record);
            let seen = crate::cluster::roster::entry(NODE, &record, &Secret([1; 32]));
            let seen = seen.expect("it names no place");
            meanwhile(&mut record);
            let key = key::node_key(NODE);
            let found = writer.create(&key, record).await.expect("nothing is there");
            let beginning = Beginning {
                copied_log: Incarnation(copied_log),
                trusted: false,
                host: StartHost { host: HOLDER, former: &[FORMER], peer: None, takes: Some(&seen) },
                ..beginning(starts, 9)
            };
            let begun = start(&writer, &beginning, Some(found)).await;
            assert_eq!(begun.is_ok(), is_taken, "{name}: {:?}", begun.err());
            if let Ok(begun) = begun {
                assert_eq!(
                    (begun.value.host, begun.value.nonce),
                    (Some(HOLDER), Some(9)),
                    "{name}"
                );
            }
        });
    }
}
