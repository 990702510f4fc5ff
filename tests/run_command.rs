//! `run_command` through the public interface. The output of a command arrives in order and as it
//! is written, and the end has its exit. No process of it is left after its end or a cancellation.
#![cfg(feature = "tools")]

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use serde_json::{Value, json};
use streamdoor::base::ExecutionId;
use streamdoor::engine::{Hold, SubscribeSpec, Timeouts};
use streamdoor::limits;
use streamdoor::memory::RingPoolConfig;
use streamdoor::reactor::Clock;
use streamdoor::shard::{
    Delivery, ExecuteError, ExecuteOptions, HandleError, Shard, ShardConfig, ShardThread,
    Subscriber,
};
use streamdoor::stream::{EndState, Exit, Kind, Outcome, Policy};
use streamdoor::tool::{CommandPolicy, Environment, INHERITED, StartError};

/// All output and the end of one command.
#[derive(Debug, Default)]
struct Ran {
    /// The output in order; neighbours of one kind are merged.
    pieces: Vec<(Kind, Vec<u8>)>,
    chunk_count: u64,
    state: Option<EndState>,
    error: Option<String>,
    exit: Option<Exit>,
}

impl Ran {
    fn take(&mut self, delivery: &Delivery<'_>) {
        match delivery {
            Delivery::Chunk(chunk) => {
                self.chunk_count += 1;
                match self.pieces.last_mut() {
                    Some((kind, bytes)) if *kind == chunk.kind => bytes.extend(chunk.data),
                    _ => self.pieces.push((chunk.kind, chunk.data.to_vec())),
                }
            }
            Delivery::Gap(gap) => panic!("a `block` subscriber missed {gap:?}"),
            Delivery::Progress(_) => {}
            Delivery::End(ended) => {
                self.state = Some(ended.end.state);
                self.error = ended.error.map(str::to_owned);
                self.exit = ended.end.exit;
            }
        }
    }

    fn texts(&self) -> Vec<(Kind, &str)> {
        let text = |bytes| std::str::from_utf8(bytes).expect("it writes text");
        self.pieces.iter().map(|(kind, bytes)| (*kind, text(bytes))).collect()
    }

    fn text(&self, wanted: Kind) -> String {
        self.texts().iter().filter(|(kind, _)| *kind == wanted).map(|(_, text)| *text).collect()
    }

    fn outcome(&self) -> Outcome {
        match self.state {
            Some(EndState::Ended(outcome)) => outcome,
            other => panic!("{other:?}"),
        }
    }
}

fn shard() -> ShardThread {
    shard_with(CommandPolicy::Any)
}

fn shard_with(policy: CommandPolicy) -> ShardThread {
    // The rings start empty: one test measures the memory of the whole process.
    let rings = RingPoolConfig { prealloc_bytes: 0, ..Default::default() };
    let config = ShardConfig { rings, ..Default::default() };
    Shard::spawn(config, |shard| shard.tools_mut().allow_commands(policy)).unwrap().0
}

fn start(
    shard: &ShardThread,
    arguments: Value,
    timeouts: Option<Timeouts>,
) -> (ExecutionId, Subscriber) {
    let hold = Hold::UntilRead { deadline: Duration::from_secs(60) };
    let options = ExecuteOptions { hold, timeouts, ..Default::default() };
    let id = shard.execute("run_command", arguments, options).unwrap();
    let spec = SubscribeSpec { policy: Policy::Block, ..Default::default() };
    (id, shard.subscribe(id, spec).unwrap())
}

fn run(arguments: Value) -> Ran {
    let shard = shard();
    let (_, mut subscriber) = start(&shard, arguments, None);
    let mut ran = Ran::default();
    while ran.state.is_none() {
        ran.take(&subscriber.next());
    }
    ran
}

/// Returns the arguments that run a shell script.
fn sh(script: &str) -> Value {
    json!({"argv": ["sh", "-c", script]})
}

