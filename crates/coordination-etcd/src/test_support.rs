//! Real etcd servers for tests and benches: started on free loopback ports, killed and cleaned up on drop.
//!
//! The binary is `$TESSERA_ETCD`, or what `cargo xtask check` unpacked under `target/tools`, or `etcd` on the path. Where
//! none is found the tests fail and say so: a suite that skips itself proves nothing.

mod certificates;
mod gated;
mod network;

use core::time::Duration;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Instant;

pub use self::certificates::Certificates;
pub use self::gated::{Gate, Gated};
use self::network::Network;
use crate::config::EtcdConfig;

/// A cluster of real etcd members on this machine.
#[derive(Debug)]
pub struct EtcdCluster {
    members: Vec<Member>,
    directory: PathBuf,
    /// Goes after its members.
    network: Option<Network>,
}

#[derive(Debug)]
struct Member {
    process: Option<Child>,
    client_address: SocketAddr,
    arguments: Vec<String>,
    log: PathBuf,
    scheme: &'static str,
    namespace: Option<String>,
}

/// How a cluster is started.
#[derive(Clone, Debug, Default)]
pub struct ClusterOptions {
    /// Further flags for every member, such as `--cert-file=…`.
    pub flags: Vec<String>,
    /// Whether clients speak TLS (the flags must say the same to the server).
    pub tls: bool,
    /// Whether each member gets a network namespace of its own, so that it can be cut off.
    pub apart: bool,
}

impl EtcdCluster {
    /// Starts a cluster of `members` and waits until each is healthy.
    ///
    /// # Panics
    /// If there is no etcd binary, or the cluster does not come up.
    #[must_use]
    pub fn start(members: usize) -> Self {
        Self::start_with(members, &ClusterOptions::default())
    }

    /// Starts a cluster with options of one's own.
    ///
    /// # Panics
    /// If there is no etcd binary, or the cluster does not come up.
    #[must_use]
    pub fn start_with(members: usize, options: &ClusterOptions) -> Self {
        let binary = etcd_binary().unwrap_or_else(|| {
            panic!(
                "no etcd server found: set TESSERA_ETCD to one, put `etcd` on the path, or run `cargo xtask check`, \
                 which unpacks one under target/tools"
            )
        });
        let mut last = String::new();
        // Another process may take a port between our choosing it and etcd's binding it: then choose again.
        for _ in 0..3 {
            match Self::try_start(&binary, members, options) {
                Ok(cluster) => return cluster,
                Err(problem) => last = problem,
            }
        }
        panic!("etcd ({}) did not become healthy: {last}", binary.display());
    }

    /// One server that all tests of a process share, each in a namespace of its own; stopped with its last user.
    ///
    /// # Panics
    /// As [`EtcdCluster::start`].
    #[must_use]
    pub fn shared() -> Arc<Self> {
        static SHARED: Mutex<Weak<EtcdCluster>> = Mutex::new(Weak::new());
        let mut shared = SHARED.lock().unwrap_or_else(PoisonError::into_inner);
        shared.upgrade().unwrap_or_else(|| {
            let started = Arc::new(Self::start(1));
            *shared = Arc::downgrade(&started);
            started
        })
    }

    /// Where clients connect.
    #[must_use]
    pub fn endpoints(&self) -> Vec<String> {
        self.members.iter().map(|member| format!("{}://{}", member.scheme, member.client_address)).collect()
    }

