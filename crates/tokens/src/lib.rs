//! Kafka clients with SASL/OAUTHBEARER tokens that this process generates.
//!
//! librdkafka requests a token by an event, which only a client that is polled receives. Some clients of dedupd are never
//! polled. So one thread generates the tokens of all clients and gives each new one to every client, polled or not.

#[cfg(feature = "msk-iam")]
mod msk_iam;
#[cfg(feature = "msk-iam")]
mod refresher;

use std::ops::Deref;

use rdkafka::admin::AdminClient;
use rdkafka::config::FromClientConfigAndContext;
use rdkafka::consumer::{BaseConsumer, Consumer, ConsumerContext};
use rdkafka::error::{KafkaError, KafkaResult};
use rdkafka::producer::{BaseProducer, Producer, ProducerContext, ThreadedProducer};
use rdkafka::types::{RDKafka, RDKafkaConfRes};
use rdkafka::{ClientConfig, ClientContext};

/// The property that selects the tokens. Its format is not defined by librdkafka, which ignores it.
const PROPERTY: &str = "sasl.oauthbearer.config";
/// Before the name of the AWS region in the value of the property.
const MSK_IAM: &str = "msk_iam_region=";

/// Tokens for a client until it is dropped, which must be before the client is.
#[must_use]
pub struct Attached {
    #[cfg(feature = "msk-iam")]
    _registration: Option<refresher::Registration>,
}

/// A client that receives tokens as long as it exists, if its configuration selects them.
pub struct Authenticated<T> {
    /// Declared first because it must be dropped before the client.
    _tokens: Attached,
    client: T,
}

impl<T> Deref for Authenticated<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.client
    }
}

/// A client of this crate's users.
pub trait Native {
    /// The client of librdkafka.
    fn native(&self) -> *mut RDKafka;
}

impl<C: ConsumerContext> Native for BaseConsumer<C> {
    fn native(&self) -> *mut RDKafka {
        self.client().native_ptr()
    }
}

impl<C: ProducerContext> Native for BaseProducer<C> {
    fn native(&self) -> *mut RDKafka {
        self.client().native_ptr()
    }
}

impl<C: ProducerContext + 'static> Native for ThreadedProducer<C> {
    fn native(&self) -> *mut RDKafka {
        self.client().native_ptr()
    }
}

impl<C: ClientContext> Native for AdminClient<C> {
    fn native(&self) -> *mut RDKafka {
        self.inner().native_ptr()
    }
}

/// Creates a client. Tokens are generated in the background.
pub fn create<C, T>(config: &ClientConfig, context: C) -> KafkaResult<Authenticated<T>>
where
    C: ClientContext,
    T: FromClientConfigAndContext<C> + Native,
{
    region(config)?;
    let client: T = config.create_with_context(context)?;
    Ok(Authenticated { _tokens: attach(config, client.native())?, client })
}

/// Gives tokens to a client, if its configuration selects them.
pub fn attach(config: &ClientConfig, client: *mut RDKafka) -> KafkaResult<Attached> {
    let region = region(config)?;
    #[cfg(not(feature = "msk-iam"))]
    let _ = (region, client);
    Ok(Attached {
        #[cfg(feature = "msk-iam")]
        _registration: region.map(|region| refresher::register(&region, client)),
    })
}

/// The AWS region of the tokens; `None` when the client needs no tokens of this process.
fn region(config: &ClientConfig) -> KafkaResult<Option<String>> {
    let Some(value) = config.get(PROPERTY) else { return Ok(None) };
    let Some(region) = value.trim().strip_prefix(MSK_IAM) else { return Ok(None) };
    let wrong = |what: &str| {
        let code = RDKafkaConfRes::RD_KAFKA_CONF_INVALID;
        KafkaError::ClientConfig(code, what.to_owned(), PROPERTY.to_owned(), value.to_owned())
    };
    if cfg!(not(feature = "msk-iam")) {
        return Err(wrong("this build cannot generate tokens of AWS IAM; build it with --features msk-iam"));
    }
    let name = region.trim();
    if name.is_empty() || !name.chars().all(|it| it.is_ascii_alphanumeric() || it == '-') {
        return Err(wrong("expected the region of the cluster, as in msk_iam_region=eu-west-1"));
    }
    if config.get("sasl.mechanism").or(config.get("sasl.mechanisms")) != Some("OAUTHBEARER") {
        return Err(wrong("tokens of AWS IAM need sasl.mechanism=OAUTHBEARER"));
    }
    Ok(Some(name.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(value: &str, mechanism: &str) -> Result<Option<String>, String> {
        let mut config = ClientConfig::new();
        config.set(PROPERTY, value).set("sasl.mechanism", mechanism);
        region(&config).map_err(|error| error.to_string())
    }

    #[test]
    fn other_configurations_need_no_tokens() {
        assert_eq!(region(&ClientConfig::new()).unwrap(), None);
        assert_eq!(parsed("principal=admin", "OAUTHBEARER"), Ok(None));
    }

    #[cfg(not(feature = "msk-iam"))]
    #[test]
    fn a_build_without_the_feature_reports_that() {
        assert!(
            parsed("msk_iam_region=eu-west-1", "OAUTHBEARER").unwrap_err().contains("--features msk-iam")
        );
    }

    #[cfg(feature = "msk-iam")]
    #[test]
    fn region_and_mechanism_are_validated() {
        assert_eq!(parsed("msk_iam_region=eu-west-1", "OAUTHBEARER"), Ok(Some("eu-west-1".to_owned())));
        assert!(parsed("msk_iam_region=", "OAUTHBEARER").unwrap_err().contains("the region"));
        assert!(parsed("msk_iam_region=a/b", "OAUTHBEARER").unwrap_err().contains("the region"));
        assert!(parsed("msk_iam_region=eu-west-1", "PLAIN").unwrap_err().contains("OAUTHBEARER"));
    }
}
