//! This host's end of the network, for one of its shards: peers over TCP, and the other shards of
//! the process.

use crate::limits::BACKLOG;
use crate::siblings::{Arrival, Inbox, SiblingConn, Siblings};
use crate::tcp::TcpConn;
use crate::tls::TlsEnd;
use atoll_format::id::{ClusterId, HostId};
use atoll_trust::PeerTls;
use atoll_world::{Conn, Lane, Net, Packet};
use std::cell::RefCell;
use std::future::poll_fn;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::task::{Context, Poll};
use tokio::net::{TcpListener, TcpSocket, TcpStream};

/// A shard's end of the network. Clones are the same.
#[derive(Clone)]
pub struct RealNet(Rc<Listeners>);

struct Listeners {
    listeners: Vec<TcpListener>,
    addresses: Vec<SocketAddr>,
    inbox: Inbox,
    /// None: peers are believed to be who they say they are.
    tls: Option<PeerTls>,
}

impl RealNet {
    /// Listens at all of `addresses`, so that peers can connect when this returns. Connections out
    /// come from the same IP address as one of them, if that is a definite one. For the only shard
    /// of a process.
    ///
    /// # Errors
    /// One of them cannot be listened at; names it.
    pub fn bind(addresses: &[SocketAddr]) -> io::Result<Self> {
        Self::bind_for(addresses, &Siblings::of(1), None)
    }

    /// The same, for shard 0 of a process with more of them: it listens for all. `tls`: for all
    /// connections with peers.
    ///
    /// # Errors
    /// As [`RealNet::bind`].
    pub fn bind_for(
        addresses: &[SocketAddr],
        siblings: &Siblings,
        tls: Option<PeerTls>,
    ) -> io::Result<Self> {
        let mut listeners = Vec::new();
        for &address in addresses {
            let listen = || {
                let socket = socket_for(address)?;
                // A restart must not wait for the connections of the last run to time out.
                socket.set_reuseaddr(true)?;
                socket.bind(address)?;
                socket.listen(BACKLOG)
            };
            let listener = listen().map_err(|e| {
                io::Error::new(e.kind(), format!("cannot listen for peers at {address}: {e}"))
            })?;
            listeners.push(listener);
        }
        let addresses = listeners.iter().map(TcpListener::local_addr).collect::<Result<_, _>>()?;
        Ok(Self(Rc::new(Listeners { listeners, addresses, inbox: siblings.inbox(0), tls })))
    }

    /// For another shard of a process whose shard 0 listens at those addresses.
    ///
    /// # Panics
    /// `siblings` has no such shard, or it has an end of the network already.
    pub fn of_shard(
        shard: u8,
        addresses: &[SocketAddr],
        siblings: &Siblings,
        tls: Option<PeerTls>,
    ) -> Self {
        let (listeners, addresses) = (Vec::new(), addresses.to_vec());
        Self(Rc::new(Listeners { listeners, addresses, inbox: siblings.inbox(shard), tls }))
    }

    /// Where its process listens, with the ports that the system chose for port 0.
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.0.addresses
    }

    /// The address that connections to `to` come from.
    fn source(&self, to: SocketAddr) -> Option<IpAddr> {
        let mine = self.0.addresses.iter().map(SocketAddr::ip);
        let mut fitting = mine.filter(|ip| ip.is_ipv4() == to.is_ipv4() && !ip.is_unspecified());
        fitting.find(|ip| ip.is_loopback() == to.ip().is_loopback())
    }

    async fn connect_to(&self, to: SocketAddr) -> io::Result<TcpStream> {
        let socket = socket_for(to)?;
        if let Some(ip) = self.source(to) {
            socket.bind(SocketAddr::new(ip, 0))?;
        }
        socket.connect(to).await
    }

    fn poll_accept(&self, cx: &mut Context<'_>) -> Poll<io::Result<RealConn>> {
        if let Poll::Ready(arrival) = self.0.inbox.poll_arrival(cx) {
            return Poll::Ready(RealConn::arrived(arrival));
        }
        for listener in &self.0.listeners {
            if let Poll::Ready(accepted) = listener.poll_accept(cx) {
                let tls = self.0.tls.as_ref();
                return Poll::Ready(accepted.and_then(|(stream, _)| {
                    RealConn::over(stream, tls.map(TlsEnd::accept).transpose()?)
                }));
            }
        }
        Poll::Pending
    }
}

