//! The handle for other threads, which sends commands to the shard's own thread through a bounded
//! mailbox. The start and the end of a spawned thread are here, too.

use std::sync::Arc;
use std::sync::mpsc::{SyncSender, TrySendError, sync_channel};
use std::thread::JoinHandle;
use std::{fmt, io};

use serde_json::Value;

use super::journal::Recall;
use super::outlet::Outlet;
use super::run::ShardSignals;
use super::{
    ExecuteError, ExecuteOptions, MemoryStatus, Shard, ShardConfig, Subscriber, panics, produce,
};
use crate::base::{ExecutionId, Handle, Panicked, guarded};
use crate::engine::{CancelError, NotFound, Start, Status, SubscribeError, SubscribeSpec};
use crate::limits;
use crate::memory::RingWriter;
use crate::reactor::{AnyReactor, Reactor, Report, thread};
use crate::tool::ToolError;
use crate::trace::Counters;

type Call<R, O> = Box<dyn FnOnce(&mut Shard<R, O>) + Send>;

/// The result of a tool's thread.
pub(crate) struct ToolDone {
    pub handle: Handle,
    pub writer: RingWriter,
    pub result: Result<(), ToolError>,
    pub panicked: bool,
}

/// A command for the shard's thread.
pub(crate) enum Command<R: Reactor + 'static, O: Outlet<R>> {
    /// Runs a caller's own code.
    Call(Call<R, O>),
    /// A message from another shard.
    Message(O::Message),
    /// A tool's thread has finished.
    ToolDone(Box<ToolDone>),
    /// Ends the loop.
    Stop,
}

/// The sending side of a shard's mailbox.
pub struct Mailbox<R: Reactor + 'static, O: Outlet<R>> {
    sender: SyncSender<Command<R, O>>,
    signals: Arc<ShardSignals>,
}

/// A handle to a shard on another thread. Cloning it is cheap.
///
/// ```
/// use streamdoor::{ExecuteOptions, Shard, ShardConfig, ShardHandle};
///
/// let (shard, _report) = Shard::spawn(ShardConfig::default(), |_| {})?;
/// let handle = ShardHandle::clone(&shard);
/// std::thread::spawn(move || {
///     let arguments = serde_json::json!({"chunks": 1, "delay_ms": 1});
///     let id = handle.execute("slow_data_processor", arguments, ExecuteOptions::default());
///     println!("{}", id.expect("the tool exists"));
/// });
/// # Ok::<(), std::io::Error>(())
/// ```
pub struct ShardHandle<O: Outlet<AnyReactor> = ()> {
    mailbox: Mailbox<AnyReactor, O>,
}

/// The thread of a spawned shard. Dropping it stops the shard and waits for its end. It does not
/// wait for closures, which leave at their next look at [`Output`](crate::Output). It dereferences
/// to the [`ShardHandle`].
///
/// ```
/// use streamdoor::{Shard, ShardConfig, ShardThread};
///
/// let (shard, _report) = Shard::spawn(ShardConfig::default(), |_| {})?;
/// let shard: ShardThread = shard;
/// assert_eq!(shard.call(|shard| shard.execution_count())?, 0);
/// drop(shard); // The thread has ended.
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct ShardThread<O: Outlet<AnyReactor> = ()> {
    handle: ShardHandle<O>,
    thread: Option<JoinHandle<()>>,
}

/// The reason why a call returned nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallError {
    /// Wait: the shard's mailbox is full.
    Busy,
    /// Give up: the shard is gone.
    Gone,
    /// Fix the caller: it is on the shard's own thread, and would wait for itself. That thread has
    /// the [`Shard`] itself.
    OwnThread,
    /// Fix the call: it panicked on the shard's thread. Its effects before that remain, and the log
    /// contains the message.
    Panicked,
}

/// The reason why a request through a handle was not carried out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HandleError<E> {
    /// The call returned nothing.
    Call(CallError),
    /// The shard refused the request.
    Refused(E),
}

/// The reason why [`ShardHandle::run`] started nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RunError {
    /// The execution was not started.
    Execute(ExecuteError),
    /// The subscriber was not attached. The execution was cancelled.
    Subscribe(SubscribeError),
}

