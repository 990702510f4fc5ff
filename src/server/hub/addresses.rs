//! Counts the connections of each address, in a table of fixed size that is allocated once.
//!
//! IPv6 addresses are counted by their first 64 bits, because the owner of one has all of them.
//! This machine's own addresses and Unix sockets are not counted. A client cannot choose its slot
//! in the table, because the hash has a random seed.
//!
//! Invariant: an entry stands in its home slot or after it, and no slot in between is empty.

use std::net::{IpAddr, Ipv6Addr};

use crate::base::Random;
use crate::reactor::Peer;

/// The table of connection counts by address. See the module's text.
#[derive(Debug)]
pub(in crate::server) struct Addresses {
    /// A key is valid if its count is not 0.
    keys: Vec<u64>,
    counts: Vec<u32>,
    seed: u64,
    each_max: u32,
}

/// A prefix of IPv6 that no connection comes from: it is for multicast.
const IPV4_KEY: u64 = 0xFF00 << 48;

/// Returns the key by which a peer is counted. `None` if it is not counted.
fn key_of(peer: &Peer) -> Option<u64> {
    let Peer::Tcp(address) = peer else { return None };
    let of_v6 = |v6: Ipv6Addr| (v6.to_bits() >> 64) as u64;
    // An IPv4 address that is mapped into IPv6 counts as IPv4.
    let ip = address.ip().to_canonical();
    (!ip.is_loopback()).then(|| match ip {
        IpAddr::V4(v4) => IPV4_KEY | u64::from(v4.to_bits()),
        IpAddr::V6(v6) => of_v6(v6),
    })
}

impl Addresses {
    /// Creates a table for `connections_max` connections, and up to `each_max` of each address.
    pub fn new(connections_max: u32, each_max: u32, seed: u64) -> Addresses {
        // At least half of the slots stay empty, so that a search is short.
        let places = (2 * connections_max as usize).next_power_of_two();
        // The kernel provides zeroed memory only when it is written.
        Addresses { keys: vec![0; places], counts: vec![0; places], seed, each_max }
    }

    /// True if this peer's address may have one more connection.
    pub fn has_room(&self, peer: &Peer) -> bool {
        let place = key_of(peer).map(|key| self.place_of(key));
        place.is_none_or(|place| self.counts[place] < self.each_max)
    }

    /// Counts one more connection.
    pub fn add(&mut self, peer: &Peer) {
        let Some(key) = key_of(peer) else { return };
        let place = self.place_of(key);
        self.keys[place] = key;
        self.counts[place] += 1;
    }

    /// Counts one connection less.
    pub fn remove(&mut self, peer: &Peer) {
        let Some(key) = key_of(peer) else { return };
        let place = self.place_of(key);
        self.counts[place] =
            self.counts[place].checked_sub(1).expect("each closed connection was counted");
        if self.counts[place] == 0 {
            self.close_gap(place);
        }
    }

    fn home_of(&self, key: u64) -> usize {
        Random::new(key ^ self.seed).next_u64() as usize & (self.keys.len() - 1)
    }

    /// Returns the slot of a key, or the empty slot where it belongs.
    fn place_of(&self, key: u64) -> usize {
        let mut place = self.home_of(key);
        while self.counts[place] > 0 && self.keys[place] != key {
            place = (place + 1) & (self.keys.len() - 1);
        }
        place
    }

    /// Closes the gap: entries behind it that may stand in it move up.
    fn close_gap(&mut self, mut gap: usize) {
        let mask = self.keys.len() - 1;
        let mut place = (gap + 1) & mask;
        while self.counts[place] > 0 {
            let home = self.home_of(self.keys[place]);
            let from_home = place.wrapping_sub(home) & mask;
            if from_home >= place.wrapping_sub(gap) & mask {
                self.keys[gap] = self.keys[place];
                self.counts[gap] = std::mem::take(&mut self.counts[place]);
                gap = place;
            }
            place = (place + 1) & mask;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::net::SocketAddr;

    use super::*;

    fn peer(ip: &str) -> Peer {
        Peer::Tcp(SocketAddr::new(ip.parse().unwrap(), 1))
    }

    #[test]
    fn who_counts_as_one() {
        for (ip, other, is_one) in [
            ("10.0.0.1", "10.0.0.1", true),
            ("10.0.0.1", "10.0.0.2", false),
            ("10.0.0.1", "::ffff:10.0.0.1", true),
            ("2001:db8::1", "2001:db8::ffff:1", true),
            ("2001:db8::1", "2001:db8:0:1::1", false),
        ] {
            assert_eq!(key_of(&peer(ip)) == key_of(&peer(other)), is_one, "{ip} {other}");
        }
        for own in ["127.0.0.1", "127.9.9.9", "::1", "::ffff:127.0.0.1"] {
            assert_eq!(key_of(&peer(own)), None, "{own}");
        }
        assert_eq!(key_of(&Peer::Unix { pid: 1, uid: 1, gid: 1 }), None);
    }

    #[test]
    fn the_table_says_what_a_map_says() {
        const CONNECTIONS_MAX: u32 = 50;
        for seed in 0..50 {
            let mut random = Random::new(seed);
            let mut addresses = Addresses::new(CONNECTIONS_MAX, 3, seed);
            let mut model: BTreeMap<u8, u32> = BTreeMap::new();
            for _ in 0..2_000 {
                let last = random.below(40) as u8;
                let peer = peer(&format!("192.0.2.{last}"));
                let count = model.entry(last).or_default();
                assert_eq!(addresses.has_room(&peer), *count < 3, "seed {seed}");
                if *count < 3 && random.chance(1, 2) {
                    addresses.add(&peer);
                    *count += 1;
                } else if *count > 0 {
                    addresses.remove(&peer);
                    *count -= 1;
                }
                if model.values().sum::<u32>() == CONNECTIONS_MAX {
                    for (last, count) in std::mem::take(&mut model) {
                        let peer = self::peer(&format!("192.0.2.{last}"));
                        (0..count).for_each(|_| addresses.remove(&peer));
                    }
                    assert!(addresses.counts.iter().all(|count| *count == 0), "seed {seed}");
                }
            }
        }
    }
}
