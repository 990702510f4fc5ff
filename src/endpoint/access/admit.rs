//! The one place that decides whether a request is admitted.

use super::hosts::is_same_origin;
use super::{Access, Guard, OriginPlace};
use crate::base::{ExecutionId, Instant, Principal};
use crate::endpoint::answer::{Answer, ErrorFormat};
use crate::endpoint::{ApiError, ask};
use crate::wire::http1::{Header, HeaderFault, Method, Query, RequestHead, Status};

/// The decision about a request.
#[derive(Debug)]
pub(in crate::endpoint) struct Admission {
    /// The configured origin whose pages may read the answer, whatever it is.
    pub origin: Option<OriginPlace>,
    /// The principal that sent the request, or the final answer.
    pub verdict: Result<Principal, Answer>,
}

impl Access {
    /// Decides about a request by its head. Nothing else was examined before.
    pub(in crate::endpoint) fn admit(&self, head: &RequestHead<'_>, now: Instant) -> Admission {
        let shown = AdmissionHeaders::by(head);
        let error_format = ErrorFormat::at(head.target.path);
        let origin = match self.check_source(head, &shown) {
            Ok(origin) => origin,
            Err(error) => {
                let verdict = Err(Answer::error_in(error_format, &error));
                return Admission { origin: None, verdict };
            }
        };
        // A browser asks first, without a token, whether the page may send the request.
        let is_preflight = head.method == Method::Options && shown.asks_for_method;
        let verdict = match origin.is_some() && is_preflight {
            true => Err(Answer::preflight(ask::methods(head))),
            false => self.identify(head, &shown, now),
        };
        Admission { origin, verdict }
    }

    /// Checks the host name of the request and the origin of its page. Returns the origin if it is
    /// configured.
    fn check_source(
        &self,
        head: &RequestHead<'_>,
        shown: &AdmissionHeaders<'_>,
    ) -> Result<Option<OriginPlace>, ApiError> {
        // Only HTTP/1.0 can omit it, which no browser speaks.
        if let Some(host) = head.host
            && !self.knows_host(host)
            && !ask::is_open(head)
        {
            let text = "this host name is not allowed; --allow-host adds names";
            return Err(forbidden("host_not_allowed", text, "host"));
        }
        let origin = match shown.origin.text("origin")? {
            None => None,
            Some(origin) => {
                let place = self.find_origin(origin);
                let is_own = || head.host.is_some_and(|host| is_same_origin(origin, host));
                if place.is_none() && !is_own() {
                    let text =
                        "requests from this origin are not allowed; --allow-origin adds origins";
                    return Err(forbidden("origin_not_allowed", text, "origin"));
                }
                place
            }
        };
        // A request of a page may have no origin. An image has none, for example.
        if origin.is_none() && shown.is_cross_site {
            let text = "requests from other sites are not allowed; --allow-origin adds origins";
            return Err(forbidden("origin_not_allowed", text, "sec-fetch-site"));
        }
        Ok(origin)
    }

    /// Returns the principal that sent the request.
    fn identify(
        &self,
        head: &RequestHead<'_>,
        shown: &AdmissionHeaders<'_>,
        now: Instant,
    ) -> Result<Principal, Answer> {
        let authorization = shown.authorization.text("authorization");
        let error_format = ErrorFormat::at(head.target.path);
        let authorization =
            authorization.map_err(|fault| Answer::error_in(error_format, &fault.into()))?;
        let Some(guard) = &self.guard else { return Ok(Principal::ANYONE) };
        match authorization {
            _ if ask::has_own_token(head) => Ok(Principal::ANYONE),
            Some(credentials) => {
                let owner = bearer(credentials).and_then(|token| guard.tokens.owner_of(token));
                owner.ok_or_else(|| Answer::unauthorized(error_format, WRONG_TOKEN))
            }
            None if !has_ticket(head) && ask::is_open(head) => Ok(Principal::ANYONE),
            None => guard.holder_of(head, now).ok_or_else(|| match has_ticket(head) {
                true => Answer::unauthorized(error_format, WRONG_TOKEN),
                false => Answer::unauthorized(error_format, NO_TOKEN),
            }),
        }
    }
}

/// RFC 6750, section 3: a request without credentials gets no error code.
const NO_TOKEN: &str = "Bearer";
const WRONG_TOKEN: &str = "Bearer error=\"invalid_token\"";

impl Guard {
    /// Returns the principal of the ticket in this request, if the ticket is valid for its stream.
    fn holder_of(&self, head: &RequestHead<'_>, now: Instant) -> Option<Principal> {
        if !matches!(head.method, Method::Get | Method::Head) {
            return None;
        }
        // Only the spelling that links have is accepted.
        let path = head.target.path.strip_prefix("/v1/executions/")?;
        let execution: ExecutionId = path.strip_suffix("/events")?.parse().ok()?;
        let query = Query::parse(head.target.query).ok()?;
        self.tickets.check(query.text(TICKET).ok()??, execution, now, &self.tokens)
    }
}

/// The name of the parameter that holds a ticket.
pub(in crate::endpoint) const TICKET: &str = "ticket";

fn has_ticket(head: &RequestHead<'_>) -> bool {
    let query = Query::parse(head.target.query);
    query.is_ok_and(|query| query.all(TICKET).next().is_some())
}

/// Returns the token of `Bearer TOKEN`.
fn bearer(credentials: &str) -> Option<&[u8]> {
    let (scheme, token) = credentials.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| token.trim_start_matches(' ').as_bytes())
}

/// The headers that admission depends on, found in one pass.
#[derive(Debug, Default)]
struct AdmissionHeaders<'a> {
    origin: SingleHeader<'a>,
    authorization: SingleHeader<'a>,
    is_cross_site: bool,
    asks_for_method: bool,
}

/// The value of a header that may occur at most once.
#[derive(Clone, Copy, Debug, Default)]
struct SingleHeader<'a> {
    value: Option<&'a [u8]>,
    is_repeated: bool,
}

impl<'a> AdmissionHeaders<'a> {
    fn by(head: &RequestHead<'a>) -> AdmissionHeaders<'a> {
        let mut shown = AdmissionHeaders::default();
        for Header { name, value } in head.headers.iter() {
            let is = |other: &str| name.eq_ignore_ascii_case(other);
            let once = match name.len() {
                6 if is("origin") => &mut shown.origin,
                13 if is("authorization") => &mut shown.authorization,
                14 if is("sec-fetch-site") => {
                    shown.is_cross_site |= value.eq_ignore_ascii_case(b"cross-site");
                    continue;
                }
                29 if is("access-control-request-method") => {
                    shown.asks_for_method = true;
                    continue;
                }
                _ => continue,
            };
            once.is_repeated |= once.value.replace(value).is_some();
        }
        shown
    }
}

impl<'a> SingleHeader<'a> {
    fn text(self, name: &'static str) -> Result<Option<&'a str>, HeaderFault> {
        let Some(value) = self.value else { return Ok(None) };
        let text = std::str::from_utf8(value).ok().filter(|text| text.is_ascii());
        match text {
            Some(text) if !self.is_repeated => Ok(Some(text)),
            _ => Err(HeaderFault { name }),
        }
    }
}

fn forbidden(code: &'static str, text: &str, field: &str) -> ApiError {
    ApiError::new(Status::FORBIDDEN, code, format!("{field}: {text}")).field(field)
}
