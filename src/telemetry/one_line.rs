//! Keeps each log event on one line.

use std::io::{self, Write};

use tracing::Metadata;
use tracing_subscriber::fmt::MakeWriter;

/// Writes each event as one line, so that a caller's text cannot look like a log line of its own.
pub(super) struct OneLine<W>(pub(super) W);

impl<'writer, W: MakeWriter<'writer>> MakeWriter<'writer> for OneLine<W> {
    type Writer = OneLine<W::Writer>;

    fn make_writer(&'writer self) -> Self::Writer {
        OneLine(self.0.make_writer())
    }

    fn make_writer_for(&'writer self, metadata: &Metadata<'_>) -> Self::Writer {
        OneLine(self.0.make_writer_for(metadata))
    }
}

impl<W: Write> Write for OneLine<W> {
    /// Each event comes in one write.
    fn write(&mut self, event: &[u8]) -> io::Result<usize> {
        let text = String::from_utf8_lossy(event);
        let line = text.strip_suffix('\n').unwrap_or(&text).replace('\r', "\\r").replace('\n', "\\n");
        self.0.write_all(line.as_bytes())?;
        self.0.write_all(b"\n")?;
        Ok(event.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

#[cfg(test)]
mod tests {
    use tracing::{info_span, warn};
    use tracing_subscriber::{fmt::layer, layer::SubscriberExt};

    use super::*;
    use crate::telemetry::capture::Capture;

    #[test]
    fn text_is_one_line_that_nobody_can_forge() {
        let capture = Capture::default();
        let text = layer().with_ansi(false).without_time().with_writer(OneLine(capture.clone()));
        tracing::subscriber::with_default(tracing_subscriber::registry().with(text), || {
            info_span!("job", request_id = "r-1", worker = 3_u32).in_scope(|| {
                warn!(size_bytes = 12_u64, odd = "a \"b\"\n", shown = %"c\r\nd", "two\nlines");
            });
        });
        let expected = format!(
            r#" WARN job{{request_id="r-1" worker=3}}: {}: two\nlines size_bytes=12 odd="a \"b\"\n" shown=c\r\nd"#,
            module_path!()
        );
        assert_eq!(capture.lines(), [expected]);
    }
}
