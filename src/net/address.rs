//! Listen addresses and their text form.

use std::{
    fmt,
    net::SocketAddr,
    path::{Path, PathBuf},
    str::FromStr,
};

/// Default permissions of a socket file: for its user and its group.
pub(super) const DEFAULT_MODE: u32 = 0o660;

/// Where a server listens: `IP:PORT`, `unix:/path`, `unix:/path?mode=600` or `systemd:N`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ListenAddress {
    /// A network address.
    Tcp(SocketAddr),
    /// A socket file.
    Unix {
        /// An absolute path.
        path: PathBuf,
        /// Its permissions. Default 660.
        mode: u32,
    },
    /// A socket that the service manager passes, by its index in the unit file, from 0.
    Systemd(usize),
}

/// The text is not a listen address.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidListenAddress {
    /// It has an unknown format.
    #[error("not an address; write IP:PORT, unix:/path or systemd:N")]
    Form,
    /// What follows the `?` of a path is not a valid mode.
    #[error("invalid {0:?} behind the path; write its permissions in octal, 777 at most, as in unix:/path?mode=660")]
    Mode(String),
}

impl ListenAddress {
    /// The network address, if it is one.
    pub fn tcp(&self) -> Option<SocketAddr> {
        match self {
            Self::Tcp(address) => Some(*address),
            Self::Unix { .. } | Self::Systemd(_) => None,
        }
    }

    /// Whether other machines can reach it. For a socket of the service manager, this is known only once the socket is
    /// open.
    pub fn is_public(&self) -> bool {
        self.tcp().is_some_and(|address| !address.ip().to_canonical().is_loopback())
    }

    /// The address with all its parameters, as in the configuration.
    pub fn to_setting(&self) -> String {
        match self {
            Self::Unix { mode, .. } if *mode != DEFAULT_MODE => format!("{self}?mode={mode:o}"),
            _ => self.to_string(),
        }
    }
}

impl From<SocketAddr> for ListenAddress {
    fn from(address: SocketAddr) -> Self {
        Self::Tcp(address)
    }
}

impl FromStr for ListenAddress {
    type Err = InvalidListenAddress;

    fn from_str(text: &str) -> Result<Self, InvalidListenAddress> {
        if let Some(place) = text.strip_prefix("systemd:") {
            return place.parse().map(Self::Systemd).map_err(|_| InvalidListenAddress::Form);
        }
        let Some(rest) = text.strip_prefix("unix:") else {
            return text.parse().map(Self::Tcp).map_err(|_| InvalidListenAddress::Form);
        };
        let (path, parameters) = rest.split_once('?').map_or((rest, None), |(path, all)| (path, Some(all)));
        if !Path::new(path).is_absolute() {
            return Err(InvalidListenAddress::Form);
        }
        let mode = match parameters {
            Some(parameters) => mode(parameters)?,
            None => DEFAULT_MODE,
        };
        Ok(Self::Unix { path: path.into(), mode })
    }
}

/// The mode, if it is the only parameter. Any other parameter is an error, because a misread mode could give access to
/// other users.
fn mode(parameters: &str) -> Result<u32, InvalidListenAddress> {
    let octal = parameters.strip_prefix("mode=").unwrap_or_default();
    let is_octal = matches!(octal.len(), 1..=4) && octal.bytes().all(|digit| digit.is_ascii_digit());
    let read = u32::from_str_radix(octal, 8).ok().filter(|mode| is_octal && *mode <= 0o777);
    read.ok_or_else(|| InvalidListenAddress::Mode(parameters.to_owned()))
}

impl fmt::Display for ListenAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => address.fmt(f),
            Self::Unix { path, mode: _ } => write!(f, "unix:{}", path.display()),
            Self::Systemd(place) => write!(f, "systemd:{place}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_read_as_they_are_written() {
        for text in
            ["127.0.0.1:7070", "[::1]:0", "unix:/run/ww.sock", "unix:/run/ww.sock?mode=600", "systemd:0", "systemd:12"]
        {
            assert_eq!(text.parse::<ListenAddress>().map(|address| address.to_setting()), Ok(text.to_owned()));
        }
        for text in
            ["", "localhost:1", "unix:", "unix:run/ww", "unix:run/ww?mode=600", "unix:?mode=600", "systemd:", "7070"]
        {
            assert_eq!(text.parse::<ListenAddress>(), Err(InvalidListenAddress::Form), "{text:?}");
        }
    }

    #[test]
    fn what_is_behind_a_path_is_its_mode_or_refused() {
        let read = |text: &str| text.parse::<ListenAddress>();
        for parameters in [
            "mod=600",
            "",
            "600",
            "mode",
            "Mode=600",
            "mode=600&owner=me",
            "b?mode=600",
            "mode=600&mode=666",
            "mode=8",
            "mode=1777",
            "mode=",
            "mode=+600",
            "mode=00600",
            "mode=0o600",
        ] {
            assert_eq!(read(&format!("unix:/a?{parameters}")), Err(InvalidListenAddress::Mode(parameters.into())));
        }
        assert_eq!(read("unix:/a?mode=0600"), read("unix:/a?mode=600"));
        assert_eq!(read("unix:/a?mode=0").map(|address| address.to_setting()), Ok("unix:/a?mode=0".into()));
    }

    #[test]
    fn loopback_in_any_guise_is_not_public() {
        let is_public = |text: &str| text.parse::<ListenAddress>().map(|address| address.is_public());
        for text in ["127.0.0.1:1", "127.9.9.9:1", "[::1]:1", "[::ffff:127.0.0.1]:1", "unix:/a"] {
            assert_eq!(is_public(text), Ok(false), "{text}");
        }
        for text in ["0.0.0.0:1", "10.0.0.1:1", "[::]:1", "[::ffff:10.0.0.1]:1"] {
            assert_eq!(is_public(text), Ok(true), "{text}");
        }
    }
}
