//! One conformance list for `streamdoor::reactor::Reactor`, run against io_uring, mio and the
//! simulator. R1 to R36 are the numbers in the contract of the trait. Properties of real
//! descriptors (terminals, files, flags) are tested beside the backends.
//!
//! `SEED=n cargo test --lib sim::contract` runs one seed instead of all.

mod addresses;
mod connects;
mod disks;
mod exhaustion;
mod listeners;
mod moves;
mod network;
mod sockets;
mod threads;
mod waits;
mod worlds;

use std::process::Command;

use streamdoor::reactor::{AdoptError, Clock, PolledReactor, Reactor, UringReactor};
use streamdoor::sim::reactor::SimReactor;
use streamdoor::sim::world::{SimFaults, SimWorld};

use network::{Server, SocketKind};
use worlds::{ContractWorld, Real};

/// Tests that count or limit the descriptors of the process have one of their own.
const ALONE: &[&str] = &["a_dropped_reactor", "out_of_descriptors"];
/// Set in such a process.
const IS_ALONE: &str = "STREAMDOOR_CONTRACT_ALONE";

fn seeds(count: u64) -> Vec<u64> {
    match std::env::var("SEED") {
        Ok(text) => vec![text.parse().expect("SEED is a number")],
        Err(_) => (1..=count).collect(),
    }
}

fn run<W: ContractWorld>(path: &str, seed_count: u64, make: impl Fn(u64) -> W, test: fn(&W, u64)) {
    for seed in seeds(seed_count) {
        println!("SEED={seed} {path}"); // Shown if the test fails.
        test(&make(seed), seed);
    }
}

/// Runs `body` of the test with this path, in a process of its own if it needs one.
fn in_turn(path: &str, body: impl FnOnce()) {
    let (_, name) = path.rsplit_once("::").expect("a path has modules");
    let needs_process = ALONE.iter().any(|start| name.starts_with(start));
    if !needs_process || std::env::var_os(IS_ALONE).is_some() {
        return body();
    }
    let (_, path) = path.split_once("::").expect("it begins with the crate");
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args([path, "--exact", "--nocapture"]).env(IS_ALONE, "1");
    let output = command.output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    println!("{said}{}", String::from_utf8_lossy(&output.stderr)); // Shown when it fails.
    assert!(output.status.success() && said.contains("1 passed"), "{path}: {}", output.status);
}

fn run_uring(path: &str, test: fn(&Real<UringReactor>, u64)) {
    in_turn(path, || match UringReactor::new() {
        Err(reason) => println!("not run: {reason}"),
        Ok(_) => {
            let make = || UringReactor::new().unwrap();
            run(path, 2, |_| Real { make }, test);
        }
    });
}

fn run_mio(path: &str, test: fn(&Real<PolledReactor>, u64)) {
    let make = || PolledReactor::new().unwrap();
    in_turn(path, || run(path, 2, |_| Real { make }, test));
}

fn run_sim(path: &str, test: fn(&SimWorld, u64)) {
    in_turn(path, || {
        run(path, 4, |seed| SimWorld::new(seed, SimFaults::NONE), test);
        run(path, 30, |seed| SimWorld::new(seed, SimFaults::ALL), test);
    });
}

/// The path of a test of the module that this stands in.
macro_rules! path_of {
    ($test:ident) => {
        concat!(module_path!(), "::", stringify!($test))
    };
}

macro_rules! conformance {
    ($($group:ident::$test:ident)*) => {
        mod uring {
            $(#[test] fn $test() {
                super::run_uring(path_of!($test), super::$group::$test);
            })*
        }
        mod mio {
            $(#[test] fn $test() {
                super::run_mio(path_of!($test), super::$group::$test);
            })*
        }
        mod sim {
            $(#[test] fn $test() {
                super::run_sim(path_of!($test), super::$group::$test);
            })*
        }
    };
}

