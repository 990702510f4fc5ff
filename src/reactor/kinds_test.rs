//! What only real descriptors have: kinds, flags and offsets. Both backends do all of it (R13).

use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use crate::reactor::testing::for_each_backend;
use crate::reactor::{Buffer, Completion, IoError, Operation, Reactor};

/// Whatever has not come by then waits for somebody.
const LATE: Duration = Duration::from_millis(500);

fn read(reactor: &mut dyn Reactor, file: &impl AsRawFd, size_bytes: u32) {
    let buffer = Buffer::zeroed(size_bytes);
    reactor.submit(Operation::Read { token: 1, fd: file.as_raw_fd(), buffer }).unwrap();
}

fn write(reactor: &mut dyn Reactor, file: &impl AsRawFd, bytes: &[u8]) {
    let (fd, range) = (file.as_raw_fd(), 0..bytes.len() as u32);
    reactor.submit(Operation::Write { token: 2, fd, buffer: bytes.into(), range }).unwrap();
}

fn next(reactor: &mut dyn Reactor) -> Completion {
    reactor.wait(None);
    reactor.next_completion().expect("nobody wakes this reactor")
}

fn read_text(reactor: &mut dyn Reactor, file: &impl AsRawFd) -> String {
    read(reactor, file, 64);
    let completion = next(reactor);
    let count = completion.result.unwrap() as usize;
    String::from_utf8(completion.buffer[..count].to_vec()).unwrap()
}

/// Lets the backend do what it can at once; nothing must come of it.
fn assert_nothing_comes(reactor: &mut dyn Reactor) {
    let until = reactor.now() + Duration::from_millis(2);
    reactor.wait(Some(until));
    assert!(reactor.now() >= until);
    assert!(reactor.next_completion().is_none());
}

/// An empty file without a name.
fn scratch_file() -> File {
    // SAFETY: a valid C string and a number.
    let raw = unsafe { libc::memfd_create(c"scratch".as_ptr(), libc::MFD_CLOEXEC) };
    assert!(raw >= 0);
    // SAFETY: just made, and nobody else knows it.
    unsafe { File::from_raw_fd(raw) }
}

fn flags(fd: RawFd) -> libc::c_int {
    // SAFETY: takes numbers.
    unsafe { libc::fcntl(fd, libc::F_GETFL) }
}

fn set_nonblocking(fd: RawFd) {
    // SAFETY: takes numbers.
    assert_eq!(unsafe { libc::fcntl(fd, libc::F_SETFL, flags(fd) | libc::O_NONBLOCK) }, 0);
}

/// The terminal's side and the program's side.
fn terminal() -> (File, File) {
    let (mut master, mut slave) = (-1, -1);
    let (name, term, size) = (std::ptr::null_mut(), std::ptr::null(), std::ptr::null());
    // SAFETY: two places to write to; the rest is optional.
    let code = unsafe { libc::openpty(&mut master, &mut slave, name, term, size) };
    assert_eq!(code, 0);
    // SAFETY: just made, and nobody else knows it.
    let master = unsafe { File::from_raw_fd(master) };
    // SAFETY: as above.
    let slave = unsafe { File::from_raw_fd(slave) };
    (master, slave)
}

#[test]
fn files_are_read_and_written_at_their_own_position() {
    for_each_backend(|reactor| {
        let mut file = scratch_file();
        write(reactor, &file, b"one ");
        assert_eq!(next(reactor).result, Ok(4));
        write(reactor, &file, b"two");
        assert_eq!(next(reactor).result, Ok(3));
        file.rewind().unwrap();
        assert_eq!(read_text(reactor, &file), "one two");
        assert_eq!(read_text(reactor, &file), "");
    });
}

#[test]
fn a_file_on_a_disk_is_read_though_epoll_refuses_it() {
    for_each_backend(|reactor| {
        let file = File::open(file!()).or_else(|_| File::open("/proc/self/exe")).unwrap();
        read(reactor, &file, 4_096);
        assert!(next(reactor).result.unwrap() > 0);
        let directory = File::open("/").unwrap();
        read(reactor, &directory, 64);
        assert_eq!(next(reactor).result, Err(IoError(libc::EISDIR)));
    });
}

