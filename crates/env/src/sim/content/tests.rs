//! Tests of the model of a file against a simpler one: for each sector, every content that it may
//! have after a power cut.

use super::*;

const SECTORS: usize = 40;
const BYTES: usize = SECTORS * SECTOR;

/// Every content that a sector may have on the medium, the present one last.
struct Reference {
    present: Vec<u8>,
    lawful: Vec<Vec<Vec<u8>>>,
    /// A cut leaves a length between these two.
    durable_length: usize,
    length: usize,
}

impl Reference {
    fn new() -> Self {
        Self {
            present: vec![0; BYTES],
            lawful: vec![vec![vec![0; SECTOR]]; SECTORS],
            durable_length: 0,
            length: 0,
        }
    }

    fn note(&mut self, range: Range<usize>) {
        for sector in range.start / SECTOR..range.end.div_ceil(SECTOR) {
            self.lawful[sector].push(self.present[sector * SECTOR..][..SECTOR].to_vec());
        }
    }

    fn write(&mut self, data: &[u8], offset: usize) {
        self.present[offset..offset + data.len()].copy_from_slice(data);
        self.length = self.length.max(offset + data.len());
        self.note(offset..offset + data.len());
    }

    fn settle(&mut self, range: Range<usize>) {
        for sector in range.start / SECTOR..range.end.div_ceil(SECTOR) {
            self.lawful[sector] = vec![self.present[sector * SECTOR..][..SECTOR].to_vec()];
        }
    }

    fn check_cut(&self, found: &[u8], seed: u64) {
        let (low, high) =
            (self.length.min(self.durable_length), self.length.max(self.durable_length));
        assert!(
            (low..=high).contains(&found.len()),
            "length {} of {low}..={high}, seed {seed}",
            found.len()
        );
        for (index, sector) in found.chunks(SECTOR).enumerate() {
            let is_lawful =
                self.lawful[index].iter().any(|version| version[..sector.len()] == *sector);
            assert!(is_lawful, "sector {index} of {} bytes, seed {seed}", found.len());
        }
    }
}

fn read(content: &FileContent) -> Vec<u8> {
    let mut bytes = vec![9; usize::try_from(content.length).expect("small")];
    content.read(&mut bytes, 0).expect("inside the file");
    bytes
}

fn check_space(content: &FileContent) {
    let beyond = content.pages.range(content.reserved_pages..).count() as u64;
    assert_eq!(content.space.file_pages, content.reserved_pages + beyond);
    assert_eq!(content.space.disk_pages.load(Ordering::Relaxed), content.space.file_pages);
}

#[test]
fn a_power_cut_leaves_only_lawful_sectors() {
    for seed in 0..3000 {
        let mut rng = Random::new(seed);
        let inode = Inode::new(1, &Arc::default());
        let mut content = inode.content.lock();
        let mut reference = Reference::new();
        for step in 0..20u8 {
            let offset = rng.index(BYTES - 1);
            let length = 1 + rng.index((BYTES - offset).min(9000));
            // Half of the writes are whole pages, which take another way.
            let (offset, length) =
                if rng.coin() { (offset, length) } else { (offset / PAGE * PAGE, PAGE) };
            let data = vec![step + 1; length];
            match rng.below(10) {
                0..6 => {
                    content.write(&data, offset as u64, u64::MAX).expect("room");
                    reference.write(&data, offset);
                }
                6 => {
                    content.write(&data, offset as u64, u64::MAX).expect("room");
                    content.settle_range(offset as u64, length);
                    reference.write(&data, offset);
                    reference.settle(offset..offset + length);
                    reference.durable_length = reference.durable_length.max(offset + length);
                }
                7 => {
                    content.set_length(offset as u64).expect("room");
                    let old = reference.length;
                    reference.length = offset;
                    if offset < old {
                        reference.present[offset..old].fill(0);
                        reference.note(offset..old);
                    }
                }
                8 => {
                    content.preallocate(offset as u64, u64::MAX).expect("room");
                    reference.length = reference.length.max(offset);
                    reference.settle(0..BYTES);
                    reference.durable_length = reference.length;
                }
                _ => {
                    content.sync();
                    content.release_tail();
                    reference.settle(0..BYTES);
                    reference.durable_length = reference.length;
                }
            }
            assert_eq!(read(&content), reference.present[..reference.length], "seed {seed}");
            check_space(&content);
        }
        let durable = content.durable();
        reference.check_cut(&durable, seed);
        content.cut_power(Cut::Any, &mut rng);
        let left = read(&content);
        reference.check_cut(&left, seed);
        check_space(&content);
        // A file that grows again grows zeros; and its bytes after the cut are on the medium.
        content.set_length(BYTES as u64).expect("room");
        assert!(read(&content)[left.len()..].iter().all(|&byte| byte == 0), "seed {seed}");
        content.sync();
        content.cut_power(Cut::Any, &mut rng);
        assert_eq!(read(&content)[..left.len()], left);
    }
}

#[test]
fn what_is_durable_is_what_the_worst_cut_leaves() {
    for seed in 0..500 {
        let mut rng = Random::new(seed);
        let inode = Inode::new(1, &Arc::default());
        let mut content = inode.content.lock();
        for step in 0..20u8 {
            let offset = rng.index(BYTES - 1);
            let data = vec![step + 1; 1 + rng.index((BYTES - offset).min(9000))];
            content.write(&data, offset as u64, u64::MAX).expect("room");
            match rng.below(4) {
                0 => content.sync(),
                1 => content.settle_range(offset as u64, data.len()),
                _ => {}
            }
        }
        let durable = content.durable();
        content.cut_power(Cut::Lost, &mut rng);
        assert_eq!(read(&content), durable, "seed {seed}");
    }
}

#[test]
fn torn_writes_leave_a_beginning_any_sectors_or_all() {
    let (mut holes, mut whole) = (0, 0);
    for seed in 0..300 {
        let mut rng = Random::new(seed);
        for tear in [Tear::Prefix, Tear::Sectors, Tear::Whole] {
            let inode = Inode::new(1, &Arc::default());
            let mut content = inode.content.lock();
            content.write_torn(&[7; 20 * SECTOR], 100, u64::MAX, tear, &mut rng);
            let found = read(&content);
            let gaps = found.iter().skip(100).filter(|&&byte| byte == 0).count();
            match tear {
                Tear::Prefix => assert_eq!(gaps, 0, "seed {seed}"),
                Tear::Sectors => holes += usize::from(gaps > 0),
                Tear::Whole => whole += usize::from(gaps == 0 && found.len() == 100 + 20 * SECTOR),
            }
            assert!(content.durable().is_empty(), "none of it is on the medium");
        }
    }
    assert!(holes > 200 && whole == 300, "{holes} {whole}");
}
