//! The choice of the backend: by name, or by trying. It is an enum and not a trait object, so that
//! the calls of a turn inline.

use std::fmt;
use std::io::{self};
use std::str::FromStr;

use crate::base::Instant;
use crate::reactor::uring::UringError;
use crate::reactor::{
    Counters, Disk, DiskSetup, Net, PolledReactor, Reactor, SocketCounters, SocketLimits,
    UringReactor, Waker,
};

/// The backend that the user asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Choice {
    /// io_uring if it works here, else mio.
    #[default]
    Auto,
    /// io_uring or nothing.
    Uring,
    /// mio.
    Mio,
}

/// The error for a word that names no [`Choice`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChoiceParseError {
    given: String,
}

impl fmt::Display for ChoiceParseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "reactor {:?}: must be auto, uring or mio", self.given)
    }
}

impl std::error::Error for ChoiceParseError {}

impl FromStr for Choice {
    type Err = ChoiceParseError;
    fn from_str(text: &str) -> Result<Choice, ChoiceParseError> {
        match text {
            "auto" => Ok(Choice::Auto),
            "uring" => Ok(Choice::Uring),
            "mio" => Ok(Choice::Mio),
            _ => Err(ChoiceParseError { given: text.chars().take(32).collect() }),
        }
    }
}

impl fmt::Display for Choice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Choice::Auto => "auto",
            Choice::Uring => "uring",
            Choice::Mio => "mio",
        })
    }
}

/// The reason why no reactor could be opened.
#[derive(Debug)]
pub enum OpenError {
    /// io_uring does not work. Choose `auto` or `mio`, or change what the reason names.
    Uring(UringError),
    /// The process is out of something that every reactor needs.
    Mio(io::Error),
}

impl fmt::Display for OpenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            OpenError::Uring(reason) => {
                write!(f, "io_uring cannot be used: {reason}; use --reactor=auto or mio")
            }
            OpenError::Mio(source) => write!(f, "epoll cannot be used: {source}"),
        }
    }
}

impl std::error::Error for OpenError {}

/// The choice and its result: one line for the start-up message.
#[derive(Debug)]
pub struct Report {
    /// The backend that the user asked for.
    pub choice: Choice,
    /// The backend in use.
    pub found: Found,
}

/// The backend in use.
#[derive(Debug)]
pub enum Found {
    /// io_uring, with these flags.
    Uring(crate::reactor::uring::Flavor),
    /// mio, and the reason against io_uring if that was tried.
    Mio(Option<UringError>),
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.found {
            Found::Uring(flavor) => write!(f, "reactor: io_uring, {flavor}")?,
            Found::Mio(None) => write!(f, "reactor: mio (epoll)")?,
            Found::Mio(Some(reason)) => write!(f, "reactor: mio (epoll), no io_uring: {reason}")?,
        }
        write!(f, " (asked for: {})", self.choice)
    }
}

/// Opens the reactor of the calling thread.
///
/// # Errors
/// [`OpenError`], which says what to change.
pub fn open(choice: Choice) -> Result<(AnyReactor, Report), OpenError> {
    let reason = match choice {
        Choice::Mio => None,
        Choice::Auto | Choice::Uring => match UringReactor::new() {
            Ok(reactor) => {
                let found = Found::Uring(reactor.flavor());
                return Ok((AnyReactor::Uring(reactor), Report { choice, found }));
            }
            Err(reason) if choice == Choice::Uring => return Err(OpenError::Uring(reason)),
            Err(reason) => Some(reason),
        },
    };
    let reactor = PolledReactor::new().map_err(OpenError::Mio)?;
    Ok((AnyReactor::Polled(reactor), Report { choice, found: Found::Mio(reason) }))
}

/// Opens a reactor as [`open`] does, with memory for sockets. A kernel whose io_uring is too old
/// for sockets counts as one without.
///
/// # Errors
/// [`OpenError`], which says what to change.
pub fn open_with_sockets(
    choice: Choice,
    limits: SocketLimits,
) -> Result<(AnyReactor, Report), OpenError> {
    let (mut reactor, report) = open(choice)?;
    let Err(error) = reactor.open_sockets(limits) else { return Ok((reactor, report)) };
    if matches!(reactor, AnyReactor::Polled(_)) {
        return Err(OpenError::Mio(error));
    }
    let reason = UringError::NoSockets(error);
    if choice == Choice::Uring {
        return Err(OpenError::Uring(reason));
    }
    let mut reactor = PolledReactor::new().map_err(OpenError::Mio)?;
    reactor.open_sockets(limits).map_err(OpenError::Mio)?;
    Ok((AnyReactor::Polled(reactor), Report { choice, found: Found::Mio(Some(reason)) }))
}

/// Either backend.
#[allow(clippy::large_enum_variant)] // One per thread, made once.
pub enum AnyReactor {
    /// Over io_uring.
    Uring(UringReactor),
    /// Over mio.
    Polled(PolledReactor),
}

