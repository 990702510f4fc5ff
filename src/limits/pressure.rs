//! Limits of memory pressure: thresholds at which rings shrink, and the interval of the samples.

use std::time::Duration;

/// The largest window that may be leased: normal, elevated, critical, survival. From the sift seed.
pub const PRESSURE_CLASS_BYTES: [u32; 4] = [1 << 20, 256 << 10, 64 << 10, 16 << 10];
/// Divisor of a cgroup's limit that bounds all rings of the process together. From the sift seed.
pub const RINGS_CGROUP_FRACTION: u64 = 10;
/// Divisor of the maximum ring memory that bounds the ring memory touched at start. The rest stays
/// free for windows of any requested size.
pub const RINGS_PREALLOC_FRACTION_MIN: u64 = 4;

// Thresholds in percent: elevated, critical, survival. PSI: kernel,
// Documentation/accounting/psi.rst.

/// Share of time in which some task waited for memory. A tenth is felt in the tail of latencies.
/// Above half, the kernel reclaims more than it works. (systemd-oomd acts at 60 % for all of a
/// slice; rings have to shrink long before a process is killed.)
pub const PRESSURE_MEMORY_SOME_PERCENT: [f32; 3] = [10.0, 30.0, 60.0];
/// Share of time in which all tasks waited for memory at once: each threshold is half of the above.
pub const PRESSURE_MEMORY_FULL_PERCENT: [f32; 3] = [5.0, 15.0, 30.0];
/// Share of time in which some task waited for a disk. This is normal on a machine that builds or
/// sorts, and smaller rings do not make its disk faster. Only values near 100 % count, and only
/// together with rising memory pressure (the three constants below) or with swap in use.
pub const PRESSURE_IO_SOME_PERCENT: [f32; 3] = [80.0, 95.0, 99.0];
/// Share of time in which all tasks waited for a disk at once. With swap, or with a file cache that
/// no longer fits, this is thrashing. A cold start looks the same for a moment.
pub const PRESSURE_IO_FULL_PERCENT: [f32; 3] = [50.0, 80.0, 95.0];
/// Used memory of the machine or of the cgroup: 20, 10 and 5 % are left. The kernel's own
/// watermarks are at 1 to 3 %. Below them every allocation has to reclaim memory.
pub const PRESSURE_USED_PERCENT: [f32; 3] = [80.0, 90.0, 95.0];
/// Share of waits of some task for memory from which the disk values count: half of elevated.
pub const PRESSURE_MEMORY_SOME_DISKS_PERCENT: f32 = 5.0;
/// Share of waits of all tasks for memory from which the disk values count: half of elevated.
pub const PRESSURE_MEMORY_FULL_DISKS_PERCENT: f32 = 2.5;
/// Used memory from which the disk values count. It is as far below elevated as critical is above,
/// since half of the memory in use is not unusual.
pub const PRESSURE_USED_DISKS_PERCENT: f32 = 70.0;
/// Used swap from which swap counts as in use. Less was swapped out once and is not missed.
pub const PRESSURE_SWAP_USED_PERCENT: f32 = 10.0;
/// Better samples in a row before the state goes down. With one sample a second, this is half of
/// the window of avg10, which has smoothed them already.
pub const PRESSURE_CALM_SAMPLES: u32 = 5;
/// Interval of the samples. The kernel renews its own averages every two seconds, but MemAvailable
/// and the cgroup's use at once.
pub const MEMORY_WATCH_INTERVAL: Duration = Duration::from_secs(1);
/// Maximum number of names in the path of a cgroup, because a path from outside must not grow our
/// tables. A deeper one counts as the root of its tree.
pub const CGROUP_DEPTH_MAX: usize = 32;
/// Bytes of a kernel file that are read for this. The rest of a longer one is ignored.
pub const KERNEL_FILE_BYTES_MAX: usize = 16 << 10;
