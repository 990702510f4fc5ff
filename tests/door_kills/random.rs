//! Many deaths at random moments, and the time until every other party notices.

use std::time::Duration;

use streamdoor::base::Random;
use streamdoor::client::{FollowOptions, StreamEvent};
use streamdoor::door::ProduceOptions;
use streamdoor::endpoint::DeliveryOptions;
use streamdoor::reactor::Clock;
use streamdoor::stream::{EndState, Outcome, Policy};

use crate::role::Role;
use crate::roles::RING_BYTES;
use crate::world::{FAR, LENGTH_MAX, Received, World, pattern};

const KILLS: u32 = 500;
/// The time after which kills end, unless `STREAMDOOR_KILLS` is set.
const TIME_MAX: Duration = Duration::from_secs(60);
const KILLS_MIN: u32 = 10;
/// The time after which all parties sleep.
const RESTING: Duration = Duration::from_millis(2);
const WAIT_US_MAX: u64 = 20_000;

/// The measured times of one kind.
#[derive(Default)]
struct Times(Vec<Duration>);

impl Times {
    fn print(&mut self, what: &str) {
        self.0.sort_unstable();
        let at = |part: f64| {
            let index = ((self.0.len() - 1) as f64 * part).round() as usize;
            self.0[index].as_micros()
        };
        println!(
            "{what}: {} times, p50 {} µs, p90 {} µs, p99 {} µs, max {} µs",
            self.0.len(),
            at(0.5),
            at(0.9),
            at(0.99),
            at(1.0)
        );
    }
}

/// The results of all rounds.
#[derive(Default)]
struct Found {
    to_reader: Times,
    to_stream: Times,
    to_sleeper: Times,
    to_writer: Times,
    chunk_count: u64,
}

#[test]
fn whoever_dies_whenever_nothing_is_lost_or_changed_and_everybody_hears_of_it() {
    let wanted = std::env::var("STREAMDOOR_KILLS").ok();
    let kill_count = wanted.as_ref().map_or(KILLS, |text| text.parse().unwrap());
    let world = World::new();
    let mut random = Random::new(u64::from(std::process::id()));
    let begun = Clock::now();
    world.is_sound();
    let (descriptor_count, mapping_count) = (descriptors(), mappings());
    let mut found = Found::default();
    let mut done = 0;
    while done < kill_count {
        if wanted.is_none() && Clock::now().since(begun) > TIME_MAX {
            assert!(done >= KILLS_MIN, "only {done} kills");
            break;
        }
        match done % 5 {
            0 | 2 => kill_producer(&world, &mut random, &mut found),
            4 => kill_resting_producer(&world, &mut random, &mut found),
            _ => kill_reader(&world, &mut random, &mut found),
        }
        done += 1;
    }
    world.is_sound();
    println!("{done} kills, {} chunks read", found.chunk_count);
    found.to_reader.print("a producer's death, until a reader at the door knows");
    found.to_sleeper.print("a resting producer's death, until a reader that sleeps knows");
    found.to_stream.print("a producer's death, until a subscriber over HTTP knows");
    found.to_writer.print("a block reader's death, until the producer goes on");
    until("all descriptors are given back", || descriptors() <= descriptor_count);
    until("all shared memory is given back", || mappings() <= mapping_count);
}

fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

/// Number of mappings of rings and pages that are shared with other processes, in the server or in
/// a reader of this process.
fn mappings() -> usize {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let kinds = ["door", "control", "reader", "producer"];
    let is_shared = |line: &&str| {
        let name = line.split_once("memfd:streamdoor-").map(|(_, name)| name);
        name.is_some_and(|name| kinds.iter().any(|kind| name.starts_with(kind)))
    };
    maps.lines().filter(is_shared).count()
}

