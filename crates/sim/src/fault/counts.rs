//! What was really reached of the faults of a run, and at what its cluster was then.
//!
//! A fault counts when it has had its effect (a write was really lost, a packet really damaged),
//! not when it was planned.

use super::kind::FaultKind;
use crate::activity::{Activities, Activity, cell_count};
use crate::step::{self, Step};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

/// Hears of each fault that has its effect.
type Observer = dyn Fn(FaultKind);
/// Hears that a device of a host is about to end one operation, and after which one the host's
/// devices have ended last; whether that host's devices are to end none any more, since it crashed.
type StepObserver = dyn Fn(u16, (Step, Step)) -> bool;

struct Inner {
    /// See [`cell_names`](crate::activity::cell_names).
    cells: Vec<Cell<u64>>,
    counts: Vec<Cell<u64>>,
    now: Cell<Activities>,
    /// What the devices of each host have ended last.
    last: RefCell<BTreeMap<u16, Step>>,
    observer: RefCell<Option<Rc<Observer>>>,
    at_steps: RefCell<Option<Rc<StepObserver>>>,
}

/// How often each fault had its effect; clones are the same.
#[derive(Clone)]
pub struct Faults(Rc<Inner>);

impl Default for Faults {
    fn default() -> Self {
        let kinds = FaultKind::ALL.len();
        Self(Rc::new(Inner {
            cells: vec![Cell::new(0); cell_count()],
            counts: vec![Cell::new(0); kinds],
            now: Cell::default(),
            last: RefCell::default(),
            observer: RefCell::default(),
            at_steps: RefCell::default(),
        }))
    }
}

impl Faults {
    /// Counts one.
    pub fn reached(&self, kind: FaultKind) {
        let count = &self.0.counts[kind as usize];
        count.set(count.get() + 1);
        for activity in self.0.now.get().list() {
            let cell = &self.0.cells[kind as usize * Activity::ALL.len() + activity as usize];
            cell.set(cell.get() + 1);
        }
        if let Some(observer) = &*self.0.observer.borrow() {
            observer(kind);
        }
    }
    /// A device of that host is about to end an operation. Whether the host crashes first, and has
    /// crashed when this returns.
    pub fn crashes_before(&self, host: u16, step: Step) -> bool {
        let last = self.0.last.borrow().get(&host).copied();
        let observer = self.0.at_steps.borrow().clone();
        let crashes = last.zip(observer).is_some_and(|(last, ask)| ask(host, (last, step)));
        if !crashes {
            self.0.last.borrow_mut().insert(host, step);
        }
        crashes
    }
    /// A host crashes while its devices are at an operation. Counts if the cluster is at anything.
    pub fn crashed_before(&self, host: u16, step: Step) {
        let last = self.0.last.borrow().get(&host).copied();
        let point = last.and_then(|last| step::POINTS.binary_search(&(last, step)).ok());
        if let Some(point) = point.filter(|_| self.0.now.get() != Activities::default()) {
            let cell = &self.0.cells[FaultKind::ALL.len() * Activity::ALL.len() + point];
            cell.set(cell.get() + 1);
        }
    }
    /// Asks that at every step of a host whether it crashes there. Who says so has crashed it.
    pub fn observe_steps(&self, observer: impl Fn(u16, (Step, Step)) -> bool + 'static) {
        *self.0.at_steps.borrow_mut() = Some(Rc::new(observer));
    }
    /// What the cluster is at from now on.
    pub fn set_activities(&self, now: Activities) {
        self.0.now.set(now);
    }
    /// How often each kind had its effect during each activity, and crashes by what they came
    /// between, in order of [`cell_names`](crate::activity::cell_names).
    pub fn cells(&self) -> Vec<u64> {
        self.0.cells.iter().map(Cell::get).collect()
    }
    /// Calls that at every fault from now on. It must not reach a fault itself.
    pub fn observe(&self, observer: impl Fn(FaultKind) + 'static) {
        *self.0.observer.borrow_mut() = Some(Rc::new(observer));
    }
    /// How often.
    pub fn count(&self, kind: FaultKind) -> u64 {
        self.0.counts[kind as usize].get()
    }
    /// All of them in order of kind.
    pub fn counts(&self) -> Vec<u64> {
        self.0.counts.iter().map(Cell::get).collect()
    }
    /// Their sum.
    pub fn total(&self) -> u64 {
        self.0.counts.iter().map(Cell::get).sum()
    }
}
