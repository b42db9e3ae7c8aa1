//! Ctrl-C and SIGTERM ask to stop; asked twice, the program ends as usual.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// Set by the first signal: workers then hand back their shards.
pub(crate) fn stop_flag() -> Result<Arc<AtomicBool>, String> {
    use signal_hook::consts::{SIGINT, SIGTERM};
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        let registered = signal_hook::flag::register_conditional_default(signal, Arc::clone(&stop))
            .and_then(|_| signal_hook::flag::register(signal, Arc::clone(&stop)));
        registered.map_err(|error| format!("cannot listen for signals: {error}"))?;
    }
    Ok(stop)
}
