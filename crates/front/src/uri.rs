//! URIs of volumes, as clients write them.

use rekindle_env::Address;

/// Returns the URI by which NBD clients reach a volume at a place.
#[must_use]
pub fn nbd(place: &Address, volume: &str) -> String {
    let volume = escape(volume);
    match place {
        Address::Tcp(place) => format!("nbd://{place}/{volume}"),
        Address::Unix(path) => {
            // Slashes may stay as they are, and are read more easily.
            let path = escape(&path.display().to_string()).replace("%2F", "/");
            format!("nbd+unix:///{volume}?socket={path}")
        }
    }
}

/// Returns the URI by which programs with libnfs reach a volume at a place.
#[must_use]
pub fn nfs(place: &Address, volume: &str) -> String {
    let volume = escape(volume);
    match place {
        Address::Tcp(at) => {
            let (host, port) = (host(at), at.port());
            format!("nfs://{host}/{volume}?version=3&nfsport={port}&mountport={port}")
        }
        Address::Unix(path) => {
            let path = escape(&path.display().to_string()).replace("%2F", "/");
            format!("nfs+unix:///{volume}?socket={path}")
        }
    }
}

/// Returns the command by which the kernel's NFS client mounts a volume from a place.
#[must_use]
pub fn nfs_mount(place: &Address, volume: &str, dir: &str) -> String {
    let Address::Tcp(place) = place else { return place.to_string() };
    let (host, port) = (host(place), place.port());
    format!("mount -t nfs -o vers=3,tcp,nolock,port={port},mountport={port} {host}:/{volume} {dir}")
}

/// The same for version 4.1, with locks.
#[must_use]
pub fn nfs4_mount(place: &Address, volume: &str, dir: &str) -> String {
    let Address::Tcp(place) = place else { return place.to_string() };
    format!("mount -t nfs4 -o vers=4.1,port={} {}:/{volume} {dir}", place.port(), host(place))
}

fn host(place: &std::net::SocketAddr) -> String {
    let host = place.ip();
    if place.is_ipv6() { format!("[{host}]") } else { host.to_string() }
}

/// Percent-encodes a part of a path, which may hold any character.
#[must_use]
pub fn escape(text: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.~".contains(&byte);
    text.bytes()
        .map(|byte| if plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uris_are_what_nbd_clients_write() {
        let unix = Address::Unix("/srv/nbd.sock".into());
        assert_eq!(nbd(&unix, "vm1"), "nbd+unix:///vm1?socket=/srv/nbd.sock");
        let strange = Address::Unix("/srv/a b&c#d?e%f/größe/nbd.sock".into());
        assert_eq!(
            nbd(&strange, "vm1"),
            "nbd+unix:///vm1?socket=/srv/a%20b%26c%23d%3Fe%25f/gr%C3%B6%C3%9Fe/nbd.sock"
        );
        let four = Address::Tcp("10.0.0.1:2049".parse().expect("an address"));
        assert_eq!(
            nfs(&four, "my home"),
            "nfs://10.0.0.1/my%20home?version=3&nfsport=2049&mountport=2049"
        );
        let six = Address::Tcp("[::1]:2049".parse().expect("an address"));
        assert_eq!(
            nfs_mount(&six, "home", "/mnt"),
            "mount -t nfs -o vers=3,tcp,nolock,port=2049,mountport=2049 [::1]:/home /mnt"
        );
        assert_eq!(
            nfs4_mount(&six, "home", "/mnt"),
            "mount -t nfs4 -o vers=4.1,port=2049 [::1]:/home /mnt"
        );
        let tcp = Address::Tcp("127.0.0.1:10809".parse().expect("an address"));
        assert_eq!(nbd(&tcp, "mail store"), "nbd://127.0.0.1:10809/mail%20store");
    }
}
