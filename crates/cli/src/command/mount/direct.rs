//! Files that a program opens to write only: their bytes go past the kernel's pages, straight from
//! the program. Nothing is lost by that, since such a program reads nothing back, and the kernel
//! drops pages of a file whose time of modification has changed. A copy and the pages are saved,
//! which is a quarter of the time of a large file.
//!
//! A program that appends may read, too, and waits for its bytes then. But each of its writes is
//! one request so, and goes behind the file's end as a whole: the kernel's pages would end it where
//! a page ends, and another mount's bytes could come between.
//!
//! Kernels before Linux 6.6 do not take written ranges out of their pages then, so a program that
//! has mapped the file would see old bytes. They do not offer [`DIRECT_IO_ALLOW_MMAP`]. The others
//! are told that a program may map such a file, as any that it reads.

use rekindle_front::fuse::wire::{
    IN_HEADER_BYTES, InitOut, O_ACCMODE, O_APPEND, OUT_HEADER_BYTES, OpenOut, opcode, open,
};
use std::mem::offset_of;
use zerocopy::{FromBytes, IntoBytes};

/// Flag of INIT that says that a second word of flags follows the first.
const INIT_EXT: u32 = 1 << 30;
/// Flag of INIT, in the second word: the kernel keeps mapped pages and direct writes in step.
const DIRECT_IO_ALLOW_MMAP: u32 = 1 << 4;
/// Where an INIT has its words of flags.
const FLAGS: [usize; 2] = [IN_HEADER_BYTES + 12, IN_HEADER_BYTES + 16];
/// Where the reply to an INIT has them.
const REPLY_FLAGS: [usize; 2] =
    [OUT_HEADER_BYTES + offset_of!(InitOut, flags), OUT_HEADER_BYTES + offset_of!(InitOut, unused)];
/// Values of the bits [`O_ACCMODE`] of an open's flags.
const WRITE_ONLY: u32 = 0o1;
const READ_WRITE: u32 = 0o2;

/// Whether the kernel whose INIT this is keeps its pages in step with direct writes.
pub fn keeps_in_step(init: &[u8]) -> bool {
    let [first, second] = FLAGS.map(|at| word(init, at));
    first & INIT_EXT != 0 && second & DIRECT_IO_ALLOW_MMAP != 0
}

/// Has a kernel that keeps its pages in step let programs map files whose bytes go past them: it
/// refuses that (ENODEV) unless it is told. `reply`: to its INIT.
pub fn let_map(reply: &mut [u8]) {
    for (at, flag) in REPLY_FLAGS.into_iter().zip([INIT_EXT, DIRECT_IO_ALLOW_MMAP]) {
        let flags = word(reply, at) | flag;
        // An error has none.
        if let Some(place) = reply.get_mut(at..at + size_of::<u32>()) {
            place.copy_from_slice(flags.as_bytes());
        }
    }
}

/// Whether a request opens a file whose bytes are to go past the kernel's pages.
pub fn is_for(opcode: u32, request: &[u8]) -> bool {
    if !matches!(opcode, opcode::OPEN | opcode::CREATE) {
        return false;
    }
    let flags = word(request, IN_HEADER_BYTES);
    flags & O_ACCMODE == WRITE_ONLY || (flags & O_ACCMODE == READ_WRITE && flags & O_APPEND != 0)
}

/// Has the kernel pass the bytes of a file on as they are. `reply`: to an OPEN or CREATE.
pub fn set(reply: &mut [u8]) {
    change(reply, |opened| opened.flags |= open::DIRECT);
}

/// Has the kernel tell of each close of a file, by this handle: that frees locks.
pub fn have_flushed(reply: &mut [u8], handle: u64) {
    change(reply, |opened| {
        opened.flags &= !open::NOFLUSH;
        opened.fh = handle;
    });
}

fn change(reply: &mut [u8], change: impl FnOnce(&mut OpenOut)) {
    // An error has none.
    let Some((_, body)) = reply.split_at_mut_checked(OUT_HEADER_BYTES) else { return };
    // It may lie at any address.
    if let Ok((before, mut opened)) = OpenOut::read_from_suffix(body) {
        let at = before.len();
        change(&mut opened);
        body[at..].copy_from_slice(opened.as_bytes());
    }
}

