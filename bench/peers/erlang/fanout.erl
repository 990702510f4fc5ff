#!/usr/bin/env escript
%% A streamer and its subscribers in Erlang, for `peers fanout --impl erlang`.
%%
%% escript fanout.erl PLAN RESULT SUBSCRIBERS SIZE TOUCH
%%
%% As people write it: a gen_server, with which processes subscribe, and which sends every chunk to
%% each of them. It plays the tool, too, so that there is no message more: it polls its plan, and
%% after each chunk it yields once, or the subscribers would wait until its time slice is over.
%%
%% The virtual machine has its defaults. It inherits one cpu from the program that starts it, as
%% `taskset` would do it, and on one cpu its default is one scheduler (`+S` is not needed).
%%
%% PLAN is 64 bits, little-endian, for each chunk: the nanoseconds from the beginning of the run.
%% RESULT is of 64-bit numbers, too: deliveries, the sum of all stamps, preemptions, KiB of memory,
%% and the latency of each delivery in nanoseconds, chunk after chunk.
-module(fanout).
-mode(compile).
-behaviour(gen_server).

-export([main/1, init/1, handle_call/3, handle_cast/2, handle_info/2]).

-define(LEAD_NS, 1000000).
-define(WAIT_MS, 5000).
%% Up to here a message carries bytes; what is longer is shared by reference.
-define(HEAP_BYTES_MAX, 64).

-record(streamer, {subscribers = [], collector, plan, rest, origin, seq = 0}).
-record(subscriber, {number, of_all, touch, samples, collector, count = 0, sum = 0}).

main([PlanFile, ResultFile, SubscribersText, SizeText, Touch]) ->
    %% Who fails is said nevertheless, in one line and without the streamer's whole plan.
    ok = logger:set_primary_config(level, none),
    {ok, Plan} = file:read_file(PlanFile),
    Subscribers = list_to_integer(SubscribersText),
    Chunks = byte_size(Plan) div 8,
    %% Not in anybody's heap, where collecting garbage would copy them.
    Samples = atomics:new(Chunks * Subscribers, [{signed, false}]),
    Rest = rand:bytes(list_to_integer(SizeText) - 8),
    Streamer = #streamer{collector = self(), plan = Plan, rest = Rest},
    {ok, Server} = gen_server:start_link(?MODULE, Streamer, []),
    [subscribe(Server, #subscriber{number = Number, of_all = Subscribers,
                                   touch = list_to_atom(Touch), samples = Samples,
                                   collector = self()})
     || Number <- lists:seq(1, Subscribers)],
    Thread = scheduler(),
    Before = preemptions(Thread),
    ok = gen_server:cast(Server, begin_now),
    %% However long the plan is: whoever fails takes this process along.
    receive published -> ok end,
    Received = [receive {received, Count, Sum} -> {Count, Sum}
                after ?WAIT_MS -> error(a_subscriber_has_stopped_reading)
                end || _ <- lists:seq(1, Subscribers)],
    Preemptions = preemptions(Thread) - Before,
    {Counts, Sums} = lists:unzip(Received),
    Latencies = [<<(atomics:get(Samples, Index)):64/little>>
                 || Index <- lists:seq(1, Chunks * Subscribers)],
    ok = file:write_file(ResultFile, [
        <<(lists:sum(Counts)):64/little, (lists:sum(Sums)):64/little,
          Preemptions:64/little, (peak_memory_kib()):64/little>>,
        Latencies]).

%% The streamer.

init(Streamer) ->
    {ok, Streamer}.

handle_call(subscribe, {Pid, _}, #streamer{subscribers = Pids} = Streamer) ->
    {reply, ok, Streamer#streamer{subscribers = Pids ++ [Pid]}}.

handle_cast(begin_now, Streamer) ->
    Origin = erlang:monotonic_time(nanosecond) + ?LEAD_NS,
    {noreply, Streamer#streamer{origin = Origin}, 0}.

%% It has no message: the next chunk.
handle_info(timeout, #streamer{plan = <<Offset:64/little, Plan/binary>>} = Streamer) ->
    #streamer{origin = Origin, seq = Seq, rest = Rest, subscribers = Pids} = Streamer,
    Due = Origin + Offset,
    poll_until(Due),
    Payload = <<Offset:64/little, Rest/binary>>,
    [Pid ! {chunk, Seq, Due, Payload} || Pid <- Pids],
    erlang:yield(),
    {noreply, Streamer#streamer{plan = Plan, seq = Seq + 1}, 0};
handle_info(timeout, #streamer{plan = <<>>} = Streamer) ->
    [Pid ! finished || Pid <- Streamer#streamer.subscribers],
    Streamer#streamer.collector ! published,
    {noreply, Streamer}.

poll_until(Due) ->
    case erlang:monotonic_time(nanosecond) of
        Now when Now >= Due -> ok;
        _ -> poll_until(Due)
    end.

%% A subscriber.

subscribe(Server, #subscriber{collector = Collector} = Subscriber) ->
    Pid = spawn_link(fun() ->
        ok = gen_server:call(Server, subscribe),
        Collector ! {subscribed, self()},
        listen(Subscriber)
    end),
    receive {subscribed, Pid} -> ok end.

listen(#subscriber{count = Count, sum = Sum} = Subscriber) ->
    receive
        {chunk, Seq, Due, Payload} ->
            #subscriber{number = Number, of_all = OfAll, touch = Touch} = Subscriber,
            Own = own(Touch, Payload),
            Latency = erlang:monotonic_time(nanosecond) - Due,
            atomics:put(Subscriber#subscriber.samples, Seq * OfAll + Number, Latency),
            <<Stamp:64/little, _/binary>> = Own,
            listen(Subscriber#subscriber{count = Count + 1, sum = Sum + Stamp});
        finished ->
            Subscriber#subscriber.collector ! {received, Count, Sum}
    end.

%% As for everybody: who is given a reference copies, under `--touch copy`.
own(copy, Payload) when byte_size(Payload) > ?HEAP_BYTES_MAX -> binary:copy(Payload);
own(_, Payload) -> Payload.

%% What the kernel says about this process.

peak_memory_kib() ->
    number_of("VmHWM", "/proc/self/status").

%% The thread that runs all processes: its folder. From release 26 on its name is the second one.
%% The others read files for it: to ask all of them would be some hundred preemptions.
scheduler() ->
    Folders = filelib:wildcard("/proc/self/task/*"),
    [Scheduler] = [Folder || Folder <- Folders, {ok, Name} <- [file:read_file(Folder ++ "/comm")],
                             Name =:= <<"1_scheduler\n">> orelse Name =:= <<"erts_sched_1\n">>],
    Scheduler.

preemptions(Thread) ->
    number_of("nonvoluntary_ctxt_switches", Thread ++ "/status").

number_of(Name, File) ->
    {ok, Text} = file:read_file(File),
    {match, [Digits]} = re:run(Text, "^" ++ Name ++ ":\\s*([0-9]+)",
                               [multiline, {capture, all_but_first, list}]),
    list_to_integer(Digits).
