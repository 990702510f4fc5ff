//! `peers mcp`: a server with rmcp, the Rust SDK of MCP, for one run of `bench mcp`.
//!
//! It is written in the usual way: a `ServerHandler` whose tool waits until a chunk is due and then
//! awaits `notify_progress`. Over HTTP, it uses `StreamableHttpService` in an axum router. Over
//! standard streams, it uses rmcp's transport that does not block. It has one thread. Each call
//! waits by a kernel timer and polls at the end, as all servers do. One program serves both eras:
//! the client chooses with its first message.

use std::ffi::OsString;
use std::io;
use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use axum::Router;
use axum::serve::ListenerExt as _;
use rmcp::model::{
    CallToolRequestParams, CallToolResponse, CallToolResult, ErrorData, ProgressNotificationParam,
    ProgressToken, ServerCapabilities, ServerConfig,
};
use rmcp::service::{Peer, RequestContext};
use rmcp::transport::stdio_pipes;
use rmcp::transport::streamable_http_server::session::local::LocalSessionManager;
use rmcp::transport::streamable_http_server::{StreamableHttpServerConfig, StreamableHttpService};
use rmcp::{RoleServer, ServerHandler, ServiceExt};
use tokio::net::TcpListener;
use tokio::runtime::Builder;
use tokio::sync::watch;

use crate::common::machine::{allow_descriptors, now_ns, pin_thread};
use crate::common::params::{choice, usage};
use crate::common::serve::child;
use crate::common::serve::load::{LOAD_HELP, Load};
use crate::common::serve::plan::{Plan, STAMP_DIGITS, payload};
use crate::common::{Failure, print};
use crate::timer::Timer;

/// Number of descriptors beside those of connections. Each call also has a timer.
const DESCRIPTORS_OTHER: u64 = 64;
/// Time between the last notification and the reply.
const LINGER_NS: u64 = 2_000_000;

pub const HELP: &str = "\
peers mcp: run a server of rmcp for one run of `bench mcp --only rmcp`

Usage: peers mcp [options]

  --transport NAME    http or stdio (http)
  --era NAME          the client's era; the program is the same (stateless)
  --plan FILE         the times of the chunks, as bench mcp writes them
  --cpu N             pin it to cpu N (the first allowed)
";

struct Options {
    is_stdio: bool,
    plan: PathBuf,
}

/// Runs `peers mcp` with the arguments after these words.
///
/// # Errors
/// [`Failure`].
pub fn command(arguments: impl IntoIterator<Item = OsString>) -> Result<(), Failure> {
    let mut options = Options { is_stdio: false, plan: PathBuf::new() };
    let load = Load::parse(arguments, |name, parser| {
        match name {
            "transport" => {
                options.is_stdio = choice(parser, "--transport", &["http", "stdio"])? == "stdio";
            }
            "era" => drop(choice(parser, "--era", &["stateless", "handshake"])?),
            "plan" => options.plan = parser.value().map_err(usage)?.into(),
            _ => return Ok(false),
        }
        Ok(true)
    })?;
    let Some(load) = load else {
        print(&format!("{HELP}{LOAD_HELP}  --help\n"));
        return Ok(());
    };
    let due_ns = read_plan(&options.plan)?;
    if !options.is_stdio {
        child::answer_standard_input();
    }
    pin_thread(load.cpu)?;
    allow_descriptors(2 * u64::from(load.connections) + DESCRIPTORS_OTHER)?;
    let app = Arc::new(App { load, due_ns, started: Mutex::new(0), origin: watch::channel(0).0 });
    let runtime = Builder::new_current_thread().enable_all().build();
    let failed = |error: io::Error| Failure::Failed(format!("rmcp: {error}"));
    let runtime = runtime.map_err(failed)?;
    let served = runtime.block_on(async {
        if options.is_stdio { serve_streams(app).await } else { serve_http(app).await }
    });
    served.map_err(failed)
}

/// Reads the plan. See `bench/mcp/peer.rs`.
fn read_plan(path: &PathBuf) -> Result<Vec<u64>, Failure> {
    let bytes = std::fs::read(path)
        .map_err(|error| Failure::Usage(format!("--plan {}: {error}", path.display())))?;
    let (numbers, []) = bytes.as_chunks::<8>() else {
        return Err(Failure::Usage("--plan: a number has 8 bytes".into()));
    };
    Ok(numbers.iter().map(|number| u64::from_le_bytes(*number)).collect())
}

