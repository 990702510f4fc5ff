//! The load, the loop and the report of `bench journal`, for streamdoor, the floor and the peers.
//!
//! The loop is closed: the next messages are sent when the last ones are durable. A message counts
//! from the time before the first one of its batch was sent. Nothing is pinned, because a broker
//! and the kernel's own threads need the other cpus. All files are in a directory of the run, which
//! is removed in the end.

use std::ffi::OsString;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use lexopt::{Arg, Parser};
use serde_json::{Map, Value, json};

use super::machine::{describe, now_ns, preemption_count, wall_time};
use super::params::{Fanout, choice, number, usage};
use super::pressure::Pressure;
use super::report::{Measured, Outcome};
use super::source::payload;
use super::{BATCH_CHUNKS, Failure, files, print};

/// The modes. Peers have only the first.
pub const MODES: [&str; 8] =
    ["publish", "sustained", "replay", "live", "many", "first", "recovery", "verify"];
const MEBIBYTES_MAX: u64 = 64 << 10;
/// The first two numbers of `statfs` for file systems that are no disk: tmpfs and ramfs.
const MEMORY_FILE_SYSTEMS: [i64; 2] = [0x0102_1994, 0x8584_58f6];
/// The options of `fanout` with the same meaning here.
const OPTIONS_SHARED: [&str; 7] = ["size", "duration", "warmup", "seed", "out", "json", "smoke"];

