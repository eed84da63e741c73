//! The kernel's random numbers.

use crate::Random;
use rustix::io::Errno;
use rustix::rand::{GetRandomFlags, getrandom};

pub(super) struct RealRandom;

impl Random for RealRandom {
    fn fill(&self, bytes: &mut [u8]) {
        let mut done = 0;
        while done < bytes.len() {
            match getrandom(&mut bytes[done..], GetRandomFlags::empty()) {
                Ok(count) => done += count,
                Err(Errno::INTR) => {}
                Err(error) => {
                    // Kernels since 3.17 cannot refuse this; a predictable identifier would be
                    // worse than an end.
                    panic!("the kernel gives no random numbers: {error}");
                }
            }
        }
    }
}
