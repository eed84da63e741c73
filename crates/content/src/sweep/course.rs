//! The course of a sweep with the lease in hand.

use super::alive::Alive;
use super::books::{Books, ended};
use super::condemned::{self, Condemned, CondemnedState, Known};
use super::findings::{SweepFindings, SweepPlan};
use super::lease::Tenure;
use super::listing::{Listed, Listing, list_notes};
use super::machine::Event;
use super::pace::Pace;
use super::plan::{self, Judged, Plan};
use super::sources::{Look, Sources};
use super::tally::{Notes, Tally};
use super::told::{since, told};
use super::{Sweeper, compact};
use crate::format::tally::Heard;
use crate::name::{PackMap, PackSet};
use crate::{Class, Error, limits, moved, pack};
use rekindle_base::{Kind, Life, PackId};
use rekindle_datastore::record::Held;
use std::collections::BTreeMap;

impl Sweeper {
    pub(super) async fn sweep(&self, tenure: &Tenure<'_>) -> Result<(), Error> {
        let mut books = self.books.lock().await;
        books.is_in_use(true);
        let swept = self.sweep_with(&mut books, tenure).await;
        if swept.is_err() {
            books.forget();
        }
        books.is_in_use(false);
        swept
    }

    async fn sweep_with(&self, books: &mut Books, tenure: &Tenure<'_>) -> Result<(), Error> {
        let held = self.resume(tenure).await?;
        self.step(Event::Begin);
        let pace = self.pace();
        let found = self.find(books, &pace).await?;
        self.count(|status| found.tell(status));
        let mut groups = found.plan.into_groups(self.options.condemned_max).into_iter();
        let Some(first) = groups.next() else {
            self.step(Event::Nothing);
            return Ok(());
        };
        let mut held = self.reclaim(held, first, books, (&pace, tenure)).await?;
        for group in groups {
            // A compaction has filled the store. What is dead came before it.
            if self.progress.lock().left_out.is_some() {
                break;
            }
            self.step(Event::Begin);
            held = self.reclaim(held, group, books, (&pace, tenure)).await?;
        }
        Ok(())
    }

    fn pace(&self) -> Pace {
        Pace::new(&self.writer.env, self.options.budget, self.stop.clone())
    }

    /// Returns what a sweep would do now. It reads what a sweep reads first, changes nothing in the
    /// store, and asks no other node.
    pub async fn plan(&self) -> Result<SweepPlan, Error> {
        let mut books = self.books.lock().await;
        books.is_in_use(true);
        let found = self.find(&mut books, &self.pace()).await;
        if found.is_err() {
            books.forget();
        }
        books.is_in_use(false);
        Ok(found?.estimate(self.content.inner.config.pack_bytes))
    }

