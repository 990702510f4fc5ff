//! Files with pages in them, for two processes: who makes them, who opens them, who may write.
//!
//! ```text
//!  server                          descriptor              other process
//!  ControlFile   page, desk slots  read-only, sealed    ▶  ControlView + DeskView
//!  ReaderPageFile      view        writable, then sealed ▶  ReaderPage
//!  ProducerPageFile    view        writable, then sealed ▶  ProducerPage
//! ```
//!
//! What another process is to write is handed over sealed against shrinking and growing. That is
//! not enough to look at it: whoever can still map it for writing can punch holes into it, and a
//! hole that is looked at on a full system kills with SIGBUS. So the guest says when it has mapped
//! the file; then it is closed (nobody maps it for writing any more, which also forbids holes) and
//! bought once more, and only then looked at.
//! Tests: `shared_tests.rs`.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use super::control::{
    CONTROL_MAGIC, CONTROL_WORDS, ControlPage, ControlView, FinalRecord, PRODUCER_MAGIC,
    ProgressRecord,
};
use super::desk_slot::{DeskSlot, DeskView, SLOT_WORDS};
use super::memfd::{DOOR_SEALS, Foreign, GUEST_SEALS, Memfd, OpenError};
use super::owner::{OWNER_WORDS, OwnerView, OwnerWord};
use super::reader_page::{ReaderPage, ReaderPageView};
use super::segment::Segment;
use crate::limits::DOOR_READERS_PER_EXECUTION_MAX;

const PAGE_BYTES: usize = 4096;
const SLOTS: usize = DOOR_READERS_PER_EXECUTION_MAX as usize;
const CONTROL_FILE_BYTES: usize =
    ((CONTROL_WORDS + SLOTS * SLOT_WORDS) * 8).next_multiple_of(PAGE_BYTES);
const _: () = assert!((CONTROL_WORDS + OWNER_WORDS) * 8 <= PAGE_BYTES);

/// A file that one other process is to map for writing.
pub(super) struct Guest {
    memfd: Memfd,
    segment: Segment,
}

impl Guest {
    /// Of a file of `bytes` bytes that are bought, and to which nothing is to be written from here.
    pub(super) fn new(memfd: Memfd, bytes: usize) -> io::Result<Guest> {
        memfd.seal(GUEST_SEALS)?;
        let segment = memfd.map_read_only(bytes)?;
        Ok(Guest { memfd, segment })
    }

    /// A page of its own that begins with these words.
    fn with_words(name: &std::ffi::CStr, words: &[u64]) -> io::Result<Guest> {
        let memfd = Memfd::create(name)?;
        memfd.allocate(0, PAGE_BYTES as u64)?;
        memfd.write_words(words)?;
        Guest::new(memfd, PAGE_BYTES)
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
                Some(error) if found & GUEST_SEALS == found => OpenError::Os(error),
                _ => OpenError::NotSealed { found, needed: DOOR_SEALS },
            });
        }
        // Until now there could be holes in it.
        self.memfd.allocate(0, self.segment.bytes() as u64).map_err(OpenError::Os)
    }

    pub(super) fn reopen_read_only(&self) -> io::Result<OwnedFd> {
        self.memfd.reopen_read_only()
    }
}

/// The control page of an execution, and a desk slot for each of its readers in other processes.
pub struct ControlFile {
    /// What the server tells all of them, and the producer.
    pub page: ControlPage,
    segment: Segment,
    read_only: OwnedFd,
}

impl ControlFile {
    /// A new one: gate at 0 (nothing may be overwritten), no verdict.
    ///
    /// # Errors
    /// What the kernel says: no memory, no descriptors.
    pub fn create() -> io::Result<ControlFile> {
        let memfd = Memfd::create(c"streamdoor-control")?;
        memfd.allocate(0, CONTROL_FILE_BYTES as u64)?;
        let segment = memfd.map(CONTROL_FILE_BYTES)?;
        memfd.seal(DOOR_SEALS)?;
        let read_only = memfd.reopen_read_only()?;
        let page = ControlPage::at(&segment, CONTROL_MAGIC);
        Ok(ControlFile { page, segment, read_only })
    }

    /// The descriptor to hand out: read-only, close-on-exec.
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.read_only.as_fd()
    }

    /// Its memory, for tests that scribble.
    #[cfg(all(test, feature = "server"))]
    pub(crate) fn segment(&self) -> Segment {
        self.segment.clone()
    }

    /// The slot of a reader that comes now. One reader at a time has it.
    ///
    /// # Panics
    /// If there is no such slot: they are numbered from 0, below
    /// [`DOOR_READERS_PER_EXECUTION_MAX`].
    pub fn take_slot(&self, slot: u32) -> DeskSlot {
        DeskSlot::take(slot_of(&self.segment, slot).expect("a slot that there is"))
    }
}

fn slot_of(segment: &Segment, slot: u32) -> Option<Segment> {
    let offset_words = CONTROL_WORDS + slot as usize * SLOT_WORDS;
    (slot < DOOR_READERS_PER_EXECUTION_MAX).then(|| segment.part(offset_words * 8, SLOT_WORDS * 8))
}

