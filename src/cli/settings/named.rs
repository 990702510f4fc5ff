//! Lists of what has a name, and a table of the file each: `[models.NAME]`, `[mcp.NAME]`.

use toml::de::DeValue;

/// One of a list.
pub(super) trait Named: Sized {
    /// What the list is in the file.
    const TABLES: &'static str;
    /// How many there can be.
    const COUNT_MAX: usize;

    /// One of which nothing else is known.
    fn of_name(name: &str) -> Self;

    fn name(&self) -> &str;

    /// Sets a field of its table. A problem is the rest of a sentence about the field.
    fn set(&mut self, field: &str, value: &DeValue<'_>) -> Result<(), String>;

    /// Now that all of it is said. A problem begins with its name.
    fn check(&self) -> Result<(), String>;
}

/// Appends one, if it is right and no other has its name.
pub(super) fn push<T: Named>(all: &mut Vec<T>, one: T) -> Result<(), String> {
    one.check()?;
    if all.iter().any(|other| other.name() == one.name()) {
        return Err(format!("{} is there twice", one.name()));
    }
    if all.len() == T::COUNT_MAX {
        return Err(format!("there can be {} at most", T::COUNT_MAX));
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
