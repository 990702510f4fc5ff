//! The versions of the protocol, and its two eras.

/// The way in which a client and a server begin, and keep their common state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Era {
    /// The client begins with `initialize`, which opens a session.
    Handshake,
    /// The client begins with any request. Each request declares its client and the client's
    /// capabilities.
    Stateless,
}

/// The versions, oldest first. An unknown version is never treated like a known one, because it may
/// differ in anything.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Version {
    /// The first version.
    V2024_11_05,
    /// Adds the present HTTP transport, audio, tool annotations, completions and progress messages.
    V2025_03_26,
    /// Adds structured results, resource links, elicitation and titles; removes batches.
    V2025_06_18,
    /// Adds tasks and polling. Wrong arguments are errors of the tool.
    V2025_11_25,
    /// Removes the handshake and sessions.
    V2026_07_28,
}

impl Version {
    /// All versions, oldest first.
    pub const ALL: [Version; 5] = [
        Version::V2024_11_05,
        Version::V2025_03_26,
        Version::V2025_06_18,
        Version::V2025_11_25,
        Version::V2026_07_28,
    ];
    /// The newest version with a handshake.
    pub const LATEST_HANDSHAKE: Version = Version::V2025_11_25;
    /// The newest version.
    pub const LATEST: Version = Version::V2026_07_28;

    /// The version as it is written in messages.
    pub fn text(self) -> &'static str {
        match self {
            Version::V2024_11_05 => "2024-11-05",
            Version::V2025_03_26 => "2025-03-26",
            Version::V2025_06_18 => "2025-06-18",
            Version::V2025_11_25 => "2025-11-25",
            Version::V2026_07_28 => "2026-07-28",
        }
    }

    /// Parses a version.
    pub fn parse(text: &str) -> Option<Version> {
        Version::ALL.into_iter().find(|version| version.text() == text)
    }

    /// The era of the version.
    pub fn era(self) -> Era {
        match self {
            Version::V2026_07_28 => Era::Stateless,
            _ => Era::Handshake,
        }
    }

    /// Returns the version with which `initialize` is answered: the requested one if it has a
    /// handshake, otherwise the newest one with a handshake.
    pub fn negotiate(requested: &str) -> Version {
        let known = Version::parse(requested).filter(|version| version.era() == Era::Handshake);
        known.unwrap_or(Version::LATEST_HANDSHAKE)
    }

    /// The versions without a handshake. `server/discover` and the error for an unknown version
    /// list them.
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
