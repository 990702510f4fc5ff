//! Campaigns against the real program: 4 workers, 8 subscribers, 4 appenders, and a client that
//! opens executions. At some moment the program is killed, or the power of its disk is cut. After
//! the next start, the clients' own records say what has to be there.
//!
//! 50 kills and 200 cuts, or as many as `KILLS` and `SERVER_CUTS` say. `SEED` chooses others.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use streamdoor::base::Random;
use streamdoor::reactor::Clock;

use crate::appender::{Appender, Checked};
use crate::audit::{Audited, check_calls, resume};
use crate::calls::{Calls, open, register, work};
use crate::http::number;
use crate::program::{Server, path};
use crate::rig::{Power, Rig, missing};
use crate::subscriber::{Follow, subscribe};

const WORKERS: usize = 4;
const SUBSCRIBERS: usize = 8;
const APPENDERS: usize = 4;

/// The time of a load.
const LOAD_MS: (u64, u64) = (20, 300);
/// Number of writes and flushes until the power goes, during a load and during a start.
const LOAD_OPERATIONS: u64 = 250;
const START_OPERATIONS: u64 = 60;
/// Maximum time of a flush: other writes reach the disk meanwhile.
const FLUSH_US_MAX: u64 = 2_000;

const DISK_BYTES: u64 = 192 << 20;
/// The most that the journal may have. It never has so much, because the oldest would go then.
const JOURNAL_BYTES: &str = "128MiB";
/// The size of the segments from which on the journal is made anew.
const RENEWED_BYTES: u64 = 24 << 20;

/// The place of the journal, and the way in which it crashes.
enum Place {
    /// An ordinary directory: the program is killed.
    Folder(PathBuf),
    /// A disk that loses its power.
    Disk(Box<Rig>),
}

#[derive(Debug, Default)]
struct Counts {
    checked: Checked,
    audited: Audited,
    answered: u64,
    torn_bytes: u64,
    /// Starts that have found a torn end.
    torn: u64,
    cuts_at_start: u64,
    renewals: u64,
}

struct Campaign {
    program: PathBuf,
    place: Place,
    random: Random,
    durability: &'static str,
    calls: Calls,
    appenders: Vec<Appender>,
    counts: Counts,
}

impl Campaign {
    fn new(program: PathBuf, place: Place, seed: u64) -> Campaign {
        let random = Random::new(seed);
        let mut campaign = Campaign {
            program,
            place,
            random,
            durability: "synced",
            calls: Calls::new(true),
            appenders: Vec::new(),
            counts: Counts::default(),
        };
        campaign.begin_records();
        campaign
    }

    /// Begins with an empty journal.
    fn begin_records(&mut self) {
        let mut random = Random::new(self.random.next_u64());
        let appender = |number| Appender::new(format!("a{number}"), Random::new(random.next_u64()));
        self.appenders = (0..APPENDERS).map(appender).collect();
        // A kill loses nothing of what the kernel has been given.
        self.durability = match self.place {
            Place::Folder(_) if self.random.chance(1, 2) => "written",
            _ => "synced",
        };
        self.calls = Calls::new(self.durability == "synced");
    }

    fn directory(&self) -> PathBuf {
        match &self.place {
            Place::Folder(folder) => folder.join("journal"),
            Place::Disk(rig) => rig.directory(),
        }
    }

    fn power(&mut self, operations: u64) -> Power {
        let cut_at = if operations == 0 { 0 } else { 1 + self.random.below(operations) };
        let sector_bytes = [512, 4_096][self.random.below(2) as usize];
        Power { seed: self.random.next_u64(), sector_bytes, cut_at }
    }

    fn spawn(&mut self) -> Result<Server, String> {
        let reactor = if self.random.chance(1, 3) { "mio" } else { "auto" };
        let arguments = ["--durability", self.durability, "--journal-bytes", JOURNAL_BYTES];
        let others = ["--journal-scrub", "0", "--retention", "1s", "--reactor", reactor];
        let arguments = [&arguments[..], &others].concat();
        Server::start(&self.program, &self.directory(), &arguments)
    }

    /// Starts the program after a crash. The power goes during some starts, too.
    fn start(&mut self) -> Server {
        while matches!(self.place, Place::Disk(_)) {
            let is_cut = self.random.chance(1, 4);
            let power = self.power(if is_cut { START_OPERATIONS } else { 0 });
            let Place::Disk(rig) = &mut self.place else { unreachable!("it is a disk") };
            let begun = rig.begin(power);
            if !is_cut {
                begun.unwrap();
                break;
            }
            // A start that was early enough has ended before the cut.
            let started = begun.and_then(|()| self.spawn());
            let Place::Disk(rig) = &mut self.place else { unreachable!("it is a disk") };
            rig.tell("cut");
            self.counts.cuts_at_start += u64::from(started.is_err());
            drop(started);
            rig.cut();
        }
        let server = self.spawn().unwrap_or_else(|log| panic!("it does not start: {log}"));
        let found = |name: &str| number(&server.found, &format!("\"{name}\":")).expect(name);
        assert_eq!(found("corrupt_stretches"), 0, "{}", server.found);
        self.counts.torn_bytes += found("torn_bytes");
        self.counts.torn += u64::from(found("torn_bytes") > 0);
        server
    }

