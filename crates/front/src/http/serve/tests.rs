//! Requests over a wire, answered by a fake node.

use super::*;
use crate::http::api::kept::{CloneVolume, Keep, Rename, Resize, Restore, Rollback, TakeSnapshot};
use crate::http::api::*;
use rekindle_env::sim::{Faults, World};
use rekindle_volume::{
    Account, Salvage, StopProgress, TrashedVolume, VolumeSnapshot, VolumeVersion, WriteSettings,
};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

/// A node with one volume, "one".
struct Fake(Env);

fn known(name: &str) -> Result<Volume, ApiError> {
    match name {
        "one" | "gr\u{f6}\u{df}e" => {
            Ok(Volume { name: name.into(), size: 1 << 20, ..Volume::default() })
        }
        _ => Err(ApiError::new(Kind::NotFound, format!("no volume is called '{name}'"))),
    }
}

fn job(kind: &str, subject: String) -> Job {
    Job { id: "7".into(), kind: kind.into(), subject, unit: "bytes".into(), ..Job::default() }
}

impl Keep for Fake {
    fn rename_volume<'a>(&'a self, name: &'a str, request: Rename) -> Answer<'a, Volume> {
        Box::pin(async move { Ok(Volume { name: request.name, ..known(name)? }) })
    }
    fn resize_volume<'a>(&'a self, name: &'a str, request: Resize) -> Answer<'a, Volume> {
        Box::pin(async move { Ok(Volume { size: request.size, ..known(name)? }) })
    }
    fn set_volume<'a>(&'a self, name: &'a str, settings: WriteSettings) -> Answer<'a, Volume> {
        Box::pin(async move {
            let volume = known(name)?;
            Ok(Volume { copies: settings.copies.unwrap_or(volume.copies), ..volume })
        })
    }
    fn versions<'a>(&'a self, name: &'a str) -> Answer<'a, Vec<VolumeVersion>> {
        Box::pin(async move {
            known(name).map(|_| vec![VolumeVersion { keeps: 7, ..VolumeVersion::default() }])
        })
    }
    fn rollback_volume<'a>(&'a self, name: &'a str, _request: Rollback) -> Answer<'a, Volume> {
        Box::pin(async move { known(name) })
    }
    fn snapshots<'a>(&'a self, name: &'a str) -> Answer<'a, Vec<VolumeSnapshot>> {
        Box::pin(async move { known(name).map(|_| vec![VolumeSnapshot::default()]) })
    }
    fn take_snapshot<'a>(
        &'a self,
        name: &'a str,
        request: TakeSnapshot,
    ) -> Answer<'a, VolumeSnapshot> {
        Box::pin(async move {
            known(name).map(|_| VolumeSnapshot { name: request.name, ..Default::default() })
        })
    }
    fn remove_snapshot<'a>(&'a self, name: &'a str, snapshot: &'a str) -> Answer<'a, ()> {
        Box::pin(async move {
            known(name)?;
            match snapshot {
                "a/b c" => Ok(()),
                _ => Err(ApiError::new(Kind::NotFound, snapshot)),
            }
        })
    }
    fn clone_volume<'a>(&'a self, name: &'a str, request: CloneVolume) -> Answer<'a, Volume> {
        Box::pin(async move { Ok(Volume { name: request.name, ..known(name)? }) })
    }
    fn trash(&self) -> Answer<'_, Vec<TrashedVolume>> {
        Box::pin(async {
            Ok(vec![TrashedVolume { name: "old".into(), ..TrashedVolume::default() }])
        })
    }
    fn restore_volume<'a>(&'a self, name: &'a str, request: Restore) -> Answer<'a, Volume> {
        Box::pin(async move { known(request.name.as_deref().unwrap_or(name)) })
    }
    fn purge_volume<'a>(&'a self, name: &'a str) -> Answer<'a, ()> {
        Box::pin(async move { known(name).map(drop) })
    }
}

