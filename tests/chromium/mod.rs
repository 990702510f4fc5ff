//! A headless Chromium that has a page open until it is dropped.

use std::fs;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

/// Finds a Chromium on the search path, for tests that start it differently.
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

/// The browser and all processes that it has started.
pub struct Browser {
    child: Child,
    profile: PathBuf,
}

impl Browser {
    /// Opens this page. If there is no Chromium, prints that and returns `None`. `name` has to
    /// differ between tests.
    pub fn open(url: &str, name: &str) -> Option<Browser> {
        let profile =
            std::env::temp_dir().join(format!("streamdoor-chromium-{name}-{}", std::process::id()));
        fs::create_dir_all(&profile).unwrap();
        for program in PROGRAMS {
            let mut command = Command::new(program);
            // The browser sees only our page, and root cannot use the sandbox.
            command.args(["--headless", "--no-sandbox", "--disable-gpu", "--no-proxy-server"]);
            command.args(["--no-first-run", "--disable-background-networking"]);
            command.args(["--disable-dev-shm-usage", "--disable-extensions"]);
            // With a debugger port it stays until it is ended.
            command.args(["--remote-debugging-port=0"]);
            command.arg(format!("--user-data-dir={}", profile.display())).arg(url);
            command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
            // The program may be a script that starts the browser: the group ends both together.
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
        let _ = fs::remove_dir_all(&self.profile); // Its children may still write there.
    }
}
