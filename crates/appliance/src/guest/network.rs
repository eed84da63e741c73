//! An address for the first network card, through the kernel's routing socket.
//!
//! ```text
//! link    family:u8 0:u8 type:u16 index:u32 flags:u32 changed:u32
//! address family:u8 bits:u8 flags:u8 scope:u8 index:u32
//! route   family:u8 to-bits:u8 from-bits:u8 tos:u8 table:u8 protocol:u8 scope:u8 type:u8 flags:u32
//! ```

use anyhow::{Context, Result};
use rekindle_env::real::netlink::{Attributes, Socket};
use std::net::Ipv4Addr;

const NEW_LINK: u16 = 16;
const NEW_ADDRESS: u16 = 20;
const NEW_ROUTE: u16 = 24;
const FLAG_CREATE: u16 = 0x400;
const INET: u8 = 2;
const UP: u32 = 1;
const LOOPBACK: &str = "lo";

/// Brings the loopback and the first card up.
pub fn configure(address: Ipv4Addr, bits: u8, gateway: Ipv4Addr) -> Result<()> {
    let mut socket = Socket::open(None)?;
    link_up(&mut socket, index(LOOPBACK)?)?;
    let card = first_card().context("there is no network card")?;
    let card = index(&card)?;
    link_up(&mut socket, card)?;
    let mut header = vec![INET, bits, 0, 0];
    header.extend(card.to_ne_bytes());
    // The address here, and at our end of the link.
    let attributes = [(2, address.octets()), (1, address.octets())];
    call(&mut socket, NEW_ADDRESS, header, &attributes).context("its address")?;
    // Main table, of boot, universe, unicast.
    let header = vec![INET, 0, 0, 0, 254, 3, 0, 1, 0, 0, 0, 0];
    let attributes = [(5, gateway.octets()), (4, card.to_ne_bytes())];
    call(&mut socket, NEW_ROUTE, header, &attributes).context("its route")
}

fn first_card() -> Option<String> {
    let entries = std::fs::read_dir("/sys/class/net").into_iter().flatten().flatten();
    let names = entries.map(|entry| entry.file_name().to_string_lossy().into_owned());
    names.filter(|name| name != LOOPBACK).min()
}

fn index(name: &str) -> Result<u32> {
    let text = std::fs::read_to_string(format!("/sys/class/net/{name}/ifindex"));
    text.with_context(|| name.to_owned())?.trim().parse().context("an index is a number")
}

fn link_up(socket: &mut Socket, index: u32) -> Result<()> {
    let mut header = vec![0, 0, 0, 0];
    header.extend(index.to_ne_bytes());
    header.extend(UP.to_ne_bytes());
    header.extend(UP.to_ne_bytes());
    call(socket, NEW_LINK, header, &[]).context("cannot bring it up")
}

/// Sends a message and waits for the kernel's answer. An object that exists already is as good as a
/// new one.
fn call(
    socket: &mut Socket,
    kind: u16,
    header: Vec<u8>,
    attributes: &[(u16, [u8; 4])],
) -> Result<()> {
    let mut all = Attributes::default();
    attributes.iter().for_each(|(kind, payload)| all.put(*kind, payload));
    match socket.call(kind, FLAG_CREATE, &[header.as_slice(), all.bytes()].concat()) {
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => Ok(()),
        answered => Ok(answered.map(drop)?),
    }
}
