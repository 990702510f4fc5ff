//! Tells workers about wakes: by webhooks, and by messages in streams.

use std::time::Duration;

use serde_json::{Value, json};

use super::state::{Act, Delivered, Stage};
use super::{Sending, drop_exchange, go_on, keys, requests};
use crate::endpoint::WakeBy;
use crate::limits;
use crate::reactor::Reactor;
use crate::server::durable::{self, Key};
use crate::server::outgoing::{Asker, Deadlines, ExchangeId, ResponseEvent, Target};
use crate::server::peers::ToPeer;
use crate::server::{ServerShard, outgoing, peers, records};
use crate::trace::Level;
use crate::wire::strict;
use crate::wire::subscriptions::WebhookUrl;

/// Tells the workers of a wake, if it is still there.
pub(super) fn tell<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    at: usize,
    wake_id: &str,
    act: Act,
) {
    let kept = &mut shard.guests.subscriptions.all[at];
    let wake = kept.state.wake.as_ref().filter(|wake| *wake.id == *wake_id);
    let Some(wake) = wake else { return };
    match act {
        Act::Send if wake.stage == Stage::Sending => {
            if !std::mem::replace(&mut kept.is_queued, true) {
                shard.guests.subscriptions.queued.push_back(at);
            }
            send_queued(shard);
        }
        Act::Send => {}
        Act::Offer(path) => offer(shard, at, &path),
    }
}

/// Appends a message to the stream of wakes.
fn offer<R: Reactor + 'static>(shard: &mut ServerShard<R>, at: usize, path: &str) {
    let now_us = records::wall_us(shard);
    let kept = &shard.guests.subscriptions.all[at];
    let WakeBy::Stream(wake_stream) = &kept.state.wanted.delivery else { return };
    let message = json!({
        "type": "wake",
        "subscription_id": kept.id,
        "stream": path,
        "generation": kept.state.generation,
        "ts": now_us / 1_000,
    });
    let message = message.to_string().into_bytes();
    let key = Key { owner: kept.key.owner.clone(), path: wake_stream.clone() };
    let home = shard.guests.durable.paths().find(&key).map(usize::from);
    match home {
        Some(home) if home != peers::own_index(shard) => {
            let message = ToPeer::Wake(Box::new(key), message);
            if peers::send(shard, home, message).is_err() {
                shard.guests.subscriptions.all[at].state.offer_later(now_us);
                let again = shard.now + Duration::from_millis(limits::WEBHOOK_RETRY_MS.0);
                shard.guests.subscriptions.arm(at, Some(again));
            }
        }
        Some(_) => wake_here(shard, &key, message),
        None => log_lost(shard, "there is no such stream"),
    }
}

/// Appends a message about a wake to a stream of this shard.
pub(in crate::server) fn wake_here<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    key: &Key,
    message: Vec<u8>,
) {
    if let Err(reason) = durable::append_wake(shard, key, message) {
        log_lost(shard, reason);
    }
}

/// Logs a message about a wake that no stream has got. Workers can claim nevertheless.
fn log_lost<R: Reactor + 'static>(shard: &mut ServerShard<R>, reason: &str) {
    let own = peers::own_index(shard) as u64;
    shard.guests.log.record(records::wall_us(shard), Level::Warn, "wake_lost", |record| {
        record.number("shard", own).show("reason", &reason);
    });
}

/// Sends webhooks, as long as more may be under way.
fn send_queued<R: Reactor + 'static>(shard: &mut ServerShard<R>) {
    while shard.guests.subscriptions.exchanges.len() < limits::WEBHOOKS_MAX {
        let Some(at) = shard.guests.subscriptions.queued.pop_front() else { return };
        let Some(kept) = shard.guests.subscriptions.all.get_mut(at) else { continue };
        kept.is_queued = false;
        let stage = kept.state.wake.as_ref().map(|wake| &wake.stage);
        if stage == Some(&Stage::Sending) && kept.sending.is_none() {
            send(shard, at);
        }
    }
}

