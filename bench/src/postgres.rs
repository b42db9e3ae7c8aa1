//! A PostgreSQL of our own, for figures beside a user's alternative.
//!
//! Started from the machine's installation, on a socket in a temporary folder, and spoken to in the simple query protocol: a
//! driver would bring more code into this program than the few lines that it takes.

use std::io;
use std::os::unix::fs::chown;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;

/// The user the server runs as where we are root: it refuses to be root itself.
const NOBODY: u32 = 65_534;

/// A running server; ended and removed when dropped.
pub(crate) struct Postgres {
    process: Child,
    folder: PathBuf,
}

/// Where the programs of PostgreSQL are, if they are.
fn program(name: &str) -> Option<PathBuf> {
    let on_path =
        std::env::var_os("PATH").into_iter().flat_map(|paths| std::env::split_paths(&paths).collect::<Vec<_>>());
    let packaged = std::fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let packaged = packaged.map(|version| version.path().join("bin"));
    packaged.chain(on_path).map(|folder| folder.join(name)).find(|program| program.is_file())
}

/// Whether there is a PostgreSQL to start.
pub(crate) fn is_there() -> bool {
    program("initdb").is_some() && program("postgres").is_some()
}

impl Postgres {
    /// Starts a server with its defaults: durable with every commit.
    pub(crate) fn start() -> Result<Self, String> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!("tessera-pg-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let folder = std::env::temp_dir().join(name);
        let told = |error: io::Error| format!("{}: {error}", folder.display());
        std::fs::create_dir_all(&folder).map_err(told)?;
        let root = rustix::process::geteuid().is_root();
        if root {
            chown(&folder, Some(NOBODY), Some(NOBODY)).map_err(told)?;
        }
        let data = folder.join("data");
        let made = run_as(root, &program("initdb").ok_or("no initdb")?)
            .args(["-A", "trust", "-U", "postgres", "-D"])
            .arg(&data)
            .current_dir(&folder)
            .output()
            .map_err(told)?;
        if !made.status.success() {
            return Err(format!("initdb: {}", String::from_utf8_lossy(&made.stderr)));
        }
        let process = run_as(root, &program("postgres").ok_or("no postgres")?)
            .arg("-D")
            .arg(&data)
            .arg("-k")
            .arg(&folder)
            .args(["-c", "listen_addresses=", "-c", "max_connections=100"])
            .current_dir(&folder)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .map_err(told)?;
        Ok(Self { process, folder })
    }

    fn socket(&self) -> PathBuf {
        self.folder.join(".s.PGSQL.5432")
    }

    /// A connection; waits for the server to come up.
    pub(crate) async fn connect(&self) -> Result<Connection, String> {
        let started = Instant::now();
        loop {
            match Connection::open(&self.socket()).await {
                Ok(connection) => return Ok(connection),
                Err(error) if started.elapsed() > Duration::from_secs(30) => return Err(error.to_string()),
                Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
            }
        }
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        // SIGINT asks it to end at once and tidily; leftovers lie in the temporary folder.
        if let Some(pid) = rustix::process::Pid::from_raw(self.process.id().cast_signed()) {
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::INT);
        }
        let _ = self.process.wait();
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

fn run_as(root: bool, program: &Path) -> Command {
    use std::os::unix::process::CommandExt;
    let mut command = Command::new(program);
    if root {
        command.uid(NOBODY).gid(NOBODY);
    }
    command
}

/// One session with the server.
pub(crate) struct Connection {
    stream: UnixStream,
    buffer: Vec<u8>,
}

impl Connection {
    async fn open(socket: &Path) -> io::Result<Self> {
        let mut connection = Self { stream: UnixStream::connect(socket).await?, buffer: Vec::new() };
        let names = b"user\0postgres\0database\0postgres\0\0";
        let mut hello = ((names.len() + 8) as u32).to_be_bytes().to_vec();
        hello.extend(196_608u32.to_be_bytes());
        hello.extend(names);
        connection.stream.write_all(&hello).await?;
        connection.answer().await.map(|_| connection)
    }

    /// Runs statements; the first column of the last row that came back.
    pub(crate) async fn query(&mut self, sql: &str) -> io::Result<Option<String>> {
        let mut message = vec![b'Q'];
        message.extend(((sql.len() + 5) as u32).to_be_bytes());
        message.extend(sql.as_bytes());
        message.push(0);
        self.stream.write_all(&message).await?;
        self.answer().await
    }

    /// Reads until the server is ready for more.
    async fn answer(&mut self) -> io::Result<Option<String>> {
        let mut value = None;
        loop {
            let kind = self.stream.read_u8().await?;
            let length = self.stream.read_u32().await?.saturating_sub(4) as usize;
            self.buffer.resize(length, 0);
            self.stream.read_exact(&mut self.buffer).await?;
            match kind {
                b'Z' => return Ok(value),
                b'E' => return Err(io::Error::other(String::from_utf8_lossy(&self.buffer).replace('\0', " "))),
                // A row: how many columns, then each with its length before it.
                b'D' => value = self.buffer.get(6..).map(|column| String::from_utf8_lossy(column).into_owned()),
                _ => {}
            }
        }
    }
}
