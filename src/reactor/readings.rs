//! Reads the kernel's numbers about memory: `/proc/pressure`, `/proc/meminfo`, and the cgroups of
//! this process.
//!
//! A running shard's thread never does this: for some of these files the kernel first adds up
//! numbers of all processors. `watch` has a thread for it. `memory/readings.rs` parses the
//! texts; this module finds and reads the files. Buffers and paths are allocated once: reading
//! again allocates nothing, unless the process was moved to another cgroup.
//!
//! Cgroups are expected where every distribution mounts them: `/sys/fs/cgroup` (v2 alone),
//! `/sys/fs/cgroup/unified` (v2 beside v1), `/sys/fs/cgroup/memory` (v1). On the way up to the root
//! of the mount each level's limit counts. Levels that do not exist are skipped. A container may
//! see its own cgroup as the root of the mount, but read the path that it has on the host. It still
//! finds its limit.
//!
//! Tests: at the end, on trees of files that look like these.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use crate::limits::KERNEL_FILE_BYTES_MAX;
use crate::memory::Readings;
use crate::memory::readings::{
    cgroup_places, count_bytes, file_cache_bytes, limit_bytes, meminfo_bytes, path_names,
    pressure_avg10, swap_bytes,
};

/// Mounts of v2, and the names of their files.
const UNIFIED: ([&str; 2], FileNames) = (
    ["sys/fs/cgroup", "sys/fs/cgroup/unified"],
    FileNames { limits: &["memory.max", "memory.high"], used: "memory.current" },
);
/// Mounts of v1, and the names of their files.
const MEMORY: ([&str; 1], FileNames) = (
    ["sys/fs/cgroup/memory"],
    FileNames { limits: &["memory.limit_in_bytes"], used: "memory.usage_in_bytes" },
);

#[derive(Clone, Copy)]
struct FileNames {
    limits: &'static [&'static str],
    used: &'static str,
}

/// The files of one cgroup.
struct Level {
    limits: Vec<PathBuf>,
    used: PathBuf,
    stat: PathBuf,
}

/// A repeated reader of the files.
pub struct KernelFiles {
    root: PathBuf,
    pressure_memory: PathBuf,
    pressure_io: PathBuf,
    meminfo: PathBuf,
    cgroup: PathBuf,
    /// The text of `cgroup` from which `levels` was made.
    cgroup_text: Option<String>,
    levels: Vec<Level>,
    buffer: Box<[u8]>,
}

impl KernelFiles {
    /// Makes a reader of the files below `root`: `/`, or a test's own tree.
    pub fn new(root: &Path) -> KernelFiles {
        let proc = root.join("proc");
        KernelFiles {
            root: root.to_owned(),
            pressure_memory: proc.join("pressure/memory"),
            pressure_io: proc.join("pressure/io"),
            meminfo: proc.join("meminfo"),
            cgroup: proc.join("self/cgroup"),
            cgroup_text: None,
            levels: Vec::new(),
            buffer: vec![0; KERNEL_FILE_BYTES_MAX].into_boxed_slice(),
        }
    }

    /// Reads all files. A value that cannot be read is `None`.
    pub fn read(&mut self) -> Readings {
        self.find_levels();
        let buffer = &mut self.buffer;
        let avg10 = |text: Option<&str>| text.map_or((None, None), pressure_avg10);
        let (memory_some_avg10, memory_full_avg10) = avg10(text_of(&self.pressure_memory, buffer));
        let (io_some_avg10, io_full_avg10) = avg10(text_of(&self.pressure_io, buffer));
        let meminfo = text_of(&self.meminfo, buffer).unwrap_or("");
        let (mem_total_bytes, mem_available_bytes) = meminfo_bytes(meminfo);
        let (swap_total_bytes, swap_free_bytes) = swap_bytes(meminfo);
        let mut limit: Option<u64> = None;
        let mut room: Option<u64> = None;
        for level in &self.levels {
            let Some(bytes) = level.limit_bytes(buffer) else { continue };
            if mem_total_bytes.is_some_and(|total_bytes| bytes >= total_bytes) {
                continue; // More than the machine has: the machine is the limit.
            }
            limit = Some(limit.map_or(bytes, |limit| limit.min(bytes)));
            if let Some(used_bytes) = level.used_bytes(buffer) {
                let room_bytes = bytes.saturating_sub(used_bytes);
                room = Some(room.map_or(room_bytes, |room| room.min(room_bytes)));
            }
        }
        let cgroup_used_bytes = limit.zip(room).map(|(limit, room)| limit.saturating_sub(room));
        Readings {
            memory_some_avg10,
            memory_full_avg10,
            io_some_avg10,
            io_full_avg10,
            mem_available_bytes,
            mem_total_bytes,
            swap_total_bytes,
            swap_free_bytes,
            cgroup_limit_bytes: limit,
            cgroup_used_bytes,
        }
    }

