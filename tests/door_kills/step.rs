//! Moves one thread of another process, by instructions or by system calls, and reports when
//! something has happened that others can see.
//!
//! The changes of a process to its own memory disappear with it. Therefore two moments are the same
//! death if no system call and no write to shared memory lies between them. One kill between any
//! two *events* is enough. An event is a change of shared memory that the process may write, or the
//! entry to or the return from a system call.

use std::fs::File;
use std::os::unix::fs::FileExt;

/// A process with one thread that is moved step by step. Its other threads run freely.
pub struct Stepper {
    thread: libc::pid_t,
    process: u32,
    memory: File,
    /// The address and size of each shared mapping that the process may write.
    shared: Vec<(u64, usize)>,
    seen: Vec<u8>,
    look: Vec<u8>,
    /// Number of instructions or system calls so far.
    pub step_count: u64,
}

/// The result of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum At {
    /// A change that others can see has happened, or a system call starts or has returned.
    Event,
    /// No change that others can see has happened.
    Nothing,
    /// The thread has passed the second mark.
    End,
}

/// The reason why processes cannot be stepped here.
pub type Missing = String;

const SYSCALL: [u8; 2] = [0x0f, 0x05];
/// The signal of a stop at a system call (`PTRACE_O_TRACESYSGOOD`).
const SYSCALL_STOP: i32 = libc::SIGTRAP | 0x80;

impl Stepper {
    /// Attaches to a thread that waits for its standard input, which `go_on` writes. Returns when
    /// the thread has reached its first mark.
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

    /// Executes one instruction.
    pub fn step(&mut self) -> At {
        let is_call = self.is_at_call();
        ask(libc::PTRACE_SINGLESTEP, self.thread, 0).unwrap();
        let signal = self.wait();
        self.step_count += 1;
        if is_call {
            self.find_shared(); // It may have mapped memory.
        }
        match signal {
            MARK => At::End,
            _ if self.changed() || is_call || self.is_at_call() => At::Event,
            _ => At::Nothing,
        }
    }

    /// Continues to the next entry to a system call, or to the return from it.
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

    /// Waits until the thread stops, and returns the signal.
    fn wait(&self) -> i32 {
        let mut status = 0;
        // SAFETY: the kernel writes one number, into a local.
        let found = unsafe { libc::waitpid(self.thread, &raw mut status, libc::__WALL) };
        assert_eq!(found, self.thread, "{}", std::io::Error::last_os_error());
        assert!(libc::WIFSTOPPED(status), "the thread has ended: {status:x}");
        libc::WSTOPSIG(status)
    }

    /// Reaps the thread of a killed process, which waits for that.
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

    /// Returns true if the next instruction is a system call.
    fn is_at_call(&self) -> bool {
        let at = std::mem::offset_of!(libc::user, regs)
            + std::mem::offset_of!(libc::user_regs_struct, rip);
        // SAFETY: reads a word of the registers of a stopped thread.
        let address = unsafe { libc::ptrace(libc::PTRACE_PEEKUSER, self.thread, at, 0) } as u64;
        let mut code = [0; 2];
        let read = self.memory.read_at(&mut code, address).unwrap_or(0);
        read == 2 && code == SYSCALL
    }

    /// Finds the memory that the process shares with the server and may write.
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

    /// Returns true if that memory has changed since the previous call.
    fn changed(&mut self) -> bool {
        self.look.clear();
        for &(address, size) in &self.shared {
            let start = self.look.len();
            self.look.resize(start + size, 0);
            // Memory that is no longer mapped is left out.
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

/// The signal that a thread raises where stepping starts and ends.
const MARK: i32 = libc::SIGUSR1;

fn ask(request: libc::c_uint, thread: libc::pid_t, data: usize) -> std::io::Result<()> {
    // SAFETY: moves a thread or attaches to it; no memory of this process is touched.
    let result = unsafe { libc::ptrace(request, thread, 0, data) };
    if result < 0 { Err(std::io::Error::last_os_error()) } else { Ok(()) }
}

/// Marks the start or the end of stepping, in the stepped process. Ends a process that is not
/// traced.
pub fn mark() {
    // SAFETY: sends a signal to this thread.
    let result = unsafe { libc::raise(MARK) };
    assert_eq!(result, 0);
}

/// Returns the id of this thread.
pub fn thread_id() -> libc::pid_t {
    // SAFETY: takes no argument and returns a number.
    unsafe { libc::gettid() }
}
