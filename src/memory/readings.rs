//! Parsers for the kernel's text files about memory.
//!
//! They are pure functions on text; `reactor/readings.rs` reads the text. All of it comes from
//! outside (A6). A file may be truncated, empty, of an older or newer kernel, or hostile. Text that
//! is not understood gives `None`, never a panic and never a made-up number.
//!
//! Sources: kernel, Documentation/accounting/psi.rst, filesystems/proc.rst,
//! admin-guide/cgroup-v2.rst and cgroup-v1/memory.rst; cgroups(7), cgroup_namespaces(7).

use crate::limits::CGROUP_DEPTH_MAX;

/// The smallest value that means "no limit". For "no limit" cgroup v1 writes the largest multiple
/// of a page that fits: 9223372036854771712 with pages of 4 KiB, less with larger ones.
const LIMIT_BYTES_NONE: u64 = 1 << 60;

/// Returns `some` and `full` of `avg10` in percent, from `/proc/pressure/…`. A kernel may lack the
/// second.
pub fn pressure_avg10(text: &str) -> (Option<f32>, Option<f32>) {
    let of_line = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '))?;
        let value = line.split_ascii_whitespace().find_map(|word| word.strip_prefix("avg10="))?;
        let percent: f32 = value.parse().ok()?;
        (0.0..=100.0).contains(&percent).then_some(percent) // The range excludes NaN.
    };
    (of_line("some"), of_line("full"))
}

/// Returns MemTotal and MemAvailable in bytes, from `/proc/meminfo`. Before Linux 3.14 the second
/// is missing.
pub fn meminfo_bytes(text: &str) -> (Option<u64>, Option<u64>) {
    (line_bytes(text, "MemTotal"), line_bytes(text, "MemAvailable"))
}

/// Returns SwapTotal and SwapFree in bytes, from `/proc/meminfo`.
pub fn swap_bytes(text: &str) -> (Option<u64>, Option<u64>) {
    (line_bytes(text, "SwapTotal"), line_bytes(text, "SwapFree"))
}

/// Returns the value of one line of `/proc/meminfo`, in bytes.
fn line_bytes(text: &str, name: &str) -> Option<u64> {
    let value = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
    let kib: u64 = value.trim().strip_suffix("kB")?.trim_end().parse().ok()?;
    kib.checked_mul(1_024)
}

/// The cgroups of a process.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CgroupPlaces<'a> {
    /// The path in the one tree of v2, if it exists: as in `/proc/self/cgroup`, from its root.
    pub unified: Option<&'a str>,
    /// The path in the tree of v1 that limits memory, if it exists.
    pub memory: Option<&'a str>,
}

/// Reads `/proc/self/cgroup`: lines of `number:controllers:path`, whose path may contain colons.
pub fn cgroup_places(text: &str) -> CgroupPlaces<'_> {
    let mut places = CgroupPlaces::default();
    for line in text.lines() {
        let mut fields = line.splitn(3, ':');
        let (Some(number), Some(controllers), Some(path)) =
            (fields.next(), fields.next(), fields.next())
        else {
            continue;
        };
        if number == "0" && controllers.is_empty() {
            places.unified.get_or_insert(path);
        } else if controllers.split(',').any(|controller| controller == "memory") {
            places.memory.get_or_insert(path);
        }
    }
    places
}

/// Returns the names on the way from the root of a tree to a cgroup. The result is empty for the
/// root, and for a path outside of the visible tree: in a cgroup namespace a path can begin with
/// `/..`. A cgroup that was removed is marked ` (deleted)`. Its directory is gone; those above it
/// may exist.
pub fn path_names(path: &str) -> impl DoubleEndedIterator<Item = &str> + Clone {
    let path = path.strip_suffix(" (deleted)").unwrap_or(path);
    let is_ours = path.starts_with('/')
        && path.split('/').all(|name| name != ".." && !name.contains('\0'))
        && path.split('/').count() <= CGROUP_DEPTH_MAX;
    let path = if is_ours { path } else { "" };
    path.split('/').filter(|name| !name.is_empty() && *name != ".")
}