impl Api for Fake {
    fn health(&self) -> Health {
        Health { reasons: vec!["the datastore is away".into()], ..Health::default() }
    }
    fn status(&self) -> Answer<'_, Status> {
        Box::pin(async { Ok(Status { node: "n1".into(), ..Status::default() }) })
    }
    fn volumes(&self) -> Answer<'_, Vec<Volume>> {
        Box::pin(async { Ok(vec![known("one")?]) })
    }
    fn create_volume(&self, request: CreateVolume) -> Answer<'_, Volume> {
        Box::pin(async move {
            let CreateVolume { name, kind, size, policy, ack, copies, on_missing_copy, settings } =
                request;
            let kind = kind.unwrap_or_default();
            Ok(Volume {
                name,
                kind,
                size,
                policy,
                ack,
                copies,
                on_missing_copy,
                body: settings,
                ..Volume::default()
            })
        })
    }
    fn volume<'a>(&'a self, name: &'a str) -> Answer<'a, Volume> {
        Box::pin(async move { known(name) })
    }
    fn remove_volume<'a>(&'a self, name: &'a str, force: bool, _now: bool) -> Answer<'a, ()> {
        Box::pin(async move {
            known(name)?;
            if force { Ok(()) } else { Err(ApiError::new(Kind::Conflict, "it has clients")) }
        })
    }
    /// Echoes.
    fn mount_volume<'a>(
        &'a self,
        name: &'a str,
        of: Option<String>,
        connection: Leaving,
    ) -> Answer<'a, String> {
        Box::pin(async move {
            known(name)?;
            self.0.spawn("mount", async move {
                let mut pipe = connection.await.expect("a connection");
                let mut word = [0; 4];
                while pipe.read_exact(&mut word).await.is_ok() {
                    pipe.write_all(&word).await.expect("an echo");
                    pipe.flush().await.expect("an echo");
                }
            });
            Ok(of.unwrap_or_else(|| "the first".to_owned()))
        })
    }
    fn drain_volume<'a>(&'a self, name: &'a str) -> Answer<'a, Job> {
        Box::pin(async move { Ok(job("drain", known(name)?.name)) })
    }
    fn move_volume<'a>(&'a self, name: &'a str, request: MoveVolume) -> Answer<'a, Job> {
        Box::pin(async move { Ok(job("move", format!("{} to {}", known(name)?.name, request.to))) })
    }
    fn pin_volume<'a>(&'a self, name: &'a str, pinned: bool) -> Answer<'a, Volume> {
        Box::pin(async move { Ok(Volume { pinned, ..known(name)? }) })
    }
    fn debug<'a>(&'a self, what: Debug, prefix: &'a str) -> Answer<'a, Value> {
        Box::pin(async move { Ok(json!({"what": format!("{what:?}"), "prefix": prefix})) })
    }
    fn history<'a>(&'a self, name: &'a str) -> Answer<'a, Vec<Event>> {
        Box::pin(async move {
            known(name).map(|_| vec![Event { to: "attached".into(), ..Event::default() }])
        })
    }
    fn salvages(&self) -> Answer<'_, Vec<Salvage>> {
        Box::pin(async { Ok(vec![Salvage { volume: "vm1".into(), ..Salvage::default() }]) })
    }
    fn start_salvage<'a>(&'a self, name: &'a str, _request: StartSalvage) -> Answer<'a, Job> {
        Box::pin(async move { known(name).map(|_| job("salvage", name.to_owned())) })
    }
    fn cancel_salvage<'a>(&'a self, name: &'a str) -> Answer<'a, ()> {
        Box::pin(async move { known(name).map(|_| ()) })
    }
    fn salvage_history<'a>(&'a self, name: Option<&'a str>) -> Answer<'a, Vec<Account>> {
        Box::pin(async move {
            let volume = name.unwrap_or("all").to_owned();
            Ok(vec![Account { volume, ..Account::default() }])
        })
    }
    fn log_usage(&self) -> Answer<'_, LogUsage> {
        Box::pin(async { Ok(LogUsage { segments: 3, ..LogUsage::default() }) })
    }
    /// Takes 5 seconds.
    fn store(&self) -> Answer<'_, StoreInfo> {
        Box::pin(async {
            self.0.sleep(Duration::from_secs(5)).await;
            Ok(StoreInfo { url: "file:///x".into(), ..StoreInfo::default() })
        })
    }
    fn warm(&self) -> Answer<'_, WarmStatus> {
        Box::pin(async { Ok(WarmStatus { slots: 24, ..WarmStatus::default() }) })
    }
    fn boot(&self) -> Answer<'_, BootReport> {
        Box::pin(async { Ok(BootReport { incarnation: 3, ..BootReport::default() }) })
    }
    fn drop_warm_frames(&self) -> Answer<'_, WarmDropped> {
        Box::pin(async { Ok(WarmDropped { frames: 5 }) })
    }
    /// Never ends.
    fn sweep(&self) -> Answer<'_, SweepStatus> {
        Box::pin(std::future::pending())
    }
    fn start_sweep(&self) -> Answer<'_, Job> {
        Box::pin(async { Ok(job("sweep", "the store".to_owned())) })
    }
    fn start_sweep_plan(&self) -> Answer<'_, Job> {
        Box::pin(async { Ok(job("sweep-plan", "the store".to_owned())) })
    }
    fn dismiss_node(&self, request: DismissNode) -> Answer<'_, Dismissed> {
        Box::pin(async move { Ok(Dismissed { node: request.node, start: 4 }) })
    }
    fn cluster(&self) -> Answer<'_, Cluster> {
        Box::pin(async { Ok(Cluster { member: true, ..Default::default() }) })
    }
    fn recoveries(&self) -> Answer<'_, Vec<Recovery>> {
        Box::pin(async { Ok(vec![Recovery { from: "one".into(), ..Default::default() }]) })
    }
    fn init_cluster(&self) -> Answer<'_, Cluster> {
        Box::pin(async { Ok(Cluster { name: "first".into(), ..Default::default() }) })
    }
    fn rotate_key(&self) -> Answer<'_, ()> {
        Box::pin(async { Ok(()) })
    }
    fn drain_node<'a>(&'a self, node: &'a str, request: DrainNode) -> Answer<'a, ()> {
        Box::pin(async move {
            match request.on {
                true => Ok(()),
                false => Err(ApiError::new(Kind::NotFound, format!("no {node}"))),
            }
        })
    }
    fn take_over<'a>(&'a self, node: &'a str) -> Answer<'a, Guest> {
        let node = node.to_owned();
        Box::pin(async { Ok(Guest { node, ..Default::default() }) })
    }
    fn remove_node<'a>(&'a self, _: &'a str) -> Answer<'a, ()> {
        Box::pin(async { Ok(()) })
    }
    fn adopt_folder(&self, request: AdoptFolder) -> Answer<'_, Guest> {
        Box::pin(async { Ok(Guest { folder: request.folder, ..Default::default() }) })
    }
    fn start_space(&self, request: StartSpace) -> Answer<'_, Job> {
        Box::pin(async move { Ok(job("space", request.volume.unwrap_or_default())) })
    }
    fn start_verify(&self, request: StartVerify) -> Answer<'_, Job> {
        Box::pin(async move { Ok(job("verify", request.volume.unwrap_or_default())) })
    }
    fn start_attach(&self, request: StartAttach) -> Answer<'_, Job> {
        Box::pin(async move { Ok(job("attach", format!("{} reads", request.reads))) })
    }
    fn jobs(&self) -> Answer<'_, Vec<Job>> {
        Box::pin(async { Ok(vec![]) })
    }
    fn job<'a>(&'a self, id: &'a str) -> Answer<'a, Job> {
        Box::pin(async move { Ok(Job { id: id.into(), state: JobState::Done, ..Job::default() }) })
    }
    fn cancel_job<'a>(&'a self, id: &'a str) -> Answer<'a, Job> {
        Box::pin(
            async move { Ok(Job { id: id.into(), state: JobState::Cancelled, ..Job::default() }) },
        )
    }
    fn stopping(&self) -> Answer<'_, StopProgress> {
        Box::pin(async { Ok(StopProgress { phase: "serving".into(), ..StopProgress::default() }) })
    }
    fn shutdown(&self, request: Shutdown) -> Answer<'_, StopProgress> {
        Box::pin(async move {
            if request.drain {
                Ok(StopProgress::default())
            } else {
                Err(ApiError::new(Kind::Invalid, "drain, please"))
            }
        })
    }
}