/// The function that makes a shard on the thread that will run it.
pub(crate) type MakeShard<O> = fn(
    ShardConfig<<O as Outlet<AnyReactor>>::Config>,
) -> io::Result<(Shard<AnyReactor, O>, Report)>;

/// Like [`Shard::spawn`]. Once the shard is gone, `tell` is called on its thread, with the
/// panic if the shard died of one.
pub(crate) fn spawn_and_tell<O, F>(
    config: ShardConfig<O::Config>,
    make: MakeShard<O>,
    set_up: F,
    tell: impl FnOnce(Option<Panicked>) + Send + 'static,
) -> io::Result<(ShardThread<O>, Report)>
where
    O: Outlet<AnyReactor>,
    F: FnOnce(&mut Shard<AnyReactor, O>) + Send + 'static,
    O::Config: Send,
{
    let (sender, receiver) = sync_channel(1);
    let builder = std::thread::Builder::new().name("shard".to_owned());
    let thread = builder.spawn(move || {
        let made = prepare_thread(config.cpu).and_then(|()| make(config));
        let (mut shard, report) = match made {
            Ok(made) => made,
            Err(error) => {
                let _ = sender.send(Err(error));
                return;
            }
        };
        shard.signals.belong_here();
        if let Err(panicked) = guarded(|| set_up(&mut shard)) {
            let text = format!("the set-up of the shard panicked: {panicked}");
            let _ = sender.send(Err(io::Error::other(text)));
            return;
        }
        let _ = sender.send(Ok((shard.handle(), report)));
        let died = guarded(|| shard.run()).err();
        if let Some(panicked) = &died {
            let _ = guarded(|| panics::perish(&mut shard, panicked));
        }
        let _ = guarded(|| drop(shard));
        tell(died);
    })?;
    let gone = || io::Error::other("the shard's thread ended during its set-up");
    let (handle, report) = receiver.recv().map_err(|_| gone())??;
    Ok((ShardThread { handle, thread: Some(thread) }, report))
}

fn prepare_thread(cpu: Option<usize>) -> io::Result<()> {
    thread::tighten_timers();
    match cpu {
        Some(cpu) => thread::pin(cpu).map_err(io::Error::other),
        None => Ok(()),
    }
}

impl<R: Reactor + 'static, O: Outlet<R>> Mailbox<R, O> {
    pub(super) fn new(
        sender: SyncSender<Command<R, O>>,
        signals: Arc<ShardSignals>,
    ) -> Mailbox<R, O> {
        Mailbox { sender, signals }
    }

    /// Sends a command and wakes the shard; returns the command on failure.
    pub(crate) fn send(&self, command: Command<R, O>) -> Result<(), (CallError, Command<R, O>)> {
        self.put(command)?;
        self.signals.waker.wake();
        Ok(())
    }

    /// Sends a command without waking the shard; the caller has to wake it. Returns the command on
    /// failure.
    pub(crate) fn put(&self, command: Command<R, O>) -> Result<(), (CallError, Command<R, O>)> {
        self.sender.try_send(command).map_err(|error| match error {
            TrySendError::Full(command) => (CallError::Busy, command),
            TrySendError::Disconnected(command) => (CallError::Gone, command),
        })
    }

    /// The waker of the shard.
    pub(crate) fn waker(&self) -> &crate::reactor::Waker {
        &self.signals.waker
    }
}

/// Carries out a command.
pub(super) fn obey<R: Reactor + 'static, O: Outlet<R>>(
    shard: &mut Shard<R, O>,
    command: Command<R, O>,
) {
    match command {
        Command::Call(call) => call(shard),
        Command::Message(message) => O::on_message(shard, message),
        Command::ToolDone(tool_done) => produce::tool_done(shard, *tool_done),
        Command::Stop => shard.stopped = true,
    }
    shard.pump();
}

impl<O: Outlet<AnyReactor>> Clone for ShardHandle<O> {
    fn clone(&self) -> ShardHandle<O> {
        ShardHandle { mailbox: self.mailbox.clone() }
    }
}

impl<R: Reactor + 'static, O: Outlet<R>> Clone for Mailbox<R, O> {
    fn clone(&self) -> Mailbox<R, O> {
        Mailbox { sender: self.sender.clone(), signals: Arc::clone(&self.signals) }
    }
}

