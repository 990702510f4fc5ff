//! Requests as spans of a trace and as counters. A span begins with the request and ends with its
//! answer.
//!
//! Spans exist only if they are exported. A request that is answered later carries its span in the
//! table of calls. Removing it without an answer ends the span as cancelled.

use crate::base::Handle;
use crate::mcp::{Ask, Context};
use crate::reactor::Reactor;
use crate::server::mcp::answer::{Reply, Source, outcome_of};
use crate::server::mcp::call::{Asker, Outlet};
use crate::server::mcp::{answer, ask};
use crate::server::{ServerShard, records};
use crate::trace::{Span, TraceParent};

const LISTEN: &str = "subscriptions/listen";
/// Carries out a request. Returns `None` if it is answered later.
pub(in crate::server) fn ask_mcp<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    source: Source,
    context: Box<Context>,
    ask: Ask,
) -> Option<Reply> {
    let now = shard.now;
    shard.guests.mcp.begin_use(now);
    let era = matches!(ask, Ask::CallTool { .. }).then(|| context.version.era());
    let reply = ask_in_span(shard, source, context, ask);
    if let (Some(era), Some(reply)) = (era, &reply) {
        answer::count_call(shard, era, outcome_of(reply)); // It never was in the table.
    }
    reply
}

fn ask_in_span<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    source: Source,
    mut context: Box<Context>,
    ask: Ask,
) -> Option<Reply> {
    if !shard.guests.spans.is_on() {
        return ask::carry_out_mcp(shard, source, context, ask);
    }
    let span = begin_span(shard, &source, &context, &ask);
    if let Some(Span { trace_id, span_id, .. }) = span.as_deref() {
        // Work that it causes elsewhere is a child of its span.
        let is_sampled = context.trace.parent.is_none_or(|parent| parent.is_sampled);
        let (trace_id, span_id) = (*trace_id, *span_id);
        context.trace.parent = Some(TraceParent { trace_id, span_id, is_sampled });
    }
    shard.guests.mcp.span = span;
    let reply = ask::carry_out_mcp(shard, source, context, ask);
    let left = shard.guests.mcp.span.take();
    if let (Some(span), Some(reply)) = (left, &reply) {
        end_span(shard, span, error_of(reply));
    }
    reply
}

fn begin_span<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    source: &Source,
    context: &Context,
    ask: &Ask,
) -> Option<Box<Span>> {
    let drawn = shard.secrets.draw().ok()?;
    let parent = context.trace.parent;
    let (method, target) = name_of(ask);
    let session = match source.asker {
        Asker::Session(name) => Some(name.to_string()),
        Asker::Alone(_) => None,
    };
    let span = Span {
        trace_id: parent.map_or(drawn.token.max(1), |parent| parent.trace_id),
        span_id: drawn.nonce.max(1),
        parent_id: parent.map(|parent| parent.span_id),
        begun_us: records::wall_us(shard),
        ended_us: 0,
        method,
        target,
        request: context.id.as_text().unwrap_or_else(|| context.id.as_json().to_owned()),
        session,
        version: context.version.text(),
        transport: if let Outlet::Lines(_) = source.outlet { "pipe" } else { "tcp" },
        error: None,
    };
    Some(Box::new(span))
}

pub(in crate::server) fn end_span<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    mut span: Box<Span>,
    error: Option<String>,
) {
    span.ended_us = records::wall_us(shard);
    span.error = error;
    shard.guests.spans.push(*span);
}

/// Ends the span of a call that is about to be answered.
pub(in crate::server) fn end_span_of<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    handle: Handle,
    reply: &Reply,
) {
    let mcp = &mut shard.guests.mcp;
    let span = mcp.calls.get_mut(handle).and_then(|call| call.span.take());
    if let Some(span) = span {
        end_span(shard, span, error_of(reply));
    }
}

/// Ends the span of a call that is removed from the table.
pub(in crate::server) fn cancel_span<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    span: Option<Box<Span>>,
) {
    if let Some(span) = span {
        let is_over = span.method == LISTEN; // It has no other end.
        end_span(shard, span, (!is_over).then(|| "cancelled".to_owned()));
    }
}

/// Returns the code of a reply's error, if it is one.
pub(in crate::server) fn error_of(reply: &Reply) -> Option<String> {
    match reply {
        Err(fault) => Some(fault.code.to_string()),
        Ok(result) => result.is_error().then(|| "tool_error".to_owned()),
    }
}

/// Returns the method of a request, and its target where only few names are possible.
fn name_of(ask: &Ask) -> (&'static str, Option<String>) {
    let method = match ask {
        Ask::CallTool { name, .. } => return ("tools/call", Some(name.clone())),
        Ask::GetPrompt { name, .. } => return ("prompts/get", Some(name.clone())),
        Ask::Ping => "ping",
        Ask::Discover => "server/discover",
        Ask::SetLevel(_) => "logging/setLevel",
        Ask::ListTools { .. } => "tools/list",
        Ask::ListResources { .. } => "resources/list",
        Ask::ListTemplates { .. } => "resources/templates/list",
        Ask::ReadResource { .. } => "resources/read",
        Ask::Subscribe { .. } => "resources/subscribe",
        Ask::Unsubscribe { .. } => "resources/unsubscribe",
        Ask::ListPrompts { .. } => "prompts/list",
        Ask::Complete(_) => "completion/complete",
        Ask::GetTask { .. } => "tasks/get",
        Ask::TaskResult { .. } => "tasks/result",
        Ask::ListTasks { .. } => "tasks/list",
        Ask::CancelTask { .. } => "tasks/cancel",
        Ask::UpdateTask { .. } => "tasks/update",
        Ask::Listen(_) => LISTEN,
    };
    (method, None)
}
