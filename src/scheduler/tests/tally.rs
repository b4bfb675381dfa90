//! Checks that the random tests covered every event and outcome often enough.

use std::collections::BTreeMap;

use super::{
    Answer, Event, Step,
    drive::{Drive, View},
    found_name, hit_name, reason_name, told_name,
};

/// What each must have happened at least this often.
const AT_LEAST: &[(u64, &[&str])] = &[
    (2000, &["starts", "queued", "told: starts", "decided", "done"]),
    (1000, &["waits"]),
    (200, &["refused: full", "refused: past", "refused: unreachable", "refused: share", "refused: limit"]),
    (200, &["refused: draining", "refused: impatient", "behind a limit, worker idle"]),
    (200, &["told: expired", "told: shed", "was queued", "was waiting", "gone", "decided before"]),
    (50, &["told: no room"]),
    (80, &["told: refused", "hit a caller"]),
    (5, &["runs on", "starts when time came"]),
    (100, &["told: drained", "replaced", "not replaced", "drops", "released without outcome"]),
    (
        100,
        &[
            "blocked",
            "held by several tenants",
            "saturated",
            "pool smaller than configured",
            "paused with a job that could start",
            "workers that are to go",
            "refused: shut",
            "told: cancelled",
            "paused",
            "not paused",
            "hit in the queue",
            "hit nothing",
        ],
    ),
];

/// Counts what happens.
#[derive(Default)]
pub(super) struct Tally(BTreeMap<&'static str, u64>);

impl Tally {
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
        for told in &step.told {
            self.one(match told_name(told) {
                None => "told: starts",
                Some("expired") => "told: expired",
                Some("no room") => "told: no room",
                Some("shed") => "told: shed",
                Some("drained") => "told: drained",
                Some("cancelled") => "told: cancelled",
                Some(_) => "told: refused",
            });
        }
        if matches!(event, Event::Tick) && !step.told.is_empty() {
            self.one("starts when time came");
        }
        self.state(event, &drive.view());
    }

    fn state(&mut self, event: Event, view: &View) {
        let blocked = view.queued.len() - view.ready.len();
        let seen = [
            ("blocked", matches!(event, Event::Offer(_)) && blocked > 0),
            ("behind a limit, worker idle", !view.is_paused && view.has_idle() && !view.ready.is_empty()),
            ("held by several tenants", view.tenants > 1),
            ("saturated", view.is_saturated),
            ("paused with a job that could start", view.is_paused && view.has_idle() && !view.ready.is_empty()),
            ("workers that are to go", view.retiring > 0),
            ("pool smaller than configured", view.unreplaced > 0),
        ];
        seen.iter().filter(|(_, is_so)| *is_so).for_each(|(name, _)| self.one(name));
    }

    /// Panics where something did not happen often enough to say that it was tried.
    pub(super) fn check(&self) {
        for (least, names) in AT_LEAST {
            for name in *names {
                let seen = self.0.get(name).copied().unwrap_or_default();
                assert!(seen >= *least, "{name:?} happened {seen} times, not {least}: {:#?}", self.0);
            }
        }
    }
}
