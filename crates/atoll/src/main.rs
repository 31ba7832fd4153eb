//! The program `atoll`.

use std::process::ExitCode;

/// A request allocates some thirty futures of one to four KiB, which the C library's allocator cuts
/// out of its heap and merges back each time: a fifth of a host's CPU at small blocks.
#[global_allocator]
static ALLOC: mimalloc::MiMalloc = mimalloc::MiMalloc;

// What is shipped has no deliberate flaws, however it was built.
const _: () = assert!(!atoll_world::mutant::COMPILED_IN);

fn main() -> ExitCode {
    atoll::cli::main()
}
