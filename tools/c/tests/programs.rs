//! C and Python programs at a door. The examples are compiled and run against a server, and
//! everything they carry must arrive.
//!
//! The server is a thread of this test. Every program is a process of its own, so three of them
//! share each ring. If the machine lacks a C compiler or Python, the test prints that and is
//! skipped.

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::Arc;
use std::time::Duration;

use streamdoor::base::Random;
use streamdoor::door::Door;
use streamdoor::server::Server;
use streamdoor::server::ServerConfig;
use streamdoor::shard::ShardConfig;

const FILE_BYTES: usize = 200 << 20;
const SHORT_FILE_BYTES: usize = 20 << 20;

/// A server with its door in a folder that is removed with this value.
struct World {
    folder: PathBuf,
    _server: Server,
}

impl World {
    fn new(name: &str) -> World {
        let folder = std::env::temp_dir().join(format!("sd-c-{name}-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let config = ServerConfig {
            shards: vec![ShardConfig::default()],
            listen: Vec::new(),
            connections_max: 64,
        };
        let server = Server::start(config, Arc::new(|_| {})).unwrap();
        server.open_door(&folder.join("door.sock")).unwrap();
        World { folder, _server: server }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    fn door(&self) -> PathBuf {
        self.path("door.sock")
    }
}

impl Drop for World {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// True if the program is installed. Prints a line otherwise.
fn has(program: &str) -> bool {
    let found = Command::new(program).arg("--version").stdout(Stdio::null()).status();
    let is_here = found.is_ok_and(|status| status.success());
    if !is_here {
        println!("not run: there is no {program}");
    }
    is_here
}

/// Returns the folder into which cargo has put the library, in both forms.
fn library_folder() -> PathBuf {
    let folder = std::env::current_exe().unwrap().parent().unwrap().to_owned();
    let places = [folder.clone(), folder.parent().unwrap().to_owned()];
    let found = places.into_iter().find(|place| place.join("libstreamdoor_c.so").exists());
    found.expect("cargo builds the library for its tests")
}

fn example(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("examples").join(name)
}

/// Compiles an example. Every warning is an error.
fn compiled(world: &World, name: &str, is_static: bool) -> PathBuf {
    let (program, libraries) = (world.path(name), library_folder());
    let mut cc = Command::new("cc");
    cc.args(["-std=c99", "-D_POSIX_C_SOURCE=200809L", "-O1", "-Wall", "-Wextra", "-Wpedantic"]);
    cc.args(["-Werror", "-o"]).arg(&program).arg(example(&format!("{name}.c")));
    if is_static {
        cc.arg(libraries.join("libstreamdoor_c.a")).args(["-lpthread", "-ldl", "-lm"]);
    } else {
        cc.arg("-L").arg(&libraries).arg("-lstreamdoor_c").arg("-pthread");
        cc.arg(format!("-Wl,-rpath,{}", libraries.display()));
    }
    let output = cc.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    program
}

fn random_file(world: &World, count: usize) -> (PathBuf, Vec<u8>) {
    let mut bytes = vec![0; count + 4_321];
    Random::new(7).fill(&mut bytes);
    let path = world.path("bytes");
    fs::write(&path, &bytes).unwrap();
    (path, bytes)
}

/// Starts a producer, and returns it with the id of its execution.
fn producing(command: &mut Command) -> (Child, String) {
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    let mut id = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut id).unwrap();
    (child, id.trim().to_owned())
}

fn output(command: &mut Command) -> Output {
    let output = command.output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {:?} {errors}", output.status);
    output
}

/// Returns a command for Python with the module, running this text.
fn python(text: &str) -> Command {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../python");
    let mut python = Command::new("python3");
    python.arg("-B").arg("-c").arg(text).env("PYTHONPATH", folder);
    python.env("STREAMDOOR_LIBRARY", library_folder().join("libstreamdoor_c.so"));
    python
}

const PYTHON_READER: &str = "
import select, sys, streamdoor
with streamdoor.Door(sys.argv[1]) as door, door.read(sys.argv[2], policy='block') as reader:
    assert reader.execution == sys.argv[2]
    sys.stdin.readline() # Until then it holds the producer back.
    end, offset = None, 0
    while not reader.is_over:
        delivery = reader.poll()
        if delivery is None:
            if not reader.is_over and reader.watch():
                select.select([reader], [], [])
        elif isinstance(delivery, streamdoor.Chunk):
            assert delivery.offset == offset and delivery.kind == 'output'
            offset += len(delivery.data)
            sys.stdout.buffer.write(delivery.data)
        elif isinstance(delivery, streamdoor.End):
            end = delivery
    assert (end.outcome, end.missed_chunks) == ('completed', 0), end
    assert end.byte_count == offset
";

const PYTHON_WRITER: &str = "
import sys, streamdoor
with streamdoor.Door(sys.argv[1]) as door:
    with door.produce('python', policy='block', hold_ms=60000, ring_bytes=1 << 20) as writer:
        print(writer.execution, flush=True)
        with open(sys.argv[2], 'rb') as file:
            while True:
                room = writer.lend(30000)
                count = file.readinto(room)
                del room
                if not count:
                    break
                writer.publish(count)
";

/// Threads share a writer, and others a reader. Each thread must get the number of its own chunk. A
/// thread that is refused because another one is inside tries again.
const PYTHON_THREADS: &str = "
import sys, threading, streamdoor
THREADS, SENDS = 4, 1500
def patiently(call):
    while True:
        try:
            return call()
        except streamdoor.StreamdoorError as error:
            if error.code != -3:
                raise
def run(work):
    def safely(at):
        try:
            work(at)
        except BaseException as error:
            errors.append(error)
    threads = [threading.Thread(target=safely, args=(at,)) for at in range(THREADS)]
    for thread in threads:
        thread.start()
    return threads
sys.setswitchinterval(1e-5)
errors, sent, read, ends = [], {}, [], []
def send(at):
    for number in range(SENDS):
        data = b'%d:%d' % (at, number)
        call = (writer.send, writer.try_send)[number % 2]
        seq = patiently(lambda: call(data))
        while seq is None:
            seq = patiently(lambda: call(data))
        sent[data] = seq
def take(at):
    while True:
        delivery = patiently(reader.next)
        if delivery is None:
            return
        (read if isinstance(delivery, streamdoor.Chunk) else ends).append(delivery)
with streamdoor.Door(sys.argv[1]) as door:
    with door.produce('threads', policy='block', hold_ms=60000) as writer:
        reader = door.read(writer.execution, policy='block')
        senders, takers = run(send), run(take)
        for thread in senders:
            thread.join()
    for thread in takers:
        thread.join()
assert not errors, errors[0]
wrong = [chunk for chunk in read if sent.get(chunk.data) != chunk.seq]
assert not wrong, (len(wrong), len(read), wrong[0])
assert sorted(chunk.seq for chunk in read) == list(range(1, THREADS * SENDS + 1))
assert [end.outcome for end in ends] == ['completed'], ends
";

#[test]
fn threads_of_python_that_share_a_writer_or_a_reader_are_given_what_is_theirs() {
    if !has("python3") {
        return;
    }
    let world = World::new("threads");
    let mut command = python(PYTHON_THREADS);
    let output = command.arg(world.door()).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn a_file_goes_from_c_to_c_and_to_python_through_one_ring() {
    if !has("cc") {
        return;
    }
    let world = World::new("c");
    let (file, bytes) = random_file(&world, FILE_BYTES);
    let (produce, read) = (compiled(&world, "produce", false), compiled(&world, "read", true));
    let mut command = Command::new(produce);
    let (mut producer, id) = producing(command.arg(world.door()).arg("file").arg(file));
    let client = Door::open(world.door()).unwrap().client().unwrap();
    let are_there = |count: usize| {
        let id = id.parse().unwrap();
        while client.inspect(id).unwrap().subscribers.len() < count {
            std::thread::sleep(Duration::from_millis(5));
        }
    };
    // The first one reads nothing before the second is attached, so both get everything.
    let python = has("python3").then(|| {
        let mut command = python(PYTHON_READER);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut python = command.arg(world.door()).arg(&id).spawn().unwrap();
        are_there(1);
        let mut stdout = python.stdout.take().unwrap();
        let reading = std::thread::spawn(move || {
            let mut found = Vec::new();
            stdout.read_to_end(&mut found).unwrap();
            found
        });
        (python, reading)
    });
    let mut command = Command::new(read);
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let reading = command.arg(world.door()).arg(&id).spawn().unwrap();
    are_there(1 + usize::from(python.is_some()));
    let python = python.map(|(mut python, reading)| {
        drop(python.stdin.take());
        (python, reading)
    });
    let read = reading.wait_with_output().unwrap();
    assert!(read.stdout == bytes, "{} bytes were read", read.stdout.len());
    let errors = String::from_utf8_lossy(&read.stderr);
    assert!(read.status.success() && errors.contains("end 1 "), "{errors}");
    assert!(errors.contains(&format!(" bytes {} ", bytes.len())), "{errors}");
    if let Some((mut python, reading)) = python {
        let found = reading.join().unwrap();
        assert!(found == bytes, "{} bytes were read by Python", found.len());
        assert!(python.wait().unwrap().success());
    }
    assert!(producer.wait().unwrap().success());
}

/// `streamdoor serve` as a process. It is killed when this value is dropped.
struct Program {
    path: PathBuf,
    child: Child,
    address: String,
}

impl Program {
    /// Starts the program that `STREAMDOOR_PROGRAM` names. Prints a line if the variable is not
    /// set.
    fn serve(world: &World) -> Option<Program> {
        let Some(path) = std::env::var_os("STREAMDOOR_PROGRAM").map(PathBuf::from) else {
            println!("not run: STREAMDOOR_PROGRAM does not say where the program is");
            return None;
        };
        let mut command = Command::new(&path);
        command.args(["serve", "--journal", "off", "--listen", "127.0.0.1:0", "--log", "json"]);
        command.arg("--door");
        command.arg(world.path("served.sock")).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut log = BufReader::new(child.stderr.take().unwrap()).lines();
        let mut address = String::new();
        loop {
            let line = log.next().expect("it says when its door is open").unwrap();
            if let Some((_, rest)) = line.split_once("\"address\":\"http://") {
                address = rest.split('"').next().unwrap().to_owned();
            }
            if line.contains("\"event\":\"door\"") {
                break;
            }
        }
        std::thread::spawn(move || log.for_each(drop));
        Some(Program { path, child, address })
    }

    /// Returns the output of `streamdoor top --once`.
    fn top(&self) -> String {
        let mut top = Command::new(&self.path);
        top.args(["top", "--once", "--interval", "300ms"]);
        let url = format!("http://{}", self.address);
        String::from_utf8(output(top.arg(url)).stdout).unwrap()
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Prints the hash of its input. It takes at least six seconds.
const PYTHON_HASHER: &str = "
import hashlib, sys, time, streamdoor
with streamdoor.Door(sys.argv[1]) as door, door.read(sys.argv[2], policy='block') as reader:
    sha, count, pauses = hashlib.sha256(), 0, 0
    for chunk in reader.chunks():
        sha.update(chunk.data)
        count += len(chunk.data)
        if count >> 20 > pauses:
            pauses += 1
            time.sleep(0.03)
    print(sha.hexdigest())
";

/// Returns the cells of the row of this execution. Its state is followed by chunks and bytes in a
/// second, chunks, bytes, subscribers, and the lag of the slowest.
fn row<'a>(frame: &'a str, id: &str) -> Option<Vec<&'a str>> {
    let row = frame.lines().find(|line| line.starts_with(id))?;
    Some(row.split("  ").map(str::trim).filter(|cell| !cell.is_empty()).collect())
}

/// Returns the number at the start of a cell, or NaN.
fn number(cell: &str) -> f64 {
    cell.split(' ').next().unwrap().parse().unwrap_or(f64::NAN)
}

#[test]
fn three_processes_stream_a_file_and_top_shows_it() {
    if !has("cc") || !has("python3") || !has("sha256sum") {
        return;
    }
    let world = World::new("three");
    let Some(program) = Program::serve(&world) else { return };
    let door = world.path("served.sock");
    let (file, bytes) = random_file(&world, FILE_BYTES);
    let mut command = Command::new(compiled(&world, "produce", false));
    let (mut producer, id) = producing(command.arg(&door).arg("file").arg(&file));
    let mut reader = python(PYTHON_HASHER);
    let mut reader = reader.arg(&door).arg(&id).stdout(Stdio::piped()).spawn().unwrap();
    let mut seen = None;
    while seen.is_none() && reader.try_wait().unwrap().is_none() {
        let frame = program.top();
        let cells = row(&frame, &id).unwrap_or_default();
        let delivers = frame
            .lines()
            .any(|line| line.split_once("delivered ").is_some_and(|(_, rest)| number(rest) > 0.0));
        if cells.get(2) == Some(&"running") && number(cells[3]) > 0.0 && delivers {
            seen = Some(frame);
        }
    }
    let frame = seen.expect("top sees it while it runs");
    println!("{frame}");
    let cells = row(&frame, &id).unwrap();
    assert_eq!((cells[1], cells[7]), ("file", "1"), "{cells:?}");
    assert!(cells[4].ends_with("iB") && number(cells[4]) > 0.0, "{cells:?}");
    assert!(cells[6].ends_with("iB") && number(cells[8]) >= 0.0, "{cells:?}");
    let hash = String::from_utf8(reader.wait_with_output().unwrap().stdout).unwrap();
    assert!(producer.wait().unwrap().success());
    let expected = String::from_utf8(output(Command::new("sha256sum").arg(&file)).stdout).unwrap();
    assert_eq!(hash.trim(), expected.split(' ').next().unwrap());
    println!("{} bytes, sha256 {}", bytes.len(), hash.trim());
    let client = Door::open(&door).unwrap().client().unwrap();
    for name in ["published_bytes_total", "door_read_bytes_total", "delivered_bytes_total"] {
        let mut attempts = 0..1_000; // Ten seconds: the last reads are counted a moment later.
        while client.metrics().unwrap().sum(name) != Some(bytes.len() as f64) {
            let found = client.metrics().unwrap().sum(name);
            assert!(attempts.next().is_some(), "{name}: {found:?} of {}", bytes.len());
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

#[test]
fn a_file_goes_from_python_to_c() {
    if !has("cc") || !has("python3") {
        return;
    }
    let world = World::new("python");
    let (file, bytes) = random_file(&world, SHORT_FILE_BYTES);
    let read = compiled(&world, "read", false);
    let (mut producer, id) = producing(python(PYTHON_WRITER).arg(world.door()).arg(file));
    let read = output(Command::new(read).arg(world.door()).arg(&id));
    assert!(read.stdout == bytes, "{} bytes were read", read.stdout.len());
    assert!(producer.wait().unwrap().success());
}

#[test]
fn whatever_c_calls_wrongly_is_a_number_and_not_the_end_of_the_process() {
    if !has("cc") {
        return;
    }
    let world = World::new("misuse");
    let misuse = compiled(&world, "misuse", false);
    let found = Command::new(misuse).arg(world.door()).output().unwrap();
    let said = String::from_utf8_lossy(&found.stdout);
    assert!(found.status.success(), "{:?} {said}", found.status);
    assert_eq!(said, "as it should be\n");
}

#[test]
fn python_sees_gaps_ends_errors_and_what_is_closed() {
    if !has("python3") {
        return;
    }
    let world = World::new("pythonic");
    let text = "
import gc, sys, streamdoor as sd

def raises(kind, act):
    try:
        act()
    except kind as error:
        return error
    raise AssertionError('nothing was raised')

assert raises(sd.StreamdoorError, lambda: sd.Door('/nowhere')).code == -5
raises(ValueError, lambda: sd.Door('a\\0b'))
door = sd.Door(sys.argv[1])
assert raises(sd.StreamdoorError, lambda: door.read('nobody')).code == -6
raises(ValueError, lambda: door.read('x', policy='kindness'))
raises(ValueError, lambda: door.produce('x', policy='kindness'))

# A chunk of each sort of bytes, and the end that an exception makes.
try:
    with door.produce('fails', policy='block', hold_ms=60000) as writer:
        reader = door.read(writer.execution)
        assert writer.send(b'one') == 1
        assert writer.send(bytearray(b'two'), kind='json', key=2) == 2
        assert writer.send(memoryview(b'three')) == 3
        assert writer.try_send(b'') == 4
        writer.progress(1, 2, 'half')
        writer.expect(9)
        room = writer.lend(8)
        room[:4] = b'lent'
        del room
        assert writer.publish(4) == 5
        raises(sd.StreamdoorError, lambda: writer.publish(1))
        raises(sd.StreamdoorError, lambda: writer.lend(1 << 40))
        raises(ValueError, lambda: writer.send(b'x', kind='nothing'))
        raises(sd.StreamdoorError, lambda: writer.send(b'x', key=64))
        assert not writer.is_stopped
        raise KeyError('on purpose')
except KeyError:
    pass
given = list(reader)
chunks = [one for one in given if isinstance(one, sd.Chunk)]
assert [chunk.data for chunk in chunks] == [b'one', b'two', b'three', b'', b'lent']
assert chunks[1].kind == 'json'
assert isinstance(given[-1], sd.End), given
assert (given[-1].outcome, given[-1].chunk_count) == ('failed', 5), given
assert 'on purpose' in given[-1].error
assert reader.next() is None and reader.is_over and reader.next(timeout=0) is None
raises(ValueError, lambda: writer.send(b'x'))
reader.close()
reader.close()
raises(ValueError, reader.poll)

# Who leaves without a word has failed.
writer = door.produce('leaves', hold_ms=60000)
reader = door.read(writer.execution)
assert reader.next(timeout=0.01) is None and not reader.is_over
del writer
gc.collect()
raises(sd.StreamdoorError, lambda: list(reader.chunks()))
door.close()
print('as it should be')
";
    let found = output(python(text).arg(world.door()));
    assert_eq!(String::from_utf8_lossy(&found.stdout), "as it should be\n");
}
