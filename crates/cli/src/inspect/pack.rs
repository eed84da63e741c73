//! A pack of chunks, and the notes that tell where chunks went.

use super::report::Report;
use rekindle_base::PackId;
use rekindle_base::checksum::crc32c;
use rekindle_content::format::{Bad, blob, bundle, footer, moved, node, pack};
use rekindle_content::pack::{Scanned, parity, scan};
use rekindle_content::{Class, POINTER_BYTES};
use serde_json::{Value, json};

/// Decodes a pack. With a damaged footer its blobs are found by scanning, as the daemon would; only
/// the store's key names the chunks of bundles.
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
            let (chunks, bundles) = scanned(id, bytes);
            report.fact("bundles_without_names", bundles);
            chunks
        }
    };
    report.fact("bytes", bytes.len());
    let is_bundle = |blob: &&[footer::Entry]| !blob[0].part.is_whole();
    report.fact("bundles", listed.chunk_by(footer::Entry::is_beside).filter(is_bundle).count());
    report.fact("chunks", listed.len());
    let length = |entries: &[footer::Entry]| {
        entries.iter().map(|entry| u64::from(entry.length)).sum::<u64>()
    };
    let stored = |entries: &[footer::Entry]| {
        let blobs = entries.chunk_by(footer::Entry::is_beside);
        blobs.map(|blob| u64::from(blob[0].stored)).sum::<u64>()
    };
    report.fact("content_bytes", length(&listed));
    report.fact("stored_bytes", stored(&listed));
    parity_of(id, bytes, &mut report);
    "chunks".clone_into(&mut report.entries_are);
    for entry in &listed {
        let row = match entry.part.is_whole() {
            true => blob_of(bytes, entry).map(|(header, payload)| row(entry, &header, payload)),
            false => bundle_of(bytes, entry).map(|header| row_of_part(entry, &header)),
        };
        match row {
            Ok(row) => report.entry(row),
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

/// The chunks that a scan finds, and the count of bundles, whose chunks it cannot name.
fn scanned(id: Option<PackId>, bytes: &[u8]) -> (Vec<footer::Entry>, usize) {
    let (mut chunks, mut bundles) = (Vec::new(), 0);
    for blob in scan(id, bytes) {
        match blob {
            Scanned::Chunk(entry) => chunks.push(entry),
            Scanned::Bundle(..) => bundles += 1,
        }
    }
    (chunks, bundles)
}

/// The bytes of the blob of a chunk.
fn stored_of<'a>(bytes: &'a [u8], entry: &footer::Entry) -> Result<&'a [u8], String> {
    let (offset, stored) = (entry.offset as usize, entry.stored as usize);
    let end = offset.checked_add(stored).ok_or("its place is impossible")?;
    bytes.get(offset..end).ok_or_else(|| format!("the pack ends within it ({} bytes)", bytes.len()))
}

/// The header of the bundle in which a chunk lies.
fn bundle_of(bytes: &[u8], entry: &footer::Entry) -> Result<bundle::Bundle, String> {
    let whole = stored_of(bytes, entry)?;
    let header = bundle::decode(whole).map_err(|bad| bad.to_string())?;
    let begins = header.lengths.iter().scan(0, |end, length| {
        *end += *length as usize;
        Some((*end - *length as usize, *length))
    });
    if !begins.into_iter().any(|part| part == (entry.part.begin(), entry.length)) {
        return Err("another chunk lies there".to_owned());
    }
    if header.stored() != whole.len() {
        return Err("its lengths contradict one another".to_owned());
    }
    if crc32c(&whole[header.head()..]) != header.sum {
        return Err("the checksum of its bundle is wrong".to_owned());
    }
    Ok(header)
}

fn blob_of<'a>(bytes: &'a [u8], entry: &footer::Entry) -> Result<(blob::Blob, &'a [u8]), String> {
    let whole = stored_of(bytes, entry)?;
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
    vec![
        ("offset", json!(entry.offset)),
        ("stored", json!(entry.stored)),
        ("length", json!(entry.length)),
        ("codec", json!(codec(header.codec))),
        ("children", json!(header.children)),
        ("name", json!(hex(&entry.name[..8]))),
        ("holds", json!(holds(header, payload))),
    ]
}

/// The row of a chunk in a bundle; `stored` is its share.
fn row_of_part(entry: &footer::Entry, header: &bundle::Bundle) -> Vec<(&'static str, Value)> {
    let (count, at) = (header.lengths.len(), entry.part.begin());
    vec![
        ("offset", json!(entry.offset)),
        ("stored", json!(entry.share())),
        ("length", json!(entry.length)),
        ("codec", json!(codec(header.codec))),
        ("children", json!(0)),
        ("name", json!(hex(&entry.name[..8]))),
        ("holds", json!(format!("data, at {at} of a bundle of {count}"))),
    ]
}

fn codec(codec: blob::Codec) -> &'static str {
    match codec {
        blob::Codec::None => "none",
        blob::Codec::Lz4 => "lz4",
        blob::Codec::Zstd => "zstd",
    }
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
            for (spot, pointer) in &found.entries {
                report.entry(vec![
                    ("was_at", json!(spot.offset)),
                    ("part", json!(spot.part.begin())),
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
    use rekindle_content::Part;

    /// A pack of two chunks that are stored as they are.
    fn sample() -> Vec<u8> {
        let mut bytes = pack::encode(Class::Data, PackId([2; 16]), false).to_vec();
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
            let part = Part::WHOLE;
            entries.push(footer::Entry { offset, stored, length: 100, part, name: [fill; 32] });
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
    fn a_bundle_is_shown_chunk_by_chunk_and_its_damage_is_told() {
        let golden = include_bytes!("../../../content/golden/pack-2.bin");
        let whole = report("x", golden);
        assert!(whole.problems.is_empty(), "{:?}", whole.problems);
        assert!(whole.facts.contains(&("bundles".to_owned(), json!(1))), "{:?}", whole.facts);
        let last = whole.entries.last().expect("chunks");
        let holds = ("holds".to_owned(), json!("data, at 600 of a bundle of 3"));
        assert!(whole.entries.len() == 5 && last.contains(&holds), "{last:?}");
        let mut damaged = golden.to_vec();
        let at = footer::decode(golden).expect("golden")[4].blob();
        damaged[usize::try_from(at.end).expect("small") - 1] ^= 1;
        assert_eq!(report("x", &damaged).problems.len(), 3, "each chunk of the bundle");
        let mut no_footer = golden.to_vec();
        no_footer.pop();
        let scanned = report("x", &no_footer);
        assert_eq!((scanned.entries.len(), scanned.problems.len()), (2, 1));
        let without_names = ("bundles_without_names".to_owned(), json!(1));
        assert!(scanned.facts.contains(&without_names), "{:?}", scanned.facts);
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
