//! Owners are kept by name: other tokens, another order, no tokens, a removed name, and tickets.

use std::os::unix::fs::PermissionsExt;

use serde_json::{Value, json};

use crate::served::{Server, asked};
use crate::world::{Folder, kill};

const ANN: &str = "annannannannannannannannannannann";
const BOB: &str = "bobbobbobbobbobbobbobbobbobbobbob";
const NEW: &str = "newnewnewnewnewnewnewnewnewnewnew";

fn ask(server: &Server, token: &str, method: &str, path: &str, body: &str) -> (u16, String) {
    let headers = match token {
        "" => String::new(),
        token => format!("Authorization: Bearer {token}\r\n"),
    };
    asked::ask(&server.address, method, path, &headers, body)
}

fn start(folder: &Folder, tokens: Option<&str>) -> Server {
    let path = folder.path().join("tokens");
    let Some(tokens) = tokens else { return folder.serve(&[]) };
    std::fs::write(&path, tokens).unwrap();
    std::fs::set_permissions(&path, PermissionsExt::from_mode(0o600)).unwrap();
    folder.serve(&["--token-file", path.to_str().unwrap()])
}

#[test]
fn an_execution_belongs_to_its_name_and_to_nobody_else() {
    let folder = Folder::new("owners");
    let server = start(&folder, Some(&format!("ann {ANN}\nbob {BOB}\n")));
    let arguments = json!({"tool": "slow_data_processor", "arguments": {"chunks": 3}});
    let mut created = Vec::new();
    for token in [ANN, BOB] {
        let (status, body) = ask(&server, token, "POST", "/v1/executions", &arguments.to_string());
        assert_eq!(status, 201, "{body}");
        let body: Value = serde_json::from_str(&body).unwrap();
        let result = format!("{}?wait_ms=10000", body["links"]["result"].as_str().unwrap());
        assert_eq!(ask(&server, token, "GET", &result, "").0, 200);
        created.push(body);
    }
    let id_of = |at: usize| created[at]["execution"].as_str().unwrap().to_owned();
    let (of_ann, of_bob) = (id_of(0), id_of(1));
    let ticket = created[0]["links"]["events"].as_str().unwrap().to_owned();
    assert!(ticket.contains("?ticket="));
    kill(server);

    let found = |server: &Server, token: &str, id: &str| {
        ask(server, token, "GET", &format!("/v1/executions/{id}"), "").0
    };
    // The same names in another order, and one with another token.
    let server = start(&folder, Some(&format!("zoe {NEW}\nbob {BOB}\nann {ANN}\n")));
    let matrix = |server: &Server, token: &str| {
        (found(server, token, &of_ann), found(server, token, &of_bob))
    };
    assert_eq!(matrix(&server, ANN), (200, 404));
    assert_eq!(matrix(&server, BOB), (404, 200));
    assert_eq!(matrix(&server, NEW), (404, 404));
    let (status, body) = ask(&server, "", "GET", &ticket, "");
    assert_eq!((status, body.matches("event: chunk").count()), (200, 3), "{body}");
    let (_, listed) = ask(&server, BOB, "GET", "/v1/executions", "");
    assert!(listed.contains(&of_bob) && !listed.contains(&of_ann), "{listed}");
    kill(server);

    // A removed name: its executions are nobody's, and its ticket opens nothing.
    let server = start(&folder, Some(&format!("bob {NEW}\n")));
    assert_eq!(matrix(&server, NEW), (404, 200));
    assert_eq!(ask(&server, "", "GET", &ticket, "").0, 401);
    kill(server);

    // A server without tokens sees nothing of those with names, and the other way round.
    let server = start(&folder, None);
    assert_eq!(matrix(&server, ""), (404, 404));
    let (_, body) = ask(&server, "", "POST", "/v1/executions", &arguments.to_string());
    let body: Value = serde_json::from_str(&body).unwrap();
    let open = body["execution"].as_str().unwrap().to_owned();
    assert_eq!(found(&server, "", &open), 200);
    kill(server);
    let server = start(&folder, Some(&format!("ann {ANN}\nbob {BOB}\n")));
    assert_eq!(found(&server, ANN, &open), 404);
    assert_eq!(matrix(&server, ANN), (200, 404), "the name is back");
    assert_eq!(ask(&server, "", "GET", &ticket, "").0, 200);
}
