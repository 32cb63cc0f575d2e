//! The command `plan`: measures the live topic if one is given, and prints the plan.

use std::time::Duration;

use indicatif::ProgressBar;

use super::{CapacityPlan, Fits, IdKind, MeasuredAges, SHARES, WindowAdvice, Workload};
use crate::app::ExitError;
use crate::cli::{Exit, IdForm, PlanArgs, WhenFull};
use crate::clock;
use crate::config::{OFF, SchemasConfig, compared, duration_text, size_text};
use crate::dedupe::{Hasher, IdPart, IdSourceError, IdentityRule, SOURCES, SealedBytes};
use crate::kafka::{self, SampleError, SampleRule, Sampling, TopicSample};
use crate::schemas::BlockingSchemas;
use crate::tools::properties;

const MIB: u64 = 1 << 20;
/// `window.exact` when neither a flag nor the ages of copies give another.
const EXACT: Duration = Duration::from_hours(24);

/// `dedupd plan`: the text to print.
pub fn command(args: &PlanArgs) -> Result<String, ExitError> {
    let exact = args.exact.unwrap_or(EXACT);
    let bloom = args.bloom.unwrap_or(exact);
    if bloom < exact {
        return Err(ExitError::usage(
            "--bloom is shorter than --exact; give a longer time, or leave --bloom out",
        ));
    }
    if args.overflow == WhenFull::Evict && bloom > exact {
        return Err(ExitError::usage(
            "--overflow evict cannot be combined with --bloom; leave one of them out",
        ));
    }
    let slots = slots(args)?;
    let sample = args.raw.as_deref().map(|topic| sampled(args, topic)).transpose()?;
    let (sample, note) = sample.unzip();
    let note = note.flatten();
    let live = sample.clone().unwrap_or_default();
    let workload = Workload {
        slots,
        events_per_second: args.events.unwrap_or(live.events_per_second),
        duplicates: args.duplicates.unwrap_or_else(|| live.copies()),
        ids: match args.ids {
            IdForm::Uuid => IdKind::Uuid,
            IdForm::Text => IdKind::Text,
        },
        exact,
        bloom,
        false_positive_rate: args.false_positive_rate,
        partitions: args.partitions.unwrap_or(live.partitions).max(1),
    };
    let advice = sample.as_ref().map(|sample| WindowAdvice::of(measured_ages(sample), workload));
    let longer = advice.and_then(|advice| advice.longer_than(exact));
    let plan = CapacityPlan::of(match longer.filter(|_| args.exact.is_none() && args.bloom.is_none()) {
        Some(exact) => Workload { exact, bloom: exact, ..workload },
        None => workload,
    });
    if args.toml {
        let measured = sample.filter(|_| args.events.is_none());
        return Ok(toml(&plan, measured.as_ref(), advice));
    }
    let fits = args.memory.map(|memory| Fits::of(&plan.workload, memory));
    if args.json {
        let scope = sample.as_ref().map(|sample| {
            serde_json::json!({ "recommended": sample.recommended_scope(), "advice": sample.advice(None) })
        });
        let conflicts = sample.as_ref().and_then(TopicSample::content_warning);
        let all = serde_json::json!({
            "plan": plan, "fits": fits, "sample": sample, "scope": scope, "conflicts": conflicts, "ages": advice, "schemas": note
        });
        return Ok(format!("{all}\n"));
    }
    let fits = fits.map(|fits| fits.to_string()).unwrap_or_default();
    let sample = sample.map(|sample| sample.to_string()).unwrap_or_default();
    let advice = advice.map(|advice| advice.to_string()).unwrap_or_default();
    let note = note.map(|note| format!("note: {note}\n")).unwrap_or_default();
    Ok(format!("{sample}{advice}{note}{plan}{fits}"))
}

/// The slots of a table of fixed size, if there is one.
fn slots(args: &PlanArgs) -> Result<Option<u64>, ExitError> {
    match (args.overflow, args.max_ids) {
        (WhenFull::Evict, Some(slots)) => Ok(Some(slots)),
        (WhenFull::Shrink, None) => Ok(None),
        (WhenFull::Evict, None) | (WhenFull::Shrink, Some(_)) => {
            Err(ExitError::usage("--overflow evict and --max-ids require each other; give both, or neither"))
        }
    }
}

fn measured_ages(sample: &TopicSample) -> MeasuredAges {
    MeasuredAges {
        copies: sample.ages.copies(),
        within: SHARES.map(|share| sample.ages.within(share)),
        longest: sample.ages.longest(),
        covered_seconds: sample.covered_seconds,
        is_whole: sample.is_whole,
        one_in: sample.one_in,
        most_ids: kafka::FOLLOWED_IDS,
    }
}

