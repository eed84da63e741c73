//! The operations of version 4.1, by number (RFC 8881, section 18).

use super::status::Status;

/// An operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Op(pub u32);

macro_rules! ops {
    ($($name:ident = $number:literal),* $(,)?) => {
        impl Op {
            $(pub const $name: Op = Op($number);)*
        }
    };
}

ops! {
    ACCESS = 3,
    CLOSE = 4,
    COMMIT = 5,
    CREATE = 6,
    GETATTR = 9,
    GETFH = 10,
    LINK = 11,
    LOCK = 12,
    LOCKT = 13,
    LOCKU = 14,
    LOOKUP = 15,
    LOOKUPP = 16,
    NVERIFY = 17,
    OPEN = 18,
    OPEN_DOWNGRADE = 21,
    PUTFH = 22,
    PUTPUBFH = 23,
    PUTROOTFH = 24,
    READ = 25,
    READDIR = 26,
    READLINK = 27,
    REMOVE = 28,
    RENAME = 29,
    RESTOREFH = 31,
    SAVEFH = 32,
    SECINFO = 33,
    SETATTR = 34,
    VERIFY = 37,
    WRITE = 38,
    BIND_CONN_TO_SESSION = 41,
    EXCHANGE_ID = 42,
    CREATE_SESSION = 43,
    DESTROY_SESSION = 44,
    FREE_STATEID = 45,
    SECINFO_NO_NAME = 52,
    SEQUENCE = 53,
    TEST_STATEID = 55,
    DESTROY_CLIENTID = 57,
    RECLAIM_COMPLETE = 58,
    ILLEGAL = 10044,
}

impl Op {
    /// Returns the operation as a reply names it: numbers that version 4.1 has not are one.
    pub fn known(self) -> Self {
        if (3..=58).contains(&self.0) { self } else { Self::ILLEGAL }
    }

    /// Whether it may be the only one of a COMPOUND that is of no session.
    pub fn stands_alone(self) -> bool {
        matches!(
            self,
            Op::EXCHANGE_ID
                | Op::CREATE_SESSION
                | Op::DESTROY_SESSION
                | Op::DESTROY_CLIENTID
                | Op::BIND_CONN_TO_SESSION
        )
    }

    /// Whether it only shows something: carried out without a reply, it has done no harm.
    pub fn only_shows(self) -> bool {
        matches!(
            self,
            Op::ACCESS
                | Op::GETATTR
                | Op::GETFH
                | Op::READ
                | Op::READDIR
                | Op::READLINK
                | Op::SECINFO
                | Op::SECINFO_NO_NAME
                | Op::TEST_STATEID
        )
    }

    /// Says why the operation cannot stand where it does among `count` ones.
    pub fn check_place(self, at: u32, count: u32, in_session: bool) -> Result<(), Status> {
        match self {
            // It says so itself.
            Op::ILLEGAL => Ok(()),
            Op::SEQUENCE if at > 0 => Err(Status::SEQUENCE_POS),
            Op::SEQUENCE => Ok(()),
            // It may be in a session, too.
            op if op.stands_alone() && !in_session && count > 1 => Err(Status::NOT_ONLY_OP),
            Op::BIND_CONN_TO_SESSION if in_session => Err(Status::NOT_ONLY_OP),
            op if op.stands_alone() || in_session => Ok(()),
            _ => Err(Status::OP_NOT_IN_SESSION),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operations_are_in_a_session_or_alone() {
        assert_eq!(Op::SEQUENCE.check_place(0, 9, false), Ok(()));
        assert_eq!(Op::SEQUENCE.check_place(1, 9, true), Err(Status::SEQUENCE_POS));
        assert_eq!(Op::PUTFH.check_place(0, 1, false), Err(Status::OP_NOT_IN_SESSION));
        assert_eq!(Op::PUTFH.check_place(1, 2, true), Ok(()));
        assert_eq!(Op::EXCHANGE_ID.check_place(0, 1, false), Ok(()));
        assert_eq!(Op::EXCHANGE_ID.check_place(0, 2, false), Err(Status::NOT_ONLY_OP));
        assert_eq!(Op::EXCHANGE_ID.check_place(1, 2, true), Ok(()));
        assert_eq!(Op::DESTROY_SESSION.check_place(1, 2, true), Ok(()));
        assert_eq!(Op::ILLEGAL.check_place(0, 2, false), Ok(()), "it is told to be illegal");
        assert_eq!(Op(59).known(), Op::ILLEGAL);
        assert_eq!(Op(2).known(), Op::ILLEGAL);
    }
}
