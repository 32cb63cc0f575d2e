//! `dedupd`: parses the command line, runs a command, exits with its code.

use dedupd::{cli, tools};

fn main() {
    tools::complete(cli::parse()).end();
}
