//! The methods for a shard's owner, on the shard's own thread.

use std::io;
use std::rc::Rc;
use std::sync::Arc;

use serde_json::Value;

use super::delivery::{Chunk, Delivery, Ended, Reported};
use super::outlet::Outlet;
use super::pages::pages_of;
use super::reader::refill::Refill;
use super::run::{Remote, Ring, Seat, ThreadSeat};
use super::{
    AskedFor, Call, ExecuteError, ExecuteOptions, Inbox, Item, KeptItem, MemoryStatus,
    PublishError, Shard, ShardConfig, ShardHandle, ShardThread, Sink, Subscriber, Threads, act,
    execute, feed, growth, handle, journal, memory,
};
use crate::base::{ExecutionId, Guarded, Handle, Instant, ProgressToken, SubscriberId};
use crate::engine::{
    AcknowledgeError, Action, CancelError, Event, NotFound, Reply, Status, SubscribeError,
    SubscribeSpec, Subscribed, SubscriberPlace, SubscriberStatus,
};
use crate::memory::{Pressure, ReaderPage, ReaderSignals, Readings, RingPoolUsage};
use crate::reactor::{AnyReactor, Reactor, Report, Waker};
use crate::stream::{End, Kind, Progress, Totals};
use crate::tool::{Job, Prepared, ToolSpec};
use crate::trace::Code;

/// A subscriber on the shard's own thread that fetches its deliveries with [`Shard::poll`].
///
/// ```
/// use streamdoor::{ExecuteOptions, Shard, ShardConfig, SubscribeSpec};
///
/// let (mut shard, _report) = Shard::new(ShardConfig::default())?;
/// let arguments = serde_json::json!({"chunks": 2, "delay_ms": 1});
/// let id = shard.execute("slow_data_processor", &arguments, ExecuteOptions::default())?;
/// let mut polled = shard.subscribe_polled(id, SubscribeSpec::default())?;
/// while !polled.is_done() {
///     while let Some(delivery) = shard.poll(&mut polled) {
///         println!("{delivery:?}");
///     }
///     if !shard.turn() && !polled.is_done() {
///         shard.park(None);
///     }
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Polled {
    id: SubscriberId,
    execution: Handle,
    inbox: Inbox,
    done: bool,
}

impl Polled {
    /// The id of the subscriber.
    pub fn id(&self) -> SubscriberId {
        self.id
    }

    /// True if the subscriber has been given its end.
    pub fn is_done(&self) -> bool {
        self.done
    }
}

