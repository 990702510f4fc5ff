//! The resources of a server: descriptors and memory, added up before it starts.

use std::fmt;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use streamdoor::limits;
use streamdoor::trace::Record;

use super::CliError;
use super::settings::Settings;

/// Number of descriptors that the process may open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DescriptorLimit {
    /// The current limit.
    pub allowed: u64,
    /// The limit before it was raised.
    pub before: u64,
}

impl DescriptorLimit {
    /// Raises the limit to the hard limit, which needs no privilege.
    pub fn raise() -> DescriptorLimit {
        let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
        let before = current.unwrap_or(u64::MAX);
        let raised = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum });
        let allowed = raised.map_or(before, |()| maximum.unwrap_or(u64::MAX));
        DescriptorLimit { allowed, before }
    }
}

/// The resources that the settings require.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ResourceBudget {
    /// The limits on the descriptors of the process.
    pub allowance: DescriptorLimit,
    /// Number of descriptors for everything except connections.
    pub own_descriptors: u64,
    /// Number of connections in the settings.
    pub connections_wanted: u32,
    /// Number of connections that the descriptors allow.
    pub connections_max: u32,
    /// Memory for rings that is allocated at the start.
    pub rings_at_start_bytes: u64,
    /// Maximum memory for rings.
    pub rings_at_most_bytes: u64,
    /// Memory of buffers for received bytes, for encoded chunks and for the log.
    pub buffers_bytes: u64,
}

impl ResourceBudget {
    /// Adds up the resources. Connections get the descriptors that are left.
    ///
    /// # Errors
    /// If fewer descriptors are left than the server has shards.
    pub fn new(
        settings: &Settings,
        allowance: DescriptorLimit,
    ) -> Result<ResourceBudget, CliError> {
        let shards = settings.shard_count() as u64;
        let listeners = settings.listen.len() as u64;
        let tools = settings.tool_threads_max.0 * limits::DESCRIPTORS_PER_TOOL_THREAD;
        // The default number of doors is part of the descriptors of a shard.
        let more_doors = settings.doors_max.0.saturating_sub(limits::DOORS_MAX.into());
        let own_descriptors = limits::DESCRIPTORS_OF_PROCESS
            + more_doors * limits::DESCRIPTORS_PER_DOOR
            + shards * (limits::DESCRIPTORS_PER_SHARD + listeners + tools);
        let connections_wanted = settings.connections_max.0 as u32; // Its type keeps it in range.
        let left = allowance.allowed.saturating_sub(own_descriptors);
        let connections_max = u64::from(connections_wanted).min(left) as u32;
        if u64::from(connections_max) < shards {
            let allowed = allowance.allowed;
            let text = format!(
                "the process may open {allowed} descriptors, but needs {own_descriptors} even \
                 without connections: raise its limit (`ulimit -n`), or lower tool_threads_max or \
                 cpus"
            );
            return Err(CliError::Environment(text));
        }
        let received_bytes =
            u64::from(limits::RECEIVE_BUFFERS) * u64::from(limits::RECEIVE_BUFFER_BYTES);
        let shard_bytes = received_bytes + limits::FRAME_CACHE_BYTES as u64;
        let log_bytes = (limits::LOG_RECORDS_MAX * size_of::<Record>()) as u64;
        Ok(ResourceBudget {
            allowance,
            own_descriptors,
            connections_wanted,
            connections_max,
            rings_at_start_bytes: shards * settings.prealloc_bytes.0,
            rings_at_most_bytes: shards * settings.rings_bytes_max.0,
            buffers_bytes: shards * shard_bytes + log_bytes,
        })
    }

    /// True if fewer connections are possible than the settings ask for.
    pub fn is_shrunk(&self) -> bool {
        self.connections_max < self.connections_wanted
    }
}

impl fmt::Display for ResourceBudget {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ResourceBudget { allowance, own_descriptors, connections_max, .. } = *self;
        write!(out, "descriptors: {} allowed", allowance.allowed)?;
        if allowance.before < allowance.allowed {
            write!(out, " (raised from {})", allowance.before)?;
        }
        write!(out, ", {own_descriptors} for shards and tools, {connections_max} for connections")?;
        if self.is_shrunk() {
            write!(out, " instead of {}", self.connections_wanted)?;
        }
        let mib = |bytes: u64| bytes.div_ceil(1 << 20);
        write!(
            out,
            "; memory: rings {} MiB now and {} MiB at most, buffers {} MiB",
            mib(self.rings_at_start_bytes),
            mib(self.rings_at_most_bytes),
            mib(self.buffers_bytes)
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OWN: u64 = 32 + 64 + 1 + 16 * 8;

    fn budget(allowed: u64) -> Result<ResourceBudget, CliError> {
        ResourceBudget::new(&Settings::default(), DescriptorLimit { allowed, before: 1_024 })
    }

    #[test]
    fn connections_are_what_descriptors_are_left_for() {
        let ample = budget(1 << 20).unwrap();
        assert_eq!((ample.own_descriptors, ample.is_shrunk()), (OWN, false));
        assert_eq!(ample.connections_max, limits::CONNECTIONS_MAX);
        assert!(ample.to_string().contains("raised from 1024"), "{ample}");
        let short = budget(1_024).unwrap();
        assert_eq!(u64::from(short.connections_max), 1_024 - OWN);
        let text = short.to_string();
        assert!(text.contains("799 for connections instead of 16384"), "{text}");
        assert!(!text.contains("raised"), "{text}");
        assert_eq!(budget(OWN + 1).unwrap().connections_max, 1);
        let none = budget(OWN).unwrap_err().to_string();
        assert!(none.contains("225 descriptors") && none.contains("ulimit -n"), "{none}");
    }

    #[test]
    fn every_shard_costs_the_same() {
        let mut settings = Settings::default();
        settings.cpus.0 = vec![0, 1];
        let allowance = DescriptorLimit { allowed: u64::MAX, before: u64::MAX };
        let two = ResourceBudget::new(&settings, allowance).unwrap();
        let one = budget(u64::MAX).unwrap();
        assert_eq!(two.rings_at_most_bytes, 2 * one.rings_at_most_bytes);
        assert_eq!(two.own_descriptors - one.own_descriptors, OWN - 32);
    }
}