impl ControlView {
    /// Opens the control page of a server, and the slot in it that is a reader's own.
    ///
    /// # Errors
    /// [`OpenError`]; [`OpenError::WrongPage`] also if there is no such slot.
    pub fn open(fd: OwnedFd, slot: u32) -> Result<(ControlView, DeskView), OpenError> {
        let file = Foreign::check(fd, DOOR_SEALS, &[CONTROL_FILE_BYTES as u32])?;
        let segment = file.map_read_only()?;
        let view = ControlView::at(&segment, CONTROL_MAGIC).ok_or(OpenError::WrongPage)?;
        let slot = slot_of(&segment, slot).ok_or(OpenError::WrongPage)?;
        Ok((view, DeskView::at(slot)))
    }
}

/// The page of a reader in another process, as the server has it.
pub struct ReaderPageFile {
    guest: Guest,
}

impl ReaderPageFile {
    /// A new one; `cursor` is the first chunk that the reader wants.
    ///
    /// # Errors
    /// What the kernel says: no memory, no descriptors.
    pub fn create(cursor: u64) -> io::Result<ReaderPageFile> {
        let words = ReaderPage::fresh(cursor);
        Ok(ReaderPageFile { guest: Guest::with_words(c"streamdoor-reader", &words)? })
    }

    /// The descriptor for the reader, which can write until [`ReaderPageFile::close`].
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.guest.descriptor()
    }

    /// The reader has mapped it: from now on nobody maps it for writing, and the server may look.
    /// `cursor`: as it was created.
    ///
    /// # Errors
    /// [`OpenError::NotSealed`] if the reader has prevented that, or what the kernel says: then the
    /// page is not to be looked at, and the reader has to go.
    pub fn close(self, cursor: u64) -> Result<ReaderPageView, OpenError> {
        self.guest.close()?;
        Ok(ReaderPageView::at(self.guest.segment, cursor))
    }
}

impl ReaderPage {
    /// Opens the page that a server has made for this reader.
    ///
    /// # Errors
    /// [`OpenError`].
    pub fn open(fd: OwnedFd) -> Result<ReaderPage, OpenError> {
        let segment = Foreign::check(fd, GUEST_SEALS, &[PAGE_BYTES as u32])?.map_writable()?;
        ReaderPage::at(&segment).ok_or(OpenError::WrongPage)
    }
}

/// The page of a producer in another process, as the server has it.
pub struct ProducerPageFile {
    guest: Guest,
}

impl ProducerPageFile {
    /// A new one.
    ///
    /// # Errors
    /// What the kernel says: no memory, no descriptors.
    pub fn create() -> io::Result<ProducerPageFile> {
        let fresh = Segment::heap(CONTROL_WORDS);
        let _ = ControlPage::at(&fresh, PRODUCER_MAGIC);
        let words = fresh.words(CONTROL_WORDS);
        Ok(ProducerPageFile { guest: Guest::with_words(c"streamdoor-producer-page", &words)? })
    }

    /// The descriptor for the producer, which can write until [`ProducerPageFile::close`].
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.guest.descriptor()
    }

    /// The producer has mapped it: from now on nobody maps it for writing, and the server may look:
    /// at what the producer tells (progress, its end, how many chunks to expect), and whether it
    /// lives.
    ///
    /// # Errors
    /// [`OpenError::NotSealed`] if the producer has prevented that, [`OpenError::WrongPage`] if it
    /// has already scribbled over it, or what the kernel says: then the page is not to be looked
    /// at.
    pub fn close(self) -> Result<(ControlView, OwnerView), OpenError> {
        self.guest.close()?;
        let segment = self.guest.segment;
        let view = ControlView::at(&segment, PRODUCER_MAGIC).ok_or(OpenError::WrongPage)?;
        Ok((view, OwnerView::at(segment.part(CONTROL_WORDS * 8, OWNER_WORDS * 8))))
    }
}

/// A producer's own page: what it tells the server.
pub struct ProducerPage {
    page: ControlPage,
    owner: OwnerWord,
}

impl ProducerPage {
    /// Opens the page that a server has made for this producer.
    ///
    /// # Errors
    /// [`OpenError`].
    pub fn open(fd: OwnedFd) -> Result<ProducerPage, OpenError> {
        let segment = Foreign::check(fd, GUEST_SEALS, &[PAGE_BYTES as u32])?.map_writable()?;
        ControlView::at(&segment, PRODUCER_MAGIC).ok_or(OpenError::WrongPage)?;
        let page = ControlPage::at(&segment, PRODUCER_MAGIC);
        let owner = OwnerWord::at(segment.part(CONTROL_WORDS * 8, OWNER_WORDS * 8));
        Ok(ProducerPage { page, owner })
    }

    /// The newest progress.
    pub fn set_progress(&mut self, record: &ProgressRecord) {
        self.page.set_progress(record);
    }

    /// How many chunks there will be.
    pub fn set_chunks_expected(&self, chunk_count: u64) {
        self.page.set_chunks_expected(chunk_count);
    }

    /// Nothing more will be published; the verdict's code is the server's to agree upon.
    pub fn finish(&self, record: &FinalRecord, error_text: &str) {
        self.page.store_end(record, error_text);
    }

    /// The word that says that this process lives.
    pub fn owner(&self) -> &OwnerWord {
        &self.owner
    }
}
