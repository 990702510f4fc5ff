//! The requests about subscriptions.

use serde_json::{Value, json};

use super::keys::{TokenFault, owner_of};
use super::state::{ClaimError, Subscription, TooManyLinks};
use super::{
    Kept, Then, answer_when_kept, change, find, keep, keys, look_at_news, not_kept, wait_for_disk,
};
use crate::base::Principal;
use crate::endpoint::subscriptions::{INVALID_REQUEST, NOT_FOUND, answer_json, answer_refused};
use crate::endpoint::{
    Acks, Answer, Control, ControlAction, DurableAsk, DurableCall, DurableHeaders, WakeBy,
};
use crate::journal::Refused;
use crate::reactor::{ConnectionId, Reactor};
use crate::server::durable::{self, Key};
use crate::server::hub::Answered;
use crate::server::{ServerShard, hub, records};
use crate::trace::rfc3339;
use crate::wire::durable::Offset;
use crate::wire::http1::Status;
use crate::wire::subscriptions::{WebhookUrl, write_segment};

/// Returns the shard of the subscription that a request names. `None`: any shard can answer.
pub(in crate::server) fn home_of<R: Reactor + 'static>(
    shard: &ServerShard<R>,
    call: &DurableCall,
    principal: Principal,
) -> Option<usize> {
    let DurableAsk::Control(control) = &call.ask else { return None };
    if control.action == ControlAction::Keys {
        return None;
    }
    let key = key_of(shard, control, &call.path, principal);
    let known = shard.guests.durable.paths().find(&key).map(usize::from);
    Some(known.unwrap_or_else(|| durable::home_of_new(shard, &call.path)))
}

fn key_of<R: Reactor + 'static>(
    shard: &ServerShard<R>,
    control: &Control,
    path: &str,
    principal: Principal,
) -> Key {
    let owner = match &control.token {
        Some(token) => owner_of(token),
        None => shard.guests.access.name_of(principal).map(Box::from),
    };
    Key { owner, path: path.into() }
}

/// Carries out a request about a subscription.
pub(in crate::server) fn answer<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    id: ConnectionId,
    call: DurableCall,
    principal: Principal,
) -> Answered {
    let DurableAsk::Control(control) = &call.ask else { unreachable!("it is about one") };
    let Ok(keys) = keys(shard) else {
        return hub::answer(shard, id, &not_kept(Refused::Broken));
    };
    if control.action == ControlAction::Keys {
        let headers = DurableHeaders::default()
            .with("content-type", "application/jwk-set+json")
            .with("cache-control", "public, max-age=300");
        let body = keys.key_set().to_string().into_bytes();
        return hub::answer(shard, id, &Answer::durable(Status::OK, headers, body));
    }
    let key = key_of(shard, control, &call.path, principal);
    let claimed = match &control.token {
        None => None,
        Some(token) => match keys.open(token, records::wall_us(shard)) {
            Ok(claimed) => Some(claimed),
            Err(fault) => return hub::answer(shard, id, &wrong_token(fault)),
        },
    };
    look_at_news(shard);
    let found = find(shard, &key);
    if let ControlAction::Create(_) = control.action {
        return create(shard, id, (key, found), call, principal);
    }
    let Some(at) = found else {
        let answer = match control.action {
            ControlAction::Delete => done(),
            _ => unknown(),
        };
        return hub::answer(shard, id, &answer);
    };
    let kept = &shard.guests.subscriptions.all[at];
    if claimed.as_ref().is_some_and(|claimed| claimed.execution != kept.execution) {
        return hub::answer(shard, id, &wrong_token(TokenFault::Invalid));
    }
    let generation = claimed.map_or(0, |claimed| claimed.generation);
    match &control.action {
        ControlAction::Describe => {
            let answer = answer_json(Status::OK, &describe(kept, &keys));
            hub::answer(shard, id, &answer)
        }
        ControlAction::Delete => delete(shard, id, at),
        action => {
            let result = carry_out(shard, at, action, generation);
            match result {
                Ok(answer) => conclude(shard, id, at, answer),
                Err(answer) => hub::answer(shard, id, &answer),
            }
        }
    }
}

/// The answer to a request that was carried out, once it is kept.
enum Outcome {
    Done,
    /// It says whether a wake has begun.
    Acknowledged,
    /// It says what the worker has claimed.
    Claimed,
}