struct Site {
    env: Env,
    address: Address,
    connections: Connections,
}

/// Runs `story` against a server at `address` in a simulated world.
fn with_site(address: &str, story: impl AsyncFnOnce(&Site)) {
    let world = World::new(7, Faults::none());
    let env = world.env();
    let address: Address = address.parse().unwrap();
    world.block_on(async {
        let connections = Connections::new("http", 4);
        let acceptor = env.net().listen(&address).await.unwrap();
        let app =
            App { api: Arc::new(Fake(env.clone())), metrics: Arc::new(|| "up 1\n".to_owned()) };
        env.spawn("http-accept", serve(env.clone(), acceptor, app, connections.clone()));
        story(&Site { env: env.clone(), address, connections }).await;
    });
}

impl Site {
    /// Sends text and reads to the end of the stream; returns status and body.
    async fn raw(&self, text: &str) -> (u16, String) {
        let mut stream = self.env.net().connect(&self.address).await.unwrap();
        stream.write_all(text.as_bytes()).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap_or((&answer, ""));
        let status = head.get(9..12).map_or(0, |status| status.parse().unwrap());
        (status, body.to_owned())
    }

    async fn ask(&self, line: &str, body: &str) -> (u16, Value) {
        let length = body.len();
        let text = format!(
            "{line} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n{body}"
        );
        let (status, body) = self.raw(&text).await;
        let body = if body.is_empty() {
            Value::Null
        } else {
            serde_json::from_str(&body).unwrap_or(body.into())
        };
        (status, body)
    }
}

