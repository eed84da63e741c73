//! Opens the log: finds the segments, decides what the log is, opens a new head. The old head is
//! sealed afterwards, as after any rollover.

use crate::decide::{Decided, absence, damage_of, decide};
use crate::driver::{FileLease, Plan, open_head};
use crate::format::{FOOT_BYTES, Foot, Lost, Named};
use crate::head::Head;
use crate::inner::{Inner, Parts};
use crate::inventory::{Inventory, LostSegment, Recovery};
use crate::known_end;
use crate::limits::{
    COPY_BYTES_MAX, REPLICAS_MAX, RESERVE_FILES, SECTOR_BYTES, SECTOR_BYTES_MAX, SEGMENTS_MAX,
    SEGMENTS_MIN, SLOTS_MIN, STATISTICS_MAX,
};
use crate::machine::history::History;
use crate::machine::table::Table;
use crate::recovered_index::{Marks, SegmentTotals, content_of};
use crate::replica::{Copiers, Replica};
use crate::scan::Scan;
use crate::segment::{Segment, spare_slot};
use crate::segment_pool::SegmentPool;
use crate::{Config, Error, Known, Log, Opened};
use hashbrown::HashMap;
use rekindle_base::{Incarnation, SegmentId, Serial, VolumeId};
use rekindle_env::{Env, File, Open};
use rekindle_warm::{Arena, Began};
use std::sync::Arc;
use std::time::Duration;

/// The log of a folder, found and understood. The log takes no append before [`Discovery::open`].
pub struct Discovery {
    scan: Scan,
    starting: Starting,
    opened: Opened,
    segments_max: usize,
    flush_interval: Duration,
    inventory: Inventory,
    folder_lock: Arc<dyn File>,
    was_closed: bool,
    newest_life: Option<Incarnation>,
    replicas: Vec<Arc<dyn Replica>>,
    copy_bytes: u32,
}

/// Finds the log of `config`, with `arena` for its open segments.
pub(crate) async fn find(
    env: &Env,
    arena: &Arena,
    config: Config,
    trust: bool,
    known: Option<Known>,
) -> Result<Discovery, Error> {
    let mut pool = SegmentPool::new(env.clone(), config.folder.clone(), config.node, arena.clone());
    let folder_lock = lock_folder(&pool).await?;
    let sector = env.disk().sector_bytes(&config.folder).await.clamp(1, SECTOR_BYTES_MAX);
    pool.sector = sector.next_power_of_two().max(SECTOR_BYTES);
    pool.known_end = known_end::read(&pool).await;
    let pool = Arc::new(pool);
    let segments_max = config.flash_bytes / u64::from(pool.capacity);
    let segments_max = usize::try_from(segments_max.clamp(SEGMENTS_MIN, SEGMENTS_MAX));
    let segments_max = segments_max.expect("bounded");
    let mut scan = scan(&pool, arena, trust).await?;
    let watch = env.watch();
    let mut decided = decide(&pool, &mut scan).await?;
    let is_first = decided.newest.is_none();
    let found = decided.newest.map(|id| (scan.segments[&id].header().incarnation, id));
    let absent = known
        .filter(|known| decided.history.compare(*known, found))
        .map(|known| absence(&pool, known, found));
    env.boot_phase("decided", Some("log"), watch);
    if is_first {
        sync_names(&pool).await?;
    }
    let mut opened = Opened {
        damage: damage_of(&scan, &decided.history, absent.as_deref()),
        is_absent: absent.is_some(),
        ..Opened::default()
    };
    if trust && arena.began() == Began::Damaged {
        let reason = "the headers of the warm memory are damaged: what only it had is lost";
        opened.damage.push(reason.to_owned());
    }
    let was_closed = decided.was_closed && !opened.is_absent;
    forget_outdated_copies(&scan, arena);
    let watch = env.watch();
    let (mut starting, said) = Starting::new(pool, decided, absent);
    starting.stock_files(&scan, segments_max).await?;
    starting.admit(&mut scan, &mut opened).await?;
    starting.count_uncounted(is_first).await;
    let inventory = starting.inventory(said);
    starting.report_damage(&opened);
    env.boot_phase("old-heads", Some("log"), watch);
    Ok(Discovery {
        scan,
        starting,
        opened,
        segments_max,
        flush_interval: config.flush_interval,
        inventory,
        folder_lock,
        was_closed,
        newest_life: found.map(|(life, _)| life),
        replicas: Vec::new(),
        copy_bytes: COPY_BYTES_MAX,
    })
}

