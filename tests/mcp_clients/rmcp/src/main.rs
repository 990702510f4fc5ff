//! A client of rmcp that is controlled line by line, as ../../driver.rs describes.
//!
//! `rmcp-driver MODE URL`, or `rmcp-driver MODE -- PROGRAM [ARGUMENT...]`.

use std::collections::HashMap;
use std::error::Error;
use std::sync::{Arc, Mutex};

use rmcp::model::{
    CallToolRequestParams, CallToolResult, ClientRequest, ProgressNotificationParam, ProgressToken,
    ProtocolVersion, Request, ServerResult,
};
use rmcp::service::{
    ClientLifecycleMode, ClientServiceExt, NotificationContext, PeerRequestOptions, RequestHandle,
    RunningService, ServiceError,
};
use rmcp::transport::{StreamableHttpClientTransport, TokioChildProcess};
use rmcp::{ClientHandler, RoleClient};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::sync::oneshot;

type Running = RunningService<RoleClient, Listener>;

fn say(document: Value) {
    println!("{document}");
}

/// Prints notifications under the numbers of their calls. Those that come before the number is
/// known are kept in `early`.
#[derive(Clone, Default)]
struct Listener(Arc<Mutex<ReceivedMessages>>);

#[derive(Default)]
struct ReceivedMessages {
    calls: HashMap<ProgressToken, u64>,
    early: Vec<ProgressNotificationParam>,
}

impl Listener {
    fn hear(&self, told: ProgressNotificationParam) {
        let mut heard = self.0.lock().unwrap();
        match heard.calls.get(&told.progress_token) {
            Some(call) => say(json!({
                "call": call,
                "progress": told.progress,
                "total": told.total,
                "message": told.message,
            })),
            None => heard.early.push(told),
        }
    }

    fn learn(&self, token: ProgressToken, call: u64) {
        let mut heard = self.0.lock().unwrap();
        heard.calls.insert(token, call);
        let early = std::mem::take(&mut heard.early);
        drop(heard);
        early.into_iter().for_each(|told| self.hear(told));
    }
}

impl ClientHandler for Listener {
    async fn on_progress(
        &self,
        told: ProgressNotificationParam,
        _context: NotificationContext<RoleClient>,
    ) {
        self.hear(told);
    }
}

async fn connect(words: &[String]) -> Result<Running, Box<dyn Error>> {
    let preferred_versions = vec![ProtocolVersion::LATEST];
    let lifecycle = match words[0].as_str() {
        "legacy" => ClientLifecycleMode::Initialize,
        "auto" => ClientLifecycleMode::Auto { preferred_versions, legacy_version: None },
        _ => ClientLifecycleMode::Discover { preferred_versions },
    };
    let listener = Listener::default();
    Ok(match words[1].as_str() {
        "--" => {
            let mut command = tokio::process::Command::new(&words[2]);
            command.args(&words[3..]);
            let transport = TokioChildProcess::new(command)?;
            listener.serve_with_lifecycle(transport, lifecycle).await?
        }
        url => {
            let transport = StreamableHttpClientTransport::from_uri(url);
            listener.serve_with_lifecycle(transport, lifecycle).await?
        }
    })
}

/// One call, from its command to its reply.
struct Call {
    number: u64,
    handle: RequestHandle<RoleClient>,
    cancelled: oneshot::Receiver<()>,
}

impl Call {
    async fn start(
        client: &Running,
        order: &Value,
        cancelled: oneshot::Receiver<()>,
    ) -> Result<Call, ServiceError> {
        let tool = order["tool"].as_str().expect("an order names a tool").to_owned();
        let given = order["given"].as_object().expect("arguments are an object").clone();
        let params = CallToolRequestParams::new(tool).with_arguments(given);
        let request = ClientRequest::CallToolRequest(Request::new(params));
        let options = PeerRequestOptions::no_options();
        let handle = client.send_cancellable_request(request, options).await?;
        let number = order["id"].as_u64().expect("an order has a number");
        client.service().learn(handle.progress_token.clone(), number);
        Ok(Call { number, handle, cancelled })
    }

    async fn finish(self) {
        let Call { number, mut handle, cancelled } = self;
        let answer = tokio::select! {
            answer = &mut handle.rx => answer,
            Ok(()) = cancelled => {
                let told = handle.cancel(Some("not wanted any more".to_owned())).await;
                say(json!({"call": number, "error": format!("cancelled: {told:?}")}));
                return;
            }
        };
        match answer {
            Ok(Ok(ServerResult::CallToolResult(result))) => say(said(number, &result)),
            other => say(json!({"call": number, "error": format!("{other:?}")})),
        }
    }
}

fn said(number: u64, result: &CallToolResult) -> Value {
    let result = serde_json::to_value(result).expect("it came as JSON");
    let blocks = result["content"].as_array().into_iter().flatten();
    let text: String = blocks.filter_map(|block| block["text"].as_str()).collect();
    let failed = result["isError"] == true;
    json!({"call": number, "text": text, "failed": failed, "meta": result["_meta"]})
}

async fn list(client: &Running) -> Result<Value, ServiceError> {
    let tools = client.list_all_tools().await?;
    Ok(tools.iter().map(|tool| Value::from(tool.name.as_ref())).collect())
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let mut client: Option<Running> = None;
    let mut cancels: HashMap<u64, oneshot::Sender<()>> = HashMap::new();
    let mut lines = BufReader::new(tokio::io::stdin()).lines();
    while let Some(line) = lines.next_line().await? {
        let order: Value = serde_json::from_str(&line)?;
        match (order["do"].as_str().unwrap_or_default(), client.as_mut()) {
            ("connect", _) => match connect(&words).await {
                Ok(running) => {
                    let version = running.peer_info().map(|info| info.protocol_version.to_string());
                    client = Some(running);
                    say(json!({"done": "connect", "version": version}));
                }
                Err(error) => say(json!({"done": "connect", "error": error.to_string()})),
            },
            ("list", Some(client)) => match list(client).await {
                Ok(tools) => say(json!({"done": "list", "tools": tools})),
                Err(error) => say(json!({"done": "list", "error": error.to_string()})),
            },
            ("call", Some(client)) => {
                let (cancel, cancelled) = oneshot::channel();
                cancels.insert(order["id"].as_u64().unwrap_or_default(), cancel);
                match Call::start(client, &order, cancelled).await {
                    Ok(call) => drop(tokio::spawn(call.finish())),
                    Err(error) => say(json!({"call": order["id"], "error": error.to_string()})),
                }
            }
            ("cancel", Some(_)) => {
                if let Some(cancel) = cancels.remove(&order["id"].as_u64().unwrap_or_default()) {
                    let _ = cancel.send(()); // The call may have ended.
                }
            }
            ("close", Some(running)) => {
                let closed = running.close().await;
                client = None;
                say(json!({"done": "close", "how": format!("{closed:?}")}));
            }
            (other, _) => say(json!({"done": other, "error": "that can not be done now"})),
        }
    }
    Ok(())
}
