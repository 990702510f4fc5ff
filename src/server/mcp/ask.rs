//! Requests, notifications and replies of clients, whatever transport they came by.

use std::sync::Arc;

use serde_json::{Map, Value};

use crate::base::{Handle, Principal, guarded};
use crate::mcp::catalog::Rendered;
use crate::mcp::completion::{self, Sources};
use crate::mcp::cursor::{self, List, Page};
use crate::mcp::request_state::Bound;
use crate::mcp::results::{self, Results};
use crate::mcp::{Ask, Catalog, Complete, Context, Era, Fault, ServerInfo, Told, questions};
use crate::reactor::Reactor;
use crate::server::ServerShard;
use crate::server::mcp::answer::{Reply, Source};
use crate::server::mcp::call::{Asker, McpCall, Stage};
use crate::shard::panics::Callback;
use crate::tool::{Asking, Question, Replies, ToolSpec};
use crate::wire::jsonrpc::Id;

impl<R: Reactor + 'static> ServerShard<R> {
    /// Carries out a request. See [`Shard::ask_mcp`].
    pub(in crate::server) fn carry_out_mcp(
        &mut self,
        source: Source,
        context: Box<Context>,
        ask: Ask,
    ) -> Option<Reply> {
        let server = self.server_info();
        let results = Results::new(context.version, &server);
        let owner = source.owner;
        match ask {
            Ask::CallTool { .. } | Ask::Listen(_) if self.is_ending() => {
                Some(Err(Fault::busy("the server is ending")))
            }
            Ask::CallTool { name, arguments } => self.call_tool(source, context, &name, arguments),
            Ask::Ping | Ask::SetLevel(_) => Some(Ok(results.empty())),
            Ask::Discover => Some(Ok(results.discover())),
            Ask::ListTools { cursor } => Some(self.list_tools(owner, &results, cursor.as_deref())),
            Ask::ListResources { ref cursor } => match self.gather_list(&source, &context, &ask) {
                true => None,
                false => {
                    let items = self.execution_items(owner);
                    Some(self.page_of_resources(&results, items, cursor.as_deref()))
                }
            },
            Ask::ListTemplates { cursor } => Some(self.list_templates(&results, cursor.as_deref())),
            Ask::ReadResource { uri } => Some(self.read_resource(owner, &results, &uri)),
            Ask::Subscribe { uri } => Some(self.subscribe_resource(&source, &results, &uri)),
            Ask::Unsubscribe { uri } => Some(self.unsubscribe_resource(&source, &results, &uri)),
            Ask::ListPrompts { cursor } => Some(self.list_prompts(&results, cursor.as_deref())),
            Ask::GetPrompt { name, arguments } => {
                Some(self.get_prompt(&source, &context, &results, &name, &arguments))
            }
            Ask::Complete(ref wanted) => {
                let is_of_all = completion::asks_for_executions(wanted);
                match is_of_all && self.gather_list(&source, &context, &ask) {
                    true => None,
                    false => {
                        let ids = || self.execution_names(owner);
                        Some(self.complete_argument(owner, &results, wanted, &ids))
                    }
                }
            }
            Ask::GetTask { id } => Some(self.get_task(owner, &context, &id)),
            Ask::TaskResult { id } => self.task_result(source, context, &id),
            Ask::ListTasks { ref cursor } => match self.gather_list(&source, &context, &ask) {
                true => None,
                false => {
                    let items = self.task_items(owner, context.version);
                    Some(crate::server::mcp::tasks::page(&results, items, cursor.as_deref()))
                }
            },
            Ask::CancelTask { id } => Some(self.cancel_task(owner, &context, &id)),
            Ask::UpdateTask { id, answers } => {
                Some(self.update_task(owner, &context, &id, answers))
            }
            Ask::Listen(filter) => self.listen_mcp(source, context, filter),
        }
    }

    /// Returns the server's description of itself.
    pub(in crate::server) fn server_info(&self) -> Arc<ServerInfo> {
        Arc::clone(&self.guests.mcp.server)
    }

    /// Calls code of the catalog.
    ///
    /// # Errors
    /// The code has panicked.
    pub(in crate::server) fn call_catalog<T>(
        &mut self,
        call: impl FnOnce() -> T,
    ) -> Result<T, Fault> {
        guarded(call).map_err(|panicked| {
            self.note_panic(Callback::Guest("catalog"), &panicked);
            Fault::internal(format!("the catalog panicked: {panicked}"))
        })
    }

    /// Returns the catalog: prompts and resources other than executions.
    pub(in crate::server) fn catalog(&self) -> Arc<Catalog> {
        Arc::clone(&self.guests.mcp.catalog)
    }

    fn is_ending(&self) -> bool {
        self.guests.serve.as_ref().is_some_and(|serve| serve.is_draining)
    }

    fn list_tools(
        &mut self,
        owner: Principal,
        results: &Results<'_>,
        cursor: Option<&str>,
    ) -> Reply {
        let mut all: Vec<Arc<ToolSpec>> = self.tool_specs(owner).cloned().collect();
        all.extend(crate::mcp::door::specs().map(Arc::new));
        all.sort_by(|one, other| one.name.cmp(&other.name));
        all.dedup_by(|one, other| one.name == other.name);
        let page = cursor::page(List::Tools, all, |spec| spec.name.clone(), cursor)?;
        Ok(results.tools(documents(page, |spec| results::tool(&spec, results.version()))))
    }

    fn list_prompts(&mut self, results: &Results<'_>, cursor: Option<&str>) -> Reply {
        let catalog = self.catalog();
        let mut all: Vec<_> = catalog.prompts.iter().collect();
        all.sort_by(|one, other| one.name.cmp(&other.name));
        let page = cursor::page(List::Prompts, all, |prompt| prompt.name.clone(), cursor)?;
        Ok(results.prompts(documents(page, |prompt| prompt.to_json(results.version()))))
    }

    fn get_prompt(
        &mut self,
        source: &Source,
        context: &Context,
        results: &Results<'_>,
        name: &str,
        arguments: &Map<String, Value>,
    ) -> Reply {
        let catalog = self.catalog();
        let Some(prompt) = catalog.prompt(name) else {
            return Err(Fault::invalid_params(format!("unknown prompt: {name}")));
        };
        prompt.check(arguments)?;
        let bound = Bound { principal: source.owner, method: "prompts/get", name, arguments };
        let replies = self.guests.mcp.seal.replies(bound, context, self.now)?;
        match self.call_catalog(|| (prompt.render)(arguments, &replies, &context.client))?? {
            Rendered::Messages(messages) => Ok(results.prompt(&prompt.description, messages)),
            Rendered::Ask(Asking::Ask { questions, state })
                if context.version.era() == Era::Stateless =>
            {
                self.input_required(bound, context, results, &questions, state)
            }
            Rendered::Ask(Asking::Refuse(text)) => Err(Fault::invalid_params(text)),
            Rendered::Ask(Asking::Run | Asking::Ask { .. }) => Err(Fault::invalid_params(
                "this prompt has questions that this protocol version does not support",
            )),
        }
    }

    /// Returns the answer, in the stateless era, of a tool or prompt that has questions first.
    pub(in crate::server) fn input_required(
        &self,
        bound: Bound<'_>,
        context: &Context,
        results: &Results<'_>,
        questions: &[Question],
        state: Option<Value>,
    ) -> Reply {
        questions::check(context.version, &context.client, questions)?;
        let sealed =
            state.map(|state| self.guests.mcp.seal.seal(bound, &state, self.now)).transpose()?;
        Ok(results.input_required(questions, sealed))
    }

    /// Returns the answers and the state that a request brings from an earlier one.
    pub(in crate::server) fn replies_of(
        &self,
        source: &Source,
        context: &Context,
        name: &str,
        arguments: &Map<String, Value>,
    ) -> Result<Replies, Fault> {
        let bound = Bound { principal: source.owner, method: "tools/call", name, arguments };
        self.guests.mcp.seal.replies(bound, context, self.now)
    }

    /// Completes an argument, with these ids of executions.
    pub(in crate::server) fn complete_argument(
        &self,
        owner: Principal,
        results: &Results<'_>,
        wanted: &Complete,
        executions: &dyn Fn() -> Vec<String>,
    ) -> Reply {
        let catalog = self.catalog();
        let tool = |name: &str| self.tool_spec(owner, name);
        let sources = Sources { catalog: &catalog, tool: &tool, executions };
        Ok(results.completion(&completion::complete(wanted, &sources)?))
    }

    /// Handles a notification of a client.
    pub(in crate::server) fn tell_mcp(&mut self, source: Source, told: Told) {
        if let Told::Cancelled { id, .. } = told {
            match self.find_call(source.asker, &id) {
                Some(handle) => self.cancel_mcp(handle),
                None => self.cancel_far(source.asker, &id),
            }
        }
    }

    /// Returns the call that this asker knows by this id.
    pub(in crate::server) fn find_call(&self, asker: Asker, id: &Id) -> Option<Handle> {
        let serve = self.guests.serve.as_ref()?;
        let is_it = |call: &McpCall| call.asker == asker && call.context.id == *id;
        serve.mcp.calls.iter().find(|(_, call)| is_it(call)).map(|(handle, _)| handle)
    }

    /// Stops a call that its client has cancelled, without an answer.
    pub(in crate::server) fn cancel_mcp(&mut self, handle: Handle) {
        let execution = self.stop_call(handle);
        self.drop_call(handle);
        if let Some(execution) = execution {
            let _ = self.cancel(execution);
        }
    }

    /// Drops what a call keeps, and returns the execution that was run only for it.
    pub(in crate::server) fn stop_call(
        &mut self,
        handle: Handle,
    ) -> Option<crate::base::ExecutionId> {
        let serve = self.guests.serve.as_mut().expect("it has calls");
        let call = serve.mcp.calls.get(handle)?;
        match call.stage {
            Stage::Runs(keep) => {
                let execution = serve.mcp.keeps.get(keep)?.execution;
                self.forget_keep(keep);
                execution
            }
            _ => None,
        }
    }

    /// Like [`Shard::cancel_mcp`], for a client whose session has ended.
    pub(in crate::server) fn abandon(&mut self, handle: Handle) {
        self.cancel_mcp(handle);
    }
}

/// Converts the items of a page to JSON.
pub(in crate::server) fn documents<T>(page: Page<T>, document: impl Fn(T) -> Value) -> Page<Value> {
    Page { items: page.items.into_iter().map(document).collect(), next: page.next }
}
