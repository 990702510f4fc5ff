//! The three works of `bench streams`: appends, readers that follow, and readers that catch up.
//!
//! An append counts from its request to its reply. An event counts from the time at which it was
//! due until a reader holds it. Each payload has [`MARK`] and that time. A mark occurs nowhere else
//! in the bytes of a server.

use std::time::Duration;

use super::clients::{Clients, write_get, write_request};
use super::server::Server;
use super::{Found, Params};
use crate::common::Failure;
use crate::common::machine::now_ns;
use crate::common::source::Arrivals;

const TEXT: &str = "text/plain";
const BYTES: &str = "application/octet-stream";
/// The byte in front of the time in each payload.
const MARK: u8 = b'@';
/// Hexadecimal digits of the time.
const DIGITS: usize = 16;
pub const SIZE_BYTES_MIN: usize = 1 + DIGITS;
/// Number of connections that create streams.
const CREATORS: usize = 64;
/// The size of the appends that fill a stream.
const FILL_BYTES: usize = 256 << 10;
/// The time between the last reader and the first event.
const LEAD_NS: u64 = 50_000_000;
/// The time that is left after the plan for appends and events that are late. Others are missed.
const LATE: Duration = Duration::from_secs(10);

fn name(index: u64) -> String {
    format!("bench-{index}")
}

/// Creates streams, and appends once to each. Returns their number a second.
fn create(server: &Server, streams: u64, size_bytes: usize) -> Result<f64, Failure> {
    let mut clients = Clients::connect(server.address, CREATORS.min(streams as usize))?;
    let (body, mut next, begun_ns) = (vec![b'.'; size_bytes], 0, now_ns());
    let request = |_: usize, _: Option<&_>, out: &mut Vec<u8>| {
        if next < streams {
            write_request(out, "PUT", &name(next), TEXT, &body);
        }
        next += 1;
        next <= streams
    };
    clients.drive(request, |_, _| {})?;
    Ok(streams as f64 * 1e9 / (now_ns() - begun_ns) as f64)
}

/// Appends to all streams in turn, with a number of appends under way.
pub fn append(server: &Server, params: &Params) -> Result<Found, Failure> {
    let before_bytes = server.memory_bytes();
    let creates_per_s = create(server, params.streams, params.size_bytes)?;
    let grown_bytes = server.memory_bytes().saturating_sub(before_bytes);
    let mut clients = Clients::connect(server.address, params.in_flight)?;
    let body = vec![b'.'; params.size_bytes];
    let counted_from_ns = now_ns() + params.warmup.as_nanos() as u64;
    let end_ns = counted_from_ns + params.duration.as_nanos() as u64;
    let mut sent_ns = vec![0; params.in_flight];
    let (mut samples_ns, mut next) = (Vec::new(), 0);
    clients.drive(
        |index, reply, out| {
            let now = now_ns();
            if reply.is_some() && now >= counted_from_ns && now < end_ns {
                samples_ns.push((now - sent_ns[index]).min(u64::from(u32::MAX)) as u32);
            }
            sent_ns[index] = now;
            write_request(out, "POST", &name(next % params.streams), TEXT, &body);
            next += 1;
            now < end_ns
        },
        |_, _| {},
    )?;
    let appends_per_s = samples_ns.len() as f64 / params.duration.as_secs_f64();
    Ok(Found {
        samples_ns,
        numbers: vec![
            ("appends_per_s", appends_per_s),
            ("creates_per_s", creates_per_s),
            ("stream_bytes", grown_bytes as f64 / params.streams as f64),
        ],
    })
}

/// The times in the payloads that one reader gets, wherever they are cut.
#[derive(Clone, Default)]
struct Marks {
    digits: Option<Vec<u8>>,
}

impl Marks {
    fn take(&mut self, bytes: &[u8], mut due: impl FnMut(u64)) {
        for &byte in bytes {
            let Some(digits) = &mut self.digits else {
                if byte == MARK {
                    self.digits = Some(Vec::with_capacity(DIGITS));
                }
                continue;
            };
            digits.push(byte);
            if digits.len() == DIGITS {
                let text = std::str::from_utf8(digits).unwrap_or_default();
                due(u64::from_str_radix(text, 16).unwrap_or(0));
                self.digits = None;
            }
        }
    }
}

/// Creates a stream, and lets readers follow it. Returns the connection of the producer, and those
/// of the readers with the memory that the server took for each.
fn follow(server: &Server, readers: usize) -> Result<(Clients, Clients, f64), Failure> {
    let mut producer = Clients::connect(server.address, 1)?;
    let create = |_: usize, reply: Option<&_>, out: &mut Vec<u8>| {
        write_request(out, "PUT", &name(0), TEXT, b"");
        reply.is_none()
    };
    producer.drive(create, |_, _| {})?;
    let before_bytes = server.memory_bytes();
    let mut clients = Clients::connect(server.address, readers)?;
    let mut request = Vec::new();
    write_get(&mut request, &format!("{}?offset=-1&live=sse", name(0)));
    for index in 0..readers {
        clients.send(index, &request)?;
    }
    while !(0..readers).all(|index| clients.has_head(index)) {
        clients.turn(|_, _| {})?;
    }
    let grown_bytes = server.memory_bytes().saturating_sub(before_bytes);
    Ok((producer, clients, grown_bytes as f64 / readers as f64))
}

