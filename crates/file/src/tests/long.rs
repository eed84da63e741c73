//! Files as long as can be.

use super::{CALLER, errno, make, with_files};
use crate::*;

#[test]
fn a_file_has_each_of_its_bytes_however_long_it_is() {
    with_files(async |_, files| {
        let ino = make(files, ROOT, "a", FileType::Regular).await;
        let shifts = || (12..63_u8).take_while(|shift| 1_u64 << shift < FILE_BYTES_MAX);
        for drained in [false, true] {
            for shift in shifts().filter(|_| !drained) {
                files.write(CALLER, ino, 1 << shift, &[shift; 4096]).await.unwrap();
            }
            files.write(CALLER, ino, 0, &[1; 4096]).await.unwrap();
            files.write(CALLER, ino, FILE_BYTES_MAX - 9, &[9; 9]).await.unwrap();
            let beyond = files.write(CALLER, ino, FILE_BYTES_MAX - 9, &[9; 10]).await;
            assert_eq!(errno(beyond), Some(Errno::FBIG));
            files.handle().staged().drain().await.unwrap();
            assert_eq!(files.read(ino, 0, 4096).await.unwrap(), [1; 4096][..]);
            for shift in shifts() {
                let found = files.read(ino, 1 << shift, 4096).await.unwrap();
                assert_eq!(found, [shift; 4096][..], "2^{shift}");
                let next = files.seek(ino, (1 << shift) + 4096, Seek::Data).await.unwrap();
                let last = FILE_BYTES_MAX - 4096;
                assert!([8192, last, 2 << shift].contains(&next), "2^{shift}: {next}");
            }
            assert_eq!(files.read(ino, FILE_BYTES_MAX - 9, 99).await.unwrap(), [9; 9][..]);
        }
        // Each look passes over a petabyte of nothing.
        let all = FILE_BYTES_MAX - 8192;
        files.allocate(CALLER, ino, Allocate::Punch, 4096, all).await.unwrap();
        files.handle().staged().drain().await.unwrap();
        for _ in 0..500 {
            let next = files.seek(ino, 4096, Seek::Data).await.unwrap();
            assert_eq!(next, FILE_BYTES_MAX - 4096);
        }
        let cut = SetAttr { size: Some(FILE_BYTES_MAX - 4096), ..SetAttr::default() };
        files.set_attr(CALLER, ino, &cut).await.unwrap();
        for _ in 0..100 {
            assert_eq!(errno(files.seek(ino, 4096, Seek::Data).await), Some(Errno::NXIO));
            files.allocate(CALLER, ino, Allocate::Punch, 4096, all).await.unwrap();
            files.handle().staged().drain().await.unwrap();
        }
    });
}
