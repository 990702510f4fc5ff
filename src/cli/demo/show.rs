//! The default of `streamdoor demo`: one fast tool, and four subscribers that read it at the same
//! time, each in its own way. A picture shows the chunks of each subscriber, and sentences explain
//! it.

use std::io::{self, IsTerminal, Write as _};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use serde_json::json;
use streamdoor::base::Instant;
use streamdoor::engine::{From, SubscribeSpec};
use streamdoor::reactor::{Choice, Clock, Idle};
use streamdoor::shard::{Delivery, ExecuteOptions, Subscriber};
use streamdoor::stream::{End, EndState, Gap, Outcome, Policy};

use crate::cli::CliError;
use crate::cli::console::{is_dumb, print_out};
use crate::cli::session::{self, LocalSession};
use crate::cli::words::{counted, time};

const CHUNKS: u64 = 400;
const CHUNK_BYTES: u64 = 400;
const TOOL_DELAY: Duration = Duration::from_millis(5);
/// The late subscriber attaches after this chunk.
const LATE_AFTER: u64 = 300;
/// The largest lag of the subscribers with a limit of their own.
const LAG_CHUNKS: u32 = 8;

/// Number of characters of a subscriber's bar. Each stands for the same number of chunks.
const CELLS: u64 = 50;
const DRAW_INTERVAL: Duration = Duration::from_millis(100);
const LINE_INTERVAL: Duration = Duration::from_secs(1);

/// A subscriber of the show: its name, its policy, its limit, and its time for each chunk.
struct Part {
    name: &'static str,
    policy: Policy,
    limit_chunks: Option<u32>,
    pace: Duration,
}

const PARTS: [Part; 3] = [
    Part {
        name: "block",
        policy: Policy::Block,
        limit_chunks: Some(LAG_CHUNKS),
        pace: Duration::from_millis(20),
    },
    Part {
        name: "drop",
        policy: Policy::Drop,
        limit_chunks: Some(LAG_CHUNKS),
        pace: Duration::from_millis(60),
    },
    Part {
        name: "conflate",
        policy: Policy::Conflate,
        limit_chunks: None,
        pace: Duration::from_millis(250),
    },
];

const LATE: Part =
    Part { name: "late", policy: Policy::Buffer, limit_chunks: None, pace: Duration::ZERO };

/// The chunks that one subscriber has received and missed so far.
struct Seen {
    name: &'static str,
    /// For each chunk: true if it was received. Chunks after the last one are still to come.
    chunks: Vec<bool>,
    received: u64,
    gaps: Vec<Gap>,
    end: Option<End>,
}

/// The state of all subscribers, which their threads and the picture share.
type Board = Arc<Mutex<Vec<Seen>>>;

/// Runs the demonstration.
pub fn run((reactor, idle): (Choice, Idle)) -> Result<(), CliError> {
    let arguments = json!({
        "chunks": CHUNKS,
        "delay_ms": TOOL_DELAY.as_millis() as u64,
        "chunk_size": CHUNK_BYTES,
    });
    let prepared = session::prepare(&session::tools(false), "slow_data_processor", &arguments)?;
    let options = ExecuteOptions::default();
    let session = LocalSession::open((reactor, idle), prepared, PARTS.len(), options)?;
    introduce();
    let board = Board::default();
    let began = Clock::now();
    let mut threads = Vec::new();
    for part in &PARTS {
        threads.push(join(&session, part, From::Live, &board)?);
    }
    let mut picture = Picture::new(began);
    loop {
        let newest = lock(&board).iter().map(|seen| seen.chunks.len() as u64).max().unwrap_or(0);
        if newest >= LATE_AFTER && threads.len() == PARTS.len() {
            threads.push(join(&session, &LATE, From::Start, &board)?);
        }
        picture.show(&lock(&board));
        if threads.iter().all(std::thread::JoinHandle::is_finished) {
            break;
        }
        std::thread::sleep(DRAW_INTERVAL);
    }
    let took = Clock::now().since(began);
    let died = |_| CliError::Failed("a subscriber died".to_owned());
    threads.into_iter().try_for_each(|thread| thread.join().map_err(died))?;
    picture.finish(&lock(&board));
    explain(&lock(&board), took)
}