/// Appends to one stream at planned times, one append at a time. All readers follow it.
pub fn fanout(server: &Server, params: &Params) -> Result<Found, Failure> {
    let (mut producer, mut readers, reader_bytes) = follow(server, params.readers)?;
    let count_of = |time: Duration| (time.as_secs_f64() * f64::from(params.rate)) as u64;
    let (warmup, counted) = (count_of(params.warmup), count_of(params.duration).max(1));
    let expected = (warmup + counted) * params.readers as u64;
    let mut arrivals = Arrivals::new(params.rate, params.seed);
    let origin_ns = now_ns() + LEAD_NS;
    let mut due_ns = origin_ns + arrivals.next_ns();
    let limit_ns = origin_ns + (params.warmup + params.duration + LATE).as_nanos() as u64;
    let (mut left, mut is_under_way, mut counted_from_ns) = (warmup + counted, false, u64::MAX);
    let mut marks = vec![Marks::default(); params.readers];
    let (mut samples_ns, mut deliveries) = (Vec::new(), 0);
    let (mut body, mut request) = (vec![b'.'; params.size_bytes], Vec::new());
    while deliveries < expected && now_ns() < limit_ns {
        if left > 0 && !is_under_way && now_ns() >= due_ns {
            if left == counted {
                counted_from_ns = due_ns;
            }
            body[0] = MARK;
            body[1..=DIGITS].copy_from_slice(format!("{due_ns:016x}").as_bytes());
            request.clear();
            write_request(&mut request, "POST", &name(0), TEXT, &body);
            producer.send(0, &request)?;
            (left, is_under_way) = (left - 1, true);
            due_ns = origin_ns + arrivals.next_ns();
        }
        if is_under_way {
            producer.turn(|_, _| {})?;
            is_under_way = producer.next_reply()?.is_none();
        }
        readers.turn(|index, bytes| {
            let now = now_ns();
            marks[index].take(bytes, |due| {
                deliveries += 1;
                if due >= counted_from_ns {
                    samples_ns.push(now.saturating_sub(due).min(u64::from(u32::MAX)) as u32);
                }
            });
        })?;
    }
    let numbers = vec![
        ("missed_deliveries", expected.saturating_sub(deliveries) as f64),
        ("closed_readers", readers.closed_count as f64),
        ("reader_bytes", reader_bytes),
    ];
    Ok(Found { samples_ns, numbers })
}

/// Fills one stream. Then all readers read it from the start to the end, once.
pub fn catch_up(server: &Server, params: &Params) -> Result<Found, Failure> {
    let target = name(0);
    let (fill, mut left_bytes) = (vec![b'.'; FILL_BYTES], params.mib << 20);
    let mut producer = Clients::connect(server.address, 1)?;
    let fill_with = |_: usize, reply: Option<&_>, out: &mut Vec<u8>| {
        if reply.is_none() {
            write_request(out, "PUT", &target, BYTES, b"");
            return true;
        }
        let count = left_bytes.min(FILL_BYTES as u64);
        left_bytes -= count;
        write_request(out, "POST", &target, BYTES, &fill[..count as usize]);
        count > 0
    };
    producer.drive(fill_with, |_, _| {})?;

    let mut readers = Clients::connect(server.address, params.readers)?;
    let (mut read_bytes, begun_ns) = (vec![0; params.readers], now_ns());
    let mut samples_ns = Vec::new();
    readers.drive(
        |_, reply, out| {
            let offset = match reply {
                None => "-1",
                Some(reply) if reply.is_up_to_date => {
                    let elapsed_ns = now_ns() - begun_ns;
                    samples_ns.push(elapsed_ns.min(u64::from(u32::MAX)) as u32);
                    return false;
                }
                Some(reply) => &reply.next_offset,
            };
            write_get(out, &format!("{target}?offset={offset}"));
            true
        },
        |index, bytes| read_bytes[index] += bytes.len() as u64,
    )?;
    let elapsed_ns = now_ns() - begun_ns;
    if let Some(count) = read_bytes.iter().find(|count| **count != params.mib << 20) {
        return Err(Failure::Failed(format!("a reader got {count} bytes")));
    }
    let mb_per_s = read_bytes.iter().sum::<u64>() as f64 * 1e3 / elapsed_ns as f64;
    Ok(Found { samples_ns, numbers: vec![("mb_per_s", mb_per_s)] })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_are_found_wherever_they_are_cut() {
        let text = b"event: data\ndata:@00000000000000ff...@0000000000000100..\n\n";
        for cut in 0..text.len() {
            let (mut marks, mut found) = (Marks::default(), Vec::new());
            marks.take(&text[..cut], |due| found.push(due));
            marks.take(&text[cut..], |due| found.push(due));
            assert_eq!(found, [0xff, 0x100], "{cut}");
        }
    }
}
