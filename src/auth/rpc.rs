//! The RPCs that rules allow, and sets of them.

/// An RPC that a rule can allow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rpc {
    /// `WorkerPoolService.Submit`.
    Submit,
    /// `WorkerPoolService.Stream`.
    Stream,
    /// `WorkerPoolService.SubmitMany`.
    SubmitMany,
    /// `WorkerPoolService.Stats`.
    Stats,
    /// `WorkerPoolService.WatchStats`.
    WatchStats,
    /// `AdminService.Drain`.
    Drain,
    /// `AdminService.Pause`.
    Pause,
    /// `AdminService.Resume`.
    Resume,
    /// `AdminService.Resize`.
    Resize,
    /// `AdminService.CancelJob`.
    CancelJob,
    /// `AdminService.Explain`.
    Explain,
    /// `AdminService.ListJobs`.
    ListJobs,
    /// `AdminService.Reload`.
    Reload,
    /// Server reflection, in each of its versions.
    Reflection,
    /// Out-of-band load reports, for clients that balance by load.
    LoadReports,
    /// `WorkerService.Attach`.
    Attach,
    /// `JobService.CreateJob`.
    CreateJob,
    /// `JobService.CreateJobs`.
    CreateJobs,
    /// `JobService.GetJob`.
    GetJob,
    /// `JobService.ListJobs`.
    ListDetached,
    /// `JobService.WaitJob`.
    WaitJob,
    /// `JobService.CancelJob`.
    CancelDetached,
    /// `JobService.RetryJob`.
    RetryJob,
    /// `JobService.DeleteJob`.
    DeleteJob,
    /// `JobService.PurgeJobs`.
    PurgeJobs,
    /// `JobService.WatchJob`.
    WatchJob,
}

/// A set of RPCs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Rpcs(u32);

impl Rpc {
    /// Every RPC, with its name in the configuration and in errors.
    pub const NAMES: [(&'static str, Self); 26] = [
        ("Submit", Self::Submit),
        ("Stream", Self::Stream),
        ("SubmitMany", Self::SubmitMany),
        ("Stats", Self::Stats),
        ("WatchStats", Self::WatchStats),
        ("Drain", Self::Drain),
        ("Pause", Self::Pause),
        ("Resume", Self::Resume),
        ("Resize", Self::Resize),
        ("CancelJob", Self::CancelJob),
        ("Explain", Self::Explain),
        ("ListJobs", Self::ListJobs),
        ("Reload", Self::Reload),
        ("Reflection", Self::Reflection),
        ("LoadReports", Self::LoadReports),
        ("Attach", Self::Attach),
        ("CreateJob", Self::CreateJob),
        ("CreateJobs", Self::CreateJobs),
        ("GetJob", Self::GetJob),
        // `AdminService` has RPCs of these names.
        ("JobService.ListJobs", Self::ListDetached),
        ("WaitJob", Self::WaitJob),
        ("JobService.CancelJob", Self::CancelDetached),
        ("RetryJob", Self::RetryJob),
        ("DeleteJob", Self::DeleteJob),
        ("PurgeJobs", Self::PurgeJobs),
        ("WatchJob", Self::WatchJob),
    ];

    /// Its name.
    #[must_use]
    pub fn name(self) -> &'static str {
        Self::NAMES[self as usize].0
    }

    /// Whether it belongs to `WorkerPoolService`.
    #[must_use]
    pub fn is_of_worker_pool(self) -> bool {
        matches!(self, Self::Submit | Self::Stream | Self::SubmitMany | Self::Stats | Self::WatchStats)
    }

    /// Whether it belongs to `AdminService`.
    #[must_use]
    pub fn is_of_admin(self) -> bool {
        matches!(
            self,
            Self::Drain
                | Self::Pause
                | Self::Resume
                | Self::Resize
                | Self::CancelJob
                | Self::Explain
                | Self::ListJobs
                | Self::Reload
        )
    }

    /// Whether it belongs to `JobService`.
    #[must_use]
    pub fn is_of_job_service(self) -> bool {
        self as u32 >= Self::CreateJob as u32
    }

    /// The RPC of `JobService` with this method name.
    #[must_use]
    pub fn of_job_service(method: &str) -> Option<Self> {
        match method {
            "ListJobs" => Some(Self::ListDetached),
            "CancelJob" => Some(Self::CancelDetached),
            _ => Self::named(method).filter(|rpc| rpc.is_of_job_service()),
        }
    }

    /// The RPC of this name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        Self::NAMES.iter().find(|(known, _)| *known == name).map(|(_, rpc)| *rpc)
    }
}

impl Rpcs {
    /// All of them: `*`.
    pub const ALL: Self = Self((1 << Rpc::NAMES.len()) - 1);

    /// The set with one more.
    #[must_use]
    pub fn with(self, rpc: Rpc) -> Self {
        Self(self.0 | 1 << rpc as u32)
    }

    /// The RPCs of both sets.
    #[must_use]
    pub fn or(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Whether the set contains it.
    #[must_use]
    pub fn has(self, rpc: Rpc) -> bool {
        self.0 & 1 << rpc as u32 != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_stands_at_its_place_and_in_its_set_alone() {
        for (name, rpc) in Rpc::NAMES {
            assert_eq!((rpc.name(), Rpc::named(name)), (name, Some(rpc)));
            let only = Rpcs::default().with(rpc);
            assert!(Rpc::NAMES.iter().all(|(_, other)| only.has(*other) == (*other == rpc)));
            assert!(Rpcs::ALL.has(rpc) && !Rpcs::default().has(rpc));
        }
    }
}
