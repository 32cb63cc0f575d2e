//! `dedupd`: parses the command line, runs a command, exits with its code.

use std::process::ExitCode;

use dedupd::{cli, tools};

fn main() -> ExitCode {
    tools::complete(cli::parse()).into()
}
