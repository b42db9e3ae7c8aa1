use std::process::ExitCode;
pub(crate) fn write(_: &std::path::Path, _: u64, _: bool) -> ExitCode { ExitCode::FAILURE }