    /// A configuration for this cluster in a namespace that no other caller of this process was given.
    #[must_use]
    pub fn config(&self) -> EtcdConfig {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let namespace = format!("test-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        EtcdConfig { endpoints: self.endpoints(), namespace, ..EtcdConfig::default() }
    }

    /// The cluster's own folder, removed with it: a place for certificates and the like.
    #[must_use]
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// Kills a member as a power cut would.
    pub fn kill(&mut self, member: usize) {
        if let Some(mut process) = self.members[member].process.take() {
            // It may have died by itself; either way it is reaped and gone.
            let _ = process.kill();
            let _ = process.wait();
        }
    }

    /// Starts a killed member again on its old data, and waits until it is healthy.
    ///
    /// # Panics
    /// If it does not come up.
    pub fn restart(&mut self, member: usize) {
        let binary = etcd_binary().expect("the cluster was started from it");
        let member = &mut self.members[member];
        assert!(member.process.is_none(), "only a killed member can be restarted");
        member.spawn(&binary).expect("the binary started before");
        member.wait_healthy().unwrap_or_else(|problem| panic!("the restarted member: {problem}"));
    }

    /// Freezes a member: it keeps its connections and answers nothing.
    pub fn pause(&self, member: usize) {
        self.signal(member, "STOP");
    }

    /// Starts a cluster whose members can be cut off, each in a network namespace of its own.
    ///
    /// # Errors
    /// Why this machine does not let us: it takes root, or the capabilities to make namespaces.
    ///
    /// # Panics
    /// If there is no etcd binary, or the cluster does not come up.
    pub fn start_apart(members: usize) -> Result<Self, String> {
        drop(Network::new(1)?);
        Ok(Self::start_with(members, &ClusterOptions { apart: true, ..ClusterOptions::default() }))
    }

    /// Cuts a member off the network: it runs on, and nobody hears of it.
    ///
    /// # Panics
    /// If the cluster was not started apart.
    pub fn cut_off(&self, member: usize) {
        self.switch(member, false);
    }

    /// Puts a member back on the network.
    ///
    /// # Panics
    /// If the cluster was not started apart.
    pub fn reconnect(&self, member: usize) {
        self.switch(member, true);
    }

    fn switch(&self, member: usize, connected: bool) {
        let network = self.network.as_ref().expect("started apart");
        network.connect(member, connected).unwrap_or_else(|problem| panic!("{problem}"));
    }

    /// Switches authentication on: a user `root` with the password `r`, and one `fleet` with the password `f` that may touch
    /// keys below `fleet/` and nothing else.
    ///
    /// # Panics
    /// If a member does not take the change, or there is no `curl`.
    pub fn enable_users(&self) {
        // Base64 of "fleet/" and of "fleet0", the end of that prefix.
        let prefix = r#"{"name":"fleet","perm":{"permType":"READWRITE","key":"ZmxlZXQv","range_end":"ZmxlZXQw"}}"#;
        for (path, body) in [
            ("user/add", r#"{"name":"root","password":"r"}"#),
            ("user/add", r#"{"name":"fleet","password":"f"}"#),
            ("role/add", r#"{"name":"fleet"}"#),
            ("role/grant", prefix),
            ("user/grant", r#"{"user":"fleet","role":"fleet"}"#),
            ("user/grant", r#"{"user":"root","role":"root"}"#),
            ("enable", "{}"),
        ] {
            // Through the JSON gateway: the client itself needs no user management.
            let url = format!("{}/v3/auth/{path}", self.endpoints()[0]);
            let output = Command::new("curl").args(["-sS", "-f", "-X", "POST", "-d", body, &url]).output();
            let output = output.unwrap_or_else(|error| panic!("curl: {error}"));
            assert!(output.status.success(), "{path}: {}", String::from_utf8_lossy(&output.stderr));
        }
    }

    /// CPU time that the members have used since each was started.
    #[must_use]
    pub fn cpu_time(&self) -> Duration {
        self.members.iter().filter_map(Member::cpu_time).sum()
    }

    /// Lets a frozen member go on.
    pub fn resume(&self, member: usize) {
        self.signal(member, "CONT");
    }

    fn signal(&self, member: usize, signal: &str) {
        let process = self.members[member].process.as_ref().expect("only a running member can be signalled");
        let status = Command::new("kill").arg(format!("-{signal}")).arg(process.id().to_string()).status();
        assert!(status.is_ok_and(|status| status.success()), "kill -{signal} failed");
    }

    fn try_start(binary: &Path, count: usize, options: &ClusterOptions) -> Result<Self, String> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!("tessera-etcd-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let directory = std::env::temp_dir().join(name);
        fs::create_dir_all(&directory).map_err(|error| format!("{}: {error}", directory.display()))?;
        let network = if options.apart { Some(Network::new(count)?) } else { None };
        let mut cluster = Self { members: Vec::new(), directory, network };
        let address = |member: usize| match &cluster.network {
            Some(network) => network.address(member),
            None => IpAddr::V4(Ipv4Addr::LOCALHOST),
        };
        let addresses: Vec<IpAddr> = (0..count).map(address).collect();

        let ports = free_ports(count * 2).map_err(|error| format!("no free port: {error}"))?;
        let (client_ports, peer_ports) = ports.split_at(count);
        let peers: Vec<String> = peer_ports
            .iter()
            .enumerate()
            .map(|(index, port)| format!("member{index}=http://{}:{port}", addresses[index]))
            .collect();
        let scheme = if options.tls { "https" } else { "http" };
        for index in 0..count {
            let host = addresses[index];
            let client = format!("{scheme}://{host}:{}", client_ports[index]);
            let peer = format!("http://{host}:{}", peer_ports[index]);
            let data = cluster.directory.join(format!("member{index}"));
            let mut arguments = vec![
                format!("--name=member{index}"),
                format!("--data-dir={}", data.display()),
                format!("--listen-client-urls={client}"),
                format!("--advertise-client-urls={client}"),
                format!("--listen-peer-urls={peer}"),
                format!("--initial-advertise-peer-urls={peer}"),
                format!("--initial-cluster={}", peers.join(",")),
                "--initial-cluster-state=new".to_owned(),
                "--logger=zap".to_owned(),
                "--log-level=error".to_owned(),
                "--pre-vote=true".to_owned(),
            ];
            arguments.extend(options.flags.iter().cloned());
            let mut member = Member {
                process: None,
                client_address: SocketAddr::from((host, client_ports[index])),
                arguments,
                log: cluster.directory.join(format!("member{index}.log")),
                scheme,
                namespace: cluster.network.as_ref().map(|network| network.namespace(index)),
            };
            member.spawn(binary).map_err(|error| format!("{}: {error}", binary.display()))?;
            cluster.members.push(member);
        }
        for member in &mut cluster.members {
            member.wait_healthy()?;
        }
        Ok(cluster)
    }
}

impl Drop for EtcdCluster {
    fn drop(&mut self) {
        for member in 0..self.members.len() {
            self.kill(member);
        }
        // What cannot be removed lies in the temporary folder; nothing depends on it.
        let _ = fs::remove_dir_all(&self.directory);
    }
}

impl Member {
    fn spawn(&mut self, binary: &Path) -> io::Result<()> {
        let log = File::options().create(true).append(true).open(&self.log)?;
        let mut command = match &self.namespace {
            // It becomes the server rather than start it, so the process is the server's.
            Some(namespace) => {
                let mut within = Command::new("ip");
                within.args(["netns", "exec", namespace]).arg(binary);
                within
            }
            None => Command::new(binary),
        };
        let process = command
            .args(&self.arguments)
            .env("ETCD_UNSUPPORTED_ARCH", std::env::consts::ARCH)
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()?;
        self.process = Some(process);
        Ok(())
    }

    /// From the kernel's accounts, in hundredths of a second; `None` where there are none.
    fn cpu_time(&self) -> Option<Duration> {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.process.as_ref()?.id())).ok()?;
        let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
        let ticks: u64 = fields.get(11)?.parse::<u64>().ok()? + fields.get(12)?.parse::<u64>().ok()?;
        Some(Duration::from_millis(ticks * 10))
    }

    fn wait_healthy(&mut self) -> Result<(), String> {
        let started = Instant::now();
        while started.elapsed() < Duration::from_secs(120) {
            let exited = self.process.as_mut().and_then(|process| process.try_wait().ok().flatten());
            if let Some(status) = exited {
                let log = fs::read_to_string(&self.log).unwrap_or_default();
                let tail: String = log.lines().rev().take(5).collect::<Vec<_>>().join("\n");
                return Err(format!("it exited with {status}: {tail}"));
            }
            // A TLS server is not asked for its health over plain HTTP: that its port is open has to do.
            let healthy = if self.scheme == "https" {
                TcpStream::connect_timeout(&self.client_address, Duration::from_secs(1)).is_ok()
            } else {
                self.says_healthy().unwrap_or(false)
            };
            if healthy {
                return Ok(());
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Err("no healthy answer within 120 s".to_owned())
    }

    fn says_healthy(&self) -> io::Result<bool> {
        let mut stream = TcpStream::connect_timeout(&self.client_address, Duration::from_secs(1))?;
        stream.set_read_timeout(Some(Duration::from_secs(2)))?;
        stream.write_all(b"GET /health HTTP/1.0\r\nHost: etcd\r\n\r\n")?;
        let mut answer = String::new();
        stream.take(4096).read_to_string(&mut answer)?;
        Ok(answer.contains("\"health\":\"true\""))
    }
}

/// The etcd to test with, if there is one.
#[must_use]
pub fn etcd_binary() -> Option<PathBuf> {
    if let Some(named) = std::env::var_os("TESSERA_ETCD") {
        return Some(PathBuf::from(named));
    }
    let tools = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/tools");
    let unpacked = ["etcd", "usr/bin/etcd", "etcd/etcd", "etcd/usr/bin/etcd"].map(|path| tools.join(path));
    let on_path = std::env::var_os("PATH").into_iter().flat_map(|paths| {
        let folders: Vec<PathBuf> = std::env::split_paths(&paths).collect();
        folders.into_iter().map(|folder| folder.join("etcd"))
    });
    unpacked.into_iter().chain(on_path).find(|candidate| candidate.is_file())
}

/// Ports that were free a moment ago: held together while choosing, so that they differ.
fn free_ports(count: usize) -> io::Result<Vec<u16>> {
    let held: Vec<TcpListener> = (0..count).map(|_| TcpListener::bind("127.0.0.1:0")).collect::<io::Result<_>>()?;
    held.iter().map(|listener| Ok(listener.local_addr()?.port())).collect()
}
