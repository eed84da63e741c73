//! A pack of chunks, and the notes that tell where chunks went.

use super::report::Report;
use rekindle_base::PackId;
use rekindle_content::format::{Bad, blob, footer, moved, node, pack};
use rekindle_content::pack::{parity, scan};
use rekindle_content::{Class, POINTER_BYTES};
use serde_json::{Value, json};

/// Decodes a pack. With a damaged footer its blobs are found by scanning, as the daemon would.
pub fn report(subject: &str, bytes: &[u8]) -> Report {
    let mut report = Report::new(subject, "pack");
    let id = match pack::decode(bytes) {
        Ok((class, id)) => {
            report.shown("pack", id);
            report.shown("class", word(class));
            Some(id)
        }
        Err(bad) => {
            report.problem(bad);
            None
        }
    };
    let listed = match footer::decode(bytes) {
        Ok(entries) => entries,
        Err(Bad::Newer { .. }) => {
            report.problem("its footer is of a newer version: upgrade rekindle");
            return report;
        }
        Err(bad) => {
            report.problem(format!("{bad}; the blobs below were found by scanning"));
            scan(id, bytes)
        }
    };
    report.fact("bytes", bytes.len());
    report.fact("chunks", listed.len());
    let length = |entries: &[footer::Entry]| {
        entries.iter().map(|entry| u64::from(entry.length)).sum::<u64>()
    };
    let stored = |entries: &[footer::Entry]| {
        entries.iter().map(|entry| u64::from(entry.stored)).sum::<u64>()
    };
    report.fact("content_bytes", length(&listed));
    report.fact("stored_bytes", stored(&listed));
    parity_of(id, bytes, &mut report);
    "chunks".clone_into(&mut report.entries_are);
    for entry in &listed {
        match blob_of(bytes, entry) {
            Ok((header, payload)) => report.entry(row(entry, &header, payload)),
            Err(why) => report.problem(format!(
                "the chunk {} at {}: {why}",
                hex(&entry.name[..8]),
                entry.offset
            )),
        }
    }
    report
}

/// Reports whether there is parity, how much, and the damage that it would have to make up for.
fn parity_of(id: Option<PackId>, bytes: &[u8], report: &mut Report) {
    let Some(layout) = parity::find(id, bytes) else {
        report.fact("parity", "none");
        return;
    };
    report.shown("parity", format_args!("{}+{}", layout.data, layout.parity));
    report.fact("parity_bytes", layout.end() - layout.covered);
    report.fact("stripes", layout.stripes());
    report.fact("cell_bytes", layout.cell);
    let healed = parity::heal(bytes, &layout);
    if healed.damaged > 0 {
        report.problem(format!(
            "{} cell(s) of parity stripes are damaged; beyond repair are {} of {} stripes",
            healed.damaged,
            healed.hopeless,
            layout.stripes()
        ));
    }
}

fn word(class: Class) -> &'static str {
    match class {
        Class::Data => "data",
        Class::Metadata => "metadata",
    }
}

fn blob_of<'a>(bytes: &'a [u8], entry: &footer::Entry) -> Result<(blob::Blob, &'a [u8]), String> {
    let (offset, stored) = (entry.offset as usize, entry.stored as usize);
    let end = offset.checked_add(stored).ok_or("its place is impossible")?;
    let whole = bytes
        .get(offset..end)
        .ok_or_else(|| format!("the pack ends within it ({} bytes)", bytes.len()))?;
    let header = blob::decode(whole).map_err(|bad| bad.to_string())?;
    if header.name != entry.name || header.length != entry.length {
        return Err("another chunk lies there".to_owned());
    }
    let payload =
        whole.get(blob::BYTES..).filter(|payload| payload.len() == header.payload as usize);
    payload
        .map(|payload| (header, payload))
        .ok_or_else(|| "its lengths contradict one another".to_owned())
}

fn row(entry: &footer::Entry, header: &blob::Blob, payload: &[u8]) -> Vec<(&'static str, Value)> {
    let codec = match header.codec {
        blob::Codec::None => "none",
        blob::Codec::Lz4 => "lz4",
        blob::Codec::Zstd => "zstd",
    };
    vec![
        ("offset", json!(entry.offset)),
        ("stored", json!(entry.stored)),
        ("length", json!(entry.length)),
        ("codec", json!(codec)),
        ("children", json!(header.children)),
        ("name", json!(hex(&entry.name[..8]))),
        ("holds", json!(holds(header, payload))),
    ]
}

