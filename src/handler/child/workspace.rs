//! The workspace of a job: a directory that is removed after the exit of its program.
//!
//! The server holds a lock on each. The kernel releases the locks of a server that is killed, so that the next server
//! knows which workspaces were left behind.

use std::{
    fs::{self, File, Permissions, TryLockError},
    io,
    os::unix::fs::{MetadataExt, PermissionsExt},
    path::Path,
    time::Duration,
};

use rustix::process::geteuid;
use tempfile::TempDir;
use tokio::time::sleep;

use crate::{model::JobId, task::off_thread};

/// Prefix of the names of workspaces.
const PREFIX: &str = "waterwheel-";

/// Pauses between attempts to remove a directory while dying processes still write into it.
const PAUSES: [Duration; 3] = [Duration::from_millis(1), Duration::from_millis(10), Duration::from_millis(100)];

/// An empty directory that only the server's user may enter. Dropping it removes it.
#[derive(Debug)]
pub(super) struct Workspace {
    directory: TempDir,
    _lock: File,
}

impl Workspace {
    pub(super) fn path(&self) -> &Path {
        self.directory.path()
    }
}

/// Makes a workspace.
pub(super) fn create_workspace() -> io::Result<Workspace> {
    loop {
        let directory = tempfile::Builder::new().prefix(PREFIX).permissions(Permissions::from_mode(0o700)).tempdir()?;
        // A server that starts may have removed it before it was locked. File systems without locks keep it.
        let lock = File::open(directory.path());
        match lock {
            Ok(lock) if !is_locked(&lock) && directory.path().exists() => {
                return Ok(Workspace { directory, _lock: lock });
            }
            Err(fault) if fault.kind() != io::ErrorKind::NotFound => return Err(fault),
            Ok(_) | Err(_) => {}
        }
    }
}

/// Removes the workspaces that killed servers of this user left behind. May block.
pub(crate) fn remove_left_workspaces() {
    let Ok(entries) = fs::read_dir(std::env::temp_dir()) else { return };
    for entry in entries.flatten() {
        let is_own = entry.metadata().is_ok_and(|it| it.is_dir() && it.uid() == geteuid().as_raw());
        if !is_own || !entry.file_name().to_string_lossy().starts_with(PREFIX) {
            continue;
        }
        let path = entry.path();
        if let Ok(lock) = File::open(&path)
            && lock.try_lock().is_ok()
        {
            match remove_tree(&path) {
                Ok(()) => tracing::info!(path = %path.display(), "removed the workspace of a server that was killed"),
                Err(fault) => {
                    tracing::warn!(%fault, path = %path.display(), "cannot remove the workspace of a server that was killed; remove it by hand")
                }
            }
        }
    }
}

/// Takes the lock, unless another process has it.
fn is_locked(directory: &File) -> bool {
    matches!(directory.try_lock(), Err(TryLockError::WouldBlock))
}

/// Removes the directory and its contents.
pub(super) async fn remove_workspace(workspace: Workspace, job: Option<JobId>) {
    let mut pauses = PAUSES.into_iter();
    loop {
        let path = workspace.path().to_owned();
        match off_thread(move || remove_tree(&path)).await {
            Ok(Err(fault)) => match pauses.next() {
                Some(pause) => sleep(pause).await,
                None => {
                    let (path, job) = (workspace.path().display(), job.map(tracing::field::display));
                    tracing::warn!(job, %fault, %path, "cannot remove the workspace of a program; remove it by hand");
                    return;
                }
            },
            // The runtime shuts down. The drop of the directory tries once more.
            Ok(Ok(())) | Err(_) => return,
        }
    }
}

fn remove_tree(path: &Path) -> io::Result<()> {
    match fs::remove_dir_all(path) {
        Err(fault) if fault.kind() == io::ErrorKind::PermissionDenied => {
            open_up(path)?;
            fs::remove_dir_all(path)
        }
        Err(fault) if fault.kind() == io::ErrorKind::NotFound => Ok(()),
        removed => removed,
    }
}

/// Makes every directory writable again: some build tools make their caches read-only.
fn open_up(path: &Path) -> io::Result<()> {
    fs::set_permissions(path, Permissions::from_mode(0o700))?;
    for entry in fs::read_dir(path)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            open_up(&entry.path())?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_workspaces_that_no_server_has_are_left_behind() {
        let kept = create_workspace().expect("a directory");
        let left = create_workspace().expect("a directory");
        let path = left.path().to_owned();
        fs::create_dir_all(path.join("a/b")).expect("empty so far");
        let Workspace { directory, _lock: lock } = left;
        // As a killed server leaves it.
        let _ = directory.keep();
        drop(lock);
        remove_left_workspaces();
        assert!(kept.path().exists() && !path.exists());
    }

    #[tokio::test]
    async fn is_private_and_goes_with_all_that_is_in_it() {
        let workspace = create_workspace().expect("a directory");
        let path = workspace.path().to_owned();
        let mode = fs::metadata(&path).expect("it exists").permissions().mode();
        assert_eq!(mode & 0o777, 0o700);
        fs::create_dir_all(path.join("a/b")).expect("empty so far");
        fs::write(path.join("a/b/c"), "x").expect("writable");
        remove_workspace(workspace, None).await;
        assert!(!path.exists());
    }

    #[test]
    fn closed_directories_are_opened_and_links_are_not_followed() {
        let (workspace, other) = (create_workspace().expect("a directory"), create_workspace().expect("a directory"));
        let closed = workspace.path().join("closed");
        fs::create_dir(&closed).expect("empty so far");
        std::os::unix::fs::symlink(other.path(), workspace.path().join("link")).expect("empty so far");
        for path in [&closed, other.path()] {
            fs::set_permissions(path, Permissions::from_mode(0o500)).expect("ours");
        }
        open_up(workspace.path()).expect("ours");
        let mode = |path: &Path| fs::metadata(path).expect("it exists").permissions().mode() & 0o777;
        assert_eq!((mode(&closed), mode(other.path())), (0o700, 0o500));
    }
}