/// Reads a limit in bytes, from `memory.max`, `memory.high` or `memory.limit_in_bytes`. `None` if
/// no limit is set (`max`, or the huge number of v1).
pub fn limit_bytes(text: &str) -> Option<u64> {
    count_bytes(text).filter(|bytes| *bytes < LIMIT_BYTES_NONE)
}

/// Reads a file that holds one number: `memory.current` or `memory.usage_in_bytes`.
pub fn count_bytes(text: &str) -> Option<u64> {
    text.trim().parse().ok()
}

/// Returns the file cache of a cgroup and all below it, from `memory.stat`. The kernel drops this
/// cache before it refuses memory. Shared memory, which includes the rings, does not count as file
/// cache. 0 if nothing is known.
pub fn file_cache_bytes(text: &str) -> u64 {
    let of_line = |name: &str| {
        let value = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '))?;
        count_bytes(value)
    };
    // In v1 the names without `total_` are those of the cgroup alone. v2 has only sums.
    let of_either = |total: &str, plain: &str| of_line(total).or_else(|| of_line(plain));
    let inactive_bytes = of_either("total_inactive_file", "inactive_file").unwrap_or(0);
    let active_bytes = of_either("total_active_file", "active_file").unwrap_or(0);
    inactive_bytes.saturating_add(active_bytes)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn pressure_is_read_from_every_kernel_that_has_it() {
        let text = "some avg10=12.34 avg60=3.69 avg300=1.40 total=644691717\n\
                    full avg10=2.90 avg60=3.53 avg300=1.32 total=479910789\n";
        assert_eq!(pressure_avg10(text), (Some(12.34), Some(2.90)));
        let (some, _) = text.split_once('\n').unwrap();
        assert_eq!(pressure_avg10(some), (Some(12.34), None));
        assert_eq!(pressure_avg10("some avg10=100.00\nfull avg10=0.00"), (Some(100.0), Some(0.0)));
    }

    #[test]
    fn swap_is_read_where_there_is_some() {
        let text = "MemTotal: 9 kB\nSwapCached: 1 kB\nSwapTotal: 4 kB\nSwapFree:       3 kB\n";
        assert_eq!(swap_bytes(text), (Some(4_096), Some(3_072)));
        assert_eq!(swap_bytes("MemTotal: 9 kB\n"), (None, None));
    }

    #[test]
    fn meminfo_is_read_with_and_without_what_is_available() {
        let text = "MemTotal:       24684084 kB\nMemFree:        21075816 kB\n\
                    MemAvailable:   24258876 kB\nBuffers:           10332 kB\n";
        let (total_bytes, available_bytes) = meminfo_bytes(text);
        assert_eq!(total_bytes, Some(24_684_084 << 10));
        assert_eq!(available_bytes, Some(24_258_876 << 10));
        assert_eq!(meminfo_bytes("MemTotal: 1 kB\nMemFree: 1 kB\n"), (Some(1_024), None));
    }

    #[test]
    fn a_place_is_found_in_each_arrangement_of_trees() {
        let unified = "0::/user.slice/user-1000.slice/session-2.scope\n";
        let hybrid = "9:name=systemd:/x\n4:memory:/docker/a:b\n1:cpu,cpuacct:/\n0::/x\n";
        let mounted_together = "3:cpu,memory,pids:/all\n";
        let namespaced = "0::/\n";
        for (text, unified, memory) in [
            (unified, Some("/user.slice/user-1000.slice/session-2.scope"), None),
            (hybrid, Some("/x"), Some("/docker/a:b")),
            (mounted_together, None, Some("/all")),
            (namespaced, Some("/"), None),
            ("", None, None),
        ] {
            assert_eq!(cgroup_places(text), CgroupPlaces { unified, memory }, "{text}");
        }
        // `name=memory` is a hierarchy that a user named.
        assert_eq!(cgroup_places("5:name=memory:/x\n"), CgroupPlaces::default());
    }

    #[test]
    fn a_path_is_taken_apart_and_never_leads_out_of_its_tree() {
        let names = |path| path_names(path).collect::<Vec<_>>();
        assert_eq!(names("/a.slice/b c/d:e"), ["a.slice", "b c", "d:e"]);
        assert_eq!(names("//a/./b/"), ["a", "b"]);
        assert_eq!(names("/gone (deleted)"), ["gone"]);
        let long = "/a".repeat(CGROUP_DEPTH_MAX + 1);
        for path in ["/", "", "a/b", "/../a", "/a/../../etc", "/a/\0", &long] {
            assert!(names(path).is_empty(), "{path:?}");
        }
    }

    #[test]
    fn a_limit_is_a_number_or_none() {
        assert_eq!(limit_bytes("67108864\n"), Some(64 << 20));
        assert_eq!(limit_bytes("0\n"), Some(0));
        let none = ["max\n", "9223372036854771712\n", "9223372036854710272\n", "-1\n", "", "\n"];
        for text in none {
            assert_eq!(limit_bytes(text), None, "{text}");
        }
    }

    #[test]
    fn file_cache_is_that_of_the_whole_subtree() {
        let unified = "anon 1000\nfile 9000\nshmem 4000\ninactive_file 2000\nactive_file 3000\n";
        assert_eq!(file_cache_bytes(unified), 5_000);
        let first = "cache 9\ninactive_file 7\nactive_file 8\n\
                     total_cache 90\ntotal_inactive_file 70\ntotal_active_file 80\n";
        assert_eq!(file_cache_bytes(first), 150);
        assert_eq!(file_cache_bytes(""), 0);
        let huge = format!("inactive_file {0}\nactive_file {0}\n", u64::MAX);
        assert_eq!(file_cache_bytes(&huge), u64::MAX);
    }

    #[test]
    fn what_makes_no_sense_is_not_known() {
        let hostile = [
            "",
            "\0\0\0",
            "some",
            "some avg10",
            "some avg10=",
            "some avg10=NaN",
            "some avg10=inf",
            "some avg10=-1.0",
            "some avg10=100.01",
            "some avg10=1e999",
            "someavg10=5.0",
            "MemTotal:",
            "MemTotal: kB",
            "MemTotal: -5 kB",
            "MemTotal: 99999999999999999999999999 kB",
            "MemTotal: 18446744073709551615 kB",
            "MemTotal: 12 MB",
            "::::::",
            "0:",
            "0::",
            "\u{feff}0::/x",
        ];
        for text in hostile {
            assert_eq!(pressure_avg10(text), (None, None), "{text:?}");
            assert_eq!(meminfo_bytes(text), (None, None), "{text:?}");
            assert_eq!(limit_bytes(text), None, "{text:?}");
            let places = cgroup_places(text);
            assert!(places.unified.is_none_or(|path| path_names(path).count() == 0), "{text:?}");
        }
    }

    #[test]
    fn no_cut_or_noise_makes_any_of_it_panic() {
        let mut random = crate::base::Random::new(1);
        let text = "some avg10=12.34 avg60=3.69\nMemTotal: 24684084 kB\n4:memory:/docker/a\n0::/é\n\
                    inactive_file 2000\nmax\n";
        let rounds = if cfg!(miri) { 50 } else { 20_000 };
        for _ in 0..rounds {
            let mut bytes = text.as_bytes().to_vec();
            for _ in 0..random.between(1, 4) {
                let at = random.below(bytes.len() as u64) as usize;
                bytes[at] = random.below(256) as u8;
            }
            bytes.truncate(random.below(bytes.len() as u64 + 1) as usize);
            let text = String::from_utf8_lossy(&bytes);
            pressure_avg10(&text);
            meminfo_bytes(&text);
            limit_bytes(&text);
            file_cache_bytes(&text);
            for path in [cgroup_places(&text).unified, cgroup_places(&text).memory] {
                assert!(path_names(path.unwrap_or("")).all(|name| name != ".."));
            }
        }
    }
}