conformance! {
    waits::a_deadline_is_never_early_and_ends_a_wait_for_nothing
    waits::a_wake_before_a_wait_ends_it_at_once
    waits::a_wake_from_elsewhere_ends_a_wait
    waits::ten_thousand_wakes_are_one
    waits::a_wake_that_races_a_wait_is_never_lost
    waits::a_waker_outlives_its_reactor
    waits::a_poll_never_waits
    waits::an_event_not_yet_taken_ends_a_wait_at_once
    waits::an_event_ends_a_wait_whatever_the_deadline
    waits::time_never_goes_back
    waits::sigpipe_is_blocked
    sockets::a_connection_is_told_of_once_with_its_peer
    sockets::an_echo_gives_every_byte_back_in_order
    sockets::a_slow_reader_cuts_sends_and_one_event_says_when_to_go_on
    sockets::a_bound_holds_little_of_what_nobody_reads_and_loses_nothing
    sockets::many_slices_and_empty_ones_arrive_as_one_run_of_bytes
    sockets::a_client_that_finishes_still_receives
    sockets::a_server_that_finishes_still_receives
    sockets::a_reset_while_sending_is_told_and_ends_all_sending
    sockets::a_pause_of_receiving_tells_nothing_and_loses_nothing
    sockets::bytes_and_an_end_that_race_a_pause_are_told_after_it
    sockets::a_closed_connection_is_never_told_of_again
    sockets::nothing_is_lost_in_disorder_of_sockets
    listeners::an_address_in_use_is_an_error_that_names_it
    listeners::listeners_that_share_a_port_get_every_connection_once
    listeners::a_closed_listener_refuses_and_its_connections_live_on
    listeners::a_full_house_pauses_and_nobody_is_dropped
    listeners::a_thousand_connections_come_and_go
    listeners::idle_connections_cost_no_processor_time
    listeners::a_dropped_reactor_ends_its_connections
    exhaustion::out_of_descriptors_listeners_pause_and_nobody_is_dropped
    listeners::nothing_can_be_done_with_names_that_were_never_given
    moves::a_request_that_is_cut_by_a_move_arrives_whole
    moves::a_cut_send_goes_on_where_the_connection_went
    moves::a_connection_that_moves_outlives_its_listener
    moves::an_end_that_meets_a_move_is_told_once
    moves::a_reset_that_meets_a_move_ends_it_where_it_is
    moves::a_send_that_was_broken_stays_broken_after_a_move
    moves::a_full_reactor_gives_the_socket_back
    moves::a_place_that_was_given_away_is_the_next_ones
    moves::a_name_that_was_released_is_nothing_and_never_comes_back
    moves::a_close_during_a_release_is_the_end
    moves::a_thousand_moves_lose_no_byte
    moves::a_dropped_reactor_or_socket_ends_what_was_on_its_way
    waits::a_wake_through_another_reactor_is_as_good
    connects::who_is_asked_is_told_of_before_his_bytes
    connects::nothing_moves_before_it_is_connected
    connects::a_refusal_is_told_once_and_breaks_all_sending
    connects::where_no_way_leads_nobody_is_waited_for
    connects::a_close_gives_the_try_up_and_its_place_back
    connects::a_full_reactor_connects_to_nobody
    connects::who_accepts_and_closes_was_there
    connects::a_reset_at_once_is_told_as_one_of_two
    connects::a_side_that_finishes_still_receives
    connects::a_pause_from_before_holds_bytes_and_not_the_news
    connects::a_reactor_connects_to_itself_many_times
    connects::a_connection_that_was_asked_for_moves_as_any_other
    connects::a_dropped_reactor_gives_up_what_it_asked_for
    connects::out_of_descriptors_nothing_is_left_behind
    connects::a_storm_of_tries_and_closes_loses_nothing
    disks::a_file_gives_back_what_was_written_to_it
    disks::every_request_completes_once_and_gives_its_buffer_back
    disks::a_read_at_the_end_of_a_file_has_fewer_bytes
    disks::what_does_not_exist_is_an_error_value
    disks::a_closed_file_names_nothing_and_what_was_in_flight_completes
    disks::a_rename_replaces_and_a_list_tells
    disks::no_more_operations_than_allowed_are_in_flight
    disks::no_more_files_than_allowed_are_open
    disks::a_completion_ends_a_wait_and_is_counted_until_it_is_taken
    disks::wakes_and_completions_do_not_hide_each_other
    disks::a_disk_and_sockets_serve_one_reactor
    disks::a_reactor_has_one_disk_or_none
    disks::operations_in_disorder_lose_no_byte
    disks::a_dropped_reactor_carries_out_what_it_took_and_leaks_nothing
}

macro_rules! conformance_of_threads {
    ($($test:ident)*) => {
        mod uring_threads {
            $(#[test] fn $test() {
                super::run_uring(path_of!($test), super::threads::$test);
            })*
        }
        mod mio_threads {
            $(#[test] fn $test() {
                super::run_mio(path_of!($test), super::threads::$test);
            })*
        }
    };
}

conformance_of_threads! {
    wakes_between_threads_are_never_lost
    a_wake_outlives_who_gave_it
    a_connection_moves_between_threads_and_loses_nothing
}

#[test]
fn a_socket_is_adopted_in_its_own_world_alone() {
    let world = SimWorld::new(1, SimFaults::NONE);
    let mut server = Server::new(&world, SocketKind::Tcp, 4);
    let (client, id) = server.meet(&world);
    let (seen, socket) = server.release(id);
    let mut polled = PolledReactor::new().unwrap();
    let error = polled.adopt(socket).unwrap_err();
    assert!(matches!(error, AdoptError::Foreign { .. }), "{error:?}");
    let mut elsewhere = SimReactor::new(&SimWorld::new(1, SimFaults::NONE));
    let error = elsewhere.adopt(error.into_socket()).unwrap_err();
    assert!(error.to_string().contains("another world"), "{error}");
    let id = server.adopt(seen, error.into_socket());
    assert_eq!(server.send_all(&world, id, &client, b"home"), b"home");
    let mut real =
        Server::new(&Real { make: || PolledReactor::new().unwrap() }, SocketKind::Tcp, 4);
    let (_client, id) = real.meet(&Real { make: || PolledReactor::new().unwrap() });
    let (_, socket) = real.release(id);
    assert!(matches!(server.reactor.adopt(socket), Err(AdoptError::Foreign { .. })));
}

#[test]
fn the_clock_of_real_reactors_is_the_one_that_other_threads_read() {
    let mut reactor = PolledReactor::new().unwrap();
    let before = Clock::now();
    let now = reactor.now();
    assert!(before <= now && now <= Clock::now());
}
