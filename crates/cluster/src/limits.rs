//! Bounds of the copies on other nodes, and of the peers that send them.

use rekindle_base::limits::SEGMENT_BYTES;
use rekindle_base::units::KIB;
use std::time::Duration;

/// Largest `node.json` that an owner may send, bytes.
pub const HOME_BYTES_MAX: u32 = 64 * KIB as u32;
/// Longest text of a refusal, bytes.
pub const TEXT_BYTES_MAX: u32 = 1024;
/// Largest payload of a frame before both ends have proved that they know the secret, bytes.
pub const STRANGER_BYTES_MAX: u32 = TEXT_BYTES_MAX;
/// Largest segment, bytes.
pub const CAPACITY_MAX: u32 = SEGMENT_BYTES as u32;
/// Segments begin and end on multiples of this, bytes.
pub const CAPACITY_STEP: u32 = 512;
/// Most segments of one node that a holder keeps: as many as a log may have.
pub const SEGMENTS_MAX: usize = rekindle_log::limits::SEGMENTS_MAX as usize;
/// Most files of one node: while a sync ends, each segment may have two.
pub const FILES_MAX: usize = 2 * SEGMENTS_MAX;
/// Most nodes whose copies a holder keeps.
pub const NODES_MAX: usize = 256;

/// Most connections that have proved that they know the secret. Each has a thread.
pub const PEERS_MAX: usize = 64;
/// Most connections that have not proved it yet.
pub const STRANGERS_MAX: usize = 16;
/// Longest time until both ends have proved that they know the secret.
pub const HELLO_TIME_MAX: Duration = Duration::from_secs(5);
/// Longest time for the rest of a frame that has begun, and for a frame to be taken by the other
/// end.
pub const FRAME_TIME_MAX: Duration = Duration::from_secs(10);
/// Longest time between two requests of a peer.
pub const IDLE_TIME_MAX: Duration = Duration::from_secs(30);
/// Pause between two signs of life of a peer that has nothing to send.
pub const PING_PAUSE: Duration = Duration::from_secs(8);
/// Pause after a failed accept.
pub const ACCEPT_PAUSE: Duration = Duration::from_millis(200);
/// Buffer of a connection that is kept between two frames, bytes.
pub const BUFFER_BYTES_KEPT: usize = 1280 << 10;

const _: () = assert!(PING_PAUSE.as_secs() * 3 < IDLE_TIME_MAX.as_secs(), "one ping may be late");