#[test]
fn dev_null_swallows_and_ends_and_dev_full_is_full() {
    for_each_backend(|reactor| {
        let null = OpenOptions::new().read(true).write(true).open("/dev/null").unwrap();
        write(reactor, &null, &[0; 100_000]);
        assert_eq!(next(reactor).result, Ok(100_000));
        read(reactor, &null, 16);
        assert_eq!(next(reactor).result, Ok(0));
        let full = OpenOptions::new().write(true).open("/dev/full").unwrap();
        write(reactor, &full, b"x");
        assert_eq!(next(reactor).result, Err(IoError(libc::ENOSPC)));
    });
}

#[test]
fn a_socketpair_reads_and_writes_at_once_and_reports_its_end() {
    for_each_backend(|reactor| {
        let (near, mut far) = UnixStream::pair().unwrap();
        read(reactor, &near, 64);
        assert_nothing_comes(reactor);
        write(reactor, &near, b"ping");
        assert_eq!((next(reactor).token, reactor.operation_count()), (2, 1));
        let mut got = [0; 4];
        far.read_exact(&mut got).unwrap();
        assert_eq!(&got, b"ping");
        far.write_all(b"pong").unwrap();
        assert_eq!(next(reactor).result, Ok(4));
        drop(far);
        read(reactor, &near, 64);
        assert_eq!(next(reactor).result, Ok(0));
        write(reactor, &near, b"x");
        assert_eq!(next(reactor).result, Err(IoError::BROKEN_PIPE));
    });
}

#[test]
fn a_read_and_a_write_wait_on_one_socket_together() {
    for_each_backend(|reactor| {
        let (near, mut far) = UnixStream::pair().unwrap();
        let mut sent_count = 0;
        loop {
            write(reactor, &near, &[7; 100_000]);
            let until = reactor.now() + LATE;
            reactor.wait(Some(until));
            match reactor.next_completion() {
                Some(completion) => sent_count += completion.result.unwrap(),
                None => break, // Full: this one stays in flight.
            }
        }
        read(reactor, &near, 64);
        assert_nothing_comes(reactor);
        far.write_all(b"meanwhile").unwrap();
        assert_eq!((next(reactor).token, reactor.operation_count()), (1, 1));
        let mut got = vec![0; sent_count as usize];
        far.read_exact(&mut got).unwrap();
        assert_eq!(next(reactor).token, 2);
    });
}

#[test]
fn non_blocking_descriptors_wait_too_and_no_flag_changes() {
    for_each_backend(|reactor| {
        for is_nonblocking in [false, true] {
            let (reader, mut writer) = std::io::pipe().unwrap();
            if is_nonblocking {
                set_nonblocking(reader.as_raw_fd());
                set_nonblocking(writer.as_raw_fd());
            }
            let flags_before = (flags(reader.as_raw_fd()), flags(writer.as_raw_fd()));
            read(reactor, &reader, 64);
            assert_nothing_comes(reactor);
            writer.write_all(b"late").unwrap();
            assert_eq!(next(reactor).result, Ok(4));
            read(reactor, &reader, 64);
            assert_nothing_comes(reactor);
            reactor.submit(Operation::Cancel { token: 1 }).unwrap();
            assert_eq!(next(reactor).result, Err(IoError::CANCELLED));
            writer.write_all(&[0; 65_536]).unwrap();
            write(reactor, &writer, &[1; 10_000]);
            assert_nothing_comes(reactor);
            let mut bytes = [0; 65_536];
            (&reader).read_exact(&mut bytes).unwrap();
            assert!(next(reactor).result.unwrap() > 0);
            assert_eq!(flags_before, (flags(reader.as_raw_fd()), flags(writer.as_raw_fd())));
        }
    });
}

#[test]
fn a_terminal_is_read_by_the_line_and_written() {
    for_each_backend(|reactor| {
        let (mut master, slave) = terminal();
        read_lines(reactor, &mut master, &slave);
        set_nonblocking(slave.as_raw_fd());
        read_lines(reactor, &mut master, &slave);
    });
}

