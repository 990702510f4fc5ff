//! An ext4 file system on a disk that fails: mounted, cut, and mounted again.

use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use nix::errno::Errno;
use nix::mount::{MntFlags, MsFlags, mount, umount, umount2};
use nix::sched::{CloneFlags, unshare};

use crate::role::Role;

/// A disk, and the file system on it. Everything is unmounted when this value is dropped.
///
/// The mounts are seen by the thread that made the value, and by its children. They go with these.
pub struct Rig {
    folder: PathBuf,
    disk: Role,
    is_mounted: bool,
}

/// The properties of a life of the disk. See `disk.rs`.
#[derive(Clone, Copy, Debug)]
pub struct Power {
    pub seed: u64,
    pub sector_bytes: u64,
    /// The write or flush during which the power goes; 0 for none.
    pub cut_at: u64,
}

impl Power {
    /// Power that no plan cuts.
    pub const STEADY: Power = Power { seed: 0, sector_bytes: 4_096, cut_at: 0 };
}

/// The program and its arguments that ext4 is made with. A superblock has two sectors of 512
/// bytes: with a checksum over both, the file system itself would not survive a torn one.
const FORMAT: [&str; 7] =
    ["mkfs.ext4", "-qF", "-m0", "-O^metadata_csum", "-Jsize=4", "-E", FORMAT_NOW];
const FORMAT_NOW: &str = "nodiscard,lazy_itable_init=0,lazy_journal_init=0";

/// The file system itself writes nothing for some minutes that nobody has synced.
const OPTIONS: &str = "commit=300";

/// The reason why this machine can have no rig.
pub fn missing() -> Option<String> {
    if !nix::unistd::geteuid().is_root() {
        return Some("only root can mount a file system".into());
    }
    for path in ["/dev/fuse", "/dev/loop-control"] {
        let mut options = std::fs::OpenOptions::new();
        if let Err(error) = options.read(true).write(true).open(path) {
            return Some(format!("{path}: {error}"));
        }
    }
    for program in [&["mkfs.ext4", "-V"], &["losetup", "--find"]] {
        if let Err(error) = run(program) {
            return Some(error);
        }
    }
    unshare(CloneFlags::CLONE_NEWNS).err().map(|error| format!("a mount namespace: {error}"))
}

/// Runs a program. Returns its output.
fn run(words: &[&str]) -> Result<String, String> {
    let output = Command::new(words[0]).args(&words[1..]).output();
    let output = output.map_err(|error| format!("{}: {error}", words[0]))?;
    match output.status.success() {
        true => Ok(String::from_utf8_lossy(&output.stdout).trim().to_string()),
        false => Err(format!("{words:?}: {}", String::from_utf8_lossy(&output.stderr).trim())),
    }
}

/// Mounts of this thread are its own from now on.
fn begin_namespace() {
    unshare(CloneFlags::CLONE_NEWNS).unwrap();
    let (none, private) = (None::<&str>, MsFlags::MS_REC | MsFlags::MS_PRIVATE);
    mount(none, "/", none, private, none).unwrap();
}

impl Rig {
    /// Makes a disk with an empty file system, which is not mounted.
    pub fn new(disk_bytes: u64) -> Rig {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        begin_namespace();
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("streamdoor-powercut-{}-{number}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        std::fs::create_dir_all(folder.join("mounted")).unwrap();
        std::fs::write(folder.join("image"), "").unwrap();
        let mut disk = Role::play("disk", &folder.join("image"), &disk_bytes.to_string());
        disk.hear("done");
        // The last process of a namespace unmounts what is left, and needs the disk for that. So
        // that of the disk has no file system on it.
        begin_namespace();
        let mut rig = Rig { folder, disk, is_mounted: false };
        rig.format();
        rig
    }

    /// Makes an empty file system.
    pub fn format(&mut self) {
        self.turn_on(Power::STEADY);
        let device = self.attach().unwrap();
        let made = run(&[&FORMAT[..], &[&device]].concat());
        run(&["losetup", "--detach", &device]).unwrap();
        made.unwrap();
        self.tell("cut"); // Nothing is lost: the program has flushed it.
    }

    /// The directory for a journal.
    pub fn directory(&self) -> PathBuf {
        self.mounted().join("journal")
    }

    pub fn mounted(&self) -> PathBuf {
        self.folder.join("mounted")
    }

    /// Turns the disk on.
    fn turn_on(&mut self, Power { seed, sector_bytes, cut_at }: Power) {
        self.tell(&format!("on {seed} {sector_bytes} {cut_at}"));
    }

    /// Turns the disk on, and mounts the file system.
    ///
    /// # Errors
    /// The power was cut, as planned.
    pub fn begin(&mut self, power: Power) -> Result<(), String> {
        self.turn_on(power);
        let device = self.attach()?;
        let flags = MsFlags::MS_NOATIME;
        let mounted = mount(Some(&*device), &self.mounted(), Some("ext4"), flags, Some(OPTIONS));
        // A device in use goes with its last user.
        run(&["losetup", "--detach", &device])?;
        mounted.map_err(|error| format!("ext4: {error}"))?;
        self.is_mounted = true;
        Ok(())
    }

    fn attach(&self) -> Result<String, String> {
        let image = self.folder.join("image");
        let image = image.to_str().expect("its name is plain");
        run(&["losetup", "--find", "--show", "--direct-io=on", image])
    }

    /// Lets the file system become read-only, as after an error that it has found.
    pub fn abort(&self) {
        let (none, flags) = (None::<&str>, MsFlags::MS_REMOUNT | MsFlags::MS_NOATIME);
        mount(none, &self.mounted(), none, flags, Some("abort")).unwrap();
    }

    /// Cuts the power, if it is still there, and unmounts the file system.
    pub fn cut(&mut self) {
        self.tell("cut");
        self.unmount();
    }

    /// Unmounts the file system, and turns the disk off.
    pub fn end(&mut self) {
        self.unmount();
        self.tell("cut"); // Nothing is lost: all was flushed.
    }

    fn unmount(&mut self) {
        if !std::mem::take(&mut self.is_mounted) {
            return;
        }
        // The kernel closes the files of an io_uring some time after the last descriptor.
        while umount(&self.mounted()) == Err(Errno::EBUSY) {
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Gives the disk a command, and returns its answer.
    pub fn tell(&mut self, command: &str) -> bool {
        self.disk.tell(command);
        self.disk.hear("done").parse().expect("true or false")
    }

    /// Gives the disk a command about these bytes, and returns its answer.
    pub fn tell_of(&mut self, command: &str, bytes: &[u8]) -> bool {
        let mut line = format!("{command} ");
        bytes.iter().for_each(|byte| write!(line, "{byte:02x}").expect("a text takes all"));
        self.tell(&line)
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        // After a failed test the disk may be gone, or stand still. The namespace takes the rest.
        let detach = |path: &Path| umount2(path, MntFlags::MNT_DETACH);
        if self.is_mounted {
            let _ = umount(&self.mounted()).or_else(|_| detach(&self.mounted()));
        }
        let _ = detach(&self.folder.join("image"));
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}
