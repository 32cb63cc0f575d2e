//! Tokens of AWS IAM for Amazon MSK: a signed URL, with the credentials that the AWS SDK finds (environment, profile, web
//! identity, container, instance).

use std::error::Error;

use aws_msk_iam_sasl_signer::generate_auth_token;
use aws_types::region::Region;

/// A token, and when it expires, in epoch milliseconds.
pub struct Token {
    pub text: String,
    pub expires_ms: i64,
}

/// Generates a token for the clusters of a region. The error has all its causes.
pub fn generate(region: &str) -> Result<Token, String> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| with_causes(&error))?;
    let token = runtime.block_on(generate_auth_token(Region::new(region.to_owned())));
    let (text, expires_ms) = token.map_err(|error| {
        format!(
            "no AWS credentials for a token: {}; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, AWS_PROFILE, or \
             AWS_WEB_IDENTITY_TOKEN_FILE and AWS_ROLE_ARN, or give the instance or the container a role",
            with_causes(&error)
        )
    })?;
    Ok(Token { text, expires_ms })
}

fn with_causes(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    // The list of the providers has a line for each.
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}
