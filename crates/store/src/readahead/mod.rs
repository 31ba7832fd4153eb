//! Read-ahead: who reads a component in order, one request after the other, finds the next bytes in
//! memory. Guests' systems do this for files; backups, tools and firmware do not.
//!
//! [`stream`] tells from the requests who reads in order, [`prefetch`] reads the next blocks, and
//! [`buffer`] keeps them, one for each device. What is saved is the wait for the device: the reader
//! resolves every block and compares its checksum as ever.

pub(crate) mod buffer;
pub(crate) mod prefetch;
pub(crate) mod stream;
