//! The directory of a journal (`--journal DIR`): what a shard would say of it, its file system, its
//! space, and the time of a sync. Nothing is changed: the file that is measured has no name.

use std::fs::{File, Metadata, OpenOptions, TryLockError};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{Access, OFlags, StatVfs, access, major, minor, statvfs};
use rustix::process::geteuid;
use streamdoor::limits;
use streamdoor::reactor::{Clock, FileSystem, FileSystemKind, LOCK_FILE};

use super::super::journal::directories;
use super::super::words::{counted, in_units, time};
use super::finding::Finding;
use super::percentile;

/// Number of writes that are measured.
const WRITES: usize = 200;
/// No write begins after this time.
const MEASURE_MAX: Duration = Duration::from_secs(2);
/// A sync that takes longer deserves attention.
const SYNC_SLOW: Duration = Duration::from_millis(10);
/// Maximum number of directories of shards in the report that cannot be used.
const REFUSED_TOLD_MAX: usize = 8;
const PAGE_BYTES: usize = limits::JOURNAL_PAGE_BYTES as usize;
const OTHER_DIRECTORY: &str = "Choose a directory on a disk of this machine.";

/// Returns all findings about the directory of a journal.
pub fn findings(folder: &Path) -> Vec<Finding> {
    let (first, usable) = directory(folder);
    let mut findings = vec![first];
    let Some(usable) = usable else { return findings };
    let shards = match usable == folder {
        true => directories(folder).unwrap_or_default(),
        false => Vec::new(), // It does not exist yet.
    };
    findings.extend(claims(&shards));
    findings.extend([file_system(&usable), space(&usable, &shards), sync(&usable)]);
    findings.extend(usable.metadata().ok().and_then(|metadata| cache(metadata.dev())));
    findings
}

/// Checks the directory. Returns the one to look at next: its parent if it does not exist yet.
fn directory(folder: &Path) -> (Finding, Option<PathBuf>) {
    const SUBJECT: &str = "journal";
    let name = folder.display();
    let bad = |found: String| {
        let means = "A shard with this journal does not start.";
        Finding::bad(SUBJECT, found, means).advise(
            "Make the directory for the user of the server: \
             `install -d -m 700 -o USER DIR` as root.",
        )
    };
    let metadata = match folder.metadata() {
        Err(error) if error.kind() == ErrorKind::NotFound => {
            let parent = match folder.parent() {
                Some(parent) if !parent.as_os_str().is_empty() => parent,
                _ => Path::new("."),
            };
            return match may_write(parent) {
                Ok(()) => {
                    let means = "A shard makes it, for this user alone (mode 0700).";
                    let found = format!("{name} does not exist yet");
                    (Finding::good(SUBJECT, found, means), Some(parent.to_owned()))
                }
                Err(error) => (bad(format!("{name} does not exist: {error}")), None),
            };
        }
        Err(error) => return (bad(format!("{name}: {error}")), None),
        Ok(metadata) if !metadata.is_dir() => {
            return (bad(format!("{name} is not a directory")), None);
        }
        Ok(metadata) => metadata,
    };
    if let Err(error) = may_write(folder) {
        return (bad(error), None);
    }
    let found = format!("{name} exists ({})", owner(&metadata));
    let advice = "Give it to the user of the server alone: `chown` and `chmod 700`.";
    let finding = match metadata.uid() != geteuid().as_raw() || metadata.mode() & 0o022 != 0 {
        true => {
            let means = "Other users can replace what is in it.";
            Finding::note(SUBJECT, found, means).advise(advice)
        }
        false => Finding::good(SUBJECT, found, "A shard can use it."),
    };
    (finding, Some(folder.to_owned()))
}

fn may_write(folder: &Path) -> Result<(), String> {
    let wanted = Access::READ_OK | Access::WRITE_OK | Access::EXEC_OK;
    access(folder, wanted)
        .map_err(|error| format!("{}: {}", folder.display(), io::Error::from(error)))
}

fn owner(metadata: &Metadata) -> String {
    let (uid, mode) = (metadata.uid(), metadata.mode() & 0o7777);
    match uid == geteuid().as_raw() {
        true => format!("mode {mode:04o}, of this user"),
        false => format!("mode {mode:04o}, of the user {uid}"),
    }
}

