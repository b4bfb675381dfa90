//! Copies what SQLite can read of a damaged store to a new file. The damaged one is only read.

use std::{
    fs::{self, OpenOptions},
    io::{self, Write as _},
    path::Path,
    sync::LazyLock,
};

use rusqlite::{Connection, ErrorCode, Params, params_from_iter, types::ToSqlOutput};

use super::{
    StoreError, beside,
    check::{MAGIC, MOST, require_sqlite},
    files::{Lock, io_error, real},
    open,
    scan::{Found, Scan, fault_of, lost},
    sqlite_error, wal,
};
use crate::store::sql::{BLOCKED, READY, RUNNING};

/// What is true of each store, and what a copy without some rows may break.
static MEND: LazyLock<String> = LazyLock::new(|| {
    format!(
        "
    -- A server takes back what ran when it opens the file.
    insert or ignore into sessions (session, lease_ms, ends_at)
        select distinct session, 0, 0 from jobs where state = {RUNNING};
    -- Where the holder of a key was lost, the next job takes it.
    update jobs set state = {READY}, holds_key = 1 where row in (
        select row from (
            select row, min(place) from jobs as waiting where state = {BLOCKED} and ordering_key <> '' and not exists (
                select 1 from jobs as holder where holder.holds_key and holder.tenant = waiting.tenant
                and holder.ordering_key = waiting.ordering_key
            ) group by tenant, ordering_key
        )
    );
    -- Members that were lost are waited for no more. Whether they would have succeeded is not known.
    update groups set active = (select count(*) from jobs where member_of = groups.row and ended_at is null);
    update groups set is_due = 1 where is_closed and active = 0 and not must_succeed;
    insert into tenants select tenant, count(*) filter (where ended_at is null), sum(payload_bytes + output_bytes)
        from jobs group by tenant;
    -- Numbers of lost rows and sessions are not given again.
    update totals set number = (select 1000000 + max(coalesce(max(row), 0), coalesce(max(place), 0)) from jobs),
        jobs = (select count(*) from jobs where ended_at is null),
        bytes = (select coalesce(sum(payload_bytes + output_bytes), 0) from jobs);"
    )
});

/// What was copied of a damaged store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Salvaged {
    /// Jobs in the new file.
    pub jobs: u64,
    /// What is damaged or lost, at most 100 lines.
    pub damage: Vec<String>,
}

/// Copies what SQLite can read of a store to a new file, which a server can open. Jobs with a damaged payload are
/// copied, too: they fail when their turn comes. Blocks while it reads the whole file, and needs room for two copies of
/// it.
///
/// # Errors
/// [`StoreError::File`] if there is no file, or the new one exists; [`StoreError::InUse`]; [`StoreError::Damaged`] if
/// SQLite cannot read the list of tables; [`StoreError::DiskFull`] and [`StoreError::Database`].
pub fn salvage_sqlite(path: &Path, new: &Path) -> Result<Salvaged, StoreError> {
    let path = &real(path);
    require_sqlite(path)?;
    if new.exists() || beside(new, "-wal").exists() {
        return Err(StoreError::file(new, "it exists already; name a new file"));
    }
    let _lock = Lock::take_to_read(path)?;
    let failed = |error: io::Error| io_error(&error, new);
    // In the same directory, so that the finished file only gets its name.
    let parent = new.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let directory = tempfile::tempdir_in(parent).map_err(failed)?;
    let (copy, made) = (directory.path().join("copy"), directory.path().join("new"));
    fs::copy(path, &copy).map_err(failed)?;
    OpenOptions::new().write(true).open(&copy).and_then(|mut file| file.write_all(MAGIC)).map_err(failed)?;
    wal::mend(path, &beside(&copy, "-wal")).map_err(failed)?;
    let (mut target, target_lock) = open(&made)?;
    let damage = copy_jobs(&copy, &mut target).map_err(|error| sqlite_error(error, path))?;
    let jobs: i64 = target.query_row("select count(*) from jobs", (), |row| row.get(0))?;
    target.close().map_err(|(_, error)| error)?;
    drop(target_lock);
    fs::rename(&made, new).map_err(failed)?;
    Ok(Salvaged { jobs: jobs.unsigned_abs(), damage })
}

fn copy_jobs(copy: &Path, target: &mut Connection) -> rusqlite::Result<Vec<String>> {
    // Without `cell_size_check`, a damaged cell costs one row and not its whole page.
    let source = Connection::open(copy)?;
    let (mut scan, mut damage) = (Scan::new(&source), Vec::new());
    while let Some(found) = scan.next(&source) {
        let rows = match found {
            Found::Rows(rows) => rows,
            Found::Lost(rows) => {
                damage.push(lost(&rows));
                continue;
            }
        };
        let transaction = target.transaction()?;
        for row in rows {
            damage.extend(fault_of(&source, row));
            for table in ["jobs", "payloads", "outputs", "groups"] {
                match copy_rows(&source, &transaction, table, "where row = ?1", [row]) {
                    Err(error) if error.sqlite_error_code() == Some(ErrorCode::DiskFull) => return Err(error),
                    Err(error) if table == "jobs" => {
                        damage.push(format!("row {row} is lost: {error}"));
                        break;
                    }
                    Err(error) => damage.push(format!("row {row}: its {table} are lost: {error}")),
                    Ok(()) => {}
                }
            }
        }
        transaction.commit()?;
    }
    if let Err(error) = copy_rows(&source, target, "schedules", "", []) {
        damage.push(format!("the last ticks of schedules are lost: {error}"));
    }
    target.execute_batch(&MEND)?;
    let unfinished = |file: &Connection| file.query_row("select jobs from totals", (), |row| row.get::<_, i64>(0));
    let (had, kept) = (unfinished(&source).unwrap_or_default(), unfinished(target)?);
    // As where the root of a table is damaged, and looks like one of an empty table.
    if had > kept && damage.is_empty() {
        damage.push(format!("{kept} of {had} jobs that have not ended are kept"));
    }
    damage.truncate(MOST);
    Ok(damage)
}

/// Copies rows of a table. They pass through this process, because a statement that reads a damaged file and writes the
/// new one would fail with all of its transaction.
fn copy_rows(
    source: &Connection,
    target: &Connection,
    table: &str,
    condition: &str,
    values: impl Params,
) -> rusqlite::Result<()> {
    let mut read = source.prepare_cached(&format!("select * from {table} {condition}"))?;
    let columns = read.column_count();
    let marks = vec!["?"; columns].join(", ");
    let mut write = target.prepare_cached(&format!("insert into {table} values ({marks})"))?;
    let mut rows = read.query(values)?;
    while let Some(found) = rows.next()? {
        // As they are: also a text that is not UTF-8.
        let cells = (0..columns).map(|column| found.get_ref(column).map(ToSqlOutput::Borrowed));
        write.execute(params_from_iter(cells.collect::<rusqlite::Result<Vec<_>>>()?))?;
    }
    Ok(())
}
