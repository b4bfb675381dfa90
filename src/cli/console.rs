//! The output of a command: standard output and standard error, for a person or a program.

use std::{
    io::{self, Write},
    os::fd::BorrowedFd,
};

use clap::{
    ColorChoice,
    builder::styling::{AnsiColor, Style},
};
use tokio::io::{AsyncWrite, AsyncWriteExt};

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

/// The text with the codes of a style. A [`Sink`] without colour removes them.
pub(super) fn paint(style: Style, text: impl std::fmt::Display) -> String {
    format!("{style}{text}{style:#}")
}

/// Writes a line to the process's standard output, for code without a [`Console`].
///
/// # Errors
/// If it cannot be written, for example because the disk is full.
pub(super) fn say(line: &str) -> io::Result<()> {
    let mut out = anstream::stdout().lock();
    writeln!(out, "{line}")?;
    out.flush()
}

/// Writes a line to the process's standard error. Errors are ignored.
pub(super) fn complain(line: &str) {
    drop(writeln!(anstream::stderr().lock(), "{line}"));
}

/// The standard output and the standard error of one command.
///
/// Writes are asynchronous, so that a slow reader does not block Ctrl-C.
pub(crate) struct Console<'a> {
    /// For the command's result.
    pub(crate) out: Sink<'a>,
    /// For everything else: summaries, progress, errors.
    pub(crate) err: Sink<'a>,
}

impl Console<'static> {
    /// The process's own streams.
    pub(crate) fn standard() -> Self {
        Self {
            out: Sink {
                writer: Box::new(tokio::io::stdout()),
                descriptor: rustix::stdio::stdout(),
                audience: Audience::of(&io::stdout()),
                styles: Styles::of(&io::stdout()),
            },
            err: Sink {
                writer: Box::new(tokio::io::stderr()),
                descriptor: rustix::stdio::stderr(),
                audience: Audience::of(&io::stderr()),
                styles: Styles::of(&io::stderr()),
            },
        }
    }
}

/// One stream that a command writes to.
pub(crate) struct Sink<'a> {
    writer: Box<dyn AsyncWrite + Send + Unpin + 'a>,
    /// The descriptor of a terminal, for its width.
    descriptor: BorrowedFd<'static>,
    audience: Audience,
    styles: Styles,
}

impl<'a> Sink<'a> {
    /// A sink for a program: no colour, nothing drawn twice.
    #[cfg(test)]
    pub(crate) fn pipe(writer: impl AsyncWrite + Send + Unpin + 'a) -> Self {
        let descriptor = rustix::stdio::stdout();
        Self { writer: Box::new(writer), descriptor, audience: Audience::Program, styles: Styles::Strip }
    }

    /// A sink for a person, without colour.
    #[cfg(test)]
    pub(crate) fn terminal(writer: impl AsyncWrite + Send + Unpin + 'a) -> Self {
        Self { audience: Audience::Person, ..Self::pipe(writer) }
    }

    /// Whether the output is a terminal.
    pub(crate) fn is_terminal(&self) -> bool {
        self.audience == Audience::Person
    }

    /// Columns of the terminal; `None` without one.
    pub(crate) fn width(&self) -> Option<usize> {
        let size = || rustix::termios::tcgetwinsize(self.descriptor);
        self.is_terminal().then(size)?.ok().map(|size| usize::from(size.ws_col)).filter(|columns| *columns > 0)
    }

    /// Writes exactly these bytes and flushes.
    pub(crate) async fn bytes(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.writer.write_all(bytes).await?;
        self.writer.flush().await
    }

    /// Writes text and flushes. Without colour, codes of styles are removed.
    pub(crate) async fn text(&mut self, text: &str) -> io::Result<()> {
        match self.styles {
            Styles::Keep => self.bytes(text.as_bytes()).await,
            Styles::Strip => {
                let plain = anstream::adapter::strip_str(text).to_string();
                self.bytes(plain.as_bytes()).await
            }
        }
    }

    /// Writes text and the end of the line, and flushes.
    pub(crate) async fn line(&mut self, text: &str) -> io::Result<()> {
        self.text(&format!("{text}\n")).await
    }

    /// Writes codes that move the cursor, which are kept without colour. For terminals only.
    pub(crate) async fn control(&mut self, codes: &str) -> io::Result<()> {
        self.bytes(codes.as_bytes()).await
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Audience {
    Person,
    Program,
}

impl Audience {
    fn of(stream: &impl io::IsTerminal) -> Self {
        if stream.is_terminal() { Self::Person } else { Self::Program }
    }
}

#[derive(Debug, Clone, Copy)]
enum Styles {
    Keep,
    Strip,
}

impl Styles {
    fn of<S: anstream::stream::RawStream>(stream: &S) -> Self {
        match anstream::AutoStream::choice(stream) {
            anstream::ColorChoice::Never => Self::Strip,
            _ => Self::Keep,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{BAD, Sink, Styles, paint};

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
        let mut sink = Sink { styles: Styles::Keep, ..Sink::terminal(&mut written) };
        sink.text(&paint(BAD, "no")).await.unwrap();
        drop(sink);
        assert!(written.starts_with(b"\x1b["), "{written:?}");
    }
}
