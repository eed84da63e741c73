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
        let tcp = Address::Tcp("127.0.0.1:10809".parse().expect("an address"));
        assert_eq!(nbd(&tcp, "mail store"), "nbd://127.0.0.1:10809/mail%20store");
    }
}
