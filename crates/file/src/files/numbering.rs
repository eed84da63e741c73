//! Notes numbers for new inodes ([`crate::numbers`]).

use super::{Done, Files};
use crate::format::record::Effect;
use crate::limits;
use crate::types::{Errno, INO_BITS, Ino};

impl Files {
    /// Notes numbers for the next inodes, durably.
    pub(super) async fn note_numbers(&self) -> Done<()> {
        let _noting = self.home.noting.lock().await;
        let last = |from: Ino| from + limits::NUMBERS_NOTED - 1;
        let next = loop {
            let from = self.numbers_from();
            if !self.home.numbers.lock().next.is_empty() {
                return Ok(());
            }
            if last(from) >> INO_BITS != 0 {
                return Err(Errno::NOSPC.into());
            }
            // No commit could note it in a damaged page of the table.
            self.look(|view| view.stored(last(from)).map(drop)).await?;
            let turn = self.home.turn.clone().lock_owned().await;
            if self.numbers_from() == from {
                // That an inode with this number is gone says that the number was given.
                let noted = [Effect::Inode { ino: last(from), inode: None }];
                drop(self.enter(turn, &noted).await?);
                break from..last(from) + 1;
            }
        };
        self.sync().await?;
        self.home.numbers.lock().next = next;
        Ok(())
    }

    fn numbers_from(&self) -> Ino {
        let next = self.totals(|totals| totals.next_ino);
        self.home.numbers.lock().unused(next)
    }
}
