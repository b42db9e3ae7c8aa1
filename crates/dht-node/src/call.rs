//! A call to a node that is under way: await it on any executor, or wait for it on a thread.
//!
//! Nothing here needs a runtime: lanes do the work and wake the caller. A call starts when it is first polled; dropping it
//! before its end cancels it.

use std::fmt;
use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;

use crate::oneshot::{self, lock};

/// A call under way. It does nothing until it is awaited or waited for.
#[must_use = "a call does nothing until it is awaited or waited for"]
pub struct Call<T>(Pin<Box<dyn Future<Output = T> + Send>>);

impl<T> Call<T> {
    pub(crate) fn new(future: impl Future<Output = T> + Send + 'static) -> Self {
        Self(Box::pin(future))
    }

    /// Does blocking work on a thread of its own; on the caller's if the system has none to spare.
    pub(crate) fn elsewhere<W: FnOnce() -> T + Send + 'static>(work: W) -> Self
    where
        T: Send + 'static,
    {
        Self::new(async move {
            let (done, answer) = oneshot::channel();
            let work = Arc::new(Mutex::new(Some((work, done))));
            let taken = work.clone();
            let act = move || {
                let taken = lock(&taken).take();
                if let Some((work, done)) = taken {
                    done.send(work());
                }
            };
            if std::thread::Builder::new().name("node-call".to_owned()).spawn(act.clone()).is_err() {
                act();
            }
            answer.await.expect("what was done elsewhere did not panic")
        })
    }

    /// Blocks this thread until the call is done.
    pub fn wait(self) -> T {
        block_on(self.0)
    }
}

impl<T> Future for Call<T> {
    type Output = T;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<T> {
        self.0.as_mut().poll(cx)
    }
}

impl<T> fmt::Debug for Call<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Call")
    }
}

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Runs a future on this thread, which sleeps while there is nothing to do.
pub(crate) fn block_on<T>(future: impl Future<Output = T>) -> T {
    let mut future = pin!(future);
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    let mut cx = Context::from_waker(&waker);
    loop {
        if let Poll::Ready(value) = future.as_mut().poll(&mut cx) {
            return value;
        }
        std::thread::park();
    }
}
