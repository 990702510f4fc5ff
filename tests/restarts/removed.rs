//! Executions that were removed: nobody finds them, now and after a restart.

use serde_json::json;

use crate::served;
use crate::world::{Folder, execute, get, inspect, kill, run};

#[test]
fn a_removed_execution_is_gone_at_once_and_for_good() {
    let folder = Folder::new("removed");
    let server = folder.serve(&[]);
    let arguments = || json!({"chunks": 5, "delay_ms": 0});
    let (one, other) = (
        run(&server, "slow_data_processor", arguments()),
        run(&server, "slow_data_processor", arguments()),
    );
    let long = json!({"chunks": 100_000, "delay_ms": 5});
    let long = execute(&server, &json!({"tool": "slow_data_processor", "arguments": long}));
    let remove = |server: &served::Server, id: &str| {
        let path = format!("/v1/executions/{id}?forget=true");
        served::ask(&server.address, "DELETE", &path, "")
    };
    let (status, body) = remove(&server, &long);
    assert!(status == 409 && body.contains("\"running\""), "{status} {body}");
    assert_eq!(remove(&server, &one).0, 204);
    assert_eq!(remove(&server, &one).0, 404);
    let is_gone = |server: &served::Server| {
        assert_eq!(inspect(server, &one).0, 404);
        for part in ["events", "output", "result"] {
            assert_eq!(get(server, &format!("/v1/executions/{one}/{part}"), "").status, 404);
        }
        let listed = server.ask("GET", "/v1/executions", "");
        assert!(!listed.contains(&one) && listed.contains(&other), "{listed}");
    };
    is_gone(&server);
    kill(server);
    let server = folder.serve(&[]);
    is_gone(&server);
    // One from before the restart.
    assert_eq!(remove(&server, &long).0, 204);
    assert_eq!(inspect(&server, &long).0, 404);
    kill(server);
    let server = folder.serve(&[]);
    is_gone(&server);
    assert_eq!(inspect(&server, &long).0, 404);
}