fn is_alive(pid: u32) -> bool {
    // A zombie has ended; its parent has not waited for it yet.
    fs::read_to_string(format!("/proc/{pid}/stat"))
        .is_ok_and(|stat| stat.rsplit_once(')').is_some_and(|(_, rest)| !rest.starts_with(" Z")))
}

/// Polls until the condition holds, and panics after 30 seconds.
fn wait_until(what: &str, condition: impl Fn() -> bool) {
    for _ in 0..3_000 {
        if condition() {
            return;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    panic!("for 30 s it was not so that {what}");
}

/// Reads until the command has written the numbers of `count` processes, one a line.
fn pids(subscriber: &mut Subscriber, ran: &mut Ran, count: usize) -> Vec<u32> {
    loop {
        ran.take(&subscriber.next());
        assert_eq!(ran.state, None, "{ran:?}");
        let text = ran.text(Kind::Stdout);
        if text.ends_with('\n') && text.lines().count() >= count {
            return text.lines().map(|line| line.parse().unwrap()).collect();
        }
    }
}

#[test]
fn a_builds_output_comes_in_order_and_its_exit_code_is_in_the_end() {
    // The script waits for its reader, because the order of data in two pipes is unknown.
    let script = "exec 3< \"$GO\"
        for step in 1 2 3 4 5; do
            echo compiling $step; read -r go <&3; echo warning $step >&2; read -r go <&3
        done
        echo failed >&2; exit 3";
    let path = std::env::temp_dir().join(format!("streamdoor-command-go-{}", std::process::id()));
    let made = std::process::Command::new("mkfifo").arg(&path).status().unwrap();
    assert!(made.success());
    // Opening the FIFO for reading and writing never blocks.
    let mut go = fs::File::options().read(true).write(true).open(&path).unwrap();
    let shard = shard();
    let arguments = json!({"argv": ["sh", "-c", script], "env": {"GO": path}});
    let (_, mut subscriber) = start(&shard, arguments, None);
    let (mut ran, mut gone_on) = (Ran::default(), 0);
    while ran.state.is_none() {
        ran.take(&subscriber.next());
        let heard: usize = ran.texts().iter().map(|(_, text)| text.lines().count()).sum();
        for _ in gone_on..heard {
            go.write_all(b"\n").unwrap();
        }
        gone_on = heard;
    }
    fs::remove_file(&path).unwrap();
    let mut expected = Vec::new();
    for step in 1..=5 {
        expected.push((Kind::Stdout, format!("compiling {step}\n")));
        expected.push((Kind::Stderr, format!("warning {step}\n")));
    }
    expected.last_mut().unwrap().1.push_str("failed\n");
    let expected: Vec<(Kind, &str)> =
        expected.iter().map(|(kind, text)| (*kind, text.as_str())).collect();
    assert_eq!(ran.texts(), expected);
    assert_eq!(ran.outcome(), Outcome::Failed);
    assert_eq!(ran.exit, Some(Exit::Code(3)));
    assert_eq!(ran.error.as_deref(), Some("exit code 3"));
}

#[test]
fn a_command_that_ends_well_completes() {
    let ran = run(json!({"argv": ["printf", "%s|", "a b", "$HOME", "*", ""]}));
    assert_eq!(ran.texts(), [(Kind::Stdout, "a b|$HOME|*||")]);
    assert_eq!(
        (ran.outcome(), ran.exit, ran.error),
        (Outcome::Completed, Some(Exit::Code(0)), None)
    );
    let ran = run(json!({"argv": ["true"]}));
    assert_eq!((ran.outcome(), ran.chunk_count), (Outcome::Completed, 0));
}

#[test]
fn folder_environment_and_input_are_what_was_asked_for() {
    let folder = std::env::temp_dir().canonicalize().unwrap();
    let ran = run(json!({"argv": ["pwd"], "cwd": folder}));
    assert_eq!(ran.text(Kind::Stdout), format!("{}\n", folder.display()));
    let show = "echo \"$ONE|${PATH:+path}\"; cat";
    let ran = run(json!({"argv": ["sh", "-c", show], "env": {"ONE": "1 ü"}, "stdin": "in\nput"}));
    assert_eq!(ran.text(Kind::Stdout), "1 ü|path\nin\nput");
    let ran = run(json!({"argv": ["env"], "env": {"ONE": "1"}, "clear_env": true}));
    assert_eq!(ran.text(Kind::Stdout), "ONE=1\n");
    let ran = run(json!({"argv": ["cat"]}));
    assert_eq!((ran.chunk_count, ran.outcome()), (0, Outcome::Completed));
}

#[test]
fn what_can_not_be_run_fails_with_the_name_of_the_argument() {
    let path = std::env::temp_dir().join(format!("streamdoor-no-command-{}", std::process::id()));
    let mut file = fs::File::create(&path).unwrap();
    file.write_all(b"echo never\n").unwrap();
    drop(file);
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
    for (arguments, field, problem) in [
        (json!({"argv": ["no-such-command"]}), "`argv` no-such-command", "does not exist"),
        (json!({"argv": ["/no/such/command"]}), "`argv` /no/such", "does not exist"),
        (json!({"argv": [path]}), "`argv` ", "may not be run"),
        (json!({"argv": ["/"]}), "`argv` /", "may not be run"),
        (json!({"argv": ["true"], "cwd": "/no/such"}), "`cwd` /no/such", "No such file"),
        (json!({"argv": ["true"], "cwd": path}), "`cwd` ", "is not a directory"),
    ] {
        let ran = run(arguments);
        let error = ran.error.clone().unwrap();
        assert!(error.starts_with(field) && error.contains(problem), "{error}");
        assert_eq!((ran.outcome(), ran.exit), (Outcome::Failed, None));
    }
    fs::remove_file(path).unwrap();
}

#[test]
fn a_signal_is_told_by_number_and_name() {
    let ran = run(sh("echo before; kill -9 $$; echo after"));
    assert_eq!(ran.text(Kind::Stdout), "before\n");
    assert_eq!((ran.outcome(), ran.exit), (Outcome::Failed, Some(Exit::Signal(9))));
    assert_eq!(ran.error.as_deref(), Some("killed by signal 9 (SIGKILL)"));
}

#[test]
fn a_command_that_closes_its_pipes_early_is_still_waited_for() {
    let ran = run(sh("echo out; exec >&- 2>&-; sleep 0.2; exit 7"));
    assert_eq!(ran.text(Kind::Stdout), "out\n");
    assert_eq!(ran.exit, Some(Exit::Code(7)));
}

#[test]
fn characters_are_not_cut_between_two_chunks() {
    let shard = shard();
    let script =
        "i=0; while [ $i -lt 3000 ]; do printf 'aé€𝄞'; i=$((i+1)); done; printf '\\342\\202'";
    let (_, mut subscriber) = start(&shard, sh(script), None);
    let mut bytes = Vec::new();
    let mut last = Vec::new();
    loop {
        match subscriber.next() {
            Delivery::Chunk(chunk) => {
                assert!(std::str::from_utf8(&last).is_ok());
                bytes.extend_from_slice(chunk.data);
                last = chunk.data.to_vec();
            }
            Delivery::End(_) => break,
            _ => {}
        }
    }
    assert_eq!(last, b"\xe2\x82", "half a character that never became whole comes in the end");
    let text = "aé€𝄞".repeat(3_000);
    assert_eq!(bytes, [text.as_bytes(), b"\xe2\x82"].concat());
}

#[test]
fn a_cancellation_ends_the_whole_group() {
    let shard = shard();
    let script = "sleep 1000 & echo $!; sh -c 'echo $$; sleep 1000 & echo $!; wait' & wait";
    let (id, mut subscriber) = start(&shard, sh(script), None);
    let mut ran = Ran::default();
    let pids = pids(&mut subscriber, &mut ran, 3);
    assert!(pids.iter().all(|&pid| is_alive(pid)), "{pids:?}");
    shard.cancel(id).unwrap();
    while ran.state.is_none() {
        ran.take(&subscriber.next());
    }
    assert_eq!(ran.outcome(), Outcome::Cancelled);
    wait_until("all are gone", || !pids.iter().any(|&pid| is_alive(pid)));
}

#[test]
fn what_ignores_sigterm_is_killed() {
    let shard = shard();
    let script = "trap '' TERM; echo $$; while :; do sleep 1; done";
    let (id, mut subscriber) = start(&shard, sh(script), None);
    let mut ran = Ran::default();
    let pids = pids(&mut subscriber, &mut ran, 1);
    shard.cancel(id).unwrap();
    while ran.state.is_none() {
        ran.take(&subscriber.next());
    }
    assert_eq!(ran.outcome(), Outcome::Cancelled);
    wait_until("it is gone", || !is_alive(pids[0]));
}

#[test]
fn what_cleans_up_on_sigterm_has_the_time_for_it() {
    let shard = shard();
    let path = std::env::temp_dir().join(format!("streamdoor-cleaned-{}", std::process::id()));
    let script =
        "trap 'sleep 0.3; echo done >\"$0\"; exit' TERM; echo $$; while :; do sleep 0.1; done";
    let (id, mut subscriber) = start(&shard, json!({"argv": ["sh", "-c", script, path]}), None);
    let mut ran = Ran::default();
    pids(&mut subscriber, &mut ran, 1);
    shard.cancel(id).unwrap();
    wait_until("it has cleaned up", || {
        fs::read_to_string(&path).is_ok_and(|text| text == "done\n")
    });
    fs::remove_file(path).unwrap();
}

#[test]
fn a_hanging_command_times_out_and_is_gone() {
    let shard = shard();
    let timeouts = Timeouts { inactivity: Some(Duration::from_millis(200)), ..Timeouts::NONE };
    let (_, mut subscriber) = start(&shard, sh("echo $$; exec sleep 1000"), Some(timeouts));
    let mut ran = Ran::default();
    while ran.state.is_none() {
        ran.take(&subscriber.next());
    }
    assert_eq!(ran.outcome(), Outcome::TimedOut);
    let pid = ran.text(Kind::Stdout).trim().parse().unwrap();
    wait_until("it is gone", || !is_alive(pid));
}

#[test]
fn children_that_hold_the_pipes_do_not_hold_the_end() {
    // The child neither ends by itself nor on SIGTERM.
    let ran = run(sh("(trap '' TERM; while :; do sleep 1; done) & echo $!; exit 4"));
    assert_eq!(ran.exit, Some(Exit::Code(4)));
    let pid = ran.text(Kind::Stdout).trim().parse().unwrap();
    wait_until("the child is gone", || !is_alive(pid));
}

#[test]
fn children_that_have_let_go_of_the_pipes_are_killed_with_their_group() {
    let ran = run(sh("sleep 1000 >/dev/null 2>&1 & echo $!"));
    assert_eq!(ran.exit, Some(Exit::Code(0)));
    let pid = ran.text(Kind::Stdout).trim().parse().unwrap();
    wait_until("the child is gone", || !is_alive(pid));
}

/// Returns a script that leaves a process behind, and the file into which that process writes its
/// number. The process shares no pipe with the command, and `how` starts it in a session of its
/// own.
fn leaves_behind(how: &str) -> (String, PathBuf) {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let name =
        format!("streamdoor-left-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
    let path = std::env::temp_dir().join(name);
    let place = path.display();
    let script = format!(
        "{how} sh -c 'echo $$ >{place}.new; mv {place}.new {place}; exec sleep 998' \
         </dev/null >/dev/null 2>&1 & while ! test -e {place}; do sleep 0.01; done"
    );
    (script, path)
}

fn pid_in(path: &PathBuf) -> u32 {
    let text = fs::read_to_string(path).unwrap();
    fs::remove_file(path).unwrap();
    text.trim().parse().unwrap()
}

#[test]
fn what_has_left_its_group_is_gone_when_the_end_is_told() {
    for how in [
        "setsid",
        "setsid env -i PATH=\"$PATH\"",
        // The process's parents have ended, too.
        "setsid sh -c 'setsid \"$@\" &' sh",
        "trap '' TERM HUP; setsid",
    ] {
        let (script, path) = leaves_behind(how);
        for code in [0, 3] {
            let ran = run(sh(&format!("{script}; exit {code}")));
            assert_eq!(ran.exit, Some(Exit::Code(code)), "{how}: {ran:?}");
            assert!(!is_alive(pid_in(&path)), "{how}");
        }
    }
}

/// Returns a running command, and the process that it started in a session of its own.
fn command_that_left_its_group(shard: &ShardThread) -> (ExecutionId, u32) {
    let (script, path) = leaves_behind("setsid");
    let (id, mut subscriber) = start(shard, sh(&format!("{script}; echo 1; exec sleep 999")), None);
    pids(&mut subscriber, &mut Ran::default(), 1);
    (id, pid_in(&path))
}

#[test]
fn a_cancellation_ends_what_has_left_its_group() {
    let shard = shard();
    let (id, pid) = command_that_left_its_group(&shard);
    assert!(is_alive(pid));
    shard.cancel(id).unwrap();
    wait_until("it is gone", || !is_alive(pid));
}

#[test]
fn what_others_have_started_is_left_alone() {
    let shard = shard();
    // A running command and a child of the test process each start a process of their own.
    let (id, of_command) = command_that_left_its_group(&shard);
    let (script, path) = leaves_behind("setsid");
    let mut ours = std::process::Command::new("sh")
        .args(["-c", &format!("{script}; exec sleep 999")])
        .spawn()
        .unwrap();
    wait_until("it has started its own", || path.exists());
    let of_ours = pid_in(&path);

    let (script, path) = leaves_behind("setsid");
    let ended = run(sh(&script));
    assert_eq!(ended.outcome(), Outcome::Completed);
    assert!(!is_alive(pid_in(&path)));
    let (_, mut another) = start(&shard, sh("true"), None);
    while !matches!(another.next(), Delivery::End(_)) {}
    assert!(is_alive(of_command) && is_alive(of_ours) && is_alive(ours.id()));

    shard.cancel(id).unwrap();
    wait_until("the other's is gone", || !is_alive(of_command));
    assert!(is_alive(of_ours));
    ours.kill().unwrap();
    assert!(!ours.wait().unwrap().success(), "it can be waited for");
    rustix::process::kill_process(
        rustix::process::Pid::from_raw(of_ours as i32).unwrap(),
        rustix::process::Signal::KILL,
    )
    .unwrap();
}

/// Cargo and nextest set many variables for the tests that they run.
#[test]
fn a_commands_environment_is_chosen() {
    assert!(std::env::vars_os().any(|(name, _)| name == "CARGO_MANIFEST_DIR"));
    let ran = run(json!({"argv": ["env"], "env": {"ONE": "1"}}));
    let text = ran.text(Kind::Stdout);
    let names: Vec<&str> = text.lines().filter_map(|line| Some(line.split_once('=')?.0)).collect();
    assert!(names.contains(&"PATH") && names.contains(&"ONE"), "{text}");
    let is_usual = |name: &&str| INHERITED.contains(name) || name.starts_with("LC_");
    let others: Vec<_> = names.iter().filter(|name| **name != "ONE" && !is_usual(name)).collect();
    assert_eq!(others, Vec::<&&str>::new());

    let asked =
        ["CARGO_MANIFEST_DIR", "CARGO_PKG_NAME", "TWO=2=2"].map(|word| word.parse().unwrap());
    let environment = Environment::of_process(&asked, &["CARGO_PKG_NAME".to_owned()]);
    let (shard, _) = Shard::spawn(ShardConfig::default(), |shard| {
        shard.tools_mut().allow_commands(CommandPolicy::Any);
        shard.tools_mut().set_environment(environment);
    })
    .unwrap();
    let (_, mut subscriber) = start(&shard, json!({"argv": ["env"]}), None);
    let mut ran = Ran::default();
    while ran.state.is_none() {
        ran.take(&subscriber.next());
    }
    let text = ran.text(Kind::Stdout);
    let value =
        |name: &str| text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix('='));
    assert_eq!(value("CARGO_MANIFEST_DIR"), std::env::var("CARGO_MANIFEST_DIR").ok().as_deref());
    assert_eq!((value("TWO"), value("CARGO_PKG_NAME")), (Some("2=2"), None));
}

#[test]
fn what_children_write_shortly_after_the_end_is_not_lost() {
    // `$$` is the shell: after its end it is a zombie, and then it disappears.
    let script = "(while grep -qs 'State:.[^Z]' /proc/$$/status; do sleep 0.01; done; echo late) &
        echo early";
    let ran = run(sh(script));
    assert_eq!(ran.text(Kind::Stdout), "early\nlate\n");
    assert_eq!(ran.outcome(), Outcome::Completed);
}

#[test]
fn a_child_that_has_left_the_group_and_floods_the_pipe_does_not_hold_the_end() {
    if std::process::Command::new("setsid").arg("true").status().is_err() {
        println!("not run: there is no setsid");
        return;
    }
    let shard = shard();
    let (_, mut subscriber) = start(&shard, sh("setsid yes & exit 5"), None);
    let exit = loop {
        if let Delivery::End(ended) = subscriber.next() {
            break ended.end.exit; // The chunks before it are a flood.
        }
    };
    assert_eq!(exit, Some(Exit::Code(5)));
}

#[test]
fn a_flood_waits_for_its_reader_and_takes_no_memory() {
    let shard = shard();
    let (id, mut subscriber) = start(&shard, json!({"argv": ["yes"]}), None);
    let mut bytes = 0u64;
    let resident_before = resident_bytes();
    while bytes < 256 << 20 {
        if let Delivery::Chunk(chunk) = subscriber.next() {
            assert_eq!(chunk.kind, Kind::Stdout);
            bytes += chunk.data.len() as u64;
        }
    }
    // The reader has stopped: the command is held back, and its output stays in the ring.
    wait_until("it is held back", || shard.inspect(id).unwrap().gated);
    let head_seq = shard.inspect(id).unwrap().head_seq;
    std::thread::sleep(Duration::from_millis(50));
    assert_eq!(shard.inspect(id).unwrap().head_seq, head_seq);
    let grown = resident_bytes().saturating_sub(resident_before);
    assert!(grown < 32 << 20, "{grown} bytes more after a flood of {bytes}");
    shard.cancel(id).unwrap();
    while !matches!(subscriber.next(), Delivery::End(_)) {}
}

fn resident_bytes() -> u64 {
    let statm = fs::read_to_string("/proc/self/statm").unwrap();
    statm.split(' ').nth(1).unwrap().parse::<u64>().unwrap() * 4096
}

#[test]
fn commands_do_not_outlive_their_shard() {
    let shard = shard();
    let script =
        "sleep 1000 & echo $!; trap '' TERM; sh -c 'echo $$; exec sleep 1000' & wait; wait";
    let (_, mut subscriber) = start(&shard, sh(script), None);
    let mut ran = Ran::default();
    let pids = pids(&mut subscriber, &mut ran, 2);
    let before = Clock::now();
    drop(shard);
    // One of them ignores SIGTERM, so the shard has waited for the whole grace period.
    assert!(Clock::now().since(before) >= limits::COMMAND_GRACE);
    wait_until("all are gone", || !pids.iter().any(|&pid| is_alive(pid)));
}

/// The test runs itself as the server that is killed.
#[test]
fn a_command_does_not_outlive_a_server_that_is_killed() {
    const IS_SERVER: &str = "STREAMDOOR_TEST_SERVER";
    if std::env::var_os(IS_SERVER).is_some() {
        let shard = shard();
        let (_, mut subscriber) = start(&shard, sh("echo $$; exec sleep 1000"), None);
        let mut ran = Ran::default();
        println!("\npid {}", pids(&mut subscriber, &mut ran, 1)[0]);
        while !matches!(subscriber.next(), Delivery::End(_)) {}
        return;
    }
    let name = "a_command_does_not_outlive_a_server_that_is_killed";
    let mut server = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", name, "--nocapture"])
        .env(IS_SERVER, "1")
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(server.stdout.take().unwrap()).lines();
    let pid = lines.map_while(Result::ok).find_map(|line| line.strip_prefix("pid ")?.parse().ok());
    let pid: u32 = pid.expect("the server says which process it has started");
    assert!(is_alive(pid));
    server.kill().unwrap();
    server.wait().unwrap();
    wait_until("it is gone", || !is_alive(pid));
}

#[test]
fn commands_are_off_unless_allowed_and_a_list_allows_what_is_on_it() {
    let refused = |shard: &ShardThread, arguments: Value| match shard.execute(
        "run_command",
        arguments,
        ExecuteOptions::default(),
    ) {
        Err(HandleError::Refused(ExecuteError::Start(error))) => error,
        other => panic!("{other:?}"),
    };
    let (shard, _) = Shard::spawn(ShardConfig::default(), |_| {}).unwrap();
    let error = refused(&shard, json!({"argv": ["true"]}));
    assert!(matches!(error, StartError::UnknownTool { .. }), "{error}");
    let listed = shard_with(CommandPolicy::Only(vec!["echo".to_owned()]));
    for (arguments, field) in [
        (json!({"argv": ["cat"]}), "argv.0"),
        (json!({"argv": ["/bin/echo"]}), "argv.0"),
        (json!({"argv": ["echo"], "env": {"PATH": "/tmp"}}), "env"),
    ] {
        let StartError::Argument(error) = refused(&listed, arguments) else { panic!() };
        assert_eq!(error.field, field);
    }
    let (_, mut subscriber) = start(&listed, json!({"argv": ["echo", "yes"]}), None);
    let mut ran = Ran::default();
    while ran.state.is_none() {
        ran.take(&subscriber.next());
    }
    assert_eq!(ran.text(Kind::Stdout), "yes\n");
}

/// A subscriber on the shard's own thread receives the exit, and the status has it, too.
#[test]
fn the_exit_is_told_on_the_shards_own_thread_and_stands_in_the_status() {
    let (mut shard, _) = Shard::new(ShardConfig::default()).unwrap();
    shard.tools_mut().allow_commands(CommandPolicy::Any);
    let id = shard.execute("run_command", &sh("exit 9"), ExecuteOptions::default()).unwrap();
    let seen = std::rc::Rc::new(std::cell::Cell::new(None));
    let exit = std::rc::Rc::clone(&seen);
    shard
        .subscribe(id, SubscribeSpec::default(), move |delivery| {
            if let Delivery::End(ended) = delivery {
                exit.set(Some(ended.end.exit));
            }
        })
        .unwrap();
    while seen.get().is_none() {
        if !shard.turn() {
            shard.park(None);
        }
    }
    assert_eq!(seen.get(), Some(Some(Exit::Code(9))));
    assert_eq!(shard.inspect(id).unwrap().exit, Some(Exit::Code(9)));
}

#[test]
fn limits_of_a_command_are_named() {
    let shard = shard();
    let many = vec!["a"; limits::COMMAND_ARGUMENTS_MAX + 1];
    let path = PathBuf::from("a".repeat(limits::COMMAND_WORDS_BYTES_MAX));
    for (arguments, field) in [
        (json!({"argv": many}), "argv"),
        (json!({"argv": ["echo", path]}), "argv"),
        (json!({"argv": []}), "argv"),
        (json!({"argv": "echo"}), "argv"),
        (json!({"argv": ["echo"], "env": {"A": 1}}), "env.A"),
        (json!({"argv": ["echo"], "shell": true}), "shell"),
    ] {
        let error = shard.execute("run_command", arguments, ExecuteOptions::default());
        let Err(HandleError::Refused(ExecuteError::Start(StartError::Argument(error)))) = error
        else {
            panic!("{error:?}")
        };
        assert_eq!(error.field, field, "{error}");
    }
}
