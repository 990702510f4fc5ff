//! Named rings of dead servers in /dev/shm: finds, reports and removes them.

use std::path::Path;

use streamdoor::memory::named::{Verdict, sweep};

use super::finding::Finding;

const SUBJECT: &str = "named rings";
/// Maximum number of foreign files in the report.
const FOREIGN_TOLD_MAX: usize = 8;

/// Reports named rings. If `removes` is set, removes those that provably belong to no process.
pub fn findings(folder: &Path, removes: bool) -> Vec<Finding> {
    let name = folder.display();
    let found = match sweep(folder, removes) {
        Ok(found) => found,
        Err(error) => {
            let means = "The files that dead servers left there cannot be listed.";
            return vec![Finding::note(SUBJECT, format!("{name}: {error}"), means)];
        }
    };
    let (mut held_count, mut gone, mut stale) = (0, Sum::default(), Sum::default());
    let mut foreign = Vec::new();
    for (file, verdict) in found {
        match verdict {
            Verdict::Held => held_count += 1,
            Verdict::Removed { bytes } => gone.add(bytes),
            Verdict::Stale { bytes } => stale.add(bytes),
            Verdict::Foreign(why) => foreign.push((file, why)),
        }
    }
    let mut findings = Vec::new();
    if gone.count > 0 {
        let means = "Killed servers had left them. No process could use them any more: the kernel \
                     had released their locks.";
        findings.push(Finding::note(SUBJECT, format!("{gone} removed from {name}"), means));
    }
    if stale.count > 0 {
        let means = "Killed servers left them. Each takes memory until it is removed.";
        let finding = Finding::note(SUBJECT, format!("{stale} left over in {name}"), means);
        findings.push(finding.advise(
            "Run `streamdoor doctor` without --keep to remove them. The next `serve --named-doors` \
             also removes them.",
        ));
    }
    let untold_count = foreign.len().saturating_sub(FOREIGN_TOLD_MAX);
    for (file, why) in foreign.into_iter().take(FOREIGN_TOLD_MAX) {
        let means = "The file has the name of a named ring but is not a ring of this user. It was \
                     not touched, and readers reject it.";
        let finding = Finding::note(SUBJECT, format!("{name}/{file}: {why}"), means);
        findings.push(finding.advise("Find out which user or program created it."));
    }
    if untold_count > 0 {
        let found = format!("{untold_count} more that are not rings of this user");
        findings.push(Finding::note(SUBJECT, found, "As above."));
    }
    if findings.is_empty() || held_count > 0 {
        let found = match held_count {
            0 => "none left over".to_owned(),
            count => format!("{count} in use"),
        };
        let means = "A server removes its named rings when it ends.";
        findings.push(Finding::good(SUBJECT, found, means));
    }
    findings
}

/// A count and the size of all counted files together.
#[derive(Default)]
struct Sum {
    count: usize,
    bytes: u64,
}

impl Sum {
    fn add(&mut self, bytes: u64) {
        self.count += 1;
        self.bytes = self.bytes.saturating_add(bytes);
    }
}

impl std::fmt::Display for Sum {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "{} named rings of {} KiB together", self.count, self.bytes.div_ceil(1_024))
    }
}