impl<R: Reactor + 'static, O: Outlet<R>> Shard<R, O> {
    /// Asks the engine. Its answer is always its next action.
    pub(crate) fn ask(&mut self, event: Event) -> Reply {
        self.look_at_clock();
        self.pump(); // Earlier actions come first.
        self.ask_at_once(event)
    }

    /// Like [`Shard::ask`], but leaves earlier actions for later.
    pub(crate) fn ask_at_once(&mut self, event: Event) -> Reply {
        self.tell(event);
        let Some(Action::Reply(reply)) = self.engine.next_action() else {
            unreachable!("the reply is the next action");
        };
        if self.observer.is_some() {
            act::let_see(self, &Action::Reply(reply.clone()));
        }
        reply
    }

    /// Updates `now`. The owner may have been away since the last turn, and what begins now must
    /// not count from then.
    pub(crate) fn look_at_clock(&mut self) {
        self.now = self.reactor.now().max(self.now);
    }

    /// Runs a tool by name. Returns the id of the new execution.
    ///
    /// # Errors
    /// [`ExecuteError`]; nothing has happened.
    pub fn execute(
        &mut self,
        tool: &str,
        arguments: &Value,
        options: ExecuteOptions,
    ) -> Result<ExecutionId, ExecuteError> {
        let prepared = self.tools.prepare(tool, arguments);
        let prepared = self.note_start(prepared).map_err(ExecuteError::Start)?;
        self.execute_prepared(prepared, options)
    }

    /// Runs something other than a registered tool: a state machine, a closure, or chunks published
    /// by hand ([`crate::tool::Work::Feed`], with [`Shard::publish`] and [`Shard::finish`]).
    ///
    /// # Errors
    /// [`ExecuteError`]; nothing has happened.
    pub fn execute_prepared(
        &mut self,
        prepared: Prepared,
        options: ExecuteOptions,
    ) -> Result<ExecutionId, ExecuteError> {
        let guest = O::prepare(self, &prepared.work, &options)?;
        self.open_execution(prepared, options, guest)
    }

    /// Like [`Shard::execute_prepared`], with the state that the guests keep with the execution.
    pub(crate) fn open_execution(
        &mut self,
        prepared: Prepared,
        options: ExecuteOptions,
        guest: O::Run,
    ) -> Result<ExecutionId, ExecuteError> {
        execute::open(self, prepared, options, guest)
    }

    /// Attaches a closure that is called with everything the execution publishes, on this thread,
    /// during [`Shard::turn`]. Returns the id of the subscriber.
    ///
    /// # Errors
    /// [`SubscribeError`]; the closure is dropped.
    pub fn subscribe(
        &mut self,
        id: ExecutionId,
        spec: SubscribeSpec,
        closure: impl FnMut(&Delivery<'_>) + 'static,
    ) -> Result<SubscriberId, SubscribeError> {
        let place = SubscriberPlace::Local;
        let spec = SubscribeSpec { place, demand: u32::MAX, reads_disk: true, ..spec };
        let subscribed =
            self.attach(id, spec, |_| Call::Closure(Guarded::new(Box::new(closure))))?;
        self.pump();
        Ok(subscribed.subscriber)
    }

    /// Attaches a subscriber that fetches its deliveries with [`Shard::poll`].
    ///
    /// # Errors
    /// [`SubscribeError`].
    pub fn subscribe_polled(
        &mut self,
        id: ExecutionId,
        spec: SubscribeSpec,
    ) -> Result<Polled, SubscribeError> {
        let place = SubscriberPlace::Local;
        let spec = SubscribeSpec { place, demand: 0, reads_disk: true, ..spec };
        let inbox = Inbox::default();
        let subscribed = self.attach(id, spec, |_| Call::Polled(Rc::clone(&inbox)))?;
        self.pump();
        let Subscribed { subscriber, execution, .. } = subscribed;
        Ok(Polled { id: subscriber, execution, inbox, done: false })
    }

    pub(crate) fn attach(
        &mut self,
        id: ExecutionId,
        spec: SubscribeSpec,
        call: impl FnOnce(&Subscribed) -> Call<O::Key>,
    ) -> Result<Subscribed, SubscribeError> {
        let id = self.place_of(id);
        O::before_subscribe(self, id.slot.index);
        growth::grow_for_reader(self, id, &spec);
        let reply = self.ask(Event::Subscribe(id, spec));
        self.seat(reply, call)
    }

    /// Attaches a subscriber of a guest. No action is executed in between, so nothing is delivered
    /// before the next pump.
    pub(crate) fn attach_at_once(
        &mut self,
        id: ExecutionId,
        spec: SubscribeSpec,
        key: O::Key,
    ) -> Result<Subscribed, SubscribeError> {
        let id = self.place_of(id);
        O::before_subscribe(self, id.slot.index);
        growth::grow_for_reader(self, id, &spec);
        let reply = self.ask_at_once(Event::Subscribe(id, spec));
        self.seat(reply, |_| Call::Guest(key))
    }

    /// Keeps where the deliveries of an accepted subscriber go.
    fn seat(
        &mut self,
        reply: Reply,
        call: impl FnOnce(&Subscribed) -> Call<O::Key>,
    ) -> Result<Subscribed, SubscribeError> {
        let Reply::Subscribed(result) = reply else {
            unreachable!("the reply fits the request");
        };
        let subscribed = result?;
        let call = call(&subscribed);
        self.put_sink(&subscribed, call);
        let index = subscribed.subscriber.0.index;
        self.record(Code::SubscriberAttached, index.into(), subscribed.execution.index.into());
        Ok(subscribed)
    }

    fn put_sink(&mut self, subscribed: &Subscribed, call: Call<O::Key>) {
        let (subscriber, kinds) = (subscribed.subscriber, subscribed.terms.kinds);
        let index = subscriber.0.index as usize;
        if index >= self.sinks.len() {
            self.sinks.resize_with(index + 1, || Sink::NONE); // There is memory for all.
        }
        self.sinks[index] = Sink { subscriber: Some(subscriber), kinds, call };
    }

    /// Lets a reader on another thread read from the disk, if its execution is kept.
    fn open_refill(&mut self, subscribed: &Subscribed) -> Option<Arc<Refill>> {
        let run = act::run_in(&mut self.runs, subscribed.execution);
        if !run.has_history() {
            return None;
        }
        let refill = Arc::new(Refill::new(run.anchor.unwrap_or(self.anchor)));
        self.put_sink(subscribed, Call::Refill(Arc::clone(&refill)));
        Some(refill)
    }

    /// Attaches a subscriber for another thread. `ack_window`, `coalesce` and `replays` of `spec`
    /// are ignored. If the execution is kept, it is given from the disk what the ring no longer
    /// holds, as a subscriber of this thread is.
    ///
    /// # Errors
    /// [`SubscribeError`]; [`SubscribeError::NotYet`] also while the execution waits for a ring.
    /// [`SubscribeError::NotElsewhere`] under [`Deliver::WhenDurable`](crate::stream::Deliver).
    pub fn subscribe_remote(
        &mut self,
        id: ExecutionId,
        spec: SubscribeSpec,
    ) -> Result<Subscriber, SubscribeError> {
        // Nothing is lost between threads, and a reader does not acknowledge its own reads.
        let spec = SubscribeSpec { ack_window: None, coalesce: None, replays: false, ..spec };
        self.subscribe_for_shard(id, spec, None)
    }

    /// Attaches a subscriber for another thread, which sleeps in `reactor` if that is `Some`.
    pub(crate) fn subscribe_for_shard(
        &mut self,
        id: ExecutionId,
        spec: SubscribeSpec,
        reactor: Option<Waker>,
    ) -> Result<Subscriber, SubscribeError> {
        let id = self.place_of(id);
        let run = self.runs.get(id.slot.index as usize).and_then(Option::as_ref);
        if run.is_some_and(|run| run.handle == id.slot && journal::shows_only_durable(run)) {
            return Err(SubscribeError::NotElsewhere); // It would look into the ring by itself.
        }
        self.subscribe_elsewhere(id, spec, reactor)
    }

    /// Lets the thread of the tool wake this subscriber by itself, if it sleeps in this reactor.
    /// Only the first one of an execution can have that.
    #[allow(dead_code, reason = "only guests with a log use it")]
    pub(crate) fn wake_promptly(&mut self, subscriber: &Subscriber, reactor: Waker) {
        let run = self.run_of(subscriber.execution());
        if let Some(pages) = run.and_then(|run| run.pages.as_deref()) {
            pages.prompt.set(reactor, subscriber.signals());
        }
    }

    /// Like [`Shard::subscribe_for_shard`], for a reader that may see chunks which are not durable
    /// yet.
    pub(crate) fn subscribe_elsewhere(
        &mut self,
        id: ExecutionId,
        spec: SubscribeSpec,
        reactor: Option<Waker>,
    ) -> Result<Subscriber, SubscribeError> {
        let id = self.place_of(id);
        O::before_subscribe(self, id.slot.index);
        let spec = SubscribeSpec { place: SubscriberPlace::Remote, reads_disk: true, ..spec };
        growth::grow_for_reader(self, id, &spec);
        let Reply::Subscribed(result) = self.ask(Event::Subscribe(id, spec)) else {
            unreachable!("the reply fits the request");
        };
        let subscribed = result?;
        let refill = self.open_refill(&subscribed);
        let (signals, now) = (Arc::clone(&self.signals), self.now);
        let is_watched = self.watched.contains(&subscribed.execution.index);
        let run = act::run_in(&mut self.runs, subscribed.execution);
        let reader = run.reader().or_else(|| journal::forgotten_ring(run, &self.engine));
        let Some(reader) = reader else {
            // The execution waits for a ring, and the subscriber has nothing to read from yet.
            act::take_sink(self, subscribed.subscriber);
            self.tell(Event::ReaderGone(subscribed.subscriber));
            self.pump();
            return Err(SubscribeError::NotYet { next_seq: 1 });
        };
        let (page, view) = ReaderPage::new(subscribed.cursor.next_seq);
        let reader_signals = Arc::new(ReaderSignals::new());
        let (subscriber, theirs) = (subscribed.subscriber, Arc::clone(&reader_signals));
        let way = refill.clone();
        let seat = ThreadSeat { page: view, reader_signals: theirs, reactor, refill: way };
        let seat = Seat::Thread(seat);
        run.remotes.push(Remote { subscriber, seat });
        let (id, anchor) = (run.id, run.ring_clocks().unwrap_or(self.anchor));
        let pages = pages_of(run, &self.engine, is_watched);
        let shared = super::reader::link::LinkParts {
            id,
            reader,
            control: pages.control.view(),
            page,
            anchor,
        };
        let link = super::reader::link::ThreadLink {
            shared,
            reader_signals,
            signals,
            exchange: Arc::clone(&pages.exchange),
            refill,
        };
        self.pump();
        Ok(Subscriber::of_link(link, &subscribed, spec.ack_window, now))
    }

    /// Returns the next delivery of a polled subscriber. `None` if it has none at this moment, or
    /// after its end.
    pub fn poll(&mut self, polled: &mut Polled) -> Option<Delivery<'_>> {
        if polled.done {
            return None;
        }
        if polled.inbox.borrow().is_empty() {
            self.tell(Event::Demand(polled.id, 1));
            self.pump();
            if polled.inbox.borrow().is_empty() {
                self.tell(Event::Demand(polled.id, 0));
                self.pump();
                return None;
            }
        }
        let item = polled.inbox.borrow_mut().pop_front().expect("the inbox is not empty");
        match item {
            Item::Gap(gap) => Some(Delivery::Gap(gap)),
            Item::Progress(progress, texts) => {
                self.last_texts = texts;
                let [message, context] = self.last_texts.each_ref().map(Option::as_deref);
                Some(Delivery::Progress(Reported { progress, message, context }))
            }
            Item::End(end, error) => {
                polled.done = true;
                self.last_error = error;
                Some(Delivery::End(Ended { end, error: self.last_error.as_deref() }))
            }
            Item::Chunk { seq } => self.poll_chunk(polled, seq),
            Item::Kept(item) => {
                let KeptItem { id, chunks_expected, descriptor, anchor, bytes } = *item;
                self.last_kept = bytes;
                let chunk = Chunk::new(id, chunks_expected, &descriptor, &self.last_kept, anchor);
                chunk.map(Delivery::Chunk)
            }
        }
    }

    fn poll_chunk(&mut self, polled: &Polled, seq: u64) -> Option<Delivery<'_>> {
        let asked_for = self.asked_for.take().expect("it was delivered in this poll");
        let AskedFor { execution, id, chunks_expected, descriptor, clocks, is_copied } = asked_for;
        assert!((execution, descriptor.seq) == (polled.execution, seq));
        let run = self.runs[execution.index as usize].as_ref();
        let data = match run.map(|run| &run.ring) {
            _ if is_copied => &self.asked_for_bytes[..descriptor.length as usize],
            Some(Ring::Here(writer) | Ring::Back(writer)) => writer.payload(seq),
            _ => unreachable!("a chunk is copied before its ring leaves this thread"),
        };
        let clocks = clocks.unwrap_or(self.anchor);
        self.counters.chunks_delivered += 1;
        self.counters.bytes_delivered += u64::from(descriptor.length);
        Chunk::new(id, chunks_expected, &descriptor, data, clocks).map(Delivery::Chunk)
    }

    /// Reports that the connection of a `block` subscriber broke. The subscriber keeps its place
    /// for a while. Any other subscriber is detached.
    #[doc(hidden)]
    pub fn lose(&mut self, subscriber: SubscriberId) {
        self.look_at_clock();
        self.tell(Event::Lost(subscriber));
        self.pump();
    }

    /// Puts a lost subscriber back where it was.
    ///
    /// # Errors
    /// [`NotFound`] if it has lost its place.
    #[doc(hidden)]
    pub fn reattach(&mut self, subscriber: SubscriberId) -> Result<(), NotFound> {
        let Reply::Reattached(result) = self.ask(Event::Reattach(subscriber)) else {
            unreachable!("the reply fits the request");
        };
        self.pump();
        result.map(|_| ())
    }

    /// Ends a subscription. The subscriber is not told. Returns the totals of what it was given and
    /// what it missed.
    ///
    /// # Errors
    /// [`NotFound`] if the subscription has ended already.
    pub fn unsubscribe(&mut self, subscriber: SubscriberId) -> Result<End, NotFound> {
        let Reply::Unsubscribed(result) = self.ask(Event::Unsubscribe(subscriber)) else {
            unreachable!("the reply fits the request");
        };
        self.pump();
        result
    }

    /// Stops an execution. Its subscribers are given the end once it has stopped. If it is one of
    /// another node, that node stops it.
    ///
    /// # Errors
    /// [`CancelError`].
    pub fn cancel(&mut self, id: ExecutionId) -> Result<(), CancelError> {
        if self.run_of(id).is_some_and(|run| run.is_replica && !run.has_verdict) {
            O::cancel_elsewhere(self, id);
            return Ok(());
        }
        let Reply::Cancelled(result) = self.ask(Event::Cancel(self.place_of(id))) else {
            unreachable!("the reply fits the request");
        };
        self.pump();
        result
    }

    /// Reports that a subscriber with acknowledgements has processed everything through `seq`.
    ///
    /// # Errors
    /// [`AcknowledgeError`].
    pub fn acknowledge(
        &mut self,
        subscriber: SubscriberId,
        seq: u64,
    ) -> Result<(), AcknowledgeError> {
        let Reply::Acknowledged(result) = self.ask(Event::Acknowledge(subscriber, seq)) else {
            unreachable!("the reply fits the request");
        };
        if result.is_ok()
            && let Some(execution) = self.engine.followed_by_remote(subscriber)
            && let Some(run) = &self.runs[execution.index as usize]
        {
            run.pass_acknowledgement(subscriber, seq);
        }
        self.pump();
        result
    }

    /// Returns the status of an execution.
    ///
    /// # Errors
    /// [`NotFound`].
    pub fn inspect(&mut self, id: ExecutionId) -> Result<Status, NotFound> {
        let place = self.place_of(id);
        O::before_inspect(self, place.slot.index);
        let Reply::Inspected(result) = self.ask(Event::Inspect(place)) else {
            unreachable!("the reply fits the request");
        };
        self.pump();
        result.map(|status| Status { id, ..*status })
    }

    /// Returns the status of each subscriber of an execution.
    ///
    /// # Errors
    /// [`NotFound`].
    pub fn subscribers(&mut self, id: ExecutionId) -> Result<Vec<SubscriberStatus>, NotFound> {
        let id = self.place_of(id);
        let mut all = self.engine.subscribers(id)?;
        if all.iter().any(|status| status.place == SubscriberPlace::Remote) {
            // Readers on other threads may have moved, even beyond the chunks that the engine was
            // told of.
            self.ingest(id.slot.index);
            self.sample_readers(id.slot.index);
            self.pump();
            O::before_inspect(self, id.slot.index);
            all = self.engine.subscribers(id)?;
            self.add_missed(id, &mut all);
        }
        Ok(all)
    }

    /// Fills in what readers on other threads report as missed.
    fn add_missed(&self, id: ExecutionId, all: &mut [SubscriberStatus]) {
        let run = self.runs[id.slot.index as usize].as_ref();
        for remote in run.iter().flat_map(|run| &run.remotes) {
            if let Some(status) = all.iter_mut().find(|status| status.id == remote.subscriber) {
                let (chunks, bytes) = remote.missed();
                status.missed = Totals { chunks, bytes };
            }
        }
    }

    /// The tool that an execution runs. `None` if it runs no registered tool, or does not exist.
    pub fn tool_of(&self, id: ExecutionId) -> Option<&Arc<ToolSpec>> {
        self.run_of(id)?.tool.as_ref()
    }

    /// Returns the execution that a progress token belongs to.
    ///
    /// # Errors
    /// [`NotFound`] if the token is unknown or was forgotten.
    pub(crate) fn find_token(&self, token: ProgressToken) -> Result<ExecutionId, NotFound> {
        self.engine.find_token(token).ok_or(NotFound)
    }

    /// The progress tokens of all executions that have not ended, with the latest progress of each.
    #[doc(hidden)]
    pub fn tokens(&self) -> impl Iterator<Item = (ProgressToken, ExecutionId, Option<Progress>)> {
        self.engine.tokens()
    }

    /// Revokes a progress token. Its execution continues. Otherwise the token is forgotten together
    /// with its execution, at the end of the retention.
    ///
    /// # Errors
    /// [`NotFound`] if the token is unknown.
    #[doc(hidden)]
    pub fn forget_token(&mut self, token: ProgressToken) -> Result<(), NotFound> {
        let found = self.engine.find_token(token);
        let Reply::TokenForgotten(result) = self.ask(Event::ForgetToken(token)) else {
            unreachable!("the reply fits the request");
        };
        if let Some(id) = found {
            self.run_mut(id.slot).names.token = None;
        }
        self.pump();
        result
    }

    /// Shuts the shard down: stops all tools and tells subscribers `detached: shutdown`.
    pub fn shut_down(&mut self) {
        if !self.closing {
            self.pump(); // Executions whose end is pending end by themselves.
            self.closing = true;
            self.look_at_clock();
            journal::leave_open(self);
            self.tell(Event::Shutdown);
            self.pump();
            journal::shut_down(self);
        }
    }

    /// Number of executions that can be found: queued, running and ended ones.
    pub fn execution_count(&self) -> u32 {
        self.engine.execution_count()
    }

    /// The memory that the rings take.
    pub fn ring_usage(&self) -> RingPoolUsage {
        self.rings.usage()
    }

    /// Stops the use of threads for blocking tools. From now on the caller of [`Shard::next_job`]
    /// runs them: a simulator, or an owner with threads of its own.
    #[doc(hidden)]
    pub fn run_jobs_by_hand(&mut self) {
        self.threads = Threads::ByHand;
    }

    /// Returns a blocking tool that has to be run on some thread: call `work`, then `done` with the
    /// output's writer.
    #[doc(hidden)]
    pub fn next_job(&mut self) -> Option<Box<Job>> {
        self.jobs.pop_front().map(Guarded::into_inner)
    }

    /// Calls `observer` with every action of the engine before the action is carried out, and with
    /// the recipients of a delivery. An observer that panics is not called again.
    #[doc(hidden)]
    pub fn observe(&mut self, observer: impl FnMut(&Action, &[SubscriberId]) + 'static) {
        self.observer = Some(Guarded::new(Box::new(observer)));
    }

    /// Publishes a chunk of an execution that is fed by hand, and gives it to the subscribers of
    /// this thread. Returns its number.
    ///
    /// # Errors
    /// [`PublishError`]; nothing was published.
    #[inline]
    pub fn publish(
        &mut self,
        id: ExecutionId,
        kind: Kind,
        payload: &[u8],
    ) -> Result<u64, PublishError> {
        feed::publish(self, id, kind, payload)
    }

    /// Like [`Shard::publish`], at the time `now`, which is stored in the chunk, and with a key
    /// below 64.
    ///
    /// # Errors
    /// [`PublishError`]; nothing was published.
    ///
    /// # Panics
    /// If `key` is 64 or more.
    #[inline]
    pub fn publish_at(
        &mut self,
        id: ExecutionId,
        kind: Kind,
        key: u8,
        payload: &[u8],
        now: Instant,
    ) -> Result<u64, PublishError> {
        feed::publish_at(self, id, kind, key, payload, now)
    }

    /// Publishes several chunks, and only then gives them to the subscribers of this thread, to one
    /// closure after the other. This is less work for each chunk. Returns the number of the last.
    ///
    /// # Errors
    /// The number of chunks that were published, and the reason why the next one was not.
    pub fn publish_batch(
        &mut self,
        id: ExecutionId,
        kind: Kind,
        payloads: &[&[u8]],
        now: Instant,
    ) -> Result<u64, (usize, PublishError)> {
        feed::publish_batch(self, id, kind, payloads, now)
    }

    /// Ends an execution that is fed by hand: as completed with `Ok`, as failed with an error text.
    ///
    /// # Errors
    /// [`NotFound`] if the execution does not exist, has ended, or is not fed by hand.
    pub fn finish(&mut self, id: ExecutionId, result: Result<(), &str>) -> Result<(), NotFound> {
        feed::finish(self, id, result)
    }

    /// Announces the total number of chunks of an execution that is fed by hand.
    ///
    /// # Errors
    /// [`NotFound`], as for [`Shard::finish`].
    pub fn expect_total(&mut self, id: ExecutionId, chunk_count: u64) -> Result<(), NotFound> {
        feed::expect_total(self, id, chunk_count)
    }

    /// Reports the progress of an execution that is fed by hand.
    ///
    /// # Errors
    /// [`NotFound`], as for [`Shard::finish`].
    pub fn report(&mut self, id: ExecutionId, report: crate::tool::Report) -> Result<(), NotFound> {
        feed::report(self, id, report)
    }

    /// Returns the memory pressure and the memory that the rings take.
    pub fn memory(&self) -> MemoryStatus {
        memory::memory(self)
    }

    /// Takes one sample of the kernel's readings, for a shard without a watch. The pressure rises
    /// at once, and falls after `PRESSURE_CALM_SAMPLES` better samples. Returns the pressure.
    ///
    /// ```
    /// use streamdoor::readings::{Pressure, Readings};
    /// use streamdoor::{Shard, ShardConfig, options::MemoryWatch};
    ///
    /// let config = ShardConfig { memory: MemoryWatch::ByHand, ..Default::default() };
    /// let (mut shard, _report) = Shard::new(config)?;
    /// let readings = Readings { memory_some_avg10: Some(40.0), ..Default::default() };
    /// assert_eq!(shard.set_readings(&readings), Pressure::Critical);
    /// assert_eq!(shard.memory().largest_class_bytes, 64 << 10);
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn set_readings(&mut self, readings: &Readings) -> Pressure {
        memory::set_readings(self, readings)
    }
}

