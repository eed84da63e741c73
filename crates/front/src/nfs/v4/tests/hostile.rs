//! Clients that lie, or break the rules of sessions: an error for them only.

use super::*;
use nfs3_types::nfs3;

#[test]
fn operations_have_their_place() {
    served(async |site| {
        let mut client = site.connect();
        let told = ask(&mut client, 1, &ops().plain(Op::PUTROOTFH)).await;
        assert_eq!(told.status, Status::OP_NOT_IN_SESSION);
        let two = exchange_id("host", 1).plain(Op::PUTROOTFH);
        assert_eq!(ask(&mut client, 1, &two).await.status, Status::NOT_ONLY_OP);
        let mut caller = Caller::new(site, "host").await;
        let second = caller.in_slot(1, 1, &ops());
        assert_eq!(caller.status(second).await, Status::SEQUENCE_POS);
        assert_eq!(caller.status(ops().plain(Op(3000))).await, Status::OP_ILLEGAL);
        assert_eq!(caller.status(ops().plain(Op(35))).await, Status::NOTSUPP, "of version 4.0");
        assert_eq!(caller.status(ops().handle()).await, Status::NOFILEHANDLE);
        let root = ops().plain(Op::PUTROOTFH);
        assert_eq!(caller.status(root.plain(Op::RESTOREFH)).await, Status::RESTOREFH);
        let many = (0..limits::OPS_MAX + 1).fold(ops(), |ops, _| ops.plain(Op::PUTROOTFH));
        let told = ask(&mut caller.client, 1, &many).await;
        assert_eq!((told.status, told.results.len()), (Status::TOO_MANY_OPS, 0));
    });
}

#[test]
fn slots_and_sequences_are_kept_to() {
    served(async |site| {
        let mut caller = Caller::new(site, "host").await;
        let root = ops().plain(Op::PUTROOTFH);
        let status = async |caller: &mut Caller, slot, sequence| {
            let of = caller.in_slot(slot, sequence, &root);
            ask(&mut caller.client, 1, &of).await.status
        };
        assert_eq!(status(&mut caller, 0, 2).await, Status::SEQ_MISORDERED);
        assert_eq!(status(&mut caller, 0, 1).await, Status::OK);
        assert_eq!(status(&mut caller, 0, 3).await, Status::SEQ_MISORDERED);
        assert_eq!(status(&mut caller, 7, 1).await, Status::OK, "a slot of its own");
        assert_eq!(status(&mut caller, limits::SLOTS_MAX, 1).await, Status::BADSLOT);
        assert_eq!(status(&mut caller, u32::MAX, 1).await, Status::BADSLOT);
        for byte in 0..16 {
            caller.session[byte] ^= 0x40;
            assert_eq!(status(&mut caller, 0, 2).await, Status::BADSESSION);
            caller.session[byte] ^= 0x40;
        }
        assert_eq!(status(&mut caller, 0, 2).await, Status::OK);
        let destroy = ops().op(Op::DESTROY_SESSION, |out| out.put_plain(&caller.session));
        assert_eq!(ask(&mut caller.client, 1, &destroy).await.status, Status::OK);
        assert_eq!(status(&mut caller, 0, 3).await, Status::BADSESSION);
    });
}

#[test]
fn a_client_uses_its_own_stateids_only() {
    served(async |site| {
        let mut caller = Caller::new(site, "host").await;
        let (file, open) = made(&mut caller).await;
        let other_file = caller.done(ops().root("one").make("a", RW, 0, "g").handle()).await;
        let mut other = Caller::new(site, "other").await;
        for of in [
            ops().at(&file).close(&open),
            ops().at(&file).read(&open, 0, 1),
            ops().at(&file).write(&open, 0, b"a"),
            ops().at(&file).lock(&open, "p", 0, 1),
            ops().at(&file).unlock(&open, 0, 1),
        ] {
            assert_eq!(other.status(of).await, Status::BAD_STATEID);
        }
        let elsewhere = other_file.handle();
        for of in [
            ops().at(&elsewhere).close(&open),
            ops().at(&elsewhere).read(&open, 0, 1),
            ops().at(&elsewhere).lock(&open, "p", 0, 1),
            ops().at(&file).close(&Stateid { seqid: 9, ..open }),
            ops().at(&file).close(&Stateid::INVALID),
            ops().at(&file).close(&Stateid { seqid: 1, other: [0; 12] }),
        ] {
            assert_eq!(caller.status(of).await, Status::BAD_STATEID);
        }
        assert_eq!(caller.status(ops().at(&file).lock(&open, "p", 5, 0)).await, Status::INVAL);
        let beyond = ops().at(&file).lock(&open, "p", u64::MAX - 1, 5);
        assert_eq!(caller.status(beyond).await, Status::INVAL);
        caller.done(ops().at(&file).read(&open, 0, 1)).await;
    });
}