const UNIX: &str = "unix:/run/http";

#[test]
fn every_question_has_its_answer() {
    with_site(UNIX, async |site| {
        for (line, body, status, part) in [
            ("GET /healthz", "", 503, json!({"ok": false, "reasons": ["the datastore is away"]})),
            ("GET /api/v1/status", "", 200, json!({"node": "n1"})),
            ("GET /api/v1/volumes/one", "", 200, json!({"name": "one", "size": 1 << 20})),
            ("GET /api/v1/volumes/gr%C3%B6%C3%9Fe", "", 200, json!({"name": "gr\u{f6}\u{df}e"})),
            ("POST /api/v1/volumes/one/drain", "", 202, json!({"id": "7", "kind": "drain"})),
            (
                "POST /api/v1/volumes/one/move",
                "{\"to\": \"two\"}",
                202,
                json!({"kind": "move", "subject": "one to two"}),
            ),
            ("POST /api/v1/volumes/one/pin", "", 200, json!({"name": "one", "pinned": true})),
            ("DELETE /api/v1/volumes/one/pin", "", 200, json!({"name": "one", "pinned": false})),
            ("GET /api/v1/debug/queue", "", 200, json!({"what": "Queue", "prefix": ""})),
            ("GET /api/v1/debug/volumes?prefix=vm", "", 200, json!({"prefix": "vm"})),
            ("GET /api/v1/debug/dreams", "", 404, json!({"error": "not-found"})),
            ("GET /api/v1/shutdown", "", 200, json!({"phase": "serving", "done": 0})),
            ("GET /api/v1/log", "", 200, json!({"segments": 3})),
            ("GET /api/v1/store", "", 200, json!({"url": "file:///x"})),
            ("GET /api/v1/warm", "", 200, json!({"slots": 24, "frames": null})),
            ("GET /api/v1/boot", "", 200, json!({"incarnation": 3, "phases": []})),
            ("DELETE /api/v1/warm/frames", "", 200, json!({"frames": 5})),
            ("POST /api/v1/sweep", "", 202, json!({"subject": "the store"})),
            ("POST /api/v1/sweep/plan", "", 202, json!({"kind": "sweep-plan"})),
            (
                "POST /api/v1/sweep/dismiss",
                "{\"node\": \"a\"}",
                200,
                json!({"node": "a", "start": 4}),
            ),
            ("GET /api/v1/cluster", "", 200, json!({"member": true, "held": []})),
            ("POST /api/v1/cluster/init", "", 200, json!({"name": "first"})),
            ("POST /api/v1/cluster/rotate", "", 200, json!({})),
            ("POST /api/v1/cluster/nodes/ab/drain", "{\"on\": true}", 200, json!({})),
            ("POST /api/v1/cluster/nodes/ab/drain", "{\"on\": false}", 404, json!({})),
            ("POST /api/v1/cluster/nodes/ab/takeover", "", 200, json!({"node": "ab"})),
            ("POST /api/v1/cluster/nodes/ab/remove", "", 200, json!({})),
            ("POST /api/v1/cluster/adopt", "{\"folder\": \"/x\"}", 200, json!({"folder": "/x"})),
            ("POST /api/v1/verify", "{\"volume\": \"one\"}", 202, json!({"subject": "one"})),
            ("GET /api/v1/jobs/12", "", 200, json!({"id": "12", "state": "done"})),
            ("GET /openapi.json", "", 200, json!({"info": crate::http::document().info})),
        ] {
            let (found, answer) = site.ask(line, body).await;
            assert_eq!(found, status, "{line} {answer}");
            for (key, value) in part.as_object().unwrap() {
                assert_eq!(answer[key], *value, "{line} {key}");
            }
        }
        assert_eq!(site.ask("GET /api/v1/volumes", "").await.1[0]["name"], "one");
        assert_eq!(site.ask("GET /api/v1/jobs", "").await, (200, json!([])));
        assert_eq!(site.ask("GET /api/v1/cluster/recoveries", "").await.1[0]["from"], "one");
        assert_eq!(site.ask("GET /api/v1/volumes/one/history", "").await.1[0]["to"], "attached");
        assert_eq!(site.ask("GET /metrics", "").await, (200, json!("up 1\n")));
        assert_eq!(site.ask("DELETE /api/v1/volumes/one?force=true", "").await, (204, Value::Null));
        let (status, stopping) = site.ask("POST /api/v1/shutdown", "{\"drain\": true}").await;
        assert_eq!((status, &stopping["volumes"]), (202, &json!(0)));
    });
}

