//! A pool with a closure: at most two jobs run at once, and at most eight wait.
//!
//! `cargo run --no-default-features --example closure -- Cargo.toml README.md`

#![allow(clippy::print_stdout, reason = "its output is for a terminal")]

use std::{env, error::Error, num::NonZeroUsize, time::Duration};

use tokio::fs;
use waterwheel::{Job, Pool, WhenFull, handler::Kind};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    // Any error refuses the job, with its message.
    let count = Kind::from_fn("count", async |job, _cx| {
        let text = fs::read_to_string(str::from_utf8(&job.payload)?).await?;
        Ok(text.split_whitespace().count().to_string())
    });
    let two = NonZeroUsize::new(2).ok_or("two is not zero")?;
    let pool = Pool::builder("files").workers(two).queue_jobs(8).when_full(WhenFull::Wait).kind(count).build();

    for path in env::args().skip(1) {
        match pool.submit(Job::new("count", path.clone()).timeout(Duration::from_secs(1))).await {
            Ok(counted) => println!("{path}: {} words", str::from_utf8(&counted.output.bytes)?),
            Err(error) => println!("{path}: {error}"),
        }
    }

    pool.drain();
    pool.wait().await;
    Ok(())
}
