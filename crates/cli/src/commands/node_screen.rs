//! A terminal that is drawn again and again, and is as it was before when it is done with.

use std::cell::RefCell;
use std::io::{IsTerminal as _, Write as _};
use std::os::fd::AsFd as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::termios::{LocalModes, OptionalActions, Termios, tcgetattr, tcgetwinsize, tcsetattr};
use signal_hook::consts::SIGTSTP;

use super::node::is_ignored;

/// How late a signal is seen.
const SIGNAL_SEEN_EVERY: Duration = Duration::from_millis(50);

/// The second screen of the terminal, without a cursor. The first is back when this is dropped, and while the program is suspended.
pub(crate) struct Screen {
    /// How keys were read before; `None` if they do not come from a terminal.
    keys: Option<Termios>,
    /// Ctrl-Z was pressed.
    suspend: Arc<AtomicBool>,
    /// The last frame drawn.
    drawn: RefCell<String>,
}

impl Screen {
    /// Takes the terminal over; `None` if standard output is none.
    pub(crate) fn open() -> Option<Self> {
        if !std::io::stdout().is_terminal() {
            return None;
        }
        let suspend = Arc::<AtomicBool>::default();
        // A shell without job control has it ignored: it could not wake us again.
        if !is_ignored(SIGTSTP) {
            let _ = signal_hook::flag::register(SIGTSTP, suspend.clone());
        }
        let screen = Self { keys: tcgetattr(std::io::stdin()).ok(), suspend, drawn: RefCell::default() };
        screen.enter().then_some(screen)
    }

    fn enter(&self) -> bool {
        if let Some(before) = &self.keys {
            // Keys come one by one and are not shown. Ctrl-C still interrupts.
            let mut now = before.clone();
            now.local_modes.remove(LocalModes::ICANON | LocalModes::ECHO);
            let _ = tcsetattr(std::io::stdin(), OptionalActions::Now, &now);
        }
        self.write("\x1b[?1049h\x1b[?25l")
    }

    fn leave(&self) {
        self.write("\x1b[?25h\x1b[?1049l");
        if let Some(before) = &self.keys {
            let _ = tcsetattr(std::io::stdin(), OptionalActions::Now, before);
        }
    }

    /// Gives the terminal to the shell until it is given back.
    fn suspend(&self) {
        self.leave();
        let _ = signal_hook::low_level::emulate_default_handler(SIGTSTP);
        self.enter();
        self.write(&self.drawn.borrow());
    }

    /// Shows what `text` makes of so many rows and columns, as much as there is room for. False if the terminal is gone.
    pub(crate) fn draw(&self, text: impl FnOnce(usize, usize) -> String) -> bool {
        let size = tcgetwinsize(std::io::stdout()).ok().filter(|size| size.ws_row > 0 && size.ws_col > 0);
        let (rows, columns) = size.map_or((24, 80), |size| (usize::from(size.ws_row), usize::from(size.ws_col)));
        self.drawn.replace(frame(&text(rows, columns), rows, columns));
        self.write(&self.drawn.borrow())
    }

    /// Waits `time`; false as soon as `q` is pressed or `stop` is raised.
    pub(crate) fn wait(&self, time: Duration, stop: &AtomicBool) -> bool {
        let end = Instant::now() + time;
        loop {
            if self.suspend.swap(false, Ordering::Relaxed) {
                self.suspend();
            }
            let left = end.saturating_duration_since(Instant::now());
            if stop.load(Ordering::Relaxed) || left.is_zero() {
                return !stop.load(Ordering::Relaxed);
            }
            let pause = left.min(SIGNAL_SEEN_EVERY);
            if self.keys.is_none() {
                std::thread::sleep(pause);
            } else if is_pressed(b'q', pause) {
                return false;
            }
        }
    }

    fn write(&self, text: &str) -> bool {
        let mut out = std::io::stdout();
        out.write_all(text.as_bytes()).and_then(|()| out.flush()).is_ok()
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        self.leave();
    }
}

/// Whether `key` is pressed within this time.
fn is_pressed(key: u8, time: Duration) -> bool {
    let stdin = std::io::stdin();
    let timeout = Timespec { tv_sec: time.as_secs() as i64, tv_nsec: i64::from(time.subsec_nanos()) };
    let mut fds = [PollFd::from_borrowed_fd(stdin.as_fd(), PollFlags::IN)];
    if poll(&mut fds, Some(&timeout)).unwrap_or(0) == 0 {
        return false;
    }
    // Not through the buffer of standard input: the next poll would not see keys that wait there.
    let mut keys = [0; 64];
    let read = rustix::io::read(&stdin, &mut keys).unwrap_or(0);
    if read == 0 {
        std::thread::sleep(time); // Standard input is closed, which poll would report without a pause.
    }
    keys[..read].contains(&key)
}

/// `text` over the whole of a screen: lines too long are cut, and of lines too many the last ones are left out.
fn frame(text: &str, rows: usize, columns: usize) -> String {
    let mut frame = String::from("\x1b[H");
    for (row, line) in text.lines().take(rows).enumerate() {
        if row > 0 {
            frame.push('\n');
        }
        frame.extend(line.chars().take(columns));
        frame.push_str("\x1b[K");
    }
    frame.push_str("\x1b[J");
    frame
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_fits_its_screen_and_leaves_nothing_of_the_last_one() {
        assert_eq!(frame("ab\ncdef\ng", 2, 3), "\x1b[Hab\x1b[K\ncde\x1b[K\x1b[J");
        assert_eq!(frame("", 2, 3), "\x1b[H\x1b[J");
    }
}
