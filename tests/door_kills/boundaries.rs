//! Deaths between any two events of publishing, attaching and detaching.

use std::process::Child;

use streamdoor::stream::Outcome;

use crate::role::Role;
use crate::step::{At, Missing, Stepper};
use crate::world::{Received, World};

/// An operation that a role executes step by step, and is killed in the middle of.
struct Scene<'a> {
    name: &'a str,
    /// True for steps of single instructions, false for steps of system calls.
    by_instruction: bool,
    /// True to kill at every instruction, and not only at events.
    everywhere: bool,
}

impl Scene<'_> {
    /// Repeats the scene, each time with a death one event later, until the role finishes alive.
    /// `before` starts the role and makes the state that `after` checks.
    fn play<T>(&self, before: impl Fn() -> (Role, T), mut after: impl FnMut(T, bool)) {
        let mut event_count = 0;
        loop {
            let (mut role, stage) = before();
            let is_end = match self.run_to(&mut role, event_count) {
                Ok(is_end) => is_end,
                Err(missing) => {
                    println!("not run: {missing}");
                    return;
                }
            };
            role.kill();
            after(stage, is_end);
            if is_end {
                break;
            }
            event_count += 1;
        }
        println!("{}: killed at {event_count} boundaries", self.name);
        assert!(event_count > 3, "{}: nothing happened", self.name);
    }

    /// Steps the role to event number `event`, and kills it. Returns true if the scene ended before
    /// that event.
    fn run_to(&self, role: &mut Role, event: u64) -> Result<bool, Missing> {
        let thread = role.hear("thread ").parse().unwrap();
        let process = Child::id(&role.child);
        let mut stepper = Stepper::take(process, thread, || role.go_on())?;
        let (mut seen, mut is_end) = (0, false);
        while seen < event && !is_end {
            let at = if self.by_instruction { stepper.step() } else { stepper.call() };
            match at {
                At::End => is_end = true,
                At::Event => seen += 1,
                At::Nothing => seen += u64::from(self.everywhere),
            }
        }
        role.child.kill().unwrap();
        stepper.bury();
        Ok(is_end)
    }
}

/// Kills a producer that has published `before` chunks, while two readers read them all.
fn publishing(name: &str, before: u64) {
    let world = World::new();
    let everywhere = std::env::var_os("STREAMDOOR_KILL_EVERYWHERE").is_some();
    let scene = Scene { name, by_instruction: true, everywhere };
    let mut seen_counts = [0u32; 2];
    scene.play(
        || {
            let mut role = Role::play("publishes", &world.path(), &before.to_string());
            let execution = role.hear("execution ");
            let mut readers = [world.read(&execution), world.read(&execution)];
            // Under `block` a small ring only takes them all if they are read.
            let mut heard = [Received::default(), Received::default()];
            for (reader, heard) in readers.iter_mut().zip(&mut heard) {
                while heard.chunk_count < before.min(5) {
                    heard.take(&reader.next().unwrap().unwrap());
                }
            }
            while heard.iter().any(|heard| heard.chunk_count < before) {
                for (reader, heard) in readers.iter_mut().zip(&mut heard) {
                    if let Some(delivery) = reader.poll().unwrap() {
                        heard.take(&delivery);
                    }
                }
            }
            (role, (readers, heard))
        },
        |(mut readers, mut heard), is_end| {
            for (reader, heard) in readers.iter_mut().zip(&mut heard) {
                heard.rest(reader);
                assert_eq!(heard.outcome(), Some(Outcome::Failed));
            }
            let published = heard[0].chunk_count - before;
            assert_eq!(heard[1].chunk_count - before, published);
            assert!(published <= 1 && (published == 1 || !is_end));
            seen_counts[published as usize] += 1;
        },
    );
    // Kills came before the chunk was visible, and after.
    assert!(seen_counts.iter().all(|count| *count > 0), "{seen_counts:?}");
    world.is_sound();
}

#[test]
fn a_producer_dies_between_any_two_steps_of_publishing() {
    publishing("publish", 3);
}

#[test]
fn a_producer_dies_between_any_two_steps_of_taking_an_old_chunks_place() {
    publishing("rotate", 60); // The ring has gone round several times by then.
}

#[test]
fn a_producer_dies_between_any_two_steps_of_its_last_word() {
    let world = World::new();
    let scene = Scene { name: "complete", by_instruction: true, everywhere: false };
    scene.play(
        || {
            let mut role = Role::play("completes", &world.path(), "");
            let execution = role.hear("execution ");
            let reader = world.read(&execution);
            (role, reader)
        },
        |mut reader, is_end| {
            let heard = Received::all(&mut reader);
            assert_eq!(heard.chunk_count, 3);
            let outcome = heard.outcome();
            let is_right =
                outcome == Some(Outcome::Completed) || !is_end && outcome == Some(Outcome::Failed);
            assert!(is_right, "{heard:?}");
        },
    );
    world.is_sound();
}

#[test]
fn a_producer_dies_between_any_two_calls_of_attaching() {
    let world = World::new();
    let scene = Scene { name: "produce", by_instruction: false, everywhere: false };
    scene.play(
        || (Role::play("begins to produce", &world.path(), ""), ()),
        |(), _| world.is_sound(), // Far more died than the 8 doors of the server.
    );
}

/// Kills a reader of an execution under `block`. The producer continues, and another reader
/// receives everything.
fn reading(name: &str, role: &str, by_instruction: bool) {
    let world = World::new();
    let scene = Scene { name, by_instruction, everywhere: false };
    scene.play(
        || {
            let mut writer = world.door().produce("read", &Default::default()).unwrap();
            let execution = writer.execution().to_string();
            let reader = world.read(&execution);
            let mut buffer = [0; crate::world::LENGTH_MAX];
            for seq in 1..=5 {
                let length = crate::world::pattern(seq, &mut buffer);
                writer.send(&buffer[..length]).unwrap();
            }
            (Role::play(role, &world.path(), &execution), (writer, reader))
        },
        |(mut writer, mut reader), _| {
            std::thread::scope(|scope| {
                let reading = scope.spawn(|| Received::all(&mut reader));
                let mut buffer = [0; crate::world::LENGTH_MAX];
                // Many times what the ring holds: a dead reader would block it.
                for seq in 6..=400 {
                    let length = crate::world::pattern(seq, &mut buffer);
                    writer.send(&buffer[..length]).unwrap();
                }
                writer.complete().unwrap();
                let heard = reading.join().unwrap();
                assert_eq!((heard.chunk_count, heard.outcome()), (400, Some(Outcome::Completed)));
            });
        },
    );
    world.is_sound();
}

#[test]
fn a_reader_dies_between_any_two_calls_of_attaching() {
    reading("read", "begins to read", false);
}

#[test]
fn a_reader_dies_between_any_two_steps_of_detaching() {
    reading("detach", "stops reading", true);
}
