//! Completion scripts and man pages, generated from the definition of the command line.

use std::io;
use std::path::{Path, PathBuf};

use clap::{Args, CommandFactory};
use clap_complete::Shell;

use super::CommandLine;

/// Flags of `completions`.
#[derive(Debug, Clone, Args)]
pub struct CompletionsArgs {
    /// Shell that the script is for
    #[arg(value_name = "SHELL")]
    shell: Shell,
}

/// Flags of `man`.
#[derive(Debug, Clone, Args)]
pub struct ManArgs {
    /// Directory for the pages, which must exist
    #[arg(long, value_name = "DIR")]
    pub to: PathBuf,
}

pub(super) const COMPLETIONS_HELP: &str = "\
Examples:
  dedupd completions bash > /etc/bash_completion.d/dedupd
  dedupd completions zsh > \"${fpath[1]}/_dedupd\"
  dedupd completions fish > ~/.config/fish/completions/dedupd.fish";

pub(super) const MAN_HELP: &str = "\
Example:
  dedupd man --to /usr/local/share/man/man1 && man dedupd-run";

impl CompletionsArgs {
    /// The script.
    pub fn script(&self) -> Vec<u8> {
        let mut script = Vec::new();
        clap_complete::generate(self.shell, &mut CommandLine::command(), "dedupd", &mut script);
        script
    }
}

/// Writes a page for `dedupd` and one for each subcommand to a directory: `dedupd.1`, `dedupd-run.1` and so on.
pub fn write_man_pages(to: &Path) -> io::Result<()> {
    clap_mangen::generate_to(CommandLine::command(), to)
}