#[test]
fn a_volume_is_made_as_asked_or_by_default() {
    with_site(UNIX, async |site| {
        let (status, volume) =
            site.ask("POST /api/v1/volumes", "{\"name\": \"v\", \"size\": \"20G\"}").await;
        assert_eq!((status, &volume["size"]), (201, &json!(20u64 << 30)));
        assert_eq!((&volume["policy"], &volume["ack"]), (&json!("back"), &json!("flash")));
        let asked = json!({
            "name": "v", "kind": "map", "size": 512, "block_size": "64K", "policy": "through", "ack": "memory"
        });
        let (_, volume) = site.ask("POST /api/v1/volumes", &asked.to_string()).await;
        assert_eq!((&volume["size"], &volume["kind"]), (&json!(512), &json!("map")));
        assert_eq!(volume["block_size"], "64K", "the settings of a kind pass as they are");
        assert_eq!((&volume["policy"], &volume["ack"]), (&json!("through"), &json!("memory")));
    });
}

#[test]
fn what_cannot_be_is_a_problem_in_words() {
    with_site(UNIX, async |site| {
        let long = format!("{{\"name\": \"{}\"}}", "x".repeat(BODY_BYTES_MAX));
        for (line, body, status, kind, words) in [
            ("GET /nowhere", "", 404, "not-found", "there is no /nowhere"),
            ("PUT /api/v1/volumes", "", 405, "invalid", "PUT does nothing at /api/v1/volumes"),
            ("GET /api/v1/volumes/two", "", 404, "not-found", "no volume is called 'two'"),
            ("GET /api/v1/volumes/%ff", "", 400, "invalid", "Invalid"),
            ("DELETE /api/v1/volumes/one", "", 409, "conflict", "it has clients"),
            ("DELETE /api/v1/volumes/one?forse=true", "", 400, "invalid", "unknown field `forse`"),
            ("POST /api/v1/volumes", "{\"nam\": 1}", 400, "invalid", "missing field `name`"),
            (
                "POST /api/v1/volumes",
                "{\"name\": \"v\", \"size\": \"big\"}",
                400,
                "invalid",
                "'big' is not a size",
            ),
            (
                "POST /api/v1/volumes",
                "{\"name\": \"v\", \"size\": -1}",
                400,
                "invalid",
                "a size: a number of bytes",
            ),
            ("POST /api/v1/volumes", "", 400, "invalid", "missing field `name`"),
            (
                "POST /api/v1/sweep",
                "{\"dry_run\": true}",
                400,
                "invalid",
                "unknown field `dry_run`",
            ),
            ("POST /api/v1/verify", "{\"deep\": true}", 400, "invalid", "unknown field `deep`"),
            ("POST /api/v1/volumes", &long, 413, "invalid", "length limit exceeded"),
            ("POST /api/v1/shutdown", "", 400, "invalid", "drain, please"),
        ] {
            let (found, problem) = site.ask(line, body).await;
            assert_eq!((found, &problem["error"]), (status, &json!(kind)), "{line} {problem}");
            assert!(problem["message"].as_str().unwrap().contains(words), "{line} {problem}");
            assert!(problem["retryable"].is_boolean());
        }
    });
}

