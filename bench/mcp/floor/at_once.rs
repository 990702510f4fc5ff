//! Concurrent calls at the floor. It accepts their connections, and answers requests in the order
//! of epoll's events.

use std::collections::VecDeque;
use std::io::{self, ErrorKind};
use std::net::TcpListener;
use std::os::fd::AsRawFd;
use std::time::Duration;

use mio::unix::SourceFd;
use mio::{Events, Interest, Poll, Token};
use streamdoor::limits::SPIN_DEFAULT;
use streamdoor::reactor::Idle;

use super::accept;
use super::call::{Call, Form};
use super::replies::Replies;
use crate::common::machine::now_ns;
use crate::serve::first;

/// Accepts `count` connections, and answers them until the last one is closed.
pub fn serve(listener: &TcpListener, count: u32, idle: Idle, form: Form) -> io::Result<()> {
    let mut poll = Poll::new()?;
    let mut lines = Vec::with_capacity(count as usize);
    for index in 0..count {
        let line = accept(listener, idle)?;
        let fd = line.file.as_raw_fd();
        let token = Token(index as usize);
        poll.registry().register(&mut SourceFd(&fd), token, Interest::READABLE)?;
        lines.push(Some(line));
    }
    let mut replies = Replies::new(form, count, true);
    let mut events = Events::with_capacity(lines.len());
    // The time at which each answer is due, its call and its connection.
    let mut due: VecDeque<(u64, Call, usize)> = VecDeque::new();
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
            let call = Call::of_request(&request, form)?;
            replies.begin(&line.file, &call)?;
            due.push_back((now_ns() + first::LINGER.as_nanos() as u64, call, place));
        }
        while due.front().is_some_and(|(due_ns, ..)| *due_ns <= now_ns())
            && let Some((_, call, place)) = due.pop_front()
        {
            if let Some(line) = &lines[place] {
                replies.end(&line.file, &call)?;
            }
        }
    }
    Ok(())
}