async fn serve_http(app: Arc<App>) -> io::Result<()> {
    let service = StreamableHttpService::new(
        move || Ok(Tools(Arc::clone(&app))),
        Arc::new(LocalSessionManager::default()),
        StreamableHttpServerConfig::default(),
    );
    let router = Router::new().route_service("/mcp", service);
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
    child::announce(listener.local_addr()?);
    let listener = listener.tap_io(|connection| {
        let _ = connection.set_nodelay(true); // Without it, the server works, but slowly.
    });
    axum::serve(listener, router).await
}

async fn serve_streams(app: Arc<App>) -> io::Result<()> {
    let running = Tools(app).serve(stdio_pipes()).await.map_err(io::Error::other)?;
    running.waiting().await.map_err(io::Error::other)?;
    Ok(())
}

struct App {
    load: Load,
    /// The times of all chunks since the start of the run. Empty if the load is flat out.
    due_ns: Vec<u64>,
    /// Number of calls that have started.
    started: Mutex<u32>,
    /// The start of the run; 0 until it is known.
    origin: watch::Sender<u64>,
}

#[derive(Clone)]
struct Tools(Arc<App>);

impl ServerHandler for Tools {
    fn get_info(&self) -> ServerConfig {
        ServerConfig::new(ServerCapabilities::builder().enable_tools().build())
    }

    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        let token = context.meta.get_progress_token().ok_or_else(|| wrong("no progress token"))?;
        let index = request.arguments.as_ref().and_then(|given| given.get("index")?.as_u64());
        let app = &*self.0;
        let timer = Timer::new(app.load.idle).map_err(|error| wrong(&error.to_string()))?;
        let text = String::from_utf8(payload(app.load.size_bytes).into()).expect("it is text");
        let told = Told { peer: context.peer.clone(), token, text };
        match (&*request.name, index) {
            ("first", _) => told.notify(1, now_ns()).await?,
            ("paced", Some(index)) => app.pace(index as usize, &timer, &told).await?,
            _ => return Err(wrong("there are the tools first and paced")),
        }
        timer.wait(now_ns() + LINGER_NS).await;
        Ok(CallToolResult::success(Vec::new()).into())
    }
}

fn wrong(text: &str) -> ErrorData {
    ErrorData::invalid_params(text.to_owned(), None)
}

/// The notifications of one call.
struct Told {
    peer: Peer<RoleServer>,
    token: ProgressToken,
    text: String,
}

impl Told {
    async fn notify(&self, number: u64, planned_ns: u64) -> Result<(), ErrorData> {
        let message = format!("{planned_ns:020}{}", &self.text[STAMP_DIGITS..]);
        let param = ProgressNotificationParam::new(self.token.clone(), number as f64);
        let sent = self.peer.notify_progress(param.with_message(message)).await;
        sent.map_err(|error| wrong(&error.to_string()))
    }
}

impl App {
    /// Publishes all chunks of execution `index`, once all calls have started.
    async fn pace(&self, index: usize, timer: &Timer, told: &Told) -> Result<(), ErrorData> {
        {
            let mut started = self.started.lock().unwrap_or_else(PoisonError::into_inner);
            *started += 1;
            if *started == self.load.executions {
                self.origin.send_replace(Plan::origin(now_ns()));
            }
        }
        let mut origin = self.origin.subscribe();
        let origin_ns = *origin.wait_for(|origin_ns| *origin_ns > 0).await.expect("it is ours");
        if self.due_ns.is_empty() {
            let end_ns = origin_ns + (self.load.warmup + self.load.duration).as_nanos() as u64;
            timer.wait(origin_ns).await;
            let mut number = 0;
            while now_ns() < end_ns {
                number += 1;
                told.notify(number, now_ns()).await?;
            }
            return Ok(());
        }
        let own = self.due_ns.iter().skip(index).step_by(self.load.executions as usize);
        for (number, due_ns) in (1..).zip(own) {
            timer.wait(origin_ns + due_ns).await;
            told.notify(number, origin_ns + due_ns).await?;
        }
        Ok(())
    }
}