/// Changes a subscription. Returns the answer if the request was refused.
fn carry_out<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    at: usize,
    action: &ControlAction,
    generation: u64,
) -> Result<Outcome, Answer> {
    let now_us = records::wall_us(shard);
    let paths = shard.guests.durable.paths().clone();
    let keys = keys(shard).map_err(|()| not_kept(Refused::Broken))?;
    let kept = &mut shard.guests.subscriptions.all[at];
    let (execution, state) = (kept.execution, &mut kept.state);
    let is_pull = matches!(state.wanted.delivery, WakeBy::Stream(_));
    match action {
        ControlAction::Link(streams) => {
            for path in streams {
                let key = Key { owner: kept.key.owner.clone(), path: path.clone() };
                state.link_explicit(path, paths.look_at(&key)).map_err(too_many_links)?;
            }
            Ok(Outcome::Done)
        }
        ControlAction::Unlink(path) => {
            state.unlink(path);
            Ok(Outcome::Done)
        }
        ControlAction::Claim(_) | ControlAction::Ack(_) | ControlAction::Release(_) if !is_pull => {
            Err(invalid("the subscription is not pull-wake"))
        }
        ControlAction::Callback(_) if is_pull => Err(invalid("the subscription has no webhook")),
        ControlAction::Claim(worker) => {
            let name = |number| keys.wake_id(execution, number, now_us);
            match state.claim(worker, now_us, name) {
                Ok(()) => Ok(Outcome::Claimed),
                Err(ClaimError::Nothing) => {
                    let text = "the subscription has nothing to process";
                    Err(answer_refused(Status::CONFLICT, "NO_PENDING_WORK", text))
                }
                Err(ClaimError::Held(holder)) => Err(held(state, &holder)),
            }
        }
        ControlAction::Callback(acks) | ControlAction::Ack(acks) => {
            check_present(state, generation, acks)?;
            state.acknowledge(acks, now_us).map_err(|_| {
                let text = "an offset is none of the stream, or behind what was acknowledged";
                answer_refused(Status::CONFLICT, "INVALID_OFFSET", text)
            })?;
            Ok(Outcome::Acknowledged)
        }
        ControlAction::Release(acks) => {
            check_present(state, generation, acks)?;
            state.release();
            Ok(Outcome::Done)
        }
        ControlAction::Keys
        | ControlAction::Create(_)
        | ControlAction::Describe
        | ControlAction::Delete => unreachable!("it was handled before"),
    }
}

fn check_present(state: &Subscription, generation: u64, acks: &Acks) -> Result<(), Answer> {
    match state.is_present(generation, acks) {
        true => Ok(()),
        false => {
            let text = "the wake is over, or another worker has it";
            Err(answer_refused(Status::CONFLICT, "FENCED", text))
        }
    }
}

fn held(state: &Subscription, holder: &str) -> Answer {
    let document = json!({"error": {
        "code": "ALREADY_CLAIMED",
        "message": "another worker has claimed the work",
        "current_holder": holder,
        "generation": state.generation,
    }});
    answer_json(Status::CONFLICT, &document)
}

/// Keeps a change, and answers when the disk has it.
fn conclude<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    id: ConnectionId,
    at: usize,
    outcome: Outcome,
) -> Answered {
    let (lsn, has_begun) = match change(shard, at) {
        Ok(changed) => changed,
        Err(refused) => return hub::answer(shard, id, &not_kept(refused)),
    };
    let answer = match outcome {
        Outcome::Done => done(),
        Outcome::Acknowledged => {
            answer_json(Status::OK, &json!({"ok": true, "next_wake": has_begun}))
        }
        Outcome::Claimed => claimed(shard, at),
    };
    answer_when_kept(shard, id, (at, lsn), answer)
}

fn claimed<R: Reactor + 'static>(shard: &mut ServerShard<R>, at: usize) -> Answer {
    let now_us = records::wall_us(shard);
    let Ok(keys) = keys(shard) else { return not_kept(Refused::Broken) };
    let kept = &shard.guests.subscriptions.all[at];
    let generation = kept.state.generation;
    let owner = kept.key.owner.as_deref();
    let document = json!({
        "wake_id": kept.state.wake.as_ref().map(|wake| &wake.id),
        "generation": generation,
        "token": keys.token(owner, kept.execution, generation, now_us),
        "streams": streams_of(&kept.state),
        "lease_ttl_ms": kept.state.wanted.lease_ms,
    });
    answer_json(Status::OK, &document)
}

