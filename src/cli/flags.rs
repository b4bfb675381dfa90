//! Flags of several commands: those that describe a job, and parsers of values.

use std::{ops::RangeInclusive, path::PathBuf, time::Duration};

use clap::{
    Args,
    builder::{PossibleValue, PossibleValuesParser, TypedValueParser},
};
use tokio::io::{AsyncRead, AsyncReadExt};

use super::failure::Failure;
use crate::{
    file::{self, FileFault},
    proto::{Criticality, Job, WhenFull},
    task::off_thread,
};

/// Largest payload that any server accepts, in bytes.
const MAX_BYTES: u64 = 1 << 30;

/// The job to run.
#[derive(Debug, Args)]
pub(crate) struct JobArgs {
    /// Kind of the job.
    kind: String,
    /// Payload, as text [default: empty].
    #[arg(conflicts_with = "file")]
    payload: Option<String>,
    /// Read the payload from a regular file, or from standard input with "-"; at most 1 GiB.
    #[arg(long, value_name = "FILE")]
    file: Option<PathBuf>,
    /// Media type of the payload, for the handler.
    #[arg(long, value_name = "TYPE", default_value = "", hide_default_value = true)]
    content_type: String,
    /// Longest run of the job.
    #[arg(long, value_name = "DURATION", value_parser = any_duration)]
    run_timeout: Option<Duration>,
    /// Longest wait of the job in the queue.
    #[arg(long, value_name = "DURATION", value_parser = any_duration)]
    queue_timeout: Option<Duration>,
    /// Importance of the job [default: critical; of a detached job, sheddable-plus].
    #[arg(long, value_name = "CLASS", value_parser = one_of([
        ("sheddable", Criticality::Sheddable, "Batch work that may be dropped at any time"),
        ("sheddable-plus", Criticality::SheddablePlus, "Work whose loss is tolerable now and then"),
        ("critical", Criticality::Critical, "Work that a user waits for"),
        ("critical-plus", Criticality::CriticalPlus, "Work whose loss is an outage; the server needs a rule that allows it"),
    ]))]
    criticality: Option<Criticality>,
    /// Tenant that the job is charged to.
    #[arg(long, value_name = "NAME", default_value = "", hide_default_value = true)]
    tenant: String,
    /// Jobs with the same key run one at a time, in order.
    #[arg(long, value_name = "KEY", default_value = "", hide_default_value = true)]
    ordering_key: String,
    /// Jobs with the same key share the kind's limits per key.
    #[arg(long, value_name = "KEY", default_value = "", hide_default_value = true)]
    limit_key: String,
    /// What to do if the pool is full [default: the pool's own policy].
    #[arg(long, value_name = "POLICY", value_parser = one_of([
        ("reject", WhenFull::Reject, "Refuse at once"),
        ("wait", WhenFull::Wait, "Wait for capacity until the deadline"),
        ("shed", WhenFull::Shed, "Evict a less important job, else refuse"),
        ("drop-oldest", WhenFull::DropOldest, "Replace the tenant's oldest job with this policy, else refuse"),
    ]))]
    when_full: Option<WhenFull>,
    /// A label for the handler; may be repeated.
    #[arg(long = "label", value_name = "KEY=VALUE", value_parser = label)]
    labels: Vec<(String, String)>,
}

impl JobArgs {
    /// The job, with its payload read.
    ///
    /// # Errors
    /// If the payload cannot be read.
    pub(crate) async fn into_job(self) -> Result<Job, Failure> {
        let payload = match self.file {
            Some(path) => read(path).await?,
            None => self.payload.unwrap_or_default().into_bytes(),
        };
        Ok(Job {
            kind: self.kind,
            payload: payload.into(),
            content_type: self.content_type,
            run_timeout: self.run_timeout.map(message),
            queue_timeout: self.queue_timeout.map(message),
            criticality: self.criticality.unwrap_or_default().into(),
            tenant: self.tenant,
            ordering_key: self.ordering_key,
            limit_key: self.limit_key,
            when_full: self.when_full.unwrap_or_default().into(),
            labels: self.labels.into_iter().collect(),
        })
    }
}

async fn read(path: PathBuf) -> Result<Vec<u8>, Failure> {
    let read = if path.as_os_str() == "-" {
        to_the_end(tokio::io::stdin(), MAX_BYTES).await
    } else {
        let path = path.clone();
        // On another thread, so that a slow file system does not block Ctrl-C.
        let read = off_thread(move || file::read(&path, MAX_BYTES)).await;
        read.unwrap_or_else(|error| Err(std::io::Error::other(error).into()))
    };
    read.map_err(|fault| {
        let help = match fault {
            FileFault::NotRegular("pipe") => "pipe it into the command, and pass -",
            _ => "pass a file that can be read, or - for standard input",
        };
        Failure::usage(format!("cannot read {}: {fault}", path.display()), help)
    })
}

async fn to_the_end(input: impl AsyncRead + Unpin, max: u64) -> Result<Vec<u8>, FileFault> {
    let mut bytes = Vec::new();
    input.take(max + 1).read_to_end(&mut bytes).await?;
    if bytes.len() as u64 > max { Err(FileFault::TooLarge { max }) } else { Ok(bytes) }
}

/// A duration as a message, cut to the longest one that the format allows.
pub(super) fn message(duration: Duration) -> prost_types::Duration {
    prost_types::Duration::try_from(duration).unwrap_or(prost_types::Duration { seconds: 315_576_000_000, nanos: 0 })
}

pub(in crate::cli) fn label(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((key, value)) if !key.is_empty() => Ok((key.to_owned(), value.to_owned())),
        _ => Err("pass KEY=VALUE".to_owned()),
    }
}

