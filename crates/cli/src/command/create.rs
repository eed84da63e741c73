//! The request for a new volume, of `volume create` and of an import.

use crate::arguments::Create;
use rekindle_front::http::api::CreateVolume;
use rekindle_staging::{Ack, Policy};
use rekindle_terminal::failure::{Failure, Outcome};
use serde_json::{Value, json};

/// Builds the request for the daemon, which knows the defaults of each kind.
pub fn request(create: &Create) -> Value {
    let block_size = create.block_size.map(|bytes| ("block_size".to_owned(), json!(bytes)));
    json!(CreateVolume {
        name: create.name.clone(),
        kind: create.kind.clone(),
        size: create.size,
        policy: create.writes.policy,
        ack: create.writes.ack,
        copies: create.writes.copies,
        on_missing_copy: create.writes.on_missing_copy,
        settings: block_size.into_iter().collect(),
    })
}

/// Refuses words that do not go together.
pub fn agree(policy: Policy, ack: Ack) -> Outcome {
    if policy != Policy::Back && ack == Ack::Memory {
        return Err(Failure::usage(
            "--ack memory says what the log promises, and this policy waits for the store instead",
        )
        .next("leave --ack out, or use --policy back"));
    }
    Ok(())
}