/// Creates a subscription, or answers that there is the same one.
fn create<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    id: ConnectionId,
    (key, found): (Key, Option<usize>),
    call: DurableCall,
    principal: Principal,
) -> Answered {
    let DurableCall { host, ask: DurableAsk::Control(control), .. } = call else {
        unreachable!("it is about a subscription");
    };
    let Control { id: name, action: ControlAction::Create(wanted), .. } = *control else {
        unreachable!("it creates one");
    };
    if let WakeBy::Webhook(url) = &wanted.delivery
        && let Err(text) = WebhookUrl::parse(url, &shard.guests.subscriptions.networks)
    {
        let (text, code) = (format!("webhook.url: {text}"), "WEBHOOK_URL_REJECTED");
        return hub::answer(shard, id, &answer_refused(Status::BAD_REQUEST, code, &text));
    }
    let Ok(keys) = keys(shard) else {
        return hub::answer(shard, id, &not_kept(Refused::Broken));
    };
    if matches!(wanted.delivery, WakeBy::Webhook(_)) && !keys.can_sign() {
        let text = "this server was built without TLS, and signs no webhooks; use pull-wake";
        let answer = answer_refused(Status::NOT_IMPLEMENTED, "NOT_IMPLEMENTED", text);
        return hub::answer(shard, id, &answer);
    }
    if let Some(at) = found {
        let kept = &shard.guests.subscriptions.all[at];
        if *kept.mark != *keep::mark_of(&wanted) {
            let text = "there is another subscription with this id";
            let code = "SUBSCRIPTION_ALREADY_EXISTS";
            return hub::answer(shard, id, &answer_refused(Status::CONFLICT, code, text));
        }
        let answer = answer_json(Status::OK, &describe(kept, &keys));
        // The one that was created may not be on the disk yet.
        return match change(shard, at) {
            Ok((lsn, _)) => answer_when_kept(shard, id, (at, lsn), answer),
            Err(refused) => hub::answer(shard, id, &not_kept(refused)),
        };
    }
    let scheme = hub::scheme_of(shard, id);
    let base = host.map(|host| format!("{scheme}://{host}")).unwrap_or_default();
    let base = format!("{base}/v1/stream/__ds");
    match keep::create(shard, key, (name, base.into()), *wanted, principal) {
        Err(answer) => hub::answer(shard, id, &answer),
        Ok((at, lsn)) => {
            let kept = &shard.guests.subscriptions.all[at];
            let (execution, all) = (kept.execution, keep::executions_of(kept));
            let answer = answer_json(Status::CREATED, &describe(kept, &keys));
            wait_for_disk(shard, (at, execution), lsn, Then::Rest(all));
            answer_when_kept(shard, id, (at, lsn), answer)
        }
    }
}

fn delete<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    id: ConnectionId,
    at: usize,
) -> Answered {
    let execution = shard.guests.subscriptions.all[at].execution;
    match keep::remove(shard, at) {
        Err(refused) => hub::answer(shard, id, &not_kept(refused)),
        Ok(lsn) => {
            wait_for_disk(shard, (at, execution), lsn, Then::Removed(id));
            hub::wait(shard, id)
        }
    }
}

/// Returns the URL of a subscription.
pub(super) fn url_of(kept: &Kept) -> String {
    let mut url = format!("{}/subscriptions/", kept.base);
    write_segment(&mut url, &kept.id);
    url
}

fn describe(kept: &Kept, keys: &super::keys::Keys) -> Value {
    let Kept { id, state, created_us, base, .. } = kept;
    let streams = state.links.iter().map(|(path, link)| {
        json!({
            "path": path,
            "link_type": if link.is_explicit { "explicit" } else { "glob" },
            "acked_offset": Offset(link.acked).to_string(),
        })
    });
    let (kind, url, wake_stream) = match &state.wanted.delivery {
        WakeBy::Webhook(url) => ("webhook", Some(url), None),
        WakeBy::Stream(path) => ("pull-wake", None, Some(path)),
    };
    let mut document = json!({
        "id": id,
        "subscription_id": id,
        "type": kind,
        "pattern": state.wanted.pattern,
        "streams": streams.collect::<Vec<_>>(),
        "wake_stream": wake_stream,
        "lease_ttl_ms": state.wanted.lease_ms,
        "created_at": rfc3339(*created_us),
        "status": if state.has_failed() { "failed" } else { "active" },
        "description": state.wanted.description,
    });
    if let Some(url) = url {
        let jwks_url = format!("{base}/jwks.json");
        let signing = json!({"alg": "ed25519", "kid": keys.kid(), "jwks_url": jwks_url});
        document["webhook"] = json!({"url": url, "signing": signing});
    }
    document
}

/// Returns the streams of a subscription, as workers see them.
pub(super) fn streams_of(state: &Subscription) -> Vec<Value> {
    let links = state.links.iter().map(|(path, link)| {
        json!({
            "path": path,
            "link_type": if link.is_explicit { "explicit" } else { "glob" },
            "acked_offset": Offset(link.acked).to_string(),
            "tail_offset": Offset(link.tail.max(link.acked)).to_string(),
            "has_pending": link.is_pending(),
        })
    });
    links.collect()
}

/// Returns the answer without content.
pub(super) fn done() -> Answer {
    Answer::durable(Status::NO_CONTENT, DurableHeaders::default(), Vec::new())
}

/// Returns the answer for a subscription that does not exist.
pub(super) fn unknown() -> Answer {
    answer_refused(Status::NOT_FOUND, NOT_FOUND, "there is no such subscription")
}

fn invalid(text: &str) -> Answer {
    answer_refused(Status::BAD_REQUEST, INVALID_REQUEST, text)
}

/// Returns the answer for too many streams of one subscription.
pub(super) fn too_many_links(_: TooManyLinks) -> Answer {
    let text = "the subscription has as many streams as it can have";
    answer_refused(Status::TOO_MANY_REQUESTS, "TOO_MANY_STREAMS", text)
}

fn wrong_token(fault: TokenFault) -> Answer {
    let (code, text) = match fault {
        TokenFault::Invalid => ("TOKEN_INVALID", "the token is not one of this subscription"),
        TokenFault::Expired => ("TOKEN_EXPIRED", "the token has expired"),
    };
    answer_refused(Status::UNAUTHORIZED, code, text)
}
