//! The program `atoll`.

use std::process::ExitCode;

#[global_allocator]
static ALLOC: atoll_real::PooledAlloc = atoll_real::PooledAlloc;

fn main() -> ExitCode {
    atoll::cli::main()
}