/// Scans flash and, if it is to be trusted, warm memory for segments.
async fn scan(pool: &SegmentPool, arena: &Arena, trust: bool) -> Result<Scan, Error> {
    if !trust {
        arena.forget();
    }
    let slots = arena.take_slots();
    if slots.len() < SLOTS_MIN {
        return Err(Error::Foreign(format!(
            "the warm arena has {} free slots, the log needs {SLOTS_MIN}: enlarge it, or give each log its own",
            slots.len()
        )));
    }
    let watch = pool.env.watch();
    let mut scan = Scan::run(pool, slots).await?;
    match arena.began() {
        Began::Damaged if trust => scan.damaged_slots.push(None),
        Began::Mended => tracing::warn!("the header of the warm memory was damaged: it is mended"),
        _ => {}
    }
    pool.env.boot_phase("scanned", Some("log"), watch);
    Ok(scan)
}

/// Forgets copies of records in warm memory that lie beside an outdated segment: they are as old.
fn forget_outdated_copies(scan: &Scan, arena: &Arena) {
    if let (true, Some(frames)) = (scan.is_memory_outdated, arena.frames()) {
        let dropped = frames.drop_all();
        tracing::warn!(
            dropped,
            "an older warm memory was put back: its copies of records are forgotten"
        );
    }
}

impl Discovery {
    /// Whether the last life closed the log in good order, or there was none. If not, memory may
    /// have had more than flash.
    #[must_use]
    pub fn was_closed(&self) -> bool {
        self.was_closed
    }

    /// The life that opened the newest head; `None` if the folder has no log.
    #[must_use]
    pub fn newest_life(&self) -> Option<Incarnation> {
        self.newest_life
    }

    /// Gives the log the replicas that are required from its first moment on, at most
    /// `limits::REPLICAS_MAX`.
    #[must_use]
    pub fn with_replicas(self, replicas: Vec<Arc<dyn Replica>>) -> Self {
        assert!(replicas.len() <= REPLICAS_MAX, "no log has more replicas");
        Discovery { replicas, ..self }
    }

    /// Bounds one call to a replica to so many bytes; by default `limits::COPY_BYTES_MAX`, which is
    /// the most.
    #[must_use]
    pub fn with_copy_bytes(self, copy_bytes: u32) -> Self {
        Discovery { copy_bytes, ..self }
    }

    /// Opens a new head and makes it durable; the log begins there. No other life of the log may
    /// have had `incarnation`, in any folder: the caller has recorded it outside the log by now.
    pub async fn open(self, incarnation: Incarnation) -> Result<(Log, Opened), Error> {
        let Discovery { scan, mut starting, opened, segments_max, .. } = self;
        let (inventory, folder_lock) = (self.inventory, self.folder_lock);
        let env = starting.pool.env.clone();
        let watch = env.watch();
        let named = |file: &u32| starting.history.missing.iter().any(|named| named.file == *file);
        let strays = scan.unreadable.iter().map(|(file, _)| *file);
        let strays = strays.filter(|file| !named(file)).collect();
        let class = u32::try_from(self.replicas.len()).expect("at most REPLICAS_MAX");
        let copies = Arc::new(Copiers::new(&env, self.copy_bytes));
        let (head, old) = starting.open_new_head(incarnation, class).await?;
        env.boot_phase("new-head", Some("log"), watch);
        let Starting { table, pool, unread, .. } = starting;
        let recovery = Recovery::new(unread, inventory, strays);
        let parts = Parts {
            pool,
            incarnation,
            segments_max,
            head,
            old,
            table,
            recovery,
            folder_lock,
            copies: Arc::clone(&copies),
        };
        let inner = Inner::new(parts);
        for replica in self.replicas {
            copies.add(replica, true);
        }
        Ok((Log::begin(&env, inner, self.flush_interval), opened))
    }
}

async fn lock_folder(pool: &SegmentPool) -> Result<Arc<dyn File>, Error> {
    let disk = pool.env.disk();
    let flash = |doing: &'static str| move |error| pool.flash_error(doing, &error);
    disk.create_folder(&pool.folder).await.map_err(flash("making the log's folder"))?;
    let lock = disk
        .open(&pool.folder.join("lock"), Open::Create)
        .await
        .map_err(flash("opening the lock file"))?;
    if !lock.try_lock().map_err(flash("locking the log's folder"))? {
        return Err(Error::Foreign(format!(
            "another rekindle is using {}: stop it, or give this one a folder of its own",
            pool.folder.display()
        )));
    }
    Ok(lock)
}

