//! Who may use the exports, and as whom.

use super::permission::{ANONYMOUS, Credentials};
use rekindle_env::Address;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::str::FromStr;

/// The settings of the exports of a node.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Settings {
    /// Networks whose clients are let in, besides this machine; none: those of all.
    pub networks: Vec<Network>,
    pub squash: Squash,
    /// Volumes that no client changes.
    pub read_only: Vec<String>,
    /// Whether clients at ports above 1023 are let in: any user of a machine can have these, and
    /// say that it is root.
    pub any_port: bool,
}

/// Which users become the anonymous one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Squash {
    /// The root of other machines.
    #[default]
    Remote,
    /// Any root.
    Root,
    /// Every user.
    All,
    None,
}

impl FromStr for Squash {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Ok(match text {
            "remote" => Self::Remote,
            "root" => Self::Root,
            "all" => Self::All,
            "none" => Self::None,
            _ => return Err(format!("'{text}' is none of remote, root, all and none")),
        })
    }
}

/// A network of addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Network {
    first: IpAddr,
    bits: u8,
}

/// The number of an address, with the width of its kind.
fn number(address: IpAddr) -> (u128, u8) {
    match address {
        IpAddr::V4(address) => (u128::from(address.to_bits()), 32),
        IpAddr::V6(address) => (address.to_bits(), 128),
    }
}

/// An address of IPv4 that comes in the clothes of IPv6 is one of IPv4.
fn plain(address: IpAddr) -> IpAddr {
    match address {
        IpAddr::V6(address) => Ipv6Addr::to_canonical(&address),
        v4 => v4,
    }
}

impl Network {
    /// Whether an address is in the network.
    #[must_use]
    pub fn has(&self, address: IpAddr) -> bool {
        let ((first, width), (number, its_width)) = (number(self.first), number(plain(address)));
        let beyond = u32::from(width - self.bits);
        width == its_width && first.checked_shr(beyond) == number.checked_shr(beyond)
    }
}

impl FromStr for Network {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let bad = || format!("'{text}' is no network, as 10.0.0.0/8 and fd00::/8 are");
        let (first, bits) = text.split_once('/').map_or((text, None), |(a, b)| (a, Some(b)));
        let first: IpAddr = first.parse().map_err(|_| bad())?;
        let width = number(first).1;
        let bits = bits.map_or(Ok(width), str::parse).map_err(|_| bad())?;
        if bits > width {
            return Err(bad());
        }
        Ok(Self { first, bits })
    }
}

impl fmt::Display for Network {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}/{}", self.first, self.bits)
    }
}

/// Where a client is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Peer {
    /// At a Unix socket.
    Here,
    At(SocketAddr),
}

impl Peer {
    /// Reads the name of a connection's other end.
    #[must_use]
    pub fn of(listener: &Address, peer: &str) -> Self {
        let at = peer.strip_prefix("tcp:").unwrap_or(peer);
        match (listener, at.parse()) {
            (Address::Tcp(_), Ok(at)) => Self::At(at),
            // One that cannot be told is a stranger.
            (Address::Tcp(_), Err(_)) => Self::At(SocketAddr::from(([255; 4], u16::MAX))),
            (Address::Unix(_), _) => Self::Here,
        }
    }

    fn is_local(&self) -> bool {
        match self {
            Self::Here => true,
            Self::At(at) => plain(at.ip()).is_loopback(),
        }
    }

    /// The part of the client's identity that its address is: ports change.
    #[must_use]
    pub fn host(&self) -> String {
        match self {
            Self::Here => String::new(),
            Self::At(at) => plain(at.ip()).to_string(),
        }
    }
}

