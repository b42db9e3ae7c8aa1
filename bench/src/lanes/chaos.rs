//! What lanes that are left alone feel of one that dies again and again.
//!
//! The harness compares cost; what an operator asks is the tail of the latency, so that is printed when the figure is done,
//! for both sides, from the lanes' own histograms.

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

/// The lane that dies, and how often.
const VICTIM: LaneIndex = LaneIndex(2);
const DIES_EVERY: Duration = Duration::from_millis(20);
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
    let (shaken, peaceful) = (Lanes::start(true), Lanes::start(false));
    Pair::new(
        move |times| (0..times).for_each(|_| shaken.exchange()),
        move |times| (0..times).for_each(|_| peaceful.exchange()),
    )
}

struct Lanes {
    runtime: Arc<Runtime<Ask>>,
    stop: Arc<AtomicBool>,
    killer: Option<JoinHandle<u64>>,
}

impl Lanes {
    fn start(chaos: bool) -> Self {
        let restart = RestartPolicy { healthy_after: Duration::ZERO, ..RestartPolicy::default() };
        let config = RuntimeConfig { lanes: 3, pin: false, spin: Duration::ZERO, restart, ..RuntimeConfig::default() };
        let runtime = Arc::new(Runtime::start(config, |_| Asker::default()).expect("three lanes start"));
        let stop = Arc::new(AtomicBool::new(false));
        let (victims, stopping) = (runtime.clone(), stop.clone());
        let killer = chaos.then(|| {
            std::thread::spawn(move || {
                let mut deaths = 0;
                while !stopping.load(Ordering::Relaxed) {
                    deaths += u64::from(victims.command(VICTIM, Ask::Die).is_ok());
                    std::thread::sleep(DIES_EVERY);
                }
                deaths
            })
        });
        Self { runtime, stop, killer }
    }

    fn exchange(&self) {
        let (to, done) = sync_channel(1);
        assert!(self.runtime.command(LaneIndex(0), Ask::Question(to)).is_ok(), "lane 0 is left alone");
        done.recv().expect("lanes that are left alone answer");
    }
}

impl Drop for Lanes {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        let deaths = self.killer.take().and_then(|killer| killer.join().ok());
        let counters = self.runtime.counters();
        let mut counts = counters[0].class(Class::Coordination).latency.counts();
        for (sum, other) in counts.iter_mut().zip(counters[1].class(Class::Coordination).latency.counts()) {
            *sum += other;
        }
        let [median, tail] = [500, 990].map(|permille| percentile(&counts, permille));
        let what = deaths.map_or("in peace".to_owned(), |deaths| format!("beside a lane that died {deaths} times"));
        eprintln!("lanes/chaos: p50 {median} us, p99 {tail} us of the queue between two lanes {what}");
    }
}

enum Ask {
    Question(SyncSender<()>),
    Die,
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