#[test]
fn a_mounts_connection_leaves_http() {
    with_site(UNIX, async |site| {
        let ask = |name: &str, upgrade: &str| {
            format!(
                "GET /api/v1/volumes/{name}/mount HTTP/1.1\r\nHost: localhost\r\n\
                 Connection: upgrade\r\nUpgrade: {upgrade}\r\n\r\n"
            )
        };
        let mut stream = site.env.net().connect(&site.address).await.unwrap();
        stream.write_all(ask("one", MOUNT_PROTOCOL).as_bytes()).await.unwrap();
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            head.push(stream.read_u8().await.unwrap());
        }
        let head = String::from_utf8_lossy(&head);
        assert!(head.starts_with("HTTP/1.1 101 "), "{head}");
        assert!(head.contains("rekindle-mount-of: the first\r\n"), "{head}");
        for word in [b"ping", b"pong"] {
            stream.write_all(word).await.unwrap();
            let mut echo = [0; 4];
            stream.read_exact(&mut echo).await.unwrap();
            assert_eq!(&echo, word);
        }
        let (status, problem) = site.ask("GET /api/v1/volumes/one/mount", "").await;
        assert_eq!((status, &problem["error"]), (400, &json!("invalid")));
        let refused = async |ask: String| {
            let mut stream = site.env.net().connect(&site.address).await.unwrap();
            stream.write_all(ask.as_bytes()).await.unwrap();
            let mut head = [0; 12];
            stream.read_exact(&mut head).await.unwrap();
            String::from_utf8_lossy(&head[9..]).into_owned()
        };
        assert_eq!(refused(ask("two", MOUNT_PROTOCOL)).await, "404");
        assert_eq!(refused(ask("one", "websocket")).await, "400");
    });
}