/// A parser of values by their names. `values` has the name, the value and the help of each.
pub(in crate::cli) fn one_of<T, const N: usize>(
    values: [(&'static str, T, &'static str); N],
) -> impl TypedValueParser<Value = T>
where
    T: Copy + Send + Sync + 'static,
{
    let names = values.map(|(name, _, help)| PossibleValue::new(name).help(help));
    let value = move |chosen: String| values.iter().find(|(name, ..)| *name == chosen).expect("one of the names").1;
    PossibleValuesParser::new(names).map(value)
}

/// Parses a duration, such as `2s`.
pub(in crate::cli) fn any_duration(text: &str) -> Result<Duration, &'static str> {
    humantime::parse_duration(text).map_err(|_| "not a duration; write it as 500ms, 2s or 10m")
}

/// A parser of durations within bounds.
pub(super) fn duration_in(
    bounds: RangeInclusive<Duration>,
) -> impl Fn(&str) -> Result<Duration, String> + Clone + Send + Sync {
    move |text| {
        let duration = any_duration(text)?;
        if bounds.contains(&duration) {
            return Ok(duration);
        }
        let [min, max] = [*bounds.start(), *bounds.end()].map(humantime::format_duration);
        Err(format!("must be from {min} to {max}"))
    }
}

/// A parser of numbers within bounds.
pub(super) fn number_in(bounds: RangeInclusive<f64>) -> impl Fn(&str) -> Result<f64, String> + Clone + Send + Sync {
    move |text| {
        let number = text.parse().ok().filter(|number| bounds.contains(number));
        number.ok_or_else(|| format!("must be a number from {} to {}", bounds.start(), bounds.end()))
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use clap::Parser;

    use super::{JobArgs, to_the_end};
    use crate::{
        cli::{failure::Exit, fake::Line},
        file::FileFault,
        proto::{self, Job},
    };

    async fn job(line: &str) -> Job {
        let line = Line::<JobArgs>::try_parse_from(line.split(' ')).unwrap();
        line.args.into_job().await.unwrap()
    }

    #[tokio::test]
    async fn every_flag_reaches_its_field() {
        let job =
            job("x sleep {} --content-type application/json --run-timeout 1.5s --queue-timeout 20ms --criticality \
             sheddable-plus --tenant acme --ordering-key k --limit-key l --when-full shed --label a=1 --label b=x=y")
            .await;
        assert_eq!(
            job,
            Job {
                kind: "sleep".to_owned(),
                payload: "{}".into(),
                content_type: "application/json".to_owned(),
                run_timeout: Some("1.500s".parse().unwrap()),
                queue_timeout: Some("0.020s".parse().unwrap()),
                criticality: proto::Criticality::SheddablePlus as i32,
                tenant: "acme".to_owned(),
                ordering_key: "k".to_owned(),
                limit_key: "l".to_owned(),
                when_full: proto::WhenFull::Shed as i32,
                labels: [("a", "1"), ("b", "x=y")].map(|(key, value)| (key.to_owned(), value.to_owned())).into(),
            }
        );
    }

    #[tokio::test]
    async fn what_is_not_given_is_left_to_the_server() {
        let expected = Job { kind: "echo".to_owned(), ..Job::default() };
        assert_eq!(job("x echo").await, expected);
    }

    #[tokio::test]
    async fn a_file_is_the_payload_and_a_missing_one_is_wrong_usage() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), [0, 159, 146, 150]).unwrap();
        let line = format!("x echo --file {}", file.path().display());
        assert_eq!(job(&line).await.payload.as_ref(), [0, 159, 146, 150]);

        let line = Line::<JobArgs>::try_parse_from(["x", "echo", "--file", "/no/such/file"]).unwrap();
        let failure = line.args.into_job().await.unwrap_err();
        assert_eq!(failure.exit(), Exit::Usage);
        assert!(
            failure.text().starts_with("cannot read /no/such/file: no such file or directory"),
            "{}",
            failure.text()
        );
    }

    #[tokio::test]
    async fn a_payload_is_a_regular_file_or_comes_by_standard_input() {
        let dir = tempfile::tempdir().unwrap();
        let (fifo, huge) = (dir.path().join("fifo"), dir.path().join("huge"));
        let mode = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
        rustix::fs::mknodat(rustix::fs::CWD, &fifo, rustix::fs::FileType::Fifo, mode, 0).unwrap();
        std::fs::File::create(&huge).unwrap().set_len((1 << 30) + 1).unwrap();
        for (path, what, help) in [
            (&*fifo, "it is a pipe, and only regular files are read", "pipe it into the command, and pass -"),
            (Path::new("/dev/zero"), "it is a device, and only regular files are read", "pass a file that can be read"),
            (&huge, "it is larger than 1GiB", "pass a file that can be read"),
        ] {
            let line = Line::<JobArgs>::try_parse_from(["x", "echo", "--file", path.to_str().unwrap()]).unwrap();
            let report = line.args.into_job().await.unwrap_err().text();
            assert!(report.starts_with(&format!("cannot read {}: {what}", path.display())), "{report}");
            assert!(report.contains(help), "{report}");
        }
    }

    #[tokio::test]
    async fn standard_input_has_an_end_too() {
        assert_eq!(to_the_end(&b"payload"[..], 7).await, Ok(b"payload".to_vec()));
        assert_eq!(to_the_end(tokio::io::repeat(0), 1 << 20).await, Err(FileFault::TooLarge { max: 1 << 20 }));
    }

    #[test]
    fn clashes_and_malformed_labels_are_refused() {
        for line in ["x echo p --file f", "x echo --label a", "x echo --label =v"] {
            assert!(Line::<JobArgs>::try_parse_from(line.split(' ')).is_err(), "{line}");
        }
    }
}
