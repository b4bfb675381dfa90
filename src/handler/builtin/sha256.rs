//! `builtin = "sha256"`: the digest of the payload.

use std::fmt::Write;

use sha2::Digest;

use crate::{
    handler::{BlockingHandler, Context},
    model::{HandlerError, Job, Output},
};

/// Bytes between two looks at the cancel token: a few milliseconds of work.
const STEP: usize = 1 << 20;

/// Gives the SHA-256 of the payload.
pub(super) struct Sha256;

impl BlockingHandler for Sha256 {
    fn handle(&mut self, job: Box<Job>, cx: Context) -> Result<Output, HandlerError> {
        let mut hasher = sha2::Sha256::new();
        for step in job.payload.chunks(STEP) {
            if cx.is_cancelled() {
                return Err(HandlerError::Stopped);
            }
            hasher.update(step);
        }
        let mut digits = String::with_capacity(64);
        for byte in hasher.finalize() {
            write!(digits, "{byte:02x}").expect("writing to a string cannot fail");
        }
        Ok(Output::typed(digits, "text/plain"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::handler::{StopReason, context::bench};

    #[test]
    fn digests_of_fips_180() {
        let million = "a".repeat(1_000_000);
        let cases = [
            ("", "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"),
            ("abc", "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"),
            (&million, "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0"),
        ];
        for (payload, digest) in cases {
            let job = Job::new("sha256", payload.to_owned());
            let output = Sha256.handle(Box::new(job), bench::collect(64).context).expect("not cancelled");
            assert_eq!(output, Output::typed(digest, "text/plain"));
        }
    }

    #[test]
    fn stops_between_steps() {
        let bench = bench::collect(64);
        bench.context.cancel_token().cancel(StopReason::Caller);
        assert_eq!(Sha256.handle(Box::new(Job::new("sha256", "abc")), bench.context), Err(HandlerError::Stopped));
    }
}