#[test]
fn a_port_answers_only_those_who_name_this_machine() {
    with_site("tcp:127.0.0.1:7070", async |site| {
        let get = |host: &str| {
            format!("GET /api/v1/jobs HTTP/1.1\r\nConnection: close\r\nHost: {host}\r\n\r\n")
        };
        assert_eq!(site.raw(&get("127.0.0.1:7070")).await.0, 200);
        let (status, body) = site.raw(&get("evil.example:7070")).await;
        assert_eq!(status, 403);
        assert!(body.contains("does not name this machine"));
        let post = "POST /api/v1/shutdown HTTP/1.1\r\nConnection: close\r\nHost: localhost\r\n\
                    Origin: http://evil.example\r\nContent-Length: 0\r\n\r\n";
        assert_eq!(site.raw(post).await.0, 403);
    });
}

#[test]
fn nothing_takes_for_ever() {
    with_site(UNIX, async |site| {
        let before = site.env.now();
        let (status, problem) = site.ask("GET /api/v1/sweep", "").await;
        assert_eq!((status, &problem["error"]), (503, &json!("unavailable")));
        let took = site.env.now().since(before);
        assert!(took >= REQUEST_TIME_MAX && took < REQUEST_TIME_MAX * 2, "{took:?}");
        // The client sends half a head, and no more.
        let before = site.env.now();
        site.raw("GET /api/v1/jobs HTTP/1.1\r\nHost: loc").await;
        let took = site.env.now().since(before);
        assert!(took >= HEAD_TIME_MAX && took < HEAD_TIME_MAX * 2, "{took:?}");
        assert_eq!(site.raw("not HTTP at all\r\n\r\n").await.0, 400);
    });
}

#[test]
fn the_end_waits_for_a_question_that_was_asked() {
    with_site(UNIX, async |site| {
        let mut idle = site.env.net().connect(&site.address).await.unwrap();
        let asking = site.ask("GET /api/v1/store", "");
        let stopping = async {
            site.env.sleep(Duration::from_secs(1)).await;
            site.connections.stop(&site.env, Duration::from_secs(30)).await
        };
        let (answer, cut_off) = futures_util::future::join(asking, stopping).await;
        assert_eq!((answer.0, cut_off), (200, 0));
        assert_eq!(idle.read(&mut [0]).await.unwrap_or(0), 0);
        assert!(site.env.net().connect(&site.address).await.is_err());
    });
}

#[test]
fn clients_that_do_not_take_their_answers_are_hung_up_on() {
    with_site(UNIX, async |site| {
        let asking = "GET /openapi.json HTTP/1.1\r\nHost: localhost\r\n\r\n".repeat(1000);
        let mut silent = Vec::new();
        for _ in 0..4 {
            let mut stream = site.env.net().connect(&site.address).await.unwrap();
            let _ =
                site.env.timeout(Duration::from_secs(1), stream.write_all(asking.as_bytes())).await;
            silent.push(stream);
        }
        site.env.sleep(Duration::from_secs(1)).await;
        assert_eq!(site.connections.live(), 4, "all slots are taken");
        // One of the clients takes a few bytes now and then.
        for _ in 0..WRITE_TIME_MAX.as_secs() {
            let _ = silent[0].read(&mut [0; 100]).await;
            site.env.sleep(Duration::from_secs(2)).await;
        }
        assert_eq!(site.connections.live(), 0);
        assert_eq!(site.ask("GET /api/v1/status", "").await.0, 200);
    });
}

/// Uses hyper and the router on real sockets, as the daemon does.
#[test]
fn real_sockets_do_as_well() {
    let (env, runtime) = rekindle_env::real::env().unwrap();
    runtime.block_on(async {
        let connections = Connections::new("http", 4);
        let acceptor = env.net().listen(&"tcp:127.0.0.1:0".parse().unwrap()).await.unwrap();
        let address = acceptor.address();
        let app = App { api: Arc::new(Fake(env.clone())), metrics: Arc::new(String::new) };
        env.spawn("http-accept", serve(env.clone(), acceptor, app, connections.clone()));
        let site = Site { env: env.clone(), address, connections };
        assert_eq!(site.ask("GET /api/v1/status", "").await.1["node"], "n1");
        assert_eq!(site.connections.stop(&env, Duration::from_secs(5)).await, 0);
    });
}