    /// Finds what can be reclaimed: brings the counts up to date, and judges the listed packs.
    async fn find(&self, books: &mut Books, pace: &Pace) -> Result<SweepFindings, Error> {
        let content = &self.content;
        let mut found = SweepFindings::default();
        // Packs before roots: a pack that is written from now on is not on the list. Then the
        // batches that wrote the listed packs.
        let mut notes = list_notes(content).await?;
        let listing = Listing::take(content, &notes, &books.shelf(content)).await.map_err(ended)?;
        (found.packs, found.bytes) = (listing.packs, listing.bytes);
        let unfinished: PackSet = content.inner.live.packs().into_iter().collect();
        let own = self.roots.written(0);
        let (roots, is_first) = self.look_at_lists(books).await?;
        let (tally, counted) = books.update((content, pace), &roots, &notes).await?;
        let is_same = !counted.cost.is_changed && counted.anew.is_none();
        found.add(counted);
        let is_at_rest = is_same && *self.at_rest.lock() == Some(listing.fingerprint);
        if is_at_rest && !self.is_recount_due(tally) {
            tally.commit().await.map_err(ended)?;
            // All packs are alive, or there would have been something to do.
            (found.is_unchanged, found.live) = (true, listing.packs);
            return Ok(found);
        }
        if let Some(own) = own.filter(|_| is_first) {
            // What this life had written before is among what was read.
            let Life { node, incarnation } = self.writer.life();
            tally.hear([(node, Heard { incarnation, upto: Some(own.upto) })].into());
        }
        self.compare(books, (pace, &notes), &mut found).await?;
        // A commit that leads to a young pack may still be on its way, from another node or from an
        // earlier start of this one.
        let is_settled = |pack: &PackId| {
            let is_known = content.inner.live.has_ended(pack);
            (is_known || !self.is_young(pack)) && !unfinished.contains(pack)
        };
        let mut judged =
            plan::judge(books.at_hand()?, (&listing, &notes), &self.options, is_settled).await;
        let unlisted = judged.as_mut().map(|judged| std::mem::take(&mut judged.unlisted));
        let more = self.notes_of(unlisted.unwrap_or_default()).await?;
        if !more.is_empty() {
            // The list of notes is not whole: where they lead, packs seem to be dead.
            notes.extend(more);
            let (tally, counted) = books.update((content, pace), &roots, &notes).await?;
            found.add(counted);
            judged = plan::judge(tally, (&listing, &notes), &self.options, is_settled).await;
        }
        let Judged { plan, live, young, waits, .. } = judged.map_err(ended)?;
        (found.plan, found.live, found.young) = (plan, live, young);
        let tally = books.at_hand()?;
        let asked = std::mem::take(&mut found.plan.sparse);
        let below = self.options.compact_below;
        let worthwhile = compact::worthwhile(content, (&asked, below), tally).await?;
        (found.copied, found.reads) = (worthwhile.bytes, worthwhile.reads);
        found.plan.sparse = worthwhile.packs;
        tally.commit().await.map_err(ended)?;
        // Not at rest: what is left alone for now, and a pack whose footer could not be read. Time
        // alone can make both of them candidates.
        let is_at_rest = found.plan.is_empty() && worthwhile.are_all_read && !waits;
        *self.at_rest.lock() = is_at_rest.then_some(listing.fingerprint);
        Ok(found)
    }

    /// Looks at the roots as far as lists show that they have changed; at all of them if nothing is
    /// counted yet, which is told.
    async fn look_at_lists(&self, books: &mut Books) -> Result<(Sources, bool), Error> {
        let nothing = Sources::default();
        match books.tally(&self.content).await? {
            Some(tally) => Ok((self.look(tally.sources(), Look::Listed).await?, false)),
            None => Ok((self.look(&nothing, Look::All).await?, true)),
        }
    }

    async fn look(&self, known: &Sources, look: Look<'_>) -> Result<Sources, Error> {
        let roots = self.roots.look(known, look).await?;
        // A root of the wrong class would be counted as data, which has no children.
        let is_wrong = |root: &&crate::Pointer| pack::class(root.pack) != Class::Metadata;
        if let Some(root) = roots.roots().find(is_wrong) {
            return Err(Error::damaged(root, "it is said to be a root, and lies with the data"));
        }
        Ok(roots)
    }

    /// Whether it is time to count everything, and to compare.
    fn is_recount_due(&self, tally: &Tally) -> bool {
        let recount = u64::try_from(self.options.recount.as_micros()).unwrap_or(u64::MAX);
        self.writer.env.aging_clock().0 >= tally.counted().0.saturating_add(recount)
    }

    /// Counts everything anew beside the tally, when it is time for that, and says so if the two
    /// differ. The new count is the one that is believed.
    async fn compare(
        &self,
        books: &mut Books,
        (pace, notes): (&Pace, &Notes),
        found: &mut SweepFindings,
    ) -> Result<(), Error> {
        let content = &self.content;
        let tally = books.at_hand()?;
        if !self.is_recount_due(tally) {
            return Ok(());
        }
        let roots = tally.sources().clone();
        let (cost, difference) = books.compare((content, pace), &roots, notes).await?;
        found.nodes += cost.nodes;
        if let Some(pack) = difference {
            tracing::error!(
                %pack,
                "the counts of the sweep were wrong, first at this pack: everything was counted anew, and that counts \
                 from now on"
            );
            found.miscounted = Some(pack.to_string());
        }
        Ok(())
    }

