//! The role of the other process: the disk.

use std::path::Path;

use crate::image::serve;
use crate::role::told;

/// The other process's entry point. It is no test of its own.
#[test]
fn plays_its_role() {
    let Some((role, image, bytes)) = told() else { return };
    assert_eq!(role, "disk");
    serve(Path::new(&image), bytes.parse().unwrap());
}
