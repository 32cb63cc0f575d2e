//! `dedupd`: parses the command line, runs a command, exits with its code.

use std::process::ExitCode;

use dedupd::{cli, tools};

fn main() -> ExitCode {
    match tools::command(cli::parse()) {
        Ok(exit) => exit.into(),
        Err(ended) => {
            eprintln!("dedupd: {ended}");
            ended.exit.into()
        }
    }
}
