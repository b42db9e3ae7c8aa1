//! The node's side of the socket.

use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, PermissionsExt as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::JoinHandle;

use serde_json::json;

use super::execute::execute;
use crate::node::Node;

/// Callers served at once; more wait for a place until one is free.
const CALLERS_MAX: usize = 64;

/// A node's socket; dropping it removes it.
#[derive(Debug)]
pub struct Server {
    path: PathBuf,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    /// Serves `node` at `path`. The folder is made if need be, for its owner only.
    pub fn start(node: &Node, path: &Path) -> io::Result<Self> {
        if let Some(dir) = path.parent() {
            DirBuilder::new().recursive(true).mode(0o700).create(dir)?;
            // A folder that somebody else made in a shared place is somebody else's to watch.
            let meta = fs::metadata(dir)?;
            if meta.uid() != rustix::process::getuid().as_raw() || meta.permissions().mode() & 0o022 != 0 {
                let why = format!("the folder {} can be written by others", dir.display());
                return Err(io::Error::new(io::ErrorKind::PermissionDenied, why));
            }
        }
        if UnixStream::connect(path).is_ok() {
            return Err(io::Error::new(io::ErrorKind::AddrInUse, "another node serves this socket"));
        }
        // Nobody answers: left behind by a node that was killed.
        let _ = fs::remove_file(path);
        let listener = UnixListener::bind(path)?;
        fs::set_permissions(path, fs::Permissions::from_mode(0o600))?;
        let stop = Arc::new(AtomicBool::new(false));
        let (stopping, node, callers) = (stop.clone(), node.clone(), Arc::new(AtomicUsize::new(0)));
        let thread = std::thread::Builder::new().name("control".to_owned()).spawn(move || {
            for stream in listener.incoming() {
                if stopping.load(Ordering::Relaxed) {
                    return;
                }
                let Ok(stream) = stream else { continue };
                while callers.load(Ordering::Relaxed) >= CALLERS_MAX && !stopping.load(Ordering::Relaxed) {
                    std::thread::sleep(std::time::Duration::from_millis(5));
                }
                callers.fetch_add(1, Ordering::Relaxed);
                let (node, callers) = (node.clone(), callers.clone());
                std::thread::spawn(move || {
                    // A caller that goes away has no more questions.
                    let _ = serve(&node, stream);
                    callers.fetch_sub(1, Ordering::Relaxed);
                });
            }
        })?;
        Ok(Self { path: path.to_owned(), stop, thread: Some(thread) })
    }

    /// Where it is.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        let woken = UnixStream::connect(&self.path).is_ok();
        if let Some(thread) = self.thread.take()
            && woken
        {
            let _ = thread.join();
        }
        let _ = fs::remove_file(&self.path);
    }
}

fn serve(node: &Node, mut stream: UnixStream) -> io::Result<()> {
    while let Some((request, body)) = super::read(&mut stream)? {
        let progress = stream.try_clone()?;
        let progress = std::sync::Mutex::new(progress);
        let told = Arc::new(move |done: usize, total: usize| {
            if let Ok(mut stream) = progress.lock() {
                let _ = super::write(&mut *stream, &json!({ "progress": [done, total] }), &[]);
            }
        });
        match execute(node, &request, body, Some(told)) {
            Ok((answer, body)) => super::write(&mut stream, &json!({ "ok": answer }), &body)?,
            Err(refused) => super::write(&mut stream, &refused.to_json(), &[])?,
        }
    }
    Ok(())
}
