//! Bearer tokens and their principals. Only digests are kept, so reading the server's memory does
//! not reveal a token.

use std::fmt;

use sha2::{Digest, Sha256};
use subtle::{Choice, ConditionallySelectable, ConstantTimeEq};

use crate::base::Principal;
use crate::limits;

type TokenDigest = [u8; 32];

/// The tokens of all principals.
#[derive(Clone)]
pub struct Tokens {
    /// The digests, in the order of the file.
    digests: Vec<(TokenDigest, Principal)>,
    /// The names of the principals. The first one is principal 1. Names without a token are of
    /// principals that had one earlier.
    names: Vec<Box<str>>,
}

/// An error in a text of tokens. It names the line, and never the content of the line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokensError {
    /// The number of the line, from 1 on.
    pub line: usize,
    /// The error in that line.
    pub fault: TokenFault,
}

/// The error in a line of tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TokenFault {
    /// The line is not a principal, white space, and a token.
    NotTwoWords,
    /// The name of the principal is too long, or has a character that names may not have.
    BadName,
    /// The token has a character that bearer tokens may not have.
    BadToken,
    /// The token is short enough to guess.
    TooShort,
    /// The token is too long.
    TooLong,
    /// The token is already in an earlier line.
    Repeated {
        /// The number of that line.
        first_line: usize,
    },
    /// The text has too many tokens.
    TooMany,
    /// The text has no token.
    None,
    /// Too many principals have had a token since the start. Restart the server.
    TooManyPrincipals,
}

impl Tokens {
    /// Reads lines of `PRINCIPAL TOKEN`. Empty lines and lines that begin with `#` are ignored. A
    /// principal with several lines has several tokens, so that a token can be replaced before it
    /// is removed.
    ///
    /// # Errors
    /// [`TokensError`], for the first line that is wrong.
    pub fn read(text: &str) -> Result<Tokens, TokensError> {
        let mut tokens = Tokens { digests: Vec::new(), names: Vec::new() };
        let mut lines_of: Vec<usize> = Vec::new();
        for (line, content) in told_lines(text) {
            let wrong = |fault| TokensError { line, fault };
            let mut words = content.split_ascii_whitespace();
            let (Some(name), Some(token), None) = (words.next(), words.next(), words.next()) else {
                return Err(wrong(TokenFault::NotTwoWords));
            };
            check_name(name).and_then(|()| check_token(token)).map_err(wrong)?;
            let digest: TokenDigest = Sha256::digest(token).into();
            if let Some(at) = tokens.digests.iter().position(|(known, _)| *known == digest) {
                return Err(wrong(TokenFault::Repeated { first_line: lines_of[at] }));
            }
            if tokens.digests.len() == limits::TOKENS_MAX {
                return Err(wrong(TokenFault::TooMany));
            }
            let principal = tokens.principal_named(name);
            tokens.digests.push((digest, principal));
            lines_of.push(line);
        }
        match tokens.digests.is_empty() {
            true => Err(TokensError { line: 1, fault: TokenFault::None }),
            false => Ok(tokens),
        }
    }

    /// Returns the principal of this name, and adds it if it is new.
    fn principal_named(&mut self, name: &str) -> Principal {
        let known = self.names.iter().position(|known| **known == *name);
        let place = known.unwrap_or_else(|| {
            self.names.push(name.into());
            self.names.len() - 1
        });
        principal_at(place)
    }

    /// Returns the number of principals that have a token.
    pub fn principal_count(&self) -> usize {
        let has_token = |place: &usize| self.has_token(principal_at(*place));
        (0..self.names.len()).filter(has_token).count()
    }

    /// Returns the tokens of `next` with the principals of these tokens: a name stands for the same
    /// principal. A name without a token stays reserved, because its executions may still exist.
    ///
    /// # Errors
    /// [`TokenFault::TooManyPrincipals`].
    pub(super) fn replaced_by(&self, next: &Tokens) -> Result<Tokens, TokenFault> {
        let mut renewed = Tokens { digests: Vec::new(), names: self.names.clone() };
        for (digest, principal) in &next.digests {
            let name = next.name_of(*principal).expect("each token has a named principal");
            let principal = renewed.principal_named(name);
            renewed.digests.push((*digest, principal));
        }
        match renewed.names.len() > limits::PRINCIPALS_MAX {
            true => Err(TokenFault::TooManyPrincipals),
            false => Ok(renewed),
        }
    }

