import java.nio.charset.StandardCharsets;
import java.util.Base64;
import java.util.List;
import java.util.Map;
import java.util.Set;
import javax.security.auth.callback.Callback;
import javax.security.auth.callback.UnsupportedCallbackException;
import javax.security.auth.login.AppConfigurationEntry;
import org.apache.kafka.common.security.auth.AuthenticateCallbackHandler;
import org.apache.kafka.common.security.oauthbearer.OAuthBearerExtensionsValidatorCallback;
import org.apache.kafka.common.security.oauthbearer.OAuthBearerToken;
import org.apache.kafka.common.security.oauthbearer.OAuthBearerValidatorCallback;

/** Accepts tokens that have the form of those for Amazon MSK. It does not verify signatures. */
public final class SignedUrlValidator implements AuthenticateCallbackHandler {
    private static final String START = "https://kafka.eu-west-1.amazonaws.com/?Action=kafka-cluster%3AConnect&";
    /** A connection has to be authenticated again after this time. */
    private static final long SESSION_MS = 10_000;

    @Override
    public void configure(Map<String, ?> configs, String mechanism, List<AppConfigurationEntry> entries) {}

    @Override
    public void close() {}

    @Override
    public void handle(Callback[] callbacks) throws UnsupportedCallbackException {
        for (Callback callback : callbacks) {
            if (callback instanceof OAuthBearerValidatorCallback validator) {
                String url = new String(Base64.getUrlDecoder().decode(validator.tokenValue()), StandardCharsets.UTF_8);
                if (url.startsWith(START) && url.contains("&X-Amz-Signature=")) {
                    validator.token(new Accepted(validator.tokenValue()));
                } else {
                    validator.error("invalid_token", null, null);
                }
            } else if (!(callback instanceof OAuthBearerExtensionsValidatorCallback)) {
                throw new UnsupportedCallbackException(callback);
            }
        }
    }

    private record Accepted(String value) implements OAuthBearerToken {
        @Override
        public Set<String> scope() {
            return Set.of();
        }

        @Override
        public long lifetimeMs() {
            return System.currentTimeMillis() + SESSION_MS;
        }

        @Override
        public String principalName() {
            return "dedupd";
        }

        @Override
        public Long startTimeMs() {
            return null;
        }
    }
}
