//! Resources and streams of the Model Context Protocol are read after a kill.

use serde_json::{Value, json};

use crate::mcp::{Client, Era, two_shards};
use crate::world::{Folder, kill, run};

fn read(client: &Client<'_>, uri: &str) -> Value {
    let result = client.ask("resources/read", json!({"uri": uri})).result();
    result["contents"][0].clone()
}

/// The resources of executions that are listed, by their addresses.
fn listed(client: &Client<'_>) -> Vec<String> {
    let (mut all, mut cursor) = (Vec::new(), Value::Null);
    loop {
        let params = if cursor.is_null() { json!({}) } else { json!({"cursor": cursor}) };
        let page = client.ask("resources/list", params).result();
        let uris = page["resources"].as_array().unwrap().iter();
        all.extend(uris.map(|one| one["uri"].as_str().unwrap().to_owned()));
        match page.get("nextCursor") {
            Some(next) => cursor = next.clone(),
            None => return all,
        }
    }
}

/// Reads a stream from `text` on, to its end or for this number of pieces.
fn read_stream(client: &Client<'_>, id: &str, mut text: String, most: usize) -> String {
    for _ in 0..most {
        let arguments = json!({"stream_id": id, "offset": text.len()});
        let params = json!({"name": "stream_read", "arguments": arguments});
        let read = client.ask("tools/call", params).result()["structuredContent"].clone();
        text += read["chunk"].as_str().expect("text");
        if read["done"] == true {
            break;
        }
    }
    text
}

#[test]
fn outputs_are_read_by_their_addresses_and_as_streams_after_a_kill() {
    let folder = Folder::new("resources");
    let short = folder.write_file("short.txt", 40 << 10);
    let long = folder.write_file("long.txt", 3 << 20);
    let serve = || folder.serve(two_shards());
    let server = serve();
    let ids: Vec<String> = ["short.txt", "short.txt", "short.txt", "long.txt"]
        .map(|name| run(&server, "process_file", json!({"file_path": name})))
        .into();
    let uri_of = |id: &str| format!("streamdoor://executions/{id}");
    let output_of = |id: &str| format!("{}/output", uri_of(id));
    let before = {
        let client = Client::new(&server, Era::Stateless);
        read(&client, &output_of(&ids[0]))
    };
    assert!(before["text"].as_str().unwrap().as_bytes() == short);
    let begun = {
        let client = Client::new(&server, Era::Stateless);
        read_stream(&client, &ids[3], String::new(), 3)
    };
    kill(server);

    let server = serve();
    for era in [Era::Stateless, Era::Handshake, Era::Handshake, Era::Handshake] {
        let client = Client::new(&server, era);
        let all = listed(&client);
        for id in &ids {
            assert_eq!(all.iter().filter(|uri| **uri == uri_of(id)).count(), 1, "{id}");
            let state = read(&client, &uri_of(id));
            let state: Value = serde_json::from_str(state["text"].as_str().unwrap()).unwrap();
            assert_eq!(state["state"], "completed");
        }
        assert_eq!(read(&client, &output_of(&ids[0])), before);
        // Of a long output the resource is the end, and the stream is all of it.
        let end = read(&client, &output_of(&ids[3]));
        let end = end["text"].as_str().unwrap().as_bytes();
        assert!(end.len() == 1 << 20 && long.ends_with(end), "{}", end.len());
        let missing = client.ask("resources/read", json!({"uri": output_of("0")}));
        assert!(missing.error()["message"].as_str().unwrap().contains("not found"));
    }
    let client = Client::new(&server, Era::Stateless);
    assert!(read_stream(&client, &ids[1], String::new(), usize::MAX).as_bytes() == short);
    // A client that has read a part goes on behind it.
    assert!(!begun.is_empty() && begun.len() < long.len());
    assert!(read_stream(&client, &ids[3], begun, usize::MAX).as_bytes() == long);
}