/// The word at a place; 0 where the bytes end before.
fn word(bytes: &[u8], at: usize) -> u32 {
    let word = bytes.get(at..).and_then(|rest| rest.first_chunk());
    word.map_or(0, |word| u32::from_ne_bytes(*word))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rekindle_front::fuse::wire::EntryOut;

    fn request(words: &[u32]) -> Vec<u8> {
        [&[0; IN_HEADER_BYTES][..], words.as_bytes()].concat()
    }

    #[test]
    fn only_a_kernel_that_says_so_keeps_its_pages_in_step() {
        assert!(keeps_in_step(&request(&[7, 45, 0, INIT_EXT, DIRECT_IO_ALLOW_MMAP])));
        assert!(!keeps_in_step(&request(&[7, 38, 0, INIT_EXT, !DIRECT_IO_ALLOW_MMAP])));
        assert!(!keeps_in_step(&request(&[7, 45, 0, !INIT_EXT, DIRECT_IO_ALLOW_MMAP])));
        assert!(!keeps_in_step(&request(&[7, 12, 0, INIT_EXT])), "an old kernel's is shorter");
        assert!(!keeps_in_step(&[]));
    }

    #[test]
    fn a_file_that_is_read_too_keeps_its_pages_unless_it_is_appended_to() {
        let (create, truncate) = (0o100, 0o1000);
        for opcode in [opcode::OPEN, opcode::CREATE] {
            assert!(is_for(opcode, &request(&[WRITE_ONLY | create | truncate, 0])));
            assert!(is_for(opcode, &request(&[READ_WRITE | O_APPEND, 0])));
            assert!(!is_for(opcode, &request(&[READ_WRITE | create, 0])));
            assert!(!is_for(opcode, &request(&[O_APPEND, 0])), "O_RDONLY");
            assert!(!is_for(opcode, &[]));
        }
        assert!(!is_for(opcode::OPENDIR, &request(&[WRITE_ONLY, 0])));
    }

    #[test]
    fn a_kernel_is_told_that_files_may_be_mapped_that_go_past_its_pages() {
        let agreed = InitOut { major: 7, minor: 40, flags: 0b101, ..InitOut::default() };
        let mut reply = [&[0; OUT_HEADER_BYTES][..], agreed.as_bytes()].concat();
        let_map(&mut reply);
        let now = InitOut::read_from_bytes(&reply[OUT_HEADER_BYTES..]).expect("it has that");
        let unused = [DIRECT_IO_ALLOW_MMAP, 0, 0, 0, 0, 0, 0, 0];
        assert_eq!(now, InitOut { flags: 0b101 | INIT_EXT, unused, ..agreed });
        let mut error = [0xff; OUT_HEADER_BYTES];
        let_map(&mut error);
        assert_eq!(error, [0xff; OUT_HEADER_BYTES]);
    }

    #[test]
    fn the_flag_is_set_where_the_reply_has_its_flags() {
        let opened = OpenOut { fh: 1, flags: open::FILE, padding: 0 };
        for entry in [&[][..], EntryOut::default().as_bytes()] {
            let mut reply = [&[0; OUT_HEADER_BYTES][..], entry, opened.as_bytes()].concat();
            let before = reply.clone();
            set(&mut reply);
            have_flushed(&mut reply, 9);
            let now = OpenOut::read_from_suffix(&reply).expect("it ends with that").1;
            let flags = open::FILE & !open::NOFLUSH | open::DIRECT;
            assert_eq!(now, OpenOut { fh: 9, flags, ..opened });
            let rest = reply.len() - size_of::<OpenOut>();
            assert_eq!(reply[..rest], before[..rest]);
        }
        set(&mut []);
        let mut error = [0xff; OUT_HEADER_BYTES];
        have_flushed(&mut error, 9);
        assert_eq!(error, [0xff; OUT_HEADER_BYTES]);
    }
}
