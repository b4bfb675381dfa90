//! The output of a command: standard output and standard error, for people or programs.

use std::{
    fmt::Display,
    io::{self, Write},
};

use anstream::stream::RawStream;
use clap::{
    ColorChoice,
    builder::styling::{AnsiColor, Style},
};
use prost::Name;
use serde::Serialize;
use tokio::io::{AsyncWrite, AsyncWriteExt};

use super::{
    failure::{Exit, Failure},
    output::{Format, message_json},
};

/// Success.
pub(super) const GOOD: Style = AnsiColor::Green.on_default();
/// A warning.
pub(super) const WARN: Style = AnsiColor::Yellow.on_default();
/// An error.
pub(super) const BAD: Style = AnsiColor::Red.on_default().bold();
/// A heading.
pub(super) const STRONG: Style = Style::new().bold();
/// A detail.
pub(super) const FAINT: Style = Style::new().dimmed();

/// Sets the use of colour for the whole process. `Auto` also respects `NO_COLOR` and similar variables.
pub(super) fn choose_color(choice: ColorChoice) {
    let choice = match choice {
        ColorChoice::Auto => anstream::ColorChoice::Auto,
        ColorChoice::Always => anstream::ColorChoice::Always,
        ColorChoice::Never => anstream::ColorChoice::Never,
    };
    choice.write_global();
}

/// Text with the codes of a style. A [`Sink`] without colour removes them.
pub(super) fn paint(style: Style, text: impl Display) -> String {
    format!("{style}{text}{style:#}")
}

/// Writes a line to the process's standard error. Errors are ignored.
pub(super) fn complain(line: &str) {
    drop(writeln!(anstream::stderr().lock(), "{line}"));
}

/// The standard output and the standard error of one command.
///
/// Writes are asynchronous, so that a slow reader does not block Ctrl-C.
pub(crate) struct Console<'a> {
    /// Format of the results, and of a failure.
    pub(crate) format: Format,
    /// For the command's result.
    pub(crate) out: Sink<'a>,
    /// For everything else: summaries, progress, errors.
    pub(crate) err: Sink<'a>,
}

impl Console<'_> {
    /// The process's own streams.
    pub(crate) fn standard(format: Format) -> Self {
        let out = Sink::of(tokio::io::stdout(), &io::stdout());
        let err = Sink::of(tokio::io::stderr(), &io::stderr());
        Self { format, out, err }
    }

    /// An output for programs, as text.
    #[cfg(test)]
    pub(crate) fn pipes<'a>(
        out: impl AsyncWrite + Send + Unpin + 'a,
        err: impl AsyncWrite + Send + Unpin + 'a,
    ) -> Console<'a> {
        Console { format: Format::Text, out: Sink::pipe(out), err: Sink::pipe(err) }
    }

    /// Prints a message of the server: as `text`, or as one line of JSON.
    pub(crate) async fn message<M: Name>(&mut self, message: &M, text: impl FnOnce(&M) -> String) -> io::Result<()> {
        match self.format {
            Format::Text => self.out.line(text(message).trim_end()).await,
            Format::Json => self.out.line(&message_json(message)?).await,
        }
    }

    /// Prints a message of the server as one line of JSON, or its `lines` as text with a `summary` on standard error.
    pub(crate) async fn list<M: Name>(&mut self, message: &M, lines: &[String], summary: &str) -> io::Result<()> {
        if self.format == Format::Json {
            return self.out.line(&message_json(message)?).await;
        }
        for line in lines {
            self.out.line(line).await?;
        }
        self.err.line(&paint(FAINT, summary)).await
    }

    /// Prints a report of the command: as `text`, or as one line of JSON.
    pub(crate) async fn report(&mut self, report: &impl Serialize, text: impl FnOnce() -> String) -> io::Result<()> {
        match self.format {
            Format::Text => self.out.line(text().trim_end()).await,
            Format::Json => self.out.line(&serde_json::to_string(report)?).await,
        }
    }

    /// Prints a failure, and returns its exit code. If the reader of the output is gone, nothing is printed.
    pub(crate) async fn fail(&mut self, failure: &Failure) -> Exit {
        if failure.exit() != Exit::OutputClosed {
            let line = match self.format {
                Format::Text => failure.text(),
                Format::Json => failure.json(),
            };
            // If this cannot be written either, only the exit code remains.
            drop(self.err.line(&line).await);
        }
        failure.exit()
    }
}

