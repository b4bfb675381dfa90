//! Counts the members of groups, and starts the jobs that wait for them.

use std::mem;

use super::Engine;
use crate::store::{
    StoreError,
    sql::{Connection, due_jobs, mark_started, save_members},
};

impl<C: Connection> Engine<C> {
    /// Saves what the transaction changes of groups, and starts the jobs that wait for those that are complete. It is
    /// at the end: a transaction that has locked a group waits for nothing but further groups, which it takes in the
    /// order of their rows, and then for buckets of limit keys, so no two servers wait for each other.
    pub(super) fn settle_groups(&mut self) -> Result<(), StoreError> {
        // A job that cannot be read ends when it should start, and may be the member of another group.
        while self.finds_due || !self.groups.is_empty() {
            let any_complete = save_members(&mut self.rows, &mem::take(&mut self.groups))?;
            if mem::take(&mut self.finds_due) || any_complete {
                self.start_waiting()?;
            }
        }
        Ok(())
    }

    /// Starts the jobs whose groups are complete. What another transaction changes is left to a later tick.
    fn start_waiting(&mut self) -> Result<(), StoreError> {
        let mut due = self.select(due_jobs::<C>(), usize::MAX)?;
        mark_started(&mut self.rows, &due)?;
        due.retain(|record| record.waits_for_group());
        for record in &mut due {
            record.due_at = self.now;
        }
        self.start(due)
    }
}
