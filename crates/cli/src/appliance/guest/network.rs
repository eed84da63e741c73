//! An address for the first network card, through the kernel's routing socket.
//!
//! ```text
//! message    length:u32 type:u16 flags:u16 sequence:u32 port:u32  body  attributes         (native byte order)
//! link       family:u8 0:u8 type:u16 index:u32 flags:u32 changed:u32
//! address    family:u8 bits:u8 flags:u8 scope:u8 index:u32
//! route      family:u8 to-bits:u8 from-bits:u8 tos:u8 table:u8 protocol:u8 scope:u8 type:u8 flags:u32
//! attribute  length:u16 type:u16 payload, here always 4 bytes
//! ```

use anyhow::{Context, Result};
use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};
use std::io;
use std::net::Ipv4Addr;
use std::os::fd::OwnedFd;

const NEW_LINK: u16 = 16;
const NEW_ADDRESS: u16 = 20;
const NEW_ROUTE: u16 = 24;
const MESSAGE_ERROR: u16 = 2;
/// Request, acknowledge, create.
const FLAGS: u16 = 0x1 | 0x4 | 0x400;
const HEADER_BYTES: usize = 16;
const INET: u8 = 2;
const UP: u32 = 1;
const LOOPBACK: &str = "lo";

/// Brings the loopback and the first card up.
pub fn configure(address: Ipv4Addr, bits: u8, gateway: Ipv4Addr) -> Result<()> {
    // Protocol 0 is routing.
    let socket = rustix::net::socket_with(
        AddressFamily::NETLINK,
        SocketType::RAW,
        SocketFlags::CLOEXEC,
        None,
    )?;
    rustix::net::bind(&socket, &SocketAddrNetlink::new(0, 0))?;
    link_up(&socket, index(LOOPBACK)?)?;
    let card = first_card().context("there is no network card")?;
    let card = index(&card)?;
    link_up(&socket, card)?;
    let mut body = vec![INET, bits, 0, 0];
    body.extend(card.to_ne_bytes());
    // The address here, and at our end of the link.
    for kind in [2, 1] {
        attribute(&mut body, kind, address.octets());
    }
    call(&socket, NEW_ADDRESS, &body).context("its address")?;
    // Main table, of boot, universe, unicast.
    let mut body = vec![INET, 0, 0, 0, 254, 3, 0, 1, 0, 0, 0, 0];
    attribute(&mut body, 5, gateway.octets());
    attribute(&mut body, 4, card.to_ne_bytes());
    call(&socket, NEW_ROUTE, &body).context("its route")
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

fn link_up(socket: &OwnedFd, index: u32) -> Result<()> {
    let mut body = vec![0, 0, 0, 0];
    body.extend(index.to_ne_bytes());
    body.extend(UP.to_ne_bytes());
    body.extend(UP.to_ne_bytes());
    call(socket, NEW_LINK, &body).context("cannot bring it up")
}

fn attribute(body: &mut Vec<u8>, kind: u16, payload: [u8; 4]) {
    body.extend(8u16.to_ne_bytes());
    body.extend(kind.to_ne_bytes());
    body.extend(payload);
}

/// Sends a message and waits for the kernel's word. What is there already is as good.
fn call(socket: &OwnedFd, kind: u16, body: &[u8]) -> Result<()> {
    let mut message = Vec::with_capacity(HEADER_BYTES + body.len());
    message.extend(u32::try_from(HEADER_BYTES + body.len())?.to_ne_bytes());
    message.extend(kind.to_ne_bytes());
    message.extend(FLAGS.to_ne_bytes());
    message.extend([0; 8]);
    message.extend(body);
    rustix::net::send(socket, &message, SendFlags::empty())?;
    let mut answer = [0; 4096];
    let (length, _) = rustix::net::recv(socket, answer.as_mut_slice(), RecvFlags::empty())?;
    let found = answer.get(..length).unwrap_or_default();
    match code(found).context("the kernel's answer is not understood")? {
        0 => Ok(()),
        code if code == -rustix::io::Errno::EXIST.raw_os_error() => Ok(()),
        code => Err(io::Error::from_raw_os_error(code.saturating_neg()).into()),
    }
}

/// The errno of an acknowledgement; 0 is success.
fn code(answer: &[u8]) -> Option<i32> {
    let kind = u16::from_ne_bytes(answer.get(4..6)?.try_into().ok()?);
    let code = i32::from_ne_bytes(answer.get(HEADER_BYTES..HEADER_BYTES + 4)?.try_into().ok()?);
    (kind == MESSAGE_ERROR).then_some(code)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_acknowledgement_is_a_number_and_anything_else_is_not_understood() {
        let mut answer = vec![36, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        answer.extend((-17_i32).to_ne_bytes());
        assert_eq!(code(&answer), Some(-17));
        assert_eq!(code(&answer[..18]), None);
        answer[4] = 16;
        assert_eq!(code(&answer), None);
    }
}
