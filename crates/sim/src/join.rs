//! Many actors in one task.

use rekindle_env::BoxFuture;
use std::task::Poll;

/// Runs futures side by side in one task, until all have ended or one has failed.
pub async fn join(mut parts: Vec<BoxFuture<'static, Result<(), String>>>) -> Result<(), String> {
    std::future::poll_fn(move |context| {
        let mut failed = None;
        parts.retain_mut(|part| match part.as_mut().poll(context) {
            Poll::Ready(Ok(())) => false,
            Poll::Ready(Err(why)) => {
                failed = Some(why);
                false
            }
            Poll::Pending => true,
        });
        match failed {
            Some(why) => Poll::Ready(Err(why)),
            None if parts.is_empty() => Poll::Ready(Ok(())),
            None => Poll::Pending,
        }
    })
    .await
}
