//! `waterwheel store`: checks or exports the file of a store while no server has it open.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use serde_json::json;

use super::{
    console::{Console, GOOD, paint},
    failure::{Exit, Failure},
    output::{bytes, message_json, pluralized},
};
use crate::{
    detached::wall_clock,
    rpc::detached_job,
    store::{BATCH, Filter, SqliteFacts, SqliteOptions, inspect_sqlite, open_sqlite},
};

/// Check or export the file of detached jobs of a stopped server.
#[derive(Debug, Args)]
pub(super) struct StoreCommand {
    #[command(subcommand)]
    action: StoreAction,
}

#[derive(Debug, Subcommand)]
enum StoreAction {
    /// Check a file: whether it is intact, the version of its schema, and what it holds. It is not changed.
    #[command(after_help = "Example:\n  waterwheel store check waterwheel.db")]
    Check(FileArgs),
    /// Print all jobs of a file with payloads and outputs, the newest first: one line of JSON for each.
    ///
    /// The fields are those of DetachedJob in job_service.proto. The file is opened as by a server: an old schema is
    /// updated, and jobs that ran at a crash are ready again.
    #[command(after_help = "Example:\n  waterwheel store export waterwheel.db")]
    Export(FileArgs),
}

#[derive(Debug, Args)]
struct FileArgs {
    /// The file: store.path of the configuration.
    file: PathBuf,
}

pub(super) async fn run(command: StoreCommand, console: &mut Console<'_>) -> Result<Exit, Failure> {
    match command.action {
        StoreAction::Check(FileArgs { file }) => {
            let facts = inspect_sqlite(&file)?;
            let SqliteFacts { version, known, jobs, unfinished, file_bytes } = &facts;
            let report = json!({
                "ok": true, "version": version, "newest_version": known, "jobs": jobs,
                "unfinished": unfinished, "file_bytes": file_bytes,
            });
            console.report(&report, || text(&facts)).await?;
        }
        StoreAction::Export(FileArgs { file }) => export(file, console).await?,
    }
    Ok(Exit::Done)
}

fn text(facts: &SqliteFacts) -> String {
    let SqliteFacts { version, known, jobs, unfinished, file_bytes } = facts;
    let schema = if version < known {
        format!("{version}; the server updates it to {known} when it starts")
    } else {
        format!("{version}, the newest")
    };
    let jobs = pluralized(*jobs, "job");
    let ok = paint(GOOD, "intact");
    format!("{ok}\nschema  {schema}\njobs    {jobs}, {unfinished} of them not ended\nfile    {}", bytes(*file_bytes))
}

async fn export(file: PathBuf, console: &mut Console<'_>) -> Result<(), Failure> {
    // Without this check, opening would create a store.
    inspect_sqlite(&file)?;
    let store = open_sqlite(&SqliteOptions::new(file), wall_clock())?;
    let mut before = None;
    loop {
        let page = store.list(Filter::default(), before, BATCH).await?;
        before = page.next;
        for record in page.jobs {
            if let Some(job) = store.get(&record.request.id, true).await? {
                console.out.line(&message_json(&detached_job(job))?).await?;
            }
        }
        if before.is_none() {
            store.close().await;
            return Ok(());
        }
    }
}
