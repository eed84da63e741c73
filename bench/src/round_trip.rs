//! The time of a bare round trip between two threads.

use crate::machine;
use anyhow::Result;
use std::io::{Read, Write};
use std::time::{Duration, Instant};

const ROUNDS: u32 = 20_000;

/// Measures the mean time of a round trip over two ends of a connection, 4 KiB there and `reply`
/// bytes back. The threads are pinned to the cores of the client, and of the server.
pub fn round_trip<S: Read + Write + Send + 'static>(
    (mut ours, mut theirs): (S, S),
    (client, server): (&str, &str),
    reply: usize,
) -> Result<Duration> {
    let server = server.to_owned();
    let echo = std::thread::spawn(move || -> Result<()> {
        machine::pin_this_thread(&server)?;
        let mut buffer = [0; 4096];
        while theirs.read_exact(&mut buffer).is_ok() {
            theirs.write_all(&buffer[..reply])?;
        }
        Ok(())
    });
    let client = client.to_owned();
    let ask = std::thread::spawn(move || -> Result<Duration> {
        machine::pin_this_thread(&client)?;
        let mut buffer = [0; 4096];
        let mut begin = Instant::now();
        for round in 0..ROUNDS + ROUNDS / 10 {
            if round == ROUNDS / 10 {
                begin = Instant::now();
            }
            ours.write_all(&buffer)?;
            ours.read_exact(&mut buffer[..reply])?;
        }
        Ok(begin.elapsed() / ROUNDS)
    });
    let time = ask.join().expect("no panic")?;
    echo.join().expect("no panic")?;
    Ok(time)
}
