//! Pages of lists. A cursor is the last name of the previous page, encoded. A list may therefore
//! change between two pages, and no item that was in it all the time is skipped.

use super::McpFault;
use crate::limits;
use crate::wire::base64;

/// The list that a cursor belongs to. A cursor of another list is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum List {
    /// Tools.
    Tools,
    /// Resources.
    Resources,
    /// Resource templates.
    Templates,
    /// Prompts.
    Prompts,
    /// Tasks.
    Tasks,
}

impl List {
    fn mark(self) -> &'static str {
        match self {
            List::Tools => "t:",
            List::Resources => "r:",
            List::Templates => "m:",
            List::Prompts => "p:",
            List::Tasks => "k:",
        }
    }
}

/// One page of a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Page<T> {
    /// The items of the page.
    pub items: Vec<T>,
    /// The cursor of the next page, if one exists.
    pub next: Option<String>,
}

/// Returns the page of `items` that `cursor` names, or the first page without one. `items` are in
/// the order of their keys, which `key_of` returns. Keys are unique.
///
/// # Errors
/// The cursor was not made here for this list (A41, B35).
pub fn page<T>(
    list: List,
    items: impl IntoIterator<Item = T>,
    key_of: impl Fn(&T) -> String,
    cursor: Option<&str>,
) -> Result<Page<T>, McpFault> {
    let after = match cursor {
        None | Some("") => None,
        Some(cursor) => Some(read(list, cursor)?),
    };
    let is_behind = |item: &T| after.as_ref().is_none_or(|after| key_of(item) > *after);
    let mut items = items.into_iter().filter(is_behind);
    let page: Vec<T> = items.by_ref().take(limits::MCP_PAGE_ITEMS).collect();
    let has_more = items.next().is_some();
    let next = page.last().filter(|_| has_more).map(|last| write(list, &key_of(last)));
    Ok(Page { items: page, next })
}

fn write(list: List, key: &str) -> String {
    let mut out = Vec::new();
    base64::write(&mut out, format!("{}{key}", list.mark()).as_bytes());
    String::from_utf8(out).expect("base 64 is ASCII")
}

fn read(list: List, cursor: &str) -> Result<String, McpFault> {
    let text = base64::read(cursor).and_then(|bytes| String::from_utf8(bytes).ok());
    let key = text.as_deref().and_then(|text| text.strip_prefix(list.mark()));
    key.map(str::to_owned)
        .ok_or_else(|| McpFault::invalid_params("`cursor` was not issued by this server"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(count: usize) -> Vec<String> {
        (0..count).map(|number| format!("name {number:04}")).collect()
    }

    fn pages_of(all: &[String]) -> Vec<Vec<String>> {
        let (mut pages, mut cursor) = (Vec::new(), None);
        loop {
            let found =
                page(List::Tools, all.iter().cloned(), String::clone, cursor.as_deref()).unwrap();
            pages.push(found.items);
            match found.next {
                Some(next) => cursor = Some(next),
                None => return pages,
            }
        }
    }

    #[test]
    fn all_pages_together_are_the_list_and_the_last_has_no_next() {
        // A41, B35.
        let size = limits::MCP_PAGE_ITEMS;
        for (count, pages) in [(0, 1), (1, 1), (size, 1), (size + 1, 2), (3 * size, 3)] {
            let all = names(count);
            let found = pages_of(&all);
            assert_eq!(found.len(), pages, "{count}");
            assert_eq!(found.concat(), all);
        }
    }

    #[test]
    fn what_comes_and_goes_between_two_pages_makes_nothing_else_be_skipped() {
        let all = names(250);
        let first = page(List::Tools, all.iter().cloned(), String::clone, None).unwrap();
        let mut changed = all.clone();
        changed.remove(99); // The item that the cursor names.
        changed.remove(3);
        changed.insert(0, "a name in front".to_owned());
        let next = first.next.unwrap();
        let second = page(List::Tools, changed, String::clone, Some(&next)).unwrap();
        assert_eq!(second.items, all[100..200]);
    }

    #[test]
    fn a_cursor_that_is_not_ours_or_of_another_list_is_refused() {
        let of_prompts = write(List::Prompts, "a");
        for cursor in ["x", "2", "!!!!", "dA==", "AAAA", of_prompts.as_str(), "////"] {
            let fault = page(List::Tools, names(3), String::clone, Some(cursor)).unwrap_err();
            assert_eq!(fault.code, -32_602, "{cursor}");
        }
        let first = page(List::Tools, names(3), String::clone, Some("")).unwrap();
        assert_eq!(first.items, names(3));
    }
}
