//! `waterwheel store`: checks, exports, repairs or changes the file of a store while no server has it open, or copies
//! it.

use std::{
    fs::File,
    io::Read as _,
    path::{Path, PathBuf},
    sync::Arc,
};

use clap::{Args, Subcommand};
use serde_json::json;

use super::{
    console::{BAD, Console, GOOD, paint},
    failure::{Exit, Failure},
    output::{message_json, pluralized},
};
use crate::{
    detached::wall_clock,
    file::size_text,
    rpc::detached_job,
    store::{
        Action, BATCH, Change, Extent, Filter, JobName, JobStore, Order, Salvaged, SqliteFacts, SqliteOptions,
        backup_sqlite, inspect_sqlite, open_sqlite, salvage_sqlite,
    },
};

/// Check, back up, export, salvage or change a file of jobs
#[derive(Debug, Args)]
pub(super) struct StoreCommand {
    #[command(subcommand)]
    action: StoreAction,
}

#[derive(Debug, Subcommand)]
enum StoreAction {
    /// Check a file: whether it is intact, the version of its schema, and what it holds. No file is changed or made.
    ///
    /// Its log is read, too. Each job is compared with the digest that was made of it when it was accepted. Exit code
    /// 1: the file is damaged.
    #[command(after_help = "Example:\n  waterwheel store check waterwheel.db")]
    Check(FileArgs),
    /// Print all jobs of a file with payloads and outputs, the newest first: one line of JSON for each.
    ///
    /// The fields are those of DetachedJob in job_service.proto. The file is opened as by a server: an old schema is
    /// updated, and jobs that ran at a crash are ready again.
    #[command(after_help = "Example:\n  waterwheel store export waterwheel.db")]
    Export(FileArgs),
    /// Copy a file to a new one, as it is at this moment. A server may have it open.
    ///
    /// The copy has no log beside it, and only its owner may read it. While it is made, the log of the file grows.
    #[command(after_help = "Example:\n  waterwheel store backup waterwheel.db copy.db\n  \
        waterwheel store backup waterwheel.db - > another.db")]
    Backup {
        /// The file: store.path of the configuration.
        file: PathBuf,
        /// The file to make; `-` is the standard output.
        new: PathBuf,
    },
    /// Copy what can still be read of a damaged file to a new file. The damaged one is only read.
    ///
    /// Then give the new file the name of the old one. A job whose payload is damaged is copied, and fails when its
    /// turn comes. The directory of the new file needs room for two copies. Exit code 1: no job could be kept.
    #[command(after_help = "Example:\n  waterwheel store salvage waterwheel.db saved.db")]
    Salvage {
        /// The damaged file.
        file: PathBuf,
        /// The file to make.
        new: PathBuf,
    },
    /// Cancel jobs in a file, such as one that ends each server that runs it.
    ///
    /// The file is opened as by a server: jobs that ran at a crash are ready again.
    #[command(after_help = "Example:\n  waterwheel store cancel waterwheel.db nightly-17")]
    Cancel {
        /// The file: store.path of the configuration.
        file: PathBuf,
        /// Ids of the jobs.
        #[arg(required = true, value_name = "ID")]
        ids: Vec<String>,
    },
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
            let SqliteFacts { version, known, jobs, unfinished, file_bytes, damage } = &facts;
            let report = json!({
                "ok": damage.is_empty(), "version": version, "newest_version": known, "jobs": jobs,
                "unfinished": unfinished, "file_bytes": file_bytes, "damage": damage,
            });
            console.report(&report, || text(&facts, &file)).await?;
            return Ok(if damage.is_empty() { Exit::Done } else { Exit::Failed });
        }
        StoreAction::Export(FileArgs { file }) => export(file, console).await?,
        StoreAction::Backup { file, new } => backup(&file, &new, console).await?,
        StoreAction::Salvage { file, new } => {
            let Salvaged { jobs, damage } = salvage_sqlite(&file, &new)?;
            let text = || {
                let lines: String = damage.iter().map(|line| format!("damage  {line}\n")).collect();
                format!("{lines}{} in {}", pluralized(jobs, "job"), new.display())
            };
            console.report(&json!({ "jobs": jobs, "damage": damage }), text).await?;
            return Ok(if jobs == 0 && !damage.is_empty() { Exit::Failed } else { Exit::Done });
        }
        StoreAction::Cancel { file, ids } => return cancel(file, ids, console).await,
    }
    Ok(Exit::Done)
}