/// Makes the names of the folder and of the folders above it durable: once in a log's life, before
/// its first head.
async fn sync_names(pool: &SegmentPool) -> Result<(), Error> {
    for folder in pool.folder.ancestors().filter(|path| !path.as_os_str().is_empty()) {
        match pool.env.disk().sync_folder(folder).await {
            // A folder that this process may not open is not one that it has made.
            Err(error) if error.kind() != std::io::ErrorKind::PermissionDenied => {
                return Err(pool.flash_error("making the log's folder durable", &error));
            }
            _ => {}
        }
    }
    Ok(())
}

/// What the newest statistics say of the volumes.
struct Said {
    /// They name every volume.
    whole: bool,
    highest: HashMap<VolumeId, Serial>,
}

pub(crate) struct Starting {
    pub(crate) pool: Arc<SegmentPool>,
    pub(crate) history: History,
    /// The head whose statistics are used: they cover the segments before it.
    pub(crate) counted: Option<SegmentId>,
    pub(crate) table: Table<Option<Arc<Segment>>>,
    /// The old head, to be committed and sealed.
    pub(crate) resumed: Option<Head>,
    /// The newest segment, if the log was closed there.
    pub(crate) closed: Option<(u32, Foot)>,
    pub(crate) unread: Vec<Arc<Segment>>,
    /// Segments that leave the log when the new head is durable.
    pub(crate) leaving: Vec<SegmentId>,
    /// Low-water marks of earlier lives.
    pub(crate) marks: Marks,
    /// The message that the log used last is not here.
    pub(crate) absent: Option<String>,
}

impl Starting {
    /// Returns also what the newest statistics say.
    fn new(pool: Arc<SegmentPool>, decided: Decided, absent: Option<String>) -> (Self, Said) {
        let Decided { history, newest, counted, closed, .. } = decided;
        let (counted, statistics) = counted.unzip();
        let mut said = Said { whole: newest.is_none(), highest: HashMap::new() };
        let mut marks = Marks::new();
        if let Some(statistics) = statistics {
            said.whole = statistics.whole;
            said.highest.extend(statistics.volumes);
            for (volume, mark) in statistics.marks {
                marks.entry(volume).or_default().push(mark);
            }
        }
        let starting = Self {
            table: Table::new(said.highest.clone(), said.whole),
            history,
            counted,
            closed,
            pool,
            resumed: None,
            unread: Vec::new(),
            leaving: Vec::new(),
            marks,
            absent,
        };
        (starting, said)
    }

    /// The list of what outlived the restart. The table takes the marks over.
    fn inventory(&mut self, said: Said) -> Inventory {
        let marks = std::mem::take(&mut self.marks);
        self.table.take_over(&marks);
        let counted = self.counted.filter(|_| said.whole);
        Inventory::new(self.losses(), said.highest, counted, marks)
    }

    pub(crate) fn is_member(&self, id: SegmentId) -> bool {
        self.history.empty == Some(id)
            || self.history.members.iter().any(|named| named.segment == id)
    }

    /// Frees the files that hold nothing needed, and removes those beyond the budget.
    async fn stock_files(&self, scan: &Scan, segments_max: usize) -> Result<(), Error> {
        let mut used: Vec<u32> = scan
            .segments
            .iter()
            .filter(|(id, _)| self.is_member(**id))
            .filter_map(|(_, f)| f.file())
            .collect();
        used.extend(self.history.missing.iter().map(|named| named.file));
        // A file that cannot be read may be the missing segment: it is left alone.
        used.extend(scan.unreadable.iter().map(|(file, _)| *file));
        used.sort_unstable();
        let mut free: Vec<u32> =
            scan.files.iter().copied().filter(|file| used.binary_search(file).is_err()).collect();
        if self.absent.is_some() {
            // A file that looks empty may be a remnant of the log: it is evidence.
            free.clear();
        }
        let wanted = (segments_max + RESERVE_FILES as usize).saturating_sub(used.len()).max(1);
        for surplus in free.split_off(wanted.min(free.len())) {
            let _ = self.pool.env.disk().remove(&self.pool.path(surplus)).await;
        }
        // An earlier life may have died between making a file and making its name durable. The
        // names must be durable before this life relies on the files: a head whose name a power cut
        // takes back is a lost log.
        let synced = self.pool.env.disk().sync_folder(&self.pool.folder).await;
        synced.map_err(|error| {
            self.pool.flash_error("making the names of segments durable", &error)
        })?;
        let next = scan.files.iter().max().map_or(1, |last| last + 1);
        self.pool.stock(free, next);
        Ok(())
    }

