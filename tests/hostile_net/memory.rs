//! A server with little memory: in a cgroup of 64 MiB, and with a full /dev/shm.

use std::process::Command;

use serde_json::json;

use crate::ALONE;
use crate::limited::{Cgroup, LIMIT_BYTES};
use crate::normal::{Follower, NormalClient};
use crate::served::Server;

/// Maximum number of executions until memory runs out. Each has a ring and no subscriber.
const EXECUTIONS_MAX: usize = 5_000;

fn survive(name: &str, server: &Server) {
    let mut client = NormalClient::new(server);
    let mut follower = Follower::new(server);
    follower.read(5);
    let order = json!({
        "tool": "slow_data_processor",
        "arguments": {"chunks": 100_000, "delay_ms": 0},
        "hold": {"until_read_ms": 3_600_000},
        "start": {"after_subscribers": 9, "deadline_ms": 3_600_000},
    });
    let mut executions = Vec::new();
    let refusal = loop {
        assert!(executions.len() < EXECUTIONS_MAX, "nothing is ever refused");
        let answer = client.ask("POST", "/v1/executions", &order.to_string());
        match answer.status {
            201 => executions.push(answer.body["execution"].as_str().unwrap().to_owned()),
            _ => break answer,
        }
    };
    println!("{name}: {} executions, then {} {}", executions.len(), refusal.status, refusal.body);
    assert!(matches!(refusal.status, 429 | 503), "{}", refusal.body);
    let error = &refusal.body["error"];
    assert!(matches!(error["code"].as_str(), Some("busy" | "too_many_executions")), "{error}");
    assert!(!error["message"].as_str().unwrap().is_empty());
    // Running executions go on, and new clients are served.
    follower.read(20);
    NormalClient::new(server).check();
    for (at, execution) in executions.into_iter().enumerate() {
        let deleted = client.ask("DELETE", &format!("/v1/executions/{execution}"), "");
        assert!(
            matches!(deleted.status, 200 | 202),
            "{at}: {} {}",
            deleted.body,
            client.ask_text("/metrics")
        );
    }
    let mut next = Follower::new(server);
    next.read(20);
    follower.read(5);
}

#[test]
fn in_64_mib_it_serves_what_it_has_refuses_what_it_cannot_and_recovers() {
    let _alone = ALONE.lock().unwrap_or_else(|error| error.into_inner());
    let Some(cgroup) = Cgroup::new() else {
        println!("not run: no cgroup with a memory limit can be made here");
        return;
    };
    let server = Server::start_by(&cgroup.launcher(), &["--executions-max", "4096"]);
    survive("64 MiB", &server);
    let peak_bytes = cgroup.number(&["memory.max_usage_in_bytes", "memory.peak"]);
    println!("peak of the cgroup: {peak_bytes:?} bytes of {LIMIT_BYTES}");
}

#[test]
fn a_full_dev_shm_is_nothing_to_it() {
    let _alone = ALONE.lock().unwrap_or_else(|error| error.into_inner());
    let script = "mount -t tmpfs -o size=64k none /dev/shm && \
                  { head -c 1M /dev/zero > /dev/shm/full; exec \"$@\"; } 2> /dev/null";
    let probe = Command::new("unshare").args(["-m", "sh", "-c", script, "sh", "true"]).status();
    if !probe.is_ok_and(|status| status.success()) {
        println!("not run: no tmpfs can be mounted in a namespace of one's own here");
        return;
    }
    let script = script.replace(" 2> /dev/null", "").replace("full;", "full 2> /dev/null;");
    let launcher = ["unshare", "-m", "sh", "-c", &script, "sh"].map(str::to_owned);
    let server = Server::start_by(&launcher, &[]);
    survive("/dev/shm full", &server);
}
