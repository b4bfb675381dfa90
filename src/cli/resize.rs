//! `waterwheel resize`.

use clap::Args;

use super::{console::Console, exit::Exit, failure::Failure, steer::SteerArgs};
use crate::proto::ResizeRequest;

const EXAMPLE: &str = "\
Example:
  waterwheel resize cpu 2..16";

/// Set the number of workers of a pool, or its bounds.
///
/// Within bounds, the pool chooses by its load. Surplus workers stop at once if idle, else after their job. At its next
/// start, the server uses the configuration again.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLE)]
pub(super) struct ResizeArgs {
    /// Name of the pool.
    pool: String,
    /// Number of workers, such as 8, or bounds, such as 2..16.
    #[arg(value_parser = workers)]
    workers: Workers,
    #[command(flatten)]
    pub(super) steer: SteerArgs,
}

/// Smallest and largest number of workers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Workers {
    min: u32,
    max: u32,
}

pub(super) async fn run(args: ResizeArgs, console: &mut Console<'_>) -> Result<Exit, Failure> {
    let ResizeArgs { pool, workers: Workers { min, max }, steer } = args;
    let request = ResizeRequest { pool, min_workers: min, max_workers: max, reason: steer.reason.clone() };
    let answer = steer.operator.ask(request, async |mut admin, request| admin.resize(request).await).await?;
    steer.show(answer.pool, console).await
}

fn workers(text: &str) -> Result<Workers, String> {
    let count = |text: &str| {
        let count = text.trim().parse().ok().filter(|count| (1..=65_536).contains(count));
        count.ok_or_else(|| "must be a number from 1 to 65536, such as 8, or two of them, such as 2..16".to_owned())
    };
    let (min, max) = match text.split_once("..") {
        Some((min, max)) => (count(min)?, count(max)?),
        None => (count(text)?, count(text)?),
    };
    if min > max {
        return Err(format!("{min} is more than {max}; put the smaller one first"));
    }
    Ok(Workers { min, max })
}

#[cfg(test)]
mod tests {
    use super::{Workers, workers};

    #[test]
    fn a_number_or_two_bounds() {
        for (text, min, max) in [("8", 8, 8), ("2..16", 2, 16), ("65536", 65_536, 65_536), ("3..3", 3, 3)] {
            assert_eq!(workers(text), Ok(Workers { min, max }), "{text}");
        }
        for text in ["", "0", "-1", "x", "2..", "..3", "65537", "1..0", "16..2", "2...3"] {
            assert!(workers(text).is_err(), "{text}");
        }
    }
}
