//! The Model Context Protocol: resources and streams of another node, for clients of both eras.

use serde_json::{Value, json};

use crate::mcp::{Client, Era, two_shards};
use crate::nodes::{Cluster, slow};
use crate::served::{Server, asked};
use crate::strangers::{ANN, BOB, token_file, token_of};
use crate::world::{self, get};

const ERAS: [Era; 2] = [Era::Stateless, Era::Handshake];

fn read(client: &Client<'_>, uri: &str) -> Value {
    client.ask("resources/read", json!({ "uri": uri })).result()["contents"][0].clone()
}

fn uri_of(id: &str) -> String {
    format!("streamdoor://executions/{id}")
}

fn ask_stream(client: &Client<'_>, id: &str, offset: usize) -> Value {
    let arguments = json!({ "stream_id": id, "offset": offset });
    client.ask("tools/call", json!({ "name": "stream_read", "arguments": arguments })).result()
}

/// Reads a stream from its beginning to its end.
fn read_stream(client: &Client<'_>, id: &str) -> String {
    let mut text = String::new();
    loop {
        let result = ask_stream(client, id, text.len());
        let read = &result["structuredContent"];
        text += read["chunk"].as_str().unwrap_or_else(|| panic!("{result}"));
        if read["done"] == true {
            return text;
        }
    }
}

#[test]
fn resources_and_streams_are_read_on_another_node() {
    let Some(cluster) = Cluster::start("resources") else { return };
    let short = cluster.folder().write_file("short.txt", 40 << 10);
    let long = cluster.folder().write_file("long.txt", 3 << 20);
    let tokens = token_file(&cluster, "tokens", &[ANN, BOB]);
    let guarded = ["--token-file", &tokens];
    // The ids of the one have numbers of shards that the other one does not have.
    let owner = cluster.node("a", &[&guarded, two_shards()].concat());
    let other = cluster.node("b", &guarded);
    let ann = Client::with_token(&owner, Era::Stateless, token_of(ANN));
    for (round, name) in ["short.txt", "long.txt", "short.txt", "long.txt"].iter().enumerate() {
        let arguments = json!({ "file_path": name });
        let events = match *name {
            "short.txt" => {
                let params = json!({ "name": "process_file", "arguments": arguments });
                let result = ann.ask("tools/call", params).result();
                result["_meta"]["dev.streamdoor/events"].as_str().expect("an URL").to_owned()
            }
            _ => {
                let call = json!({ "tool": "process_file", "arguments": arguments }).to_string();
                let created = asked::ask(&owner.address, "POST", "/v1/executions", ANN.1, &call).1;
                let created: Value = serde_json::from_str(&created).unwrap();
                created["links"]["events"].as_str().unwrap().to_owned()
            }
        };
        let id = events.split('/').nth(3).unwrap();
        // The first one that asks brings it here: in one round the other era, or the stream.
        let body = |query: &str| get(&other, &format!("{events}&format=ndjson{query}"), "").body;
        if round == 1 {
            assert!(String::from_utf8(body("")).unwrap().contains("\"completed\""));
        }
        let eras = if round % 2 == 0 { ERAS } else { [ERAS[1], ERAS[0]] };
        for era in eras {
            let stranger = Client::with_token(&other, era, token_of(BOB));
            for (of_ann, of_none) in [
                (uri_of(id), uri_of(&"7".repeat(26))),
                (uri_of(id) + "/output", uri_of(&"7".repeat(26)) + "/output"),
            ] {
                let error = |uri: &str| {
                    let text = stranger.ask("resources/read", json!({ "uri": uri })).text;
                    text.replace(uri, "")
                };
                assert_eq!(error(&of_ann), error(&of_none));
            }
            let unknown = ask_stream(&stranger, &"7".repeat(26), 0);
            assert_eq!(ask_stream(&stranger, id, 0), unknown, "{unknown}");
            assert!(unknown.to_string().contains("unknown stream"), "{unknown}");

            let client = Client::with_token(&other, era, token_of(ANN));
            // The end of its log may still be on its way.
            let state = loop {
                let state = read(&client, &uri_of(id));
                let state: Value = serde_json::from_str(state["text"].as_str().unwrap()).unwrap();
                if state["state"] != "running" {
                    break state;
                }
            };
            assert_eq!((&state["execution"], &state["state"]), (&json!(id), &json!("completed")));
            let content = if *name == "long.txt" { &long } else { &short };
            if era == eras[0] {
                // A piece is read once, as on the node of the tool.
                assert!(read_stream(&client, id).as_bytes() == content, "{name} {era:?}");
            }
            // Of a long output the resource is the end.
            let output = read(&client, &(uri_of(id) + "/output"));
            let output = output["text"].as_str().unwrap().as_bytes();
            let length = content.len().min(1 << 20);
            assert!(output.len() == length && content.ends_with(output), "{}", output.len());
        }
    }
}

#[test]
fn a_stream_is_closed_from_another_node() {
    let Some(cluster) = Cluster::start("closed") else { return };
    let (owner, other) = (cluster.node("a", &[]), cluster.node("b", &[]));
    let id = slow(&owner, 100_000, 2);
    let client = Client::new(&other, Era::Stateless);
    let read = ask_stream(&client, &id, 0);
    assert!(read["structuredContent"]["chunk"].is_string(), "{read}");
    let params = json!({ "name": "stream_close", "arguments": { "stream_id": id } });
    client.ask("tools/call", params).result();
    let end = world::events(&owner, &id, "&policy=drop_oldest").pop().unwrap();
    assert_eq!((&end["event"], &end["state"]), (&json!("end"), &json!("cancelled")));
}

#[test]
fn the_output_of_an_execution_that_runs_is_read_from_its_beginning() {
    let Some(cluster) = Cluster::start("running") else { return };
    let (owner, other) = (cluster.node("a", &[]), cluster.node("b", &[]));
    let id = slow(&owner, 400, 5);
    while world::inspect(&owner, &id).1["chunks"].as_u64().is_none_or(|chunks| chunks < 100) {}
    let text = |node: &Server| {
        let output = read(&Client::new(node, Era::Stateless), &(uri_of(&id) + "/output"));
        output["text"].as_str().unwrap().to_owned()
    };
    let own = text(&owner);
    // It is brought here by the first one, and read again from what is there then.
    let theirs = [text(&other), text(&other)];
    let whole = String::from_utf8(world::fetch(&owner, &format!("/v1/executions/{id}/output")));
    let whole = whole.unwrap();
    for text in &theirs {
        assert!(whole.starts_with(text) && 2 * text.len() > own.len(), "{}", text.len());
        assert!(text.len() < whole.len(), "it does not wait for the end");
    }
    assert!(theirs[0].len() <= theirs[1].len());
}
