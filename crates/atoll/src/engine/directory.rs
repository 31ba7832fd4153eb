//! The directory of this host, whichever the configuration names.

use crate::config::DirectoryConfig;
use atoll_etcd::{EtcdDirectory, EtcdWatch};
use atoll_real::directory::{DirectoryClient, DirectoryWatch};
use atoll_world::directory::{
    Changes, Directory, DirectoryError, Entry, Listing, Revision, Txn, TxnReply, Watch, WatchEvent,
};

/// One shard's way to the directory. Clones are the same.
#[derive(Clone)]
pub enum HostDirectory {
    /// Of this machine.
    Embedded(DirectoryClient),
    /// Of the cluster.
    Etcd(EtcdDirectory),
}

impl HostDirectory {
    /// Connects to it.
    ///
    /// # Errors
    /// `Unavailable`: it does not answer within 5 s, or refuses, and why.
    pub async fn connect(config: &DirectoryConfig) -> Result<Self, DirectoryError> {
        Ok(match config {
            DirectoryConfig::Embedded(socket) => {
                Self::Embedded(DirectoryClient::connect(socket).await?)
            }
            DirectoryConfig::Etcd(etcd) => Self::Etcd(EtcdDirectory::connect(etcd.clone()).await?),
        })
    }
}

/// A running watch of it.
pub enum HostWatch {
    Embedded(DirectoryWatch),
    // Boxed: it holds a stream of its connection.
    Etcd(Box<EtcdWatch>),
}

impl Directory for HostDirectory {
    type Watch = HostWatch;

    async fn txn(&self, txn: Txn) -> Result<TxnReply, DirectoryError> {
        match self {
            Self::Embedded(directory) => directory.txn(txn).await,
            Self::Etcd(directory) => Box::pin(directory.txn(txn)).await,
        }
    }
    async fn get(&self, key: &str) -> Result<Option<Entry>, DirectoryError> {
        match self {
            Self::Embedded(directory) => directory.get(key).await,
            Self::Etcd(directory) => Box::pin(directory.get(key)).await,
        }
    }
    async fn list(&self, prefix: &str) -> Result<Listing, DirectoryError> {
        match self {
            Self::Embedded(directory) => directory.list(prefix).await,
            Self::Etcd(directory) => Box::pin(directory.list(prefix)).await,
        }
    }
    async fn changes(&self, prefix: &str, since: Revision) -> Result<Changes, DirectoryError> {
        match self {
            Self::Embedded(directory) => directory.changes(prefix, since).await,
            Self::Etcd(directory) => Box::pin(directory.changes(prefix, since)).await,
        }
    }
    async fn watch(&self, prefix: &str, after: Revision) -> Result<HostWatch, DirectoryError> {
        Ok(match self {
            Self::Embedded(directory) => HostWatch::Embedded(directory.watch(prefix, after).await?),
            Self::Etcd(directory) => {
                HostWatch::Etcd(Box::new(directory.watch(prefix, after).await?))
            }
        })
    }
    async fn touch(&self, name: &str, ttl_ms: u32) -> Result<(), DirectoryError> {
        match self {
            Self::Embedded(directory) => directory.touch(name, ttl_ms).await,
            Self::Etcd(directory) => Box::pin(directory.touch(name, ttl_ms)).await,
        }
    }
    async fn alive(&self) -> Result<Vec<String>, DirectoryError> {
        match self {
            Self::Embedded(directory) => directory.alive().await,
            Self::Etcd(directory) => Box::pin(directory.alive()).await,
        }
    }
}

impl Watch for HostWatch {
    async fn next(&mut self) -> Result<Vec<WatchEvent>, DirectoryError> {
        match self {
            Self::Embedded(watch) => watch.next().await,
            Self::Etcd(watch) => Box::pin(watch.next()).await,
        }
    }
}
