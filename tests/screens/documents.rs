//! The documents of a server whose numbers never change.

use serde_json::{Value, json};

fn id(letter: char) -> String {
    letter.to_string().repeat(26)
}

fn summary(letter: char, tool: &str, state: &str, chunks: u64, age_ms: u64) -> Value {
    json!({
        "execution": id(letter), "tool": tool, "state": state, "chunks": chunks,
        "bytes": chunks * 100, "subscribers": 2, "age_ms": age_ms,
        "created_at": "2026-01-01T00:00:00.000Z",
    })
}

fn summaries() -> Vec<Value> {
    vec![
        summary('1', "slow_data_processor", "running", 120, 3_500),
        summary('2', "a_tool_with_a_name_that_is_long", "queued", 0, 90_000),
        summary('3', "search_files", "completed", 1_234_567, 7_200_000),
    ]
}

fn subscriber(name: &str, policy: &str, lag: u64, missed: u64, holds_back: bool) -> Value {
    json!({
        "subscriber": name, "place": "local", "policy": policy, "limits": {"max_chunks": 64},
        "next_seq": 121 - lag, "lag_chunks": lag, "lag_bytes": lag * 100,
        "missed_chunks": missed, "missed_bytes": missed * 100, "holds_back": holds_back,
        "lost": false, "age_ms": 3_000,
    })
}

/// Returns the document at the path.
pub fn answer(path: &str) -> String {
    let document = match path.split('?').next().unwrap() {
        "/metrics" => return METRICS.to_owned(),
        "/v1/executions" => json!({"executions": summaries()}),
        "/v1/progress" => json!({"progress": [{
            "token": "0".repeat(39), "execution": id('1'),
            "progress": {"progress": 120.0, "total": 200.0, "percentage": 60.0,
                         "message": "chunk 120 of 200"},
        }]}),
        path => {
            let mut status = summaries()
                .into_iter()
                .find(|one| path.ends_with(one["execution"].as_str().unwrap()))
                .unwrap_or_else(|| panic!("{path}"));
            status["head_seq"] = json!(1);
            status["tail_seq"] = json!(1);
            status["held_back"] = json!(path.ends_with('1'));
            status["held_back_by"] = json!(["1a"]);
            status["subscribers"] = json!([
                subscriber("1a", "block", 40, 0, true),
                subscriber("1b", "drop", 3, 17, false),
            ]);
            status["links"] = json!({"self": "", "events": "", "result": "", "output": ""});
            status
        }
    };
    document.to_string()
}

const METRICS: &str = "\
streamdoor_connections{shard=\"0\"} 3
streamdoor_connections_allowed{shard=\"0\"} 16384
streamdoor_subscribers{shard=\"0\"} 4
streamdoor_chunks_published_total{shard=\"0\"} 1234687
streamdoor_published_bytes_total{shard=\"0\"} 123468700
streamdoor_chunks_delivered_total{shard=\"0\"} 2469374
streamdoor_delivered_bytes_total{shard=\"0\"} 246937400
streamdoor_chunks_missed_total{shard=\"0\"} 17
streamdoor_missed_bytes_total{shard=\"0\"} 1700
streamdoor_gaps_delivered_total{shard=\"0\"} 2
streamdoor_producers_paused_total{shard=\"0\"} 5
streamdoor_executions_failed_total{shard=\"0\"} 1
streamdoor_executions_timed_out_total{shard=\"0\"} 0
streamdoor_rings_leased{shard=\"0\"} 3
streamdoor_rings_leased_bytes{shard=\"0\"} 196608
streamdoor_rings_committed_bytes{shard=\"0\"} 16777216
streamdoor_rings_allowed_bytes{shard=\"0\"} 1073741824
streamdoor_memory_pressure_level{shard=\"0\"} 0
streamdoor_stalls_total{shard=\"0\"} 1
streamdoor_turns_stalled_total{shard=\"0\",duty=\"requests\"} 1
";
