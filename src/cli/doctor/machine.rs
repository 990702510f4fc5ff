//! The resources of this process: descriptors, locked memory and space in /dev/shm. Also the path
//! of the server's door.

use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use rustix::fs::{Access, StatVfs, access, statvfs};
use rustix::process::{Resource, geteuid, getrlimit};
use streamdoor::limits;
use streamdoor::memory::named::FOLDER;

use super::super::serve::{DescriptorLimit, ResourceBudget};
use super::super::settings::Settings;
use super::finding::Finding;

/// Maximum size of a named door: its ring, twice as large as a private one, and one page before it.
const NAMED_DOOR_BYTES: u64 = (2 * limits::RING_CLASS_BYTES_MAX + (4 << 10)) as u64;

/// Returns all findings about the machine, and about each existing socket of `sockets`.
pub fn findings(sockets: &[PathBuf]) -> Vec<Finding> {
    let mut findings = vec![descriptors(), locked_memory(), shared_memory(Path::new(FOLDER))];
    let runtime = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
    let default = default_socket(runtime.as_deref());
    findings.push(door(runtime.as_deref(), default.as_ref()));
    let default = default.ok().into_iter();
    let sockets = default.chain(sockets.iter().cloned());
    findings.extend(sockets.filter_map(|path| socket(&path)));
    findings
}

fn descriptors() -> Finding {
    const SUBJECT: &str = "descriptors";
    let advice = "Raise the limit: `ulimit -n` for a shell, LimitNOFILE= for a service of systemd, \
                  `--ulimit nofile=` for a container.";
    match ResourceBudget::new(&Settings::default(), DescriptorLimit::raise()) {
        Err(error) => Finding::bad(
            SUBJECT,
            error.to_string(),
            "The server does not start with so few descriptors.",
        )
        .advise(advice),
        Ok(budget) => {
            let found = format!("{} may be open at once (RLIMIT_NOFILE)", budget.allowance.allowed);
            let means = format!("That is enough for {} connections.", budget.connections_max);
            match budget.is_shrunk() {
                false => Finding::good(SUBJECT, found, means),
                true => {
                    let wanted = budget.connections_wanted;
                    let means = format!("{means} The settings ask for {wanted}.");
                    Finding::note(SUBJECT, found, means).advise(advice)
                }
            }
        }
    }
}

fn locked_memory() -> Finding {
    const SUBJECT: &str = "memlock";
    let needed_bytes = u64::from(limits::RECEIVE_BUFFERS) * u64::from(limits::RECEIVE_BUFFER_BYTES);
    let needed_kib = needed_bytes >> 10;
    let Some(allowed_bytes) = getrlimit(Resource::Memlock).current else {
        let means = "Buffers that are registered with io_uring are not limited.";
        return Finding::good(SUBJECT, "no limit (RLIMIT_MEMLOCK)", means);
    };
    let found = format!("{} KiB may be locked (RLIMIT_MEMLOCK)", allowed_bytes >> 10);
    let means = format!(
        "A shard registers {needed_kib} KiB of buffers with io_uring; kernels before 5.12 count \
         that, and its queues, against this limit."
    );
    match allowed_bytes < needed_bytes {
        false => Finding::good(SUBJECT, found, means),
        true => Finding::note(SUBJECT, found, means).advise(
            "Raise the limit with `ulimit -l`, LimitMEMLOCK= or `--ulimit memlock=`. If it is too \
             small, the server logs that and uses epoll.",
        ),
    }
}

/// Checks the space in /dev/shm. Only named doors use it: all other rings have no name there.
fn shared_memory(folder: &Path) -> Finding {
    const SUBJECT: &str = "shm";
    let absent = |found: String| {
        let means = "Named doors (`serve --named-doors`) cannot be made. Everything else works.";
        Finding::note(SUBJECT, found, means)
            .advise("Mount a tmpfs there, or leave out --named-doors. Other doors do not need it.")
    };
    let name = folder.display();
    let StatVfs { f_blocks, f_bavail, f_frsize, .. } = match statvfs(folder) {
        Ok(found) => found,
        Err(error) => return absent(format!("{name}: {}", io::Error::from(error))),
    };
    if let Err(error) = access(folder, Access::WRITE_OK | Access::EXEC_OK) {
        return absent(format!("{name}: {}", io::Error::from(error)));
    }
    let all_bytes = f_blocks.saturating_mul(f_frsize);
    let free_bytes = f_bavail.saturating_mul(f_frsize);
    let used_percent = match all_bytes {
        0 => 0, // The file system has no limit of its own.
        _ => (u128::from(all_bytes - free_bytes.min(all_bytes)) * 100).div_ceil(all_bytes.into()),
    };
    let mib = |bytes: u64| bytes >> 20;
    let found = match all_bytes {
        0 => format!("{name} has no size limit"),
        _ => format!(
            "{name} has {} MiB, of which {} MiB are free ({used_percent} % used)",
            mib(all_bytes),
            mib(free_bytes)
        ),
    };
    let doors_count = free_bytes / NAMED_DOOR_BYTES;
    let doors_max = u64::from(limits::DOORS_MAX);
    let advice = "Remove unneeded files from /dev/shm (`ls -l /dev/shm`; this command removes \
                  those of dead servers), or make it larger: `mount -o remount,size=1G /dev/shm`, \
                  `--shm-size` for a container.";
    match doors_count {
        _ if all_bytes == 0 || doors_count >= doors_max => {
            let means = format!("There is room for all {doors_max} named doors.");
            Finding::good(SUBJECT, found, means)
        }
        0 => {
            let means = "A named door of full size does not fit any more. Everything else works.";
            Finding::bad(SUBJECT, found, means).advise(advice)
        }
        _ => {
            let means = format!("There is room for {doors_count} named doors of full size.");
            Finding::note(SUBJECT, found, means).advise(advice)
        }
    }
}