    /// Returns those notes of packs that a list should have shown.
    async fn notes_of(&self, packs: Vec<PackId>) -> Result<Notes, Error> {
        let inner = &self.content.inner;
        let mut notes = Notes::new();
        for pack in packs {
            // A young pack has been compacted by this process, or not yet.
            let may_have = inner.moved.is_own(&pack) || !self.is_young(&pack);
            if may_have && inner.moved.note(&inner.store, pack).await?.is_some() {
                notes.insert(pack, None);
            }
        }
        Ok(notes)
    }

    fn is_young(&self, pack: &PackId) -> bool {
        let now = self.writer.env.wall_clock().0 / 1000;
        let young = u64::try_from(self.options.young.as_millis()).unwrap_or(u64::MAX);
        pack::made_milliseconds(pack).saturating_add(young) > now
    }

    /// Reclaims one group of a plan: as many packs as the record names at once.
    async fn reclaim(
        &self,
        held: Held<Condemned>,
        plan: Plan,
        books: &mut Books,
        (pace, tenure): (&Pace, &Tenure<'_>),
    ) -> Result<Held<Condemned>, Error> {
        let content = &self.content;
        self.step(Event::Candidates);
        let tally = books.at_hand()?;
        let held = self.condemn(held, &plan, tally).await?;
        let others = self.settle(held.value.set).await?;
        let life = self.writer.life();
        let own = self.roots.written(since(tally.heard(), life));
        let told = told(tally.heard(), (life, own), &others);
        let look = told.sources.as_ref().map_or(Look::All, Look::Told);
        let roots = self.look(tally.sources(), look).await?;
        // Notes may have come meanwhile.
        let notes = list_notes(content).await?;
        let (tally, counted) = books.update((content, pace), &roots, &notes).await?;
        self.count(|status| counted.tell(status));
        tally.hear(told.heard);
        let plan = self.confirm(plan, tally).await?;
        // What the tally takes back of what is dead must be durable before that is deleted: it
        // cannot be read any more then.
        tally.forget(&plan.notes);
        tally.commit().await.map_err(ended)?;
        if plan.is_empty() {
            let held = self.clear(held).await?;
            self.step(Event::Nothing);
            return Ok(held);
        }
        self.step(Event::Confirmed);
        let decision = Condemned {
            state: CondemnedState::Deleting,
            packs: ids(&plan.dead),
            notes: plan.notes.clone(),
            sparse: ids(&plan.sparse),
            heard: BTreeMap::new(),
            ..held.value
        };
        let held = self.writer.replace(&held, decision).await?;
        let lengths = plan.dead.iter().copied().collect();
        self.delete(&held, &lengths, tenure).await?;
        let held = self.compact(held, plan.sparse, tally, (pace, tenure)).await?;
        let held = self.clear(held).await?;
        self.step(Event::Deleted);
        Ok(held)
    }

    /// Compacts a few packs at a time, so that the store needs little room for it. A full store
    /// ends the compaction, and is no error.
    async fn compact(
        &self,
        mut held: Held<Condemned>,
        mut sparse: Vec<Listed>,
        tally: &mut Tally,
        (pace, tenure): (&Pace, &Tenure<'_>),
    ) -> Result<Held<Condemned>, Error> {
        while !sparse.is_empty() {
            self.step(Event::Sparse);
            let mut bytes = 0;
            let few = sparse.iter().take_while(|(_, length)| {
                let fits = bytes < limits::COMPACTION_ROUND_BYTES;
                bytes += u64::from(*length);
                fits
            });
            let few = few.count().max(1);
            let round: Vec<_> = sparse.drain(..few).collect();
            let alive = Alive::of(tally, ids(&round)).await.map_err(ended)?;
            let compacted = match compact::compact(&self.content, &round, &alive, pace).await {
                Err(error) if error.kind() == Kind::Full => {
                    let left_out = format!("compaction: {error}");
                    self.count(|status| status.left_out = Some(left_out));
                    return Ok(held);
                }
                compacted => compacted?,
            };
            self.count(|status| {
                status.packs_compacted += compacted.packs.len() as u64;
                status.bytes_copied += compacted.bytes_copied;
            });
            let decision = Condemned {
                state: CondemnedState::Deleting,
                packs: compacted.packs,
                notes: Vec::new(),
                sparse: ids(&sparse),
                heard: BTreeMap::new(),
                ..held.value
            };
            held = self.writer.replace(&held, decision).await?;
            self.step(Event::Compacted);
            let lengths = round.into_iter().collect();
            self.delete(&held, &lengths, tenure).await?;
            tally.are_gone(&held.value.packs);
        }
        Ok(held)
    }

    /// Ends what a crash cut off, and returns the record.
    async fn resume(&self, tenure: &Tenure<'_>) -> Result<Held<Condemned>, Error> {
        let held = condemned::hold(&self.writer).await?;
        match held.value.state {
            CondemnedState::Clear => Ok(held),
            CondemnedState::Condemned => self.clear(held).await,
            CondemnedState::Deleting => {
                self.step(Event::Resume);
                condemned::refuse(&self.content, &held.value);
                self.delete(&held, &PackMap::default(), tenure).await?;
                let held = self.clear(held).await?;
                self.step(Event::Deleted);
                Ok(held)
            }
        }
    }

    async fn condemn(
        &self,
        held: Held<Condemned>,
        plan: &Plan,
        tally: &Tally,
    ) -> Result<Held<Condemned>, Error> {
        let packs = [ids(&plan.dead), ids(&plan.sparse)].concat();
        self.count(|status| status.packs_condemned += packs.len() as u64);
        let heard = tally.heard().iter().filter_map(|(node, heard)| {
            let known = Known { incarnation: heard.incarnation, upto: heard.upto? };
            Some((*node, known))
        });
        let condemned = Condemned {
            sweep: held.value.sweep + 1,
            state: CondemnedState::Condemned,
            packs,
            notes: plan.notes.clone(),
            sparse: Vec::new(),
            set: self.writer.env.random_u64(),
            heard: heard.collect(),
        };
        condemned::refuse(&self.content, &condemned);
        let held = self.writer.replace(&held, condemned).await?;
        self.step(Event::Recorded);
        Ok(held)
    }

    /// Returns the part of the plan that still holds after the second mark.
    async fn confirm(&self, plan: Plan, tally: &mut Tally) -> Result<Plan, Error> {
        let mut confirmed = Plan::default();
        for listed in plan.dead {
            match tally.is_named(&listed.0).await.map_err(ended)? {
                true => self.count(|status| status.packs_rescued += 1),
                false => confirmed.dead.push(listed),
            }
        }
        for listed in plan.sparse {
            match tally.is_named(&listed.0).await.map_err(ended)? {
                true => confirmed.sparse.push(listed),
                false => confirmed.dead.push(listed),
            }
        }
        for pack in plan.notes {
            if !tally.is_named(&pack).await.map_err(ended)? {
                confirmed.notes.push(pack);
            }
        }
        Ok(confirmed)
    }

    /// Deletes what the record says. Each step proves first that no other node sweeps.
    async fn delete(
        &self,
        held: &Held<Condemned>,
        lengths: &PackMap<u32>,
        tenure: &Tenure<'_>,
    ) -> Result<(), Error> {
        let store = &self.content.inner.store;
        for window in held.value.packs.chunks(limits::FETCH_WINDOW) {
            tenure.prove().await?;
            let keys: Vec<String> = window.iter().map(|pack| pack::key(*pack)).collect();
            futures_util::future::try_join_all(keys.iter().map(|key| store.delete(key))).await?;
            let length = |pack| lengths.get(pack).copied().map(u64::from);
            let bytes: u64 = window.iter().filter_map(length).sum();
            self.count(|status| {
                status.packs_deleted += window.len() as u64;
                status.bytes_freed += bytes;
            });
        }
        for window in held.value.notes.chunks(limits::FETCH_WINDOW) {
            tenure.prove().await?;
            for pack in window {
                store.delete(&moved::key(*pack)).await?;
                self.content.inner.moved.forget(*pack);
                self.count(|status| status.notes_deleted += 1);
            }
        }
        self.content.inner.index.forget_wholly(&held.value.packs);
        Ok(())
    }

    async fn clear(&self, held: Held<Condemned>) -> Result<Held<Condemned>, Error> {
        let cleared = held.value.clear();
        let held = self.writer.replace(&held, cleared).await?;
        self.content.inner.index.condemn([]);
        Ok(held)
    }
}

fn ids(listed: &[Listed]) -> Vec<PackId> {
    listed.iter().map(|(pack, _)| *pack).collect()
}
