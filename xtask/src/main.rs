//! Checks of the source tree that the compiler cannot make.
fn main() {}
