//! All upstreams of a process: their start, their tools, their end.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use super::call;
use super::link::Upstream;
use super::spec::{SpecError, UpstreamSpec};
use crate::engine::Timeouts;
use crate::limits;
use crate::mcp::upstream::Offer;
use crate::server::{Log, ServerHandle, ServerShard, UpstreamMeter};
use crate::tool::{ToolSpec, Tools};
use crate::trace::Level;

/// External MCP servers, whose tools are offered here. Dropping it ends them, and no call reaches
/// them any more.
///
/// ```no_run
/// use streamdoor::server::Log;
/// use streamdoor::tool::{Environment, Tools};
/// use streamdoor::upstream::{UpstreamPlace, UpstreamSpec, Upstreams, words_of};
///
/// let place = UpstreamPlace::Program {
///     words: words_of("npx -y @modelcontextprotocol/server-everything")?,
///     variables: Vec::new(),
///     environment: Environment::default(),
/// };
/// let upstreams = Upstreams::start(vec![UpstreamSpec::new("everything", place)], &Log::off())?;
/// let mut tools = Tools::built_in();
/// upstreams.check_names(|name| tools.spec(name).is_some())?;
/// upstreams.add_to(&mut tools);
/// assert!(tools.spec("echo").is_some());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Upstreams {
    all: Vec<Arc<Upstream>>,
}

/// The reason why upstreams could not be started or added.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum UpstreamsError {
    /// The description of one is wrong.
    Spec {
        /// The name of the upstream.
        upstream: String,
        /// The fault.
        error: SpecError,
    },
    /// Too many upstreams, or two with the same name.
    Names(String),
    /// One could not be started, or breaks the protocol.
    Start {
        /// The name of the upstream.
        upstream: String,
        /// The reason.
        why: String,
    },
    /// Two tools would have the same name.
    Clash {
        /// The name of the tools.
        tool: String,
        /// The upstream of one tool.
        upstream: String,
        /// The owner of the other tool.
        other: String,
    },
}

impl fmt::Display for UpstreamsError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            UpstreamsError::Spec { upstream, error } => write!(out, "{upstream}: {error}"),
            UpstreamsError::Names(text) => out.write_str(text),
            UpstreamsError::Start { upstream, why } => write!(out, "{upstream}: {why}"),
            UpstreamsError::Clash { tool, upstream, other } => write!(
                out,
                "{upstream}: its tool `{tool}` has the same name as one of {other}; give the \
                 server a name (NAME=…) to call the tool NAME_{tool}"
            ),
        }
    }
}

impl std::error::Error for UpstreamsError {}

impl UpstreamSpec {
    /// A description with this name, without a prefix, and with the default deadline.
    pub fn new(name: &str, place: super::UpstreamPlace) -> UpstreamSpec {
        UpstreamSpec {
            name: name.to_owned(),
            prefix: String::new(),
            rules: crate::mcp::upstream::ToolRules::default(),
            place,
            call_deadline: limits::UPSTREAM_CALL_DEADLINE,
        }
    }
}

impl Upstreams {
    /// Starts all upstreams concurrently, and gets their lists of tools.
    ///
    /// # Errors
    /// [`UpstreamsError`] of the first one that fails. All others are ended then.
    pub fn start(specs: Vec<UpstreamSpec>, log: &Log) -> Result<Upstreams, UpstreamsError> {
        if specs.len() > limits::UPSTREAMS_MAX {
            let text = format!("at most {} can be given", limits::UPSTREAMS_MAX);
            return Err(UpstreamsError::Names(text));
        }
        for (at, spec) in specs.iter().enumerate() {
            let upstream = spec.name.clone();
            spec.check().map_err(|error| UpstreamsError::Spec { upstream, error })?;
            if specs[..at].iter().any(|other| other.name == spec.name) {
                return Err(UpstreamsError::Names(format!("{} is given twice", spec.name)));
            }
        }
        let all = specs.into_iter().map(|spec| Upstream::new(spec, log.clone())).collect();
        let upstreams = Upstreams { all };
        let starting: Vec<_> = upstreams
            .all
            .iter()
            .map(|upstream| {
                let upstream = Arc::clone(upstream);
                let thread = std::thread::Builder::new().name("mcp-start".to_owned());
                thread.spawn(move || upstream.ready(&|| false).map(drop))
            })
            .collect();
        let mut failure = None;
        for (upstream, started) in upstreams.all.iter().zip(starting) {
            let started = match started.map(std::thread::JoinHandle::join) {
                Ok(Ok(started)) => started,
                Ok(Err(_)) => Err("its start has panicked".to_owned()),
                Err(error) => Err(error.to_string()),
            };
            if let (Err(why), None) = (started, &failure) {
                let upstream = upstream.spec.name.clone();
                failure = Some(UpstreamsError::Start { upstream, why });
            }
        }
        match failure {
            Some(failure) => Err(failure), // The started ones end with this value.
            None => Ok(upstreams),
        }
    }

