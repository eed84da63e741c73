//! The record `names/<name>`: the volume that has a name. Its documentation is
//! `docs/format/name.md`.
//!
//! | field | meaning |
//! | --- | --- |
//! | `name` | the name, as the user gave it |
//! | `id` | the volume's id, 32 hexadecimal digits: its vault is `volumes/<id>` |

use rekindle_base::VolumeId;
use rekindle_datastore::record::Body;
use serde::{Deserialize, Serialize};

/// The record of a name: the volume that has it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Name {
    pub name: String,
    pub id: VolumeId,
}

impl Body for Name {
    const WHAT: &'static str = "volume name";
    const FORMAT: u32 = 1;
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const GOLDEN: &str = include_str!("../../golden/name-1.json");

    #[test]
    fn the_golden_image_reads_and_writes_the_same() {
        let name: Name = serde_json::from_str(GOLDEN).unwrap();
        assert_eq!(name, Name { name: "Mail store".to_owned(), id: VolumeId([0xa5; 16]) });
        assert_eq!(serde_json::to_string(&name).unwrap(), GOLDEN.trim_end());
    }

    proptest! {
        #[test]
        fn any_name_comes_back(name in "\\PC{1,255}", id: [u8; 16]) {
            let record = Name { name, id: VolumeId(id) };
            let text = serde_json::to_string(&record).unwrap();
            prop_assert_eq!(serde_json::from_str::<Name>(&text).unwrap(), record);
        }

        #[test]
        fn any_bytes_are_no_reason_to_panic(bytes: Vec<u8>) {
            let _ = serde_json::from_slice::<Name>(&bytes);
        }
    }
}
