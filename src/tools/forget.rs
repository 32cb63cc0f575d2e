//! `dedupd forget`: has a running instance forget an id.

use std::fmt::Display;
use std::io::ErrorKind;

use super::health::{self, AdminAnswer, OwnerAnswer};
use crate::app::{ExitError, token};
use crate::cli::{Exit, ForgetArgs};
use crate::config;
use crate::control::{AskedId, MAX_BODY};

/// Sends the request, and prints the owners that are forgotten.
pub fn command(args: &ForgetArgs) -> Result<Exit, ExitError> {
    let http = config::load_local(args.instance.config.as_deref(), args.instance.overrides())?.http;
    let token_file = http.token_file.as_deref();
    let token = token(token_file)?.ok_or_else(|| {
        ExitError::usage("http.token_file is not set: the instance forgets an id only with a token; give its file to the instance and to this command")
    })?;
    if args.identity.as_deref().is_some_and(|text| AskedId::identity(text).is_none()) {
        return Err(ExitError::usage("--identity: expected 32 hex digits, as dedupd explain prints them"));
    }
    let id = args.identity.is_none().then_some(&args.id);
    let body =
        serde_json::json!({ "id": id, "identity": args.identity, "partition": args.partition }).to_string();
    if body.len() > MAX_BODY {
        return Err(ExitError::usage(
            "the id is larger than a request may be (64 KiB); give --identity, which dedupd explain prints for a record",
        ));
    }
    let by = format!("the instance at http://{}", http.listen);
    let secret = Some(token.secret());
    let (code, body) = health::ask(http.listen, "/forget", secret, Some(&body), health::ADMIN_PATIENCE)
        .map_err(|error| {
            let state =
                if error.kind() == ErrorKind::ConnectionRefused { "is not" } else { "may or may not be" };
            let what = format!("the id {state} forgotten: check --listen and that it runs, then repeat");
            ExitError::new(Exit::No, format!("{by} does not answer: {error}; {what}"))
        })?;
    if let Some(why) = health::refused_token(&code, token_file) {
        return Err(ExitError::usage(format!("{by} {why}")));
    }
    let answer: AdminAnswer = serde_json::from_str(&body).map_err(|error| {
        let what = "give the address of dedupd run with --listen";
        ExitError::new(
            Exit::No,
            format!("{by} answered with code {code}, which is not that of dedupd ({error}); {what}"),
        )
    })?;
    let (exit, why) = match code.as_str() {
        "200" => {
            let owners = listed(answer.owners.iter().flatten().map(owner));
            println!("forgotten: identity {}, first had by record {owners}", answer.identity);
            return Ok(Exit::Done);
        }
        "400" => (Exit::Usage, answer.error.unwrap_or_default()),
        "404" => {
            let searched = listed(&answer.looked_into);
            let what = "check the id, or ask the instance that has the other partitions, with --listen";
            (Exit::No, format!("the id is not stored (partitions looked into: {searched}); {what}"))
        }
        _ => (Exit::No, answer.error.unwrap_or_else(|| not_restored(&answer.not_ready))),
    };
    Err(ExitError::new(exit, format!("{by}: {why}")))
}

fn not_restored(partitions: &[u32]) -> String {
    format!(
        "the state of partitions {} is not restored yet, so the id may still be there; repeat when /readyz says ready",
        listed(partitions)
    )
}

fn owner(owner: &OwnerAnswer) -> String {
    let at = owner.partition.zip(owner.offset);
    at.map_or_else(|| "in a filter".to_owned(), |(partition, offset)| format!("{partition}@{offset}"))
}

fn listed(values: impl IntoIterator<Item = impl Display>) -> String {
    let texts: Vec<_> = values.into_iter().map(|value| value.to_string()).collect();
    texts.join(", ")
}
