//! How short memory may become before rings shrink: thresholds, and how often the kernel is asked.

use std::time::Duration;

/// The largest window that may be leased: normal, elevated, critical, survival. From the sift seed.
pub const PRESSURE_CLASS_BYTES: [u32; 4] = [1 << 20, 256 << 10, 64 << 10, 16 << 10];
/// Under a cgroup limit all rings of the process together take at most this part of it. From the
/// sift seed.
pub const RINGS_CGROUP_FRACTION: u64 = 10;
/// What is touched at start is at most this part of what rings may take: the rest stays free to
/// become windows of the size that is asked for.
pub const RINGS_PREALLOC_FRACTION_MIN: u64 = 4;

// Thresholds in percent: elevated, critical, survival. PSI: kernel,
// Documentation/accounting/psi.rst.

/// Some task waited for memory. A tenth of the time is felt in the tail of latencies; beyond half
/// of it the kernel is reclaiming rather than working. (systemd-oomd acts at 60 % for all of a
/// slice; ring sizes have to go down long before anybody is killed.)
pub const PRESSURE_MEMORY_SOME_PERCENT: [f32; 3] = [10.0, 30.0, 60.0];
/// All tasks waited for memory at once, so that nothing was done: each step at half the time.
pub const PRESSURE_MEMORY_FULL_PERCENT: [f32; 3] = [5.0, 15.0, 30.0];
/// Some task waited for a disk. That is the everyday life of a machine that builds or sorts, and
/// smaller rings do not make its disk faster: only what is next to always counts, and only beside
/// memory that is on its way (the three below) or swap in use.
pub const PRESSURE_IO_SOME_PERCENT: [f32; 3] = [80.0, 95.0, 99.0];
/// All tasks waited for a disk at once. With swap or a file cache that no longer fits this is
/// thrashing; a cold start looks the same for a moment.
pub const PRESSURE_IO_FULL_PERCENT: [f32; 3] = [50.0, 80.0, 95.0];
/// Used, of the machine or of the cgroup: 20, 10 and 5 % are left. The kernel's own watermarks lie
/// at 1 to 3 %; below them every allocation pays for reclaim.
pub const PRESSURE_USED_PERCENT: [f32; 3] = [80.0, 90.0, 95.0];
/// From here on a reading about memory lets those about disks count: half of what is elevated, ...
pub const PRESSURE_MEMORY_SOME_DISKS_PERCENT: f32 = 5.0;
/// ... the same where all tasks waited, ...
pub const PRESSURE_MEMORY_FULL_DISKS_PERCENT: f32 = 2.5;
/// ... and, of memory used, as far before elevated as critical is behind it: half of it used is
/// nothing unusual.
pub const PRESSURE_USED_DISKS_PERCENT: f32 = 70.0;
/// Swap is in use from here on: less is what was put there once and is not missed.
pub const PRESSURE_SWAP_USED_PERCENT: f32 = 10.0;
/// Better samples in a row before the state goes down. With one a second: half of what avg10 looks
/// back on, which has smoothed them already.
pub const PRESSURE_CALM_SAMPLES: u32 = 5;
/// How often the kernel is asked. Its own averages are renewed each two seconds; MemAvailable and
/// the cgroup's use at once.
pub const MEMORY_WATCH_INTERVAL: Duration = Duration::from_secs(1);
/// Names in the path of a cgroup, at most: a path from outside must not grow our tables. A deeper
/// one counts as the root of its tree.
pub const CGROUP_DEPTH_MAX: usize = 32;
/// The longest file of the kernel that is read for this; the rest of a longer one is not looked at.
pub const KERNEL_FILE_BYTES_MAX: usize = 16 << 10;
