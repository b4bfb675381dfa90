//! Disables core dumps.

use rustix::process::{DumpableBehavior, Resource, Rlimit, getrlimit, set_dumpable_behavior, setrlimit};

/// Disables core dumps of this process, and access of other processes of the user to its memory. Its child processes
/// write no core dump either, unless they raise their own limit.
pub(crate) fn keep_out_of_core_dumps() {
    if let Err(error) = set_dumpable_behavior(DumpableBehavior::NotDumpable) {
        tracing::warn!(%error, "a core dump of this process may hold secrets; set its limit of core dumps to 0");
    }
    // The limit is for child processes. A service manager that forbids the call has set it itself.
    let limit = getrlimit(Resource::Core);
    if limit.current != Some(0) {
        let _ = setrlimit(Resource::Core, Rlimit { current: Some(0), ..limit });
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
