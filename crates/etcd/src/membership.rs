//! Which members etcd has, and changing it.
//!
//! What is refused (too many learners, one that is not in step, a change that would cost the
//! quorum) etcd itself decides: who asks may be wrong about how it is.

use crate::client::EtcdDirectory;
use crate::error::words;
use crate::members::Link;
use atoll_world::directory::DirectoryError;
use etcd_client::{Client, Error, MemberAddOptions, ResponseHeader, StatusResponse};
use std::time::Duration;
use tokio::time::{Instant, timeout};

/// How long a member may take for a request, or for a piece of a snapshot.
const DEADLINE: Duration = Duration::from_secs(5);

/// A member as all members know it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// Its number in etcd.
    pub id: u64,
    /// Its name; empty: it has never been started.
    pub name: String,
    /// Where other members reach it: URLs.
    pub peers: Vec<String>,
    /// Where clients reach it: URLs; none until it has been started.
    pub clients: Vec<String>,
    /// It gets all data, and has no vote.
    pub is_learner: bool,
}

impl EtcdDirectory {
    /// All members, as the one that this host uses knows them: it may be behind.
    ///
    /// # Errors
    /// `Unavailable`.
    pub async fn member_list(&self) -> Result<Vec<Member>, DirectoryError> {
        let members = &self.0.members;
        let ask = async |link: &Link, deadline: Instant| {
            let mut client = link.client();
            members.ask(link, deadline, client.member_list()).await
        };
        let listed = self.read(ask).await?;
        Ok(listed.members().iter().map(member).collect())
    }

    /// A connection of its own to the member at that endpoint, if it is good and of the etcd that
    /// this host uses: what is refused there, or takes long, costs nobody else the connection.
    ///
    /// # Errors
    /// In words: it does not answer, or is another one.
    pub async fn member(&self, endpoint: &str) -> Result<MemberClient, String> {
        let members = &self.0.members;
        let (client, status) = members.look_at(endpoint).await?;
        members.check(&status)?;
        Ok(MemberClient { client, status })
    }
}

/// One member, asked over a connection of its own.
pub struct MemberClient {
    client: Client,
    status: StatusResponse,
}

impl MemberClient {
    /// Its number.
    pub fn id(&self) -> u64 {
        self.status.header().map_or(0, ResponseHeader::member_id)
    }

    /// The number of the member that leads, as this one knows; 0: it knows none.
    pub fn leader(&self) -> u64 {
        self.status.leader()
    }

    /// The size of its database, in bytes.
    pub fn db_bytes(&self) -> u64 {
        self.status.db_size().unsigned_abs()
    }

    /// All members, as this one knows them.
    ///
    /// # Errors
    /// In words.
    pub async fn list(&mut self) -> Result<Vec<Member>, String> {
        let listed = in_time(self.client.member_list()).await?;
        Ok(listed.members().iter().map(member).collect())
    }

    /// Adds a member without a vote, which other members will reach at that URL.
    ///
    /// # Errors
    /// In words: etcd refuses, or does not answer: then it may be done.
    pub async fn add_learner(&mut self, peer: &str) -> Result<(), String> {
        let options = MemberAddOptions::new().with_is_learner();
        in_time(self.client.member_add([peer.to_owned()], Some(options))).await.map(drop)
    }

    /// Gives a learner its vote.
    ///
    /// # Errors
    /// As [`Self::add_learner`]; it is not in step yet.
    pub async fn promote(&mut self, id: u64) -> Result<(), String> {
        in_time(self.client.member_promote(id)).await.map(drop)
    }

    /// Removes a member for good: it ends, and its data count no more.
    ///
    /// # Errors
    /// As [`Self::add_learner`]; too few would be left that answer.
    pub async fn remove(&mut self, id: u64) -> Result<(), String> {
        in_time(self.client.member_remove(id)).await.map(drop)
    }

    /// Gives all that it holds to `take`, piece by piece: what `etcdctl snapshot restore` makes a
    /// member of again.
    ///
    /// # Errors
    /// In words: it does not answer, or ends too soon; `take` failed.
    pub async fn snapshot(
        &mut self,
        mut take: impl AsyncFnMut(&[u8]) -> std::io::Result<()>,
    ) -> Result<(), String> {
        let mut pieces = in_time(self.client.snapshot()).await?;
        let mut remaining = 0;
        while let Some(piece) = in_time(pieces.message()).await? {
            take(piece.blob()).await.map_err(|e| e.to_string())?;
            remaining = piece.remaining_bytes();
        }
        match remaining {
            0 => Ok(()),
            more => Err(format!("the member ended {more} bytes too soon")),
        }
    }
}

async fn in_time<T>(request: impl Future<Output = Result<T, Error>>) -> Result<T, String> {
    match timeout(DEADLINE, request).await {
        Ok(done) => done.map_err(|e| words(&e)),
        Err(_) => Err(format!("no answer in {} s", DEADLINE.as_secs())),
    }
}

fn member(of: &etcd_client::Member) -> Member {
    Member {
        id: of.id(),
        name: of.name().to_owned(),
        peers: of.peer_urls().to_vec(),
        clients: of.client_urls().to_vec(),
        is_learner: of.is_learner(),
    }
}
