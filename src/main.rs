//! `dedupd`: parses the command line, runs a command, exits with its code.

use std::process::ExitCode;

use dedupd::{app, cli};

fn main() -> ExitCode {
    match app::command(cli::parse()) {
        Ok(exit) => exit.into(),
        Err(ended) => {
            eprintln!("dedupd: {ended}");
            ended.exit.into()
        }
    }
}