macro_rules! dispatch {
    ($self:ident, $reactor:ident => $call:expr) => {
        match $self {
            AnyReactor::Uring($reactor) => $call,
            AnyReactor::Polled($reactor) => $call,
        }
    };
}

impl Reactor for AnyReactor {
    #[inline]
    fn now(&mut self) -> Instant {
        dispatch!(self, reactor => reactor.now())
    }

    fn wall_us(&mut self) -> u64 {
        dispatch!(self, reactor => reactor.wall_us())
    }

    fn waker(&self) -> Waker {
        dispatch!(self, reactor => reactor.waker())
    }

    fn wake(&mut self, waker: &Waker) {
        dispatch!(self, reactor => reactor.wake(waker))
    }

    #[inline]
    fn poll(&mut self) -> usize {
        dispatch!(self, reactor => reactor.poll())
    }

    fn wait(&mut self, until: Option<Instant>) {
        dispatch!(self, reactor => reactor.wait(until))
    }

    fn counters(&self) -> &Counters {
        dispatch!(self, reactor => reactor.counters())
    }

    #[inline]
    fn may_have_news(&mut self) -> bool {
        dispatch!(self, reactor => reactor.may_have_news())
    }

    fn open_sockets(&mut self, limits: SocketLimits) -> io::Result<()> {
        dispatch!(self, reactor => reactor.open_sockets(limits))
    }

    fn net(&self) -> Option<&dyn Net> {
        dispatch!(self, reactor => reactor.net())
    }

    #[inline]
    fn net_mut(&mut self) -> Option<(&mut dyn Net, &mut SocketCounters)> {
        dispatch!(self, reactor => reactor.net_mut())
    }

    fn open_disk(&mut self, setup: DiskSetup) -> io::Result<()> {
        dispatch!(self, reactor => reactor.open_disk(setup))
    }

    #[inline]
    fn disk_mut(&mut self) -> Option<&mut dyn Disk> {
        dispatch!(self, reactor => reactor.disk_mut())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Makes io_uring_setup fail with EPERM on this thread for the rest of its life, as the
    /// filters of container runtimes do.
    fn forbid_io_uring() {
        let statement =
            |code: u32, jt: u8, jf: u8, k: u32| libc::sock_filter { code: code as u16, jt, jf, k };
        let mut program = [
            statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, 0), // The call's number.
            statement(
                libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K,
                0,
                1,
                libc::SYS_io_uring_setup as u32,
            ),
            statement(
                libc::BPF_RET | libc::BPF_K,
                0,
                0,
                libc::SECCOMP_RET_ERRNO | libc::EPERM as u32,
            ),
            statement(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_ALLOW),
        ];
        let program = libc::sock_fprog { len: program.len() as u16, filter: program.as_mut_ptr() };
        // SAFETY: takes numbers; concerns this thread alone.
        let privileges = unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) };
        assert_eq!(privileges, 0);
        // SAFETY: a valid program of the given length, copied by the kernel.
        let code =
            unsafe { libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &program) };
        assert_eq!(code, 0);
    }

    #[test]
    fn auto_falls_back_to_mio_and_says_why_and_uring_alone_refuses() {
        let thread = std::thread::spawn(|| {
            forbid_io_uring();
            let (reactor, report) = open(Choice::Auto).unwrap();
            assert!(matches!(reactor, AnyReactor::Polled(_)));
            let line = report.to_string();
            assert!(line.contains("mio") && line.contains("no io_uring"), "{line}");
            assert!(line.contains("seccomp") || line.contains("io_uring_disabled"), "{line}");
            let (reactor, report) =
                open_with_sockets(Choice::Auto, SocketLimits::default()).unwrap();
            assert!(matches!(reactor, AnyReactor::Polled(_)));
            assert!(report.to_string().contains("no io_uring"), "{report}");
            let error = open(Choice::Uring).err().unwrap();
            assert!(error.to_string().contains("--reactor=auto"), "{error}");
        });
        thread.join().unwrap();
    }

    #[test]
    fn mio_is_always_there_and_auto_names_what_it_took() {
        let (reactor, report) = open(Choice::Mio).unwrap();
        assert!(matches!(reactor, AnyReactor::Polled(_)));
        assert_eq!(report.to_string(), "reactor: mio (epoll) (asked for: mio)");
        let (_, report) = open(Choice::Auto).unwrap();
        println!("{report}");
        assert_eq!(report.to_string().lines().count(), 1);
    }

    #[test]
    fn names_parse_back_and_others_are_refused() {
        for choice in [Choice::Auto, Choice::Uring, Choice::Mio] {
            assert_eq!(choice.to_string().parse(), Ok(choice));
        }
        assert!("epoll".parse::<Choice>().unwrap_err().to_string().contains("epoll"));
    }
}
