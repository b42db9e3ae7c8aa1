//! The effect on other lanes of a lane that dies and stalls again and again.
//!
//! The harness compares cost; an operator asks for the tail of the latency, so that is printed when the figure is done,
//! for both sides, from the lanes' own histograms, with the factor between them beside the one we state.

use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::Duration;

use tessera_contracts::prefix_map::LaneIndex;
use tessera_lanes::handler::Message;
use tessera_lanes::runtime::{RestartPolicy, Runtime, RuntimeConfig};
use tessera_lanes::telemetry::histogram::percentile;
use tessera_lanes::{Class, Context, Envelope, Handler, Kind};

use crate::harness::Pair;

/// The lane that fails, and how often.
const VICTIM: LaneIndex = LaneIndex(2);
const FAILS_EVERY: Duration = Duration::from_millis(20);
/// How long it stalls, and after how long that is a failure.
const STALL: Duration = Duration::from_millis(30);
const STALL_BOUND: Duration = Duration::from_millis(10);
/// The others' p99 is at most this many times that of peace, as in the test in virtual time.
const FACTOR_STATED: u64 = 3;
/// Questions in one operation, and under way at once.
const QUESTIONS: u32 = 1000;
const WINDOW: u32 = 32;

const QUESTION: Kind = Kind::new(1);
const ANSWER: Kind = Kind::new(2);

pub(super) fn figure() -> Pair {
    // The victim's last words are no news.
    let usual = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        if std::thread::current().name() != Some("lane-2") {
            usual(panic);
        }
    }));
    let both = Rc::new(Both { shaken: Lanes::start(true), peaceful: Lanes::start(false) });
    let (shaken, peaceful) = (both.clone(), both);
    Pair::new(
        move |times| (0..times).for_each(|_| shaken.shaken.exchange()),
        move |times| (0..times).for_each(|_| peaceful.peaceful.exchange()),
    )
}

struct Both {
    shaken: Lanes,
    peaceful: Lanes,
}

impl Drop for Both {
    fn drop(&mut self) {
        let (panics, stalls) = self.shaken.stop_failing();
        let ([calm_median, calm], [median, tail]) = (self.peaceful.percentiles(), self.shaken.percentiles());
        eprintln!(
            "lanes/chaos: p50 {median} us, p99 {tail} us of the queue between two lanes beside one that panicked {panics} \
             and stalled {stalls} times; p50 {calm_median} us, p99 {calm} us in peace: {:.2} times (stated: at most \
             {FACTOR_STATED})",
            tail as f64 / calm.max(1) as f64
        );
    }
}

struct Lanes {
    runtime: Arc<Runtime<Ask>>,
    stop: Arc<AtomicBool>,
    killer: Option<JoinHandle<(u64, u64)>>,
}

impl Lanes {
    fn start(chaos: bool) -> Self {
        let restart = RestartPolicy { healthy_after: Duration::ZERO, ..RestartPolicy::default() };
        let config = RuntimeConfig {
            lanes: 3,
            pin: false,
            spin: Duration::ZERO,
            stall_bound: if chaos { STALL_BOUND } else { RuntimeConfig::default().stall_bound },
            restart,
            ..RuntimeConfig::default()
        };
        let runtime = Arc::new(Runtime::start(config, |_| Asker::default()).expect("three lanes start"));
        let stop = Arc::new(AtomicBool::new(false));
        let (victims, stopping) = (runtime.clone(), stop.clone());
        let killer = chaos.then(|| {
            std::thread::spawn(move || {
                let (mut panics, mut stalls) = (0, 0);
                while !stopping.load(Ordering::Relaxed) {
                    panics += u64::from(victims.command(VICTIM, Ask::Die).is_ok());
                    std::thread::sleep(FAILS_EVERY);
                    stalls += u64::from(victims.command(VICTIM, Ask::Stall).is_ok());
                    std::thread::sleep(FAILS_EVERY + STALL);
                }
                (panics, stalls)
            })
        });
        Self { runtime, stop, killer }
    }

    fn exchange(&self) {
        let (to, done) = sync_channel(1);
        assert!(self.runtime.command(LaneIndex(0), Ask::Question(to)).is_ok(), "lane 0 is left alone");
        done.recv().expect("lanes that are left alone answer");
    }

    /// Ends the chaos and says how often the victim panicked and stalled.
    fn stop_failing(&mut self) -> (u64, u64) {
        self.stop.store(true, Ordering::Relaxed);
        self.killer.take().and_then(|killer| killer.join().ok()).unwrap_or_default()
    }

    /// The median and the p99, in microseconds, of what messages between the two lanes left alone waited.
    fn percentiles(&self) -> [u64; 2] {
        let counters = self.runtime.counters();
        let mut counts = counters[0].class(Class::Coordination).latency.counts();
        for (sum, other) in counts.iter_mut().zip(counters[1].class(Class::Coordination).latency.counts()) {
            *sum += other;
        }
        [500, 990].map(|permille| percentile(&counts, permille))
    }
}

enum Ask {
    Question(SyncSender<()>),
    Die,
    Stall,
}

/// Asks lane 1, which answers, until all questions are answered. Greets the victim now and then.
#[derive(Default)]
struct Asker {
    left: u32,
    open: u32,
    done: Option<SyncSender<()>>,
}

impl Asker {
    fn ask(&mut self, cx: &mut Context) {
        while self.left > 0 && self.open < WINDOW {
            let sent = cx.send(Envelope::to_lane(LaneIndex(1), Class::Coordination, QUESTION), &[3; 16]);
            assert!(sent.is_accepted(), "the window is smaller than the ring");
            let _ = cx.send(Envelope::to_lane(VICTIM, Class::Hints, QUESTION), &[]); // It may be dead.
            (self.left, self.open) = (self.left - 1, self.open + 1);
        }
    }
}

impl Handler for Asker {
    type Command = Ask;

    fn on_command(&mut self, cx: &mut Context, ask: Ask) {
        match ask {
            Ask::Question(done) => {
                (self.left, self.done) = (QUESTIONS, Some(done));
                self.ask(cx);
            }
            Ask::Die => panic!("as it was told"),
            Ask::Stall => std::thread::sleep(STALL),
        }
    }

    fn on_message(&mut self, cx: &mut Context, message: Message<'_>) {
        if message.envelope.class == Class::Hints {
            return;
        }
        if message.envelope.kind == QUESTION {
            let sent = cx.send(Envelope::to_lane(message.envelope.src, Class::Coordination, ANSWER), message.payload);
            assert!(sent.is_accepted(), "the window is smaller than the ring");
            return;
        }
        self.open -= 1;
        self.ask(cx);
        if self.open == 0
            && let Some(done) = self.done.take()
        {
            let _ = done.send(());
        }
    }
}
