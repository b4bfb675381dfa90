use std::{fmt, str::FromStr};

use super::{Kind, KindOptions};

mod echo;
mod gzip;
mod sha256;
mod sleep;

/// A handler that comes with the crate, for a first run, for tests and for benchmarks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Builtin {
    /// Gives the payload back, with its content type.
    Echo,
    /// Gives the SHA-256 of the payload in lower-case hexadecimal digits, as `text/plain`.
    Sha256,
    /// Waits for the milliseconds that its JSON payload names: `{"ms":1500}`, or just `1500`; at most an hour.
    ///
    /// With `"ignore_cancel":true` it sleeps on when it is asked to stop, to try what happens then.
    Sleep,
    /// Compresses the payload, and streams what it gets. The same payload always gives the same bytes.
    Gzip,
}

/// Text that names no [`Builtin`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("no built-in handler is called `{name}`; choose one of echo, sha256, sleep, gzip")]
pub struct UnknownBuiltin {
    /// The text.
    pub name: String,
}

impl Builtin {
    /// Every built-in handler.
    pub const ALL: [Self; 4] = [Self::Echo, Self::Sha256, Self::Sleep, Self::Gzip];

    /// Name, as in the configuration.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Echo => "echo",
            Self::Sha256 => "sha256",
            Self::Sleep => "sleep",
            Self::Gzip => "gzip",
        }
    }

    /// Whether it computes, and so belongs into a pool of its own threads, away from kinds that wait.
    #[must_use]
    pub const fn is_blocking(self) -> bool {
        match self {
            Self::Echo | Self::Sleep => false,
            Self::Sha256 | Self::Gzip => true,
        }
    }

    /// A kind called `name` that this handler serves.
    #[must_use]
    pub fn kind(self, name: &str, options: KindOptions) -> Kind {
        let kind = match self {
            Self::Echo => Kind::new(name, || echo::Echo),
            Self::Sha256 => Kind::blocking(name, || sha256::Sha256),
            Self::Sleep => Kind::new(name, || sleep::Sleep),
            Self::Gzip => Kind::blocking(name, || gzip::Gzip),
        };
        kind.options(options)
    }
}

impl fmt::Display for Builtin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Builtin {
    type Err = UnknownBuiltin;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        Self::ALL.into_iter().find(|known| known.name() == name).ok_or_else(|| UnknownBuiltin { name: name.into() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_lead_back_and_kinds_run_where_they_should() {
        for builtin in Builtin::ALL {
            assert_eq!(builtin.name().parse(), Ok(builtin));
            let kind = builtin.kind("mine", KindOptions { idempotent: true, ..KindOptions::default() });
            assert_eq!(kind.is_blocking(), builtin.is_blocking());
            assert_eq!(&**kind.name(), "mine");
            assert!(kind.get_options().idempotent);
        }
    }

    #[test]
    fn an_unknown_name_is_told_every_known_one() {
        let message = "ecko".parse::<Builtin>().expect_err("no such name").to_string();
        assert!(Builtin::ALL.iter().all(|known| message.contains(known.name())), "{message}");
    }
}
