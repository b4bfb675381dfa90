//! Types of the keys that name addresses.

use ipnet::IpNet;

use super::fault::Fault;
use super::field::{Field, misfit};
use super::problem::WrittenProblem;
use super::tree::{Data, Node};
use super::withhold::value;
use crate::net::{InvalidListenAddress, ListenAddress};

/// One address, or an array of them.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Addresses(pub(super) Vec<ListenAddress>);

/// Networks of addresses; one address is a network too.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Networks(pub(super) Vec<IpNet>);

impl Field for ListenAddress {
    const EXPECTED: &'static str = "IP:PORT, unix:/path or systemd:N";
    const EXAMPLE: &'static str = "\"127.0.0.1:7070\"";

    fn read(node: &Node, key: &str) -> Result<Self, Fault> {
        address::<Self>(node, key)
    }

    fn show(&self) -> toml::Value {
        toml::Value::String(self.to_setting())
    }
}

impl Field for Addresses {
    const EXPECTED: &'static str = "IP:PORT, unix:/path, systemd:N or an array of them";
    const EXAMPLE: &'static str = "\"127.0.0.1:7070\"";

    fn read(node: &Node, key: &str) -> Result<Self, Fault> {
        match &node.data {
            Data::Array(items) if !items.is_empty() => {
                items.iter().map(|item| ListenAddress::read(item, key)).collect::<Result<_, _>>().map(Self)
            }
            _ => address::<Self>(node, key).map(|one| Self(vec![one])),
        }
    }

    fn show(&self) -> toml::Value {
        match self.0.as_slice() {
            [one] => one.show(),
            many => toml::Value::Array(many.iter().map(Field::show).collect()),
        }
    }
}

impl Field for Networks {
    const EXPECTED: &'static str = "an array of networks";
    const EXAMPLE: &'static str = "[\"10.0.0.0/8\", \"192.0.2.1\"]";

    fn read(node: &Node, key: &str) -> Result<Self, Fault> {
        let Data::Array(items) = &node.data else { return Err(misfit::<Self>(node, key)) };
        let network = |text: &str| {
            let address = || text.parse().map(|address: std::net::IpAddr| address.to_canonical().into());
            text.parse().or_else(|_| address()).ok()
        };
        items.iter().map(|item| string::<Self, _>(item, key, network)).collect::<Result<_, _>>().map(Self)
    }

    fn show(&self) -> toml::Value {
        toml::Value::Array(self.0.iter().map(|network| toml::Value::String(network.to_string())).collect())
    }
}

/// An address, where `T` may be one.
fn address<T: Field>(node: &Node, key: &str) -> Result<ListenAddress, Fault> {
    let Data::String(text) = &node.data else { return Err(misfit::<T>(node, key)) };
    text.parse().map_err(|error| match error {
        InvalidListenAddress::Form => misfit::<T>(node, key),
        InvalidListenAddress::Parameter(name) => {
            Fault::at(WrittenProblem::SocketParameter { key: key.to_owned(), name: value(&name) }.into(), &node.span)
        }
        InvalidListenAddress::Mode(mode) => {
            Fault::at(WrittenProblem::SocketMode { key: key.to_owned(), mode: value(&mode) }.into(), &node.span)
        }
    })
}

/// What `parse` makes of a string; anything else is no `T`.
fn string<T: Field, V>(node: &Node, key: &str, parse: impl FnOnce(&str) -> Option<V>) -> Result<V, Fault> {
    let parsed = match &node.data {
        Data::String(string) => parse(string),
        _ => None,
    };
    parsed.ok_or_else(|| misfit::<T>(node, key))
}
