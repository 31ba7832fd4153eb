//! Which members etcd has, and changing it.
//!
//! What is refused (too many learners, one that is not in step, a change that would cost the
//! quorum) etcd itself decides: who asks may be wrong about how it is.

use crate::client::EtcdDirectory;
use crate::error::words;
use crate::members::{Link, deadline};
use atoll_world::directory::DirectoryError;
use etcd_client::{Error, MemberAddOptions};
use std::time::Duration;
use tokio::time::{Instant, timeout};

/// How long a member may take for each piece of a snapshot.
const PIECE_DEADLINE: Duration = Duration::from_secs(10);

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
        let member = |m: &etcd_client::Member| Member {
            id: m.id(),
            name: m.name().to_owned(),
            peers: m.peer_urls().to_vec(),
            clients: m.client_urls().to_vec(),
            is_learner: m.is_learner(),
        };
        Ok(listed.members().iter().map(member).collect())
    }

    /// Adds a member without a vote, which other members will reach at that URL.
    ///
    /// # Errors
    /// `Unavailable`: etcd refuses, or does not answer: then it may be done.
    pub async fn add_learner(&self, peer: &str) -> Result<(), DirectoryError> {
        let options = MemberAddOptions::new().with_is_learner();
        let add = async |mut client: etcd_client::Client| {
            client.member_add([peer.to_owned()], Some(options.clone())).await.map(drop)
        };
        self.change_members(add).await
    }

    /// Gives a learner its vote.
    ///
    /// # Errors
    /// As [`Self::add_learner`]; it is not in step yet.
    pub async fn promote(&self, id: u64) -> Result<(), DirectoryError> {
        let promote =
            async |mut client: etcd_client::Client| client.member_promote(id).await.map(drop);
        self.change_members(promote).await
    }

    /// Removes a member for good: it ends, and its data count no more.
    ///
    /// # Errors
    /// As [`Self::add_learner`].
    pub async fn remove_member(&self, id: u64) -> Result<(), DirectoryError> {
        let remove =
            async |mut client: etcd_client::Client| client.member_remove(id).await.map(drop);
        self.change_members(remove).await
    }

    /// Gives all that the member at that endpoint holds to `take`, piece by piece: what `etcdctl
    /// snapshot restore` makes a member of again.
    ///
    /// # Errors
    /// In words: the member does not answer, or ends too soon; `take` failed.
    pub async fn snapshot(
        &self,
        endpoint: &str,
        mut take: impl AsyncFnMut(&[u8]) -> std::io::Result<()>,
    ) -> Result<(), String> {
        let (mut client, _) = self.0.members.look_at(endpoint).await?;
        let late = |_| format!("{endpoint} does not answer ({} s)", PIECE_DEADLINE.as_secs());
        let mut pieces = timeout(PIECE_DEADLINE, client.snapshot())
            .await
            .map_err(late)?
            .map_err(|e| words(&e))?;
        let mut remaining = 0;
        loop {
            let piece = timeout(PIECE_DEADLINE, pieces.message()).await.map_err(late)?;
            let Some(piece) = piece.map_err(|e| words(&e))? else { break };
            take(piece.blob()).await.map_err(|e| e.to_string())?;
            remaining = piece.remaining_bytes();
        }
        match remaining {
            0 => Ok(()),
            more => Err(format!("{endpoint} ended {more} bytes too soon")),
        }
    }

    async fn change_members(
        &self,
        change: impl AsyncFnOnce(etcd_client::Client) -> Result<(), Error>,
    ) -> Result<(), DirectoryError> {
        let (members, deadline) = (&self.0.members, deadline());
        let link = members.link(deadline).await?;
        // Once: whether it was done, the next list shows.
        let changed = members.ask(&link, deadline, change(link.client())).await;
        changed.map_err(|meaning| meaning.of_read())
    }
}