    /// Returns the principals that have a token, with their names.
    pub(super) fn principals(&self) -> impl Iterator<Item = (Principal, &str)> {
        let all = self.names.iter().enumerate();
        let all = all.map(|(place, name)| (principal_at(place), &**name));
        all.filter(|(principal, _)| self.has_token(*principal))
    }

    /// True if the principal has a token.
    pub(super) fn has_token(&self, principal: Principal) -> bool {
        self.digests.iter().any(|(_, owner)| *owner == principal)
    }

    /// Returns the principal of this name, if it has a token.
    pub(super) fn named(&self, name: &str) -> Option<Principal> {
        let place = self.names.iter().position(|known| **known == *name)?;
        Some(principal_at(place)).filter(|principal| self.has_token(*principal))
    }

    /// Returns the name of a principal.
    pub(super) fn name_of(&self, principal: Principal) -> Option<&str> {
        let place = usize::from(principal.0).checked_sub(1)?;
        self.names.get(place).map(|name| &**name)
    }

    /// Returns the principal that owns this token. The time it takes reveals nothing about the
    /// tokens.
    pub(super) fn owner_of(&self, token: &[u8]) -> Option<Principal> {
        let digest: TokenDigest = Sha256::digest(token).into();
        self.find(|known| known.ct_eq(&digest))
    }

    /// Returns the principal of the digest that matches. All digests are compared, so the time does
    /// not depend on the match.
    fn find(&self, mut is_it: impl FnMut(&TokenDigest) -> Choice) -> Option<Principal> {
        let mut found = Principal::ANYONE.0;
        for (digest, principal) in &self.digests {
            found.conditional_assign(&principal.0, is_it(digest));
        }
        (found != Principal::ANYONE.0).then_some(Principal(found))
    }
}

/// Returns the principal of the name at this place.
fn principal_at(place: usize) -> Principal {
    Principal(u16::try_from(place + 1).expect("the number of principals is limited"))
}

/// Returns the token for a client: the first token of a text of tokens, or the only word of a text
/// that has nothing else.
///
/// # Errors
/// [`TokensError`], for the line of the token.
pub fn first_token(text: &str) -> Result<&str, TokensError> {
    let (line, content) =
        told_lines(text).next().ok_or(TokensError { line: 1, fault: TokenFault::None })?;
    let words: Vec<&str> = content.split_ascii_whitespace().collect();
    let token = match words[..] {
        [token] => Ok(token),
        [name, token] => check_name(name).map(|()| token),
        _ => Err(TokenFault::NotTwoWords),
    };
    let checked = token.and_then(|token| check_token(token).map(|()| token));
    checked.map_err(|fault| TokensError { line, fault })
}

/// Returns the lines that are neither empty nor comments, with their numbers.
fn told_lines(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let lines = (1..).zip(text.lines().map(str::trim));
    lines.filter(|(_, line)| !line.is_empty() && !line.starts_with('#'))
}

fn check_name(name: &str) -> Result<(), TokenFault> {
    let is_good = |byte: u8| byte.is_ascii_alphanumeric() || b"-._@+".contains(&byte);
    let is_name = name.len() <= limits::PRINCIPAL_NAME_CHARS_MAX && name.bytes().all(is_good);
    if is_name { Ok(()) } else { Err(TokenFault::BadName) }
}

/// Checks that a text is what RFC 6750 calls a b64token, and that its length is allowed.
///
/// # Errors
/// [`TokenFault`].
pub fn check_token(token: &str) -> Result<(), TokenFault> {
    let is_good = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~+/".contains(&byte);
    let content = token.trim_end_matches('=');
    if content.is_empty() || !content.bytes().all(is_good) {
        return Err(TokenFault::BadToken);
    }
    match token.len() {
        length if length < limits::TOKEN_CHARS_MIN => Err(TokenFault::TooShort),
        length if length > limits::TOKEN_CHARS_MAX => Err(TokenFault::TooLong),
        _ => Ok(()),
    }
}

