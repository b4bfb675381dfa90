//! The workspace directory of a job: created before the program starts, removed after it exits.

use std::{
    fs::{self, Permissions},
    io,
    os::unix::fs::PermissionsExt,
    path::Path,
    time::Duration,
};

use tempfile::TempDir;
use tokio::time::sleep;

use crate::{model::JobId, task::off_thread};

/// Pauses between attempts to remove a directory while dying processes still write into it.
const PAUSES: [Duration; 3] = [Duration::from_millis(1), Duration::from_millis(10), Duration::from_millis(100)];

/// An empty directory that only the server's user may enter.
pub(super) fn create() -> io::Result<TempDir> {
    tempfile::Builder::new().prefix("waterwheel-").permissions(Permissions::from_mode(0o700)).tempdir()
}

/// Removes the directory and its contents.
pub(super) async fn remove(workspace: TempDir, job: Option<JobId>) {
    let mut pauses = PAUSES.into_iter();
    loop {
        let path = workspace.path().to_owned();
        match off_thread(move || remove_tree(&path)).await {
            Ok(Err(fault)) => match pauses.next() {
                Some(pause) => sleep(pause).await,
                None => {
                    let path = workspace.path().display();
                    tracing::warn!(job = job.map(display), %fault, %path, "cannot remove the workspace of a program; remove it by hand");
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

    #[tokio::test]
    async fn is_private_and_goes_with_all_that_is_in_it() {
        let workspace = create().expect("a directory");
        let path = workspace.path().to_owned();
        let mode = fs::metadata(&path).expect("it exists").permissions().mode();
        assert_eq!(mode & 0o777, 0o700);
        fs::create_dir_all(path.join("a/b")).expect("empty so far");
        fs::write(path.join("a/b/c"), "x").expect("writable");
        remove(workspace, None).await;
        assert!(!path.exists());
    }

    #[test]
    fn closed_directories_are_opened_and_links_are_not_followed() {
        let (workspace, other) = (create().expect("a directory"), create().expect("a directory"));
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