/// One stream that a command writes to.
pub(crate) struct Sink<'a> {
    writer: Box<dyn AsyncWrite + Send + Unpin + 'a>,
    is_terminal: bool,
    has_colour: bool,
}

impl<'a> Sink<'a> {
    fn of<S: RawStream>(writer: impl AsyncWrite + Send + Unpin + 'a, stream: &S) -> Self {
        let has_colour = anstream::AutoStream::choice(stream) != anstream::ColorChoice::Never;
        Self { writer: Box::new(writer), is_terminal: stream.is_terminal(), has_colour }
    }

    /// A sink for a program: without colour, and without redrawing.
    #[cfg(test)]
    pub(crate) fn pipe(writer: impl AsyncWrite + Send + Unpin + 'a) -> Self {
        Self { writer: Box::new(writer), is_terminal: false, has_colour: false }
    }

    /// A sink for people, without colour.
    #[cfg(test)]
    pub(crate) fn terminal(writer: impl AsyncWrite + Send + Unpin + 'a) -> Self {
        Self { is_terminal: true, ..Self::pipe(writer) }
    }

    /// Whether the output is a terminal.
    pub(crate) fn is_terminal(&self) -> bool {
        self.is_terminal
    }

    /// Columns of the terminal; `None` if the output is none.
    pub(crate) fn width(&self) -> Option<usize> {
        self.is_terminal.then(crossterm::terminal::size)?.ok().map(|(columns, _)| columns.into()).filter(|it| *it > 0)
    }

    /// Writes exactly these bytes, such as output and codes that move the cursor, and flushes.
    pub(crate) async fn bytes(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.writer.write_all(bytes).await?;
        self.writer.flush().await
    }

    /// Writes a job's output as it is; a terminal gets the end of its last line.
    pub(crate) async fn output(&mut self, output: &[u8]) -> io::Result<()> {
        self.bytes(output).await?;
        if self.is_terminal && !output.ends_with(b"\n") { self.bytes(b"\n").await } else { Ok(()) }
    }

    /// Writes text and flushes. Without colour, codes of styles are removed.
    pub(crate) async fn text(&mut self, text: &str) -> io::Result<()> {
        if self.has_colour {
            return self.bytes(text.as_bytes()).await;
        }
        self.bytes(anstream::adapter::strip_str(text).to_string().as_bytes()).await
    }

    /// Writes text and the end of the line, and flushes.
    pub(crate) async fn line(&mut self, text: &str) -> io::Result<()> {
        self.text(&format!("{text}\n")).await
    }
}

#[cfg(test)]
mod tests {
    use super::{BAD, Sink, paint};

    #[tokio::test]
    async fn a_pipe_gets_text_without_styles_and_bytes_as_they_are() {
        let mut written = Vec::new();
        let mut sink = Sink::pipe(&mut written);
        sink.line(&paint(BAD, "no")).await.unwrap();
        sink.bytes(b"\x1b[1m\0").await.unwrap();
        drop(sink);
        assert_eq!(written, b"no\n\x1b[1m\0");
    }

    #[tokio::test]
    async fn a_coloured_sink_keeps_styles() {
        let mut written = Vec::new();
        let mut sink = Sink { has_colour: true, ..Sink::terminal(&mut written) };
        sink.text(&paint(BAD, "no")).await.unwrap();
        drop(sink);
        assert!(written.starts_with(b"\x1b["), "{written:?}");
    }
}
