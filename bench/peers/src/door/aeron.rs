//! Aeron over shared memory (`aeron:ipc`): an exclusive publication, a subscription per reader.
//!
//! The media driver is the C one, in a process of its own on the producer's cpu. It sleeps when it
//! is idle, and messages do not pass through it. A message is never cut into fragments. Terms hold
//! as much as the rings of all other implementations. If the window is full, the producer tries
//! again. Nothing here blocks in the kernel, so readers can only poll. The last chunk is recognized
//! by its stamp.

use std::cell::RefCell;
use std::ffi::{CString, OsString};
use std::path::PathBuf;
use std::time::Duration;

use lexopt::ValueExt;
use rusteron_client::{
    Aeron, AeronContext, AeronExclusivePublication, AeronSubscription, Handlers,
};
use rusteron_media_driver::{AeronDriver, AeronDriverContext, bindings};

use super::{is_last, last};
use crate::common::door::carrier::{Carrier, Produce, Read, Run};
use crate::common::door::child::{Child, parent_lines, say};
use crate::common::door::load::{Load, Wait};
use crate::common::drive::Setup;
use crate::common::machine::pin_thread;
use crate::common::params::{number, usage};
use crate::common::receive::Receive;
use crate::common::{BATCH_CHUNKS, Failure};

/// The implementation for `peers door --impl aeron`.
pub struct OverIpc;

const LISTENING: &str = "listening";
const STREAM: i32 = 1;
const PATIENCE: Duration = Duration::from_secs(10);
const IDLE: Duration = Duration::from_millis(1);
/// The longest fragment that Aeron supports.
const FRAGMENT_BYTES: usize = 65_504;
const HEADER_BYTES: usize = 32;

fn lacking(error: &dyn std::fmt::Display) -> Failure {
    Failure::Environment(format!("aeron: {error}"))
}

fn text(error: &dyn std::fmt::Display) -> String {
    format!("aeron: {error}")
}

/// A media driver, and the folder of its files.
pub struct Driver {
    child: Option<std::sync::Mutex<Child>>,
    folder: PathBuf,
}

impl Drop for Driver {
    fn drop(&mut self) {
        self.child = None;
        let _ = std::fs::remove_dir_all(&self.folder); // A remaining folder does no harm.
    }
}

fn channel(load: &Load) -> CString {
    let setup = Setup::new(load.plan.subscribers, load.plan.size_bytes);
    let message_bytes = (setup.size_bytes + HEADER_BYTES).next_multiple_of(HEADER_BYTES);
    let term_bytes = (setup.ring_chunks * message_bytes).next_power_of_two().max(64 << 10);
    let name = format!("aeron:ipc?term-length={term_bytes}|mtu={FRAGMENT_BYTES}");
    CString::new(name).expect("no zero in it")
}

fn client(folder: &str) -> Result<Aeron, String> {
    let context = AeronContext::new().map_err(|error| text(&error))?;
    let folder = CString::new(folder).map_err(|error| text(&error))?;
    context.set_dir(&folder).map_err(|error| text(&error))?;
    let client = Aeron::new(&context).map_err(|error| text(&error))?;
    client.start().map_err(|error| text(&error))?;
    Ok(client)
}

thread_local! {
    /// One client for all readers of a thread.
    static CLIENT: RefCell<Option<Aeron>> = const { RefCell::new(None) };
}

impl Carrier for OverIpc {
    type Host = Driver;
    type Producer = Producer;
    type Reader = Reader;

    fn host(load: &Load) -> Result<Driver, Failure> {
        if load.wait == Wait::Blocked {
            return Err(lacking(&"its readers do not block"));
        }
        let folder = format!("/dev/shm/streamdoor-peers-aeron-{}", std::process::id());
        let mut driver = Driver { child: None, folder: folder.clone().into() };
        let cpu = load.plan.producer_cpu.to_string();
        let words = ["door", "driver", "--dir", &folder, "--cpu", &cpu].map(str::to_owned);
        let mut child = Child::of_this_program("the media driver", &words)?;
        child.hear(LISTENING)?;
        driver.child = Some(child.into());
        Ok(driver)
    }

    fn words(host: &Driver) -> Vec<String> {
        vec![host.folder.to_string_lossy().into_owned()]
    }