fn socket_for(address: SocketAddr) -> io::Result<TcpSocket> {
    if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }
}

impl Net for RealNet {
    type Conn = RealConn;

    async fn connect(&self, endpoint: &str, _lane: Lane) -> io::Result<RealConn> {
        let mut last = io::Error::new(
            io::ErrorKind::NotFound,
            format!("'{endpoint}' is the name of no host and port"),
        );
        for to in tokio::net::lookup_host(endpoint).await? {
            match self.connect_to(to).await {
                Ok(stream) => {
                    let tls = self.0.tls.as_ref().map(TlsEnd::connect).transpose()?;
                    return RealConn::over(stream, tls);
                }
                Err(e) => last = io::Error::new(e.kind(), format!("{to}: {e}")),
            }
        }
        Err(last)
    }

    async fn connect_shard(&self, shard: u8, _lane: Lane) -> io::Result<RealConn> {
        Ok(RealConn(Way::Sibling(self.0.inbox.connect(shard)?)))
    }

    fn hand_over(&self, conn: &RealConn, first: Packet, shard: u8) -> io::Result<()> {
        match &conn.0 {
            Way::Tcp { conn, .. } => {
                let (socket, tls) = conn.hand_over()?;
                self.0.inbox.hand_over(socket, tls, first, shard)
            }
            // It names the shard that it connects to.
            Way::Sibling(_) => Err(io::ErrorKind::InvalidInput.into()),
        }
    }

    async fn accept(&self) -> io::Result<RealConn> {
        poll_fn(|cx| self.poll_accept(cx))
            .await
            .inspect_err(|e| tracing::warn!("cannot accept a connection of a peer: {e}"))
    }
}

/// A connection to a peer, or to another shard of this process.
#[derive(Clone)]
pub struct RealConn(Way);

#[derive(Clone)]
enum Way {
    Tcp {
        conn: TcpConn,
        /// What the shard that accepted it has read of it, until that is taken.
        first: Rc<RefCell<Option<Box<Packet>>>>,
    },
    Sibling(SiblingConn),
}

impl RealConn {
    fn over(stream: TcpStream, tls: Option<TlsEnd>) -> io::Result<Self> {
        Ok(Self(Way::Tcp { conn: TcpConn::new(stream, tls)?, first: Rc::default() }))
    }

    fn arrived(arrival: Arrival) -> io::Result<Self> {
        match arrival {
            Arrival::Sibling(conn) => Ok(Self(Way::Sibling(conn.into()))),
            Arrival::Handed { socket, tls, first } => {
                let conn = TcpConn::new(TcpStream::from_std(socket)?, tls.map(|tls| *tls))?;
                Ok(Self(Way::Tcp { conn, first: Rc::new(RefCell::new(Some(first))) }))
            }
        }
    }
}

impl Conn for RealConn {
    fn send(&self, packet: Packet) -> io::Result<()> {
        match &self.0 {
            Way::Tcp { conn, .. } => conn.send(packet),
            Way::Sibling(conn) => conn.send(packet),
        }
    }

    async fn recv(&self) -> io::Result<Packet> {
        // One future around both: a packet is large to be passed from one to the next.
        poll_fn(|cx| match &self.0 {
            Way::Tcp { conn, first } => match first.borrow_mut().take() {
                Some(first) => Poll::Ready(Ok(*first)),
                None => conn.poll_recv(cx),
            },
            Way::Sibling(conn) => conn.poll_recv(cx),
        })
        .await
    }

    fn close(&self) {
        match &self.0 {
            Way::Tcp { conn, .. } => conn.close(),
            Way::Sibling(conn) => conn.close(),
        }
    }

    fn peer(&self) -> String {
        match &self.0 {
            Way::Tcp { conn, .. } => conn.peer(),
            Way::Sibling(conn) => conn.peer(),
        }
    }

    fn proven(&self) -> Option<(ClusterId, HostId)> {
        match &self.0 {
            Way::Tcp { conn, .. } => conn.proven(),
            // Of this process.
            Way::Sibling(_) => None,
        }
    }
}
