//! A cgroup with little memory, for tests of programs that have to live with it.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use streamdoor::memory::readings::{cgroup_places, path_names};

pub const LIMIT_BYTES: u64 = 64 << 20;

/// A cgroup of the test's own, removed with it.
pub struct Cgroup {
    path: PathBuf,
}

impl Cgroup {
    /// Below the one that this process is in, or else below one above that; `None` if nobody lets
    /// us. Settings of cgroups that are not ours are not touched.
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

    fn below(parent: &Path, limit_file: &str) -> Option<Cgroup> {
        if !parent.join("cgroup.procs").exists() {
            return None; // Not a cgroup: a directory made there would be one of a tmpfs.
        }
        let path = parent.join(format!("streamdoor-test-{}", std::process::id()));
        fs::create_dir(&path).ok()?;
        let cgroup = Cgroup { path }; // From here on it is removed again.
        let limit = cgroup.path.join(limit_file);
        (limit.exists() && fs::write(limit, LIMIT_BYTES.to_string()).is_ok()).then_some(cgroup)
    }

    /// What stands before a program's words to have it run inside: a shell goes there first and
    /// becomes it.
    pub fn launcher(&self) -> Vec<String> {
        let script = "echo $$ > \"$1/cgroup.procs\" || exit 99; shift; exec \"$@\"";
        let place = self.path.to_str().expect("the kernel's names are plain").to_owned();
        ["sh", "-c", script, "sh"].map(str::to_owned).into_iter().chain([place]).collect()
    }

    /// The first number in any of these files.
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
            std::thread::sleep(Duration::from_millis(10)); // The child is still being taken down.
        }
        eprintln!("left behind: {}", self.path.display());
    }
}
