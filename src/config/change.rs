//! The differences between two configurations, and which of them a reload can apply. The reload is in `src/app/reload.rs`.

use std::collections::BTreeMap;

use super::{Config, Loaded, Origin, Setting};
use crate::{model::WITHHELD, rpc::SettingChange};

impl Loaded {
    /// The keys that differ in `new`. Of a pool or a kind that only one of them has, only keys that a source sets.
    pub fn changes(&self, new: &Self) -> Vec<SettingChange> {
        let (old, latest) = (by_key(&self.settings), by_key(&new.settings));
        let gone = self.settings.iter().filter(|setting| !latest.contains_key(setting.path()));
        let is_set = |setting: &&Setting| !matches!(setting.origin(), Origin::Default | Origin::Inherited(_));
        let mut changes = Vec::new();
        for key in new.settings.iter().chain(gone).map(Setting::path) {
            let sides = [old.get(key), latest.get(key)];
            let [before, after] = sides.map(|side| side.and_then(|setting| setting.value()));
            let is_shown = sides.iter().all(Option::is_some) || sides.into_iter().flatten().any(is_set);
            if before != after && is_shown {
                let [shown_old, shown_new] =
                    [before, after].map(|value| value.map_or("not set".to_owned(), ToString::to_string));
                let needs_restart = !is_live(key, [&self.config, &new.config]);
                changes.push(SettingChange { key: key.to_owned(), old: shown_old, new: shown_new, needs_restart });
            }
        }
        changes.extend(self.hidden(new, &changes));
        changes
    }

    /// Kinds whose secret values differ, and the database if its password does.
    fn hidden(&self, new: &Self, shown: &[SettingChange]) -> Vec<SettingChange> {
        let differs = new.config.kinds.iter().filter(|kind| {
            let prefix = format!("kind.{}.", kind.name);
            let before = self.config.kinds.iter().find(|before| before.name == kind.name);
            before.is_some_and(|before| before != *kind) && !shown.iter().any(|change| change.key.starts_with(&prefix))
        });
        let is_other_store = self.config.store != new.config.store;
        let (old, new) = (WITHHELD.to_owned(), WITHHELD.to_owned());
        let change = |key| SettingChange { key, old: old.clone(), new: new.clone(), needs_restart: false };
        let mut hidden: Vec<_> = differs.map(|kind| change(format!("kind.{}.env", kind.name))).collect();
        if is_other_store && !shown.iter().any(|change| change.key.starts_with("store.")) {
            hidden.push(SettingChange { needs_restart: true, ..change("store.url".to_owned()) });
        }
        hidden
    }
}

fn by_key(settings: &[Setting]) -> BTreeMap<&str, &Setting> {
    settings.iter().map(|setting| (setting.path(), setting)).collect()
}

/// Whether a reload can apply the key.
fn is_live(key: &str, configs: [&Config; 2]) -> bool {
    let mut parts = key.split('.');
    match (parts.next(), parts.next(), parts.next()) {
        (Some("telemetry"), Some("log"), None) | (Some("kind" | "program" | "quota" | "schedule"), ..) => true,
        (Some("auth"), Some("rule"), _) => configs.iter().all(|config| config.auth.is_some()),
        (Some("pool"), Some(name), Some(key)) => {
            let has_pool = |config: &&Config| config.pools.iter().any(|pool| pool.name == name);
            key != "ended_jobs" && configs.iter().all(has_pool)
        }
        _ => false,
    }
}