#[test]
fn lengths_in_a_compound_are_not_believed() {
    served(async |site| {
        let mut caller = Caller::new(site, "host").await;
        let (file, open) = made(&mut caller).await;
        let lots = u32::MAX;
        let at = || ops().at(&file);
        for of in [
            ops().op(Op::PUTFH, |out| out.put_u32(lots)),
            at().op(Op::LOOKUP, |out| out.put_u32(lots)),
            at().op(Op::GETATTR, |out| out.put_u32(lots)),
            at().op(Op::WRITE, |out| {
                out.put_stateid(&open);
                [0, 0, 2, lots].iter().for_each(|word| out.put_u32(*word));
            }),
            at().op(Op::WRITE, |out| {
                out.put_stateid(&open);
                [0, 0, 3, 0].iter().for_each(|word| out.put_u32(*word));
            }),
            at().op(Op::SETATTR, |out| out.put_stateid(&open)),
            at().op(Op::LOCK, |out| out.put_u32(9)),
            at().op(Op::TEST_STATEID, |out| out.put_u32(lots)),
            at().open_as("a", RW, |out| [1, 9].iter().for_each(|word| out.put_u32(*word))),
            at().open_as("a", RW, |out| out.put_u32(0)),
        ] {
            assert_eq!(caller.status(of).await, Status::BADXDR);
        }
        assert_eq!(caller.status(at().open("a", (0, 0), "f")).await, Status::INVAL);
        assert_eq!(caller.status(at().open("a", (1 << 28 | 1, 0), "f")).await, Status::INVAL);
        let name = "n".repeat(256);
        let told = caller.status(ops().root("one").look_up(&name)).await;
        assert!(matches!(told, Status::NAMETOOLONG | Status::NOENT), "{told:?}");
        let forged = [&file[..file.len() - 1], &[0]].concat();
        assert_eq!(caller.status(ops().at(&forged)).await, Status::BADHANDLE);
        // What is no COMPOUND at all.
        for args in [vec![], vec![0xff; 4], vec![0, 0, 0, 0, 0, 0, 0, 1]] {
            let told = heard(&mut caller.client, &args).await;
            assert_eq!(told, Err("GARBAGE_ARGS".to_owned()));
        }
        // More operations are said than there are.
        let mut short = compound(1, &caller.in_slot(1, 1, &ops()));
        short[8..12].copy_from_slice(&3_u32.to_be_bytes());
        let told = heard(&mut caller.client, &short).await.unwrap();
        assert_eq!(told[..4], Status::BADXDR.0.to_be_bytes());
        caller.client.xid += 1;
        let what = (nfs3::PROGRAM, 4, 2);
        let record = caller.client.record(caller.client.xid, what, &[]);
        caller.client.send(&record).await;
        assert_eq!(caller.client.reply().await.1, Err("PROC_UNAVAIL".to_owned()));
    });
}

#[test]
fn a_reply_has_the_data_that_was_counted() {
    served(async |site| {
        let mut caller = Caller::new(site, "host").await;
        let (file, open) = made(&mut caller).await;
        let mut many = ops().at(&file);
        for _ in 0..10 {
            many = many.read(&open, 0, u32::MAX);
        }
        let told = caller.ask(many).await;
        assert_eq!((told.status, told.results.len()), (Status::REP_TOO_BIG, 5), "2 MiB, no more");
        // What stands behind an operation of another kind was not counted.
        let hidden = ops().at(&file).op(Op::SETATTR, |out| {
            out.put_stateid(&open);
            out.put_bitmap(&Bitmap::default());
            out.put_opaque(b"");
        });
        let told = caller.ask(hidden.read(&open, 0, u32::MAX)).await;
        assert_eq!(told.status, Status::REP_TOO_BIG);
    });
}

#[test]
fn a_client_that_opens_without_end_meets_a_limit() {
    served(async |site| {
        let mut caller = Caller::new(site, "host").await;
        made(&mut caller).await;
        let mut opened = 0;
        for owner in 0..2000 {
            let open = ops().root("one").open(&format!("owner {owner}"), RW, "f");
            match caller.status(open).await {
                Status::OK => opened += 1,
                status => {
                    assert_eq!(status, Status::NOSPC);
                    break;
                }
            }
        }
        assert_eq!(opened, crate::held::limits::HELD_MAX - 1);
        let mut other = Caller::new(site, "other").await;
        other.done(ops().root("one").make("a", RW, 0, "g")).await;
    });
}
