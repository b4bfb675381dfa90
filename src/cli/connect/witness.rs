//! Detects why a connection does not work. HTTP/2 reports to its calls only that the connection is gone, and not what
//! the peer sent last.

use std::{
    io,
    pin::Pin,
    sync::{Arc, OnceLock},
    task::{Context, Poll, ready},
};

use thiserror::Error;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_rustls::rustls::{AlertDescription, Error as TlsError};

/// Why calls do not work with this server, if the cause is known.
#[derive(Debug, Clone, Copy, Error, PartialEq, Eq)]
pub(crate) enum Misfit {
    #[error("it uses TLS, and was called in plaintext")]
    SpeaksTls,
    #[error("it was called with TLS, which it does not use")]
    SpeaksNoTls,
    #[error("it requires a client certificate")]
    NoCertificate,
    #[error("it does not accept the client certificate")]
    BadCertificate,
    #[error("the headers of the call are larger than it accepts")]
    HeadersTooLarge,
}

impl Misfit {
    /// What to do about it.
    pub(crate) fn help(self) -> &'static str {
        match self {
            Self::SpeaksTls => "pass --tls, and --ca if the system does not know the roots of its certificate",
            Self::SpeaksNoTls => "leave out --tls, --ca, --cert and https://",
            Self::NoCertificate => "pass --cert and --key",
            Self::BadCertificate => "pass another --cert and --key, from an authority that it trusts",
            Self::HeadersTooLarge => {
                "use a shorter token, or raise server.http2.max_header_list in the server's config"
            }
        }
    }

    /// The mismatch in a TLS error, during or after the handshake.
    pub(super) fn of_tls(error: &io::Error) -> Option<Self> {
        use AlertDescription::{
            AccessDenied, BadCertificate, CertificateExpired, CertificateRequired, CertificateRevoked,
            CertificateUnknown, DecryptError, UnknownCA, UnsupportedCertificate,
        };
        match error.get_ref()?.downcast_ref::<TlsError>()? {
            TlsError::InvalidMessage(_) => Some(Self::SpeaksNoTls),
            TlsError::AlertReceived(CertificateRequired) => Some(Self::NoCertificate),
            TlsError::AlertReceived(
                AccessDenied
                | BadCertificate
                | CertificateExpired
                | CertificateRevoked
                | CertificateUnknown
                | DecryptError
                | UnknownCA
                | UnsupportedCertificate,
            ) => Some(Self::BadCertificate),
            _ => None,
        }
    }
}

/// The mismatch of one connection, if there is one.
#[derive(Clone, Default)]
pub(super) struct Seen(Arc<OnceLock<Misfit>>);

impl Seen {
    pub(super) fn misfit(&self) -> Option<Misfit> {
        self.0.get().copied()
    }
}

/// A socket, with or without TLS, that detects mismatches in what the peer sends.
pub(super) struct Witness<S> {
    socket: S,
    seen: Seen,
    has_begun: bool,
    /// Error of a write that was not reported yet.
    failed: Option<io::Error>,
}

impl<S> Witness<S> {
    pub(super) fn new(socket: S, seen: Seen) -> Self {
        Self { socket, seen, has_begun: false, failed: None }
    }
}

impl<S: AsyncRead + Unpin> Witness<S> {
    /// Delays the error of a write until everything was read that the peer sent before it closed.
    fn hear_out<T>(&mut self, cx: &mut Context<'_>, written: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        match written {
            Poll::Ready(Err(error)) => {
                self.failed = Some(error);
                self.poll_failed(cx).map(Err)
            }
            written => written,
        }
    }

    fn poll_failed(&mut self, cx: &mut Context<'_>) -> Poll<io::Error> {
        let mut buffer = [0; 256];
        while self.seen.misfit().is_none() {
            let mut heard = ReadBuf::new(&mut buffer);
            let read = ready!(Pin::new(&mut *self).poll_read(cx, &mut heard));
            if read.is_err() || heard.filled().is_empty() {
                break;
            }
        }
        Poll::Ready(self.failed.take().unwrap_or_else(|| io::ErrorKind::BrokenPipe.into()))
    }
}

/// Content type of an alert in TLS. HTTP/2 begins with the length of a frame, whose first byte is zero.
const ALERT: u8 = 21;

impl<S: AsyncRead + Unpin> AsyncRead for Witness<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        let read = ready!(Pin::new(&mut self.socket).poll_read(cx, buf));
        let seen = match &read {
            Ok(()) if self.has_begun => None,
            Ok(()) => buf.filled().get(before).filter(|first| **first == ALERT).map(|_| Misfit::SpeaksTls),
            Err(error) => Misfit::of_tls(error),
        };
        self.has_begun |= buf.filled().len() > before;
        if let Some(misfit) = seen {
            self.seen.0.get_or_init(|| misfit);
        }
        Poll::Ready(read)
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for Witness<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        if self.failed.is_some() {
            return self.poll_failed(cx).map(Err);
        }
        let written = Pin::new(&mut self.socket).poll_write(cx, buf);
        self.hear_out(cx, written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        if self.failed.is_some() {
            return self.poll_failed(cx).map(Err);
        }
        let written = Pin::new(&mut self.socket).poll_write_vectored(cx, bufs);
        self.hear_out(cx, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.socket.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.failed.is_some() {
            return self.poll_failed(cx).map(Err);
        }
        let written = Pin::new(&mut self.socket).poll_flush(cx);
        self.hear_out(cx, written)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_shutdown(cx)
    }
}