fn send<R: Reactor + 'static>(shard: &mut ServerShard<R>, at: usize) {
    let now_us = records::wall_us(shard);
    let Ok(keys) = keys(shard) else { return };
    let kept = &shard.guests.subscriptions.all[at];
    let WakeBy::Webhook(url) = &kept.state.wanted.delivery else { return };
    let Some(wake) = &kept.state.wake else { return };
    let url = match WebhookUrl::parse(url, &shard.guests.subscriptions.networks) {
        Ok(url) => url,
        Err(text) => {
            // The networks were others when the subscription was created.
            let (wake_id, random) = (wake.id.clone(), at as u64 ^ shard.now.nanos());
            let state = &mut shard.guests.subscriptions.all[at].state;
            state.note_delivered(&wake_id, Delivered::Failed(random), now_us);
            log_failed(shard, text);
            return go_on(shard, at);
        }
    };
    let (generation, wake_id) = (kept.state.generation, wake.id.clone());
    let owner = kept.key.owner.as_deref();
    let body = json!({
        "subscription_id": kept.id,
        "wake_id": wake_id,
        "generation": generation,
        "streams": requests::streams_of(&kept.state),
        "callback_url": format!("{}/callback", requests::url_of(kept)),
        "callback_token": keys.token(owner, kept.execution, generation, now_us),
    });
    let body = body.to_string().into_bytes();
    let Some(signature) = keys.sign(&body, now_us / 1_000_000) else { return };
    let WebhookUrl { is_tls, host, port, target, authority, reach } = url;
    let head = format!(
        "POST {target} HTTP/1.1\r\nhost: {authority}\r\nuser-agent: streamdoor/{}\r\n\
         accept: application/json\r\naccept-encoding: identity\r\n\
         content-type: application/json\r\nwebhook-signature: {signature}\r\n\
         content-length: {}\r\n\r\n",
        env!("CARGO_PKG_VERSION"),
        body.len()
    );
    let mut request = head.into_bytes();
    request.extend_from_slice(&body);
    let target = Target { is_tls, host, port };
    let exchange =
        outgoing::ask_within(shard, (&target, &reach), request, DEADLINES, Asker::Subscription);
    let subscriptions = &mut shard.guests.subscriptions;
    subscriptions.exchanges.insert(exchange.0, at);
    subscriptions.all[at].sending = Some(Sending { exchange, wake_id, answer: None });
}

const DEADLINES: Deadlines = Deadlines {
    connect: Duration::from_secs(10),
    first_byte: limits::WEBHOOK_DEADLINE,
    between_bytes: limits::WEBHOOK_DEADLINE,
    total: limits::WEBHOOK_DEADLINE,
};

/// Drops the webhook of a subscription, if one is under way.
pub(super) fn hang_up<R: Reactor + 'static>(shard: &mut ServerShard<R>, at: usize) {
    if let Some(sending) = shard.guests.subscriptions.all[at].sending.take() {
        drop_exchange(shard, sending.exchange);
    }
}

/// Takes the answers of the receivers of webhooks.
pub(super) fn hear_receivers<R: Reactor + 'static>(shard: &mut ServerShard<R>) {
    if shard.guests.subscriptions.exchanges.is_empty() {
        return;
    }
    let mut body = std::mem::take(&mut shard.guests.subscriptions.body);
    while let Some((exchange, heard)) =
        outgoing::poll_response_for(shard, Asker::Subscription, &mut body)
    {
        shard.worked = true;
        hear(shard, exchange, &heard, &body);
    }
    shard.guests.subscriptions.body = body;
    send_queued(shard);
}

fn hear<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    exchange: ExchangeId,
    heard: &ResponseEvent,
    body: &[u8],
) {
    let random = exchange.0.index as u64 ^ shard.now.nanos();
    let subscriptions = &mut shard.guests.subscriptions;
    let Some(&at) = subscriptions.exchanges.get(&exchange.0) else { return };
    let Some(sending) = &mut subscriptions.all[at].sending else { return };
    let delivered = match heard {
        ResponseEvent::Head { status: 200..=299, .. } => {
            sending.answer = Some(Vec::new());
            return;
        }
        ResponseEvent::Head { .. } => Delivered::Failed(random),
        ResponseEvent::Body => {
            let Some(answer) = &mut sending.answer else { return };
            answer.extend_from_slice(body);
            if answer.len() <= limits::WEBHOOK_ANSWER_BYTES_MAX {
                return;
            }
            Delivered::Accepted // Nobody says so much when it is done.
        }
        ResponseEvent::End => match &sending.answer {
            Some(answer) if is_done(answer) => Delivered::Done,
            Some(_) => Delivered::Accepted,
            None => Delivered::Failed(random),
        },
        ResponseEvent::Broken(_) if sending.answer.is_some() => Delivered::Accepted,
        ResponseEvent::Broken(fault) => {
            let text = fault.text.clone();
            log_failed(shard, &text);
            Delivered::Failed(random)
        }
    };
    finish(shard, at, exchange, delivered);
}

fn finish<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    at: usize,
    exchange: ExchangeId,
    delivered: Delivered,
) {
    let now_us = records::wall_us(shard);
    let subscriptions = &mut shard.guests.subscriptions;
    subscriptions.exchanges.remove(&exchange.0);
    let kept = &mut subscriptions.all[at];
    if let Some(sending) = kept.sending.take() {
        kept.state.note_delivered(&sending.wake_id, delivered, now_us);
    }
    outgoing::release_exchange(shard, exchange);
    go_on(shard, at);
}

/// True if the answer of a receiver says that it has processed everything.
fn is_done(answer: &[u8]) -> bool {
    strict::read(answer).is_ok_and(|answer| answer.get("done") == Some(&Value::Bool(true)))
}

fn log_failed<R: Reactor + 'static>(shard: &mut ServerShard<R>, reason: &str) {
    let own = peers::own_index(shard) as u64;
    shard.guests.log.record(records::wall_us(shard), Level::Warn, "webhook_failed", |record| {
        record.number("shard", own).show("reason", &reason);
    });
}
