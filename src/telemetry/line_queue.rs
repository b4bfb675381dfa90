//! Standard output and standard error of a server. Each has a bounded queue, and a thread that writes its lines, so
//! that no other thread waits for a terminal, a pipe or a disk. A line that finds the queue full, or cannot be written,
//! is lost and counted.

use std::{
    io::{self, ErrorKind, Write},
    mem,
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    thread::park_timeout,
    time::Duration,
};

use parking_lot::{Condvar, Mutex};
use tracing::warn;

use crate::{file::explain, task::spawn_thread};

/// Maximum bytes that wait. As many may be with the thread that writes.
const MAX_WAITING: usize = 1 << 20;
/// Pause before a stream that another process made nonblocking is tried again.
const PAUSE: Duration = Duration::from_millis(10);

/// Standard output, for announcements.
pub static STDOUT: LineQueue = LineQueue::new("stdout");
/// Standard error, for log lines.
pub static STDERR: LineQueue = LineQueue::new("stderr");

/// Lines on their way to a stream.
#[derive(Debug)]
pub struct LineQueue {
    name: &'static str,
    queue: Mutex<Queue>,
    /// Notified when lines were added, and when they were written.
    changed: Condvar,
    lost: AtomicU64,
    /// Number of lost lines that the log has reported.
    told: AtomicU64,
}

#[derive(Debug)]
struct Queue {
    waiting: Vec<u8>,
    is_writing: bool,
    /// Why the last line could not be written.
    fault: Option<io::Error>,
}

impl LineQueue {
    const fn new(name: &'static str) -> Self {
        let queue = Queue { waiting: Vec::new(), is_writing: false, fault: None };
        Self {
            name,
            queue: Mutex::new(queue),
            changed: Condvar::new(),
            lost: AtomicU64::new(0),
            told: AtomicU64::new(0),
        }
    }

    /// Name of the stream.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// Number of lines that were lost.
    pub fn lost(&self) -> u64 {
        self.lost.load(Relaxed)
    }

    /// Adds lines, each with its end. Does not block.
    pub fn push(&self, lines: &[u8]) {
        let mut queue = self.queue.lock();
        if queue.waiting.len() + lines.len() > MAX_WAITING {
            self.lost.fetch_add(lines.split_inclusive(|byte| *byte == b'\n').count() as u64, Relaxed);
            return;
        }
        queue.waiting.extend_from_slice(lines);
        self.changed.notify_all();
    }

    /// Waits until all lines are written, for up to `within`.
    ///
    /// # Errors
    /// `TimedOut` if some still wait, else why the last line could not be written.
    pub fn flush(&self, within: Duration) -> io::Result<()> {
        let mut queue = self.queue.lock();
        let is_busy = |queue: &mut Queue| queue.is_writing || !queue.waiting.is_empty();
        if self.changed.wait_while_for(&mut queue, is_busy, within).timed_out() {
            return Err(ErrorKind::TimedOut.into());
        }
        queue.fault.take().map_or(Ok(()), Err)
    }

    /// Starts the thread that writes the lines. `write` has the contract of [`Write::write`].
    pub(super) fn start(
        &'static self,
        write: impl FnMut(&[u8]) -> io::Result<usize> + Send + 'static,
    ) -> io::Result<()> {
        let mut stream = Stream { write, is_torn: false };
        let forever = move || {
            loop {
                self.write_waiting(&mut stream);
            }
        };
        spawn_thread(self.name.to_owned(), forever).map(drop)
    }

    fn write_waiting(&self, stream: &mut Stream<impl FnMut(&[u8]) -> io::Result<usize>>) {
        for line in self.next().split_inclusive(|byte| *byte == b'\n') {
            let fault = stream.put(line).err();
            match &fault {
                None => self.tell_lost(),
                Some(error) => {
                    self.lost.fetch_add(1, Relaxed);
                    self.tell_fault(error);
                }
            }
            self.queue.lock().fault = fault;
        }
    }

    /// The lines that wait, once there are any.
    fn next(&self) -> Vec<u8> {
        let mut queue = self.queue.lock();
        queue.is_writing = false;
        self.changed.notify_all();
        self.changed.wait_while(&mut queue, |queue| queue.waiting.is_empty());
        queue.is_writing = true;
        mem::take(&mut queue.waiting)
    }

    /// Logs the number of lines that were lost since the last such report, unless the queue is more than half full.
    fn tell_lost(&self) {
        if self.queue.lock().waiting.len() > MAX_WAITING / 2 {
            return;
        }
        let lost = self.lost();
        let lost = lost - self.told.swap(lost, Relaxed);
        if lost > 0 {
            warn!(lost, stream = self.name, "lines were lost: their reader did not read, or their disk was full");
        }
    }

