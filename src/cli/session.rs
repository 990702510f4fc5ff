//! One execution on a shard of its own, and its subscribers, each on a thread.

use std::io;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use serde_json::Value;
use streamdoor::base::{ExecutionId, Instant};
use streamdoor::engine::{Start, SubscribeError, SubscribeSpec};
use streamdoor::reactor::{AnyReactor, Choice, Clock, Idle, OpenError, Report, Watch};
use streamdoor::shard::{
    CallError, Delivery, ExecuteError, ExecuteOptions, HandleError, Names, Outlet, Shard,
    ShardConfig, ShardHandle, ShardThread, Subscriber,
};
use streamdoor::stream::End;
use streamdoor::tool::{CommandPolicy, Prepared, ToolSpec, Tools};
use streamdoor::trace::Histogram;

use super::CliError;
use super::hints::unknown_name;
use super::results::{Checksum, Results};

/// Time that the tool waits for its subscribers, which attach at once.
const ATTACH_DEADLINE: Duration = Duration::from_secs(30);
/// Time before a request is repeated if the mailbox of the shard is full.
const MAILBOX_RETRY: Duration = Duration::from_millis(1);

/// Returns the tools that can be run from the command line.
pub fn tools(allow_commands: bool) -> Tools {
    let mut tools = Tools::built_in();
    if allow_commands {
        tools.allow_commands(CommandPolicy::Any);
    }
    tools
}

/// Returns the description of a tool. The error lists the known tools, the nearest one first.
pub fn spec<'a>(tools: &'a Tools, name: &str) -> Result<&'a Arc<ToolSpec>, CliError> {
    tools.spec(name).ok_or_else(|| {
        let known: Vec<&str> = tools.specs().map(|spec| spec.name.as_str()).collect();
        let problem = format!("unknown tool `{name}`");
        let text = unknown_name(&problem, name, &known, "tools are");
        let hint = match name {
            "run_command" => "; add --allow-commands to offer it",
            _ => "",
        };
        CliError::Call(text + hint)
    })
}

/// Checks the arguments of one run of a tool.
pub fn prepare(tools: &Tools, tool: &str, arguments: &Value) -> Result<Prepared, CliError> {
    tools
        .prepare(tool, arguments)
        .map_err(|error| CliError::Call(format!("{tool}: {error} (see `streamdoor tools {tool}`)")))
}

/// The behaviour of a subscriber.
pub trait DeliveryHandler: Send {
    /// Called once it is attached, before its thread starts and before the first delivery.
    fn attached(&mut self, _subscriber: &Subscriber) {}
    /// Takes a delivery that was received at time `now`.
    fn take(&mut self, delivery: &Delivery<'_>, now: Instant);
    /// Called when no delivery is ready.
    fn pause(&mut self) {}
    /// Called after the end was taken. Returns the error of the watcher's own output, if any.
    fn close(&mut self) -> io::Result<()> {
        Ok(())
    }
    /// Returns the text beside its number in the table. The command chooses it.
    fn label(&self, end: &End) -> String;
}

/// An execution that waits for its subscribers.
pub struct LocalSession {
    shard: ShardThread,
    id: ExecutionId,
    report: Report,
}

impl LocalSession {
    /// Starts a shard, and on it an execution that begins once `subscribers` are attached.
    pub fn open(
        (reactor, idle): (Choice, Idle),
        prepared: Prepared,
        subscribers: usize,
        options: ExecuteOptions,
    ) -> Result<LocalSession, CliError> {
        let config = ShardConfig { reactor, idle, ..Default::default() };
        let (shard, report) = Shard::spawn(config, |_| {}).map_err(|error| {
            let lacks = error.get_ref().is_some_and(|inner| inner.is::<OpenError>());
            let text = format!("the shard did not start: {error}");
            if lacks { CliError::Environment(text) } else { CliError::Failed(text) }
        })?;
        let options = ExecuteOptions {
            start: Start::AfterSubscribers { count: subscribers as u32, deadline: ATTACH_DEADLINE },
            ..options
        };
        let executed = shard.call(move |shard| shard.execute_prepared(prepared, options));
        let id = match executed {
            Ok(Ok(id)) => id,
            Ok(Err(error @ ExecuteError::Open(_))) => {
                return Err(CliError::Failed(error.to_string()));
            }
            Ok(Err(error)) => return Err(CliError::Usage(error.to_string())),
            Err(error) => return Err(CliError::Failed(error.to_string())),
        };
        Ok(LocalSession { shard, id, report })
    }

    /// Returns the id of the execution.
    pub fn id(&self) -> ExecutionId {
        self.id
    }

    /// Returns the names that events use for the execution.
    pub fn names(&self) -> Names {
        let token = self.shard.inspect(self.id).ok().and_then(|status| status.token);
        Names::new(self.id, token)
    }

    /// Returns the report on the kernel interface that was chosen.
    pub fn report(&self) -> &Report {
        &self.report
    }

