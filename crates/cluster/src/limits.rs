//! Bounds of the copies on other nodes, and of the peers that send them.

use rekindle_base::limits::SEGMENT_BYTES;
use rekindle_base::units::KIB;
use std::time::Duration;

/// Largest `node.json` that an owner may send, bytes.
pub const HOME_BYTES_MAX: u32 = 64 * KIB as u32;
/// Longest text of a refusal, bytes.
pub const TEXT_BYTES_MAX: u32 = 1024;
/// Longest name of a volume in a request, bytes: longer than a volume's name may be, so that the
/// owner's host says what is wrong with it.
pub const NAME_BYTES_MAX: u32 = 1024;
/// Longest time until a host has brought a volume into service for another host's client, or has
/// said why not.
pub const SERVE_TIME_MAX: Duration = Duration::from_secs(30);
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
/// Pause between two beats of an owner to a holder.
pub const BEAT: Duration = Duration::from_millis(100);
/// The lease that a beat asks for, from the moment of asking: what a takeover takes at least. An
/// owner that has none left waits with its reads for the next one, and nothing else happens.
pub const LEASE: Duration = Duration::from_millis(700);
/// Longest lease that a holder grants. A holder that was started again waits as long before it
/// takes over: its last process may have granted one.
pub const LEASE_MAX: Duration = Duration::from_secs(2);
/// A holder lets a lease last longer by this part, as a divisor: clocks run at different rates.
pub const DRIFT_PART: u32 = 16;
/// Silence of a holder after which its owner replaces it.
pub const REPLACE_AFTER: Duration = Duration::from_millis(600);
/// Silence of an owner after which a holder connects to its address, to see whether any process
/// listens there, and the pause between two such knocks.
pub const KNOCK_AFTER: Duration = Duration::from_millis(250);
/// Longest time for that connection.
pub const KNOCK_TIME_MAX: Duration = Duration::from_millis(200);
/// Silence of an owner after which a holder suspects it, if a process may be there. A process on a
/// loaded host may get no time of a core for long: at a load of 8 on two cores, an owner that was
/// well was silent for more than a second. A false alarm is safe, and it makes all of the owner's
/// clients wait.
pub const SUSPECT_AFTER: Duration = Duration::from_millis(1500);
/// Further patience of each later holder, in the record's order, with a silent owner.
pub const TURN: Duration = Duration::from_millis(250);
/// Silence of an owner after which a holder takes over although another holder hears the owner.
/// As long, an owner waits for a holder that refuses it because a takeover is under way there.
pub const INSIST_AFTER: Duration = Duration::from_secs(3);
/// Attempts of a takeover by a user's command, whose record has changed meanwhile.
pub const BY_HAND_TRIES: u32 = 5;
/// Silence of an owner that was not heard since the holder's host was started.
pub const COLD_AFTER: Duration = Duration::from_secs(20);
/// Longest time without progress of a required holder that is heard.
pub const LAG_MAX: Duration = Duration::from_secs(2);
/// Longest time in which a holder of the node's last life gets all of the next life's log.
pub const WHOLE_WITHIN: Duration = Duration::from_secs(1);
/// Beats for which a holder's watch may stand still before it believes no silence that it finds.
pub const STALL_BEATS: u32 = 2;
/// Candidates of which the best becomes a holder.
pub const CANDIDATES: usize = 3;
/// Longest time for a candidate's answer.
pub const OFFER_TIME_MAX: Duration = Duration::from_millis(500);
/// Longest time for another holder's word whether it hears a silent owner.
pub const HEARS_TIME_MAX: Duration = Duration::from_millis(150);
/// Pause before another holder is looked for, after none was found; and at most.
pub const CHOOSE_PAUSE: Duration = Duration::from_secs(1);
pub const CHOOSE_PAUSE_MAX: Duration = Duration::from_secs(60);
/// Time for which a node that was lost as a holder is not chosen again, if there are others.
pub const AVOID_FOR: Duration = Duration::from_secs(10);

/// Bytes that are written to measure the speed of the flash for copies, and of one write of them.
pub const SPEED_BYTES: u64 = 4 << 20;
pub const SPEED_PIECE: usize = 256 << 10;
/// Least bytes of a write by which the speed is measured.
pub const SPEED_BYTES_MIN: usize = 32 << 10;
/// Longest time for a connection to another node, without the hello.
pub const CONNECT_TIME_MAX: Duration = Duration::from_secs(2);
/// Longest time for a look into the record of another node.
pub const ROSTER_TIME_MAX: Duration = Duration::from_secs(2);
/// Longest time for telling a holder that its owner stops.
pub const REST_TIME_MAX: Duration = Duration::from_millis(300);

/// Pause after a failed accept.
pub const ACCEPT_PAUSE: Duration = Duration::from_millis(200);
/// Buffer of a connection that is kept between two frames, bytes.
pub const BUFFER_BYTES_KEPT: usize = 1280 << 10;

const _: () = assert!(REPLACE_AFTER.as_millis() < LEASE.as_millis(), "reads go on meanwhile");
const _: () = assert!(REPLACE_AFTER.as_millis() <= SUSPECT_AFTER.as_millis(), "the owner is first");
const _: () = assert!(LEASE.as_millis() < SUSPECT_AFTER.as_millis(), "no wait is added");
const _: () = assert!(LEASE_MAX.as_millis() < INSIST_AFTER.as_millis(), "a taker has its time");
const _: () = assert!(LEASE.as_millis() <= LEASE_MAX.as_millis());
const _: () = assert!(PING_PAUSE.as_secs() * 3 < IDLE_TIME_MAX.as_secs(), "one ping may be late");
