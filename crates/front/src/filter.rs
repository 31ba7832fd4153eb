//! Volumes around a volume: each changes one thing and passes the rest on. They compose, and are
//! as good for trying out how a client takes trouble as for tests.
//!
//! Invariant: a filter that does nothing at the moment is not to be told from the volume itself.

use atoll_world::volume::{Extent, Volume, VolumeError, VolumeInfo, ZeroFlags};
use atoll_world::{Buf, Nanos, World};
use std::cell::{Cell, RefCell};
use std::rc::Rc;

/// The kinds of operations of a volume, for filters to choose from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// `read`.
    Read,
    /// `write`.
    Write,
    /// `flush`.
    Flush,
    /// `discard`.
    Discard,
    /// `zero`.
    Zero,
    /// `extents`.
    Extents,
}

/// Every operation of the inner volume is preceded by `before`, which may wait, and may fail in
/// its place.
trait Before: Clone + 'static {
    type Inner: Volume;
    fn inner(&self) -> &Self::Inner;
    fn before(
        &self,
        kind: Kind,
        at: u64,
        len: u64,
    ) -> impl Future<Output = Result<(), VolumeError>>;
}

/// The operations of a filter by its `before`.
macro_rules! volume_by_before {
    () => {
        fn info(&self) -> VolumeInfo {
            self.inner().info()
        }
        async fn read(&self, at: u64, len: u32) -> Result<Vec<Buf>, VolumeError> {
            self.before(Kind::Read, at, u64::from(len)).await?;
            self.inner().read(at, len).await
        }
        async fn write(&self, at: u64, data: Vec<Buf>) -> Result<(), VolumeError> {
            let len = atoll_world::buf::total_len(&data) as u64;
            self.before(Kind::Write, at, len).await?;
            self.inner().write(at, data).await
        }
        async fn flush(&self) -> Result<(), VolumeError> {
            self.before(Kind::Flush, 0, 0).await?;
            self.inner().flush().await
        }
        async fn discard(&self, at: u64, len: u64) -> Result<(), VolumeError> {
            self.before(Kind::Discard, at, len).await?;
            self.inner().discard(at, len).await
        }
        async fn zero(&self, at: u64, len: u64, flags: ZeroFlags) -> Result<(), VolumeError> {
            self.before(Kind::Zero, at, len).await?;
            self.inner().zero(at, len, flags).await
        }
        async fn extents(
            &self,
            at: u64,
            len: u64,
            most: usize,
        ) -> Result<Vec<Extent>, VolumeError> {
            self.before(Kind::Extents, at, len).await?;
            self.inner().extents(at, len, most).await
        }
    };
}

/// Every operation takes longer, by a span that can be changed at any time.
#[derive(Clone)]
pub struct Delay<W, V> {
    world: W,
    inner: V,
    span: Rc<Cell<Nanos>>,
}

impl<W: World, V: Volume> Delay<W, V> {
    /// `inner`, each operation begun `span` later.
    pub fn new(world: W, inner: V, span: Nanos) -> Self {
        Self { world, inner, span: Rc::new(Cell::new(span)) }
    }
    /// For operations from now on.
    pub fn set(&self, span: Nanos) {
        self.span.set(span);
    }
}

impl<W: World, V: Volume> Before for Delay<W, V> {
    type Inner = V;
    fn inner(&self) -> &V {
        &self.inner
    }
    async fn before(&self, _: Kind, _: u64, _: u64) -> Result<(), VolumeError> {
        let span = self.span.get();
        if span > Nanos::ZERO {
            self.world.sleep(span).await;
        }
        Ok(())
    }
}

impl<W: World, V: Volume> Volume for Delay<W, V> {
    volume_by_before!();
}

/// Some operations fail without having been tried.
#[derive(Clone)]
pub struct Fail<V> {
    inner: V,
    rule: Rc<RefCell<Rule>>,
}

type Rule = Box<dyn FnMut(Kind, u64, u64) -> Option<VolumeError>>;

impl<V: Volume> Fail<V> {
    /// `inner`, but what `rule` names an error for (kind, first byte, length in bytes) fails with
    /// it.
    pub fn new(
        inner: V,
        rule: impl FnMut(Kind, u64, u64) -> Option<VolumeError> + 'static,
    ) -> Self {
        Self { inner, rule: Rc::new(RefCell::new(Box::new(rule))) }
    }
}

impl<V: Volume> Before for Fail<V> {
    type Inner = V;
    fn inner(&self) -> &V {
        &self.inner
    }
    async fn before(&self, kind: Kind, at: u64, len: u64) -> Result<(), VolumeError> {
        let error = (self.rule.borrow_mut())(kind, at, len);
        error.map_or(Ok(()), Err)
    }
}

impl<V: Volume> Volume for Fail<V> {
    volume_by_before!();
}
