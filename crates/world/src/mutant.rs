//! Deliberate flaws, compiled in for the simulator alone: it has to find every one of them.
//!
//! A flaw is written where it would be made, as `if mutant!("area.name") { .. }`. Without the
//! feature `mutants` the condition is the constant `false`, so what is shipped has no trace of it;
//! with it at most one is switched on in a thread, since a simulated run is one thread.
//!
//! The list of all, with what each breaks, is `atoll_sim::mutants`.

/// Whether flaws can be switched on in this program.
pub const COMPILED_IN: bool = cfg!(feature = "mutants");

/// For the macro.
#[cfg(not(feature = "mutants"))]
#[inline(always)]
pub const fn is_on(_name: &'static str) -> bool {
    false
}

#[cfg(feature = "mutants")]
mod switch {
    use std::cell::Cell;

    thread_local! {
        static ON: Cell<&'static str> = const { Cell::new("") };
    }

    /// For the macro.
    pub fn is_on(name: &'static str) -> bool {
        ON.with(|on| on.get() == name)
    }

    /// Switches that flaw on in this thread, and every other one off; none is called "".
    pub fn switch_on(name: &'static str) {
        ON.with(|on| on.set(name));
    }
}

#[cfg(feature = "mutants")]
pub use switch::{is_on, switch_on};
