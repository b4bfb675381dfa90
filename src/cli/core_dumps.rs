//! Keeps what this process knows out of core dumps.

use rustix::process::{DumpableBehavior, Resource, Rlimit, getrlimit, set_dumpable_behavior, setrlimit};

/// Keeps what this process knows out of core dumps, and other processes of the user away from its memory. What it starts
/// leaves none either, unless it raises its own limit.
pub(crate) fn keep_out_of_core_dumps() {
    let none = Rlimit { current: Some(0), ..getrlimit(Resource::Core) };
    let kept = setrlimit(Resource::Core, none).and(set_dumpable_behavior(DumpableBehavior::NotDumpable));
    if let Err(error) = kept {
        tracing::warn!(%error, "a core dump of this process may hold secrets; set its limit of core dumps to 0");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_can_be_kept_out_of_core_dumps() {
        keep_out_of_core_dumps();
        assert_eq!(rustix::process::dumpable_behavior().unwrap(), DumpableBehavior::NotDumpable);
        assert_eq!(getrlimit(Resource::Core).current, Some(0));
    }
}