impl<O: Outlet<AnyReactor>> ShardHandle<O> {
    pub(super) fn new(mailbox: Mailbox<AnyReactor, O>) -> ShardHandle<O> {
        ShardHandle { mailbox }
    }

    pub(crate) fn to_mailbox(&self) -> Mailbox<AnyReactor, O> {
        self.mailbox.clone()
    }

    /// Sends a message to the guests of the shard. Returns it if the mailbox is full.
    ///
    /// # Errors
    /// [`CallError`], and the message.
    #[allow(dead_code, reason = "only the thread of a node uses it")]
    pub(crate) fn tell(&self, message: O::Message) -> Result<(), (CallError, O::Message)> {
        self.mailbox.send(Command::Message(message)).map_err(|(error, command)| match command {
            Command::Message(message) => (error, message),
            _ => unreachable!("the refused command comes back"),
        })
    }

    /// Runs `call` on the shard's thread and returns its result. Blocks until then. `call` should
    /// take a few µs, because all other work of that thread waits for it.
    ///
    /// # Errors
    /// [`CallError`]. `call` has begun to run only if it panicked itself: [`CallError::Panicked`],
    /// or [`CallError::Gone`] if its panic ended the shard.
    pub fn call<T, F>(&self, call: F) -> Result<T, CallError>
    where
        T: Send + 'static,
        F: FnOnce(&mut Shard<AnyReactor, O>) -> T + Send + 'static,
    {
        if self.mailbox.signals.is_own_thread() {
            return Err(CallError::OwnThread);
        }
        let (sender, receiver) = sync_channel(1);
        let command = Command::Call(Box::new(move |shard: &mut Shard<AnyReactor, O>| {
            let called = panics::call_guarded(shard, call).map_err(|_| CallError::Panicked);
            // If the caller is gone, the result of `call` is dropped here.
            let _ = guarded(|| drop(sender.send(called)));
        }));
        self.mailbox.send(command).map_err(|(error, _)| error)?;
        receiver.recv().map_err(|_| CallError::Gone)?
    }

    /// Runs a tool by name, and attaches its first subscriber before it starts. The subscriber is
    /// given everything: its policy is `block`.
    ///
    /// ```
    /// use serde_json::json;
    /// use streamdoor::{Delivery, Shard, ShardConfig};
    ///
    /// let (shard, _report) = Shard::spawn(ShardConfig::default(), |_| {})?;
    /// let arguments = json!({"chunks": 1_000, "delay_ms": 0});
    /// let mut subscriber = shard.run("slow_data_processor", arguments)?;
    /// let mut chunk_count = 0;
    /// loop {
    ///     match subscriber.next() {
    ///         Delivery::Chunk(_) => chunk_count += 1,
    ///         Delivery::End(_) => break,
    ///         Delivery::Gap(_) | Delivery::Progress(_) => {}
    ///     }
    /// }
    /// assert_eq!(chunk_count, 1_000);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`HandleError`]; nothing runs.
    pub fn run(&self, tool: &str, arguments: Value) -> Result<Subscriber, HandleError<RunError>> {
        let tool = tool.to_owned();
        let start = Start::AfterSubscribers { count: 1, deadline: limits::ATTACH_DEADLINE };
        let options = ExecuteOptions { start, ..Default::default() };
        refused(self.call(move |shard| {
            let id = shard.execute(&tool, &arguments, options).map_err(RunError::Execute)?;
            shard.subscribe_remote(id, SubscribeSpec::default()).map_err(|error| {
                let _ = shard.cancel(id); // It has not started.
                RunError::Subscribe(error)
            })
        }))
    }

    /// Runs a tool by name. Returns the id of the new execution. The first subscriber misses
    /// nothing if it comes within 30 s: `options.hold` keeps the beginning.
    ///
    /// # Errors
    /// [`HandleError`]; nothing has happened.
    pub fn execute(
        &self,
        tool: &str,
        arguments: Value,
        options: ExecuteOptions,
    ) -> Result<ExecutionId, HandleError<ExecuteError>> {
        let tool = tool.to_owned();
        refused(self.call(move |shard| shard.execute(&tool, &arguments, options)))
    }