/// Describes a chunk, as far as its bytes tell.
fn holds(header: &blob::Blob, payload: &[u8]) -> String {
    if header.class == Class::Data {
        return "data".to_owned();
    }
    let body = match header.codec {
        blob::Codec::None => payload.to_vec(),
        blob::Codec::Zstd => match zstd::bulk::decompress(payload, header.length as usize) {
            Ok(body) => body,
            Err(error) => return format!("cannot be decompressed: {error}"),
        },
        blob::Codec::Lz4 => match lz4_flex::block::decompress(payload, header.length as usize) {
            Ok(body) => body,
            Err(error) => return format!("cannot be decompressed: {error}"),
        },
    };
    match node::decode(&body, header.children) {
        Ok(view) => {
            let keys = match view.count() {
                0 => "no keys".to_owned(),
                count => format!("{count} keys {}..={}", view.key(0), view.key(count - 1)),
            };
            format!("tree node of level {}, {keys}", view.level())
        }
        Err(bad) => bad.to_string(),
    }
}

/// Decodes a `moved/` note.
pub fn moved(subject: &str, bytes: &[u8]) -> Report {
    let mut report = Report::new(subject, "note of moved chunks");
    match moved::decode(bytes) {
        Ok(found) => {
            report.shown("pack", found.pack);
            report.fact("chunks", found.entries.len());
            "chunks".clone_into(&mut report.entries_are);
            for (offset, pointer) in &found.entries {
                report.entry(vec![
                    ("was_at", json!(offset)),
                    ("name", json!(hex(&pointer.name[..8]))),
                    ("pack", json!(pointer.pack.to_string())),
                    ("offset", json!(pointer.offset)),
                    ("stored", json!(pointer.stored)),
                ]);
            }
        }
        Err(bad) => report.problem(bad),
    }
    report
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

const _: () = assert!(POINTER_BYTES == 64, "a node's children are as long as the pages say");

#[cfg(test)]
mod tests {
    use super::*;

    /// A pack of two chunks that are stored as they are.
    fn sample() -> Vec<u8> {
        let mut bytes = pack::encode(Class::Data, PackId([2; 16])).to_vec();
        let mut entries = Vec::new();
        for fill in [3u8, 4] {
            let offset = u32::try_from(bytes.len()).expect("small");
            let header = blob::Blob {
                codec: blob::Codec::None,
                class: Class::Data,
                length: 100,
                payload: 100,
                children: 0,
                name: [fill; 32],
            };
            bytes.extend(blob::encode(&header));
            bytes.extend([fill; 100]);
            let stored = u32::try_from(bytes.len()).expect("small") - offset;
            entries.push(footer::Entry { offset, stored, length: 100, name: [fill; 32] });
        }
        footer::append(&entries, &mut bytes);
        bytes
    }

    #[test]
    fn a_pack_is_read_whole_and_damaged() {
        let whole = report("x", &sample());
        assert_eq!((whole.entries.len(), whole.problems.len()), (2, 0), "{:?}", whole.problems);
        let mut no_footer = sample();
        let last = no_footer.len() - 1;
        no_footer[last] ^= 1;
        let scanned = report("x", &no_footer);
        assert_eq!(
            (scanned.entries.len(), scanned.problems.len()),
            (2, 1),
            "{:?}",
            scanned.problems
        );
        let mut bad_blob = sample();
        bad_blob[pack::BYTES] ^= 1;
        let partly = report("x", &bad_blob);
        assert_eq!((partly.entries.len(), partly.problems.len()), (1, 1), "{:?}", partly.problems);
    }

    #[test]
    fn parity_and_what_it_makes_up_for_are_shown() {
        let golden = include_bytes!("../../../content/golden/pack-parity.bin");
        let whole = report("x", golden);
        assert!(whole.problems.is_empty(), "{:?}", whole.problems);
        assert!(whole.facts.contains(&("parity".to_owned(), json!("2+1"))), "{:?}", whole.facts);
        let mut damaged = golden.to_vec();
        damaged[pack::BYTES + blob::BYTES] ^= 1;
        let problems = report("x", &damaged).problems.join("; ");
        assert!(problems.contains("1 cell(s) of parity"), "{problems}");
        assert!(problems.contains("beyond repair are 0"), "{problems}");
        let without = report("x", &sample());
        assert!(without.facts.contains(&("parity".to_owned(), json!("none"))));
    }

    #[test]
    fn any_bytes_give_a_report() {
        for bytes in [&[][..], &[0; 100], b"RKPACK\0\0", b"RKMOVED\0"] {
            assert!(!report("x", bytes).problems.is_empty());
            assert!(!moved("x", bytes).problems.is_empty());
        }
    }
}
