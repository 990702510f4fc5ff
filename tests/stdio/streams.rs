//! All kinds of standard streams, on both reactors.

use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;

use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use streamdoor::reactor::Clock;

use crate::program::{
    Program, REACTORS, Scratch, Side, assert_quiet_end, input_pipe, message, output_pipe, pong,
    restless_socket, socket,
};

/// Sends a few pings and ends the program.
fn talk(mut program: Program) {
    for id in 0..3 {
        program.ping(id);
        program.check_flags();
    }
    assert_quiet_end(program.finish());
}

#[test]
fn pipes_and_sockets_in_any_pair() {
    let inputs = [input_pipe, socket, restless_socket];
    let outputs = [output_pipe, socket, restless_socket];
    for reactor in REACTORS {
        for input in inputs {
            for output in outputs {
                let Some(program) = Program::start(reactor, &[], input(), output()) else {
                    continue;
                };
                talk(program);
            }
        }
    }
}

#[test]
fn one_socket_for_both() {
    for reactor in REACTORS {
        let (theirs, ours) = UnixStream::pair().unwrap();
        let copy = |stream: &UnixStream| OwnedFd::from(stream.try_clone().unwrap());
        let input = Side { theirs: copy(&theirs), ours: copy(&ours).into() };
        let output = Side { theirs: copy(&theirs), ours: copy(&ours).into() };
        drop(theirs);
        let Some(mut program) = Program::start(reactor, &[], input, output) else { continue };
        program.ping(1);
        ours.shutdown(std::net::Shutdown::Write).unwrap();
        assert_quiet_end(program.finish());
    }
}

#[test]
fn from_a_file_and_into_a_file() {
    for reactor in REACTORS {
        let (asked, answered) = (Scratch::new("asked"), Scratch::new("answered"));
        let lines: String = (0..1_000)
            .map(|id| format!("{{\"jsonrpc\":\"2.0\",\"id\":{id},\"method\":\"ping\"}}\n"))
            .collect();
        std::fs::write(&asked.0, lines).unwrap();
        let file = || File::open(&asked.0).unwrap();
        let into = File::create(&answered.0).unwrap();
        let (input, output) = (file().into(), into.into());
        let unused = || File::open("/dev/null").unwrap();
        let input = Side { theirs: input, ours: unused() };
        let output = Side { theirs: output, ours: unused() };
        let Some(program) = Program::start(reactor, &[], input, output) else { continue };
        assert_quiet_end(program.finish());
        let text = std::fs::read_to_string(&answered.0).unwrap();
        let messages: Vec<_> = text.lines().map(message).collect();
        assert!(messages.into_iter().eq((0..1_000).map(pong)));
    }
}

/// The terminal echoes the typed request and shows the reply.
#[test]
fn a_terminal() {
    for reactor in REACTORS {
        let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
        grantpt(&master).unwrap();
        unlockpt(&master).unwrap();
        let path = ptsname(&master, Vec::new()).unwrap();
        let path = path.to_str().unwrap();
        let terminal = || OwnedFd::from(File::options().read(true).write(true).open(path).unwrap());
        let ours = || File::from(master.try_clone().unwrap());
        let input = Side { theirs: terminal(), ours: ours() };
        let output = Side { theirs: terminal(), ours: ours() };
        let Some(mut program) = Program::start(reactor, &[], input, output) else { continue };
        program.say(br#"{"jsonrpc":"2.0","id":7,"method":"ping"}"#);
        let mut screen = BufReader::new(ours()).lines();
        let answer = screen.find(|line| line.as_ref().unwrap().contains("result")).unwrap();
        assert_eq!(message(answer.unwrap().trim_end()), pong(7));
        program.check_flags();
        ours().write_all(b"\x04").unwrap(); // Ctrl-D.
        let (status, log) = program.ended();
        assert_eq!((status.code(), log.as_str()), (Some(0), ""));
    }
}

#[test]
fn the_first_answer_is_there_soon() {
    for reactor in REACTORS {
        let before = Clock::now();
        let Some(mut program) = Program::piped(reactor, &[]) else { continue };
        program.ping(0);
        println!("{reactor}: the first answer was there after {:?}", Clock::now().since(before));
        assert_quiet_end(program.finish());
    }
}

#[test]
fn whoever_shares_a_stream_goes_on_after_the_end() {
    for reactor in REACTORS {
        for (input, output) in [(socket(), socket()), (input_pipe(), output_pipe())] {
            let mut sibling = File::from(output.theirs.try_clone().unwrap());
            let Some(mut program) = Program::start(reactor, &[], input, output) else { continue };
            program.ping(1);
            program.input = None;
            assert_eq!(program.ended().0.code(), Some(0));
            sibling.write_all(b"still here").unwrap();
            let mut got = [0; 10];
            program.output.read_exact(&mut got).unwrap();
            assert_eq!(&got, b"still here");
        }
    }
}
