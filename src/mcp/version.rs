//! Versions of the protocol, and the two ways in which they begin.

/// How a connection between a client and a server begins, and what holds them together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Era {
    /// With `initialize`, and a session from then on.
    Handshake,
    /// With anything: each request says by itself whose it is and what he can.
    Stateless,
}

/// Versions, oldest first. Those that come may differ in anything, so an unknown one is none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Version {
    /// The first.
    V2024_11_05,
    /// HTTP as it is now; audio, annotations of tools, completions, messages of progress.
    V2025_03_26,
    /// Structured results, links to resources, elicitation, titles; no batches.
    V2025_06_18,
    /// Tasks, polling; wrong arguments are the tool's own errors.
    V2025_11_25,
    /// No handshake and no sessions.
    V2026_07_28,
}

impl Version {
    /// All of them, oldest first.
    pub const ALL: [Version; 5] = [
        Version::V2024_11_05,
        Version::V2025_03_26,
        Version::V2025_06_18,
        Version::V2025_11_25,
        Version::V2026_07_28,
    ];
    /// The newest that begins with a handshake.
    pub const LATEST_HANDSHAKE: Version = Version::V2025_11_25;
    /// The newest.
    pub const LATEST: Version = Version::V2026_07_28;

    /// As it is spelled.
    pub fn text(self) -> &'static str {
        match self {
            Version::V2024_11_05 => "2024-11-05",
            Version::V2025_03_26 => "2025-03-26",
            Version::V2025_06_18 => "2025-06-18",
            Version::V2025_11_25 => "2025-11-25",
            Version::V2026_07_28 => "2026-07-28",
        }
    }

    /// The version that is spelled so.
    pub fn parse(text: &str) -> Option<Version> {
        Version::ALL.into_iter().find(|version| version.text() == text)
    }

    /// Its era.
    pub fn era(self) -> Era {
        match self {
            Version::V2026_07_28 => Era::Stateless,
            _ => Era::Handshake,
        }
    }

    /// What `initialize` is answered that asks for `requested`: the same if a handshake can have
    /// it, else the newest that one can.
    pub fn negotiate(requested: &str) -> Version {
        let known = Version::parse(requested).filter(|version| version.era() == Era::Handshake);
        known.unwrap_or(Version::LATEST_HANDSHAKE)
    }

    /// Versions without a handshake: what `server/discover` lists, and who asks for another one.
    pub fn stateless() -> impl Iterator<Item = Version> {
        Version::ALL.into_iter().filter(|version| version.era() == Era::Stateless)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_version_is_read_as_it_is_spelled_and_no_other_is_known() {
        for version in Version::ALL {
            assert_eq!(Version::parse(version.text()), Some(version));
        }
        for text in ["", "2024-10-07", "2025-11-26", "2026-07-28 ", "1999-01-01", "draft"] {
            assert_eq!(Version::parse(text), None, "{text}");
        }
        assert!(Version::ALL.is_sorted());
    }

    #[test]
    fn the_requested_version_is_answered_if_a_handshake_can_have_it() {
        // A2, C1: never refused, and never taken into the stateless era.
        let table = [
            ("2024-11-05", Version::V2024_11_05),
            ("2025-03-26", Version::V2025_03_26),
            ("2025-06-18", Version::V2025_06_18),
            ("2025-11-25", Version::V2025_11_25),
            ("2026-07-28", Version::V2025_11_25),
            ("1999-01-01", Version::V2025_11_25),
            ("2099-01-01", Version::V2025_11_25),
            ("", Version::V2025_11_25),
        ];
        for (requested, answered) in table {
            assert_eq!(Version::negotiate(requested), answered, "{requested}");
        }
    }
}
