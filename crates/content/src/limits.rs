//! Bounds of this crate.

/// Most entries of a tree node.
pub const NODE_ENTRIES_MAX: usize = 256;
/// A node with fewer entries is joined with a neighbour when it is rewritten.
pub const NODE_ENTRIES_MIN: usize = 64;
/// Deepest tree that is believed: 64 children a node would cover all keys in 11 levels.
pub const TREE_LEVEL_MAX: u16 = 16;
/// Longest content of a chunk, children included, bytes.
pub const CHUNK_BYTES_MAX: usize = 8 << 20;
/// Most children of a chunk.
pub const CHILDREN_MAX: usize = 65_536;
/// Smallest and largest pack, whatever the configuration says, bytes. Offsets in a pack are `u32`.
pub const PACK_BYTES_MIN: u64 = 4 << 10;
/// See [`PACK_BYTES_MIN`].
pub const PACK_BYTES_MAX: u64 = 1 << 30;
/// Most chunks of a pack; a reader refuses more.
pub const PACK_CHUNKS_MAX: usize = 1 << 20;
/// A footer is read with one request of this many bytes from the end; a longer one takes a second
/// request.
pub const FOOTER_GUESS_BYTES: u64 = 128 << 10;
/// A cell of a stripe of parity, bytes: a sector, so that scattered damage hits few stripes twice.
/// Packs that are shorter than a stripe of such cells have smaller ones.
pub const PARITY_CELL_BYTES: usize = 4 << 10;
/// Cells are multiples of this, bytes.
pub const PARITY_CELL_BYTES_MIN: usize = 64;
/// Longest cell that is believed, bytes.
pub const PARITY_CELL_BYTES_MAX: usize = 64 << 10;
/// Most data cells of a stripe that the setting may ask for.
pub const PARITY_DATA_MAX: u8 = 64;
/// Most parity cells of a stripe that the setting may ask for.
pub const PARITY_PARITY_MAX: u8 = 8;
/// A buffer that a pack begins with, bytes; it grows without copying.
pub const PACK_BUFFER_BYTES: usize = 256 << 10;
/// Bytes of a class that a batch puts into the pack that it shares with other batches, at most, and
/// at most a quarter of a pack; the rest goes into packs of its own.
pub const SHARED_BYTES_MAX: u64 = 4 << 20;
/// Bytes of chunks that a task names before their turn: enough to outweigh the start of a task, and
/// not so much that other tasks of its thread wait long.
pub const AHEAD_GROUP_BYTES: usize = 256 << 10;
/// Longest wait for the upload of another shared pack, during which chunks of more batches gather.
pub const SHARED_WAIT_MAX: std::time::Duration = std::time::Duration::from_secs(1);
/// Content shorter than this is not worth compressing, bytes.
pub const COMPRESS_BYTES_MIN: usize = 128;
/// A compressed chunk is kept when it saves this share (1/16) of its length.
pub const COMPRESS_SAVES_SHARE: usize = 16;
/// Longest bundle that is believed, bytes of its chunks. [`crate::Pointer`] has 20 bits for it.
pub const BUNDLE_BYTES_MAX: usize = 1 << 20;
/// Shortest chunk of a bundle, bytes: shorter ones would lie at one position of the pack.
pub const BUNDLE_CHUNK_BYTES_MIN: usize = 256;
/// Longest bundle that is made of chunks that lie side by side, bytes. A bundle is read whole, so
/// docs/decisions/2026-11-24-chunks-compressed-together.md has the price.
pub const BUNDLE_RUN_BYTES: usize = 256 << 10;
/// Longest bundle that is made of chunks of several places, bytes.
pub const BUNDLE_APART_BYTES: usize = 64 << 10;
/// Blobs that are made ahead whose room is kept for the next ones: those of a fold's window.
pub const BLOBS_KEPT_MAX: usize = 32;
/// Bundles that stay decompressed in RAM for the reader of the neighbours, bytes.
pub const BUNDLES_KEPT_BYTES: usize = 4 << 20;
/// Nodes (or chunks) of one operation fetched together.
pub const FETCH_WINDOW: usize = 32;
/// Nodes of a tree that one call reads ahead of need, at most: 18 MiB of them.
pub const READ_AHEAD_NODES: usize = 1024;
/// Bytes of prefetches in flight, at most; more are not started. A short one counts as
/// [`PREFETCH_COST_MIN`], so that 256 of them may be under way: over a distant store, the rate of
/// short requests is their number over the latency.
pub const PREFETCH_BYTES_MAX: u32 = 128 << 20;
/// Least bytes that a prefetch counts.
pub const PREFETCH_COST_MIN: u32 = 512 << 10;
/// A prefetch joins chunks of one pack that lie at most this far apart, bytes.
pub const PREFETCH_GAP_BYTES: u64 = 64 << 10;
/// Tree nodes come with those of their siblings that lie within so many bytes of them in the pack.
pub const BESIDE_BYTES: u64 = 128 << 10;
/// Longest ranged read of a prefetch, bytes.
pub const PREFETCH_READ_BYTES_MAX: u64 = 4 << 20;
/// Metadata chunks that a walk over everything reads at once.
pub const WALK_WINDOW: usize = 256;
/// Chunks that `verify` reads at once, bytes; at each level of a tree as many.
pub const VERIFY_WINDOW_BYTES: u64 = 16 << 20;
/// Bytes of a group that are verified at once, before other requests of the thread have their turn.
pub const OPENED_AT_ONCE_BYTES: usize = 256 << 10;
/// Shards of the cache, each with its own lock, when the cache is large enough to be cut.
pub const CACHE_SHARDS: usize = 16;
/// A shard of the cache smaller than this is not made, bytes.
pub const CACHE_SHARD_BYTES_MIN: u64 = 4 << 20;
/// Longest chain of `moved/` notes that a reader follows.
pub const MOVED_HOPS_MAX: usize = 16;
/// A pack at the end of a chain as long as this is not compacted again.
pub const MOVED_HOPS_COMPACTION_MAX: usize = 8;
/// `moved/` notes kept in RAM.
pub const MOVED_CACHED_MAX: usize = 256;
/// Moved chunks whose new place is proven, kept in RAM; with more, all are proven anew.
pub const MOVED_PROVEN_MAX: usize = 1 << 16;
/// Default of [`crate::sweep::Options::compact_below`]. The store then takes at most 1.5 times what
/// is live, and a freed byte costs two copied ones at most. Of 84, 67 and 50 it is the greatest
/// with which random overwrites write no more than six bytes for one (`cargo x bench store`).
pub const COMPACT_BELOW_PERCENT: u8 = 67;
/// Most packs that a sweep condemns at once. Bounds the record.
pub const CONDEMNED_MAX: usize = 4096;
/// A compaction copies out of packs of so many bytes, and deletes those packs, before it goes on.
pub const COMPACTION_ROUND_BYTES: u64 = 256 << 20;
/// Interval at which a sweep looks whether the other nodes have agreed.
pub const SWEEP_POLL: std::time::Duration = std::time::Duration::from_secs(2);
/// Packs of a class that a sweep lists in RAM: 20 MiB of them. More go through a file.
pub const LISTED_IN_RAM: usize = 1 << 20;
/// Packs that a sweep finds dead, at most; the rest is left to the next one.
pub const DEAD_FOUND_MAX: usize = 1 << 20;
/// Packs that are named and not listed, whose notes a sweep looks for, at most.
pub const UNLISTED_MAX: usize = 1 << 10;
/// Mostly dead packs that a sweep considers, those first of which most is dead.
pub const SPARSE_FOUND_MAX: usize = 1 << 16;
/// Notes in the store, at most: with more, no pack is compacted.
pub const NOTES_MAX: usize = 1 << 20;
/// Sources that an acknowledgement names, at most; with more, the sweep reads all of them.
pub const ACK_SOURCES_MAX: usize = 4096;
/// Time after which a sweep counts everything anew, to compare.
pub const RECOUNT_AFTER: std::time::Duration = std::time::Duration::from_secs(30 * 24 * 3600);
/// RAM for packs whose counts are being changed, bytes.
pub const TALLY_OPEN_BYTES: usize = 48 << 20;
/// Changes of counts that are sorted in RAM: 64 MiB of them.
pub const TALLY_SORTED_CHANGES: usize = 2 << 20;
/// Files of a tally in RAM, bytes, where the disk has no room for them.
pub const TALLY_MEMORY_BYTES: u64 = 96 << 20;
/// Verified chunks that [`crate::verify`] remembers, so that shared chunks are read once.
pub const VERIFIED_NAMES_MAX: usize = 1 << 19;
/// Doubted places of a pack that are remembered one by one; with more all of the pack is doubted.
pub const DOUBTED_PLACES_MAX: usize = 256;
/// Packs with doubted places that are remembered; with more no duplicates are found at all.
pub const DOUBTED_PACKS_MAX: usize = 1 << 16;
/// Chunks that the check of a late root looks at; a volume does not go on from a root with more.
pub const LANDED_CHUNKS_MAX: usize = 1 << 20;
/// Packs that this start wrote and of whose batches it knows the outcome; the oldest are forgotten.
pub const OWN_PACKS_MAX: usize = 1 << 16;

const _: () = assert!(
    NODE_ENTRIES_MIN * 2 <= NODE_ENTRIES_MAX,
    "two nodes that are split must both be full enough"
);
const _: () = assert!(NODE_ENTRIES_MAX <= CHILDREN_MAX);
const _: () = assert!(MOVED_HOPS_COMPACTION_MAX < MOVED_HOPS_MAX);
