//! Lists of named items, each a table in the file: `[models.NAME]`, `[mcp.NAME]`.

use toml::de::DeValue;

/// An item of such a list.
pub(super) trait Named: Sized {
    /// The description of the tables in error texts.
    const TABLES: &'static str;
    /// Maximum number of items.
    const COUNT_MAX: usize;

    /// Returns an item with only this name set.
    fn of_name(name: &str) -> Self;

    fn name(&self) -> &str;

    /// Sets a field from its table. An error text completes a sentence about the field.
    fn set(&mut self, field: &str, value: &DeValue<'_>) -> Result<(), String>;

    /// Checks the item once all fields are set. An error text begins with the item's name.
    fn check(&self) -> Result<(), String>;
}

/// Appends an item if it is valid and its name is not taken.
pub(super) fn push<T: Named>(all: &mut Vec<T>, one: T) -> Result<(), String> {
    one.check()?;
    if all.iter().any(|other| other.name() == one.name()) {
        return Err(format!("{} is given twice", one.name()));
    }
    if all.len() == T::COUNT_MAX {
        return Err(format!("at most {} can be given", T::COUNT_MAX));
    }
    all.push(one);
    Ok(())
}

/// Reads the tables, in the order of the text.
pub(super) fn read_tables<T: Named>(value: &DeValue<'_>) -> Result<Vec<T>, String> {
    let problem = || format!("must be tables of {}", T::TABLES);
    let DeValue::Table(tables) = value else { return Err(problem()) };
    let mut tables: Vec<_> = tables.iter().collect();
    tables.sort_by_key(|(name, _)| name.span().start);
    let mut all = Vec::new();
    for (name, table) in tables {
        let name: &str = name.get_ref();
        let DeValue::Table(fields) = table.get_ref() else { return Err(problem()) };
        let mut one = T::of_name(name);
        for (field, value) in fields.iter() {
            let field: &str = field.get_ref();
            let set = one.set(field, value.get_ref());
            set.map_err(|problem| format!("{name}: {field:?} {problem}"))?;
        }
        push(&mut all, one)?;
    }
    Ok(all)
}
