//! placeholder
fn main() -> std::process::ExitCode {
    if let Some(error) = howdah_server::dev::run_if_guard(std::env::args_os()) {
        eprintln!("howdah: {error}");
        return std::process::ExitCode::FAILURE;
    }
    std::process::ExitCode::SUCCESS
}
