use std::{
    fmt,
    net::SocketAddr,
    path::{Path, PathBuf},
    str::FromStr,
};

/// Permissions of a socket in the file system, where none are given: its user and its group.
pub(super) const DEFAULT_MODE: u32 = 0o660;

/// Where a server listens: `IP:PORT`, `unix:/path`, `unix:/path?mode=600` or `systemd:N`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ListenAddress {
    /// An address of a network.
    Tcp(SocketAddr),
    /// A socket in the file system.
    Unix {
        /// An absolute path.
        path: PathBuf,
        /// Who may connect, as permissions of a file. Default 660.
        mode: u32,
    },
    /// A socket that the service manager holds open for us, by its place in the unit, from 0.
    Systemd(usize),
}

/// The text is no address to listen on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("not an address; write IP:PORT, unix:/path or systemd:N")]
pub struct InvalidListenAddress;

impl ListenAddress {
    /// The address, where it is one of a network.
    #[must_use]
    pub fn tcp(&self) -> Option<SocketAddr> {
        match self {
            Self::Tcp(address) => Some(*address),
            Self::Unix { .. } | Self::Systemd(_) => None,
        }
    }

    /// Whether other machines may reach it. Of a socket of the service manager that is known only when it is there.
    #[must_use]
    pub fn is_public(&self) -> bool {
        self.tcp().is_some_and(|address| !address.ip().to_canonical().is_loopback())
    }

    /// The address with all that it says, as it is configured.
    #[must_use]
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
            return place.parse().map(Self::Systemd).map_err(|_| InvalidListenAddress);
        }
        let Some(rest) = text.strip_prefix("unix:") else {
            return text.parse().map(Self::Tcp).map_err(|_| InvalidListenAddress);
        };
        let (path, mode) = match rest.split_once("?mode=") {
            Some((path, mode)) => (path, u32::from_str_radix(mode, 8).map_err(|_| InvalidListenAddress)?),
            None => (rest, DEFAULT_MODE),
        };
        if !Path::new(path).is_absolute() || mode > 0o777 {
            return Err(InvalidListenAddress);
        }
        Ok(Self::Unix { path: path.into(), mode })
    }
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
            ["", "localhost:1", "unix:", "unix:run/ww", "unix:/a?mode=8", "unix:/a?mode=1777", "systemd:", "7070"]
        {
            assert_eq!(text.parse::<ListenAddress>(), Err(InvalidListenAddress), "{text:?}");
        }
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
