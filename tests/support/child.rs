//! Child processes that cannot outlive the test process, even if it is killed.
//!
//! `setpriv --pdeathsig` makes the kernel kill the child when its parent ends. For the kernel, the parent is
//! the *thread* that started the child, and cargo's test threads end with their test. So one thread, which
//! lives as long as the process, starts every child.
//!
//! If the parent ends before `setpriv` runs, the kernel does not kill the child. So a shell checks after `setpriv`
//! whether its parent is still the expected process, and only then executes the program.

use std::io;
use std::process::{Child, Command};
use std::sync::OnceLock;
use std::sync::mpsc::{Sender, channel};
use std::thread;

type Order = (Command, Sender<io::Result<Child>>);

/// A command whose process is killed when this process ends. Start it with [`spawn`].
pub fn tied(program: impl AsRef<std::ffi::OsStr>) -> Command {
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "KILL", "--", "sh", "-c", r#"[ "$PPID" = "$0" ] && exec "$@""#]);
    command.arg(std::process::id().to_string()).arg(program);
    command
}

/// Starts a command of [`tied`] from the thread that never ends.
pub fn spawn(command: Command) -> Child {
    static STARTER: OnceLock<Sender<Order>> = OnceLock::new();
    let starter = STARTER.get_or_init(|| {
        let (orders, inbox) = channel::<Order>();
        thread::spawn(move || {
            for (mut command, reply) in inbox {
                reply.send(command.spawn()).expect("the test waits for its child");
            }
        });
        orders
    });
    let (reply, answer) = channel();
    let shown = format!("{command:?}");
    starter.send((command, reply)).expect("the starter thread lives as long as the process");
    let child = answer.recv().expect("a reply of the starter thread");
    child.unwrap_or_else(|error| {
        panic!("cannot start {shown}: {error}; is util-linux's setpriv installed? Run scripts/setup")
    })
}

/// Sends a signal by its name without SIG, for example `STOP`.
pub fn signal(pid: u32, name: &str) {
    let status = Command::new("sh").args(["-c", &format!("kill -{name} {pid}")]).status();
    assert!(status.is_ok_and(|status| status.success()), "kill -{name} {pid} failed");
}