/// Returns the default path of the server's door, or the reason why it has none.
fn default_socket(runtime: Option<&Path>) -> Result<PathBuf, String> {
    let Some(folder) = runtime else {
        return Err("XDG_RUNTIME_DIR is not set".to_owned());
    };
    let name = folder.display();
    let metadata = folder.metadata().map_err(|error| format!("XDG_RUNTIME_DIR {name}: {error}"))?;
    let uid = geteuid().as_raw();
    if !metadata.is_dir() || metadata.uid() != uid {
        return Err(format!("XDG_RUNTIME_DIR {name} is not a folder of this user ({uid})"));
    }
    if metadata.mode() & 0o022 != 0 {
        let mode = metadata.mode() & 0o777;
        return Err(format!("XDG_RUNTIME_DIR {name} has mode {mode:03o}: others can write there"));
    }
    Ok(folder.join("streamdoor.sock"))
}

fn door(runtime: Option<&Path>, default: Result<&PathBuf, &String>) -> Finding {
    const SUBJECT: &str = "door";
    match default {
        Ok(path) => Finding::good(
            SUBJECT,
            format!("the default door is {}", path.display()),
            "`serve`, `cat` and `pipe` use it by default.",
        ),
        Err(why) => Finding::note(
            SUBJECT,
            why.as_str(),
            "`serve` opens no door without --door, and `cat` and `pipe` need --door.",
        )
        .advise(match runtime {
            None => {
                "Give `--door PATH` to both sides, or log in in a way that creates the folder \
                 (systemd makes /run/user/UID)."
            }
            Some(_) => "Give `--door PATH` to both sides, in a folder that only you can write to.",
        }),
    }
}

/// Checks the socket of a door. Returns `None` if nothing exists at the path.
fn socket(path: &Path) -> Option<Finding> {
    const SUBJECT: &str = "socket";
    let name = path.display();
    let metadata = match path.symlink_metadata() {
        Ok(metadata) => metadata,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return None,
        Err(error) => {
            let means = "This program cannot check if a server listens there.";
            return Some(Finding::note(SUBJECT, format!("{name}: {error}"), means));
        }
    };
    if !metadata.file_type().is_socket() {
        let means = "A server cannot listen there: it removes only dead sockets.";
        let finding = Finding::bad(SUBJECT, format!("{name} is not a socket"), means);
        return Some(finding.advise("Move it away, or choose another path."));
    }
    Some(match UnixStream::connect(path) {
        Ok(_) => Finding::good(
            SUBJECT,
            format!("{name} accepts connections"),
            "A server is running there.",
        ),
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => Finding::note(
            SUBJECT,
            format!("{name} is left over: no server listens there"),
            "Its server ended without removing it. The next server replaces it.",
        )
        .advise("Do nothing, or remove the file."),
        Err(error) => {
            Finding::note(SUBJECT, format!("{name}: {error}"), "This user may not use the socket.")
        }
    })
}

#[cfg(test)]
mod tests {
    use super::super::finding::Level;
    use super::*;

    #[test]
    fn a_folder_that_is_not_there_hinders_named_doors_alone() {
        let finding = shared_memory(Path::new("/nonexistent/shm"));
        assert_eq!(finding.level, Level::Note);
        assert!(finding.found.contains("/nonexistent/shm"), "{}", finding.found);
    }

    #[test]
    fn a_default_door_needs_a_folder_of_ones_own() {
        assert!(default_socket(None).unwrap_err().contains("not set"));
        assert!(default_socket(Some(Path::new("/nonexistent"))).is_err());
        let open = std::env::temp_dir().join(format!("streamdoor-doctor-{}", std::process::id()));
        std::fs::create_dir_all(&open).unwrap();
        let set = |mode| {
            let mode = std::os::unix::fs::PermissionsExt::from_mode(mode);
            std::fs::set_permissions(&open, mode).unwrap();
        };
        set(0o777);
        assert!(default_socket(Some(&open)).unwrap_err().contains("others can write"));
        set(0o700);
        assert_eq!(default_socket(Some(&open)), Ok(open.join("streamdoor.sock")));
        std::fs::remove_dir(&open).unwrap();
    }
}