    fn producer(load: &Load, words: &[String]) -> Result<(Producer, String), Failure> {
        let folder = words.first().ok_or_else(|| Failure::Usage("--word: a path".into()))?;
        let client = client(folder).map_err(Failure::Environment)?;
        let publication = client.add_exclusive_publication(&channel(load), STREAM, PATIENCE);
        let publication = publication.map_err(|error| lacking(&error))?;
        let size = load.plan.size_bytes;
        Ok((Producer { publication, size, _client: client }, "open".into()))
    }

    fn reader(host: &Driver, load: &Load, _: &Run<'_>) -> Result<Reader, String> {
        CLIENT.with_borrow_mut(|shared| {
            if shared.is_none() {
                *shared = Some(client(&host.folder.to_string_lossy())?);
            }
            let client = shared.as_ref().expect("it was just made");
            let none = (Handlers::NONE, Handlers::NONE);
            let subscription =
                client.add_subscription(&channel(load), STREAM, none.0, none.1, PATIENCE);
            let subscription = subscription.map_err(|error| text(&error))?;
            while !subscription.is_connected() {
                std::thread::sleep(IDLE);
            }
            Ok(Reader { subscription, is_over: false })
        })
    }
}

/// The publisher.
pub struct Producer {
    publication: AeronExclusivePublication,
    size: usize,
    _client: Aeron,
}

impl Produce for Producer {
    #[inline(always)]
    fn publish(&mut self, payload: &[u8], count: u32) -> Result<(), String> {
        for _ in 0..count {
            while let Err(error) = self.publication.offer(payload) {
                if !error.is_retryable() {
                    return Err(text(&error));
                }
            }
        }
        Ok(())
    }

    fn finish(&mut self) -> Result<(), String> {
        self.publish(&last(self.size), 1)
    }
}

/// A subscriber.
pub struct Reader {
    subscription: AeronSubscription,
    is_over: bool,
}

impl Read for Reader {
    #[inline(always)]
    fn poll<R: Receive>(&mut self, receiver: &R) -> Result<Option<u32>, String> {
        if self.is_over {
            return Ok(None);
        }
        let (mut count, mut is_over) = (0, false);
        let polled = self.subscription.poll_fn(
            |payload: &[u8], _| {
                if is_last(payload) {
                    is_over = true;
                } else {
                    receiver.deliver(payload);
                    count += 1;
                }
            },
            BATCH_CHUNKS as usize,
        );
        polled.map_err(|error| text(&error))?;
        self.is_over = is_over;
        Ok((count > 0 || !self.is_over).then_some(count))
    }

    fn wait<R: Receive>(&mut self, _: &R) -> Result<Option<u32>, String> {
        Err("aeron: its readers do not block".into())
    }
}

/// Runs `peers door driver`: the media driver, until the standard input ends.
pub fn drive(arguments: impl IntoIterator<Item = OsString>) -> Result<(), Failure> {
    let (mut folder, mut cpu) = (None, None);
    let mut parser = lexopt::Parser::from_args(arguments);
    while let Some(argument) = parser.next().map_err(usage)? {
        match argument {
            lexopt::Arg::Long("dir") => {
                folder = Some(parser.value().map_err(usage)?.string().map_err(usage)?);
            }
            lexopt::Arg::Long("cpu") => cpu = Some(number(&mut parser, "--cpu", 0, 1_023)?),
            other => return Err(usage(other.unexpected())),
        }
    }
    let folder = folder.ok_or_else(|| Failure::Usage("--dir: a path".into()))?;
    let _lines = parent_lines();
    if let Some(cpu) = cpu {
        pin_thread(cpu)?;
    }
    let context = AeronDriverContext::new().map_err(|error| lacking(&error))?;
    let folder = CString::new(folder).map_err(|error| lacking(&error))?;
    context.set_dir(&folder).map_err(|error| lacking(&error))?;
    context.set_dir_delete_on_start(true).map_err(|error| lacking(&error))?;
    context
        .set_threading_mode(bindings::aeron_threading_mode_enum::AERON_THREADING_MODE_SHARED)
        .map_err(|error| lacking(&error))?;
    let driver = AeronDriver::new(&context).map_err(|error| lacking(&error))?;
    driver.start(true).map_err(|error| lacking(&error))?;
    say(LISTENING);
    loop {
        if driver.main_do_work().map_err(|error| lacking(&error))? == 0 {
            std::thread::sleep(IDLE);
        }
    }
}
