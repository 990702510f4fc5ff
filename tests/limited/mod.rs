//! A cgroup of a test's own. It limits the memory of a program, or it measures the time for which
//! one program waits.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use streamdoor::memory::readings::{cgroup_places, path_names};

pub const LIMIT_BYTES: u64 = 64 << 20;

/// A cgroup of the test's own, which is removed when it is dropped.
pub struct Cgroup {
    path: PathBuf,
}

impl Cgroup {
    /// Creates a cgroup with a limit below that of this process, or else below one of its
    /// ancestors. Returns `None` without the permission. Settings of existing cgroups are not
    /// changed.
    pub fn new() -> Option<Cgroup> {
        let text = fs::read_to_string("/proc/self/cgroup").ok()?;
        let places = cgroup_places(&text);
        let trees = [
            ("/sys/fs/cgroup/memory", places.memory, "memory.limit_in_bytes"),
            ("/sys/fs/cgroup", places.unified, "memory.max"),
            ("/sys/fs/cgroup/unified", places.unified, "memory.max"),
        ];
        for (mount, place, limit_file) in trees {
            let names: Vec<&str> = path_names(place.unwrap_or("/")).collect();
            for depth in (0..=names.len()).rev() {
                let parent: PathBuf =
                    Path::new(mount).join(names[..depth].iter().collect::<PathBuf>());
                if let Some(cgroup) = Cgroup::below(&parent, limit_file) {
                    return Some(cgroup);
                }
            }
        }
        None
    }

    /// Creates a cgroup without a limit, for which the kernel measures waits (`io.pressure`).
    /// Returns `None` without the permission.
    pub fn with_pressure() -> Option<Cgroup> {
        let text = fs::read_to_string("/proc/self/cgroup").ok()?;
        let names: Vec<&str> = path_names(cgroup_places(&text).unified.unwrap_or("/")).collect();
        let mounts = ["/sys/fs/cgroup", "/sys/fs/cgroup/unified"].map(Path::new);
        let parents = mounts.into_iter().flat_map(|mount| {
            let depths = (0..=names.len()).rev();
            depths.map(|depth| mount.join(names[..depth].iter().collect::<PathBuf>()))
        });
        let mut made = parents.filter_map(|parent| Cgroup::made_in(&parent));
        made.find(|cgroup| fs::read_to_string(cgroup.path.join("io.pressure")).is_ok())
    }

    fn below(parent: &Path, limit_file: &str) -> Option<Cgroup> {
        let cgroup = Cgroup::made_in(parent)?;
        let limit = cgroup.path.join(limit_file);
        (limit.exists() && fs::write(limit, LIMIT_BYTES.to_string()).is_ok()).then_some(cgroup)
    }

    fn made_in(parent: &Path) -> Option<Cgroup> {
        if !parent.join("cgroup.procs").exists() {
            return None; // Not a cgroup. `create_dir` would make a directory in a tmpfs.
        }
        let path = parent.join(format!("streamdoor-test-{}", std::process::id()));
        fs::create_dir(&path).ok()?;
        Some(Cgroup { path }) // From here on, `drop` removes it.
    }

    /// The command prefix that runs a program in the cgroup. A shell moves itself into the cgroup
    /// and then executes the program.
    pub fn launcher(&self) -> Vec<String> {
        let script = "echo $$ > \"$1/cgroup.procs\" || exit 99; shift; exec \"$@\"";
        let place = self.path.to_str().expect("the kernel's names are plain").to_owned();
        ["sh", "-c", script, "sh"].map(str::to_owned).into_iter().chain([place]).collect()
    }

    /// The total time for which some task in the cgroup has waited for a disk.
    pub fn waited_for_disks(&self) -> Duration {
        let text = fs::read_to_string(self.path.join("io.pressure")).expect("it could be read");
        let total = text.split_ascii_whitespace().find_map(|word| word.strip_prefix("total="));
        Duration::from_micros(total.expect("psi has a total").parse().expect("a number"))
    }

    /// The first number found in any of these files.
    pub fn number(&self, files: &[&str]) -> Option<u64> {
        let texts = files.iter().filter_map(|file| fs::read_to_string(self.path.join(file)).ok());
        texts.filter_map(|text| text.trim().parse().ok()).next()
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        for _ in 0..100 {
            if fs::remove_dir(&self.path).is_ok() {
                return;
            }
            std::thread::sleep(Duration::from_millis(10)); // The child is not removed yet.
        }
        eprintln!("left behind: {}", self.path.display());
    }
}