async fn backup(file: &Path, new: &Path, console: &mut Console<'_>) -> Result<(), Failure> {
    if new != Path::new("-") {
        let jobs = backup_sqlite(file, new)?;
        let text = || format!("{} in {}", pluralized(jobs, "job"), new.display());
        return Ok(console.report(&json!({ "jobs": jobs }), text).await?);
    }
    // Beside the file there is room for it, and a container may have no other place.
    let parent = file.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let directory = tempfile::tempdir_in(parent)?;
    let copy = directory.path().join("copy");
    backup_sqlite(file, &copy)?;
    let (mut made, mut piece) = (File::open(copy)?, vec![0; 1 << 16]);
    loop {
        match made.read(&mut piece)? {
            0 => return Ok(()),
            length => console.out.bytes(&piece[..length]).await?,
        }
    }
}

async fn cancel(file: PathBuf, ids: Vec<String>, console: &mut Console<'_>) -> Result<Exit, Failure> {
    let store = open_existing(file)?;
    let changes = store.change(ids.iter().map(|id| JobName::from(&**id)).collect(), Action::Cancel).await;
    store.close().await;
    let results = changes?.into_iter().map(|change| match change {
        Change::Done | Change::Requested => "cancelled",
        Change::WrongState(_) => "it has ended",
        Change::NotFound | Change::Full(_) => "there is no such job",
    });
    let results: Vec<(String, &str)> = ids.into_iter().zip(results).collect();
    let report = json!(results.iter().map(|(id, result)| json!({ "id": id, "result": result })).collect::<Vec<_>>());
    let text = || results.iter().map(|(id, result)| format!("{id}: {result}")).collect::<Vec<_>>().join("\n");
    console.report(&report, text).await?;
    Ok(if results.iter().all(|(_, result)| *result == "cancelled") { Exit::Done } else { Exit::Usage })
}

fn text(facts: &SqliteFacts, path: &Path) -> String {
    let SqliteFacts { version, known, jobs, unfinished, file_bytes, damage } = facts;
    let schema = if version < known {
        format!("{version}; the server updates it to {known} when it starts")
    } else {
        format!("{version}, the newest")
    };
    let jobs = pluralized(*jobs, "job");
    let state = if damage.is_empty() {
        paint(GOOD, "intact").to_string()
    } else {
        let advice = format!("`waterwheel store salvage {} NEW_FILE` keeps what can be read", path.display());
        format!("{}\n{}\n{advice}", paint(BAD, "damaged"), damage.join("\n"))
    };
    format!(
        "{state}\nschema  {schema}\njobs    {jobs}, {unfinished} of them not ended\nfile    {}",
        size_text(*file_bytes)
    )
}

/// Opens a file as a server does, but creates none.
fn open_existing(file: PathBuf) -> Result<Arc<dyn JobStore>, Failure> {
    // Without this check, opening would create a store.
    inspect_sqlite(&file)?;
    Ok(open_sqlite(&SqliteOptions::new(file), wall_clock())?)
}

async fn export(file: PathBuf, console: &mut Console<'_>) -> Result<(), Failure> {
    let store = open_existing(file)?;
    let mut after = None;
    loop {
        let page = store.list(Filter::default(), Order::Newest, after, BATCH).await?;
        after = page.next;
        for record in page.jobs {
            if let Some(job) = store.get(&record.request.id, Extent::All).await? {
                console.out.line(&message_json(&detached_job(job))?).await?;
            }
        }
        if after.is_none() {
            store.close().await;
            return Ok(());
        }
    }
}
