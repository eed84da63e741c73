//! The bounds of sessions, and what a session is asked for beside its requests.

use super::*;

#[test]
fn a_session_keeps_to_its_bounds() {
    served(async |site| {
        let all: Vec<u32> = (0..56).collect();
        let root = || ops().plain(Op::PUTROOTFH);
        let mut few = Caller::bounded(site, "few", 1, [512, 400, 400, 4, 2]).await;
        assert_eq!(few.status(root().handle().attributes(&[1])).await, Status::OK);
        let more = root().handle().attributes(&[1]).handle();
        assert_eq!(few.status(more).await, Status::TOO_MANY_OPS);
        few.sequence -= 1;
        let long = root().look_up(&"a".repeat(500));
        assert_eq!(few.status(long).await, Status::REQ_TOO_BIG);
        few.sequence -= 1;
        let told = few.ask(root().attributes(&all).attributes(&all)).await;
        assert_eq!(told.status, Status::REP_TOO_BIG);
        let third = few.in_slot(2, 1, &root());
        assert_eq!(ask(&mut few.client, 1, &third).await.status, Status::BADSLOT);
        assert_eq!(few.status(root()).await, Status::OK, "it goes on");
        // An earlier process of the daemon has made it: nothing is known of its bounds.
        let mut other = Caller::bounded(site, "other", 1, [512, 400, 400, 4, 2]).await;
        site.restart(Settings::default());
        other.reconnect(site);
        let more = root().handle().attributes(&[1]).handle();
        assert_eq!(other.status(more).await, Status::OK);
    });
}

#[test]
fn flags_and_bounds_of_no_meaning_are_refused() {
    served(async |site| {
        let mut client = site.connect();
        for flags in [4, 8, 0x8000_0000] {
            let asked = exchange_id_as("host", 1, flags);
            assert_eq!(ask(&mut client, 1, &asked).await.status, Status::INVAL, "{flags:#x}");
        }
        let two_words = ops().op(Op::EXCHANGE_ID, |out| {
            out.put_plain(&[1; 8]);
            out.put_opaque(b"host");
            [0, 0, 2].iter().for_each(|word| out.put_u32(*word));
        });
        assert_eq!(ask(&mut client, 1, &two_words).await.status, Status::BADXDR);
        // What kernels set: referrals, stateids of principals, no layouts.
        let told = ask(&mut client, 1, &exchange_id_as("host", 1, 0x0001_0103)).await;
        assert_eq!(told.status, Status::OK);
        let id = told.of(Op::EXCHANGE_ID).u64().unwrap();
        let status = async |client: &mut _, flags, bounds| {
            ask(client, 1, &create_session(id, 1, flags, bounds)).await.status
        };
        assert_eq!(status(&mut client, 0xf, BOUNDS).await, Status::INVAL);
        let [call, reply, cached, ops, slots] = BOUNDS;
        for bounds in [[20, reply, cached, ops, slots], [call, 0, cached, ops, slots]] {
            assert_eq!(status(&mut client, 0, bounds).await, Status::TOOSMALL);
        }
        assert_eq!(status(&mut client, 3, BOUNDS).await, Status::OK);
    });
}

#[test]
fn a_session_ends_with_its_last_operation() {
    served(async |site| {
        let mut caller = Caller::new(site, "host").await;
        let session = caller.session;
        let destroy = || ops().op(Op::DESTROY_SESSION, |out| out.put_plain(&session));
        let amid = destroy().plain(Op::PUTROOTFH);
        assert_eq!(caller.status(amid).await, Status::NOT_ONLY_OP);
        assert_eq!(caller.status(ops().plain(Op::PUTROOTFH)).await, Status::OK, "it is there");
        assert_eq!(caller.status(destroy()).await, Status::OK);
        assert_eq!(caller.status(ops()).await, Status::BADSESSION);
    });
}

#[test]
fn an_operation_that_is_none_is_told_so_also_without_a_session() {
    served(async |site| {
        let mut client = site.connect();
        let none = ops().plain(Op(4000)).plain(Op::PUTROOTFH);
        assert_eq!(ask(&mut client, 1, &none).await.status, Status::OP_ILLEGAL);
    });
}

#[test]
fn only_a_directory_has_names_and_a_parent() {
    served(async |site| {
        let mut caller = Caller::new(site, "host").await;
        let (file, _) = made(&mut caller).await;
        let rename = |ops: Ops| {
            ops.op(Op::RENAME, |out| {
                out.put_opaque(b"f");
                out.put_opaque(b"g");
            })
        };
        let from_file = ops().at(&file).plain(Op::SAVEFH).root("one");
        assert_eq!(caller.status(rename(from_file)).await, Status::NOTDIR);
        let to_file = ops().root("one").plain(Op::SAVEFH).at(&file);
        assert_eq!(caller.status(rename(to_file)).await, Status::NOTDIR);
        assert_eq!(caller.status(ops().at(&file).plain(Op::LOOKUPP)).await, Status::NOTDIR);
    });
}