    /// Attaches a subscriber for the calling thread or any other, as [`Shard::subscribe_remote`]
    /// does.
    ///
    /// # Errors
    /// [`HandleError`]; nothing has happened.
    pub fn subscribe(
        &self,
        id: ExecutionId,
        spec: SubscribeSpec,
    ) -> Result<Subscriber, HandleError<SubscribeError>> {
        refused(self.call(move |shard| shard.subscribe_remote(id, spec)))
    }

    /// Brings back an execution that only the journal remembers, as [`Shard::recall`] does. Then it
    /// can be followed with [`ShardHandle::subscribe`].
    ///
    /// # Errors
    /// [`HandleError`].
    pub fn recall(&self, id: ExecutionId) -> Result<Recall, HandleError<NotFound>> {
        refused(self.call(move |shard| shard.recall(id)))
    }

    /// Stops an execution. Its subscribers are given the end once it has stopped.
    ///
    /// # Errors
    /// [`HandleError`].
    pub fn cancel(&self, id: ExecutionId) -> Result<(), HandleError<CancelError>> {
        refused(self.call(move |shard| shard.cancel(id)))
    }

    /// Returns the status of an execution.
    ///
    /// # Errors
    /// [`HandleError`].
    pub fn inspect(&self, id: ExecutionId) -> Result<Status, HandleError<NotFound>> {
        refused(self.call(move |shard| shard.inspect(id)))
    }

    /// Returns the memory pressure and the memory that the rings take.
    ///
    /// # Errors
    /// [`CallError`].
    pub fn memory(&self) -> Result<MemoryStatus, CallError> {
        self.call(|shard| shard.memory())
    }

    /// Returns the counters of everything that has happened so far.
    ///
    /// # Errors
    /// [`CallError`].
    pub fn counters(&self) -> Result<Counters, CallError> {
        self.call(|shard| shard.counters())
    }
}

fn refused<T, E>(result: Result<Result<T, E>, CallError>) -> Result<T, HandleError<E>> {
    result.map_err(HandleError::Call)?.map_err(HandleError::Refused)
}

impl<O: Outlet<AnyReactor>> std::ops::Deref for ShardThread<O> {
    type Target = ShardHandle<O>;
    fn deref(&self) -> &ShardHandle<O> {
        &self.handle
    }
}

impl<O: Outlet<AnyReactor>> Drop for ShardThread<O> {
    fn drop(&mut self) {
        // Blocks while the mailbox is full; an error means that the shard is gone already.
        let Mailbox { sender, signals } = &self.handle.mailbox;
        if sender.send(Command::Stop).is_ok() {
            signals.waker.wake();
        }
        if let Some(thread) = self.thread.take()
            && !signals.is_own_thread()
        {
            let _ = thread.join(); // Panics are caught on that thread.
        }
    }
}

impl<O: Outlet<AnyReactor>> fmt::Debug for ShardHandle<O> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("ShardHandle")
    }
}

impl<O: Outlet<AnyReactor>> fmt::Debug for ShardThread<O> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("ShardThread")
    }
}

impl fmt::Display for CallError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            CallError::Busy => "the shard's mailbox is full",
            CallError::Gone => "the shard is gone",
            CallError::OwnThread => "the caller is on the shard's own thread",
            CallError::Panicked => "the call panicked on the shard's thread",
        })
    }
}

impl std::error::Error for CallError {}

impl fmt::Display for RunError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RunError::Execute(error) => error.fmt(out),
            RunError::Subscribe(error) => error.fmt(out),
        }
    }
}

impl std::error::Error for RunError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            RunError::Execute(error) => Some(error),
            RunError::Subscribe(error) => Some(error),
        }
    }
}

impl<E: fmt::Display> fmt::Display for HandleError<E> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            HandleError::Call(error) => error.fmt(out),
            HandleError::Refused(error) => error.fmt(out),
        }
    }
}

impl<E: std::error::Error + 'static> std::error::Error for HandleError<E> {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            HandleError::Call(error) => Some(error),
            HandleError::Refused(error) => Some(error),
        }
    }
}
