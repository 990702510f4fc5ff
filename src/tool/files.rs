//! The files that tools may read, and the access to them.
//!
//! Without a restriction a program reads any file, because its caller is its own user. Over a
//! socket the caller is another one. There tools read only below one folder, or nothing. Each file
//! is opened by `openat2` beneath that folder. Neither `..`, nor a symbolic link, nor a folder that
//! is moved meanwhile leads out of it. The links of `/proc` are refused. Links that stay below the
//! folder are followed.
//!
//! Two users need a path instead of an open file: SQLite, which opens other files beside it, and a
//! walk over a tree. They get the path that the kernel reports for the opened file, which is below
//! the folder. A process that may write there could replace the file meanwhile. SQLite therefore
//! follows no link, and this module opens again what a walk finds. Such a race could reveal names
//! of files outside, but not their bytes.

use std::fs::{File, OpenOptions};
use std::io;
#[cfg(feature = "server")]
use std::os::fd::OwnedFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
#[cfg(feature = "server")]
use std::sync::Arc;

#[cfg(feature = "server")]
use rustix::fs::{Mode, OFlags, ResolveFlags};

/// The files that tools may read.
#[derive(Clone, Debug, Default)]
pub enum Files {
    /// All files that this process can read.
    #[default]
    Anywhere,
    /// None. Tools that read files do not exist.
    Nowhere,
    /// The files below a folder: [`Files::below`].
    #[cfg(feature = "server")]
    Below(Folder),
}

/// The folder below which files may be read.
#[cfg(feature = "server")]
#[derive(Clone, Debug)]
pub struct Folder {
    opened: Arc<OwnedFd>,
    path: PathBuf,
}

impl Files {
    /// The files below this folder. It is opened at once, so a later change of its name has no
    /// effect.
    ///
    /// # Errors
    /// If the folder cannot be opened, or the kernel is older than Linux 5.6 and lacks `openat2`.
    ///
    /// ```
    /// use streamdoor::{Tools, tools::Files};
    /// let mut tools = Tools::built_in();
    /// tools.allow_files(Files::below("/usr/share".as_ref())?);
    /// # Ok::<(), std::io::Error>(())
    /// ```
    #[cfg(feature = "server")]
    pub fn below(folder: &Path) -> io::Result<Files> {
        let path = folder.canonicalize()?;
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let opened = rustix::fs::open(&path, flags, Mode::empty())?;
        let folder = Folder { opened: Arc::new(opened), path };
        folder.open(Path::new("."), flags)?; // Fails on kernels without `openat2`.
        Ok(Files::Below(folder))
    }

    /// Opens a file or a folder for reading.
    ///
    /// # Errors
    /// The error of the kernel, or a refusal for a path outside of the allowed folder. Below a
    /// folder only regular files and folders are opened, so that the call never waits for a pipe.
    pub(super) fn open(&self, path: &Path) -> io::Result<File> {
        match self {
            Files::Anywhere => File::open(path),
            Files::Nowhere => Err(refused()),
            #[cfg(feature = "server")]
            Files::Below(folder) => folder.open_to_read(path, OFlags::empty()),
        }
    }

    /// Opens a path that was a regular file a moment ago. If it is anything else now, the call
    /// fails without waiting.
    ///
    /// # Errors
    /// Like [`Files::open`], and if it is not a regular file.
    #[cfg_attr(not(feature = "tools"), allow(dead_code, reason = "for a search"))]
    pub(super) fn open_again(&self, path: &Path) -> io::Result<File> {
        let file = match self {
            Files::Anywhere => {
                let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK;
                OpenOptions::new().read(true).custom_flags(flags).open(path)?
            }
            Files::Nowhere => return Err(refused()),
            #[cfg(feature = "server")]
            Files::Below(folder) => folder.open_to_read(path, OFlags::NOFOLLOW)?,
        };
        match file.metadata()?.is_file() {
            true => Ok(file),
            false => Err(io::Error::other("is no longer a regular file")),
        }
    }

    /// The real path without symbolic links, if it may be read. Under [`Files::Anywhere`] the path
    /// is unchanged.
    ///
    /// # Errors
    /// Like [`Files::open`].
    #[cfg_attr(not(feature = "tools"), allow(dead_code, reason = "for a search"))]
    pub(super) fn place(&self, path: &Path) -> io::Result<PathBuf> {
        match self {
            Files::Anywhere => Ok(path.to_owned()),
            Files::Nowhere => Err(refused()),
            #[cfg(feature = "server")]
            Files::Below(folder) => folder.place(path),
        }
    }

    /// True if paths outside of a folder must not be read.
    #[cfg_attr(not(feature = "tools"), allow(dead_code, reason = "for a search"))]
    pub(super) fn is_confined(&self) -> bool {
        !matches!(self, Files::Anywhere)
    }
}

#[cfg(feature = "server")]
impl Folder {
    fn open_to_read(&self, path: &Path, flags: OFlags) -> io::Result<File> {
        let flags = flags | OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        let file = File::from(self.open(path, flags)?);
        let metadata = file.metadata()?;
        match metadata.is_file() || metadata.is_dir() {
            true => Ok(file),
            false => Err(io::Error::other("is not a regular file")),
        }
    }

    fn place(&self, path: &Path) -> io::Result<PathBuf> {
        use std::os::fd::AsRawFd;
        let opened = self.open(path, OFlags::PATH | OFlags::CLOEXEC)?;
        let place = std::fs::read_link(format!("/proc/self/fd/{}", opened.as_raw_fd()))?;
        match place.starts_with(&self.path) {
            true => Ok(place),
            false => Err(refused()), // The folder was moved, or the file was removed.
        }
    }