/// The options that both programs have.
pub const JOURNAL_HELP: &str = "\
  --mode publish      send messages and wait until they are durable: time of each, and their rate
  --in-flight N       publish: messages that are sent at once, at most 64 (1)
  --size B            bytes of a message, 8 or more (100)
  --duration S        seconds that are counted (5)
  --warmup S          seconds before them that are not counted (0.2)
  --seed N            the seed of the payload (1)
  --dir DIR           make the directory of the files in DIR, on a disk (the program's directory);
                      it is removed in the end
  --out DIR           publish: write a histogram (.hgrm) and an HDR interval log, version 2
                      (.hlog), to DIR
  --json              print one line of JSON instead of text
  --smoke             a tiny run: 0.05 s, no warm-up, 2 MiB
  --help
";

/// One run.
pub struct Load {
    /// Implementation, size, time, seed and output. The rest is not used.
    pub plan: Fanout,
    /// One of [`MODES`].
    pub mode: &'static str,
    /// Number of messages that are sent at once.
    pub in_flight: u32,
    /// Size of the journal that is replayed or opened; `None` if the mode decides.
    mebibytes: Option<u64>,
    /// The directory in which that of the run is made.
    parent: PathBuf,
}

impl Load {
    /// Parses the options. Returns `None` for help.
    ///
    /// # Errors
    /// [`Failure::Usage`], which names the option and the limit.
    pub fn parse(
        implementations: &[&'static str],
        modes: &[&'static str],
        arguments: impl IntoIterator<Item = OsString>,
    ) -> Result<Option<Load>, Failure> {
        let program = std::env::current_exe().unwrap_or_default();
        let parent = program.parent().unwrap_or(Path::new(".")).to_path_buf();
        let plan = Fanout::new(implementations[0])?;
        let mut load = Load { plan, mode: modes[0], in_flight: 1, mebibytes: None, parent };
        let mut parser = Parser::from_args(arguments);
        while let Some(argument) = parser.next().map_err(usage)? {
            match argument {
                Arg::Long("help") | Arg::Short('h') => return Ok(None),
                Arg::Long("impl") => {
                    load.plan.implementation = choice(&mut parser, "--impl", implementations)?;
                }
                Arg::Long("mode") => load.mode = choice(&mut parser, "--mode", modes)?,
                Arg::Long("in-flight") => {
                    load.in_flight = number(&mut parser, "--in-flight", 1, BATCH_CHUNKS)?;
                }
                Arg::Long("mib") if modes.len() > 1 => {
                    load.mebibytes = Some(number(&mut parser, "--mib", 1, MEBIBYTES_MAX)?);
                }
                Arg::Long("dir") => load.parent = PathBuf::from(parser.value().map_err(usage)?),
                Arg::Long(name) if OPTIONS_SHARED.contains(&name) => {
                    let name = name.to_owned();
                    if name == "smoke" {
                        load.mebibytes = Some(2);
                    }
                    let known = load.plan.accept(&name, &mut parser)?;
                    assert!(known, "{name} is an option of fanout");
                }
                Arg::Long(name) => return Err(Failure::Usage(format!("unknown option --{name}"))),
                other => return Err(usage(other.unexpected())),
            }
        }
        Ok(Some(load))
    }

    /// Returns the number of messages in the journal that is replayed or opened.
    pub fn messages(&self) -> u64 {
        let default = if self.mode == "recovery" { 1_024 } else { 256 };
        (self.mebibytes.unwrap_or(default) << 20).div_ceil(self.plan.size_bytes as u64)
    }

    /// Returns the payload of all messages.
    pub fn payload(&self) -> Box<[u8]> {
        payload(self.plan.size_bytes, self.plan.seed)
    }

    fn line(&self, program: &str) -> String {
        let Load { plan, mode, in_flight, .. } = self;
        format!(
            "{program} journal --impl {} --mode {mode} --in-flight {in_flight} --size {} \
             --duration {} --warmup {} --seed {}",
            plan.implementation,
            plan.size_bytes,
            plan.duration.as_secs_f64(),
            plan.warmup.as_secs_f64(),
            plan.seed,
        )
    }
}

/// The directory of a run. It is removed when this is dropped.
pub struct Folder(PathBuf);

impl Folder {
    /// Makes the directory.
    ///
    /// # Errors
    /// [`Failure::Environment`] if that is impossible, or if its files would be in memory only.
    pub fn new(load: &Load) -> Result<Folder, Failure> {
        let path = load.parent.join(format!("streamdoor-journal-{}", std::process::id()));
        let lacking =
            |text: String| Failure::Environment(format!("--dir {}: {text}", load.parent.display()));
        std::fs::create_dir(&path).map_err(|error| lacking(error.to_string()))?;
        let folder = Folder(path);
        let found = rustix::fs::statfs(&folder.0).map_err(|error| lacking(error.to_string()))?;
        if MEMORY_FILE_SYSTEMS.contains(&found.f_type) {
            return Err(lacking("its files are in memory, where a sync does nothing".into()));
        }
        Ok(folder)
    }

    /// The path.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// The device of the files, and what its cache is, as far as the kernel knows.
    fn device(&self) -> Option<String> {
        let device = std::fs::metadata(&self.0).ok()?.dev();
        let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
        let path = std::fs::canonicalize(format!("/sys/dev/block/{major}:{minor}")).ok()?;
        let own = path.join("queue/write_cache"); // A partition has none.
        let cache = std::fs::read_to_string(own)
            .or_else(|_| std::fs::read_to_string(path.join("../queue/write_cache")));
        Some(format!("{}, {}", path.file_name()?.display(), cache.ok()?.trim()))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0); // A remaining folder does no harm.
    }
}

/// A log that messages are sent to.
pub trait Durable {
    /// Sends `count` messages, and waits until all are durable. Calls `kept` with the number of
    /// those that have become so.
    ///
    /// # Errors
    /// A text for the user.
    fn publish(
        &mut self,
        payload: &[u8],
        count: u32,
        kept: &mut dyn FnMut(u32),
    ) -> Result<(), String>;
}

/// The result of a run.
pub struct Found {
    /// The times of messages or openings, or the messages that were kept or read.
    pub outcome: Outcome,
    /// The time in which they were counted.
    pub elapsed_ns: u64,
    /// Number of messages that were not kept.
    pub missed: u64,
}

impl Found {
    /// Returns the result for `samples_ns`, since `start_ns`.
    pub fn times(samples_ns: &[u32], start_ns: u64, preemptions_before: u64) -> Found {
        let elapsed_ns = now_ns() - start_ns;
        let measured = Measured::latency(samples_ns.len() as u64, samples_ns, 1);
        let preemptions = preemption_count() - preemptions_before;
        Found { outcome: Outcome { measured, preemptions }, elapsed_ns, missed: 0 }
    }

    /// Returns the result for messages of which some were missed, since `start_ns`.
    pub fn rate(messages: u64, missed: u64, start_ns: u64, preemptions_before: u64) -> Found {
        let elapsed_ns = now_ns() - start_ns;
        let deliveries = messages - missed;
        let measured = Measured::Throughput { chunks: messages, deliveries, elapsed_ns };
        let preemptions = preemption_count() - preemptions_before;
        Found { outcome: Outcome { measured, preemptions }, elapsed_ns, missed }
    }
}

/// Returns the time since `start_ns` as a sample.
pub fn sample_since(start_ns: u64) -> u32 {
    u32::try_from(now_ns() - start_ns).unwrap_or(u32::MAX)
}

/// Measures [`Durable::publish`].
///
/// # Errors
/// [`Failure::Failed`].
pub fn publish(load: &Load, log: &mut impl Durable) -> Result<Found, Failure> {
    let (payload, count) = (load.payload(), load.in_flight);
    let until_ns = now_ns() + load.plan.warmup.as_nanos() as u64;
    while now_ns() < until_ns {
        log.publish(&payload, count, &mut |_| ()).map_err(Failure::Failed)?;
    }
    let mut samples_ns = Vec::with_capacity(1 << 20);
    let (before, start_ns) = (preemption_count(), now_ns());
    let until_ns = start_ns + load.plan.duration.as_nanos() as u64;
    loop {
        let (sent_ns, sent) = (now_ns(), samples_ns.len() + count as usize);
        let mut note = |kept| {
            samples_ns.extend(std::iter::repeat_n(sample_since(sent_ns), kept as usize));
        };
        log.publish(&payload, count, &mut note).map_err(Failure::Failed)?;
        if samples_ns.len() != sent {
            let text = format!("{} messages are durable, not {sent}", samples_ns.len());
            return Err(Failure::Failed(text));
        }
        if now_ns() >= until_ns {
            return Ok(Found::times(&samples_ns, start_ns, before));
        }
    }
}

/// Prints the result, and writes the files of `--out`.
///
/// # Errors
/// [`Failure::Failed`], which names the path.
pub fn report(program: &str, load: &Load, found: &Found, folder: &Folder) -> Result<(), Failure> {
    let device = folder.device().unwrap_or_else(|| "unknown".into());
    let machine = format!("{}; disk: {device}; idle: nothing is pinned", describe());
    let text = load.line(program);
    write_files(load, found, [machine.clone(), text.clone()])?;
    print(&match load.plan.json {
        true => to_json(load, found, &machine),
        false => format!(
            "machine     {machine}\nload        {text}\n{}{:<12}{:>12}\n{:<12}{:>12.1} MB/s\n{}",
            found.outcome.to_text(),
            "missed",
            found.missed,
            "bytes",
            bytes_per_s(load, found) / 1e6,
            Pressure::now(None).to_text()
        ),
    });
    Ok(())
}

fn bytes_per_s(load: &Load, found: &Found) -> f64 {
    per_s(found) * load.plan.size_bytes as f64
}

/// The rate of messages that were kept or read.
fn per_s(found: &Found) -> f64 {
    let count = match &found.outcome.measured {
        Measured::Latency { chunks, .. } => *chunks,
        Measured::Throughput { deliveries, .. } => *deliveries,
    };
    count as f64 * 1e9 / found.elapsed_ns.max(1) as f64
}

fn to_json(load: &Load, found: &Found, machine: &str) -> String {
    let plan = &load.plan;
    let mut line = Map::new();
    line.insert("bench".into(), json!("journal"));
    line.insert("impl".into(), json!(plan.implementation));
    line.insert("mode".into(), json!(load.mode));
    line.insert("in_flight".into(), json!(load.in_flight));
    line.insert("size_bytes".into(), json!(plan.size_bytes));
    line.insert("duration_s".into(), json!(plan.duration.as_secs_f64()));
    line.insert("warmup_s".into(), json!(plan.warmup.as_secs_f64()));
    line.insert("seed".into(), json!(plan.seed));
    line.extend(found.outcome.to_json());
    match load.mode {
        "publish" | "live" | "many" => {
            line.insert("deliveries_per_s".into(), json!(per_s(found).round()));
        }
        "first" | "recovery" => {
            line.insert("journal_bytes".into(), json!(load.messages() * plan.size_bytes as u64));
        }
        _ => {
            line.insert("bytes_per_s".into(), json!(bytes_per_s(load, found).round()));
        }
    }
    line.insert("missed_chunks".into(), json!(found.missed));
    line.insert("pressure".into(), Pressure::now(None).to_json());
    line.insert("machine".into(), json!(machine));
    format!("{}\n", Value::Object(line))
}

/// Writes `journal-<impl>-<in flight>x<size>` as `.hgrm` and `.hlog`.
fn write_files(load: &Load, found: &Found, comments: [String; 2]) -> Result<(), Failure> {
    let (Some(directory), "publish") = (&load.plan.out, load.mode) else {
        return Ok(());
    };
    let Measured::Latency { samples_ns, histogram, .. } = &found.outcome.measured else {
        unreachable!("messages have times");
    };
    let Load { plan, in_flight, .. } = load;
    let record = files::Record {
        name: &format!("journal-{}-{in_flight}x{}", plan.implementation, plan.size_bytes),
        comments: &comments,
        samples_ns,
        histogram,
        deliveries_per_s: per_s(found).ceil() as u64,
        start: wall_time() - plan.duration,
    };
    record.write(directory)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(words: &str) -> Result<Option<Load>, Failure> {
        let words = words.split_whitespace().map(OsString::from);
        Load::parse(&["floor", "other"], &MODES, words)
    }

    #[test]
    fn the_size_of_a_journal_is_in_mebibytes_and_options_are_checked() {
        let load = parse("--mode replay --mib 3 --size 1024 --impl other").unwrap().unwrap();
        assert_eq!((load.messages(), load.mode), (3 << 10, "replay"));
        assert_eq!(parse("--mode recovery --size 1024").unwrap().unwrap().messages(), 1 << 20);
        for words in ["--mode never", "--in-flight 65", "--mib 0", "--rate 5", "--impl none"] {
            assert!(matches!(parse(words), Err(Failure::Usage(_))), "{words}");
        }
    }

    #[test]
    fn a_directory_in_memory_is_refused_and_others_are_removed() {
        let load = parse("--dir /dev/shm").unwrap().unwrap();
        match Folder::new(&load) {
            Err(Failure::Environment(text)) => assert!(text.contains("/dev/shm"), "{text}"),
            _ => println!("not run: /dev/shm is on a disk"),
        }
        let load = parse("--smoke").unwrap().unwrap();
        if let Ok(folder) = Folder::new(&load) {
            let path = folder.path().to_path_buf();
            assert!(path.exists());
            drop(folder);
            assert!(!path.exists());
        }
    }
}