/// Checks the directories of shards, which are there already.
fn claims(shards: &[PathBuf]) -> Vec<Finding> {
    const SUBJECT: &str = "journal shards";
    let mut findings = Vec::new();
    let mut used_count = 0;
    for shard in shards {
        let refused = match shard.symlink_metadata() {
            Err(error) => Some(error.to_string()),
            Ok(metadata) => {
                let is_own = metadata.uid() == geteuid().as_raw() && metadata.mode() & 0o077 == 0;
                (!is_own).then(|| owner(&metadata))
            }
        };
        match refused {
            None => used_count += usize::from(is_in_use(shard)),
            Some(_) if findings.len() == REFUSED_TOLD_MAX => {}
            Some(why) => {
                let means = "The shard does not start: its directory has to be that of its user \
                             alone.";
                let found = format!("{}: {why}", shard.display());
                let finding = Finding::bad(SUBJECT, found, means);
                findings.push(finding.advise("Use `chown -R` and `chmod 700` on it."));
            }
        }
    }
    if findings.is_empty() && !shards.is_empty() {
        let count = counted(shards.len() as u64, "shard");
        findings.push(match used_count {
            0 => Finding::good(SUBJECT, format!("{count}, none in use"), "A process can use it."),
            _ => {
                let means = "A process uses the journal. It refuses a second one.";
                Finding::good(SUBJECT, format!("{count}, {used_count} in use"), means)
            }
        });
    }
    findings
}

/// True if a process has claimed the directory of a shard. The lock is held only within this call.
fn is_in_use(shard: &Path) -> bool {
    let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits().cast_signed();
    let lock = OpenOptions::new().read(true).custom_flags(flags).open(shard.join(LOCK_FILE));
    lock.is_ok_and(|lock| matches!(lock.try_lock_shared(), Err(TryLockError::WouldBlock)))
}

fn file_system(folder: &Path) -> Finding {
    const SUBJECT: &str = "journal files";
    let system = match File::open(folder).and_then(FileSystem::of) {
        Ok(system) => system,
        Err(error) => {
            let means = "The file system is unknown, and with it what a sync promises.";
            return Finding::note(SUBJECT, format!("{}: {error}", folder.display()), means);
        }
    };
    let found = format!("the file system is {}", system.name);
    match system.kind {
        FileSystemKind::Disk => {
            Finding::good(SUBJECT, found, "A synced chunk is on a disk of this machine.")
        }
        FileSystemKind::Memory => {
            let means = "The files are in memory. Nothing survives a power cut or a reboot.";
            Finding::note(SUBJECT, found, means).advise(OTHER_DIRECTORY)
        }
        FileSystemKind::Overlay => {
            let means = "The files are in a layer of a container, and are removed with it.";
            Finding::note(SUBJECT, found, means).advise("Mount a volume of the host there.")
        }
        FileSystemKind::CopyOnWrite => {
            let means = "Each write gets a new place, so that a sync takes longer.";
            Finding::note(SUBJECT, found, means)
                .advise("Switch copying off for the empty directory: `chattr +C DIR`.")
        }
        FileSystemKind::Network => {
            let means = "A shard does not start: a lock and a sync promise too little there.";
            Finding::bad(SUBJECT, found, means).advise(OTHER_DIRECTORY)
        }
        FileSystemKind::Unknown => {
            let means = "It is unknown what a sync promises there.";
            Finding::note(SUBJECT, found, means).advise(OTHER_DIRECTORY)
        }
    }
}

