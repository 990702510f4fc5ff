//! Files with pages for two processes: the server creates them, the other process opens them.
//!
//! ```text
//!  server                          descriptor              other process
//!  ControlFile   page, signals     read-only, sealed    ▶  ControlView + SignalView
//!  ReaderPageFile      view        writable, then sealed ▶  ReaderPage
//!  ProducerPageFile    view        writable, then sealed ▶  ProducerPage
//! ```
//!
//! A file that another process writes is handed over sealed against shrinking and growing. The
//! server must not read it yet. A process that can still map it for writing can punch holes into
//! it. The read of a hole on a full system kills with SIGBUS.
//!
//! Therefore the other process reports when it has mapped the file. The server then closes the
//! file: nobody can map it for writing any more, which also forbids holes. The server allocates it
//! once more, and only then reads it.
//! Tests: `shared_tests.rs`.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use super::control::{
    CONTROL_MAGIC, CONTROL_WORDS, ControlPage, ControlView, FinalRecord, PRODUCER_MAGIC,
    ProgressRecord,
};
use super::memfd::{DOOR_SEALS, ForeignFile, Memfd, OpenError, SHARED_SEALS};
use super::owner::{OWNER_WORDS, OwnerView, OwnerWord};
use super::reader_page::{ReaderPage, ReaderPageView};
use super::segment::{PAGE_BYTES, Segment};
use super::signal_slot::{SLOT_WORDS, SignalSlot, SignalView};
use crate::limits::{DOOR_PAGES_BYTES, DOOR_READERS_PER_EXECUTION_MAX};

const SLOTS: usize = DOOR_READERS_PER_EXECUTION_MAX as usize;
/// Size of the file of a control page, in bytes.
const CONTROL_FILE_BYTES: usize = {
    let mut words = 0;
    words += CONTROL_WORDS; // The page, which all of them read.
    words += SLOTS * SLOT_WORDS; // A signal slot for each reader.
    (words * 8).next_multiple_of(PAGE_BYTES)
};
/// Size of the file of a producer's page, in bytes.
const PRODUCER_FILE_BYTES: usize = {
    let mut words = 0;
    words += CONTROL_WORDS; // The producer's reports.
    words += OWNER_WORDS; // The word that shows that it lives.
    (words * 8).next_multiple_of(PAGE_BYTES)
};
/// Size of all pages of one execution that other processes share, in bytes.
const PAGES_BYTES: usize = {
    let mut sum = 0;
    sum += CONTROL_FILE_BYTES; // The server's messages for all of them.
    sum += SLOTS * PAGE_BYTES; // The page of each reader.
    sum += PRODUCER_FILE_BYTES; // The page of the producer.
    sum
};

const _: () = {
    assert!(PRODUCER_FILE_BYTES == PAGE_BYTES); // A guest's page is one page.
    assert!(PAGES_BYTES as u64 == DOOR_PAGES_BYTES);
    assert!(CONTROL_FILE_BYTES <= u32::MAX as usize); // The other side checks the size as a u32.
    assert!((CONTROL_WORDS * 8).is_multiple_of(128)); // Slots begin on a pair of lines.
};

/// A file that one other process may map for writing.
pub(super) struct SharedFile {
    memfd: Memfd,
    segment: Segment,
}

impl SharedFile {
    /// Wraps a file of `bytes` allocated bytes, which this process does not write any more.
    pub(super) fn new(memfd: Memfd, bytes: usize) -> io::Result<SharedFile> {
        assert!(bytes.is_multiple_of(PAGE_BYTES));
        memfd.seal(SHARED_SEALS)?;
        let segment = memfd.map_read_only(bytes)?;
        Ok(SharedFile { memfd, segment })
    }

    /// Creates a page in a file of its own, which begins with these words.
    fn with_words(name: &std::ffi::CStr, words: &[u64]) -> io::Result<SharedFile> {
        assert!(words.len() * 8 <= PAGE_BYTES);
        let memfd = Memfd::create(name)?;
        memfd.allocate(0, PAGE_BYTES as u64)?;
        memfd.write_words(words)?;
        SharedFile::new(memfd, PAGE_BYTES)
    }