    /// Logs once that standard output fails, unless its reader is gone. A failure of the log itself cannot be logged.
    fn tell_fault(&self, error: &io::Error) {
        let is_first = self.queue.lock().fault.is_none();
        if is_first && self.name != STDERR.name && error.kind() != ErrorKind::BrokenPipe {
            warn!(error = explain(error), "cannot write to standard output; still serving");
        }
    }
}

struct Stream<W> {
    write: W,
    /// Whether the last line was written only in part. The next one begins with a line end.
    is_torn: bool,
}

impl<W: FnMut(&[u8]) -> io::Result<usize>> Stream<W> {
    fn put(&mut self, line: &[u8]) -> io::Result<()> {
        let end: &[u8] = if self.is_torn { b"\n" } else { b"" };
        for mut rest in [end, line] {
            while !rest.is_empty() {
                match (self.write)(rest) {
                    Ok(0) => return Err(ErrorKind::WriteZero.into()),
                    Ok(count) => {
                        self.is_torn = rest[count - 1] != b'\n';
                        rest = &rest[count..];
                    }
                    Err(error) if error.kind() == ErrorKind::Interrupted => {}
                    Err(error) if error.kind() == ErrorKind::WouldBlock => park_timeout(PAUSE),
                    Err(error) => return Err(error),
                }
            }
        }
        Ok(())
    }
}

impl Write for &LineQueue {
    fn write(&mut self, lines: &[u8]) -> io::Result<usize> {
        self.push(lines);
        Ok(lines.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{
        Arc,
        mpsc::{Receiver, SyncSender, sync_channel},
    };

    use super::*;

    const PATIENCE: Duration = Duration::from_secs(30);

    type Attempt = io::Result<usize>;

    /// A queue whose writes end as the test says, and what they wrote.
    fn queue() -> (&'static LineQueue, SyncSender<Attempt>, Arc<Mutex<Vec<u8>>>) {
        let queue: &'static LineQueue = Box::leak(Box::new(LineQueue::new("stdout")));
        let (sender, attempts): (_, Receiver<Attempt>) = sync_channel(100);
        let written = Arc::<Mutex<Vec<u8>>>::default();
        let stream = Arc::clone(&written);
        let write = move |lines: &[u8]| {
            let count = attempts.recv().expect("the test goes on")?.min(lines.len());
            stream.lock().extend_from_slice(&lines[..count]);
            Ok(count)
        };
        queue.start(write).expect("a thread");
        (queue, sender, written)
    }

    #[test]
    fn a_stream_that_does_not_go_on_blocks_nobody_and_costs_the_lines_over_the_bound() {
        let (queue, attempts, written) = queue();
        let line = [&[b'x'; 1023][..], b"\n"].concat();
        (0..3 * MAX_WAITING / line.len()).for_each(|_| queue.push(&line));
        assert_eq!(queue.flush(Duration::from_millis(1)).expect_err("it waits").kind(), ErrorKind::TimedOut);
        let lost = queue.lost();
        assert!((1024..=2048).contains(&lost), "{lost}");
        spawn_thread("attempts".into(), move || while attempts.send(Ok(usize::MAX)).is_ok() {}).expect("a thread");
        queue.flush(PATIENCE).expect("written");
        assert_eq!(written.lock().len(), (3 * 1024 - lost as usize) * line.len());
        assert_eq!(queue.told.load(Relaxed), lost);
    }

    #[test]
    fn a_line_that_was_cut_ends_before_the_next_one() {
        let (queue, attempts, written) = queue();
        for attempt in [Ok(4), Err(ErrorKind::StorageFull.into()), Ok(9), Err(ErrorKind::Interrupted.into()), Ok(9)] {
            attempts.send(attempt).expect("it is read");
        }
        queue.push(b"one of two\n");
        assert_eq!(queue.flush(PATIENCE).expect_err("the disk is full").kind(), ErrorKind::StorageFull);
        queue.push(b"two\n");
        queue.flush(PATIENCE).expect("written");
        assert_eq!((&**written.lock(), queue.lost()), (&b"one \ntwo\n"[..], 1));
    }

    #[test]
    fn a_stream_that_another_process_made_nonblocking_is_tried_again() {
        let (queue, attempts, written) = queue();
        for attempt in [Err(ErrorKind::WouldBlock.into()), Ok(2), Err(ErrorKind::WouldBlock.into()), Ok(9)] {
            attempts.send(attempt).expect("it is read");
        }
        queue.push(b"line\n");
        queue.flush(PATIENCE).expect("written");
        assert_eq!((&**written.lock(), queue.lost()), (&b"line\n"[..], 0));
    }
}
