//! `dedupd forget`.

use clap::Args;

use super::Exit;
use super::health::InstanceArgs;

/// Flags of `forget`.
#[derive(Debug, Clone, Args)]
pub struct ForgetArgs {
    /// The id: a text for each part of identity.from, in this order. An absent optional part is an empty text
    #[arg(value_name = "ID", required_unless_present = "identity")]
    pub id: Vec<String>,
    /// What stands for the id, 32 hex digits, as dedupd explain prints it: for an id that is not UTF-8
    #[arg(long, value_name = "HEX", conflicts_with = "id")]
    pub identity: Option<String>,
    /// Forget the id among the records of this partition only
    #[arg(long, value_name = "NUMBER")]
    pub partition: Option<u32>,
    /// The instance.
    #[command(flatten)]
    pub instance: InstanceArgs,
}

pub(super) const HELP: &str = "\
Asks the instance at http.listen, with the token of http.token_file, which both are those of the
instance: from its file or environment. The change is committed before the command ends. The next
record with the id is forwarded, and the id is stored again. Give -- before an id that starts with -.

Examples:
  dedupd forget order-17 --config /etc/dedupd.toml
  dedupd forget --config /etc/dedupd.toml -- order-17 eu
  DEDUPD_HTTP__TOKEN_FILE=/etc/dedupd/token dedupd forget order-17 --listen 10.0.0.7:9464";
pub(super) const CODES: &[Exit] = &[Exit::Done, Exit::No, Exit::Usage];