    pub(super) fn descriptor(&self) -> BorrowedFd<'_> {
        self.memfd.descriptor()
    }

    pub(super) fn segment(&self) -> &Segment {
        &self.segment
    }

    pub(super) fn close(&self) -> Result<(), OpenError> {
        let refused = self.memfd.seal(DOOR_SEALS).err();
        let found = self.memfd.seals().map_err(OpenError::Os)?;
        if found & DOOR_SEALS != DOOR_SEALS {
            return Err(match refused {
                Some(error) if found & SHARED_SEALS == found => OpenError::Os(error),
                _ => OpenError::NotSealed { found, needed: DOOR_SEALS },
            });
        }
        // Until now the other process could punch holes into it.
        self.memfd.allocate(0, self.segment.bytes() as u64).map_err(OpenError::Os)
    }

    pub(super) fn reopen_read_only(&self) -> io::Result<OwnedFd> {
        self.memfd.reopen_read_only()
    }
}

/// The control page of an execution, and a signal slot for each of its readers in other processes.
pub struct ControlFile {
    /// The page that all of them read, and the producer.
    pub page: ControlPage,
    segment: Segment,
    read_only: OwnedFd,
}

impl ControlFile {
    /// Creates a new one: gate at 0 (nothing may be overwritten), no verdict.
    ///
    /// # Errors
    /// The kernel's error: no memory, no descriptors.
    pub fn create() -> io::Result<ControlFile> {
        let memfd = Memfd::create(c"streamdoor-control")?;
        memfd.allocate(0, CONTROL_FILE_BYTES as u64)?;
        let segment = memfd.map(CONTROL_FILE_BYTES)?;
        memfd.seal(DOOR_SEALS)?;
        let read_only = memfd.reopen_read_only()?;
        assert!(segment.bytes() == CONTROL_FILE_BYTES);
        let page = ControlPage::at(&segment, CONTROL_MAGIC);
        Ok(ControlFile { page, segment, read_only })
    }

    /// The descriptor to hand out: read-only, close-on-exec.
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.read_only.as_fd()
    }

    /// Returns the memory of the file, for tests that overwrite it.
    #[cfg(test)]
    pub(crate) fn segment(&self) -> Segment {
        self.segment.clone()
    }

    /// Takes the slot of a new reader. A slot belongs to one reader at a time.
    ///
    /// # Panics
    /// If `slot` is not below [`DOOR_READERS_PER_EXECUTION_MAX`].
    pub fn take_slot(&self, slot: u32) -> SignalSlot {
        SignalSlot::take(slot_of(&self.segment, slot).expect("a slot that there is"))
    }
}

fn slot_of(segment: &Segment, slot: u32) -> Option<Segment> {
    assert!(segment.bytes() == CONTROL_FILE_BYTES); // Each slot is inside.
    let offset_words = CONTROL_WORDS + slot as usize * SLOT_WORDS;
    (slot < DOOR_READERS_PER_EXECUTION_MAX).then(|| segment.part(offset_words * 8, SLOT_WORDS * 8))
}

impl ControlView {
    /// Opens the control page of a server, and the slot in it of this reader.
    ///
    /// # Errors
    /// [`OpenError`] if the file is not a sealed control page; [`OpenError::WrongPage`] also if the
    /// slot does not exist.
    pub fn open(fd: OwnedFd, slot: u32) -> Result<(ControlView, SignalView), OpenError> {
        let file = ForeignFile::check(fd, DOOR_SEALS, &[CONTROL_FILE_BYTES as u32])?;
        let segment = file.map_read_only()?;
        let view = ControlView::at(&segment, CONTROL_MAGIC).ok_or(OpenError::WrongPage)?;
        let slot = slot_of(&segment, slot).ok_or(OpenError::WrongPage)?;
        Ok((view, SignalView::at(slot)))
    }
}

/// The page of a reader in another process, on the server's side.
pub struct ReaderPageFile {
    shared: SharedFile,
}

impl ReaderPageFile {
    /// Creates a new one. `cursor` is the first chunk that the reader wants.
    ///
    /// # Errors
    /// The kernel's error: no memory, no descriptors.
    pub fn create(cursor: u64) -> io::Result<ReaderPageFile> {
        let words = ReaderPage::fresh(cursor);
        Ok(ReaderPageFile { shared: SharedFile::with_words(c"streamdoor-reader", &words)? })
    }

