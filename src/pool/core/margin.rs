use super::law::{FORGOTTEN, Law, WINDOW_WEIGHT};

/// Where even jobs that hardly wait miss their deadlines, to refuse more of them helps nobody.
const NARROWEST: f64 = 0.1;
const NARROWER: f64 = 0.95;
const WIDER: f64 = 0.01;
/// Missed jobs of about a second that may be chance: where few are queued, one is a large share.
const CHANCE: f64 = 1.0;
/// Queued jobs after which a tenant of a class has a margin of its own.
const ENOUGH: u32 = 5;

/// How much of the allowed wait is given out: less while accepted jobs miss their deadlines, more while they do not.
///
/// Both are counted over about a second, so that one job of a small pool is not taken for a trend.
#[derive(Debug, Clone, Copy)]
pub(super) struct Margin {
    pub(super) value: f64,
    accepted: f64,
    missed: f64,
    /// Whether a job was queued, or missed its deadline, in the window that is open.
    moved: bool,
}

impl Margin {
    pub(super) const WIDEST: Self = Self { value: 1.0, accepted: 0.0, missed: 0.0, moved: false };

    pub(super) fn accept(&mut self) {
        self.accepted += 1.0;
        self.moved = true;
    }

    pub(super) fn miss(&mut self) {
        self.missed += 1.0;
        self.moved = true;
    }

    /// The end of a window, and of `empty` more in which nothing happened. `rests` says that nothing is queued: what was
    /// learnt under load then fades by half with each window that adds nothing to it.
    pub(super) fn turn(&mut self, empty: u32, rests: bool, law: &Law) {
        for _ in 0..=empty.min(FORGOTTEN) {
            let moved = std::mem::take(&mut self.moved);
            let rests = rests && !moved;
            self.value = if rests {
                f64::midpoint(self.value, 1.0)
            } else if self.missed > (law.missed_share * self.accepted).max(CHANCE) {
                (self.value * NARROWER).max(NARROWEST)
            } else {
                (self.value + WIDER).min(1.0)
            };
            self.accepted *= 1.0 - WINDOW_WEIGHT;
            self.missed *= 1.0 - WINDOW_WEIGHT;
        }
    }
}

/// The margin of one tenant of a class, brought up to date when it is looked at. Those who queue much miss because of
/// what they ask for: that is no reason to refuse others, whose wait is short. Who has queued but a few jobs tells too
/// little by itself, and counts in the margin of its class.
#[derive(Debug, Clone, Copy)]
pub(super) struct OwnMargin {
    margin: Margin,
    /// Number of the window that is open.
    window: u64,
    /// Queued jobs, until there are enough.
    jobs: u32,
}

impl Default for OwnMargin {
    fn default() -> Self {
        Self::NONE
    }
}

impl OwnMargin {
    pub(super) const NONE: Self = Self { margin: Margin::WIDEST, window: 0, jobs: 0 };

    /// The value at the end of the last window; `None` while the one of the class holds. `rests` says that the tenant has
    /// nothing queued.
    pub(super) fn value(&self, window: u64, rests: bool, law: &Law) -> Option<f64> {
        let mut now = *self;
        now.catch_up(window, rests, law);
        (now.jobs >= ENOUGH).then_some(now.margin.value)
    }

    /// A job is queued. Returns whether what becomes of it counts here; else it does in the margin of the class.
    pub(super) fn accept(&mut self, window: u64, rests: bool, of_class: f64, law: &Law) -> bool {
        self.catch_up(window, rests, law);
        if self.jobs >= ENOUGH {
            self.margin.accept();
            return true;
        }
        self.jobs += 1;
        // It goes on from where the class is.
        self.margin.value = of_class;
        false
    }

    /// A job that counts here missed its deadline.
    pub(super) fn miss(&mut self, window: u64, rests: bool, law: &Law) {
        self.catch_up(window, rests, law);
        self.margin.miss();
    }

    /// To be said before the tenant begins to rest, or to queue.
    pub(super) fn catch_up(&mut self, window: u64, rests: bool, law: &Law) {
        if window > self.window {
            if self.jobs >= ENOUGH {
                let empty = u32::try_from(window - self.window - 1).unwrap_or(u32::MAX);
                self.margin.turn(empty, rests, law);
            }
            self.window = window;
        }
    }
}
