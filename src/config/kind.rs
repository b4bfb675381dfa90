//! `[kind.NAME]`: which handler runs under a name, and how.

use super::field::{Size, Words, any, within};
use super::limit;
use super::model::{Handler, Kind, Pool};
use super::problem::Problem;
use super::program;
use super::schema::{OUTPUT, RUN};
use super::section::{Found, Section};
use super::withhold::value;
use crate::handler::{Builtin, KindOptions};

/// What a kind refers to.
pub(super) struct Context<'a> {
    /// Pools that are declared.
    pub(super) pools: &'a [Pool],
    /// Environment of the server, for `pass_env`.
    pub(super) env: &'a [(String, String)],
}

/// What a kind says about its handler.
struct Choice {
    exec: Found<Words>,
    builtin: Found<Builtin>,
}

/// Reads one kind; none where it has no handler to speak of, which was reported then.
pub(super) fn read(name: &str, section: &mut Section<'_>, context: &Context<'_>) -> Option<Kind> {
    let pool = section.take("pool", any);
    let choice = Choice { exec: section.take("exec", program::named), builtin: section.take("builtin", any) };
    if choice.is_absent() && !section.in_file() {
        let known = section.reader().declared("kind");
        let kind = name.to_owned();
        section.report(Problem::StrayKind { kind, known }, &[]);
    } else {
        check_pool(name, section, &pool, context.pools);
    }
    let pool = pool.value().unwrap_or_default();
    let options = KindOptions {
        run_timeout: section.optional("run_timeout", within(RUN)),
        max_output: section.optional("max_output", within(OUTPUT)).map(Size::bytes),
        idempotent: section.value("idempotent", false, any),
        cancel_grace: None,
        limits: section.section("limit", limit::read),
    };
    let bounds = context.pools.iter().find(|declared| declared.name == pool);
    let handler = handler(name, section, choice, bounds, context);
    Some(Kind { name: name.to_owned(), pool, options, handler: handler? })
}

impl Choice {
    fn is_absent(&self) -> bool {
        self.exec.is_absent() && self.builtin.is_absent()
    }
}

fn check_pool(name: &str, section: &mut Section<'_>, pool: &Found<String>, pools: &[Pool]) {
    let kind = name.to_owned();
    match pool {
        Found::Absent => section.report(Problem::NoPool { kind }, &[]),
        Found::Value(pool) if !pools.iter().any(|declared| declared.name == *pool) => {
            let reader = section.reader();
            if reader.is_faulty("pool") || reader.is_faulty(&format!("pool.{pool}")) {
                return;
            }
            let problem = Problem::UnknownPool {
                kind,
                pool: value(pool),
                known: pools.iter().map(|declared| declared.name.clone()).collect(),
            };
            section.report(problem, &["pool"]);
        }
        Found::Value(_) | Found::Faulty => {}
    }
}

fn handler(
    name: &str,
    section: &mut Section<'_>,
    choice: Choice,
    pool: Option<&Pool>,
    context: &Context<'_>,
) -> Option<Handler> {
    let kind = name.to_owned();
    let Choice { exec, builtin } = choice;
    match (exec, builtin) {
        (Found::Absent, Found::Absent) => {
            section.skip(program::KEYS);
            if section.in_file() {
                section.report(Problem::NoHandler { kind }, &[]);
            }
            None
        }
        (Found::Absent, builtin) => {
            section.refuse(program::KEYS, |key| Problem::ExecOnly { key });
            builtin.value().map(Handler::Builtin)
        }
        (exec, builtin) => {
            if !builtin.is_absent() {
                section.report(Problem::TwoHandlers { kind }, &["exec", "builtin"]);
            }
            let exec = program::read(name, section, exec.value(), pool, context.env);
            exec.map(Handler::Exec)
        }
    }
}
