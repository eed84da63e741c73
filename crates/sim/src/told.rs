//! Answers to the clients of a life that another one may have replaced.

use crate::boot::acknowledged;
use crate::heard;
use rekindle_base::Kind;
use rekindle_block::Device;
use rekindle_env::Env;
use std::time::Duration;

/// Answer to a client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Told {
    Fine,
    /// The fate of the change is unknown.
    Nothing,
    Fenced,
}

impl Told {
    /// Returns what an error tells the client, or the error if no client may see it.
    pub fn of(what: &str, error: &rekindle_volume::Error, may_fence: bool) -> Result<Self, String> {
        match error.kind() {
            Kind::Fenced if may_fence => Ok(Self::Fenced),
            kind if kind.is_retryable() => Ok(Self::Nothing),
            _ => Err(format!("{what}: {error}")),
        }
    }
}

/// Checks that a fenced volume goes on refusing.
pub async fn stays_fenced(env: &Env, device: &Device) -> Result<(), String> {
    heard::note("fenced: told");
    for _ in 0..3 {
        env.sleep(Duration::from_millis(200)).await;
        let written = acknowledged(device, device.write(0, &[9; 512], false)).await;
        let read = device.read(0, &mut [0; 512]).await;
        if written.is_ok() || read.is_ok() || device.flush().await.is_ok() {
            return Err(format!("it is fenced and goes on: {written:?}, {read:?}"));
        }
    }
    Ok(())
}
