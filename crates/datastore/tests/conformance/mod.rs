//! The suite that every backend must pass, races included.

use bytes::Bytes;
use futures_util::future::join_all;
use rekindle_base::NodeId;
use rekindle_datastore::layer::marks;
use rekindle_datastore::limits::{
    LIST_OBJECTS_MAX, MARKER_TRUST, SEGMENT_BYTES_MAX, TAG_AGE_MIN, TOGETHER_BYTES_MAX,
};
use rekindle_datastore::record::Writer;
use rekindle_datastore::{Error, Listed, Removal, Store, Tag, Version, identity, key};
use rekindle_env::Env;

/// Writers in the race to create.
const CREATORS: usize = 16;
/// Writers of the counter.
const COUNTERS: usize = 8;
/// Increments by each writer of the counter.
const ROUNDS: usize = 12;
/// Attempts at one increment, after which an error counts.
const ATTEMPTS_MAX: usize = 100;
/// The large object, bytes.
const LARGE_BYTES: usize = 20 << 20;

/// A rule that a store broke.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{rule}: {what}")]
pub struct Failure {
    /// The rule that was broken.
    pub rule: &'static str,
    /// The way in which the rule was broken.
    pub what: String,
}

type Outcome = Result<(), Failure>;

/// One rule, the store under test, and the folder of the test.
struct Check<'a> {
    rule: &'static str,
    store: &'a Store,
    folder: String,
}

/// Puts a store through all rules, in a folder of its own that is removed when the store passes.
pub async fn run(env: &Env, store: &Store) -> Outcome {
    let folder = format!("conformance/{:016x}/", env.random_u64());
    let check = |rule| Check { rule, store, folder: folder.clone() };
    check("an object is read as it was written").whole_objects().await?;
    check("objects that are read together").together().await?;
    check("a part of an object").ranges().await?;
    check("one creator wins").create_race().await?;
    check("only the current version is replaced").replace().await?;
    check("no update is lost").counter().await?;
    check("readers see all of a write or nothing").atomic_puts().await?;
    check("a listing").listing().await?;
    check("tags of a listing").tags(env).await?;
    check("long listings").paging().await?;
    check("unusual keys").keys().await?;
    check("a large object").large().await?;
    check("only the current version is removed").delete_if().await?;
    check("deleting").deleting().await
}

/// Puts the markers of a store through their rules. The store is empty before, and holds an
/// identity after.
pub async fn markers(env: &Env, store: &Store) -> Outcome {
    let check = Check { rule: "absent is unavailable", store, folder: String::new() };
    check.markers(env).await
}