impl fmt::Debug for Tokens {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "Tokens({} of {:?})", self.digests.len(), self.names)
    }
}

impl fmt::Display for TokenFault {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (shortest, longest) = (limits::TOKEN_CHARS_MIN, limits::TOKEN_CHARS_MAX);
        let name_longest = limits::PRINCIPAL_NAME_CHARS_MAX;
        match self {
            TokenFault::NotTwoWords => out.write_str("must be PRINCIPAL TOKEN"),
            TokenFault::BadName => {
                write!(
                    out,
                    "the principal must have at most {name_longest} characters of A-Z a-z 0-9 - . \
                     _ @ +"
                )
            }
            TokenFault::BadToken => out.write_str(
                "the token must have only A-Z a-z 0-9 - . _ ~ + /, and = only at its end",
            ),
            TokenFault::TooShort => write!(out, "the token has fewer than {shortest} characters"),
            TokenFault::TooLong => write!(out, "the token has more than {longest} characters"),
            TokenFault::Repeated { first_line } => {
                write!(out, "the token is already in line {first_line}")
            }
            TokenFault::TooMany => {
                write!(out, "the file may have at most {} tokens", limits::TOKENS_MAX)
            }
            TokenFault::None => out.write_str("it contains no token"),
            TokenFault::TooManyPrincipals => write!(
                out,
                "more than {} principals have had a token since the start; restart the server",
                limits::PRINCIPALS_MAX
            ),
        }
    }
}

impl fmt::Display for TokensError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.fault {
            TokenFault::None | TokenFault::TooManyPrincipals => self.fault.fmt(out),
            _ => write!(out, "line {}: {}", self.line, self.fault),
        }
    }
}

impl std::error::Error for TokenFault {}
impl std::error::Error for TokensError {}

#[cfg(test)]
mod tests {
    use super::*;

    fn token(seed: usize) -> String {
        format!("{seed:0>31}~")
    }

    fn tokens(count: usize) -> Tokens {
        let lines = (0..count).map(|seed| format!("p{seed} {}\n", token(seed)));
        Tokens::read(&lines.collect::<String>()).unwrap()
    }

    #[test]
    fn principals_are_numbered_in_the_order_of_the_file_and_may_have_several_tokens() {
        let (a, b, c) = (token(1), token(2), token(3));
        let text = format!("# who\n\n  ann\t{a}  \r\nbob {b}\nann {c}==\n# end");
        let tokens = Tokens::read(&text).unwrap();
        assert_eq!(tokens.owner_of(a.as_bytes()), Some(Principal(1)));
        assert_eq!(tokens.owner_of(b.as_bytes()), Some(Principal(2)));
        assert_eq!(tokens.owner_of(format!("{c}==").as_bytes()), Some(Principal(1)));
        for other in ["", &c, &a[1..], &a.to_uppercase().replace('~', "-"), "ann", &token(4)] {
            assert_eq!(tokens.owner_of(other.as_bytes()), None, "{other}");
        }
        assert_eq!(tokens.name_of(Principal(1)), Some("ann"));
        assert_eq!(tokens.name_of(Principal(2)), Some("bob"));
        assert_eq!((tokens.name_of(Principal(3)), tokens.name_of(Principal::ANYONE)), (None, None));
        assert!(!format!("{tokens:?}").contains(&a));
    }

