//! Tells other processes what changed, and hears it from them. Signals only save time: the same is looked for each
//! second.

use std::{future::poll_fn, sync::Arc, time::Duration};

use deadpool_postgres::Pool;
use tokio::time::{Instant, sleep};
use tokio_postgres::{AsyncMessage, Config, Connection, Socket, tls::TlsStream};
use tokio_postgres_rustls::MakeRustlsConnect;
use tokio_util::sync::CancellationToken;

use super::replica::{LEAST_PAUSE, PAUSE_FACTOR, Replica};
use crate::store::{Size, StoreError, Wakes, wakes::Changes};

/// Least time between two notifications: at most 20 a second.
const LEAST_INTERVAL: Duration = Duration::from_millis(50);
/// Time between two looks without a signal, and between two attempts to connect.
const LOOK: Duration = Duration::from_secs(1);
/// The letters of what is looked for without a signal.
const ALL: &str = "rce";

/// The tasks of one process.
pub(super) struct Post {
    pub(super) pool: Pool,
    pub(super) replica: Arc<Replica>,
    pub(super) wakes: Arc<Wakes>,
    pub(super) stop: CancellationToken,
}

impl Post {
    /// Sends what is pending, until it is stopped.
    pub(super) async fn send(self: Arc<Self>) {
        let send = async {
            loop {
                self.replica.is_pending.notified().await;
                let text = self.replica.take_pending();
                // What is lost here is found by looking.
                if let Ok(client) = self.pool.get().await {
                    let _ = client.execute("select pg_notify('waterwheel', $1)", &[&text]).await;
                }
                sleep(LEAST_INTERVAL).await;
            }
        };
        self.stop.run_until_cancelled(send).await;
    }

    /// Listens, and looks each second, until it is stopped.
    pub(super) async fn receive(self: Arc<Self>, config: Config, tls: MakeRustlsConnect) {
        let receive = async {
            loop {
                if let Ok((client, connection)) = config.connect(tls.clone()).await {
                    let listen = client.batch_execute("listen waterwheel");
                    let _ = tokio::join!(listen, self.hear(connection));
                }
                self.look(ALL).await;
                sleep(LOOK).await;
            }
        };
        self.stop.run_until_cancelled(receive).await;
    }

    async fn hear<T: TlsStream + Unpin>(&self, mut connection: Connection<Socket, T>) {
        loop {
            let message = tokio::time::timeout(LOOK, poll_fn(|context| connection.poll_message(context))).await;
            match message {
                Err(_) => self.look(ALL).await,
                Ok(Some(Ok(AsyncMessage::Notification(note)))) => self.look(note.payload()).await,
                Ok(Some(Ok(_))) => {}
                Ok(Some(Err(_)) | None) => return,
            }
        }
    }

    /// Wakes those whose letter it is. Callers that wait for jobs are woken only if their job has ended.
    async fn look(&self, letters: &str) {
        let has = |letter| letters.contains(letter);
        if has('b') {
            self.replica.forget_floors();
        }
        let awaited = if has('e') { self.wakes.awaited() } else { Vec::new() };
        let ended = if awaited.is_empty() { Vec::new() } else { self.ended(&awaited).await.unwrap_or_default() };
        self.wakes.announce(&Changes { ready: has('r'), returned: has('b'), cancels: has('c'), ended });
    }

    /// Those of the jobs that have ended, or are gone.
    async fn ended(&self, awaited: &[String]) -> Result<Vec<String>, StoreError> {
        let sql = "select id from unnest($1::text[]) as awaited (id) \
                   where not exists (select 1 from jobs where jobs.id = awaited.id and state < 4)";
        let rows = self.pool.get().await?.query(sql, &[&awaited]).await?;
        Ok(rows.iter().filter_map(|row| row.try_get(0).ok()).collect())
    }

    /// Counts all jobs again and again, but uses little time for it. Between counts, changes of this process are added.
    pub(super) async fn count(self: Arc<Self>) {
        let count = async {
            loop {
                let start = Instant::now();
                if let Ok(size) = self.size().await {
                    self.replica.set_size(size);
                }
                sleep((LEAST_PAUSE * 10).max(start.elapsed() * PAUSE_FACTOR)).await;
            }
        };
        self.stop.run_until_cancelled(count).await;
    }

    pub(super) async fn size(&self) -> Result<Size, StoreError> {
        let sql = "select count(*) filter (where state < 4), coalesce(sum(payload_bytes + output_bytes), 0)::bigint \
                   from jobs";
        let row = self.pool.get().await?.query_one(sql, &[]).await?;
        let number = |column: usize| Ok::<_, StoreError>(u64::try_from(row.try_get::<_, i64>(column)?).unwrap_or(0));
        Ok(Size { jobs: number(0)?, bytes: number(1)? })
    }
}
