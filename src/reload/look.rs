use std::{pin::Pin, sync::Arc, time::Duration};

use futures_util::FutureExt as _;
use tokio::{task::JoinError, time::timeout};

use super::Contents;
use crate::{
    file::{FileFault, NamedFile},
    task::off_thread,
};

/// Time that a file system has for one file.
const PATIENCE: Duration = Duration::from_secs(10);

type Reading = Pin<Box<dyn Future<Output = Result<Contents, JoinError>> + Send>>;

/// Reads one file again and again, and never twice at a time: a thread that the file system holds is the only one.
pub(super) struct Look {
    file: NamedFile,
    patience: Duration,
    read: Arc<dyn Fn(&NamedFile) -> Contents + Send + Sync>,
    /// The reading that was not done in time.
    late: Option<Reading>,
    /// Looks in a row that brought nothing.
    in_vain: u64,
}

impl Look {
    pub(super) fn at(file: NamedFile) -> Self {
        Self::by(file, PATIENCE, NamedFile::read)
    }

    pub(super) fn by(
        file: NamedFile,
        patience: Duration,
        read: impl Fn(&NamedFile) -> Contents + Send + Sync + 'static,
    ) -> Self {
        Self { file, patience, read: Arc::new(read), late: None, in_vain: 0 }
    }

    /// What is in the file. The first look that gets no answer waits for one, those after it do not.
    pub(super) async fn take(&mut self) -> Contents {
        let ended = match self.late.take() {
            Some(mut reading) => match (&mut reading).now_or_never() {
                Some(ended) => Ok(ended),
                None => Err(reading),
            },
            None => {
                let (read, file) = (Arc::clone(&self.read), self.file.clone());
                let mut reading: Reading = Box::pin(off_thread(move || read(&file)));
                timeout(self.patience, &mut reading).await.map_err(|_| reading)
            }
        };
        match ended {
            Ok(ended) => {
                self.tell_answer();
                ended.unwrap_or_else(|error| Err(std::io::Error::other(error).into()))
            }
            Err(reading) => {
                self.late = Some(reading);
                self.tell_silence();
                Err(FileFault::Slow(self.patience))
            }
        }
    }

    fn tell_answer(&mut self) {
        if std::mem::take(&mut self.in_vain) > 0 {
            let NamedFile { what, path, .. } = &self.file;
            tracing::info!(path = %path.display(), "the file system of the {what} answers again");
        }
    }

    /// Ever more seldom, for the cause may stay for days.
    fn tell_silence(&mut self) {
        self.in_vain += 1;
        if self.in_vain.is_power_of_two() {
            let NamedFile { what, path, .. } = &self.file;
            tracing::warn!(
                path = %path.display(),
                looks = self.in_vain,
                "the file system of the {what} gives no answer: what was read of it before stays in use until it does; \
                 see to the file system, or mount it anew"
            );
        }
    }
}
