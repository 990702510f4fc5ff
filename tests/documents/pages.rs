//! The pages: README.md, PERF.md and the guide, and the fenced blocks in them.

use std::fs;
use std::path::{Path, PathBuf};

/// A page: its path and its text.
pub struct Page {
    pub path: PathBuf,
    pub text: String,
}

/// A fenced block of a page.
pub struct Block {
    /// The page, from the root of the repository.
    pub page: String,
    /// The line of the opening fence.
    pub line: usize,
    pub language: String,
    pub text: String,
}

impl Block {
    /// The place of the block, for messages.
    pub fn place(&self) -> String {
        format!("{}:{}", self.page, self.line)
    }
}

/// Returns the root that cargo names at run time.
pub fn root() -> PathBuf {
    PathBuf::from(std::env::var_os("CARGO_MANIFEST_DIR").expect("cargo names the package"))
}

pub fn read(path: &Path) -> String {
    fs::read_to_string(path).expect("a page is text")
}

/// Returns README.md, PERF.md and all pages of the guide.
pub fn pages() -> Vec<Page> {
    let guide = fs::read_dir(root().join("src/guide")).expect("there is a guide");
    let paths = guide.map(|entry| entry.expect("a folder can be listed").path());
    let is_page = |path: &PathBuf| path.extension().is_some_and(|extension| extension == "md");
    let mut paths: Vec<PathBuf> = paths.filter(is_page).collect();
    assert!(paths.len() > 10, "the guide has {} pages", paths.len());
    paths.extend([root().join("README.md"), root().join("PERF.md")]);
    paths.sort();
    paths.into_iter().map(|path| Page { text: read(&path), path }).collect()
}

/// Returns the fenced blocks of all pages.
pub fn all_blocks() -> Vec<Block> {
    let blocks_of = |page: &Page| {
        let name = page.path.strip_prefix(root()).expect("it is below the root");
        blocks(name.to_str().expect("names are plain"), &page.text)
    };
    pages().iter().flat_map(blocks_of).collect()
}

/// Returns the fenced blocks of a text.
pub fn blocks(page: &str, text: &str) -> Vec<Block> {
    let mut blocks = Vec::new();
    let mut fence = Fence::default();
    for (index, line) in text.lines().enumerate() {
        match fence.take(line) {
            Part::Prose | Part::End => {}
            Part::Start(language) => blocks.push(Block {
                page: page.to_owned(),
                line: index + 1,
                language: language.to_owned(),
                text: String::new(),
            }),
            Part::Inside => {
                let block: &mut Block = blocks.last_mut().expect("it has started");
                block.text.push_str(line);
                block.text.push('\n');
            }
        }
    }
    assert!(fence.0.is_none(), "{page}: a block has no end");
    blocks
}

/// Returns the lines outside of fenced blocks.
pub fn prose(text: &str) -> impl Iterator<Item = &str> {
    let mut fence = Fence::default();
    text.lines().filter(move |line| matches!(fence.take(line), Part::Prose))
}

/// The number of backticks of the open fence. A block can hold fences with fewer of them.
#[derive(Default)]
struct Fence(Option<usize>);

enum Part<'a> {
    Prose,
    Start(&'a str),
    Inside,
    End,
}

impl Fence {
    fn take<'a>(&mut self, line: &'a str) -> Part<'a> {
        let line = line.trim();
        let language = line.trim_start_matches('`');
        let count = line.len() - language.len();
        match self.0 {
            None if count >= 3 => {
                self.0 = Some(count);
                Part::Start(language)
            }
            None => Part::Prose,
            Some(open) if count >= open && language.is_empty() => {
                self.0 = None;
                Part::End
            }
            Some(_) => Part::Inside,
        }
    }
}

#[test]
fn a_block_can_hold_shorter_fences() {
    let text = "a\n````console\n```toml\nb\n```\n````\nc\n";
    let blocks = blocks("x.md", text);
    assert_eq!(blocks.len(), 1);
    assert_eq!(blocks[0].text, "```toml\nb\n```\n");
    assert_eq!(prose(text).collect::<Vec<_>>(), ["a", "c"]);
}