    /// Finds the cgroups of this process. A limit file that appears later in one of them is not
    /// seen before the next move. Limit files come with the cgroup.
    fn find_levels(&mut self) {
        let text = text_of(&self.cgroup, &mut self.buffer).unwrap_or("");
        if self.cgroup_text.as_deref() == Some(text) {
            return;
        }
        self.levels.clear();
        let places = cgroup_places(text);
        for mount in UNIFIED.0 {
            let path = places.unified.unwrap_or("/");
            add_levels(&mut self.levels, &self.root.join(mount), path, UNIFIED.1);
        }
        for mount in MEMORY.0 {
            let path = places.memory.unwrap_or("/");
            add_levels(&mut self.levels, &self.root.join(mount), path, MEMORY.1);
        }
        self.cgroup_text = Some(text.to_owned());
    }
}

/// Adds the cgroup of `path` and all above it, up to `mount`, that have a limit file.
fn add_levels(levels: &mut Vec<Level>, mount: &Path, path: &str, names: FileNames) {
    let names_from_root = path_names(path);
    let depth = names_from_root.clone().count();
    for count in (0..=depth).rev() {
        let mut place = mount.to_owned();
        place.extend(names_from_root.clone().take(count));
        let files = names.limits.iter().map(|name| place.join(name));
        let limits: Vec<PathBuf> = files.filter(|file| file.exists()).collect();
        if !limits.is_empty() {
            let (used, stat) = (place.join(names.used), place.join("memory.stat"));
            levels.push(Level { limits, used, stat });
        }
    }
}

impl Level {
    fn limit_bytes(&self, buffer: &mut [u8]) -> Option<u64> {
        self.limits.iter().filter_map(|path| limit_bytes(text_of(path, buffer)?)).min()
    }

    /// Memory in use without the file cache, which the kernel drops when the room is needed.
    fn used_bytes(&self, buffer: &mut [u8]) -> Option<u64> {
        let used_bytes = count_bytes(text_of(&self.used, buffer)?)?;
        let cache_bytes = text_of(&self.stat, buffer).map_or(0, file_cache_bytes);
        Some(used_bytes.saturating_sub(cache_bytes))
    }
}