fn introduce() {
    print_out!(
        "One tool makes {CHUNKS} chunks, one each {}. Four subscribers read them at the same time:",
        time(TOOL_DELAY)
    );
    for part in &PARTS {
        let pace = part.pace.as_millis();
        print_out!(
            "  {:<10}takes {pace} ms for each chunk; its policy is {}",
            part.name,
            part.policy
        );
    }
    print_out!("  {:<10}is fast, but comes only after chunk {LATE_AFTER}\n", LATE.name);
    print_out!("In the picture, # is received, . is missed, and + is some of both.\n");
}

/// Attaches a subscriber and starts its thread.
fn join(
    session: &LocalSession,
    part: &'static Part,
    from: From,
    board: &Board,
) -> Result<std::thread::JoinHandle<()>, CliError> {
    let Part { policy, limit_chunks, .. } = *part;
    let spec = SubscribeSpec { policy, limit_chunks, from, ..Default::default() };
    let subscriber = session.subscribe(spec)?;
    let place = {
        let mut seen = lock(board);
        let (chunks, gaps) = (Vec::new(), Vec::new());
        seen.push(Seen { name: part.name, chunks, received: 0, gaps, end: None });
        seen.len() - 1
    };
    let board = Arc::clone(board);
    let builder = std::thread::Builder::new().name(part.name.to_owned());
    let started = builder.spawn(move || read(subscriber, part.pace, place, &board));
    started.map_err(|error| {
        CliError::Failed(format!("no thread can be started for a subscriber: {error}"))
    })
}

/// The thread of a subscriber: notes each delivery on the board, and takes its time.
fn read(mut subscriber: Subscriber, pace: Duration, place: usize, board: &Board) {
    loop {
        let delivery = subscriber.next();
        let is_chunk = matches!(delivery, Delivery::Chunk(_));
        if lock(board)[place].take(&delivery) {
            return;
        }
        if is_chunk && !pace.is_zero() {
            std::thread::sleep(pace);
        }
    }
}

impl Seen {
    /// Notes a delivery. Returns true after the end.
    fn take(&mut self, delivery: &Delivery<'_>) -> bool {
        match delivery {
            Delivery::Chunk(chunk) => {
                self.chunks.resize(chunk.seq as usize, false);
                self.chunks[chunk.seq as usize - 1] = true;
                self.received += 1;
            }
            Delivery::Gap(gap) => {
                self.chunks.resize(gap.to_seq as usize, false);
                self.gaps.push(*gap);
            }
            Delivery::Progress(_) => {}
            Delivery::End(ended) => self.end = Some(ended.end),
        }
        self.end.is_some()
    }
}

fn lock(board: &Board) -> std::sync::MutexGuard<'_, Vec<Seen>> {
    board.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The picture of all subscribers: redrawn on a terminal, and a line a second elsewhere.
struct Picture {
    began: Instant,
    is_redrawn: bool,
    drawn_lines: usize,
    line_at: Instant,
}

impl Picture {
    fn new(began: Instant) -> Picture {
        let is_redrawn = io::stdout().is_terminal() && !is_dumb();
        Picture { began, is_redrawn, drawn_lines: 0, line_at: began + LINE_INTERVAL }
    }

    fn show(&mut self, all: &[Seen]) {
        let now = Clock::now();
        if self.is_redrawn {
            self.draw(all);
        } else if now >= self.line_at {
            self.line_at = now + LINE_INTERVAL;
            let states: Vec<String> = all.iter().map(in_numbers).collect();
            print_out!("{:>7}  {}", time(now.since(self.began)), states.join(", "));
        }
    }