    #[test]
    fn what_is_wrong_is_said_with_its_line_and_without_the_token() {
        let (a, long) = (token(1), "x".repeat(limits::TOKEN_CHARS_MAX + 1));
        let many: String = (0..=limits::TOKENS_MAX).map(|i| format!("p {}\n", token(i))).collect();
        let table = [
            (format!("#\n{a}"), 2, TokenFault::NotTwoWords),
            (format!("ann {a} x"), 1, TokenFault::NotTwoWords),
            (format!("a:b {a}"), 1, TokenFault::BadName),
            (format!("{} {a}", "x".repeat(65)), 1, TokenFault::BadName),
            (format!("ann {a}!"), 1, TokenFault::BadToken),
            (format!("ann =={a}"), 1, TokenFault::BadToken),
            (format!("ann {}", "=".repeat(40)), 1, TokenFault::BadToken),
            (format!("ann ä{a}"), 1, TokenFault::BadToken),
            (format!("ann {}", &a[1..]), 1, TokenFault::TooShort),
            (format!("ann {long}"), 1, TokenFault::TooLong),
            (format!("ann {a}\n\nbob {a}"), 3, TokenFault::Repeated { first_line: 1 }),
            (many, limits::TOKENS_MAX + 1, TokenFault::TooMany),
            ("# nothing\n\n".to_owned(), 1, TokenFault::None),
        ];
        for (text, line, fault) in table {
            let error = Tokens::read(&text).unwrap_err();
            assert_eq!(error, TokensError { line, fault }, "{text}");
            let said = error.to_string();
            assert!(!said.contains(&a[1..]) && !said.contains("xxx"), "{said}");
            assert!(fault == TokenFault::None || said.contains(&format!("line {line}:")), "{said}");
        }
    }

    #[test]
    fn all_digests_are_compared_whichever_it_is() {
        let tokens = tokens(limits::TOKENS_MAX);
        let last = limits::TOKENS_MAX - 1;
        for wanted in [Some(0), Some(last / 2), Some(last), None] {
            let digest = wanted.map(|seed| tokens.digests[seed].0).unwrap_or([0; 32]);
            let mut compared = Vec::new();
            let found = tokens.find(|known| {
                compared.push(*known);
                known.ct_eq(&digest)
            });
            assert_eq!(found, wanted.map(|seed| Principal(seed as u16 + 1)));
            assert!(compared.iter().eq(tokens.digests.iter().map(|(digest, _)| digest)));
        }
    }

    #[test]
    fn a_principal_keeps_its_number_when_tokens_are_replaced() {
        let (a, b, c) = (token(1), token(2), token(3));
        let read = |text: &str| Tokens::read(text).unwrap();
        let first = read(&format!("ann {a}\nbob {b}"));
        let second = first.replaced_by(&read(&format!("cyd {c}\nbob {a}"))).unwrap();
        assert_eq!(second.owner_of(a.as_bytes()), Some(Principal(2)), "bob has the token of ann");
        assert_eq!(second.owner_of(b.as_bytes()), None);
        assert_eq!(second.owner_of(c.as_bytes()), Some(Principal(3)));
        assert_eq!(second.name_of(Principal(1)), Some("ann"), "the name stays reserved");
        assert_eq!(second.principal_count(), 2);
        let has = |number| second.has_token(Principal(number));
        assert_eq!((has(1), has(2), has(3), has(4)), (false, true, true, false));
        let third = second.replaced_by(&read(&format!("ann {b}"))).unwrap();
        assert_eq!(third.owner_of(b.as_bytes()), Some(Principal(1)));

        let mut renewed = first;
        let faults = (0..limits::PRINCIPALS_MAX).find_map(|number| {
            let next = read(&format!("p{number} {a}"));
            match renewed.replaced_by(&next) {
                Ok(tokens) => {
                    renewed = tokens;
                    None
                }
                Err(fault) => Some((number, fault)),
            }
        });
        let number = limits::PRINCIPALS_MAX - 2; // Beside ann and bob.
        assert_eq!(faults, Some((number, TokenFault::TooManyPrincipals)));
    }

    #[test]
    fn a_client_uses_the_first_token_or_the_only_word() {
        let (a, b) = (token(1), token(2));
        assert_eq!(first_token(&format!("# c\nann {a}\nbob {b}\n")), Ok(&*a));
        assert_eq!(first_token(&format!("\n{b}\n")), Ok(&*b));
        for (text, line) in [("", 1), ("#\n", 1), ("\nshort", 2), ("a b c", 1)] {
            assert_eq!(first_token(text).unwrap_err().line, line, "{text}");
        }
    }
}