fn until(what: &str, is_so: impl Fn() -> bool) {
    let begun = Clock::now();
    while !is_so() {
        assert!(Clock::now().since(begun) < FAR, "in vain: {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

fn wait(random: &mut Random) {
    std::thread::sleep(Duration::from_micros(random.below(WAIT_US_MAX)));
}

/// Kills a producer that streams to a reader at the door and to one over HTTP.
fn kill_producer(world: &World, random: &mut Random, found: &mut Found) {
    let mut role = Role::play("streams", &world.path(), "");
    let execution = role.hear("execution ");
    let mut reader = world.read(&execution);
    let delivery_options =
        DeliveryOptions { policy: Some(Policy::Block), ..DeliveryOptions::default() };
    let options = FollowOptions { delivery_options, reconnects_max: 0, ..FollowOptions::default() };
    let stream = world.client.follow(execution.parse().unwrap(), options).unwrap();
    std::thread::scope(|scope| {
        let reading = scope.spawn(|| Received::all(&mut reader));
        let following = scope.spawn(|| {
            let (mut count, mut expected) = (0, [0; LENGTH_MAX]);
            for event in stream {
                match event.unwrap() {
                    StreamEvent::Chunk(chunk) => {
                        count += 1;
                        let length = pattern(count, &mut expected);
                        assert!(chunk.seq == count && chunk.data == expected[..length]);
                    }
                    StreamEvent::Gap(gap) => panic!("a gap under `block`: {gap:?}"),
                    StreamEvent::End(ended) => return (count, ended.end.state, Clock::now()),
                    _ => {}
                }
            }
            panic!("a stream without an end");
        });
        wait(random);
        let killed = Clock::now();
        role.kill();
        let heard = reading.join().unwrap();
        let (streamed_count, state, at) = following.join().unwrap();
        assert_eq!(heard.outcome(), Some(Outcome::Failed));
        assert_eq!(state, EndState::Ended(Outcome::Failed));
        assert_eq!(streamed_count, heard.chunk_count);
        found.chunk_count += streamed_count * 2;
        found.to_reader.0.push(heard.at.since(killed));
        found.to_stream.0.push(at.since(killed));
    });
}

/// Kills a producer that has published some chunks and rests, while all others sleep.
fn kill_resting_producer(world: &World, random: &mut Random, found: &mut Found) {
    let mut role = Role::play("rests", &world.path(), "");
    let execution = role.hear("execution ");
    let mut reader = world.read(&execution);
    std::thread::scope(|scope| {
        let reading = scope.spawn(|| Received::all(&mut reader));
        role.go_on();
        role.hear("rests");
        std::thread::sleep(RESTING + Duration::from_micros(random.below(WAIT_US_MAX / 4)));
        let killed = Clock::now();
        role.kill();
        let heard = reading.join().unwrap();
        assert_eq!((heard.chunk_count, heard.outcome()), (5, Some(Outcome::Failed)));
        found.chunk_count += heard.chunk_count;
        found.to_sleeper.0.push(heard.at.since(killed));
    });
}

/// Kills one of two readers at the door, to which a producer streams.
fn kill_reader(world: &World, random: &mut Random, found: &mut Found) {
    let options = ProduceOptions { ring_bytes: Some(RING_BYTES), ..ProduceOptions::default() };
    let mut writer = world.door().produce("read", &options).unwrap();
    let execution = writer.execution().to_string();
    let mut reader = world.read(&execution);
    let mut role = Role::play("reads", &world.path(), &execution);
    std::thread::scope(|scope| {
        let reading = scope.spawn(|| Received::all(&mut reader));
        let mut seq = 0;
        let mut send = || {
            seq += 1;
            let mut buffer = [0; LENGTH_MAX];
            let length = pattern(seq, &mut buffer);
            assert_eq!(writer.send(&buffer[..length]).unwrap(), seq);
        };
        role.hear("reads");
        let kill_at = Clock::now() + Duration::from_micros(random.below(WAIT_US_MAX / 4));
        while Clock::now() < kill_at {
            send();
        }
        let killed = Clock::now();
        role.kill();
        (0..100).for_each(|_| send()); // Far more than the ring holds.
        found.to_writer.0.push(Clock::now().since(killed));
        writer.complete().unwrap();
        let heard = reading.join().unwrap();
        assert_eq!((heard.chunk_count, heard.outcome()), (seq, Some(Outcome::Completed)));
        found.chunk_count += heard.chunk_count;
    });
}