impl Shard<AnyReactor> {
    /// Starts a shard on a thread of its own. `set_up` is called on that thread first, for example
    /// to add tools.
    ///
    /// # Errors
    /// The kernel's error, for the thread or for the shard; or the panic of `set_up`.
    ///
    /// ```
    /// use serde_json::json;
    /// use streamdoor::{Delivery, Shard, ShardConfig, SubscribeSpec};
    ///
    /// let (shard, _report) = Shard::spawn(ShardConfig::default(), |_| {})?;
    /// let arguments = json!({"chunks": 3, "delay_ms": 1});
    /// let deadline = std::time::Duration::from_secs(5);
    /// let hold = streamdoor::Hold::UntilRead { deadline };
    /// let options = streamdoor::ExecuteOptions { hold, ..Default::default() };
    /// let id = shard.execute("slow_data_processor", arguments, options)?;
    /// let mut subscriber = shard.subscribe(id, SubscribeSpec::default())?;
    /// let mut count = 0;
    /// loop {
    ///     match subscriber.next() {
    ///         Delivery::Chunk(chunk) => count += chunk.data.len(),
    ///         Delivery::End(_) => break,
    ///         Delivery::Gap(_) | Delivery::Progress(_) => {}
    ///     }
    /// }
    /// assert_eq!(count, 300);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn spawn<F>(config: ShardConfig, set_up: F) -> io::Result<(ShardThread, Report)>
    where
        F: FnOnce(&mut Shard) + Send + 'static,
    {
        handle::spawn_and_tell(config, Shard::new, set_up, |_| {})
    }
}

impl<O: Outlet<AnyReactor>> Shard<AnyReactor, O> {
    /// Returns a handle for other threads. [`Shard::turn`] carries out its requests.
    pub fn handle(&self) -> ShardHandle<O> {
        ShardHandle::new(self.mailbox())
    }
}