/// Checks the free space against the bound of each shard. The journal's own files count as free.
fn space(folder: &Path, shards: &[PathBuf]) -> Finding {
    const SUBJECT: &str = "journal space";
    let free_bytes = match statvfs(folder) {
        Ok(StatVfs { f_bavail, f_frsize, .. }) => f_bavail.saturating_mul(f_frsize),
        Err(error) => {
            let found = format!("{}: {}", folder.display(), io::Error::from(error));
            return Finding::note(SUBJECT, found, "The free space is unknown.");
        }
    };
    let used_bytes: u64 = shards.iter().map(|shard| size_of_files(shard)).sum();
    let room_bytes = free_bytes.saturating_add(used_bytes);
    let units = |bytes: u64| in_units(bytes as f64);
    let found = format!("{} are free, the journal has {}", units(free_bytes), units(used_bytes));
    let shard_count = shards.len().max(1) as u64;
    let bound_bytes = limits::JOURNAL_BYTES_MAX * shard_count;
    let least_bytes = 2 * u64::from(limits::JOURNAL_SEGMENT_BYTES) * shard_count;
    let advice = "Make room, or set `bytes_max` of `JournalConfig` to less than what is there.";
    if room_bytes < least_bytes {
        let least = units(least_bytes);
        let means = format!("A shard does not start, or keeps nothing: it takes {least} at least.");
        return Finding::bad(SUBJECT, found, means).advise(advice);
    }
    let bound = units(bound_bytes);
    match room_bytes < bound_bytes {
        false => Finding::good(SUBJECT, found, format!("There is room for {bound}, the default.")),
        true => {
            let means = format!(
                "The journal may take {bound} by default. On a full disk, it does not keep new \
                 chunks."
            );
            Finding::note(SUBJECT, found, means).advise(advice)
        }
    }
}

fn size_of_files(folder: &Path) -> u64 {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let files = entries.filter_map(|entry| entry.metadata().ok()).filter(Metadata::is_file);
    files.map(|metadata| metadata.len()).sum()
}

/// Measures writes of one page, each with a sync.
fn sync(folder: &Path) -> Finding {
    const SUBJECT: &str = "journal sync";
    let mut times = match nameless_file(folder).and_then(|file| measured(&file)) {
        Ok(times) => times,
        Err(error) => {
            let means = "The time of a sync is unknown.";
            return Finding::note(SUBJECT, format!("{}: {error}", folder.display()), means);
        }
    };
    times.sort_unstable();
    let (middle, high) = (percentile(&times, 50), percentile(&times, 99));
    let found = format!(
        "a write of 4 KiB with its sync takes {} (p50), {} (p99 of {})",
        time(middle),
        time(high),
        times.len()
    );
    let means = "A chunk under `synced` waits that long, if no other chunk shares the sync.";
    match middle > SYNC_SLOW {
        false => Finding::good(SUBJECT, found, means),
        true => Finding::note(SUBJECT, found, means)
            .advise("Choose a faster disk, or `written` where the last second may be lost."),
    }
}

/// Makes a file that is gone when it is closed, however this process ends.
fn nameless_file(folder: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.write(true).mode(0o600);
    let flags = |flags: OFlags| flags.bits().cast_signed();
    if let Ok(file) = options.clone().custom_flags(flags(OFlags::TMPFILE)).open(folder) {
        return Ok(file); // Not every file system has this.
    }
    let path = folder.join(format!(".streamdoor-doctor-{}", std::process::id()));
    let file = options.create_new(true).custom_flags(flags(OFlags::NOFOLLOW)).open(&path)?;
    std::fs::remove_file(&path)?;
    Ok(file)
}

/// Returns the times of the writes, at least one.
fn measured(file: &File) -> io::Result<Vec<Duration>> {
    let begun = Clock::now();
    file.write_all_at(&vec![0; WRITES * PAGE_BYTES], 0)?;
    file.sync_all()?;
    let page = [0x5D; PAGE_BYTES];
    let mut times = Vec::with_capacity(WRITES);
    for at in 0..WRITES {
        let before = Clock::now();
        file.write_all_at(&page, (at * PAGE_BYTES) as u64)?;
        file.sync_data()?;
        let now = Clock::now();
        times.push(now.since(before));
        if now.since(begun) > MEASURE_MAX {
            break;
        }
    }
    Ok(times)
}

/// Tells the kind of the disk's cache, if the kernel knows it.
fn cache(device: u64) -> Option<Finding> {
    const SUBJECT: &str = "journal disk";
    let device = format!("/sys/dev/block/{}:{}", major(device), minor(device));
    // A partition has its queue one level up.
    let text = ["queue/write_cache", "../queue/write_cache"]
        .iter()
        .find_map(|file| std::fs::read_to_string(Path::new(&device).join(file)).ok())?;
    let means = match text.trim() {
        "write back" => {
            "A sync flushes this cache. A disk, or the host of a virtual machine, that does not \
             obey can lose synced chunks in a power cut."
        }
        "write through" => "A write that is completed is on the disk, if the disk tells the truth.",
        _ => return None,
    };
    Some(Finding::good(SUBJECT, format!("the cache of the disk is {}", text.trim()), means))
}