    /// Returns a value without upstreams.
    pub fn none() -> Upstreams {
        Upstreams { all: Vec::new() }
    }

    /// True if no upstream exists.
    pub fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// The meters of all upstreams, for [`ShardConfig::upstreams`](crate::shard::ShardConfig).
    pub fn meters(&self) -> Arc<[UpstreamMeter]> {
        self.all.iter().map(|upstream| upstream.meter.clone()).collect()
    }

    /// Checks that all tools have distinct names that are not taken.
    ///
    /// # Errors
    /// [`UpstreamsError::Clash`].
    pub fn check_names(&self, is_taken: impl Fn(&str) -> bool) -> Result<(), UpstreamsError> {
        let mut names: BTreeMap<String, &str> = BTreeMap::new();
        for upstream in &self.all {
            for offer in upstream.offers().iter() {
                let name = &offer.spec.name;
                let other = match is_taken(name) {
                    true => Some("this program"),
                    false => names.insert(name.clone(), &upstream.spec.name),
                };
                if let Some(other) = other {
                    return Err(UpstreamsError::Clash {
                        tool: name.clone(),
                        upstream: upstream.spec.name.clone(),
                        other: other.to_owned(),
                    });
                }
            }
        }
        Ok(())
    }

    /// Adds their tools to `tools`. A tool with a taken name is left out: see
    /// [`Upstreams::check_names`].
    pub fn add_to(&self, tools: &mut Tools) {
        for upstream in &self.all {
            add(upstream, tools, &[]);
        }
    }

    /// The descriptions of their tools.
    pub fn specs(&self) -> Vec<ToolSpec> {
        let offers = self.all.iter().flat_map(|upstream| upstream.offers().to_vec());
        offers.map(|offer| offer.spec).collect()
    }

    /// Keeps the tools of these shards up to date from now on.
    pub fn follow(&self, shards: Vec<ServerHandle>) {
        for upstream in &self.all {
            // All shards see the changes in the same order.
            let shards = Mutex::new(shards.clone());
            upstream.set_on_change(Arc::new(move |upstream, before| {
                let shards = shards.lock().unwrap_or_else(PoisonError::into_inner);
                let before: Arc<[String]> =
                    before.iter().map(|offer| offer.spec.name.clone()).collect();
                for shard in &*shards {
                    replace(shard, upstream, &before);
                }
            }));
        }
    }

    /// Ends all upstreams. Running calls fail, and no further requests are sent.
    pub fn end(&self) {
        std::thread::scope(|scope| {
            for upstream in &self.all {
                scope.spawn(|| upstream.end());
            }
        });
    }
}

impl Drop for Upstreams {
    fn drop(&mut self) {
        self.end();
    }
}

impl fmt::Debug for Upstreams {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_list().entries(self.all.iter().map(|upstream| &upstream.spec.name)).finish()
    }
}

/// Makes a shard offer the present tools of an upstream instead of the former ones.
fn replace(shard: &ServerHandle, upstream: &Arc<Upstream>, before: &Arc<[String]>) {
    loop {
        let (upstream, before) = (Arc::clone(upstream), Arc::clone(before));
        let called = shard.call(move |shard: &mut ServerShard| {
            add(&upstream, shard.tools_mut(), &before);
        });
        match called {
            Err(crate::shard::CallError::Busy) => std::thread::sleep(limits::UPSTREAM_LOOK),
            Ok(()) | Err(_) => {
                return;
            }
        }
    }
}

/// Offers the present tools of an upstream instead of the tools `before`.
fn add(upstream: &Arc<Upstream>, tools: &mut Tools, before: &[String]) {
    let offers = upstream.offers();
    let leave_out = |offer: &Offer, reason: &str| {
        upstream.log.quote(Level::Warn, "upstream_tool_left_out", |line| {
            line.text("tool", &offer.spec.name);
            line.text("reason", reason);
        });
    };
    for name in before {
        tools.remove(name);
    }
    for offer in offers.iter() {
        if tools.spec(&offer.spec.name).is_some() {
            leave_out(offer, "its name is taken");
            continue;
        }
        let spec = ToolSpec {
            timeouts: Timeouts { total: Some(upstream.spec.call_deadline), ..Timeouts::NONE },
            ..offer.spec.clone()
        };
        let (called, offered) = (Arc::clone(upstream), offer.clone());
        let inserted = tools.insert_relayed(spec, move |arguments, out| {
            call::run(&called, &offered, arguments, out)
        });
        match inserted {
            Ok(true) => {}
            Ok(false) => upstream.log.quote(Level::Debug, "upstream_tool_unchecked", |line| {
                line.text("tool", &offer.spec.name);
            }),
            Err(error) => leave_out(offer, &error.problem),
        }
    }
}
