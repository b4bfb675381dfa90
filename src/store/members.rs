//! The members of a group, and what the job that waits for them waits for.

/// The members of a group by state. Those that were removed still count.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Members {
    /// Whether all members must succeed; else all must end.
    pub must_succeed: bool,
    /// Whether no more members may join.
    pub is_closed: bool,
    /// Members that have not ended.
    pub active: u64,
    /// Members that have ended, by state: the final ones of [`JobState::ALL`](super::JobState::ALL).
    pub ended: [u64; 4],
}

impl Members {
    /// Whether the job that waits for them may start.
    pub fn is_complete(&self) -> bool {
        self.is_closed && self.active == 0 && (self.unsuccessful() == 0 || !self.must_succeed)
    }

    fn unsuccessful(&self) -> u64 {
        self.ended[1..].iter().sum()
    }

    /// What the job that waits for them waits for, for people.
    pub fn waits_for(&self) -> String {
        match (self.is_closed, self.active, self.unsuccessful()) {
            (false, active, _) => {
                format!("its group is open: {active} of its jobs have not ended, and others may join")
            }
            (true, 0, 0) => "its group is complete".to_owned(),
            (true, 0, bad) => format!("{bad} jobs of its group did not succeed: retry them, or cancel this one"),
            (true, active, _) => format!("{active} jobs of its group have not ended"),
        }
    }
}