    /// Returns a text on the memory that rings may take, and the cgroup's limit.
    pub fn memory_budget(&self) -> Result<String, CliError> {
        let memory = self.shard.memory().map_err(|error| CliError::Failed(error.to_string()))?;
        let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
        let limit_bytes = Watch::of_process().readings().cgroup_limit_bytes;
        let limit = limit_bytes.map_or_else(String::new, |bytes| {
            format!(" (the cgroup's limit is {:.2} MiB)", mib(bytes))
        });
        Ok(format!(
            "rings take at most {:.2} MiB{limit}, {:.2} MiB of it allocated; the largest ring has \
             {} KiB; pressure: {}",
            mib(memory.rings_bytes_max),
            mib(memory.usage.committed_bytes),
            memory.largest_class_bytes >> 10,
            memory.pressure
        ))
    }

    /// Returns a handle with which other threads can cancel the execution.
    pub fn canceller(&self) -> Canceller {
        Canceller { shard: ShardHandle::clone(&self.shard), id: self.id }
    }

    /// Attaches a subscriber.
    pub fn subscribe(&self, spec: SubscribeSpec) -> Result<Subscriber, CliError> {
        self.shard.subscribe(self.id, spec).map_err(not_attached)
    }

    /// Follows the execution with one subscriber per watcher until each has reached its end.
    /// Returns their results, and the time that this took.
    pub fn follow(
        self,
        spec: SubscribeSpec,
        watchers: Vec<Box<dyn DeliveryHandler>>,
        with_checksum: bool,
    ) -> Result<(Vec<Results>, Duration), CliError> {
        let began = Clock::now();
        let mut attached = Vec::new();
        for mut watcher in watchers {
            let subscriber = self.subscribe(spec)?;
            watcher.attached(&subscriber);
            attached.push((subscriber, watcher));
        }
        let threads: Vec<JoinHandle<Results>> = attached
            .into_iter()
            .enumerate()
            .map(|(at, (subscriber, watcher))| {
                let reader = SubscriberThread {
                    watcher,
                    latency: Histogram::default(),
                    checksum: Checksum::new(with_checksum),
                };
                let builder = std::thread::Builder::new().name(format!("subscriber-{}", at + 1));
                builder.spawn(move || reader.follow(subscriber)).map_err(|error| {
                    CliError::Failed(format!("no thread can be started for a subscriber: {error}"))
                })
            })
            .collect::<Result<_, _>>()?;
        let died = |_| CliError::Failed("a subscriber died".to_owned());
        let results = threads
            .into_iter()
            .map(|thread| thread.join().map_err(died))
            .collect::<Result<_, _>>()?;
        Ok((results, Clock::now().since(began)))
    }
}

fn not_attached(error: HandleError<SubscribeError>) -> CliError {
    match error {
        HandleError::Refused(SubscribeError::Limit { .. }) => {
            CliError::Usage(format!("--max-chunks: {error}"))
        }
        _ => CliError::Failed(format!("a subscriber was refused: {error}")),
    }
}

/// Cancels an execution.
pub struct Canceller<O: Outlet<AnyReactor> = ()> {
    shard: ShardHandle<O>,
    id: ExecutionId,
}

impl<O: Outlet<AnyReactor>> Clone for Canceller<O> {
    fn clone(&self) -> Canceller<O> {
        Canceller { shard: self.shard.clone(), id: self.id }
    }
}

impl<O: Outlet<AnyReactor>> Canceller<O> {
    /// Returns the canceller of this execution.
    pub fn new(shard: &ShardHandle<O>, id: ExecutionId) -> Canceller<O> {
        Canceller { shard: shard.clone(), id }
    }

    /// Cancels the execution, unless it has ended. Retries while the mailbox of the shard is full.
    pub fn cancel(&self) {
        while self.shard.cancel(self.id) == Err(HandleError::Call(CallError::Busy)) {
            std::thread::sleep(MAILBOX_RETRY);
        }
    }
}

/// The state of a subscriber's thread.
struct SubscriberThread {
    watcher: Box<dyn DeliveryHandler>,
    latency: Histogram,
    checksum: Checksum,
}

impl SubscriberThread {
    /// Takes all deliveries up to the end.
    fn follow(mut self, mut subscriber: Subscriber) -> Results {
        let (end, error) = loop {
            if let Some(delivery) = subscriber.poll() {
                if let Some(last) = self.take(&delivery) {
                    break last;
                }
                continue;
            }
            self.watcher.pause();
            if let Some(last) = self.take(&subscriber.next()) {
                break last;
            }
        };
        let output = self.watcher.close();
        let (label, sha256) = (self.watcher.label(&end), self.checksum.finish());
        Results { label, latency: self.latency, end, error, sha256, output }
    }

    /// Takes one delivery. Returns the end and its error text if this was the end.
    fn take(&mut self, delivery: &Delivery<'_>) -> Option<(End, Option<String>)> {
        let now = Clock::now();
        if let Delivery::Chunk(chunk) = delivery {
            self.latency.record(now.since(chunk.published_at).as_nanos() as u64);
            self.checksum.update(chunk.data);
        }
        self.watcher.take(delivery, now);
        match delivery {
            Delivery::End(ended) => Some((ended.end, ended.error.map(str::to_owned))),
            _ => None,
        }
    }
}