    /// The descriptor for the reader, which can write until [`ReaderPageFile::close`].
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.shared.descriptor()
    }

    /// Seals the page after the reader has mapped it, so that nobody else maps it for writing.
    /// Returns the server's view. `cursor` is the same as in [`ReaderPageFile::create`].
    ///
    /// # Errors
    /// [`OpenError::NotSealed`] if the reader has prevented the seals, or the kernel's error. In
    /// either case the server must not read the page and has to drop the reader.
    pub fn close(self, cursor: u64) -> Result<ReaderPageView, OpenError> {
        self.shared.close()?;
        Ok(ReaderPageView::at(self.shared.segment, cursor))
    }
}

impl ReaderPage {
    /// Opens the page that a server has made for this reader.
    ///
    /// # Errors
    /// [`OpenError`] if the file is not a sealed reader page, or the kernel refuses to map it.
    pub fn open(fd: OwnedFd) -> Result<ReaderPage, OpenError> {
        let segment = ForeignFile::check(fd, SHARED_SEALS, &[PAGE_BYTES as u32])?.map_writable()?;
        ReaderPage::at(&segment).ok_or(OpenError::WrongPage)
    }
}

/// The page of a producer in another process, on the server's side.
pub struct ProducerPageFile {
    shared: SharedFile,
}

impl ProducerPageFile {
    /// Creates a new one.
    ///
    /// # Errors
    /// The kernel's error: no memory, no descriptors.
    pub fn create() -> io::Result<ProducerPageFile> {
        let fresh = Segment::heap(CONTROL_WORDS);
        let _ = ControlPage::at(&fresh, PRODUCER_MAGIC);
        let words = fresh.words(CONTROL_WORDS);
        Ok(ProducerPageFile {
            shared: SharedFile::with_words(c"streamdoor-producer-page", &words)?,
        })
    }

    /// The descriptor for the producer, which can write until [`ProducerPageFile::close`].
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.shared.descriptor()
    }

    /// Seals the page after the producer has mapped it, so that nobody else maps it for writing.
    /// Returns the producer's reports (progress, its end, the number of expected chunks), and
    /// whether it lives.
    ///
    /// # Errors
    /// [`OpenError::NotSealed`] if the producer has prevented the seals, [`OpenError::WrongPage`]
    /// if it has already overwritten the header of the page, or the kernel's error. In each case
    /// the server must not read the page.
    pub fn close(self) -> Result<(ControlView, OwnerView), OpenError> {
        self.shared.close()?;
        let segment = self.shared.segment;
        let view = ControlView::at(&segment, PRODUCER_MAGIC).ok_or(OpenError::WrongPage)?;
        Ok((view, OwnerView::at(segment.part(CONTROL_WORDS * 8, OWNER_WORDS * 8))))
    }
}

/// The producer's side of its own page, with which it reports to the server.
pub struct ProducerPage {
    page: ControlPage,
    owner: OwnerWord,
}

impl ProducerPage {
    /// Opens the page that a server has made for this producer.
    ///
    /// # Errors
    /// [`OpenError`] if the file is not a sealed producer page, or the kernel refuses to map it.
    pub fn open(fd: OwnedFd) -> Result<ProducerPage, OpenError> {
        let segment = ForeignFile::check(fd, SHARED_SEALS, &[PAGE_BYTES as u32])?.map_writable()?;
        ControlView::at(&segment, PRODUCER_MAGIC).ok_or(OpenError::WrongPage)?;
        let page = ControlPage::at(&segment, PRODUCER_MAGIC);
        let owner = OwnerWord::at(segment.part(CONTROL_WORDS * 8, OWNER_WORDS * 8));
        Ok(ProducerPage { page, owner })
    }

    /// Stores the newest progress.
    pub fn set_progress(&mut self, record: &ProgressRecord) {
        self.page.set_progress(record);
    }

    /// Stores the number of chunks that the producer announces.
    pub fn set_chunks_expected(&self, chunk_count: u64) {
        self.page.set_chunks_expected(chunk_count);
    }

    /// Stores the end: nothing more will be published. The code of the verdict is agreed with the
    /// server.
    pub fn finish(&self, record: &FinalRecord, error_text: &str) {
        self.page.store_end(record, error_text);
    }

    /// The word that shows that this process lives.
    pub fn owner(&self) -> &OwnerWord {
        &self.owner
    }
}
