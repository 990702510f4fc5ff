//! The stream modes of LangGraph: the kinds of events that a client of runs wants.

use super::FormatError;

/// A stream mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StreamMode {
    /// The whole state: all messages.
    Values,
    /// The messages that a node adds to the state.
    Updates,
    /// Each message as far as it has come, again and again.
    Messages,
    /// Each message in pieces, with its metadata.
    MessagesTuple,
    /// The starts, the outputs and the ends of tools.
    Tools,
    /// Output of tools while it grows, progress, and gaps.
    Custom,
}

impl StreamMode {
    /// All modes, in the order of their bits.
    const ALL: [StreamMode; 6] = [
        StreamMode::Values,
        StreamMode::Updates,
        StreamMode::Messages,
        StreamMode::MessagesTuple,
        StreamMode::Tools,
        StreamMode::Custom,
    ];

    /// Returns the name that clients use.
    pub fn name(self) -> &'static str {
        match self {
            StreamMode::Values => "values",
            StreamMode::Updates => "updates",
            StreamMode::Messages => "messages",
            StreamMode::MessagesTuple => "messages-tuple",
            StreamMode::Tools => "tools",
            StreamMode::Custom => "custom",
        }
    }
}

/// A set of stream modes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct StreamModes(u8);

/// The modes of a client that names none: the state alone.
impl Default for StreamModes {
    fn default() -> StreamModes {
        StreamModes::of(&[StreamMode::Values])
    }
}

impl StreamModes {
    /// All modes.
    pub const ALL: StreamModes = StreamModes((1 << StreamMode::ALL.len()) - 1);

    /// Creates a set.
    pub fn of(modes: &[StreamMode]) -> StreamModes {
        StreamModes(modes.iter().fold(0, |bits, mode| bits | 1 << *mode as u8))
    }

    /// Reads the names of modes.
    ///
    /// # Errors
    /// [`FormatError`] if one of them has no meaning here. LangGraph's other modes describe its
    /// own machinery: `debug`, `tasks`, `checkpoints`, `events`, `lifecycle`.
    pub fn parse<'n>(names: impl IntoIterator<Item = &'n str>) -> Result<StreamModes, FormatError> {
        let mut bits = 0;
        for name in names {
            let Some(mode) = StreamMode::ALL.into_iter().find(|mode| mode.name() == name) else {
                let allowed = "`values`, `updates`, `messages`, `messages-tuple`, `tools` or \
                               `custom`: other modes have no meaning here";
                return Err(FormatError { parameter: "stream_mode", allowed });
            };
            bits |= 1 << mode as u8;
        }
        Ok(if bits == 0 { StreamModes::default() } else { StreamModes(bits) })
    }

    /// Returns the names of its modes.
    pub fn names(self) -> impl Iterator<Item = &'static str> {
        StreamMode::ALL.into_iter().filter(move |mode| self.has(*mode)).map(StreamMode::name)
    }

    /// Returns true if the mode is in the set.
    pub fn has(self, mode: StreamMode) -> bool {
        self.0 & 1 << mode as u8 != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modes_are_those_that_were_named() {
        let modes = StreamModes::parse(["messages-tuple", "custom"]).unwrap();
        assert!(modes.has(StreamMode::MessagesTuple) && modes.has(StreamMode::Custom));
        assert!(!modes.has(StreamMode::Values) && !modes.has(StreamMode::Messages));
        assert_eq!(StreamModes::parse([]), Ok(StreamModes::default()));
        let all = StreamMode::ALL.map(StreamMode::name);
        assert_eq!(StreamModes::parse(all), Ok(StreamModes::ALL));
        for other in ["debug", "events", "tasks", "checkpoints", "", "Values"] {
            assert_eq!(StreamModes::parse([other]).unwrap_err().parameter, "stream_mode");
        }
    }
}