impl Settings {
    /// Says why a client is not let in.
    pub fn lets_in(&self, peer: &Peer) -> Result<(), &'static str> {
        let Peer::At(at) = peer else { return Ok(()) };
        if !self.any_port && at.port() >= 1024 {
            return Err("its port is above 1023, so any user may have sent the call");
        }
        let is_in = |network: &Network| network.has(at.ip());
        if self.networks.is_empty() || peer.is_local() || self.networks.iter().any(is_in) {
            return Ok(());
        }
        Err("its address is in none of the networks that are let in")
    }

    /// Returns as whom a client acts.
    #[must_use]
    pub fn squashed(&self, peer: &Peer, said: Option<Credentials>) -> Credentials {
        let Some(said) = said else { return Credentials::anonymous() };
        let (all, root) = match self.squash {
            Squash::All => (true, true),
            Squash::Root => (false, true),
            Squash::Remote => (false, !peer.is_local()),
            Squash::None => (false, false),
        };
        if all {
            return Credentials::anonymous();
        }
        let changed = |id| if root && id == 0 { ANONYMOUS } else { id };
        let groups = said.groups.iter().map(|&group| changed(group)).collect();
        Credentials { uid: changed(said.uid), gid: changed(said.gid), groups }
    }

    /// Whether no client changes a volume.
    #[must_use]
    pub fn is_read_only(&self, volume: &str) -> bool {
        self.read_only.iter().any(|name| name == volume || name == "*")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &str) -> Peer {
        Peer::of(&Address::Tcp(([0; 4], 1).into()), text)
    }

    #[test]
    fn networks_have_their_addresses() {
        let has = |network: &str, address: &str| {
            let network: Network = network.parse().expect(network);
            network.has(address.parse().expect(address))
        };
        assert!(has("10.0.0.0/8", "10.255.1.2") && !has("10.0.0.0/8", "11.0.0.1"));
        assert!(has("10.0.0.0/8", "::ffff:10.1.1.1") && !has("10.0.0.0/8", "::1"));
        assert!(has("0.0.0.0/0", "1.2.3.4") && !has("0.0.0.0/0", "fd00::1"));
        assert!(has("::/0", "fd00::1") && has("fd00::/8", "fd12::1") && !has("fd00::/8", "fe80::"));
        assert!(has("10.1.2.3", "10.1.2.3") && !has("10.1.2.3", "10.1.2.2"));
        for bad in ["", "10.0.0.0/33", "::/129", "10.0.0/8", "a/8", "10.0.0.0/-1", "10.0.0.0/"] {
            bad.parse::<Network>().expect_err(bad);
        }
    }

    #[test]
    fn clients_are_let_in_by_port_and_network() {
        let settings =
            Settings { networks: vec!["10.0.0.0/8".parse().unwrap()], ..Settings::default() };
        let lets = |peer: &Peer| settings.lets_in(peer).is_ok();
        assert!(lets(&at("tcp:127.0.0.1:1000")), "as the sockets name it");
        assert!(lets(&Peer::Here) && lets(&at("127.0.0.1:1000")) && lets(&at("10.1.1.1:1023")));
        assert!(!lets(&at("10.1.1.1:1024")) && !lets(&at("127.0.0.1:5000")));
        assert!(!lets(&at("11.1.1.1:1000")) && !lets(&at("nowhere")));
        let open = Settings { any_port: true, ..Settings::default() };
        assert!(open.lets_in(&at("11.1.1.1:5000")).is_ok());
    }

    #[test]
    fn squashed_users_are_anonymous() {
        let root = || Some(Credentials { uid: 0, gid: 0, groups: vec![0, 5] });
        let (near, far) = (at("127.0.0.1:1"), at("10.0.0.1:1"));
        let uid = |squash, peer: &Peer, said| {
            let settings = Settings { squash, ..Settings::default() };
            let found = settings.squashed(peer, said);
            (found.uid, found.groups)
        };
        assert_eq!(uid(Squash::Remote, &near, root()), (0, vec![0, 5]));
        assert_eq!(uid(Squash::Remote, &Peer::Here, root()), (0, vec![0, 5]));
        assert_eq!(uid(Squash::Remote, &far, root()), (ANONYMOUS, vec![ANONYMOUS, 5]));
        assert_eq!(uid(Squash::Root, &near, root()), (ANONYMOUS, vec![ANONYMOUS, 5]));
        assert_eq!(uid(Squash::None, &far, root()), (0, vec![0, 5]));
        let user = || Some(Credentials { uid: 7, gid: 7, groups: vec![] });
        assert_eq!(uid(Squash::Root, &far, user()), (7, vec![]));
        assert_eq!(uid(Squash::All, &near, user()), (ANONYMOUS, vec![]));
        assert_eq!(uid(Squash::None, &near, None), (ANONYMOUS, vec![]), "it has said nothing");
    }
}
