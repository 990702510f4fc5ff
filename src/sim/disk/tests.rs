//! Tests of the disk.
