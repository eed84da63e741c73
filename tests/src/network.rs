//! A network of hosts on this machine: a network namespace for each, and a bridge between them.

use crate::shell::Shell;
use anyhow::Result;
use std::sync::atomic::{AtomicU32, Ordering};

/// What such a network needs; also root.
pub const PROGRAMS: &[&str] = &["ip", "nft"];

/// The network; its namespaces are deleted on drop. Hosts are numbered from 0.
pub struct Network {
    name: String,
    hosts: usize,
}

impl Network {
    /// Makes a network of so many hosts.
    pub fn new(hosts: usize) -> Result<Self> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let next = NEXT.fetch_add(1, Ordering::Relaxed);
        let network = Self { name: format!("rekindle-{}-{next}", std::process::id()), hosts };
        let bridge = network.bridge();
        Shell::script(&format!(
            "ip netns add {bridge}; ip -n {bridge} link add br0 type bridge; ip -n {bridge} link set br0 up; \
             ip netns exec {bridge} nft add table bridge cuts; \
             ip netns exec {bridge} nft add chain bridge cuts drops '{{ type filter hook forward priority 0; }}'"
        ))
        .run()?;
        for host in 0..hosts {
            let (own, address) = (network.namespace(host), network.address(host));
            Shell::script(&format!(
                "ip netns add {own}; ip -n {own} link set lo up; \
                 ip link add eth0 netns {own} type veth peer name p{host} netns {bridge}; \
                 ip -n {bridge} link set p{host} master br0 up; \
                 ip -n {own} addr add {address}/24 dev eth0; ip -n {own} link set eth0 up"
            ))
            .run()?;
        }
        Ok(network)
    }

    fn bridge(&self) -> String {
        format!("{}-br", self.name)
    }

    fn namespace(&self, host: usize) -> String {
        format!("{}-{host}", self.name)
    }

    /// The address of a host in the network.
    #[must_use]
    pub fn address(&self, host: usize) -> String {
        format!("10.78.0.{}", host + 1)
    }

    /// The words in front of a command that runs on a host.
    #[must_use]
    pub fn prefix(&self, host: usize) -> Vec<String> {
        ["ip", "netns", "exec", &self.namespace(host)].map(str::to_owned).to_vec()
    }

    /// Drops whatever `from` sends to `to`.
    pub fn cut(&self, from: usize, to: usize) -> Result<()> {
        let (bridge, from, to) = (self.bridge(), self.address(from), self.address(to));
        let rule = format!("ether type ip ip saddr {from} ip daddr {to} drop");
        let add = format!("ip netns exec {bridge} nft add rule bridge cuts drops {rule}");
        Shell::script(&add).run().map(drop)
    }

    /// Pulls the plug of a host.
    pub fn unplug(&self, host: usize) -> Result<()> {
        self.set_link(host, "down")
    }

    /// Undoes all cuts, and puts all plugs back.
    pub fn heal(&self) -> Result<()> {
        let bridge = self.bridge();
        Shell::script(&format!("ip netns exec {bridge} nft flush chain bridge cuts drops"))
            .run()?;
        (0..self.hosts).try_for_each(|host| self.set_link(host, "up"))
    }

    fn set_link(&self, host: usize, state: &str) -> Result<()> {
        let bridge = self.bridge();
        Shell::script(&format!("ip -n {bridge} link set p{host} {state}")).run().map(drop)
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        let hosts = (0..self.hosts).map(|host| self.namespace(host));
        for namespace in hosts.chain([self.bridge()]) {
            let _ = Shell::new("ip").args(["netns", "del", &namespace]).output();
        }
    }
}