    /// Loads the program, and lets it crash. Returns the subscribers that were cut off.
    fn load(&mut self, mut server: Server) -> Vec<Follow> {
        let (low, high) = LOAD_MS;
        let time = Duration::from_millis(self.random.between(low, high));
        if let Place::Disk(rig) = &mut self.place {
            rig.tell(&format!("flush-max-us {}", self.random.below(FLUSH_US_MAX)));
            if self.random.chance(2, 3) {
                rig.tell(&format!("cut-in {}", 1 + self.random.below(LOAD_OPERATIONS)));
            }
        }
        let seeds: Vec<u64> = (0..SUBSCRIBERS).map(|_| self.random.next_u64()).collect();
        let opening = Random::new(self.random.next_u64());
        let Campaign { place, calls, appenders, counts, .. } = self;
        let (calls, is_over) = (&*calls, &AtomicBool::new(false));
        let address = &server.address.clone();
        let before: u64 = appenders.iter().map(|appender| appender.answered).sum();
        let follows = std::thread::scope(|scope| {
            if register(address) {
                for number in 0..WORKERS {
                    scope.spawn(move || work(address, &format!("w{number}"), calls, is_over));
                }
                scope.spawn(|| open(address, opening, calls, is_over));
            }
            let subscribers: Vec<_> = seeds
                .into_iter()
                .map(|seed| {
                    scope.spawn(move || subscribe(address, Random::new(seed), calls, is_over))
                })
                .collect();
            for appender in appenders.iter_mut() {
                scope.spawn(|| appender.run(address, is_over));
            }
            std::thread::sleep(time);
            if let Place::Disk(rig) = place {
                rig.tell("cut");
            }
            server.kill();
            is_over.store(true, Ordering::Relaxed);
            let positions = subscribers.into_iter().map(|subscriber| subscriber.join().unwrap());
            positions.flatten().collect()
        });
        let after: u64 = appenders.iter().map(|appender| appender.answered).sum();
        counts.answered += after - before;
        if let Place::Disk(rig) = place {
            rig.cut();
        }
        follows
    }

    /// Compares everything with the records.
    fn check(&mut self, server: &Server, follows: Vec<Follow>) {
        let Campaign { calls, appenders, counts, random, .. } = self;
        let address = &server.address;
        check_calls(address, calls, random.chance(1, 8), &mut counts.audited);
        resume(address, follows, calls, &mut counts.audited);
        for appender in appenders {
            appender.check(address, &mut counts.checked);
        }
    }

    /// Makes the journal anew if it has grown. Returns the server that goes on.
    fn renew(&mut self, server: Server) -> Server {
        if size_of(&self.directory().join("shard-00")) < RENEWED_BYTES {
            return server;
        }
        check_calls(&server.address, &self.calls, true, &mut self.counts.audited);
        drop(server);
        self.counts.renewals += 1;
        match &mut self.place {
            Place::Folder(folder) => std::fs::remove_dir_all(folder.join("journal")).unwrap(),
            Place::Disk(rig) => {
                rig.end();
                rig.format();
            }
        }
        self.begin_records();
        self.start()
    }

    fn run(mut self, what: &str, count: u64, seed: u64) {
        let begun_at = Clock::now();
        let mut server = self.start();
        for number in 0..count {
            println!("{what} {number} of seed {seed}, {}", self.durability);
            let follows = self.load(server);
            server = self.start();
            self.check(&server, follows);
            server = self.renew(server);
        }
        drop(server);
        if let Place::Disk(rig) = &mut self.place {
            rig.cut();
        }
        let seconds = Clock::now().since(begun_at).as_secs();
        println!("{count} {what}s of the server, seed {seed}, {seconds} s: {:?}", self.counts);
        assert!(self.counts.audited.promised > 0 && self.counts.checked.appends > 0);
    }
}

/// Bytes of the files in a directory.
fn size_of(directory: &Path) -> u64 {
    let entries = std::fs::read_dir(directory).unwrap();
    entries.map(|entry| entry.unwrap().metadata().map_or(0, |data| data.len())).sum()
}

/// Number of disks whose power is cut side by side. Most of the time each of them is waited for.
const LANES: u64 = 4;

/// A number that the environment may choose.
fn chosen(name: &str, usual: u64) -> u64 {
    std::env::var(name).map_or(usual, |text| text.parse().unwrap())
}

#[test]
fn a_server_that_is_killed_loses_nothing_that_it_has_answered() {
    let Some(program) = path() else { return };
    let name = format!("streamdoor-server-kills-{}", std::process::id());
    let folder = std::env::temp_dir().join(name);
    let _ = std::fs::remove_dir_all(&folder); // From an earlier process with this number.
    std::fs::create_dir(&folder).unwrap();
    let seed = chosen("SEED", 1);
    Campaign::new(program, Place::Folder(folder.clone()), seed).run(
        "kill",
        chosen("KILLS", 50),
        seed,
    );
    let _ = std::fs::remove_dir_all(&folder); // A remaining folder does no harm.
}

#[test]
fn a_server_whose_power_is_cut_loses_nothing_that_it_has_answered() {
    if let Some(why) = missing() {
        println!("not run: {why}");
        return;
    }
    let Some(program) = path() else { return };
    let (seed, count) = (chosen("SEED", 1), chosen("SERVER_CUTS", 200));
    std::thread::scope(|scope| {
        for lane in 0..LANES {
            let (program, seed) = (program.clone(), seed * LANES + lane);
            let count = (count + lane) / LANES;
            scope.spawn(move || {
                let rig = Box::new(Rig::new(DISK_BYTES));
                Campaign::new(program, Place::Disk(rig), seed).run("cut", count, seed);
            });
        }
    });
}