fn read_lines(reactor: &mut dyn Reactor, master: &mut File, slave: &File) {
    read(reactor, slave, 64);
    assert_nothing_comes(reactor);
    master.write_all(b"no newline yet").unwrap();
    assert_nothing_comes(reactor);
    master.write_all(b"\nsecond\n").unwrap();
    let completion = next(reactor);
    assert_eq!(completion.result, Ok(15));
    assert_eq!(&completion.buffer[..15], b"no newline yet\n");
    assert_eq!(read_text(reactor, slave), "second\n");
    write(reactor, slave, b"out");
    assert_eq!(next(reactor).result, Ok(3));
    read(reactor, slave, 64);
    assert_nothing_comes(reactor);
    reactor.submit(Operation::Cancel { token: 1 }).unwrap();
    assert_eq!(next(reactor).result, Err(IoError::CANCELLED));
}

#[test]
fn a_terminal_that_nobody_reads_blocks_a_write_but_not_the_thread() {
    for_each_backend(|reactor| {
        let (_master, slave) = terminal();
        let mut written_bytes = 0;
        for _ in 0..10_000 {
            write(reactor, &slave, &[b'x'; 50_000]);
            let until = reactor.now() + LATE;
            reactor.wait(Some(until)); // Would hang if the write was made on this thread.
            match reactor.next_completion() {
                Some(completion) => written_bytes += completion.result.unwrap(),
                None => break,
            }
        }
        assert_eq!(reactor.operation_count(), 1);
        reactor.submit(Operation::Cancel { token: 2 }).unwrap();
        match next(reactor).result {
            Ok(count) => assert!(count < 50_000, "after {written_bytes}"),
            Err(error) => assert_eq!(error, IoError::CANCELLED, "after {written_bytes}"),
        }
    });
}

#[test]
fn a_descriptor_number_that_is_used_again_gets_nothing_of_its_former_owner() {
    for_each_backend(|reactor| {
        let (reader, writer) = std::io::pipe().unwrap();
        let number = reader.as_raw_fd();
        read(reactor, &reader, 64);
        assert_nothing_comes(reactor);
        reactor.submit(Operation::Cancel { token: 1 }).unwrap();
        assert_eq!(next(reactor).result, Err(IoError::CANCELLED));
        // A copy keeps the old pipe alive behind the number's back.
        let copy = OwnedFd::from(reader.try_clone().unwrap());
        let (other, mut other_writer) = std::io::pipe().unwrap();
        // SAFETY: takes numbers; `number` becomes another name of the second pipe.
        assert_eq!(unsafe { libc::dup2(other.as_raw_fd(), number) }, number);
        read(reactor, &reader, 64);
        (&writer).write_all(b"old").unwrap();
        assert_nothing_comes(reactor);
        other_writer.write_all(b"newer").unwrap();
        assert_eq!(next(reactor).result, Ok(5));
        drop(copy);
    });
}

extern "C" fn ignore_signal(_number: libc::c_int) {}

#[test]
fn a_signal_does_not_end_a_wait_nor_a_read() {
    // SAFETY: for `sigaction`, all zero means no flags and no signals blocked.
    let mut action = unsafe { std::mem::zeroed::<libc::sigaction>() };
    action.sa_sigaction = ignore_signal as *const () as usize; // No SA_RESTART: calls are cut.
    // SAFETY: a valid action, whose handler does nothing.
    let code = unsafe { libc::sigaction(libc::SIGUSR2, &action, std::ptr::null_mut()) };
    assert_eq!(code, 0);
    for_each_backend(|reactor| {
        let (reader, mut writer) = std::io::pipe().unwrap();
        // SAFETY: takes nothing.
        let this_thread = unsafe { libc::pthread_self() };
        let thread = std::thread::spawn(move || {
            for _ in 0..20 {
                std::thread::sleep(Duration::from_micros(500));
                // SAFETY: the thread lives: it joins this one before it ends.
                unsafe { libc::pthread_kill(this_thread, libc::SIGUSR2) };
            }
            writer.write_all(b"done").unwrap();
        });
        let until = reactor.now() + Duration::from_millis(3);
        reactor.wait(Some(until));
        assert!(reactor.now() >= until);
        read(reactor, &reader, 64);
        assert_eq!(next(reactor).result, Ok(4));
        thread.join().unwrap();
    });
}