/// The keys to set, and in comments what is set elsewhere.
fn toml(plan: &CapacityPlan, measured: Option<&TopicSample>, advice: Option<WindowAdvice>) -> String {
    let CapacityPlan { workload, memory, disk_bytes, state_topic, .. } = plan;
    let Workload { exact, bloom, false_positive_rate, slots, partitions, .. } = *workload;
    let longer = advice.and_then(|advice| advice.longer_than(exact)).map(duration_text);
    let longer = longer.map(|longer| format!("# The copies that were read need at least {longer}.\n"));
    let (longer, [exact, whole]) = (longer.unwrap_or_default(), [exact, bloom].map(duration_text));
    // The smallest accepted value is 16 MiB.
    let size = |bytes: u64| size_text(bytes.div_ceil(MIB).max(16) * MIB);
    let filters = format!("bloom = \"{whole}\"\nfalse_positive_rate = {false_positive_rate:e}\n");
    let filters = if plan.filters.is_some() { filters } else { String::new() };
    let table = slots.map(|slots| format!("overflow = \"evict\"\nmax_ids = {slots}\n")).unwrap_or_default();
    let measured = measured.map(|sample| format!("# Their rate was measured {}.\n", sample.span()));
    let measured = measured.unwrap_or_default();
    let used = SealedBytes::disk_eighths(slots.is_none());
    let eighths = if slots.is_none() { "five" } else { "seven" };
    let retention_ms = state_topic.retention_seconds.saturating_mul(1_000);
    format!(
        "# By dedupd plan, for {:.3} new ids per second in {partitions} partitions.\n{measured}\
         # Memory limit of the container or service unit: {}.\n\
         # retention.ms of the state topic: {retention_ms}; topics.create = true sets it.\n\
         [window]\n{longer}exact = \"{exact}\"\n{filters}{table}max_memory = \"{}\"\n\n\
         [state]\n# Windows become shorter at {eighths} eighths of it.\nmax_disk = \"{}\"\n",
        plan.new_ids_per_second,
        size(memory.limit_bytes),
        size(memory.window_bytes),
        size(disk_bytes / used * 8),
    )
}

/// The parts that a flag names.
fn parsed(flag: &str, texts: &[String]) -> Result<Vec<IdPart>, ExitError> {
    let unusable = |text: &String, error: &IdSourceError| {
        ExitError::usage(format!("{flag} {text} {error}; give {SOURCES}"))
    };
    texts.iter().map(|text| text.parse().map_err(|error| unusable(text, &error))).collect()
}

/// What `--compare` sets, as `identity.compare` does; `None` without it.
fn compare_parts(texts: &[String]) -> Result<Option<Vec<IdPart>>, ExitError> {
    match texts {
        [] => Ok(None),
        [word] if word == OFF => Ok(Some(Vec::new())),
        texts => parsed("--compare", texts).map(Some),
    }
}

/// Rate, duplicates and partitions, measured on a live topic, and a note about its schemas.
fn sampled(args: &PlanArgs, topic: &str) -> Result<(TopicSample, Option<String>), ExitError> {
    let parts = parsed("--id", &args.id)?;
    let compare = compared(&parts, compare_parts(&args.compare)?.as_deref());
    let sampling = Sampling {
        bootstrap_servers: args.bootstrap_servers.clone().unwrap_or_default(),
        properties: properties(&args.properties)?,
        topic: topic.to_owned(),
        records: if args.full { u64::MAX } else { args.sample },
    };
    let bar = if args.full { ProgressBar::no_length() } else { ProgressBar::new(args.sample) };
    let schemas = SchemasConfig {
        frame: args.schema_frame.unwrap_or_default(),
        value: args.schema_files.clone(),
        key: args.schema_files.clone(),
        ..SchemasConfig::open(args.schema_registry.clone())
    };
    let schemas = BlockingSchemas::open(&schemas).map_err(ExitError::usage)?;
    let rule = SampleRule {
        rule: IdentityRule::new(parts, Hasher::Xxh3),
        identify: &|rule, record| schemas.identify(rule, record),
        digest: &|compare, record| schemas.digest(compare, record),
        force_header: args.force_header.as_deref(),
        compare,
    };
    let sample = kafka::sample(&sampling, &rule, clock::wall_ms(), &|read| bar.set_position(read));
    bar.finish_and_clear();
    let sample = sample.map_err(|failed| match failed {
        SampleError::NoConnection(why) => why.into(),
        SampleError::Refused(_) => ExitError::new(Exit::StartUp, failed.to_string()),
    })?;
    let live = "--id, or give --events, --duplicates and --partitions";
    if sample.read == 0 {
        return Err(ExitError::usage(format!(
            "topic {topic} has no records to measure; give --events, --duplicates and --partitions"
        )));
    }
    match sample.no_ids(schemas.why_missing(), live) {
        Some(what) => Err(ExitError::new(Exit::StartUp, what)),
        None => Ok((sample, schemas.note())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn off_compares_nothing_as_in_the_configuration() {
        let of = |texts: &[&str]| compare_parts(&texts.iter().map(|it| (*it).to_owned()).collect::<Vec<_>>());
        assert_eq!(of(&[]).unwrap(), None);
        assert_eq!(of(&["off"]).unwrap(), Some(Vec::new()));
        assert_eq!(of(&["value"]).unwrap(), Some(vec!["value".parse().unwrap()]));
        let failed = of(&["off", "value"]).unwrap_err();
        assert!(failed.to_string().starts_with("--compare off is not a source"), "{failed}");
    }
}