impl Check<'_> {
    async fn markers(&self, env: &Env) -> Outcome {
        let writer = Writer::new(env.clone(), self.store.clone(), NodeId([7; 16]));
        self.good(identity::open_or_create(&writer).await)?;
        let guarded = marks::wrap(env, self.store.clone()).0;
        let checked = Check { store: &guarded, rule: self.rule, folder: String::new() };
        let folder = key::PACKS_DATA;
        let (there, absent) = (format!("{folder}there"), format!("{folder}absent"));
        checked.put(&there, "x").await?;
        let got = guarded.get(&absent).await;
        self.ensure(matches!(got, Err(Error::NotFound(_))), format!("absent gives {got:?}"))?;
        for prefix in [folder, key::PACKS] {
            let listed = self.good(guarded.list(prefix, None).await)?;
            let keys: Vec<_> = listed.into_iter().map(|object| object.key).collect();
            self.ensure(keys == [there.as_str()], format!("in {prefix} lie {keys:?}"))?;
        }
        let marker = key::marker_key(folder);
        let (sound, _) = self.get(&marker).await?;
        let (other, _) = self.get(&key::marker_key(key::PACKS_META)).await?;
        for wrong in [None, Some(other), Some(Bytes::from_static(b"<html>"))] {
            match wrong {
                None => self.good(self.store.delete(&marker).await)?,
                Some(wrong) => self.put(&marker, wrong).await?,
            }
            env.sleep(MARKER_TRUST).await;
            let data = || Bytes::from_static(b"y");
            let outcomes = [
                guarded.get(&absent).await.map(drop),
                guarded.get_range(&absent, 0..1).await.map(drop),
                guarded.list(folder, None).await.map(drop),
                guarded.list(key::PACKS, None).await.map(drop),
                guarded.list(folder, Some(&there)).await.map(drop),
                guarded.put(&absent, data()).await,
                guarded.create(&absent, data()).await.map(drop),
                guarded.delete(&there).await,
            ];
            for (number, outcome) in outcomes.into_iter().enumerate() {
                self.ensure(
                    matches!(outcome, Err(Error::Unavailable(_) | Error::Unproven(_))),
                    format!("without the marker, call {number} gives {outcome:?}"),
                )?;
            }
            self.ensure(self.store.get(&absent).await.is_err(), "something was written there")?;
            self.good(guarded.get(&there).await)?;
            let elsewhere = guarded.get("packs/meta/absent").await;
            self.ensure(
                matches!(elsewhere, Err(Error::NotFound(_))),
                format!("another folder gives {elsewhere:?}"),
            )?;
        }
        self.put(&marker, sound).await?;
        let got = guarded.get(&absent).await;
        self.ensure(matches!(got, Err(Error::NotFound(_))), format!("back again: {got:?}"))?;
        self.good(guarded.delete(&there).await)?;
        let listed = self.good(guarded.list(folder, None).await)?;
        self.ensure(listed.is_empty(), format!("after the removal there is {listed:?}"))
    }

    fn fail<T>(&self, what: impl Into<String>) -> Result<T, Failure> {
        Err(Failure { rule: self.rule, what: what.into() })
    }

    fn ensure(&self, holds: bool, what: impl Into<String>) -> Outcome {
        if holds { Ok(()) } else { self.fail(what) }
    }

    fn good<T>(&self, result: Result<T, Error>) -> Result<T, Failure> {
        result.or_else(|error| self.fail(error.to_string()))
    }

    fn key(&self, name: &str) -> String {
        format!("{}{name}", self.folder)
    }

    async fn get(&self, key: &str) -> Result<(Bytes, Version), Failure> {
        self.good(self.store.get(key).await)
    }

    async fn put(&self, key: &str, data: impl Into<Bytes>) -> Outcome {
        self.good(self.store.put(key, data.into()).await)
    }

    async fn whole_objects(&self) -> Outcome {
        let key = self.key("whole");
        let absent = self.store.get(&key).await;
        self.ensure(
            matches!(absent, Err(Error::NotFound(_))),
            format!("an absent object gives {absent:?}"),
        )?;
        self.put(&key, "first").await?;
        let (data, first) = self.get(&key).await?;
        self.ensure(data == "first", "it is not what was put")?;
        self.put(&key, "second").await?;
        let (data, second) = self.get(&key).await?;
        self.ensure(
            data == "second" && first != second,
            "a second put must change content and version",
        )?;
        let empty = self.key("empty");
        self.put(&empty, "").await?;
        let (data, version) = self.get(&empty).await?;
        self.ensure(data.is_empty(), "an empty object has content")?;
        self.good(self.store.replace(&empty, Bytes::from_static(b"x"), &version).await)?;
        self.good(self.store.delete(&key).await)?;
        self.good(self.store.delete(&empty).await)
    }

    async fn together(&self) -> Outcome {
        let large = TOGETHER_BYTES_MAX / 2;
        for number in 0..40 {
            let length = if number < 20 { number } else { large };
            self.put(&self.key(&format!("together/{number:02}")), vec![number as u8; length])
                .await?;
        }
        let mut keys: Vec<String> =
            (0..40).map(|number| self.key(&format!("together/{number:02}"))).collect();
        keys.insert(7, self.key("together/absent"));
        let (mut at, mut calls) = (0, 0);
        while at < keys.len() {
            let found = self.store.get_together(&keys[at..]).await;
            let fits = (1..=keys.len() - at).contains(&found.len());
            self.ensure(fits, format!("{} answers", found.len()))?;
            let bytes: usize = found.iter().flatten().map(|(data, _)| data.len()).sum();
            let bounded = bytes <= TOGETHER_BYTES_MAX + large;
            self.ensure(bounded, format!("{bytes} bytes at once"))?;
            for (key, got) in keys[at..].iter().zip(&found) {
                match (self.store.get(key).await, got) {
                    (Err(Error::NotFound(_)), Err(Error::NotFound(_))) => {}
                    (Ok(alone), Ok(together)) if alone == *together => {}
                    (alone, _) => {
                        self.fail(format!("{key} alone is {:?}", alone.map(|it| it.1)))?
                    }
                }
            }
            (at, calls) = (at + found.len(), calls + 1);
        }
        self.ensure(calls > 5, format!("all in {calls} calls"))?;
        for key in &keys {
            self.good(self.store.delete(key).await)?;
        }
        Ok(())
    }

    async fn ranges(&self) -> Outcome {
        let key = self.key("ranges");
        let absent = self.store.get_range(&key, 0..1).await;
        self.ensure(
            matches!(absent, Err(Error::NotFound(_))),
            format!("an absent object gives {absent:?}"),
        )?;
        let data: Vec<u8> = (0..100_000_u32).map(|index| (index % 251) as u8).collect();
        self.put(&key, data.clone()).await?;
        let length = data.len() as u64;
        for (start, end) in [
            (0, 1),
            (0, length),
            (99_999, length),
            (5000, 21_384),
            (7, 7),
            (99_990, length + 50),
            (length, length + 1),
            (length + 9, u64::MAX),
        ] {
            let read = self.good(self.store.get_range(&key, start..end).await)?;
            let expected = &data[start.min(length) as usize..end.min(length) as usize];
            self.ensure(
                read == expected,
                format!("{start}..{end} gives {} bytes or wrong ones", read.len()),
            )?;
        }
        self.put(&key, "").await?;
        let read = self.good(self.store.get_range(&key, 0..10).await)?;
        self.ensure(read.is_empty(), "an empty object has a part")?;
        self.good(self.store.delete(&key).await)
    }

    async fn create_race(&self) -> Outcome {
        for round in 0..4 {
            let key = self.key(&format!("race/{round}"));
            let body = |writer: usize| Bytes::from(format!("round {round} writer {writer}"));
            let attempts =
                join_all((0..CREATORS).map(|writer| self.store.create(&key, body(writer)))).await;
            let winners: Vec<usize> =
                (0..CREATORS).filter(|writer| attempts[*writer].is_ok()).collect();
            let [winner] = winners[..] else {
                return self.fail(format!("the winners are {winners:?}"));
            };
            for (writer, attempt) in
                attempts.iter().enumerate().filter(|(writer, _)| *writer != winner)
            {
                self.ensure(
                    matches!(attempt, Err(Error::Exists(_))),
                    format!("loser {writer} was told {attempt:?}"),
                )?;
            }
            let (data, version) = self.get(&key).await?;
            self.ensure(data == body(winner), "the object is not the winner's")?;
            self.ensure(
                attempts[winner].as_ref().ok() == Some(&version),
                "the winner was given another version",
            )?;
            let late = self.store.create(&key, body(99)).await;
            self.ensure(
                matches!(late, Err(Error::Exists(_))),
                format!("a late creator was told {late:?}"),
            )?;
            self.good(self.store.delete(&key).await)?;
            self.good(self.store.create(&key, body(0)).await)?;
            self.good(self.store.delete(&key).await)?;
        }
        Ok(())
    }

    async fn replace(&self) -> Outcome {
        let key = self.key("replace");
        let data = |text: &'static str| Bytes::from_static(text.as_bytes());
        let first = self.good(self.store.create(&key, data("1")).await)?;
        let second = self.good(self.store.replace(&key, data("2"), &first).await)?;
        let stale = self.store.replace(&key, data("x"), &first).await;
        self.ensure(
            matches!(stale, Err(Error::Conflict(_))),
            format!("a stale version gives {stale:?}"),
        )?;
        let (read, version) = self.get(&key).await?;
        self.ensure(
            read == "2" && version == second,
            "the content or version is not that of the last success",
        )?;
        self.put(&key, "3").await?;
        let stale = self.store.replace(&key, data("x"), &second).await;
        self.ensure(
            matches!(stale, Err(Error::Conflict(_))),
            format!("after a put a stale version gives {stale:?}"),
        )?;
        let (_, third) = self.get(&key).await?;
        self.good(self.store.delete(&key).await)?;
        let gone = self.store.replace(&key, data("x"), &third).await;
        self.ensure(
            matches!(gone, Err(Error::Conflict(_))),
            format!("an absent object gives {gone:?}"),
        )?;
        let read = self.store.get(&key).await;
        self.ensure(matches!(read, Err(Error::NotFound(_))), "a failed replace made an object")
    }

    async fn delete_if(&self) -> Outcome {
        let key = self.key("removed");
        let data = |text: &'static str| Bytes::from_static(text.as_bytes());
        let first = self.good(self.store.create(&key, data("1")).await)?;
        let second = self.good(self.store.replace(&key, data("2"), &first).await)?;
        match self.store.delete_if(&key, &first).await {
            Err(Error::Conflict(_)) => {}
            Ok(Removal::Unsupported) => {
                let (read, version) = self.get(&key).await?;
                self.ensure(read == "2" && version == second, "what is not possible did harm")?;
                return self.good(self.store.delete(&key).await);
            }
            other => return self.fail(format!("a stale version gives {other:?}")),
        }
        let (read, version) = self.get(&key).await?;
        self.ensure(read == "2" && version == second, "a stale version removed something")?;
        // Of the tasks that replace and remove the same version, one wins.
        for round in 0..8 {
            let (_, version) = self.get(&key).await?;
            let body = |writer: usize| Bytes::from(format!("round {round} writer {writer}"));
            let (removed, written) = futures_util::future::join(
                self.store.delete_if(&key, &version),
                join_all((0..4).map(|writer| self.store.replace(&key, body(writer), &version))),
            )
            .await;
            let wins = usize::from(removed.is_ok())
                + written.iter().filter(|written| written.is_ok()).count();
            self.ensure(wins == 1, format!("{wins} have won: {removed:?}, {written:?}"))?;
            let there = self.store.get(&key).await;
            self.ensure(there.is_ok() != removed.is_ok(), "the winner did not get his way")?;
            if there.is_err() {
                self.good(self.store.create(&key, body(9)).await)?;
            }
        }
        let (_, version) = self.get(&key).await?;
        for _ in 0..2 {
            let gone = self.good(self.store.delete_if(&key, &version).await)?;
            self.ensure(gone == Removal::Done, "what was possible is not any more")?;
        }
        let read = self.store.get(&key).await;
        self.ensure(matches!(read, Err(Error::NotFound(_))), format!("it is still there: {read:?}"))
    }

    async fn counter(&self) -> Outcome {
        let key = self.key("counter");
        self.good(self.store.create(&key, Bytes::from_static(b"0")).await)?;
        let count = || async {
            for _ in 0..ROUNDS {
                for attempt in 0.. {
                    let (data, version) = self.get(&key).await?;
                    let number =
                        std::str::from_utf8(&data).ok().and_then(|text| text.parse::<usize>().ok());
                    let Some(number) = number else {
                        return self.fail(format!("the counter says {data:?}"));
                    };
                    match self
                        .store
                        .replace(&key, Bytes::from((number + 1).to_string()), &version)
                        .await
                    {
                        Ok(_) => break,
                        Err(Error::Conflict(_)) => {}
                        // Ceph answers some losers of a race with an error. Had such a write
                        // landed, the count would be too high.
                        Err(Error::Unavailable(_)) if attempt < ATTEMPTS_MAX => {}
                        Err(error) => return self.fail(error.to_string()),
                    }
                }
            }
            Ok(())
        };
        join_all((0..COUNTERS).map(|_| count())).await.into_iter().collect::<Outcome>()?;
        let (data, _) = self.get(&key).await?;
        self.ensure(
            data == (COUNTERS * ROUNDS).to_string(),
            format!("{} counts gave {data:?}", COUNTERS * ROUNDS),
        )?;
        self.good(self.store.delete(&key).await)
    }

    async fn atomic_puts(&self) -> Outcome {
        let key = self.key("atomic");
        self.put(&key, vec![0; 300_000]).await?;
        let write = || async {
            for value in 1..20_u8 {
                self.put(&key, vec![value; 300_000 + usize::from(value)]).await?;
            }
            Ok(())
        };
        let read = || async {
            for _ in 0..20 {
                let (data, _) = self.get(&key).await?;
                let value = data[0];
                let whole = data.len() == 300_000 + usize::from(value)
                    && data.iter().all(|byte| *byte == value);
                self.ensure(whole, "a reader saw a part of a write")?;
            }
            Ok(())
        };
        let (written, seen) =
            futures_util::future::join(write(), join_all((0..3).map(|_| read()))).await;
        written?;
        seen.into_iter().collect::<Outcome>()?;
        self.good(self.store.delete(&key).await)
    }

    /// Lists a page without the tags: a folder gives them to old files only.
    async fn page(&self, prefix: &str, after: Option<&str>) -> Result<Vec<Listed>, Failure> {
        let page = self.good(self.store.list(prefix, after).await)?;
        Ok(page.into_iter().map(|listed| Listed { tag: None, ..listed }).collect())
    }

    async fn tags(&self, env: &Env) -> Outcome {
        let folder = self.key("tags/");
        let list = async || {
            let page = self.good(self.store.list(&folder, None).await)?;
            let tags: Option<Vec<Tag>> = page.into_iter().map(|listed| listed.tag).collect();
            tags.map_or_else(|| self.fail("an object has no tag"), Ok)
        };
        let (one, other) = (self.key("tags/one"), self.key("tags/other"));
        let version = self.good(self.store.create(&one, Bytes::from_static(b"first")).await)?;
        self.put(&other, "other").await?;
        env.sleep(TAG_AGE_MIN).await;
        let before = list().await?;
        self.ensure(list().await? == before, "a tag changes though the content does not")?;
        self.good(self.store.replace(&one, Bytes::from_static(b"later"), &version).await)?;
        env.sleep(TAG_AGE_MIN).await;
        let after = list().await?;
        let is_right = after.len() == 2 && after[0] != before[0] && after[1] == before[1];
        self.ensure(is_right, format!("after a write of the same length: {before:?}, {after:?}"))?;
        self.good(self.store.delete(&one).await)?;
        self.good(self.store.delete(&other).await)
    }

    async fn listing(&self) -> Outcome {
        // The expected order: '-' and '.' sort before the '/' of a folder of the same name.
        let names = ["a-b", "a.b", "a/1", "a/2/x", "a/3", "a0", "b"];
        for name in names {
            self.put(&self.key(&format!("list/{name}")), name).await?;
        }
        let prefix = self.key("list/");
        let listed = self.page(&prefix, None).await?;
        let keys: Vec<_> =
            listed.iter().filter_map(|object| object.key.strip_prefix(&prefix)).collect();
        self.ensure(keys == names, format!("the order is {keys:?}"))?;
        let lengths =
            listed.iter().all(|object| object.key.len() - prefix.len() == object.length as usize);
        self.ensure(lengths, "lengths are wrong")?;
        for (index, name) in names.iter().enumerate() {
            let rest = self.page(&prefix, Some(&format!("{prefix}{name}"))).await?;
            self.ensure(rest == listed[index + 1..], format!("after {name} come {rest:?}"))?;
        }
        let between = self.page(&prefix, Some(&format!("{prefix}a/2"))).await?;
        self.ensure(
            between == listed[3..],
            format!("after a/2, which is no object, come {between:?}"),
        )?;
        let inner = self.page(&format!("{prefix}a/"), None).await?;
        self.ensure(inner == listed[2..5], format!("in a/ there are {inner:?}"))?;
        let none = self.page(&self.key("nothing/"), None).await?;
        self.ensure(none.is_empty(), "an absent folder holds something")?;
        for name in names {
            self.good(self.store.delete(&self.key(&format!("list/{name}"))).await)?;
        }
        Ok(())
    }

    async fn paging(&self) -> Outcome {
        let count = LIST_OBJECTS_MAX + 5;
        let keys: Vec<String> = (0..count)
            .map(|index| self.key(&format!("pages/{:03x}/{index:05}", index / 100)))
            .collect();
        for some in keys.chunks(100) {
            for put in join_all(some.iter().map(|key| self.put(key, "."))).await {
                put?;
            }
        }
        let prefix = self.key("pages/");
        let mut seen: Vec<String> = Vec::new();
        loop {
            let page =
                self.good(self.store.list(&prefix, seen.last().map(String::as_str)).await)?;
            self.ensure(
                page.len() <= LIST_OBJECTS_MAX,
                format!("a page has {} objects", page.len()),
            )?;
            if page.is_empty() {
                break;
            }
            seen.extend(page.into_iter().map(|object| object.key));
        }
        self.ensure(
            seen == keys,
            format!("{} of {count} objects were listed, or in disorder", seen.len()),
        )?;
        for some in keys.chunks(100) {
            for deleted in join_all(some.iter().map(|key| self.store.delete(key))).await {
                self.good(deleted)?;
            }
        }
        Ok(())
    }

    async fn keys(&self) -> Outcome {
        let long = "l".repeat(SEGMENT_BYTES_MAX);
        let strange = [
            "a b",
            "100%",
            "%2F",
            "a+b",
            "q?x=1&y#z",
            "~!@$^*()_=[]{}|;:'\",<>`",
            "a..b",
            "names/gr%C3%B6",
            &long,
        ];
        for name in strange {
            let key = self.key(&format!("strange/{name}"));
            let body = || Bytes::copy_from_slice(name.as_bytes());
            let round = async {
                self.store.create(&key, body()).await?;
                let (data, version) = self.store.get(&key).await?;
                self.store.replace(&key, body(), &version).await?;
                Ok(data == name)
            };
            match round.await {
                Ok(true) => {}
                Ok(false) => return self.fail(format!("{key} is read as something else")),
                Err::<_, Error>(error) => return self.fail(format!("{key}: {error}")),
            }
        }
        let prefix = self.key("strange/");
        let listed = self.good(self.store.list(&prefix, None).await)?;
        let mut sorted = strange.map(|name| format!("{prefix}{name}"));
        sorted.sort();
        let keys: Vec<String> = listed.into_iter().map(|object| object.key).collect();
        self.ensure(keys == sorted, format!("they are listed as {keys:?}"))?;
        for key in keys {
            self.good(self.store.delete(&key).await)?;
        }
        for bad in ["", "/x", "../x", "a/../../x", "a//b", "a/", "é", "a\nb", ".x"] {
            let put = self.store.put(bad, Bytes::new()).await;
            self.ensure(
                matches!(put, Err(Error::Invalid(_))),
                format!("the bad key {bad:?} gives {put:?}"),
            )?;
            let get = self.store.get(bad).await;
            self.ensure(
                matches!(get, Err(Error::Invalid(_))),
                format!("the bad key {bad:?} gives {get:?}"),
            )?;
        }
        Ok(())
    }

    async fn large(&self) -> Outcome {
        let key = self.key("large");
        let data: Bytes = (0..LARGE_BYTES as u32)
            .map(|index| (index.wrapping_mul(2_654_435_761) >> 24) as u8)
            .collect::<Vec<_>>()
            .into();
        self.put(&key, data.clone()).await?;
        let (read, _) = self.get(&key).await?;
        self.ensure(read == data, "it is not what was put")?;
        let part = self.good(self.store.get_range(&key, 10_000_000..10_016_384).await)?;
        self.ensure(part == data[10_000_000..10_016_384], "a part of it is wrong")?;
        self.good(self.store.delete(&key).await)
    }

    async fn deleting(&self) -> Outcome {
        let key = self.key("deleted/deep/down");
        self.good(self.store.delete(&key).await)?;
        self.put(&key, "x").await?;
        self.good(self.store.delete(&key).await)?;
        let read = self.store.get(&key).await;
        self.ensure(
            matches!(read, Err(Error::NotFound(_))),
            format!("a deleted object gives {read:?}"),
        )?;
        self.good(self.store.delete(&key).await)?;
        let rest = self.good(self.store.list(&self.folder, None).await)?;
        self.ensure(rest.is_empty(), format!("after all is deleted there is {rest:?}"))
    }
}
