//! The beats of an owner to one holder: each asks for a lease. They have a connection of their own,
//! so that no copy delays them.

use crate::calls::Calls;
use crate::connection::{Connection, Unanswered};
use crate::limits::REST_TIME_MAX;
use crate::machine::Pace;
use crate::wire::Message;
use rekindle_base::{Life, NodeId};
use rekindle_env::Moment;
use std::sync::Arc;

/// The news of a beat.
pub(crate) enum News {
    /// The holder has granted the lease that was asked for at that moment.
    Granted(Moment),
    /// The holder does not want to grant any. The reason.
    Refused(String),
}

/// Sends beats for as long as the future is polled.
pub(crate) async fn beat(
    calls: Arc<Calls>,
    life: Life,
    holder: NodeId,
    pace: Pace,
    tell: impl Fn(News),
) {
    let lease = u32::try_from(pace.lease.as_millis()).unwrap_or(u32::MAX);
    let mut slot: Option<Connection> = None;
    loop {
        let asked = calls.env.now();
        let connection = match slot.take() {
            Some(connection) => Ok(connection),
            None => calls.connect(life, holder).await,
        };
        match connection {
            Ok(mut connection) => {
                // The time for a connection is not part of the lease.
                let asked = calls.env.now();
                // A later reply would grant nothing.
                match connection.call(&Message::Beat(lease), pace.lease).await {
                    Ok(_) => {
                        slot = Some(connection);
                        tell(News::Granted(asked));
                    }
                    Err(Unanswered::Refused(why)) => tell(News::Refused(why)),
                    Err(Unanswered::Broken(why)) => {
                        tracing::debug!(%holder, %why, "a beat is not answered");
                    }
                }
            }
            Err(why) => tracing::debug!(%holder, why, "a holder cannot be reached"),
        }
        calls.env.sleep(pace.beat.saturating_sub(calls.env.now().since(asked))).await;
    }
}

/// Tells a holder that the life stops in good order.
pub(crate) async fn rest(calls: &Calls, life: Life, holder: NodeId) {
    let work = async {
        let mut connection = calls.connect(life, holder).await?;
        connection.call(&Message::Rest, REST_TIME_MAX).await.map_err(|why| why.to_string())
    };
    if let Ok(Err(why)) = calls.env.timeout(REST_TIME_MAX, work).await {
        tracing::debug!(%holder, why, "a holder does not know that this node has stopped");
    }
}
