//! Networks of their own for servers and nodes: namespaces of Linux on one bridge.
//!
//! Packets of one of them are dropped on their way in, on their way out, or at random. It needs
//! root, `ip` and `nft`. Without them, the tests are not run. Only namespaces of this process are
//! used. They are removed at the end.

use std::net::Ipv4Addr;
use std::process::Command;

/// The packets that a namespace loses.
#[derive(Clone, Copy, Debug)]
pub enum Cut {
    Both,
    In,
    Out,
    /// Percent of all packets, in both directions.
    Loss(u64),
}

/// Namespaces on one bridge.
pub struct Network {
    name: String,
    count: u8,
}

fn said(command: &mut Command) -> Result<(), String> {
    let output = command.output().map_err(|error| error.to_string())?;
    match output.status.success() {
        true => Ok(()),
        false => Err(String::from_utf8_lossy(&output.stderr).trim().to_owned()),
    }
}

fn ip(words: &str) -> Result<(), String> {
    said(Command::new("ip").args(words.split(' '))).map_err(|error| format!("ip {words}: {error}"))
}

impl Network {
    /// Makes a network of this many namespaces. Returns `None`, and says so, where it cannot.
    pub fn new(count: u8) -> Option<Network> {
        let network = Network { name: format!("sd{}", std::process::id()), count };
        match network.build() {
            Ok(()) => Some(network),
            Err(error) => {
                println!("not run: there are no network namespaces here ({error})");
                None
            }
        }
    }

    fn build(&self) -> Result<(), String> {
        let hub = format!("{}-hub", self.name);
        ip(&format!("netns add {hub}"))?;
        ip(&format!("-n {hub} link add br0 type bridge"))?;
        ip(&format!("-n {hub} link set br0 up"))?;
        for number in 0..self.count {
            let (space, address) = (self.space(number), self.address(number));
            ip(&format!("netns add {space}"))?;
            ip(&format!("link add v{number} netns {hub} type veth peer name eth0 netns {space}"))?;
            ip(&format!("-n {hub} link set v{number} master br0 up"))?;
            ip(&format!("-n {space} address add {address}/24 dev eth0"))?;
            ip(&format!("-n {space} link set eth0 up"))?;
            ip(&format!("-n {space} link set lo up"))?;
        }
        self.cut(0, Cut::Loss(0))?;
        self.mend(0);
        Ok(())
    }

    fn space(&self, number: u8) -> String {
        format!("{}-{number}", self.name)
    }

    /// The address of a namespace.
    pub fn address(&self, number: u8) -> Ipv4Addr {
        Ipv4Addr::new(10, 213, 0, number + 1)
    }

    /// The words before a command that runs in a namespace.
    pub fn launcher(&self, number: u8) -> Vec<String> {
        ["ip", "netns", "exec", &self.space(number)].map(str::to_owned).to_vec()
    }

    fn nft(&self, number: u8, commands: &str) -> Result<(), String> {
        let words = self.launcher(number);
        said(Command::new(&words[0]).args(&words[1..]).args(["nft", commands]))
            .map_err(|error| format!("nft: {error}"))
    }

    /// Drops packets of a namespace.
    ///
    /// # Errors
    /// The text of the program.
    pub fn cut(&self, number: u8, cut: Cut) -> Result<(), String> {
        let chain = |hook: &str| {
            format!("add chain inet cut {hook} {{ type filter hook {hook} priority 0; }};")
        };
        let share = match cut {
            Cut::Loss(percent) => format!("numgen random mod 100 < {percent}"),
            Cut::Both | Cut::In | Cut::Out => String::new(),
        };
        let rule = |hook: &str, side: &str| {
            format!("add rule inet cut {hook} {side} \"eth0\" {share} drop;")
        };
        let mut commands = format!("add table inet cut; {}{}", chain("input"), chain("output"));
        if !matches!(cut, Cut::Out | Cut::Loss(0)) {
            commands += &rule("input", "iifname");
        }
        if !matches!(cut, Cut::In | Cut::Loss(0)) {
            commands += &rule("output", "oifname");
        }
        self.nft(number, &commands)
    }

    /// Drops nothing more.
    pub fn mend(&self, number: u8) {
        self.nft(number, "delete table inet cut").expect("it was cut");
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        for number in 0..self.count {
            let _ = ip(&format!("netns delete {}", self.space(number))); // Some may not exist.
        }
        let _ = ip(&format!("netns delete {}-hub", self.name));
    }
}