    pub(crate) fn busy(&self, id: SegmentId) -> Error {
        Error::Flash {
            folder: self.pool.folder.display().to_string(),
            reason: format!(
                "no slot of the warm arena is free for segment {id}: enlarge the arena"
            ),
        }
    }

    /// Segments of which changes are lost. Some may not be in the log any more.
    pub(crate) fn losses(&self) -> Vec<LostSegment> {
        let how = |segment| match self.counted.is_some_and(|head| segment < head) {
            true => Lost::Counted,
            false => Lost::Uncounted,
        };
        let missing = self.history.missing.iter().map(move |named: &Named| LostSegment {
            segment: named.segment,
            lost: named.lost.max(how(named.segment)),
            hole_ends: None,
            hearsay: false,
            reason: format!("segment {} (file {}) is missing", named.segment, named.file),
        });
        let tail = self.history.tail_lost.map(|segment| LostSegment {
            segment,
            lost: how(segment),
            hole_ends: None,
            hearsay: false,
            reason: self
                .absent
                .clone()
                .unwrap_or_else(|| format!("segment {segment}, the newest, is missing or damaged")),
        });
        let earlier = self.history.members.iter().filter(|named| named.lost != Lost::Nothing);
        let earlier = earlier.map(|named| LostSegment {
            segment: named.segment,
            lost: named.lost,
            hole_ends: None,
            hearsay: true,
            reason: format!(
                "changes of segment {} were found lost by an earlier start",
                named.segment
            ),
        });
        missing.chain(tail).chain(earlier).collect()
    }

    /// Counts the changes that no statistics cover: those in the head with the newest statistics,
    /// and behind it.
    async fn count_uncounted(&mut self, no_head: bool) {
        let mut unknown = no_head && !self.unread.is_empty();
        let uncounted = self.unread.iter().filter(|segment| Some(segment.id()) >= self.counted);
        for segment in uncounted.cloned().collect::<Vec<_>>() {
            let SegmentTotals { highest, marks } = content_of(&segment).await;
            unknown |= highest.is_none();
            self.table.carry(highest);
            for (volume, mark) in marks {
                self.marks.entry(volume).or_default().push(mark);
            }
        }
        if unknown {
            self.table.carry(None);
        }
    }

    fn report_damage(&self, opened: &Opened) {
        for damage in &opened.damage {
            tracing::error!(folder = %self.pool.folder.display(), "{damage}");
        }
    }

    /// Opens the new head durably. Returns also the old head, to be committed and sealed behind it
    /// as in any rollover, with the segments that may go then.
    async fn open_new_head(
        &mut self,
        incarnation: Incarnation,
        class: u32,
    ) -> Result<(Head, Option<(Head, Vec<SegmentId>)>), Error> {
        let slot = self.pool.arena.free_slot().or_else(|| spare_slot(&self.table));
        let slot = slot.ok_or_else(|| self.busy(self.history.next))?;
        let (named, _) = self.table.next_digest();
        let statistics = self.table.statistics(&HashMap::new(), STATISTICS_MAX);
        let id = self.history.next;
        let plan = Plan { id, incarnation, class, named, statistics: Some(statistics) };
        let file = FileLease::take(&self.pool, false, || 0).await?;
        let head = open_head(&self.pool, plan, slot, file).await?;
        self.reopen_closed(id).await?;
        self.table.insert(id, head.segment.named(), Some(Arc::clone(&head.segment)), false);
        let leaving = std::mem::take(&mut self.leaving);
        if let Some(old) = self.resumed.take() {
            return Ok((head, Some((old, leaving))));
        }
        for id in leaving {
            drop(self.table.remove_dead(id));
        }
        Ok((head, None))
    }

    /// Notes that a log closed at the newest segment goes on. Without the note, the loss of the new
    /// head would look like a log that ended in order. One sector is written over, which is old or
    /// new after a crash; both are right.
    async fn reopen_closed(&self, successor: SegmentId) -> Result<(), Error> {
        let Some((file, mut foot)) = self.closed else { return Ok(()) };
        foot.successor = Some(successor);
        let handle = self.pool.open_to_write(file).await?;
        let place = u64::from(self.pool.capacity - FOOT_BYTES);
        while let Err(error) = handle.write_durable(&foot.encode(), place).await {
            let waited = self.pool.ride_out(error).await;
            waited.map_err(|error| self.pool.flash_error("reopening the log", &error))?;
        }
        Ok(())
    }
}
