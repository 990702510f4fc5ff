//! Moves one thread of another process on, instruction by instruction or from system call to system
//! call, and says when something has happened that others can see.
//!
//! What a process has done to its own memory dies with it. So two moments between which it has made
//! no system call and has written nothing into memory that it shares are the same death: it is
//! enough to kill it once between any two *events*, where an event is a change of the shared memory
//! that it may write, or the entry to or the return from a system call.

use std::fs::File;
use std::os::unix::fs::FileExt;

/// A process that may be moved on. Its threads other than the one go on as they like.
pub struct Stepper {
    thread: libc::pid_t,
    process: u32,
    memory: File,
    /// What the process shares with others and may write: where that is, and what stands there.
    shared: Vec<(u64, usize)>,
    seen: Vec<u8>,
    look: Vec<u8>,
    /// Instructions, or system calls, so far.
    pub step_count: u64,
}

/// Where the thread is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum At {
    /// Something has happened, or is just about to.
    Event,
    /// Nothing has that anybody else could see.
    Nothing,
    /// Behind what is looked at.
    End,
}

/// Why it can not be done here.
pub type Missing = String;

const SYSCALL: [u8; 2] = [0x0f, 0x05];
/// Of a stop at a system call, where it was asked for.
const SYSCALL_STOP: i32 = libc::SIGTRAP | 0x80;

impl Stepper {
    /// Takes hold of a thread that waits for its standard input; `go_on` gives it that. Afterwards
    /// it stands at its first mark.
    pub fn take(
        process: u32,
        thread: libc::pid_t,
        go_on: impl FnOnce(),
    ) -> Result<Stepper, Missing> {
        let options = libc::PTRACE_O_EXITKILL | libc::PTRACE_O_TRACESYSGOOD;
        ask(libc::PTRACE_SEIZE, thread, options as usize)
            .map_err(|error| format!("ptrace: {error}"))?;
        let memory = File::open(format!("/proc/{process}/mem")).map_err(|e| e.to_string())?;
        go_on();
        let mut stepper = Stepper {
            thread,
            process,
            memory,
            shared: Vec::new(),
            seen: Vec::new(),
            look: Vec::new(),
            step_count: 0,
        };
        assert_eq!(stepper.wait(), MARK);
        stepper.find_shared();
        stepper.changed();
        Ok(stepper)
    }

    /// One instruction on.
    pub fn step(&mut self) -> At {
        let is_call = self.is_at_call();
        ask(libc::PTRACE_SINGLESTEP, self.thread, 0).unwrap();
        let signal = self.wait();
        self.step_count += 1;
        if is_call {
            self.find_shared(); // It may have mapped something.
        }
        match signal {
            MARK => At::End,
            _ if self.changed() || is_call || self.is_at_call() => At::Event,
            _ => At::Nothing,
        }
    }

    /// To the next entry to a system call, or to the return from it.
    pub fn call(&mut self) -> At {
        loop {
            ask(libc::PTRACE_SYSCALL, self.thread, 0).unwrap();
            self.step_count += 1;
            match self.wait() {
                MARK => return At::End,
                SYSCALL_STOP => return At::Event,
                _ => {}
            }
        }
    }

    /// Waits until the thread stands; at what signal.
    fn wait(&self) -> i32 {
        let mut status = 0;
        // SAFETY: the kernel writes one number, into a local.
        let found = unsafe { libc::waitpid(self.thread, &raw mut status, libc::__WALL) };
        assert_eq!(found, self.thread, "{}", std::io::Error::last_os_error());
        assert!(libc::WIFSTOPPED(status), "the thread has ended: {status:x}");
        libc::WSTOPSIG(status)
    }

    /// The process was killed: takes note of the thread's death, for which its process waits.
    pub fn bury(self) {
        let mut status = 0;
        loop {
            // SAFETY: the kernel writes one number, into a local.
            let found = unsafe { libc::waitpid(self.thread, &raw mut status, libc::__WALL) };
            if found < 0 || libc::WIFEXITED(status) || libc::WIFSIGNALED(status) {
                return;
            }
        }
    }

    /// Is the next instruction a system call?
    fn is_at_call(&self) -> bool {
        let at = std::mem::offset_of!(libc::user, regs)
            + std::mem::offset_of!(libc::user_regs_struct, rip);
        // SAFETY: gives a word of the registers of a thread that stands.
        let address = unsafe { libc::ptrace(libc::PTRACE_PEEKUSER, self.thread, at, 0) } as u64;
        let mut code = [0; 2];
        let read = self.memory.read_at(&mut code, address).unwrap_or(0);
        read == 2 && code == SYSCALL
    }

    /// Which memory the process shares with the server, and may write.
    fn find_shared(&mut self) {
        self.shared.clear();
        let maps = std::fs::read_to_string(format!("/proc/{}/maps", self.process)).unwrap();
        for line in maps.lines().filter(|line| line.contains("memfd:streamdoor")) {
            let mut words = line.split_whitespace();
            let (range, rights) = (words.next().unwrap(), words.next().unwrap());
            let Some((from, to)) = range.split_once('-') else { continue };
            let number = |text| u64::from_str_radix(text, 16).unwrap();
            if rights.contains('w') {
                self.shared.push((number(from), (number(to) - number(from)) as usize));
            }
        }
    }

    /// Has that memory changed since this was asked last?
    fn changed(&mut self) -> bool {
        self.look.clear();
        for &(address, size) in &self.shared {
            let start = self.look.len();
            self.look.resize(start + size, 0);
            // What is not mapped any more is nothing.
            if self.memory.read_exact_at(&mut self.look[start..], address).is_err() {
                self.look.truncate(start);
            }
        }
        if self.look == self.seen {
            return false;
        }
        std::mem::swap(&mut self.look, &mut self.seen);
        true
    }
}

/// What a thread raises where slow motion begins and ends.
const MARK: i32 = libc::SIGUSR1;

fn ask(request: libc::c_uint, thread: libc::pid_t, data: usize) -> std::io::Result<()> {
    // SAFETY: moves a thread on or takes hold of it; no memory of this process is touched.
    let result = unsafe { libc::ptrace(request, thread, 0, data) };
    if result < 0 { Err(std::io::Error::last_os_error()) } else { Ok(()) }
}

/// In the process that is moved on: slow motion begins or ends here. Ends a process that nobody
/// holds.
pub fn mark() {
    // SAFETY: sends a signal to this thread.
    let result = unsafe { libc::raise(MARK) };
    assert_eq!(result, 0);
}

/// Which thread this is.
pub fn thread_id() -> libc::pid_t {
    // SAFETY: takes nothing, gives a number.
    unsafe { libc::gettid() }
}
