//! Access control lists on a mount: the programs of every Linux set and show them, and the kernel
//! goes by them, as in a file system of this machine.

use anyhow::{Result, ensure};
use e2e::guest::{self, Guest, Namespace};
use e2e::mounted::{Mounted, skipped};
use e2e::shell::{Shell, wait_until};
use e2e::{Daemon, Options};
use std::path::Path;

/// Words of the scripts. The folders above may be closed to a user, so all begins inside. Owners
/// are told by number, and no list depends on what this machine calls them.
const WORDS: &str = r#"
as() { u=$1; g=$2; shift 2; setpriv --reuid="$u" --regid="${g%%,*}" --groups="$g" -- "$@"; }
show() { stat -c '%a %u:%g %n' "$@"; getfacl -cnpE "$@"; }
tried() { "$@" 2>/dev/null && echo "did: $*" || echo "refused: $*"; }
may() {
  got=
  for bit in r w x; do as "$1" "$2" test -$bit "$3" && got=$got$bit || got=$got-; done
  echo "$got $1:$2 $3"
}
all() { for n in $(find . | LC_ALL=C sort); do show "$n"; done; }
"#;

/// What lists mean, told line by line.
const SCRIPT: &str = r#"
umask 027
echo "= a list of a file"
echo text >f; chmod 640 f; chown 1000:2000 f
setfacl -m u:1001:rw,u:1002:-,g:2001:rx,g:2002:w f
show f
for who in 1000:1 1001:1 1002:2000 1003:2000 1003:2001 1003:2002 1003:2001,2002 1003:9; do
  may ${who%:*} ${who#*:} f
done
tried as 1001 1 sh -c 'echo more >>f'
tried as 1003 2001 sh -c 'echo more >>f'
tried as 1003 2001 cat f
tried as 1002 2000 cat f
echo "= chmod sets the mask"
chmod 604 f; show f; may 1001 1 f; may 1003 2001 f
chmod g+r f; show f; may 1001 1 f; may 1003 2001 f; may 1003 2002 f
setfacl -m m::rwx f; show f
chown 1001 f; show f; may 1000 1 f; may 1001 1 f
echo "= only the owner sets one"
tried as 1000 2000 setfacl -m u:7:r f
tried as 1003 2001 setfacl -b f
tried as 1001 2000 setfacl -m u:7:r f
show f
tried setfacl -d -m u:7:r f
setfacl -x u:1001,g:2002 f; show f
setfacl -b f; show f
echo "= a list that is a mode"
setfacl -m u::rw,g::r,o::r f; show f
echo "= set-group-id"
touch s; chown 1001:2001 s; chmod 2755 s
as 1001 1 setfacl -m u:7:r s; show s
chmod 2755 s; as 1001 1,2001 setfacl -m u:8:r s; show s
chmod 2755 s; setfacl -m u:9:r s; show s
echo "= what is made in a folder"
mkdir d; chmod 2770 d; chown 1000:2000 d
setfacl -d -m u:1001:rwx,u:1002:r,g:2001:rx,o::x d
setfacl -m u:1001:rwx d
show d
umask 077
echo x >d/f; mkdir d/e; echo y >d/e/deep; ln -s f d/l; mkfifo d/p
tried as 1001 1 sh -c 'umask 022; echo z >d/theirs; mkdir d/t; touch d/t/in'
tried as 1002 2 sh -c 'echo z >d/not'
tried as 1002 2 cat d/f
tried as 1001 1 cat d/f
tried as 1001 1 sh -c 'echo z >>d/f'
perl -e 'use Fcntl; sysopen(my $f, "d/narrow", O_CREAT|O_WRONLY, 0604) or die'
perl -e 'mkdir("d/narrow.d", 0711) or die'
umask 022
setfacl -k d/e; echo z >d/e/later; mkdir d/e/plain
mkdir m; setfacl -d -m u::rwx,g::r,o::- m; touch m/f; mkdir m/d
echo "= copies and names"
setfacl -m u:1001:r f
cp -p f copy; cp f other; cp -a d twin; mv copy d/moved; ln f d/hard
chmod 2600 d/hard
echo "= all"
all
"#;

/// The work of a guest that has [`WORDS`] and [`SCRIPT`] in it.
const GUEST: &str = r"
told() {
SCRIPT
}
work() {
  mount -i -t nfs -o vers=3,nolock,proto=tcp,port=2049,mountport=2049,mountproto=tcp,addr=10.77.0.1 \
    10.77.0.1:/home /mnt || return 1
  mkdir /mnt/x && cd /mnt/x || return 2
  told >/run/out/told 2>/run/out/errors
  cd / && umount /mnt || return 3
  mount -i -t nfs -o vers=3,nolock,proto=tcp,port=2049,mountport=2049,mountproto=tcp,addr=10.77.0.1 \
    10.77.0.1:/home /mnt || return 4
  cd /mnt/x && all >/run/out/again && cd / && umount /mnt || return 5
}
";

/// The work of a guest that has the volume by both versions: the lists that version 3 shows go and
/// come back by version 4.1, whose attribute its client has as an extended one, in XDR. Then lists
/// as tools of Linux write them.
const GUEST_4: &str = r#"
told() {
SCRIPT
}
raw() { getfattr -n system.nfs4_acl -e hex --absolute-names "$1" | sed -n 's/^system.nfs4_acl=//p'; }
ace() {
  name=$(printf %s "$4" | od -An -v -tx1 | tr -d ' \n')
  while [ $((${#name} % 8)) != 0 ]; do name=${name}00; done
  printf '%08x%08x%08x%08x%s' $1 $2 $3 ${#4} $name
}
three() {
  mount -i -t nfs -o vers=3,nolock,proto=tcp,port=2049,mountport=2049,mountproto=tcp,addr=10.77.0.1 \
    10.77.0.1:/home /mnt/3
}
set_list() { setfattr -n system.nfs4_acl -v $1 $2; }
# Adds an entry before those that a file has.
gives() {
  file=$1; shift; r=$(raw $file); count=$((0x$(expr substr $r 3 8) + 1))
  set_list $(printf '0x%08x' $count)$(ace "$@")$(expr substr $r 11 99999) $file
}
work() {
  mkdir /mnt/3 /mnt/4
  three || return 1
  mount -i -t nfs4 -o vers=4.1,proto=tcp,port=2049,addr=10.77.0.1,clientaddr=10.77.0.2 \
    10.77.0.1:/home /mnt/4 || return 2
  mkdir /mnt/3/x && cd /mnt/3/x || return 3
  told >/run/told 2>/run/out/errors
  all >/run/out/before
  cd /mnt/4/x || return 4
  for n in $(find . ! -type l | LC_ALL=C sort); do
    r=$(raw $n) && [ -n "$r" ] || return 5
    echo $n $r
  done >/run/out/lists
  (cd /mnt/3/x && setfacl -R -b -k . && chmod -R a-rwx . && all >/run/out/bare) || return 6
  while read n r; do set_list $r $n || return 7; done </run/out/lists
  cd / && umount /mnt/3 && three || return 8
  (cd /mnt/3/x && all >/run/out/after)
  mkdir /mnt/4/y && cd /mnt/4/y || return 9
  # Version 4.1 shows no list of POSIX.
  show() { stat -c '%a %u:%g %n' "$@"; }
  {
    umask 022; echo text >f; chmod 640 f; chown 1000:2000 f
    gives f 0 0 $((0x120087)) 1001 && show f
    for who in 1000:1 1001:1 1003:2000 1003:9; do may ${who%:*} ${who#*:} f; done
    tried as 1001 1 sh -c 'echo more >>f'
    tried as 1003 9 cat f
    tried gives f 0 0 1 alice@example.org
    tried gives f 2 0 1 1001
    raw f >/tmp/list
    for who in 1003 1000; do
      tried as $who 1 sh -c 'setfattr -n system.nfs4_acl -v $(cat /tmp/list) f'
    done
    mkdir d; chmod 750 d; gives d 0 $((0x43)) $((0x1200a1)) 77 && show d
    echo x >d/new; mkdir d/e; show d/new d/e
  } >/run/out/told 2>>/run/out/errors
  cd / && umount /mnt/4 /mnt/3 || return 10
}
"#;

/// What the guest tells of lists as tools write them.
const TOLD_4: &str = "\
660 1000:2000 f
rw- 1000:1 f
rw- 1001:1 f
r-- 1003:2000 f
--- 1003:9 f
did: as 1001 1 sh -c echo more >>f
refused: as 1003 9 cat f
refused: gives f 0 0 1 alice@example.org
refused: gives f 2 0 1 1001
refused: as 1003 1 sh -c setfattr -n system.nfs4_acl -v $(cat /tmp/list) f
did: as 1000 1 sh -c setfattr -n system.nfs4_acl -v $(cat /tmp/list) f
750 0:0 d
640 0:0 d/new
750 0:0 d/e
";

/// The same, with lists of POSIX.
const LIKE_4: &str = "\
umask 022; echo text >f; chmod 640 f; chown 1000:2000 f; setfacl -m u:1001:rw f; echo more >>f
mkdir d; chmod 750 d; setfacl -m g:77:rx d; setfacl -d -m g:77:rx d; echo x >d/new; mkdir d/e
";

fn run(folder: &Path, script: &str) -> Result<String> {
    let script = format!("cd '{}'\n{WORDS}\n{script}", folder.display());
    Shell::new("sh").args(["-uc", &script]).run()
}

/// The modes, owners and lists of all below a folder.
fn all(folder: &Path) -> Result<String> {
    run(folder, "all")
}

/// Compares what was told of two file systems.
fn same(told: &str, wanted: &str) -> Result<()> {
    for (number, (told, wanted)) in told.lines().zip(wanted.lines()).enumerate() {
        ensure!(told == wanted, "line {number}: {told}, and on another file system: {wanted}");
    }
    ensure!(told == wanted, "one has more to tell");
    Ok(())
}

#[test]
fn lists_mean_what_they_mean_elsewhere_and_stay_over_kill_9() -> Result<()> {
    if skipped(&["setfacl", "getfacl", "setpriv", "perl"]) {
        return Ok(());
    }
    let daemon = Daemon::start("acls")?;
    daemon.cli(&["fs", "create", "home"])?;
    let mounted = Mounted::new(&daemon, "home")?;
    // A folder of another name says as much.
    let (there, here) = (mounted.folder.join("x"), daemon.scratch().join("x"));
    std::fs::create_dir(&there)?;
    std::fs::create_dir(&here)?;
    let told = run(&there, SCRIPT)?;
    let wanted = run(&here, SCRIPT)?;
    same(&told, &wanted)?;
    ensure!(told.contains("did: as 1001 1 sh -c echo more >>f") && told.lines().count() > 300);
    let wanted = all(&there)?;
    daemon.kill_worker()?;
    assert_eq!(all(&there)?, wanted, "over a kill of the daemon");
    mounted.unmount()?;
    let mounted = Mounted::new(&daemon, "home")?;
    assert_eq!(all(&there)?, wanted, "as it is mounted");
    // A snapshot has the lists of then, and the kernel goes by them.
    daemon.cli(&["snapshot", "take", "home", "monday"])?;
    run(&there, "setfacl -R -b -k .; chmod -R o= .; chmod 711 .")?;
    let past = mounted.folder.join(".snapshots/monday/x");
    wait_until("the snapshot", || past.is_dir())?;
    assert_eq!(all(&past)?, wanted, "in a snapshot");
    let reads = "tried as 1001 1 cat d/f";
    assert_eq!(run(&past, reads)?, "x\nz\ndid: as 1001 1 cat d/f\n");
    assert_eq!(run(&there, reads)?, "refused: as 1001 1 cat d/f\n");
    mounted.unmount()
}

#[test]
fn trees_go_in_and_come_out_with_their_lists_and_no_others() -> Result<()> {
    if skipped(&["setfacl", "getfacl", "setpriv", "perl"]) {
        return Ok(());
    }
    let daemon = Daemon::start("acls-trees")?;
    daemon.cli(&["fs", "create", "home"])?;
    let path = |path: &Path| path.display().to_string();
    let (here, back) = (daemon.scratch().join("here"), daemon.scratch().join("back"));
    std::fs::create_dir(&here)?;
    run(&here, SCRIPT)?;
    let wanted = all(&here)?;
    let mounted = Mounted::new(&daemon, "home")?;
    std::fs::create_dir(mounted.folder.join("in"))?;
    // Folders that are there give nothing of their own to what comes into them.
    let gives = "setfacl -d -m u:99:rwx,g:99:rwx,o::rwx .";
    run(&mounted.folder.join("in"), gives)?;
    daemon.cli(&["fs", "import", &path(&here), "home", "--to", "/in"])?;
    assert_eq!(all(&mounted.folder.join("in"))?, wanted, "as it is mounted");
    std::fs::create_dir(&back)?;
    run(&back, gives)?;
    daemon.cli(&["fs", "export", "home", &path(&back), "--from", "/in"])?;
    assert_eq!(all(&back)?, wanted, "as it is exported");
    mounted.unmount()
}

/// Serves a file system to a guest, whose root is root here.
fn exported(name: &str) -> Result<(Namespace, Daemon)> {
    let namespace = Namespace::new(name)?;
    let words = ["--nfs", "10.77.0.1:2049", "--insecure"];
    let options = Options::with_settings(name, "nfs_squash = 'none'", &words)?;
    let daemon = Daemon::start_with(name, Options { prefix: namespace.words(), ..options })?;
    daemon.cli(&["fs", "create", "home"])?;
    Ok((namespace, daemon))
}

#[test]
fn the_kernel_client_of_nfs_3_shows_and_sets_lists_and_goes_by_them() -> Result<()> {
    if guest::skipped(&["setfacl", "getfacl", "setpriv", "perl"]) || skipped(&[]) {
        return Ok(());
    }
    let (namespace, daemon) = exported("acls3")?;
    let work = format!("{WORDS}{}", GUEST.replace("SCRIPT", SCRIPT));
    let guest = Guest::boot(&namespace, daemon.scratch(), "nfsv3", &work)?;
    guest.ends_well()?;
    let here = daemon.scratch().join("x");
    std::fs::create_dir(&here)?;
    let wanted = run(&here, SCRIPT)?;
    println!("the guest's errors: {}", guest.read("errors"));
    same(&guest.read("told"), &wanted)?;
    let wanted = all(&here)?;
    assert_eq!(guest.read("again"), wanted, "over another mount");
    let mounted = Mounted::new(&daemon, "home")?;
    assert_eq!(all(&mounted.folder.join("x"))?, wanted, "on a mount of this machine");
    mounted.unmount()
}

#[test]
fn the_kernel_client_of_nfs_4_1_sets_the_lists_that_it_shows_and_those_of_its_tools() -> Result<()>
{
    let programs = ["setfacl", "getfacl", "setfattr", "getfattr", "setpriv", "perl", "od"];
    if guest::skipped(&programs) || skipped(&[]) {
        return Ok(());
    }
    let (namespace, daemon) = exported("acls4")?;
    let work = format!("{WORDS}{}", GUEST_4.replace("SCRIPT", SCRIPT));
    let guest = Guest::boot(&namespace, daemon.scratch(), "nfsv3 nfsv4", &work)?;
    let ended = guest.ends_well();
    println!("the guest's errors: {}", guest.read("errors"));
    ended?;
    let (before, bare) = (guest.read("before"), guest.read("bare"));
    ensure!(before.matches("user:1001:").count() > 10 && !bare.contains("user:1001:"));
    same(&guest.read("after"), &before)?;
    same(&guest.read("told"), TOLD_4)?;
    let here = daemon.scratch().join("y");
    std::fs::create_dir(&here)?;
    run(&here, LIKE_4)?;
    let mounted = Mounted::new(&daemon, "home")?;
    same(&all(&mounted.folder.join("y"))?, &all(&here)?)?;
    mounted.unmount()
}
