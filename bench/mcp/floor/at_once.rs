//! Concurrent calls at the floor. It accepts their connections, and answers requests in the order
//! of epoll's events, with preformatted replies.

use std::collections::VecDeque;
use std::io::{self, ErrorKind};
use std::net::TcpListener;
use std::os::fd::AsRawFd;
use std::time::Duration;

use mio::unix::SourceFd;
use mio::{Events, Interest, Poll, Token};
use streamdoor::limits::SPIN_DEFAULT;
use streamdoor::reactor::Idle;

use super::{HEAD, Note, accept, answer, frame, index_of_token, write};
use crate::common::machine::now_ns;
use crate::serve::first;

/// The preformatted bytes for one call.
struct Prepared {
    note: Note,
    answer: Vec<u8>,
}

/// Accepts `count` connections, and answers them until the last one is closed.
pub fn serve(listener: &TcpListener, count: u32, idle: Idle) -> io::Result<()> {
    let mut poll = Poll::new()?;
    let mut lines = Vec::with_capacity(count as usize);
    for index in 0..count {
        let line = accept(listener, idle)?;
        let fd = line.file.as_raw_fd();
        let token = Token(index as usize);
        poll.registry().register(&mut SourceFd(&fd), token, Interest::READABLE)?;
        lines.push(Some(line));
    }
    let prepare =
        |index| Prepared { note: Note::new(index, 100, true), answer: answer(index, true) };
    let mut prepared: Vec<Prepared> = (0..count).map(prepare).collect();
    let mut out = Vec::with_capacity(4 << 10);
    let mut events = Events::with_capacity(lines.len());
    // The time at which each reply is due, its call and its connection.
    let mut due: VecDeque<(u64, usize, usize)> = VecDeque::new();
    let (mut open_count, mut active_ns) = (lines.len(), now_ns());
    while open_count > 0 {
        let now = now_ns();
        let polls = idle == Idle::Spin || now < active_ns + SPIN_DEFAULT.as_nanos() as u64;
        let next = due.front().map(|(due_ns, ..)| Duration::from_nanos(due_ns.saturating_sub(now)));
        match poll.poll(&mut events, if polls { Some(Duration::ZERO) } else { next }) {
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            result => result?,
        }
        for event in &events {
            let place = event.token().0;
            active_ns = now_ns();
            let Some(line) = &mut lines[place] else { continue };
            let Some(request) = line.next_post()? else {
                lines[place] = None;
                open_count -= 1;
                continue;
            };
            let index = index_of_token(&request).filter(|index| *index < prepared.len());
            let index = index.ok_or(ErrorKind::InvalidData)?;
            out.clear();
            out.extend_from_slice(HEAD);
            frame(&mut out, prepared[index].note.chunk(1, now_ns()), true);
            write(&line.file, &out)?;
            due.push_back((now_ns() + first::LINGER.as_nanos() as u64, index, place));
        }
        while let Some(&(due_ns, index, place)) = due.front()
            && due_ns <= now_ns()
        {
            due.pop_front();
            if let Some(line) = &lines[place] {
                write(&line.file, &prepared[index].answer)?;
            }
        }
    }
    Ok(())
}