    fn draw(&mut self, all: &[Seen]) {
        if self.drawn_lines > 0 {
            let up = format!("\x1b[{}A\r\x1b[J", self.drawn_lines);
            let _ = io::stdout().write_all(up.as_bytes()); // The next line reports an error.
        }
        for seen in all {
            print_out!("{}", bar(seen));
        }
        self.drawn_lines = all.len();
    }

    /// Shows the last state, which is the same picture everywhere.
    fn finish(&mut self, all: &[Seen]) {
        if !self.is_redrawn {
            print_out!("");
        }
        self.draw(all);
        print_out!("");
    }
}

fn in_numbers(seen: &Seen) -> String {
    let missed = seen.chunks.len() as u64 - seen.received;
    format!("{} {} ({missed} missed)", seen.name, seen.received)
}

/// Returns a line such as `drop  |##.#+     |  35 received,  10 missed`.
fn bar(seen: &Seen) -> String {
    let per_cell = (CHUNKS / CELLS) as usize;
    let mut cells: String = seen
        .chunks
        .chunks(per_cell)
        .map(|cell| match cell.iter().filter(|is_received| **is_received).count() {
            0 => '.',
            count if count == cell.len() => '#',
            _ => '+',
        })
        .collect();
    cells.extend(std::iter::repeat_n(' ', (CELLS as usize).saturating_sub(cells.len())));
    let missed = seen.chunks.len() as u64 - seen.received;
    format!("{:<9}|{cells}| {:>3} received, {missed:>3} missed", seen.name, seen.received)
}

/// Explains the picture. Fails if a subscriber did not get its end, or if the numbers do not add
/// up.
fn explain(all: &[Seen], took: Duration) -> Result<(), CliError> {
    for seen in all {
        let Some(end) = seen.end else {
            return Err(CliError::Failed(format!("{} did not get its end", seen.name)));
        };
        let reported: u64 = seen.gaps.iter().map(|gap| gap.chunk_count).sum();
        let is_exact = seen.received + reported == CHUNKS && end.missed.chunks == reported;
        if end.state != EndState::Ended(Outcome::Completed) || !is_exact {
            let (name, received, state) = (seen.name, seen.received, end.state);
            let text = format!("{name}: {state}, {received} received, {reported} in gaps");
            return Err(CliError::Failed(text));
        }
    }
    let alone = time(TOOL_DELAY * CHUNKS as u32);
    print_out!(
        "block     got every chunk. The tool waited for it: it took {} and not {alone}.",
        time(took)
    );
    for seen in &all[1..] {
        let gaps = counted(seen.gaps.len() as u64, "gap");
        let missed = counted(CHUNKS - seen.received, "chunk");
        let first = seen.gaps.first().map_or_else(String::new, |gap| {
            format!(" The first gap is chunks {} to {} ({}).", gap.from_seq, gap.to_seq, gap.reason)
        });
        print_out!("{:<10}{}", seen.name, sentence(seen.name));
        print_out!("{:<10}It missed {missed} in {gaps}.{first}", "");
    }
    print_out!(
        "\nEach gap was reported exactly, so received and missed are {CHUNKS} for everyone. Each \
         got one end.\nTry your own: streamdoor demo --policy drop --delay 1ms --chunks 200"
    );
    Ok(())
}

fn sentence(name: &str) -> &'static str {
    match name {
        "drop" => "did not slow the tool.",
        "conflate" => "always got the newest chunk.",
        _ => "got the chunks that were still held, and then the new ones.",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bar_shows_what_was_received_and_missed() {
        let per_cell = (CHUNKS / CELLS) as usize;
        let mut chunks = vec![true; per_cell];
        chunks.extend(vec![false; per_cell]);
        chunks.extend([true, false]);
        let received = per_cell as u64 + 1;
        let seen = Seen { name: "drop", chunks, received, gaps: Vec::new(), end: None };
        let spaces = " ".repeat(CELLS as usize - 3);
        let missed = per_cell as u64 + 1;
        let numbers = format!("{received:>3} received, {missed:>3} missed");
        assert_eq!(bar(&seen), format!("drop     |#.+{spaces}| {numbers}"));
    }
}
