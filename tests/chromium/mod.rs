//! A headless Chromium that has a page open, until it is dropped.

use std::fs;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

/// A Chromium on the search path, for who starts it otherwise.
#[allow(dead_code, reason = "most tests open a page and no more")]
pub fn find() -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    let folders: Vec<PathBuf> = std::env::split_paths(&path).collect();
    let all = PROGRAMS.iter().flat_map(|name| folders.iter().map(move |folder| folder.join(name)));
    let found = all.into_iter().find(|program| program.is_file());
    if found.is_none() {
        println!("not run: no Chromium (apt-get install chromium)");
    }
    found
}

const PROGRAMS: [&str; 5] = [
    "chromium-headless-shell",
    "chromium",
    "chromium-browser",
    "google-chrome",
    "google-chrome-stable",
];

/// It, and everything it has started.
pub struct Browser {
    child: Child,
    profile: PathBuf,
}

impl Browser {
    /// Opens this page. Else it says that it is not here. `name` is the test's own.
    pub fn open(url: &str, name: &str) -> Option<Browser> {
        let profile =
            std::env::temp_dir().join(format!("streamdoor-chromium-{name}-{}", std::process::id()));
        fs::create_dir_all(&profile).unwrap();
        for program in PROGRAMS {
            let mut command = Command::new(program);
            // It sees nothing but our page; its sandbox cannot be had as root.
            command.args(["--headless", "--no-sandbox", "--disable-gpu", "--no-proxy-server"]);
            command.args(["--no-first-run", "--disable-background-networking"]);
            command.args(["--disable-dev-shm-usage", "--disable-extensions"]);
            // With a debugger's port it stays until it is ended.
            command.args(["--remote-debugging-port=0"]);
            command.arg(format!("--user-data-dir={}", profile.display())).arg(url);
            command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
            // What is started may be a script that starts the browser: both end together.
            command.process_group(0);
            if let Ok(child) = command.spawn() {
                return Some(Browser { child, profile });
            }
        }
        fs::remove_dir_all(&profile).unwrap();
        println!("not run: no Chromium (apt-get install chromium)");
        None
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        let group = format!("-{}", self.child.id());
        let _ = Command::new("kill").args(["-s", "KILL", "--", &group]).status();
        let _ = self.child.wait();
        let _ = fs::remove_dir_all(&self.profile); // Some of its children may still write there.
    }
}