/// The beginning of a file, as far as it fits into `buffer` and is text.
fn text_of<'a>(path: &Path, buffer: &'a mut [u8]) -> Option<&'a str> {
    let mut file = File::open(path).ok()?;
    let mut length = 0;
    while length < buffer.len() {
        match file.read(&mut buffer[length..]) {
            Ok(0) => break,
            Ok(count) => length += count,
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(_) => return None, // PSI switched off at boot: EOPNOTSUPP.
        }
    }
    match std::str::from_utf8(&buffer[..length]) {
        Ok(text) => Some(text),
        Err(error) => std::str::from_utf8(&buffer[..error.valid_up_to()]).ok(),
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A tree of files, removed with the test.
    pub(crate) struct Tree(pub(crate) PathBuf);

    impl Tree {
        pub(crate) fn new(name: &str) -> Tree {
            let name = format!("streamdoor-tree-{name}-{}", std::process::id());
            let root = std::env::temp_dir().join(name);
            let _ = std::fs::remove_dir_all(&root);
            std::fs::create_dir_all(&root).unwrap();
            Tree(root)
        }

        pub(crate) fn put(&self, path: &str, text: impl AsRef<[u8]>) -> &Tree {
            let path = self.0.join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            // Written as the kernel does it: a reader sees the old text or the new one.
            let next = path.with_extension("next");
            std::fs::write(&next, text).unwrap();
            std::fs::rename(&next, &path).unwrap();
            self
        }

        pub(crate) fn read(&self) -> Readings {
            KernelFiles::new(&self.0).read()
        }
    }

    impl Drop for Tree {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    const MIB: u64 = 1 << 20;
    const MEMINFO: &str = "MemTotal: 1048576 kB\nMemAvailable: 524288 kB\n";

    #[test]
    fn a_machine_without_anything_says_nothing() {
        assert_eq!(Tree::new("nothing").read(), Readings::default());
    }

    #[test]
    fn pressure_and_memory_are_read() {
        let tree = Tree::new("pressure");
        tree.put("proc/pressure/memory", "some avg10=1.00\nfull avg10=0.50\n");
        tree.put("proc/pressure/io", "some avg10=30.00\nfull avg10=20.00\n");
        tree.put("proc/meminfo", MEMINFO);
        let readings = tree.read();
        assert_eq!(readings.memory_some_avg10, Some(1.0));
        assert_eq!(readings.memory_full_avg10, Some(0.5));
        assert_eq!(readings.io_some_avg10, Some(30.0));
        assert_eq!(readings.io_full_avg10, Some(20.0));
        assert_eq!(readings.mem_total_bytes, Some(1_024 * MIB));
        assert_eq!(readings.mem_available_bytes, Some(512 * MIB));
        assert_eq!(readings.cgroup_limit_bytes, None);
    }

    #[test]
    fn in_v2_the_smallest_limit_on_the_way_up_counts() {
        let tree = Tree::new("unified");
        tree.put("proc/meminfo", MEMINFO);
        tree.put("proc/self/cgroup", "0::/a/b\n");
        tree.put("sys/fs/cgroup/a/b/memory.max", "max\n");
        tree.put("sys/fs/cgroup/a/b/memory.high", "max\n");
        assert_eq!(tree.read().cgroup_limit_bytes, None);
        tree.put("sys/fs/cgroup/a/memory.max", format!("{}\n", 64 * MIB));
        tree.put("sys/fs/cgroup/a/memory.current", format!("{}\n", 60 * MIB));
        let cache = format!("inactive_file {}\nactive_file {}\n", 20 * MIB, 10 * MIB);
        tree.put("sys/fs/cgroup/a/memory.stat", cache);
        let readings = tree.read();
        assert_eq!(readings.cgroup_limit_bytes, Some(64 * MIB));
        assert_eq!(readings.cgroup_used_bytes, Some(30 * MIB));
        // The kernel throttles above `high`: a limit, too. It leaves room for 8 MiB, the one above
        // for 34.
        tree.put("sys/fs/cgroup/a/b/memory.high", format!("{}\n", 16 * MIB));
        tree.put("sys/fs/cgroup/a/b/memory.current", format!("{}\n", 8 * MIB));
        let readings = tree.read();
        assert_eq!(readings.cgroup_limit_bytes, Some(16 * MIB));
        assert_eq!(readings.cgroup_used_bytes, Some(8 * MIB));
        // The smallest limit is not always the one with the least room.
        tree.put("sys/fs/cgroup/a/memory.current", format!("{}\n", 63 * MIB));
        tree.put("sys/fs/cgroup/a/memory.stat", "");
        let readings = tree.read();
        assert_eq!(readings.cgroup_limit_bytes, Some(16 * MIB));
        assert_eq!(readings.cgroup_used_bytes, Some(15 * MIB));
    }

    #[test]
    fn in_v1_a_huge_limit_is_none_and_a_hybrid_machine_is_read_whole() {
        let tree = Tree::new("hybrid");
        tree.put("proc/meminfo", MEMINFO);
        tree.put("proc/self/cgroup", "4:memory:/docker/x\n1:cpu:/\n0::/y\n");
        let base = "sys/fs/cgroup/memory";
        tree.put(&format!("{base}/memory.limit_in_bytes"), "9223372036854771712\n");
        tree.put(&format!("{base}/docker/x/memory.limit_in_bytes"), "9223372036854771712\n");
        assert_eq!(tree.read().cgroup_limit_bytes, None);
        tree.put(&format!("{base}/docker/x/memory.limit_in_bytes"), format!("{}\n", 100 * MIB));
        tree.put(&format!("{base}/docker/x/memory.usage_in_bytes"), format!("{}\n", 90 * MIB));
        tree.put(
            &format!("{base}/docker/x/memory.stat"),
            "inactive_file 1\ntotal_inactive_file 5\n",
        );
        let readings = tree.read();
        assert_eq!(readings.cgroup_limit_bytes, Some(100 * MIB));
        assert_eq!(readings.cgroup_used_bytes, Some(90 * MIB - 5));
        tree.put("sys/fs/cgroup/unified/y/memory.max", format!("{}\n", 50 * MIB));
        assert_eq!(tree.read().cgroup_limit_bytes, Some(50 * MIB));
    }

    #[test]
    fn a_container_finds_its_limit_by_whatever_path_it_is_told() {
        let tree = Tree::new("namespace");
        tree.put("sys/fs/cgroup/memory/memory.limit_in_bytes", format!("{}\n", 64 * MIB));
        for text in ["4:memory:/\n", "4:memory:/docker/0123\n", "4:memory:/../x\n", "", "\0:::"] {
            tree.put("proc/self/cgroup", text);
            assert_eq!(tree.read().cgroup_limit_bytes, Some(64 * MIB), "{text:?}");
        }
        let tree = Tree::new("namespace-unified");
        tree.put("proc/self/cgroup", "0::/\n");
        tree.put("sys/fs/cgroup/memory.max", format!("{}\n", 64 * MIB));
        assert_eq!(tree.read().cgroup_limit_bytes, Some(64 * MIB));
        // No path leads out of the tree.
        tree.put("secret/memory.max", "1\n");
        tree.put("proc/self/cgroup", "0::/../../../secret\n");
        assert_eq!(tree.read().cgroup_limit_bytes, Some(64 * MIB));
    }

    #[test]
    fn a_limit_above_the_machine_is_none_and_a_move_is_noticed() {
        let tree = Tree::new("moves");
        tree.put("proc/meminfo", MEMINFO).put("proc/self/cgroup", "0::/a\n");
        tree.put("sys/fs/cgroup/a/memory.max", format!("{}\n", 2_048 * MIB));
        tree.put("sys/fs/cgroup/b/memory.max", format!("{}\n", 32 * MIB));
        let mut files = KernelFiles::new(&tree.0);
        assert_eq!(files.read().cgroup_limit_bytes, None);
        tree.put("proc/self/cgroup", "0::/b\n");
        assert_eq!(files.read().cgroup_limit_bytes, Some(32 * MIB));
        tree.put("sys/fs/cgroup/b/memory.max", format!("{}\n", 16 * MIB));
        assert_eq!(files.read().cgroup_limit_bytes, Some(16 * MIB));
        std::fs::remove_dir_all(tree.0.join("sys")).unwrap();
        assert_eq!(files.read().cgroup_limit_bytes, None);
    }

    #[test]
    fn files_that_are_binary_or_endless_do_no_harm() {
        let tree = Tree::new("odd");
        tree.put("proc/self/cgroup", vec![b'a'; 100_000]);
        tree.put("proc/meminfo", [&MEMINFO.as_bytes()[..40], &[0xff; 60_000][..]].concat());
        tree.put("proc/pressure/memory/directory", "");
        let readings = tree.read();
        assert_eq!(readings.mem_total_bytes, Some(1_024 * MIB));
        assert_eq!((readings.mem_available_bytes, readings.memory_some_avg10), (None, None));
    }

    #[test]
    fn this_machine_can_be_read() {
        let readings = KernelFiles::new(Path::new("/")).read();
        println!("{readings:?}");
        let total_bytes = readings.mem_total_bytes.expect("every Linux says this");
        assert!(readings.mem_available_bytes.is_none_or(|bytes| bytes <= total_bytes));
        assert!(readings.cgroup_limit_bytes.is_none_or(|bytes| bytes < total_bytes));
    }
}
