//! Checks that the random tests covered every event and outcome often enough.

use std::collections::BTreeMap;

use super::{
    Answer, Event, Step,
    drive::{Drive, View},
    found_name, hit_name, notification_name, reason_name,
};

/// Minimum number of occurrences of each event.
const AT_LEAST: &[(u64, &[&str])] = &[
    (2000, &["starts", "queued", "notified: starts", "decided", "done"]),
    (1000, &["waits"]),
    (200, &["refused: full", "refused: past", "refused: unreachable", "refused: share", "refused: limit"]),
    (200, &["refused: draining", "refused: impatient", "behind a limit, worker idle"]),
    (200, &["notified: expired", "notified: shed", "was queued", "was waiting", "gone", "decided before"]),
    (50, &["notified: no room"]),
    (20, &["notified: newer"]),
    (80, &["notified: refused", "hit a caller"]),
    (5, &["runs on", "starts on a tick"]),
    (100, &["notified: drained", "replaced", "not replaced", "drops", "released without outcome"]),
    (
        100,
        &[
            "blocked",
            "jobs of several tenants",
            "saturated",
            "pool smaller than configured",
            "paused with a job that could start",
            "retiring workers",
            "refused: shut",
            "notified: cancelled",
            "paused",
            "not paused",
            "hit in the queue",
            "hit nothing",
        ],
    ),
];

/// Counts events by name.
#[derive(Default)]
pub(super) struct EventTally(BTreeMap<&'static str, u64>);

impl EventTally {
    pub(super) fn one(&mut self, name: &'static str) {
        *self.0.entry(name).or_default() += 1;
    }

    pub(super) fn step(&mut self, event: Event, step: &Step, drive: &Drive) {
        self.one(match &step.answer {
            Answer::Started { .. } => "starts",
            Answer::Queued => "queued",
            Answer::Waiting => "waits",
            Answer::Refused(refusal) => match reason_name(&refusal.reason) {
                "full" => "refused: full",
                "past" => "refused: past",
                "unreachable" => "refused: unreachable",
                "impatient" => "refused: impatient",
                "long" => "refused: long",
                "share" => "refused: share",
                "limit" => "refused: limit",
                "shut" => "refused: shut",
                _ => "refused: draining",
            },
            Answer::Decided(true) => "decided",
            Answer::Decided(false) => "decided before",
            Answer::Dropped(states) if !states.is_empty() => "drops",
            Answer::Found(found) => found_name(*found),
            Answer::Replaced(true) => "replaced",
            Answer::Replaced(false) => "not replaced",
            Answer::Paused(true) => "paused",
            Answer::Paused(false) => "not paused",
            Answer::Hit(hit) => hit_name(*hit),
            Answer::Dropped(_) | Answer::Done => "done",
        });
        for notification in &step.notifications {
            self.one(match notification_name(notification) {
                None => "notified: starts",
                Some("expired") => "notified: expired",
                Some("no room") => "notified: no room",
                Some("shed") => "notified: shed",
                Some("replaced") => "notified: newer",
                Some("drained") => "notified: drained",
                Some("cancelled") => "notified: cancelled",
                Some(_) => "notified: refused",
            });
        }
        if matches!(event, Event::Tick) && !step.notifications.is_empty() {
            self.one("starts on a tick");
        }
        self.state(event, &drive.view());
    }

    fn state(&mut self, event: Event, view: &View) {
        let blocked = view.queued.len() - view.ready.len();
        let seen = [
            ("blocked", matches!(event, Event::Offer(_)) && blocked > 0),
            ("behind a limit, worker idle", !view.is_paused && view.has_idle() && !view.ready.is_empty()),
            ("jobs of several tenants", view.tenants > 1),
            ("saturated", view.is_saturated),
            ("paused with a job that could start", view.is_paused && view.has_idle() && !view.ready.is_empty()),
            ("retiring workers", view.retiring > 0),
            ("pool smaller than configured", view.unreplaced > 0),
        ];
        seen.iter().filter(|(_, is_so)| *is_so).for_each(|(name, _)| self.one(name));
    }

    /// Panics if an event did not occur often enough.
    pub(super) fn check(&self) {
        for (least, names) in AT_LEAST {
            for name in *names {
                let seen = self.0.get(name).copied().unwrap_or_default();
                assert!(seen >= *least, "{name:?} occurred {seen} times, not {least}: {:#?}", self.0);
            }
        }
    }
}