    fn open(&self, path: &Path, flags: OFlags) -> io::Result<OwnedFd> {
        use rustix::io::Errno;
        let below = match path.is_absolute() {
            true => path.strip_prefix(&self.path).map_err(|_| refused())?,
            false => path,
        };
        let below = if below.as_os_str().is_empty() { Path::new(".") } else { below };
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
        loop {
            return match rustix::fs::openat2(&*self.opened, below, flags, Mode::empty(), resolve) {
                Ok(opened) => Ok(opened),
                // A concurrent rename makes the kernel retry.
                Err(Errno::AGAIN | Errno::INTR) => continue,
                Err(Errno::XDEV) => Err(refused()),
                Err(error) => Err(error.into()),
            };
        }
    }
}

fn refused() -> io::Error {
    io::Error::new(io::ErrorKind::PermissionDenied, "is outside the folder that may be read")
}

#[cfg(all(test, feature = "server"))]
mod tests {
    use super::*;
    use std::io::Read;
    use std::os::unix::fs::symlink;

    struct Scratch(PathBuf);

    impl Drop for Scratch {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    /// A folder `in/` that may be read, with a file, a folder and all kinds of links, and `out/`,
    /// which may not.
    fn scratch(name: &str) -> (Scratch, Files) {
        let path = std::env::temp_dir().join(format!("files-{name}-{}", std::process::id()));
        let scratch = Scratch(path);
        let (inside, outside) = (scratch.0.join("in"), scratch.0.join("out"));
        std::fs::create_dir_all(inside.join("deep")).unwrap();
        std::fs::create_dir_all(&outside).unwrap();
        std::fs::write(inside.join("deep/file"), "inside").unwrap();
        std::fs::write(outside.join("secret"), "outside").unwrap();
        for (target, link) in [
            ("deep/file", "to-file"),
            ("deep", "to-folder"),
            ("deep/../deep/file", "around"),
            ("../out/secret", "up"),
            ("../out", "up-folder"),
            ("/etc/hostname", "absolute"),
            ("/proc/self/exe", "magic"),
            ("loop", "loop"),
        ] {
            symlink(target, inside.join(link)).unwrap();
        }
        symlink(inside.join("deep/file"), inside.join("absolute-inside")).unwrap();
        let files = Files::below(&inside).unwrap();
        (scratch, files)
    }

    fn read(files: &Files, path: impl AsRef<Path>) -> io::Result<String> {
        let mut text = String::new();
        files.open(path.as_ref())?.read_to_string(&mut text)?;
        Ok(text)
    }

    #[test]
    fn what_is_below_is_read_by_any_way_that_stays_there() {
        let (scratch, files) = scratch("below");
        let inside = scratch.0.join("in").canonicalize().unwrap();
        for path in ["deep/file", "./deep//file", "deep/../deep/file", "to-file", "around"] {
            assert_eq!(read(&files, path).unwrap(), "inside", "{path}");
            assert_eq!(files.place(Path::new(path)).unwrap(), inside.join("deep/file"), "{path}");
        }
        assert_eq!(read(&files, inside.join("to-folder/file")).unwrap(), "inside");
        assert!(files.open(Path::new("deep")).unwrap().metadata().unwrap().is_dir());
        for itself in [Path::new("."), &inside] {
            assert_eq!(files.place(itself).unwrap(), inside);
        }
        // The opened folder counts, not its name.
        std::fs::rename(scratch.0.join("in"), scratch.0.join("moved")).unwrap();
        assert_eq!(read(&files, "deep/file").unwrap(), "inside");
    }

    #[test]
    fn nothing_leads_out() {
        let (scratch, files) = scratch("out");
        let secret = scratch.0.join("out/secret");
        for path in [
            "..",
            "../out/secret",
            "deep/../../out/secret",
            "up",
            "up-folder/secret",
            "absolute",
            "absolute-inside", // A link that begins at the root leads there first.
            "/etc/hostname",
            "/",
            secret.to_str().unwrap(),
            "../in/deep/file",
        ] {
            let path = Path::new(path);
            for error in [files.open(path).map(drop), files.place(path).map(drop)] {
                let error = error.expect_err(&path.display().to_string());
                assert_eq!(error.kind(), io::ErrorKind::PermissionDenied, "{}", path.display());
            }
        }
        for path in ["magic", "loop", "nothing", "deep/file/x"] {
            files.open(Path::new(path)).unwrap_err();
        }
        assert!(files.open_again(Path::new("to-file")).is_err(), "it was a file before");
        for path in ["deep/file", "/etc/hostname", "."] {
            assert!(Files::Nowhere.open(Path::new(path)).is_err());
            assert!(Files::Nowhere.place(Path::new(path)).is_err());
        }
    }

    #[test]
    fn nobody_waits_for_a_pipe() {
        let (scratch, files) = scratch("pipe");
        let pipe = scratch.0.join("in/pipe");
        rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, Mode::RUSR, 0)
            .unwrap();
        let error = files.open(Path::new("pipe")).unwrap_err();
        assert_eq!(error.to_string(), "is not a regular file");
        assert!(files.open_again(Path::new("pipe")).is_err());
    }

    #[test]
    fn what_is_no_folder_is_refused() {
        let (scratch, _) = scratch("folder");
        assert!(Files::below(&scratch.0.join("in/deep/file")).is_err());
        assert!(Files::below(&scratch.0.join("nothing")).is_err());
    }
}
